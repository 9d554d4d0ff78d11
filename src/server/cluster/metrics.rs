//! The metrics of the watches, the controller and the leader election.

use prometheus::{CounterVec, Gauge, Histogram, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};

use std::sync::{Arc, Mutex, PoisonError};

use super::progress::Unseen;
use usher_core::controller::Effects;
use usher_core::controller::PollError;
use usher_core::lifecycle::cause::Cause;
use usher_core::lifecycle::exit::Exit;
use usher_core::nodes::{NodeLedger, Suspicion};
use usher_core::policy::RecoveryRule;
use usher_core::recovery::cost::Amount;
use usher_core::recovery::namespaces::CountedNamespaces;
use usher_kube::recent::OncePerMinute;
use usher_net::telemetry::registry::{Registry, to_gauge};
use usher_spark::exit_code;

/// The values of the label `action`.
pub(crate) const ACTIONS: [&str; 11] = [
    "create-group",
    "patch-group",
    "delete-group",
    "adopt",
    "label-executor",
    "delete-executor",
    "recover",
    "record-event",
    "certificate",
    "ca-bundle",
    "admission-policy",
];

/// At most this many suspect nodes are shown.
const MAX_SUSPECTS: usize = 50;

/// The metrics of the watches, the controller and the leader election. Label values are closed sets.
#[derive(Debug)]
pub struct Metrics {
    /// Events of the watches.
    pub watch_events: IntCounterVec,
    /// How late the watch shows new executors.
    pub watch_lag: Histogram,
    /// Watches that failed.
    pub watch_errors: IntCounterVec,
    /// The resources that are not seen.
    pub unseen: Unseen,
    /// When a warning about an object that cannot be parsed is due.
    pub warned_malformed: OncePerMinute,
    /// Skipped objects.
    pub malformed: IntCounterVec,
    /// Watches of pods that had lost a change.
    pub watch_desyncs: IntCounter,
    pub polls: IntCounterVec,
    pub driver_polls: IntCounterVec,
    /// When the last poll succeeded.
    pub poll_success: Gauge,
    pub poll_bytes: IntCounter,
    /// Actions of the controller.
    pub actions: IntCounterVec,
    /// What the recovery rules find now.
    pub recovery_findings: IntGaugeVec,
    /// How many nodes are suspect.
    pub suspect_nodes: IntGauge,
    /// How many executors failed on the worst of them.
    pub suspect_executors: IntGaugeVec,
    /// Pods that recovery rules deleted.
    pub recovery_deletions: IntCounterVec,
    /// Pods that recovery rules would have deleted.
    pub recovery_withheld: IntCounterVec,
    /// What executors cost that did no work.
    pub wasted_cores: CounterVec,
    /// The same for memory.
    pub wasted_bytes: CounterVec,
    /// What executors would have cost that recovery rules deleted.
    pub recovered_cores: CounterVec,
    /// The same for memory.
    pub recovered_bytes: CounterVec,
    /// How long gangs took to start.
    pub gang_start: Histogram,
    /// Exits of executors.
    pub exits: IntCounterVec,
    /// The same, by namespace.
    pub exits_of_namespaces: IntCounterVec,
    /// The namespaces that counters name.
    namespaces: Mutex<CountedNamespaces>,
    /// Exits that the previous leader may have reported.
    pub exits_possibly_repeated: IntCounterVec,
    /// Kubernetes Events.
    pub events: IntCounterVec,
    /// Exits whose Event was not written.
    pub events_lost: IntCounter,
    /// Whether this replica leads.
    pub leader: IntGauge,
    /// Admission policies that differ from the policy file.
    pub policies_differ: IntGaugeVec,
    /// Whether something vouches for signatures.
    pub signatures_believed: IntGauge,
}

