//! Whether and how a submission waits for its application.

use std::time::Duration;

use super::conf::SparkConf;
use super::error::{Result, SubmitError};
use usher_spark::lifecycle_conf::time;

const WAIT: &str = "spark.kubernetes.submission.waitAppCompletion";
const INTERVAL: &str = "spark.kubernetes.report.interval";
const GRACE_PERIOD: &str = "spark.kubernetes.appKillPodDeletionGracePeriod";

/// The settings of spark-submit's waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Whether it waits for the application's end.
    pub waits: bool,
    /// How often it reports the phase.
    pub interval: Duration,
}

impl Waiting {
    /// Reads them.
    pub fn of(conf: &SparkConf) -> Result<Waiting> {
        let waits = conf.boolean(WAIT)?.unwrap_or(true);
        let interval = match conf.get(INTERVAL).filter(|_| waits) {
            None => Duration::from_secs(1),
            Some(text) => time(text).filter(|interval| !interval.is_zero()).ok_or_else(|| {
                SubmitError::new(format!(
                    "'{text}' in {INTERVAL} is invalid. Logging interval must be a positive time value. (expected a time such as 1s)"
                ))
            })?,
        };
        Ok(Waiting { waits, interval })
    }
}

/// The grace period of `--kill` in seconds: a bare number is in seconds.
pub fn kill_grace_period(conf: &SparkConf) -> Result<Option<u32>> {
    let Some(text) = conf.get(GRACE_PERIOD) else { return Ok(None) };
    let bare = text.trim().parse().ok();
    let seconds = bare.or_else(|| u32::try_from(time(text)?.as_secs()).ok());
    seconds
        .map(Some)
        .ok_or_else(|| SubmitError::expected(&format!("a time such as 30 or 30s in {GRACE_PERIOD}, not {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_has_sparks_defaults_and_refuses_what_spark_refuses() {
        let waiting = |pairs: &[(&str, &str)]| Waiting::of(&pairs.iter().copied().collect());
        assert_eq!(waiting(&[]).unwrap(), Waiting { waits: true, interval: Duration::from_secs(1) });
        assert_eq!(waiting(&[(INTERVAL, "500ms")]).unwrap().interval, Duration::from_millis(500));
        assert!(!waiting(&[(WAIT, "false"), (INTERVAL, "0")]).unwrap().waits, "the interval is not read");
        assert!(
            waiting(&[(INTERVAL, "0")])
                .unwrap_err()
                .to_string()
                .contains("Logging interval must be a positive time value.")
        );
        assert!(waiting(&[(WAIT, "maybe")]).unwrap_err().of_major(3).to_string().contains("should be boolean"));
    }

    #[test]
    fn grace_period_is_in_seconds() {
        let grace = |text: &str| kill_grace_period(&[(GRACE_PERIOD, text)].into_iter().collect());
        assert_eq!((grace("30").unwrap(), grace("2m").unwrap()), (Some(30), Some(120)));
        assert_eq!(kill_grace_period(&SparkConf::default()).unwrap(), None);
        assert!(grace("soon").unwrap_err().to_string().contains("not soon"));
    }
}
