//! The metrics of the process: its own, and those of its parts.

use std::sync::Arc;

use prometheus::{Gauge, IntCounterVec};

use crate::cluster::namespace_metrics::NamespaceMetrics;
use crate::cluster::replica::Replica;
use crate::cluster::snapshot_metrics::SnapshotMetrics;
use crate::{cluster, http};
use usher_net::listener::metrics::ListenersMetrics;
use usher_net::telemetry::registry::Registry;

const LISTENERS: [&str; 3] = ["webhook", "metrics", "debug"];

/// The values of each label.
pub const LABELS: &[(&str, &str)] = &[
    ("webhook", "`mutate`, `validate`, `mutate-and-validate`"),
    ("operation", "`create`, `update`, `delete`, `other`"),
    (
        "outcome",
        "of reviews `allowed`, `patched`, `denied`, `failed`; of polls of drivers `view`, `starting`, `refused`, `unreachable`, `timeout`, `forbidden`, `redirected`, `other-application`, `not-spark`, `too-large`",
    ),
    ("reason", "see [Reasons](reasons.md#reasons)"),
    ("listener", "`webhook`, `metrics`, `debug`"),
    ("policies", "`validating`, `fallback`"),
    ("how", "`creator`, `owner-reference`, `app-selector`, `driver-url`"),
    ("resource", "`pods`, `namespaces`, `nodes`, `services`, `priorityclasses`, `podgroups`"),
    (
        "state",
        "of executors `pending`, `running`, `succeeded`, `failed`, `terminating`, `deleted`, `unknown`; of gangs `waiting`, `started`",
    ),
    ("namespace", "any namespace; `(other)` above 200 of them"),
    ("scheduler", "`kube-batch`, `volcano`, `coscheduling`, `koordinator`, `native`"),
    (
        "action",
        "`create-group`, `patch-group`, `delete-group`, `adopt`, `label-executor`, `delete-executor`, `recover`, `record-event`, `certificate`, `ca-bundle`, `admission-policy`",
    ),
    ("what", "`policy`, `enforce`"),
    (
        "result",
        "`ok`, `failed`, `refused`, `stale` (another client changed the object first; the controller plans again), `dry-run`",
    ),
    (
        "cause",
        "of exits see [Causes of executor exits](reasons.md#causes-of-executor-exits); of costs see [Costs](recovery.md#costs); of what applications lack see [Shortages](recovery.md#shortages)",
    ),
    (
        "rule",
        "`stuck`, `unregistered`, `givenUp`, `vanished`, `hopeless`, `zombieDriver`, `orphans`, `refused`, `terminating`, `groups`",
    ),
    ("node", "the name of a suspect node"),
    ("kind", "see [Faults](nodes.md#faults)"),
    ("exit_code", "the codes that Spark, the JVM and shells use; `other`, and `none` if no container terminated"),
];

/// The metrics of the process.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// Where all of them are registered.
    pub registry: Registry,
    /// Those of the listeners and of the webhook.
    pub http: Arc<http::metrics::Metrics>,
    /// Those of the listeners.
    pub listeners: ListenersMetrics,
    /// Those of the watches, the controller and the leader election.
    pub cluster: Arc<cluster::metrics::Metrics>,
    /// Those of the certificates and of the policy file.
    pub files: FileMetrics,
}

/// The metrics of the certificates and of the policy file, which the process replaces while it serves.
#[derive(Clone, Debug)]
pub struct FileMetrics {
    /// When the serving certificate expires.
    pub not_after: Gauge,
    /// Reloads of certificate files.
    pub certificate_reloads: IntCounterVec,
    /// Reloads of the policy file.
    pub config_reloads: IntCounterVec,
    /// Policies, and modes Enforce, that reloads removed.
    pub config_removed: IntCounterVec,
    /// How often the leader polls.
    pub poll_interval: Gauge,
}