impl Metrics {
    /// Counts what executors that did no work have cost, and what deletions gave back.
    pub fn count_costs(&self, effects: &Effects) {
        let add = |(cores, bytes): (&CounterVec, &CounterVec), labels: [&str; 2], amount: Amount| {
            cores.with_label_values(&labels).inc_by(amount.core_seconds);
            bytes.with_label_values(&labels).inc_by(amount.byte_seconds);
        };
        for (app, cause, amount) in &effects.waste {
            let namespace = &*self.counted_as(app.namespace());
            add((&self.wasted_cores, &self.wasted_bytes), [namespace, cause.as_str()], *amount);
        }
        for (rule, count) in &effects.withheld {
            self.recovery_withheld.with_label_values(&[rule.as_str()]).inc_by(u64::from(*count));
        }
        for (namespace, rule, amount) in &effects.given_back {
            let namespace = &*self.counted_as(namespace);
            add((&self.recovered_cores, &self.recovered_bytes), [namespace, rule.as_str()], *amount);
        }
    }

    /// The name under which counters count a namespace.
    fn counted_as(&self, namespace: &str) -> Arc<str> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner).name(namespace)
    }

    /// Counts the exit of an executor.
    pub fn count_exit(&self, exit: &Exit) {
        let (cause, code) = (exit.cause.as_str(), exit_code::bounded(exit.exit_code()));
        if exit.possibly_reported {
            return self.exits_possibly_repeated.with_label_values(&[cause, code]).inc();
        }
        self.exits.with_label_values(&[cause, code]).inc();
        self.exits_of_namespaces.with_label_values(&[&*self.counted_as(exit.app.namespace()), cause]).inc();
    }

    /// How many differences there are between the cluster's admission policies and those of the policy file.
    pub fn policies_that_differ(&self) -> i64 {
        ["validating", "fallback"].map(|part| self.policies_differ.with_label_values(&[part]).get()).into_iter().sum()
    }

    /// The pods that rules would have deleted since the start, by rule, for people; `None` if there are none.
    pub(crate) fn withheld_text(&self) -> Option<String> {
        let shown: Vec<String> = RecoveryRule::ALL
            .map(RecoveryRule::as_str)
            .into_iter()
            .map(|rule| (self.recovery_withheld.with_label_values(&[rule]).get(), rule))
            .filter(|(count, _)| *count > 0)
            .map(|(count, rule)| format!("{count} by {rule}"))
            .collect();
        (!shown.is_empty()).then(|| shown.join(", "))
    }

    pub fn show_suspects(&self, ledger: &NodeLedger) {
        let mut suspects: Vec<(&Arc<str>, &Suspicion)> = ledger.suspects().collect();
        self.suspect_nodes.set(to_gauge(suspects.len()));
        self.suspect_executors.reset();
        suspects.sort_by_key(|(_, suspicion)| std::cmp::Reverse(suspicion.executors));
        for (name, suspicion) in suspects.into_iter().take(MAX_SUSPECTS) {
            self.suspect_executors
                .with_label_values(&[name, suspicion.kind.as_str()])
                .set(to_gauge(suspicion.executors));
        }
    }

    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let metrics = Metrics {
            watch_events: registry.counters("spark_usher_watch_events_total", &["resource"], "Changes received from watches.")?,
            watch_lag: registry.histogram(
                "spark_usher_watch_lag_seconds", "Time from the creation of an executor until the watch shows it. Creation timestamps have a resolution of one second.",
                &[1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0],
            )?,
            watch_errors: registry.counters("spark_usher_watch_errors_total", &["resource"], "Watches that failed and were restarted.")?,
            warned_malformed: OncePerMinute::default(),
            unseen: Unseen::new(registry.gauges("spark_usher_watch_unseen_since_seconds", &["resource"], "Since when the list of a resource is not complete or its watch does not open, in seconds since 1970; 0 if it is seen.")?),
            malformed: registry.counters("spark_usher_malformed_objects_total", &["resource"], "Objects that could not be parsed and were skipped.")?,
            watch_desyncs: registry.counter("spark_usher_watch_desyncs_total", "Watches of pods that were restarted because they were silent or had missed a change.")?,
            polls: registry.counters("spark_usher_polls_total", &["result"], "Polls of all Spark pods by the leader.")?,
            driver_polls: registry.counters("spark_usher_driver_polls_total", &["outcome"], "Polls by the leader that ask drivers for their view of their executors.")?,
            poll_success: registry.float_gauge("spark_usher_poll_success_seconds", "Time of the last successful poll of all Spark pods by this replica, in seconds since 1970.")?,
            poll_bytes: registry.counter("spark_usher_poll_bytes_total", "Bytes read by polls and by lists of all pods of a namespace.")?,
            actions: registry.counters("spark_usher_actions_total", &["action", "result"], "Actions of the controller, by result.")?,
            recovery_findings: registry.gauges("spark_usher_recovery_findings", &["rule"], "Pods and applications that a recovery rule finds in trouble now; only the leader has values above 0.")?,
            suspect_nodes: registry.gauge("spark_usher_suspect_nodes", "Nodes on which executors of several applications failed; every replica that watches the cluster reports the same number.")?,
            suspect_executors: registry.gauges("spark_usher_suspect_node_executors", &["node", "kind"], "Executors that failed on a suspect node when it was last judged, by what happened most often; the worst 50 nodes.")?,
            recovery_withheld: registry.counters("spark_usher_recovery_withheld_total", &["rule"], "Pods that a recovery rule in mode act would have deleted if recovery.act were true and lifecycle.dryRun false; each pod is counted once.")?,
            recovery_deletions: registry.counters("spark_usher_recovery_deletions_total", &["rule"], "Pods that a recovery rule deleted.")?,
            wasted_cores: registry.float_counters("spark_usher_wasted_core_seconds_total", &["namespace", "cause"], "Cores requested by executors that did no work for their application, multiplied by the time, by cause.")?,
            wasted_bytes: registry.float_counters("spark_usher_wasted_byte_seconds_total", &["namespace", "cause"], "Bytes of memory requested by executors that did no work for their application, multiplied by the time, by cause.")?,
            recovered_cores: registry.float_counters("spark_usher_recovered_core_seconds_total", &["namespace", "rule"], "Cores requested by executors that a recovery rule deleted, multiplied by the time since, at most an hour each.")?,
            recovered_bytes: registry.float_counters("spark_usher_recovered_byte_seconds_total", &["namespace", "rule"], "Bytes of memory requested by executors that a recovery rule deleted, multiplied by the time since, at most an hour each.")?,
            gang_start: registry.histogram(
                "spark_usher_gang_start_seconds", "Time from the creation of a PodGroup until all members of its gang run, observed by the leader.",
                &[1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0],
            )?,
            exits: registry.counters("spark_usher_executor_exits_total", &["cause", "exit_code"], "Executor exits, reported by the leader.")?,
            exits_of_namespaces: registry.counters("spark_usher_namespace_executor_exits_total", &["namespace", "cause"], "Executor exits by namespace, reported by the leader.")?,
            namespaces: Mutex::default(),
            exits_possibly_repeated: registry.counters("spark_usher_executor_exits_possibly_repeated_total", &["cause", "exit_code"], "Executor exits that the previous leader may have reported already, because it did not stop gracefully.")?,
            events: registry.counters("spark_usher_events_total", &["reason"], "Kubernetes Events written.")?,
            events_lost: registry.counter("spark_usher_events_lost_total", "Executor exits whose Event was not written before another replica became leader.")?,
            leader: registry.gauge("spark_usher_leader", "1 while this replica holds the Lease.")?,
            policies_differ: registry.gauges("spark_usher_admission_policy_differences", &["policies"], "Differences between the cluster's admission policies and those of the policy file, with `--admission-policies`.")?,
            signatures_believed: registry.gauge("spark_usher_signatures_believed", "1 while this replica signs its decisions and believes signatures, because the creator policy is installed or clients need a certificate.")?,
        };
        // Alerts depend on these counters, and Prometheus sees no increase in a series that begins with 1.
        for action in ACTIONS {
            for result in ["ok", "failed"] {
                metrics.actions.with_label_values(&[action, result]);
            }
        }
        for outcome in ["view", "starting"].into_iter().chain(PollError::ALL.map(PollError::as_str)) {
            metrics.driver_polls.with_label_values(&[outcome]);
        }
        for cause in Cause::ALL {
            metrics.exits.with_label_values(&[cause.as_str(), "none"]);
        }
        Ok(metrics)
    }
}
