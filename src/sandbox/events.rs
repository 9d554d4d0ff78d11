//! Events are stored once and served in two groups: `v1` and `events.k8s.io/v1` (`pkg/apis/events/v1/conversion.go`).

use serde_json::Value;

use usher_spark::json::{remove, set};

/// Field names of `v1` and of `events.k8s.io/v1`.
const NAMES: [(&str, &str); 8] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingInstance", "reportingInstance"),
];

/// Converts a stored Event to `events.k8s.io/v1`.
pub(super) fn to_events_v1(mut event: Value) -> Value {
    for (core, new) in NAMES {
        if let Some(value) = remove(&mut event, &[core]) {
            set(&mut event, &[new], value);
        }
    }
    event
}

/// Converts an Event to the stored form.
pub(super) fn from_events_v1(mut event: Value) -> Value {
    for (core, new) in NAMES {
        if let Some(value) = remove(&mut event, &[new]) {
            set(&mut event, &[core], value);
        }
    }
    set(&mut event, &["apiVersion"], "v1");
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_v1_round_trips_through_core_v1() {
        let new = json!({"apiVersion": "events.k8s.io/v1", "regarding": {"name": "p"}, "note": "n", "reason": "R", "reportingController": "c"});
        let stored = from_events_v1(new.clone());
        assert_eq!(
            stored,
            json!({"apiVersion": "v1", "involvedObject": {"name": "p"}, "message": "n", "reason": "R", "reportingComponent": "c"})
        );
        let mut back = to_events_v1(stored);
        set(&mut back, &["apiVersion"], "events.k8s.io/v1");
        assert_eq!(back, new);
    }
}
