//! The metrics of the webhook.

use std::sync::OnceLock;
use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge};

use usher_core::admission::Operation;
use usher_core::ownership::resolve::DriverSource;
use usher_core::reason::Reason;
use usher_net::telemetry::registry::Registry;
use usher_spark::text::vocabulary;

vocabulary! {
    /// A webhook.
    Hook
    /// `/mutate`.
    Mutate = "mutate";
    /// `/validate`.
    Validate = "validate";
    /// `/mutate-and-validate`.
    Admit = "mutate-and-validate";
}

vocabulary! {
    ReviewOutcome
    /// Allowed without a patch.
    Allowed = "allowed";
    /// Allowed with a patch.
    Patched = "patched";
    /// Denied.
    Denied = "denied";
    /// Not answered: bad input, overload, a bug.
    Failed = "failed";
}

/// The metrics of the webhook. Label values are closed sets.
#[derive(Debug)]
pub struct Metrics {
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
}

impl Metrics {
    pub fn register(registry: &Registry) -> prometheus::Result<Metrics> {
        let requests = registry.counters(
            "spark_usher_admission_requests_total",
            &["webhook", "operation", "outcome", "reason"],
            "Reviews by webhook, operation, outcome and reason.",
        )?;
        let durations = registry.histograms(
            "spark_usher_admission_duration_seconds",
            &["webhook"],
            "Time from the receipt of a review's headers to its answer.",
            &[0.000_025, 0.000_1, 0.000_25, 0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 2.0, 10.0],
        )?;
        let metrics = Metrics {
            requests,
            review_counters: (0..Hook::ALL.len() * Operation::ALL.len() * ReviewOutcome::ALL.len() * Reason::ALL.len())
                .map(|_| OnceLock::new())
                .collect(),
            durations: Hook::ALL.map(|hook| durations.with_label_values(&[hook.as_str()])),
            in_flight: registry.gauge("spark_usher_admission_in_flight", "Reviews in progress.")?,
            driver_found: registry.counters(
                "spark_usher_driver_found_total",
                &["how"],
                "Executors admitted, by the evidence that identified their driver.",
            )?,
            driver_counters: std::array::from_fn(|_| OnceLock::new()),
        };
        // Alerts depend on these counters, and Prometheus sees no increase in a series that begins with 1.
        for outcome in [ReviewOutcome::Allowed, ReviewOutcome::Denied] {
            let values = [Hook::Validate.as_str(), "create", outcome.as_str(), Reason::NotMutated.as_str()];
            metrics.requests.with_label_values(&values);
        }
        Ok(metrics)
    }

    pub fn count_review(&self, hook: Hook, operation: Operation, outcome: ReviewOutcome, reason: Reason) {
        let at = hook as usize * Operation::ALL.len() + operation as usize;
        let at = (at * ReviewOutcome::ALL.len() + outcome as usize) * Reason::ALL.len() + reason as usize;
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_counted_by_webhook_operation_outcome_and_reason() {
        let registry = Registry::default();
        let metrics = Metrics::register(&registry).unwrap();
        metrics.count_review(Hook::Mutate, Operation::Create, ReviewOutcome::Patched, Reason::SchedulingSet);
        metrics.count_review(Hook::Mutate, Operation::Create, ReviewOutcome::Patched, Reason::SchedulingSet);
        metrics.count_review(Hook::Mutate, Operation::Update, ReviewOutcome::Allowed, Reason::NotCreate);
        metrics.count_driver(DriverSource::Creator);
        metrics.time(Hook::Validate, Duration::from_micros(30));
        let text = registry.render().unwrap();
        for line in [
            "spark_usher_admission_requests_total{operation=\"create\",outcome=\"patched\",reason=\"SchedulingSet\",webhook=\"mutate\"} 2",
            "spark_usher_admission_requests_total{operation=\"update\",outcome=\"allowed\",reason=\"NotCreate\",webhook=\"mutate\"} 1",
            "spark_usher_driver_found_total{how=\"creator\"} 1",
            "spark_usher_admission_duration_seconds_bucket{webhook=\"validate\",le=\"0.0001\"} 1",
            "spark_usher_admission_duration_seconds_bucket{webhook=\"validate\",le=\"0.000025\"} 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn discriminants_equal_indexes_in_all() {
        assert!(ReviewOutcome::ALL.iter().enumerate().all(|(i, outcome)| *outcome as usize == i));
        assert!(Hook::ALL.iter().enumerate().all(|(i, hook)| *hook as usize == i));
        assert!(Operation::ALL.iter().enumerate().all(|(i, operation)| *operation as usize == i));
        assert!(Reason::ALL.iter().enumerate().all(|(i, reason)| *reason as usize == i));
        assert!(DriverSource::ALL.iter().enumerate().all(|(i, source)| *source as usize == i));
    }
}
