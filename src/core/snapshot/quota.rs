//! ResourceQuotas: the API server refuses pods beyond them, and no status or Event of an application says so when its driver
//! creates the pods itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::owner::{MAX_NAME, bounded};
use usher_spark::quantity::Quantity;
use usher_spark::resources::ResourceList;

/// At most this many ResourceQuotas of a namespace are kept.
pub const MAX_QUOTAS: usize = 32;
/// At most this many amounts of one ResourceQuota are kept.
const MAX_AMOUNTS: usize = 64;
/// Scopes that every executor matches: it requests resources and has no deadline.
const MATCHING_SCOPES: [&str; 2] = ["NotBestEffort", "NotTerminating"];

/// What a ResourceQuota allows in its namespace, and what of it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    pub name: Arc<str>,
    /// `status.hard`: what it allows, by the quota's own names (`pods`, `requests.cpu`, `limits.memory`).
    pub hard: ResourceList,
    /// `status.used`.
    pub used: ResourceList,
}

/// The amount of a ResourceQuota that leaves no room for an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exceeded<'q> {
    /// The quota's name of the resource.
    pub resource: &'q str,
    /// What is allowed.
    pub hard: Quantity,
    /// What is used.
    pub used: Quantity,
    /// What one executor uses of it at least, if that is known.
    pub requested: Option<Quantity>,
}

impl Quota {
    /// Reads a ResourceQuota; `None` if it cannot be read, if it has no status yet, or if it has a scope that executors may not
    /// match.
    pub fn read(json: &str) -> Option<Quota> {
        #[derive(Deserialize)]
        struct Whole {
            metadata: Metadata,
            #[serde(default)]
            spec: Spec,
            status: Status,
        }
        #[derive(Deserialize)]
        struct Metadata {
            name: String,
        }
        #[derive(Default, Deserialize)]
        #[serde(default, rename_all = "camelCase")]
        struct Spec {
            scopes: Option<Vec<String>>,
            scope_selector: Option<serde::de::IgnoredAny>,
        }
        #[derive(Deserialize)]
        struct Status {
            hard: BTreeMap<String, String>,
            #[serde(default)]
            used: Option<BTreeMap<String, String>>,
        }
        let Whole { metadata, spec, status } = serde_json::from_str(json).ok()?;
        let matches = |scope: &String| MATCHING_SCOPES.contains(&scope.as_str());
        if spec.scope_selector.is_some() || !spec.scopes.unwrap_or_default().iter().all(matches) {
            return None;
        }
        Some(Quota {
            name: bounded(&metadata.name, MAX_NAME),
            hard: amounts(&status.hard),
            used: amounts(&status.used.unwrap_or_default()),
        })
    }

    /// The amount that leaves no room for one more executor with these requests; `None` if there is room. An amount that
    /// `requests` does not state counts only when it is used up, and only if every pod uses some of it.
    pub(crate) fn exceeded_by(&self, requests: &ResourceList) -> Option<Exceeded<'_>> {
        self.hard.iter().find_map(|(resource, hard)| {
            let used = self.used.get(resource).unwrap_or(Quantity::ZERO);
            let requested = requested(resource, requests);
            let is_exceeded = match requested {
                Some(amount) => !amount.is_zero() && used.plus(amount) > hard,
                None => counts_any_pod(resource) && used >= hard,
            };
            is_exceeded.then_some(Exceeded { resource, hard, used, requested })
        })
    }
}

/// Reads amounts by resource, at most 64.
pub(super) fn amounts(texts: &BTreeMap<String, String>) -> ResourceList {
    let mut list = ResourceList::default();
    for (name, amount) in texts.iter().take(MAX_AMOUNTS) {
        if let Ok(amount) = amount.parse() {
            list.set(name, amount);
        }
    }
    list
}

/// How much of a quota's resource one executor uses at least; `None` if it uses none of it, or if that is not known. Spark sets
/// the same memory as request and limit (`BasicExecutorFeatureStep.scala`), and a limit of CPU is not below the request.
fn requested(resource: &str, requests: &ResourceList) -> Option<Quantity> {
    match resource {
        "pods" | "count/pods" => Some(Quantity::units(1)),
        "limits.memory" => requests.get("memory"),
        "limits.cpu" => requests.get("cpu"),
        _ => requests.get(resource.strip_prefix("requests.").unwrap_or(resource)),
    }
}

