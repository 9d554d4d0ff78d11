//! Metrics, each listed in [`TABLE`], from which the table of docs/metrics.md is generated. All label values are closed sets,
//! listed in [`LABELS`].

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::admission::Operation;
use crate::lifecycle::cause::Cause;
use crate::ownership::resolve::DriverSource;
use crate::reason::Reason;

/// Name, labels, help.
pub const TABLE: &[(&str, &[&str], &str)] = &[
    (
        "spark_usher_admission_requests_total",
        &["webhook", "operation", "outcome", "reason"],
        "Reviews by webhook, operation, outcome and reason.",
    ),
    (
        "spark_usher_admission_duration_seconds",
        &["webhook"],
        "Time from the receipt of a review's headers to its answer.",
    ),
    ("spark_usher_admission_in_flight", &[], "Reviews in progress."),
    ("spark_usher_driver_found_total", &["how"], "Executors admitted, by the evidence that identified their driver."),
    (
        "spark_usher_tls_handshake_errors_total",
        &[],
        "Failed TLS handshakes; API servers drop speculative connections, so some are normal.",
    ),
    (
        "spark_usher_client_certificates_refused_total",
        &[],
        "TLS handshakes without an accepted client certificate (`--client-ca`, `--client-name`).",
    ),
    ("spark_usher_connections", &["listener"], "Open connections."),
    ("spark_usher_connections_evicted_total", &["listener"], "Connections closed to free capacity for new ones."),
    (
        "spark_usher_connections_refused_total",
        &["listener"],
        "New connections closed because every open connection had answered a review in the last 95 seconds.",
    ),
    (
        "spark_usher_accept_errors_total",
        &["listener"],
        "Errors while accepting connections, such as too many open files.",
    ),
    ("spark_usher_certificate_not_after_seconds", &[], "Expiry of the serving certificate, in seconds since 1970."),
    (
        "spark_usher_certificate_reloads_total",
        &["result"],
        "Reloads of the serving certificate and of the client CA, by result.",
    ),
    ("spark_usher_config_reloads_total", &["result"], "Reloads of the policy file, by result."),
    ("spark_usher_watch_events_total", &["resource"], "Changes received from watches."),
    (
        "spark_usher_watch_lag_seconds",
        &[],
        "Time from the creation of an executor until the watch shows it; creation timestamps have whole seconds.",
    ),
    ("spark_usher_watch_errors_total", &["resource"], "Watches that failed and were restarted."),
    ("spark_usher_malformed_objects_total", &["resource"], "Objects that could not be parsed and were skipped."),
    ("spark_usher_applications", &[], "Applications in the snapshot."),
    ("spark_usher_executors", &["state"], "Executors in the snapshot, by state."),
    ("spark_usher_groups", &["scheduler"], "PodGroups in the snapshot that spark-usher manages."),
    (
        "spark_usher_gangs",
        &["state"],
        "PodGroups that spark-usher manages, by whether their executors wait or have started.",
    ),
    ("spark_usher_gang_waiting_seconds", &[], "Waiting time of the gang that has waited longest; 0 if none waits."),
    (
        "spark_usher_gang_start_seconds",
        &[],
        "Time from the creation of a PodGroup until all members of its gang ran, observed by the leader.",
    ),
    (
        "spark_usher_drivers_without_executors",
        &[],
        "Running drivers whose known configuration requests executors and that have none pending or running.",
    ),
    (
        "spark_usher_fallback_pods",
        &[],
        "Executors mutated by the fallback policy only: the webhook did not answer when they were created.",
    ),
    ("spark_usher_actions_total", &["action", "result"], "Actions of the controller, by result."),
    ("spark_usher_events_total", &["reason"], "Kubernetes Events written."),
    ("spark_usher_executor_exits_total", &["cause", "exit_code"], "Executor exits, reported by the leader."),
    (
        "spark_usher_executor_exits_possibly_repeated_total",
        &["cause", "exit_code"],
        "Executor exits that the previous leader may have reported already, because it did not stop gracefully.",
    ),
    (
        "spark_usher_events_lost_total",
        &[],
        "Executor exits whose Event was not written before another replica became leader.",
    ),
    ("spark_usher_polls_total", &["result"], "Polls of all Spark pods by the leader."),
    (
        "spark_usher_poll_success_seconds",
        &[],
        "Time of the last successful poll of all Spark pods by this replica, in seconds since 1970.",
    ),
    ("spark_usher_poll_interval_seconds", &[], "Interval of the leader's polls (`lifecycle.poll`)."),
    ("spark_usher_poll_bytes_total", &[], "Bytes read by polls and by lists of all pods of a namespace."),
    (
        "spark_usher_watch_desyncs_total",
        &[],
        "Watches of pods that were restarted because they were silent or had lost a change.",
    ),
    ("spark_usher_leader", &[], "1 while this replica holds the Lease."),
    (
        "spark_usher_validating_policy_differences",
        &[],
        "ValidatingAdmissionPolicies and bindings that differ from those of the policy file, with `--validating-policies`.",
    ),
];

