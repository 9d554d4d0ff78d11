//! The lifecycle configuration of an application's executors in its driver's `spark.properties`
//! (`docs/spark.md#lifecycle-configuration`).

use std::time::Duration;

/// See the module's documentation. The defaults are those of Spark 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifecycleConf {
    /// `spark.kubernetes.executor.apiPollingInterval`.
    pub polling_interval: Duration,
    /// `spark.kubernetes.executor.missingPodDetectDelta`.
    pub missing_pod_delta: Duration,
    /// `spark.kubernetes.executor.deleteOnTermination`: otherwise finished executors are kept and labelled inactive.
    pub delete_on_termination: bool,
    /// `spark.executor.maxNumFailures`, if it is set.
    pub max_failures: Option<u32>,
    /// `spark.executor.failuresValidityInterval`: if unset, failures count forever.
    pub failures_expire: Option<Duration>,
    /// `spark.dynamicAllocation.maxExecutors` under dynamic allocation, else `spark.executor.instances`; 0 when unset.
    pub max_executors: u32,
}

impl Default for LifecycleConf {
    fn default() -> Self {
        LifecycleConf {
            polling_interval: Duration::from_secs(30),
            missing_pod_delta: Duration::from_secs(30),
            delete_on_termination: true,
            max_failures: None,
            failures_expire: None,
            max_executors: 0,
        }
    }
}

impl LifecycleConf {
    /// Twice the time that the driver may need to detect an exit itself, because the driver acts first.
    pub fn detection_time(&self) -> Duration {
        self.polling_interval.saturating_add(self.missing_pod_delta).saturating_mul(2)
    }

    /// With more failures than this, Spark stops the application with exit code 11 (`ExecutorFailureTracker`).
    pub fn failure_limit(&self) -> u32 {
        self.max_failures.unwrap_or_else(|| self.max_executors.saturating_mul(2).max(3))
    }
}

/// A tenant writes these times: longer ones are reduced to this.
const MAX_TIME: Duration = Duration::from_secs(86_400);

/// A time as Spark writes it (`JavaUtils.timeStringAs`); without a unit it is in milliseconds, as these keys are.
pub fn time(text: &str) -> Option<Duration> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let seconds = |each: u64| number.checked_mul(each).map(Duration::from_secs);
    let time = match unit {
        "us" => Some(Duration::from_micros(number)),
        "" | "ms" => Some(Duration::from_millis(number)),
        "s" => seconds(1),
        "m" | "min" => seconds(60),
        "h" => seconds(3600),
        "d" => seconds(86_400),
        _ => None,
    };
    time.map(|time| time.min(MAX_TIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spark_time_strings_parse_and_are_bounded() {
        assert_eq!(time("30s"), Some(Duration::from_secs(30)));
        assert_eq!(time(" 2MIN "), Some(Duration::from_secs(120)));
        assert_eq!(time("500"), Some(Duration::from_millis(500)));
        assert_eq!(time("1d"), Some(Duration::from_secs(86_400)));
        assert_eq!(time("100000000000000d"), Some(MAX_TIME), "bounded");
        for bad in ["", "s", "1.5s", "-1s", "1y", "99999999999999999999h", "999999999999999999h"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn failure_limit_follows_number_of_executors() {
        let lifecycle_conf =
            |max_executors, max_failures| LifecycleConf { max_executors, max_failures, ..LifecycleConf::default() };
        assert_eq!(lifecycle_conf(0, None).failure_limit(), 3);
        assert_eq!(lifecycle_conf(10, None).failure_limit(), 20);
        assert_eq!(lifecycle_conf(u32::MAX, None).failure_limit(), u32::MAX);
        assert_eq!(lifecycle_conf(10, Some(1)).failure_limit(), 1);
        assert_eq!(LifecycleConf::default().detection_time(), Duration::from_secs(120));
    }
}
