//! Spark's REST API and metrics servlet in a running driver: what their bodies say about executors
//! (`docs/spark.md#driver-rest-api`; `status/api/v1/api.scala`, `JacksonMessageWriter.scala`, `metrics/sink/MetricsServlet.scala`).
//!
//! The bodies are input of a tenant, who may answer anything: what is not of this shape is an error, and texts are truncated.

use std::fmt;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::conf::{AppConf, Builder};
use crate::text::{harmless, truncated};

/// The body, with status 200, of a driver that is not ready (`ui/JettyUtils.scala`).
pub const STARTING: &str = "Spark is starting up. Please wait a while until it's ready.";

/// Longest line of a `removeReason` that is kept, in bytes.
const MAX_REASON: usize = 200;

/// One executor of `/api/v1/applications/APP/allexecutors`, as the driver's status store has it (`ExecutorSummary`).
///
/// `is_active` means registered and not removed, not that the executor works: a row stays active until the driver removes the
/// executor, and it removes one whose connection broke only once its pod has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecutorSummary {
    /// Its exec id; `None` for the row of the driver itself.
    pub id: Option<u64>,
    /// Whether the driver has not removed it.
    pub is_active: bool,
    /// Whether the driver schedules no tasks on it (`spark.excludeOnFailure`; `isBlacklisted` before Spark 3.1).
    pub is_excluded: bool,
    /// When it registered.
    pub registered: Option<Timestamp>,
    /// When the driver removed it.
    pub removed: Option<Timestamp>,
    /// The first line of the reason for which the driver removed it, at most 200 bytes: a driver may list thousands.
    pub remove_reason: Option<Box<str>>,
}

impl ExecutorSummary {
    /// Number of bytes that it occupies in memory.
    pub fn memory(&self) -> usize {
        size_of::<ExecutorSummary>() + self.remove_reason.as_deref().map_or(0, str::len)
    }
}

/// The first line of a text that is not empty.
fn first_line(text: &str) -> Option<Box<str>> {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty())?;
    Some(truncated(&harmless(truncated(line, MAX_REASON)), MAX_REASON).into())
}

impl<'de> Deserialize<'de> for ExecutorSummary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Wire {
            id: String,
            is_active: bool,
            #[serde(default)]
            is_excluded: bool,
            #[serde(default)]
            is_blacklisted: bool,
            #[serde(default)]
            add_time: Option<String>,
            #[serde(default)]
            remove_time: Option<String>,
            #[serde(default)]
            remove_reason: Option<String>,
        }
        let wire = Wire::deserialize(deserializer)?;
        let id = match wire.id.as_str() {
            "driver" => None,
            id => Some(id.parse().map_err(|_| D::Error::custom("expected an executor's id or driver"))?),
        };
        let time = |text: Option<String>| text.as_deref().and_then(time);
        Ok(ExecutorSummary {
            id,
            is_active: wire.is_active,
            is_excluded: wire.is_excluded || wire.is_blacklisted,
            registered: time(wire.add_time),
            removed: time(wire.remove_time),
            remove_reason: wire.remove_reason.as_deref().and_then(first_line),
        })
    }
}

/// A time as Spark writes it, such as `2026-11-21T02:13:42.022GMT`.
pub fn time(text: &str) -> Option<Timestamp> {
    let time: DateTime = text.strip_suffix("GMT")?.parse().ok()?;
    time.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// What `/metrics/json` of a driver says about its view of executors. The names begin with `spark.metrics.namespace` (the
/// application's id, or any text) and `driver`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverMetrics {
    /// Events that the status store did not get because its queue was full: from then on, executors may be missing in it, and
    /// removed ones may be active (`LiveListenerBus.queue.appStatus.numDroppedEvents`).
    pub dropped_events: Option<u64>,
    /// Events that the status store has not processed yet (`LiveListenerBus.queue.appStatus.size`).
    pub queued_events: Option<u64>,
    /// How many executors dynamic allocation wants, of all resource profiles
    /// (`ExecutorAllocationManager.executors.numberTargetExecutors`); `None` with static allocation.
    pub target: Option<u32>,
}