/// The values of the label `action`.
const ACTIONS: [&str; 9] = [
    "create-group",
    "patch-group",
    "delete-group",
    "adopt",
    "label-executor",
    "delete-executor",
    "record-event",
    "certificate",
    "ca-bundle",
];

/// The values of each label.
pub const LABELS: &[(&str, &str)] = &[
    ("webhook", "`mutate`, `validate`, `mutate-and-validate`"),
    ("operation", "`create`, `update`, `delete`, `other`"),
    ("outcome", "`allowed`, `patched`, `denied`, `failed`"),
    ("reason", "see [Reasons](reasons.md#reasons)"),
    ("listener", "`webhook`, `metrics`, `debug`"),
    ("how", "`creator`, `owner-reference`, `app-selector`, `driver-url`"),
    ("resource", "`pods`, `namespaces`, `services`, `priorityclasses`, `podgroups`"),
    (
        "state",
        "of executors `pending`, `running`, `succeeded`, `failed`, `terminating`, `deleted`, `unknown`; of gangs `waiting`, `started`",
    ),
    ("scheduler", "`kube-batch`, `volcano`, `coscheduling`, `koordinator`, `native`"),
    (
        "action",
        "`create-group`, `patch-group`, `delete-group`, `adopt`, `label-executor`, `delete-executor`, `record-event`, `certificate`, `ca-bundle`",
    ),
    (
        "result",
        "`ok`, `failed`, `refused`, `stale` (another client changed the object first; the controller plans again), `dry-run`",
    ),
    ("cause", "see [Causes of executor exits](reasons.md#causes-of-executor-exits)"),
    ("exit_code", "the codes that Spark, the JVM and shells use; `other`, and `none` if no container terminated"),
];

fn help(name: &str) -> String {
    TABLE.iter().find(|(known, ..)| *known == name).map(|(.., help)| (*help).to_owned()).unwrap_or_default()
}

fn labels(name: &str) -> &'static [&'static str] {
    TABLE.iter().find(|(known, ..)| *known == name).map_or(&[], |(_, labels, _)| labels)
}

/// A webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// `/mutate`.
    Mutate,
    /// `/validate`.
    Validate,
    /// `/mutate-and-validate`.
    Admit,
}

impl Hook {
    const ALL: [Hook; 3] = [Hook::Mutate, Hook::Validate, Hook::Admit];

    fn as_str(self) -> &'static str {
        match self {
            Hook::Mutate => "mutate",
            Hook::Validate => "validate",
            Hook::Admit => "mutate-and-validate",
        }
    }
}

/// The outcome of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed without a patch.
    Allowed,
    /// Allowed with a patch.
    Patched,
    /// Denied.
    Denied,
    /// Not answered: bad input, overload, a bug.
    Failed,
}

impl Outcome {
    const ALL: [Outcome; 4] = [Outcome::Allowed, Outcome::Patched, Outcome::Denied, Outcome::Failed];

    fn as_str(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Patched => "patched",
            Outcome::Denied => "denied",
            Outcome::Failed => "failed",
        }
    }
}

/// The listeners.
const LISTENERS: [&str; 3] = ["webhook", "metrics", "debug"];

/// The metrics of one listener.
#[derive(Clone, Debug)]
pub struct ListenerMetrics {
    /// Open connections.
    pub open: IntGauge,
    /// Connections closed to free capacity.
    pub evicted: IntCounter,
    /// Connections refused at capacity.
    pub refused: IntCounter,
    /// Errors of `accept`.
    pub accept_errors: IntCounter,
}

