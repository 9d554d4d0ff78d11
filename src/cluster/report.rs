//! Telling an end: one line in the log, one count.

use crate::lifecycle::Exit;
use crate::spark::exit;
use crate::telemetry::metrics::Metrics;

/// Says that an executor ended, once.
pub(super) fn tell(exit: &Exit, metrics: &Metrics) {
    let cause = exit.cause;
    let counted = if exit.perhaps_told { &metrics.exits_perhaps_repeated } else { &metrics.exits };
    counted.with_label_values(&[cause.as_str(), exit::bounded(exit.exit_code())]).inc();
    let spark = exit.spark();
    macro_rules! line {
        ($level:ident) => {
            tracing::$level!(
                app = %exit.app,
                pod = %exit.pod(),
                uid = &*exit.executor.uid,
                id = exit.executor.exec_id,
                node = exit.executor.node.as_deref(),
                %cause,
                exit_code = exit.exit_code(),
                by_app = cause.by_app(),
                spark_by_app = spark.caused_by_app,
                spark_exit_code = spark.exit_code,
                perhaps_told = exit.perhaps_told.then_some(true),
                detail = exit.detail(),
                "executor ended"
            )
        };
    }
    if cause.is_abnormal() { line!(warn) } else { line!(info) }
}