/// No cluster runs more executors: a driver that wants more says nothing.
const MAX_TARGET: u32 = 1_000_000;
/// With more events than this in its queue, the status store may lag behind by seconds: an executor that registered may be missing.
const MAX_QUEUED: u64 = 1000;

impl DriverMetrics {
    /// Whether these rows contain every executor that registered: only then does a missing one prove anything. After the driver
    /// has dropped events once, its view is not complete again. Of removed executors, Spark keeps the rows of `retained_dead`,
    /// and deletes at least a tenth of them when there are more (`AppStatusListener.cleanupExecutors`).
    pub fn is_complete(&self, rows: &[ExecutorSummary], retained_dead: u32) -> bool {
        let removed = rows.iter().filter(|row| row.id.is_some() && !row.is_active).count();
        let keeps_all = removed < usize::try_from(retained_dead - retained_dead / 10).unwrap_or(usize::MAX);
        self.dropped_events == Some(0) && self.queued_events.is_some_and(|queued| queued <= MAX_QUEUED) && keeps_all
    }
}

/// Parses `/metrics/json`.
pub fn metrics(body: &[u8]) -> serde_json::Result<DriverMetrics> {
    struct Registry<'m>(&'m mut DriverMetrics);
    impl<'de> Visitor<'de> for Registry<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("metrics of a driver")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(kind) = map.next_key::<String>()? {
                match kind.as_str() {
                    "counters" => {
                        [self.0.dropped_events] =
                            map.next_value_seed(Named(["LiveListenerBus.queue.appStatus.numDroppedEvents"]))?;
                    }
                    "gauges" => {
                        let [queued, target] = map.next_value_seed(Named([
                            "LiveListenerBus.queue.appStatus.size",
                            "ExecutorAllocationManager.executors.numberTargetExecutors",
                        ]))?;
                        self.0.queued_events = queued;
                        let target = target.and_then(|target| u32::try_from(target).ok());
                        self.0.target = target.filter(|target| *target <= MAX_TARGET);
                    }
                    _ => _ = map.next_value::<IgnoredAny>()?,
                }
            }
            Ok(())
        }
    }
    let mut found = DriverMetrics::default();
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    deserializer.deserialize_map(Registry(&mut found))?;
    deserializer.end()?;
    Ok(found)
}