/// All metrics of a process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    /// The counters of `requests` by webhook, operation, outcome and reason, so that a review needs no lookup of labels.
    review_counters: Vec<OnceLock<IntCounter>>,
    /// Durations of reviews, by webhook.
    durations: [Histogram; Hook::ALL.len()],
    /// Reviews in flight.
    pub in_flight: IntGauge,
    /// Executors admitted, by the evidence for their driver.
    pub driver_found: IntCounterVec,
    /// The counters of `driver_found`, as for `requests`.
    driver_counters: [OnceLock<IntCounter>; DriverSource::ALL.len()],
    /// Failed handshakes.
    pub handshake_errors: IntCounter,
    /// Handshakes without an accepted client certificate.
    pub client_certificates_refused: IntCounter,
    connections: IntGaugeVec,
    evicted: IntCounterVec,
    refused: IntCounterVec,
    accept_errors: IntCounterVec,
    /// When the serving certificate expires.
    pub not_after: Gauge,
    /// Reloads of certificate files.
    pub certificate_reloads: IntCounterVec,
    /// Reloads of the policy file.
    pub config_reloads: IntCounterVec,
    /// Events of the watches.
    pub watch_events: IntCounterVec,
    /// Watches that failed.
    pub watch_errors: IntCounterVec,
    /// Skipped objects.
    pub malformed: IntCounterVec,
    /// How late the watch shows new executors.
    pub watch_lag: Histogram,
    /// Applications in the snapshot.
    pub(super) applications: IntGauge,
    /// Executors in the snapshot.
    pub(super) executors: IntGaugeVec,
    /// PodGroups in the snapshot.
    pub(super) groups: IntGaugeVec,
    /// Gangs in the snapshot, waiting and started.
    pub(super) gangs: IntGaugeVec,
    /// Waiting time of the gang that has waited longest.
    pub(super) gang_waiting: Gauge,
    /// Running drivers without the executors that they request.
    pub(super) idle_drivers: IntGauge,
    /// Executors mutated by the fallback policy only.
    pub(super) fallback: IntGauge,
    /// How long gangs took to start.
    pub gang_start: Histogram,
    /// Actions of the controller.
    pub actions: IntCounterVec,
    /// Kubernetes Events.
    pub events: IntCounterVec,
    /// Exits of executors.
    pub exits: IntCounterVec,
    /// Exits that the previous leader may have reported.
    pub exits_possibly_repeated: IntCounterVec,
    /// Exits whose Event was not written.
    pub events_lost: IntCounter,
    /// Polls.
    pub polls: IntCounterVec,
    /// When the last poll succeeded.
    pub poll_success: Gauge,
    /// How often the leader polls.
    pub poll_interval: Gauge,
    /// Bytes of polls.
    pub poll_bytes: IntCounter,
    /// Watches of pods that had lost a change.
    pub watch_desyncs: IntCounter,
    /// Whether this replica leads.
    pub leader: IntGauge,
    /// ValidatingAdmissionPolicies that differ from the policy file.
    pub policies_differ: IntGauge,
}