impl Metrics {
    /// Registers the metrics of a process that runs this replica.
    pub fn new(replica: &Replica) -> prometheus::Result<Metrics> {
        let registry = Registry::default();
        let http = Arc::new(http::metrics::Metrics::register(&registry)?);
        let listeners = ListenersMetrics::register(&registry, &LISTENERS)?;
        let files = FileMetrics::register(&registry)?;
        SnapshotMetrics::register(&registry, replica.snapshot())?;
        NamespaceMetrics::register(&registry, replica)?;
        let cluster = Arc::new(cluster::metrics::Metrics::register(&registry)?);
        Ok(Metrics { registry, http, listeners, cluster, files })
    }
}

impl FileMetrics {
    fn register(registry: &Registry) -> prometheus::Result<FileMetrics> {
        let metrics = FileMetrics {
            not_after: registry.float_gauge(
                "spark_usher_certificate_not_after_seconds",
                "Expiry of the serving certificate, in seconds since 1970.",
            )?,
            certificate_reloads: registry.counters(
                "spark_usher_certificate_reloads_total",
                &["result"],
                "Reloads of the serving certificate and of the client CA, by result.",
            )?,
            config_reloads: registry.counters(
                "spark_usher_config_reloads_total",
                &["result"],
                "Reloads of the policy file, by result.",
            )?,
            config_removed: registry.counters(
                "spark_usher_config_removed_total",
                &["what"],
                "Policies that reloads of the policy file removed: all (`policy`), and those with validate: Enforce (`enforce`).",
            )?,
            poll_interval: registry.float_gauge(
                "spark_usher_poll_interval_seconds",
                "Interval of the leader's polls (`lifecycle.poll`).",
            )?,
        };
        // Alerts depend on these counters, and Prometheus sees no increase in a series that begins with 1.
        for result in ["ok", "refused"] {
            metrics.certificate_reloads.with_label_values(&[result]);
            metrics.config_reloads.with_label_values(&[result]);
        }
        for what in ["policy", "enforce"] {
            metrics.config_removed.with_label_values(&[what]);
        }
        Ok(metrics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::metrics::ACTIONS;
    use crate::http::metrics::{Hook, ReviewOutcome};
    use usher_core::admission::Operation;
    use usher_core::controller::PollError;
    use usher_core::ownership::resolve::DriverSource;
    use usher_core::policy::RecoveryRule;
    use usher_spark::state::ExecutorPodState;

    #[test]
    fn every_label_has_its_values_listed() {
        let listed = |label: &str| LABELS.iter().find(|(known, _)| *known == label).map(|(_, values)| *values);
        let metrics = Metrics::new(&Replica::default()).unwrap();
        let used: Vec<String> =
            metrics.registry.registered().into_iter().flat_map(|desc| desc.variable_labels).collect();
        for label in &used {
            assert!(listed(label).is_some_and(|values| !values.is_empty()), "{label} is not in LABELS");
        }
        for (label, _) in LABELS {
            assert!(used.iter().any(|used| used == label), "no metric has the label {label}");
        }
        let all = |label: &str, values: Vec<&str>| {
            for value in values {
                assert!(listed(label).unwrap().contains(&format!("`{value}`")), "{label} {value}");
            }
        };
        all("listener", LISTENERS.into());
        all("webhook", Hook::ALL.map(Hook::as_str).into());
        all("operation", Operation::ALL.map(Operation::as_str).into());
        all("how", DriverSource::ALL.map(DriverSource::as_str).into());
        all("state", ExecutorPodState::ALL.map(|state| state.as_str()).into());
        all("action", ACTIONS.into());
        all("rule", RecoveryRule::ALL.map(RecoveryRule::as_str).into());
        all("outcome", ReviewOutcome::ALL.map(ReviewOutcome::as_str).into());
        all("outcome", PollError::ALL.map(PollError::as_str).into());
        let with_groups = usher_core::gang::TABLE.iter().filter(|scheduler| !scheduler.apis.is_empty());
        all("scheduler", with_groups.map(|scheduler| scheduler.kind).collect());
    }
}
