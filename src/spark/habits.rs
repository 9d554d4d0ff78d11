//! How an application's driver looks after its executors, as far as its `spark.properties` says (SPARK.md §4.1, §3.12).

use std::time::Duration;

/// See the module's text. The defaults are those of Spark 4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Habits {
    /// `spark.kubernetes.executor.apiPollingInterval`.
    pub polls_every: Duration,
    /// `spark.kubernetes.executor.missingPodDetectDelta`.
    pub missing_after: Duration,
    /// `spark.kubernetes.executor.deleteOnTermination`: otherwise finished executors are kept and labelled inactive.
    pub deletes: bool,
    /// `spark.executor.maxNumFailures`, if it is set.
    pub max_failures: Option<u32>,
    /// `spark.executor.failuresValidityInterval`: without one failures count for ever.
    pub failures_expire: Option<Duration>,
    /// `spark.dynamicAllocation.maxExecutors` under dynamic allocation, else `spark.executor.instances`; 0 when unset.
    pub most_executors: u32,
}

impl Default for Habits {
    fn default() -> Self {
        Habits {
            polls_every: Duration::from_secs(30),
            missing_after: Duration::from_secs(30),
            deletes: true,
            max_failures: None,
            failures_expire: None,
            most_executors: 0,
        }
    }
}

impl Habits {
    /// Twice as long as the driver may need to notice an end by itself: it goes first.
    pub fn notices_within(&self) -> Duration {
        self.polls_every.saturating_add(self.missing_after).saturating_mul(2)
    }

    /// More failures than this end the application with exit code 11 (`ExecutorFailureTracker`).
    pub fn failure_limit(&self) -> u32 {
        self.max_failures.unwrap_or_else(|| self.most_executors.saturating_mul(2).max(3))
    }
}

/// A tenant writes these: longer times are cut.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A time as Spark writes it (`JavaUtils.timeStringAs`); without a unit it is in milliseconds, as these keys are.
pub(super) fn time(text: &str) -> Option<Duration> {
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
    time.map(|time| time.min(LONGEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_as_spark_writes_them() {
        assert_eq!(time("30s"), Some(Duration::from_secs(30)));
        assert_eq!(time(" 2MIN "), Some(Duration::from_secs(120)));
        assert_eq!(time("500"), Some(Duration::from_millis(500)));
        assert_eq!(time("1d"), Some(Duration::from_secs(86_400)));
        assert_eq!(time("100000000000000d"), Some(LONGEST), "bounded");
        for bad in ["", "s", "1.5s", "-1s", "1y", "99999999999999999999h", "999999999999999999h"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn limits_follow_the_number_of_executors() {
        let habits = |most_executors, max_failures| Habits { most_executors, max_failures, ..Habits::default() };
        assert_eq!(habits(0, None).failure_limit(), 3);
        assert_eq!(habits(10, None).failure_limit(), 20);
        assert_eq!(habits(u32::MAX, None).failure_limit(), u32::MAX);
        assert_eq!(habits(10, Some(1)).failure_limit(), 1);
        assert_eq!(Habits::default().notices_within(), Duration::from_secs(120));
    }
}
