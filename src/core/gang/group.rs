//! The desired state of a PodGroup, independent of the scheduler.

use std::sync::Arc;

use usher_spark::resources::ResourceList;

/// The desired spec of a PodGroup.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSpec {
    pub name: Arc<str>,
    /// Number of members that must be placed together.
    pub min_member: u32,
    /// The sum of their requests; empty if unknown.
    pub min_resources: ResourceList,
    /// The queue that the resources count against.
    pub queue: Option<Arc<str>>,
    /// The members' priority class.
    pub priority_class: Option<Arc<str>>,
}

/// The merge patch that changes `have` to `want`, and leaves every field alone that `want` does not name. `None` if there is
/// nothing to change. Quantities are compared as amounts, not as text.
///
/// Maps below the first level (minResources) belong to spark-usher as a whole: keys that `want` lacks are removed.
pub(crate) fn spec_patch(have: &serde_json::Value, want: &serde_json::Value) -> Option<serde_json::Value> {
    use serde_json::{Map, Value};
    let mut patch = Map::new();
    for (key, wanted) in want.as_object()? {
        let present = have.get(key);
        match wanted {
            Value::Object(wanted_map) => {
                let empty = Map::new();
                let present = present.and_then(Value::as_object).unwrap_or(&empty);
                let mut inner = Map::new();
                for (name, value) in wanted_map {
                    if !present.get(name).is_some_and(|present| same(present, value)) {
                        inner.insert(name.clone(), value.clone());
                    }
                }
                for name in present.keys().filter(|name| !wanted_map.contains_key(*name)) {
                    inner.insert(name.clone(), Value::Null);
                }
                if !inner.is_empty() {
                    patch.insert(key.clone(), Value::Object(inner));
                }
            }
            _ if present.is_some_and(|present| same(present, wanted)) => {}
            _ => {
                patch.insert(key.clone(), wanted.clone());
            }
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use usher_spark::quantity::Quantity;
    a == b
        || matches!((a.as_str(), b.as_str()), (Some(a), Some(b))
            if a.parse::<Quantity>().is_ok_and(|a| b.parse::<Quantity>().is_ok_and(|b| a == b)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spec_patch_contains_only_differences_and_keeps_foreign_fields() {
        let have = json!({"minMember": 3, "queue": "default", "minResources": {"cpu": "3000m", "memory": "4224Mi", "x/y": "1"}});
        let want = json!({"minMember": 3, "minResources": {"cpu": "3", "memory": "4224Mi", "x/y": "1"}});
        assert_eq!(spec_patch(&have, &want), None);
        let want = json!({"minMember": 2, "minResources": {"cpu": "2", "memory": "2816Mi"}});
        assert_eq!(
            spec_patch(&have, &want),
            Some(json!({"minMember": 2, "minResources": {"cpu": "2", "memory": "2816Mi", "x/y": null}}))
        );
        assert_eq!(spec_patch(&json!(null), &json!({"minMember": 1})), Some(json!({"minMember": 1})));
    }

    #[test]
    fn patched_spec_needs_no_further_patch() {
        let mut have = json!({"schedulingPolicy": {"gang": {"minCount": 3}}});
        let want = json!({"schedulingPolicy": {"gang": {"minCount": 2}}});
        let patch = spec_patch(&have, &want).unwrap();
        json_patch::merge(&mut have, &patch);
        assert_eq!(spec_patch(&have, &want), None);
    }
}
