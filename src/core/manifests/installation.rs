//! The admission policies of one installation, as its settings and the policy file want them.

use serde_json::{Value, json};

use super::converge::Wanted;
use super::validating_policy::Slot;
use super::{fallback_policy, validating_policy};
use crate::policy::Policies;
use usher_spark::text::vocabulary;

vocabulary! {
    /// Admission policies that an installation can have.
    Kind
    /// ValidatingAdmissionPolicies.
    Validating = "validating";
    /// A MutatingAdmissionPolicy that sets the owner.
    Fallback = "fallback";
    /// The same, and one that sets the scheduler.
    FallbackScheduler = "fallback-scheduler";
}

/// Which admission policies an installation has.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The first part of their names.
    pub name: String,
    /// Requirements on the namespace's labels, as `matchExpressions`.
    pub namespaces: Vec<Value>,
    /// The policies.
    pub kinds: Vec<Kind>,
}

/// The requirement on the namespace's labels that excludes these namespaces.
pub fn except(namespaces: &[String]) -> Vec<Value> {
    vec![json!({"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": namespaces})]
}

impl Installation {
    /// The validating policies alone, and the fallback policies alone, if there are any: each is applied for itself.
    pub fn parts(&self) -> Vec<Installation> {
        let part = |kinds: &[Kind]| {
            let kinds = self.kinds.iter().copied().filter(|kind| kinds.contains(kind)).collect();
            Installation { kinds, ..self.clone() }
        };
        let parts = [part(&[Kind::Validating]), part(&[Kind::Fallback, Kind::FallbackScheduler])];
        parts.into_iter().filter(|part| !part.kinds.is_empty()).collect()
    }

    /// The names that its objects can have.
    pub fn names(&self) -> Vec<String> {
        let validating = Slot::ALL.into_iter().flat_map(|slot| slot.names(&self.name));
        let fallback = fallback_policy::names(&self.name);
        match self.validates() {
            true if self.falls_back() => validating.chain(fallback).collect(),
            true => validating.collect(),
            false => fallback.to_vec(),
        }
    }

    /// Whether there are validating policies.
    pub fn validates(&self) -> bool {
        self.kinds.contains(&Kind::Validating)
    }

    fn falls_back(&self) -> bool {
        self.kinds.iter().any(|kind| *kind != Kind::Validating)
    }

    /// The objects that the policy file asks for, and why it asks for none.
    pub fn wanted(&self, policies: &Policies, account: &str) -> (Wanted, Vec<String>) {
        let mut refused = Vec::new();
        let validating = self.validates().then(|| {
            let parameters = validating_policy::Parameters {
                name: self.name.clone(),
                namespaces: self.namespaces.clone(),
                account: account.to_owned(),
            };
            validating_policy::manifests(policies, &parameters)
        });
        let validating = validating.and_then(|result| {
            result.map_err(|error| refused.push(format!("no validating policies are possible: {error}"))).ok()
        });
        let fallback = self.falls_back().then(|| {
            let parameters = fallback_policy::Parameters {
                name: self.name.clone(),
                namespaces: self.namespaces.clone(),
                scheduler: self.kinds.contains(&Kind::FallbackScheduler),
            };
            fallback_policy::manifests(policies, &parameters)
        });
        // That of an earlier file would decide otherwise than the webhook: it is not wanted.
        let fallback = fallback.map(|(objects, error)| {
            let what = if objects.is_empty() { "policies are" } else { "policy for the scheduler is" };
            refused.extend(error.map(|error| format!("no fallback {what} possible: {error}")));
            objects
        });
        (Wanted { name: self.name.clone(), validating, fallback }, refused)
    }
}

impl Wanted {
    /// Whether no object is wanted.
    pub fn is_empty(&self) -> bool {
        self.validating.iter().flatten().chain(&self.fallback).all(Vec::is_empty)
    }

    /// The same, with the validating policies of an earlier file if none are possible for this one: what was in force stays.
    pub fn or_earlier(self, earlier: Option<Wanted>) -> Wanted {
        let validating = self.validating.or_else(|| earlier?.validating);
        Wanted { validating, ..self }
    }

    /// The same, each object with the owner with which it is deleted, an `ownerReference`.
    pub fn owned_by(mut self, owner: &Value) -> Wanted {
        for object in self.validating.iter_mut().flatten().chain(&mut self.fallback).flatten() {
            usher_spark::json::set(object, &["metadata", "ownerReferences"], json!([owner]));
        }
        self
    }
}