impl Metrics {
    /// Metrics with a registry of their own, so that two servers in one process do not mix.
    pub fn new() -> prometheus::Result<Metrics> {
        let registry = Registry::new();
        let counters = |name: &str| -> prometheus::Result<IntCounterVec> {
            register(&registry, IntCounterVec::new(Opts::new(name, help(name)), labels(name))?)
        };
        let gauges = |name: &str| -> prometheus::Result<IntGaugeVec> {
            register(&registry, IntGaugeVec::new(Opts::new(name, help(name)), labels(name))?)
        };
        let counter = |name: &str| register(&registry, IntCounter::new(name, help(name))?);
        let gauge = |name: &str| register(&registry, IntGauge::new(name, help(name))?);
        let duration = "spark_usher_admission_duration_seconds";
        let buckets = vec![0.000_025, 0.000_1, 0.000_25, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.0, 10.0];
        let opts = HistogramOpts::new(duration, help(duration)).buckets(buckets);
        let durations = register(&registry, HistogramVec::new(opts, labels(duration))?)?;
        let histogram = |name: &str, buckets: &[f64]| {
            let opts = HistogramOpts::new(name, help(name)).buckets(buckets.to_vec());
            register(&registry, Histogram::with_opts(opts)?)
        };
        let float = |name: &str| register(&registry, Gauge::new(name, help(name))?);
        let metrics = Metrics {
            requests: counters("spark_usher_admission_requests_total")?,
            review_counters: (0..Hook::ALL.len() * Operation::ALL.len() * Outcome::ALL.len() * Reason::ALL.len())
                .map(|_| OnceLock::new())
                .collect(),
            durations: Hook::ALL.map(|hook| durations.with_label_values(&[hook.as_str()])),
            in_flight: gauge("spark_usher_admission_in_flight")?,
            driver_found: counters("spark_usher_driver_found_total")?,
            driver_counters: std::array::from_fn(|_| OnceLock::new()),
            handshake_errors: counter("spark_usher_tls_handshake_errors_total")?,
            client_certificates_refused: counter("spark_usher_client_certificates_refused_total")?,
            connections: gauges("spark_usher_connections")?,
            evicted: counters("spark_usher_connections_evicted_total")?,
            refused: counters("spark_usher_connections_refused_total")?,
            accept_errors: counters("spark_usher_accept_errors_total")?,
            not_after: float("spark_usher_certificate_not_after_seconds")?,
            certificate_reloads: counters("spark_usher_certificate_reloads_total")?,
            config_reloads: counters("spark_usher_config_reloads_total")?,
            watch_events: counters("spark_usher_watch_events_total")?,
            watch_errors: counters("spark_usher_watch_errors_total")?,
            malformed: counters("spark_usher_malformed_objects_total")?,
            watch_lag: histogram("spark_usher_watch_lag_seconds", &[1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0])?,
            gangs: gauges("spark_usher_gangs")?,
            gang_waiting: float("spark_usher_gang_waiting_seconds")?,
            gang_start: histogram(
                "spark_usher_gang_start_seconds",
                &[1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0],
            )?,
            idle_drivers: gauge("spark_usher_drivers_without_executors")?,
            fallback: gauge("spark_usher_fallback_pods")?,
            poll_success: float("spark_usher_poll_success_seconds")?,
            poll_interval: float("spark_usher_poll_interval_seconds")?,
            applications: gauge("spark_usher_applications")?,
            executors: gauges("spark_usher_executors")?,
            groups: gauges("spark_usher_groups")?,
            actions: counters("spark_usher_actions_total")?,
            events: counters("spark_usher_events_total")?,
            exits: counters("spark_usher_executor_exits_total")?,
            exits_possibly_repeated: counters("spark_usher_executor_exits_possibly_repeated_total")?,
            events_lost: counter("spark_usher_events_lost_total")?,
            polls: counters("spark_usher_polls_total")?,
            poll_bytes: counter("spark_usher_poll_bytes_total")?,
            watch_desyncs: counter("spark_usher_watch_desyncs_total")?,
            leader: gauge("spark_usher_leader")?,
            policies_differ: gauge("spark_usher_validating_policy_differences")?,
            registry,
        };
        metrics.begin_at_zero();
        Ok(metrics)
    }

    /// Creates the counters that alerts depend on before their first event: Prometheus sees no increase in a series that begins
    /// with 1.
    fn begin_at_zero(&self) {
        for result in ["ok", "refused"] {
            self.certificate_reloads.with_label_values(&[result]);
            self.config_reloads.with_label_values(&[result]);
        }
        for action in ACTIONS {
            for result in ["ok", "failed"] {
                self.actions.with_label_values(&[action, result]);
            }
        }
        for listener in LISTENERS {
            self.listener(listener);
        }
        for cause in Cause::ALL {
            self.exits.with_label_values(&[cause.as_str(), "none"]);
        }
        for outcome in [Outcome::Allowed, Outcome::Denied] {
            let values = [Hook::Validate.as_str(), "create", outcome.as_str(), Reason::NotMutated.as_str()];
            self.requests.with_label_values(&values);
        }
    }

    /// The metrics of the listener of this name.
    pub fn listener(&self, name: &str) -> ListenerMetrics {
        ListenerMetrics {
            open: self.connections.with_label_values(&[name]),
            evicted: self.evicted.with_label_values(&[name]),
            refused: self.refused.with_label_values(&[name]),
            accept_errors: self.accept_errors.with_label_values(&[name]),
        }
    }

    /// Counts a review.
    pub fn count_review(&self, hook: Hook, operation: Operation, outcome: Outcome, reason: Reason) {
        let at = hook as usize * Operation::ALL.len() + operation as usize;
        let at = (at * Outcome::ALL.len() + outcome as usize) * Reason::ALL.len() + reason as usize;
        let values = [hook.as_str(), operation.as_str(), outcome.as_str(), reason.as_str()];
        match self.review_counters.get(at) {
            Some(known) => known.get_or_init(|| self.requests.with_label_values(&values)).inc(),
            None => self.requests.with_label_values(&values).inc(),
        }
    }

