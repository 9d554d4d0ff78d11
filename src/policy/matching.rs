//! Which pods a policy is for.

use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt};
use wildmatch::WildMatch;

use crate::snapshot::Namespace;
use crate::spark::text::Entries;

/// A name with `*` and `?`.
#[derive(Clone, Debug, PartialEq)]
pub struct Pattern(WildMatch);

impl Pattern {
    /// A pattern; every text is one.
    pub fn new(text: &str) -> Pattern {
        Pattern(WildMatch::new(text))
    }

    /// The text that it was made of.
    pub fn text(&self) -> String {
        self.0.pattern()
    }

    /// Whether a name matches.
    pub fn matches(&self, name: &str) -> bool {
        self.0.matches(name)
    }
}

/// Conditions, all of which must hold. Empty ones hold.
#[derive(Clone, Debug, Default)]
pub struct Match {
    /// Names of namespaces; any of them.
    pub namespaces: Vec<Pattern>,
    /// Labels of the namespace.
    pub namespace_selector: Option<Selector>,
    /// Labels of the pod.
    pub pod_selector: Option<Selector>,
}

impl Match {
    /// No condition at all.
    pub fn everything() -> Match {
        Match::default()
    }

    /// Whether there is no condition: policies after this one are never reached.
    pub fn is_everything(&self) -> bool {
        let all = |selector: &Option<Selector>| selector.as_ref().is_none_or(Selector::selects_all);
        self.namespaces.is_empty() && all(&self.namespace_selector) && all(&self.pod_selector)
    }

    /// Whether a pod matches. `None` when only the namespace's labels could tell and they are not known yet.
    pub fn judge(&self, namespace: &str, known: Option<&Namespace>, labels: Option<&Entries<'_>>) -> Option<bool> {
        if !self.namespaces.is_empty() && !self.namespaces.iter().any(|pattern| pattern.matches(namespace)) {
            return Some(false);
        }
        if let Some(selector) = self.pod_selector.as_ref().filter(|selector| !selector.selects_all()) {
            let labels: BTreeMap<String, String> = labels
                .into_iter()
                .flat_map(|labels| labels.iter().map(|(key, value)| (key.to_owned(), value.to_owned())))
                .collect();
            if !selector.matches(&labels) {
                return Some(false);
            }
        }
        match self.namespace_selector.as_ref().filter(|selector| !selector.selects_all()) {
            Some(selector) => Some(selector.matches(&known?.labels)),
            None => Some(true),
        }
    }
}
