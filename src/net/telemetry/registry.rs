//! The registry of metrics. Each part of the program registers its own, with names, labels and help texts; docs/metrics.md is
//! generated from them.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{Collector, Desc};
use prometheus::{
    CounterVec, Encoder, Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Result, TextEncoder,
};

/// A registry. Each process and each test has its own, so that two servers in one process do not mix.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    registry: prometheus::Registry,
    registered: Arc<Mutex<Vec<Desc>>>,
}

impl Registry {
    /// Registers a collector.
    ///
    /// # Errors
    ///
    /// One of its metrics is registered already, or is described inconsistently.
    pub fn register(&self, collector: impl Collector + 'static) -> Result<()> {
        let described: Vec<Desc> = collector.desc().into_iter().cloned().collect();
        self.registry.register(Box::new(collector))?;
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).extend(described);
        Ok(())
    }

    fn keep<C: Collector + Clone + 'static>(&self, collector: C) -> Result<C> {
        self.register(collector.clone())?;
        Ok(collector)
    }

    /// Registers a counter. `name` ends with `_total`.
    pub fn counter(&self, name: &str, help: &str) -> Result<IntCounter> {
        self.keep(IntCounter::new(name, help)?)
    }

    /// Registers counters with these labels. `name` ends with `_total`.
    pub fn counters(&self, name: &str, labels: &[&str], help: &str) -> Result<IntCounterVec> {
        self.keep(IntCounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers counters that are no whole numbers.
    pub fn float_counters(&self, name: &str, labels: &[&str], help: &str) -> Result<CounterVec> {
        self.keep(CounterVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers a gauge of whole numbers.
    pub fn gauge(&self, name: &str, help: &str) -> Result<IntGauge> {
        self.keep(IntGauge::new(name, help)?)
    }

    /// Registers gauges of whole numbers with these labels.
    pub fn gauges(&self, name: &str, labels: &[&str], help: &str) -> Result<IntGaugeVec> {
        self.keep(IntGaugeVec::new(Opts::new(name, help), labels)?)
    }

    /// Registers a gauge. `name` ends with its unit.
    pub fn float_gauge(&self, name: &str, help: &str) -> Result<Gauge> {
        self.keep(Gauge::new(name, help)?)
    }

    /// Registers a histogram with these upper bounds of its buckets. `name` ends with its unit.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Result<Histogram> {
        self.keep(Histogram::with_opts(HistogramOpts::new(name, help).buckets(buckets.to_vec()))?)
    }

    /// Registers histograms with these labels and upper bounds of their buckets. `name` ends with its unit.
    pub fn histograms(&self, name: &str, labels: &[&str], help: &str, buckets: &[f64]) -> Result<HistogramVec> {
        self.keep(HistogramVec::new(HistogramOpts::new(name, help).buckets(buckets.to_vec()), labels)?)
    }

    /// The description of each registered metric, in the order of their registration.
    pub fn registered(&self) -> Vec<Desc> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Renders the exposition format.
    pub fn render(&self) -> Result<String> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        String::from_utf8(out).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}

/// A count as the value of a gauge.
pub fn to_gauge(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_metrics_are_described_and_rendered() {
        let registry = Registry::default();
        let counters = registry.counters("runs_total", &["result"], "Runs.").unwrap();
        counters.with_label_values(&["ok"]).inc();
        registry.float_gauge("age_seconds", "Age.").unwrap().set(1.5);
        let described = registry.registered().into_iter().map(|desc| (desc.fq_name, desc.variable_labels, desc.help));
        let expected = [("runs_total", vec!["result"], "Runs."), ("age_seconds", vec![], "Age.")];
        let expected = expected.map(|(name, labels, help)| {
            (name.to_owned(), labels.into_iter().map(str::to_owned).collect::<Vec<_>>(), help.to_owned())
        });
        assert_eq!(described.collect::<Vec<_>>(), expected);
        let text = registry.render().unwrap();
        assert!(
            text.contains("# HELP runs_total Runs.\n# TYPE runs_total counter\nruns_total{result=\"ok\"} 1\n"),
            "{text}"
        );
        assert!(text.contains("# TYPE age_seconds gauge\nage_seconds 1.5\n"), "{text}");
    }

    #[test]
    fn second_registration_of_a_name_is_an_error() {
        let registry = Registry::default();
        registry.counter("runs_total", "Runs.").unwrap();
        assert!(registry.counter("runs_total", "Runs.").is_err());
        assert_eq!(registry.registered().len(), 1);
    }
}
