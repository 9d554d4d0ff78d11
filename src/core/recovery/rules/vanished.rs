//! `vanished`: a driver counts on executors whose pods no longer exist, for longer than it needs to notice that.

use std::collections::BTreeSet;

use super::context::{RuleContext, SetContext, words};
use crate::drivers;
use crate::policy::RecoveryRule;
use crate::recovery::finding::{FindingVerdict, NoRemedy};
use crate::recovery::state::RecoveryState;
use crate::snapshot::DriverPod;
use usher_spark::lifecycle_conf::LifecycleConf;

const RULE: RecoveryRule = RecoveryRule::Vanished;
/// At most this many rows of a view are checked in one round; the next round continues.
const MAX_ROWS: usize = 8192;
/// At most this many exec ids are tracked for one driver, and this many are named.
const MAX_TRACKED: usize = 256;
const MAX_NAMED: usize = 10;

/// The rule about the executors that a driver's view contains.
pub fn of_view(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    driver: &DriverPod,
    state: &mut RecoveryState,
) -> FindingVerdict {
    let Some((view, _)) = set_context.view.as_ref().filter(|_| !context.is_off(RULE)) else {
        return FindingVerdict::Nothing;
    };
    let checked = state.rows_to_check(driver.creator, view.executors().len(), MAX_ROWS);
    let rows = view.executors().get(checked.clone()).unwrap_or_default();
    let missing =
        drivers::without_pod(rows, context.snapshot, context.key, context.input.app, driver).filter_map(|row| row.id);
    let missing: BTreeSet<u64> = missing.take(MAX_TRACKED).collect();
    // The ids about which these rows say something.
    let first = rows.first().filter(|_| checked.start > 0).and_then(|row| row.id).unwrap_or_default();
    let last = rows.last().filter(|_| checked.end < view.executors().len()).and_then(|row| row.id).unwrap_or(u64::MAX);
    let conf = context.snapshot.conf(context.key, driver).map_or_else(LifecycleConf::default, |conf| conf.lifecycle);
    let is_row = |id| view.executor(id).is_some_and(|row| row.is_active);
    let tracked = state.missing(driver.creator, first..=last, &missing, is_row, context.now.at);
    // The driver has noticed nothing if a view shows that which was requested after that time.
    let wait = conf.detection_time();
    let is_late =
        |since: &std::time::Instant| context.exits.outages.due(*since, wait, wait).is_some_and(|at| at <= view.at);
    let late: Vec<(u64, std::time::Instant)> =
        tracked.iter().filter(|(_, since)| is_late(since)).map(|(id, since)| (*id, *since)).collect();
    let Some(since) = late.iter().map(|(_, since)| *since).min() else {
        let first = tracked.values().min().and_then(|since| context.exits.outages.due(*since, wait, wait));
        return first.map_or(FindingVerdict::Nothing, |due| FindingVerdict::At(context.next_view(view).max(due)));
    };
    context.waited(since, wait, || {
        let named: Vec<String> = late.iter().take(MAX_NAMED).map(|(id, _)| id.to_string()).collect();
        let more = late.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let message = format!(
            "counts on executors {}{more}, which have no live pod; {}",
            named.join(", "),
            what_spark_notices(&conf)
        );
        context.about_driver(RULE, driver, since, message, Err(NoRemedy::ReportOnly))
    })
}

/// What the driver detects without spark-usher (`ExecutorPodsLifecycleManager`, step 7 of `docs/spark.md#lifecycle-manager`).
fn what_spark_notices(conf: &LifecycleConf) -> String {
    format!(
        "a driver notices that by its watch, or at the latest by a poll within {} \
         (spark.kubernetes.executor.apiPollingInterval plus missingPodDetectDelta), so its connection to the API server may be \
         broken; the loss of the connection to the executor alone does not make it request another one",
        words(conf.polling_interval.saturating_add(conf.missing_pod_delta))
    )
}
