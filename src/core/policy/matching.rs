//! The pods that a policy selects.

use kube_core::{Expression, Selector, SelectorExt};
use wildmatch::WildMatch;

use crate::snapshot::Namespace;
use usher_spark::wire_text::Entries;

/// A name with `*` and `?`. It matches no text of more than [`Pattern::MAX_MATCHED`] characters.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern(WildMatch);

impl Pattern {
    /// A pattern; every text is a valid one.
    pub fn new(text: &str) -> Pattern {
        Pattern(WildMatch::new(text))
    }

    /// The text that it was created from.
    pub fn text(&self) -> String {
        self.0.pattern()
    }

    /// The longest text that matches, in characters. The time of a match is the product of the lengths, and the longest name, that of a
    /// queue in an annotation, is a tenant's.
    pub const MAX_MATCHED: usize = 4096;

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        name.chars().nth(Pattern::MAX_MATCHED).is_none() && self.0.matches(name)
    }
}

/// Conditions, all of which must hold. An empty condition holds.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Names of namespaces, any of which matches.
    pub namespaces: Vec<Pattern>,
    /// Labels of the namespace.
    pub namespace_selector: Option<Selector>,
    /// Labels of the pod.
    pub pod_selector: Option<PodSelector>,
}

/// A label selector that reads a pod's labels in place, without building a map of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodSelector(Vec<Expression>);

impl PodSelector {
    /// The selector that it was created from.
    pub fn selector(&self) -> Selector {
        let mut selector = Selector::default();
        selector.extend(self.0.iter().cloned());
        selector
    }

    /// Whether it selects every pod.
    pub(crate) fn selects_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it selects a pod with these labels.
    pub fn selects(&self, labels: Option<&Entries<'_>>) -> bool {
        let value = |key: &str| labels.and_then(|labels| labels.get(key));
        self.0.iter().all(|expression| match expression {
            Expression::In(key, values) => value(key).is_some_and(|value| values.contains(value)),
            Expression::NotIn(key, values) => value(key).is_none_or(|value| !values.contains(value)),
            Expression::Equal(key, wanted) => value(key) == Some(wanted),
            Expression::NotEqual(key, wanted) => value(key) != Some(wanted),
            Expression::Exists(key) => value(key).is_some(),
            Expression::DoesNotExist(key) => value(key).is_none(),
        })
    }
}

impl From<Selector> for PodSelector {
    fn from(selector: Selector) -> PodSelector {
        PodSelector(selector.into_iter().collect())
    }
}

impl FromIterator<(String, String)> for PodSelector {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(labels: T) -> PodSelector {
        labels.into_iter().collect::<Selector>().into()
    }
}

impl Match {
    /// Matches every pod.
    pub fn everything() -> Match {
        Match::default()
    }

    /// Whether it has no condition: later policies are never reached.
    pub fn is_everything(&self) -> bool {
        let all = |selector: &Option<Selector>| selector.as_ref().is_none_or(Selector::selects_all);
        self.namespaces.is_empty() && all(&self.namespace_selector) && self.selects_all_pods()
    }

    /// Whether a pod matches. `None` if that depends on the namespace's labels and they are not known yet.
    pub fn matches_pod(
        &self,
        namespace: &str,
        known: Option<&Namespace>,
        labels: Option<&Entries<'_>>,
    ) -> Option<bool> {
        if self.names(namespace) && self.pod_selector.as_ref().is_some_and(|selector| !selector.selects(labels)) {
            return Some(false);
        }
        self.of_namespace(namespace, known)
    }

    /// The selector of pods' labels, for printing.
    pub fn selector_of_pods(&self) -> Option<Selector> {
        self.pod_selector.as_ref().map(PodSelector::selector)
    }

    /// Whether it selects pods by their namespace only.
    pub fn selects_all_pods(&self) -> bool {
        self.pod_selector.as_ref().is_none_or(PodSelector::selects_all)
    }

    fn names(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|pattern| pattern.matches(namespace))
    }

    /// Whether a namespace matches, for any pod. `None` if that depends on its labels and they are not known yet.
    pub fn of_namespace(&self, namespace: &str, known: Option<&Namespace>) -> Option<bool> {
        if !self.names(namespace) {
            return Some(false);
        }
        match self.namespace_selector.as_ref().filter(|selector| !selector.selects_all()) {
            Some(selector) => Some(selector.matches(&known?.labels)),
            None => Some(true),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    fn expression() -> impl Strategy<Value = Expression> {
        let text = || "[ab]{0,2}";
        let values = || proptest::collection::btree_set("[ab]{0,2}", 0..3);
        let set =
            |make: fn(String, BTreeSet<String>) -> Expression| (text(), values()).prop_map(move |(k, v)| make(k, v));
        let pair = |make: fn(String, String) -> Expression| (text(), text()).prop_map(move |(k, v)| make(k, v));
        prop_oneof![
            set(Expression::In),
            set(Expression::NotIn),
            pair(Expression::Equal),
            pair(Expression::NotEqual),
            text().prop_map(Expression::Exists),
            text().prop_map(Expression::DoesNotExist),
        ]
    }

    #[test]
    fn longer_texts_match_no_pattern() {
        let pattern = Pattern::new("é*");
        assert!(pattern.matches(&"é".repeat(Pattern::MAX_MATCHED)), "characters are counted, as CEL counts them");
        assert!(!pattern.matches(&"é".repeat(Pattern::MAX_MATCHED + 1)));
    }

    proptest! {
        /// The result is the same as that of kube's own selector on a map.
        #[test]
        fn selector_result_equals_that_of_kube_crate(expressions in proptest::collection::vec(expression(), 0..4),
                                                  labels in proptest::collection::btree_map("[ab]{0,2}", "[ab]{0,2}", 0..4)) {
            let mut selector = Selector::default();
            selector.extend(expressions);
            let entries: Entries<'_> = labels.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
            let converted = PodSelector::from(selector.clone());
            let labels: BTreeMap<String, String> = labels.clone();
            prop_assert_eq!(converted.selects(Some(&entries)), selector.matches(&labels));
            prop_assert_eq!(converted.selector(), selector.clone());
            prop_assert_eq!(converted.selects(None), selector.matches(&BTreeMap::new()));
        }
    }
}