/// Whether every pod uses some of a quota's resource: the API server refuses pods that do not state it.
fn counts_any_pod(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "requests.cpu" | "requests.memory" | "limits.cpu" | "limits.memory")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn quota(hard: &[(&str, &str)], used: &[(&str, &str)]) -> Quota {
        let object = |list: &[(&str, &str)]| list.iter().map(|(k, v)| (k.to_string(), json!(v))).collect();
        let (hard, used) = (serde_json::Value::Object(object(hard)), serde_json::Value::Object(object(used)));
        let whole = json!({"metadata": {"name": "team"}, "status": {"hard": hard, "used": used}});
        Quota::read(&whole.to_string()).expect("a ResourceQuota")
    }

    fn requests() -> ResourceList {
        ResourceList::from_json(r#"{"cpu":"2","memory":"4Gi","nvidia.com/gpu":"1"}"#).expect("resources")
    }

    #[test]
    fn quota_refuses_what_does_not_fit() {
        let exceeded = |hard: &[(&str, &str)], used: &[(&str, &str)]| {
            quota(hard, used).exceeded_by(&requests()).map(|found| found.resource.to_owned())
        };
        assert_eq!(exceeded(&[("requests.cpu", "10")], &[("requests.cpu", "8")]), None);
        assert_eq!(exceeded(&[("requests.cpu", "10")], &[("requests.cpu", "8500m")]).as_deref(), Some("requests.cpu"));
        assert_eq!(exceeded(&[("cpu", "1")], &[]).as_deref(), Some("cpu"), "nothing is used yet");
        assert_eq!(exceeded(&[("pods", "3"), ("cpu", "9")], &[("pods", "3")]).as_deref(), Some("pods"));
        assert_eq!(exceeded(&[("count/pods", "3")], &[("count/pods", "2")]), None);
        assert_eq!(
            exceeded(&[("limits.memory", "5Gi")], &[("limits.memory", "2Gi")]).as_deref(),
            Some("limits.memory")
        );
        assert_eq!(exceeded(&[("limits.cpu", "5")], &[("limits.cpu", "4")]).as_deref(), Some("limits.cpu"));
        let gpu = "requests.nvidia.com/gpu";
        assert_eq!(exceeded(&[(gpu, "4")], &[(gpu, "4")]).as_deref(), Some(gpu));
        // Used up, but no executor counts there.
        assert_eq!(exceeded(&[("services", "1"), ("requests.example.com/fpga", "1")], &[("services", "1")]), None);
        assert_eq!(exceeded(&[("persistentvolumeclaims", "0")], &[]), None);
    }

    #[test]
    fn unknown_requests_count_only_where_the_quota_is_used_up() {
        let none = ResourceList::default();
        let cpu = |used: &str| quota(&[("requests.cpu", "10")], &[("requests.cpu", used)]);
        assert_eq!(cpu("9").exceeded_by(&none), None);
        let used_up = cpu("10");
        let found = used_up.exceeded_by(&none).expect("used up");
        assert_eq!((found.resource, found.requested), ("requests.cpu", None));
        assert_eq!(quota(&[("services", "0")], &[]).exceeded_by(&none), None);
    }

    #[test]
    fn scopes_that_executors_may_not_match_are_skipped() {
        let is_read = |spec: serde_json::Value| {
            let whole = json!({"metadata": {"name": "q"}, "spec": spec, "status": {"hard": {"pods": "1"}}});
            Quota::read(&whole.to_string()).is_some()
        };
        assert!(is_read(json!({})) && is_read(json!({"scopes": ["NotTerminating", "NotBestEffort"]})));
        assert!(
            !is_read(json!({"scopes": ["BestEffort"]}))
                && !is_read(json!({"scopes": ["NotTerminating", "Terminating"]}))
        );
        assert!(!is_read(json!({"scopeSelector": {"matchExpressions": []}})));
        assert!(Quota::read(r#"{"metadata":{"name":"new"}}"#).is_none(), "no status yet");
        assert!(Quota::read(r#"{"metadata":{"name":"new"},"status":{"hard":{"pods":7}}}"#).is_none());
    }

    #[test]
    fn many_amounts_are_cut() {
        let many: BTreeMap<String, String> = (0..1000).map(|i| (format!("r{i}"), "1".to_owned())).collect();
        let whole = json!({"metadata": {"name": "x".repeat(5000)}, "status": {"hard": many}});
        let quota = Quota::read(&whole.to_string()).expect("a ResourceQuota");
        assert!(quota.hard.iter().count() == MAX_AMOUNTS && quota.name.len() <= MAX_NAME);
    }
}