    /// Counts a driver that was found.
    pub fn count_driver(&self, how: DriverSource) {
        if let Some(counter) = self.driver_counters.get(how as usize) {
            counter.get_or_init(|| self.driver_found.with_label_values(&[how.as_str()])).inc();
        }
    }

    /// Observes the duration of an answer.
    pub fn time(&self, hook: Hook, took: Duration) {
        if let Some(duration) = self.durations.get(hook as usize) {
            duration.observe(took.as_secs_f64());
        }
    }

    /// Renders the exposition format.
    pub fn render(&self) -> prometheus::Result<Vec<u8>> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }
}

fn register<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> prometheus::Result<C> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_of_the_table_is_registered_with_its_labels() {
        let metrics = Metrics::new().unwrap();
        metrics.count_review(Hook::Mutate, Operation::Create, Outcome::Patched, Reason::SchedulingSet);
        metrics.count_review(Hook::Mutate, Operation::Create, Outcome::Patched, Reason::SchedulingSet);
        metrics.count_review(Hook::Mutate, Operation::Update, Outcome::Allowed, Reason::NotCreate);
        metrics.time(Hook::Validate, Duration::from_micros(30));
        for (vec, values) in [
            (&metrics.driver_found, &["creator"][..]),
            (&metrics.certificate_reloads, &["ok"]),
            (&metrics.config_reloads, &["ok"]),
            (&metrics.watch_events, &["pods"]),
            (&metrics.watch_errors, &["pods"]),
            (&metrics.malformed, &["pods"]),
            (&metrics.actions, &["adopt", "ok"]),
            (&metrics.events, &["Adopted"]),
            (&metrics.exits, &["evicted", "137"]),
            (&metrics.exits_possibly_repeated, &["evicted", "137"]),
            (&metrics.polls, &["ok"]),
        ] {
            vec.with_label_values(values).inc();
        }
        metrics.executors.with_label_values(&["running"]).set(1);
        metrics.groups.with_label_values(&["volcano"]).set(1);
        metrics.gangs.with_label_values(&["waiting"]).set(1);
        let text = String::from_utf8(metrics.render().unwrap()).unwrap();
        for (name, labels, help) in TABLE {
            assert!(text.contains(&format!("# HELP {name} {help}")), "{name}");
            for label in *labels {
                assert!(
                    text.lines().any(|line| line.starts_with(name) && line.contains(&format!("{label}=\""))),
                    "{name} {label}"
                );
            }
        }
        let line = "spark_usher_admission_requests_total{operation=\"create\",outcome=\"patched\",reason=\"SchedulingSet\",webhook=\"mutate\"} 2";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn every_label_has_its_values_listed() {
        let listed = |label: &str| LABELS.iter().find(|(known, _)| *known == label).unwrap().1;
        for label in TABLE.iter().flat_map(|(_, labels, _)| *labels) {
            assert!(!listed(label).is_empty(), "{label}");
        }
        let all = |label: &str, values: Vec<&str>| {
            for value in values {
                assert!(listed(label).contains(&format!("`{value}`")), "{label} {value}");
            }
        };
        all("listener", LISTENERS.into());
        all("webhook", Hook::ALL.map(Hook::as_str).into());
        all("operation", Operation::ALL.map(Operation::as_str).into());
        all("outcome", Outcome::ALL.map(Outcome::as_str).into());
        all("how", DriverSource::ALL.map(DriverSource::as_str).into());
        all("state", crate::spark::state::ExecutorPodState::ALL.map(|state| state.as_str()).into());
        all("action", ACTIONS.into());
        let with_groups = crate::gang::TABLE.iter().filter(|row| !row.apis.is_empty());
        all("scheduler", with_groups.map(|row| row.kind).collect());
    }

    #[test]
    fn discriminants_equal_indexes_in_all() {
        assert!(Outcome::ALL.iter().enumerate().all(|(i, outcome)| *outcome as usize == i));
        assert!(Hook::ALL.iter().enumerate().all(|(i, hook)| *hook as usize == i));
        assert!(Operation::ALL.iter().enumerate().all(|(i, operation)| *operation as usize == i));
        assert!(Reason::ALL.iter().enumerate().all(|(i, reason)| *reason as usize == i));
    }
}
