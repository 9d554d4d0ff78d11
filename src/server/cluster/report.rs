//! Reports an exit: one line in the log, one count.

use super::metrics::Metrics;
use usher_core::lifecycle::Exit;

/// Logs and counts the exit of an executor.
pub(super) fn report(exit: &Exit, metrics: &Metrics) {
    let cause = exit.cause;
    metrics.count_exit(exit);
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
                blame = cause.blame().as_str(),
                spark_by_app = spark.caused_by_app,
                spark_exit_code = spark.exit_code,
                possibly_reported = exit.possibly_reported.then_some(true),
                detail = exit.detail(),
                "executor exited"
            )
        };
    }
    if cause.is_abnormal() { line!(warn) } else { line!(info) }
}
