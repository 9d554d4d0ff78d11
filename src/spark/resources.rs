//! The resources that a pod requests, counted as kube-scheduler does (`k8s.io/component-helpers/resource/helpers.go`,
//! `PodRequests`), and resource lists in general.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::pod::{Container, Workload};
use super::quantity::{BadQuantity, Quantity};
use super::wire_text::Entries;

/// Amounts by resource name (`cpu`, `memory`, `nvidia.com/gpu`), ordered so that equal lists print equally.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceList(BTreeMap<Arc<str>, Quantity>);

/// A resource list that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadResources {
    /// The text is not a JSON object of strings.
    #[error("not a JSON object of resource names and quantities, such as {{\"cpu\":\"1\",\"memory\":\"2Gi\"}}")]
    NotAnObject,
    /// A value is not a quantity.
    #[error("the amount of one resource is {0}")]
    Quantity(#[from] BadQuantity),
    /// Nothing is requested.
    #[error("it requests nothing")]
    Empty,
}

impl ResourceList {
    /// Whether nothing is requested.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The amount of one resource.
    pub fn get(&self, name: &str) -> Option<Quantity> {
        self.0.get(name).copied()
    }

    /// Sets the amount of one resource.
    pub fn set(&mut self, name: &str, amount: Quantity) {
        self.0.insert(name.into(), amount);
    }

    /// All resources in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Quantity)> {
        self.0.iter().map(|(name, amount)| (&**name, *amount))
    }

    /// Adds another list.
    pub fn add(&mut self, other: &ResourceList) {
        for (name, amount) in &other.0 {
            let sum = self.0.entry(name.clone()).or_insert(Quantity::ZERO);
            *sum = sum.plus(*amount);
        }
    }

    /// Raises every resource to at least the other list's amount.
    pub fn raise(&mut self, other: &ResourceList) {
        for (name, amount) in &other.0 {
            let max = self.0.entry(name.clone()).or_insert(*amount);
            *max = (*max).max(*amount);
        }
    }

    /// `count` times this list.
    pub fn times(&self, count: u32) -> ResourceList {
        ResourceList(self.0.iter().map(|(name, amount)| (name.clone(), amount.times(count))).collect())
    }

    /// Reads a JSON object such as `{"cpu":"1","memory":"2Gi"}`, the value of an annotation.
    pub fn from_json(text: &str) -> Result<ResourceList, BadResources> {
        let entries: BTreeMap<String, String> = serde_json::from_str(text).map_err(|_| BadResources::NotAnObject)?;
        let mut list = ResourceList::default();
        for (name, amount) in entries {
            list.set(&name, amount.parse().map_err(BadResources::Quantity)?);
        }
        if list.is_empty() { Err(BadResources::Empty) } else { Ok(list) }
    }

    /// The list as a JSON object of canonical quantities.
    pub fn to_json(&self) -> serde_json::Value {
        let text = |(name, amount): (&str, Quantity)| (name.to_owned(), serde_json::Value::String(amount.to_string()));
        serde_json::Value::Object(self.iter().map(text).collect())
    }

    fn from_entries(entries: &Entries<'_>) -> ResourceList {
        // A quantity that does not parse cannot come from an API server; without it the pod only requests less.
        ResourceList(entries.iter().filter_map(|(name, amount)| Some((name.into(), amount.parse().ok()?))).collect())
    }
}

impl fmt::Display for ResourceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, amount)) in self.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{amount} {name}")?;
        }
        Ok(())
    }
}

/// What a container requests; a limit without a request counts as one, as in the API server's defaulting.
fn of_container(container: &Container<'_>) -> ResourceList {
    let mut list = container.limits.as_ref().map(ResourceList::from_entries).unwrap_or_default();
    if let Some(requests) = &container.requests {
        list.0.extend(ResourceList::from_entries(requests).0);
    }
    list
}

/// What the whole pod requests: containers, sidecars, the largest init step, overhead, pod-level requests.
pub fn of_pod(workload: &Workload<'_>) -> ResourceList {
    let mut total = ResourceList::default();
    for container in &workload.containers {
        total.add(&of_container(container));
    }
    let mut sidecars = ResourceList::default();
    let mut init = ResourceList::default();
    for container in &workload.init_containers {
        let requests = of_container(container);
        if container.restarts_always {
            total.add(&requests);
            sidecars.add(&requests);
            init.raise(&sidecars);
        } else {
            let mut step = requests;
            step.add(&sidecars);
            init.raise(&step);
        }
    }
    total.raise(&init);
    if let Some(pod_level) = &workload.requests {
        total.0.extend(ResourceList::from_entries(pod_level).0);
    }
    if let Some(overhead) = &workload.overhead {
        total.add(&ResourceList::from_entries(overhead));
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(&str, &str)]) -> ResourceList {
        ResourceList::from_entries(&entries.iter().copied().collect())
    }

    fn of(json: &str) -> ResourceList {
        of_pod(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn container_requests_add_up_and_limits_replace_missing_ones() {
        let pod = of(r#"{"containers":[
            {"name":"spark-kubernetes-executor","resources":{"limits":{"memory":"1408Mi","nvidia.com/gpu":"1"},"requests":{"cpu":"1","memory":"1408Mi"}}},
            {"name":"log","resources":{"requests":{"cpu":"100m"}}}]}"#);
        assert_eq!(pod, list(&[("cpu", "1100m"), ("memory", "1408Mi"), ("nvidia.com/gpu", "1")]));
        assert_eq!(pod.to_string(), "1100m cpu, 1408Mi memory, 1 nvidia.com/gpu");
    }

    #[test]
    fn init_container_counts_if_larger_and_sidecar_always() {
        let pod = of(r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"1"}}}],
            "initContainers":[
              {"name":"side","restartPolicy":"Always","resources":{"requests":{"cpu":"200m"}}},
              {"name":"big","resources":{"requests":{"cpu":"3"}}}],
            "overhead":{"cpu":"50m"}}"#);
        assert_eq!(pod, list(&[("cpu", "3250m")]));
    }

    #[test]
    fn pod_level_requests_replace_the_sum() {
        let pod = of(r#"{"containers":[{"name":"a","resources":{"requests":{"cpu":"1","memory":"1Gi"}}}],
            "resources":{"requests":{"cpu":"2"}}}"#);
        assert_eq!(pod, list(&[("cpu", "2"), ("memory", "1Gi")]));
    }

    #[test]
    fn resource_list_parses_json_object_of_quantities() {
        assert_eq!(
            ResourceList::from_json(r#"{"cpu":"1","memory":"2Gi"}"#),
            Ok(list(&[("cpu", "1"), ("memory", "2Gi")]))
        );
        assert_eq!(ResourceList::from_json("{}"), Err(BadResources::Empty));
        assert_eq!(ResourceList::from_json("[]"), Err(BadResources::NotAnObject));
        assert_eq!(ResourceList::from_json(r#"{"cpu":"x"}"#), Err(BadResources::Quantity(BadQuantity)));
        assert_eq!(list(&[("cpu", "1000m")]).to_json().to_string(), r#"{"cpu":"1"}"#);
    }

    #[test]
    fn times_multiplies_each_resource() {
        assert_eq!(
            list(&[("memory", "1408Mi"), ("cpu", "100m")]).times(3),
            list(&[("memory", "4224Mi"), ("cpu", "300m")])
        );
    }
}