/// The numbers of the metrics whose names end so, among metrics of one kind.
struct Named<const COUNT: usize>([&'static str; COUNT]);

impl<'de, const COUNT: usize> DeserializeSeed<'de> for Named<COUNT> {
    type Value = [Option<u64>; COUNT];

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, const COUNT: usize> Visitor<'de> for Named<COUNT> {
    type Value = [Option<u64>; COUNT];

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("metrics by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        // A gauge has a value, a counter a count.
        #[derive(Deserialize)]
        struct Number {
            #[serde(alias = "value")]
            count: u64,
        }
        let mut found = [None; COUNT];
        while let Some(name) = map.next_key::<String>()? {
            let is_named = |ending: &&str| name.strip_suffix(ending).is_some_and(|before| before.ends_with(".driver."));
            match found.iter_mut().zip(self.0).find(|(_, ending)| is_named(ending)) {
                Some((number, _)) => *number = Some(map.next_value::<Number>()?.count),
                None => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(found)
    }
}

/// Parses the Spark properties of `/api/v1/applications/APP/environment`: all that the application was started with. Spark
/// redacts the values of secrets itself, and only the keys that [`AppConf`] has are kept.
pub fn environment(body: &[u8]) -> serde_json::Result<AppConf> {
    #[derive(Default)]
    struct Properties(Builder);
    impl<'de> Deserialize<'de> for Properties {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Pairs;
            impl<'de> Visitor<'de> for Pairs {
                type Value = Properties;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a list of keys and values")
                }

                fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Properties, A::Error> {
                    let mut properties = Properties::default();
                    while let Some((key, value)) = pairs.next_element::<(String, String)>()? {
                        properties.0.set(&key, value.trim());
                    }
                    Ok(properties)
                }
            }
            deserializer.deserialize_seq(Pairs)
        }
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Environment {
        spark_properties: Properties,
    }
    let environment: Environment = serde_json::from_slice(body)?;
    Ok(environment.spark_properties.0.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conf::Allocation;
    use crate::json::Items;

    fn summary(text: &str) -> serde_json::Result<ExecutorSummary> {
        serde_json::from_str(text)
    }

    #[test]
    fn time_is_read_in_spark_format_only() {
        assert_eq!(time("2026-11-21T02:13:42.022GMT"), "2026-11-21T02:13:42.022Z".parse().ok());
        for bad in ["2026-11-21T02:13:42.022Z", "2026-11-21T02:13:42.022", "GMT", "", "99999-01-01T00:00:00.000GMT"] {
            assert_eq!(time(bad), None, "{bad}");
        }
    }

    #[test]
    fn row_of_the_driver_has_no_exec_id_and_other_ids_are_rejected() {
        assert_eq!(summary(r#"{"id":"driver","isActive":true}"#).unwrap().id, None);
        assert_eq!(summary(r#"{"id":"7","isActive":false}"#).unwrap().id, Some(7));
        for bad in [r#"{"id":"x","isActive":true}"#, r#"{"id":"1"}"#, r#"{"id":1,"isActive":true}"#, "[]"] {
            assert!(summary(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn of_a_reason_one_short_line_is_kept() {
        let reason_of = |reason: &str| {
            let row = serde_json::json!({"id": "1", "isActive": false, "removeReason": reason});
            summary(&row.to_string()).unwrap().remove_reason
        };
        let long = reason_of(&"ü".repeat(4000)).unwrap();
        assert!(long.len() <= MAX_REASON && long.starts_with("üü"), "{}", long.len());
        let exited = "\n  \nThe executor with id 1 exited with exit code 137.\n\nThe API gave: \n";
        assert_eq!(reason_of(exited).as_deref(), Some("The executor with id 1 exited with exit code 137."));
        assert_eq!(reason_of("\n \n"), None);
    }

    #[test]
    fn metrics_of_a_driver_are_found_behind_any_namespace() {
        let read = |namespace: &str, kind: &str, name: &str, number: &str| {
            metrics(format!(r#"{{"version":"4.0.0","{kind}":{{"other":{{"value":"x"}},"{namespace}.{name}":{number}}},"timers":{{}}}}"#).as_bytes())
        };
        let dropped = "driver.LiveListenerBus.queue.appStatus.numDroppedEvents";
        assert_eq!(read("spark-1", "counters", dropped, r#"{"count":3}"#).unwrap().dropped_events, Some(3));
        let target = "driver.ExecutorAllocationManager.executors.numberTargetExecutors";
        assert_eq!(read("my.team", "gauges", target, r#"{"value":4}"#).unwrap().target, Some(4));
        assert_eq!(read("my.team", "gauges", target, r#"{"value":4294967295}"#).unwrap().target, None);
        let of_executor = "1.LiveListenerBus.queue.appStatus.numDroppedEvents";
        assert_eq!(read("spark-1", "counters", of_executor, r#"{"count":3}"#).unwrap(), DriverMetrics::default());
        assert!(read("spark-1", "gauges", target, r#"{"value":-1}"#).is_err());
        assert!(metrics(STARTING.as_bytes()).is_err() && metrics(b"{} x").is_err());
    }

    #[test]
    fn environment_gives_allocation() {
        let body = br#"{"runtime":{},"sparkProperties":[["spark.executor.instances","5"],["spark.x","y"]],"classpathEntries":[["a","b"]]}"#;
        assert_eq!(environment(body).unwrap().allocation, Ok(Allocation::Static { instances: 5 }));
        assert!(environment(br#"{"sparkProperties":[["a"]]}"#).is_err() && environment(b"{}").is_err());
    }

    #[test]
    fn executors_are_read_as_their_bytes_arrive() {
        let body = br#"[ {"id":"1","isActive":true}, {"id":"driver","isActive":true} ]"#;
        let mut items = Items::bare();
        let mut rows = 0;
        for piece in body.chunks(7) {
            items.feed(piece, |_: ExecutorSummary| rows += 1).unwrap();
        }
        items.finish_bare().unwrap();
        assert_eq!(rows, 2);
        assert!(Items::bare().feed(STARTING.as_bytes(), |_: ExecutorSummary| ()).is_err());
    }
}
