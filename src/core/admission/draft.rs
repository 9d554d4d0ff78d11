//! A decision before its verdict: reasons, notes, mutations and findings.

use super::decision::{Decision, Denial, Verdict};
use super::mutation::Mutation;
use crate::annotations::MetadataField;
use crate::ownership::resolve::FoundDriver;
use crate::policy::Validate;
use crate::reason::{Reason, Severity};
use crate::signature::StatedCreator;

/// A decision without its verdict, which [`Draft::decide`] adds.
#[derive(Debug)]
pub(super) struct Draft<'a> {
    /// The most severe reason so far.
    pub(super) reason: Reason,
    /// Every reason besides the plain outcome, with a sentence about this pod.
    pub(super) notes: Vec<(Reason, String)>,
    /// The policy that applies, if one was evaluated.
    pub(super) policy: Option<&'a str>,
    /// The driver, by the best evidence.
    pub(super) driver: Option<FoundDriver<'a>>,
    pub(super) mutations: Vec<Mutation>,
    /// The findings of a validation, each reason with a sentence about this pod.
    pub(super) findings: Vec<(Reason, String)>,
    /// The creator that the pod's signature names, if it gets one.
    pub(super) signature: Option<StatedCreator>,
}

impl<'a> Draft<'a> {
    /// A draft with this outcome.
    pub(super) fn new(reason: Reason) -> Draft<'a> {
        Draft {
            reason,
            notes: Vec::new(),
            policy: None,
            driver: None,
            mutations: Vec::new(),
            findings: Vec::new(),
            signature: None,
        }
    }

    /// A draft whose outcome is this note.
    pub(super) fn noted(reason: Reason, sentence: String) -> Draft<'a> {
        Draft { notes: vec![(reason, sentence)], ..Draft::new(reason) }
    }

    /// Adds a reason and its sentence. The most severe reason becomes the decision's.
    pub(super) fn note(&mut self, reason: Reason, sentence: String) {
        self.raise(reason);
        self.notes.push((reason, sentence));
    }

    /// Adds a validation's finding, and its sentence.
    pub(super) fn find(&mut self, reason: Reason, sentence: String) {
        self.raise(reason);
        self.findings.push((reason, sentence));
    }

    /// Sets one of our annotations.
    pub(super) fn set_annotation(&mut self, key: &'static str, value: String) {
        self.mutations.push(Mutation::SetMetadata(MetadataField::Annotation, key, value));
    }

    /// Whether a label or an annotation is set or removed.
    pub(super) fn changes(&self, changed: &str) -> bool {
        self.mutations.iter().any(|mutation| match mutation {
            Mutation::RemoveMetadata(key) | Mutation::SetMetadata(_, key, _) => *key == changed,
            _ => false,
        })
    }

    fn raise(&mut self, reason: Reason) {
        self.reason = self.reason.or_more_severe(reason);
    }

    /// Drops the findings, because the requester is trusted.
    pub(super) fn trust(&mut self, reason: Reason) {
        if !std::mem::take(&mut self.findings).is_empty() {
            self.reason = reason;
        }
    }

    /// The decision of a mutation: a strict policy denies a pod about which spark-usher cannot decide.
    pub(super) fn decide(self, strict: bool) -> Decision<'a> {
        let denied = strict && self.is_undecided();
        self.finish(None, denied.then_some(Denial::Undecided))
    }

    /// Whether spark-usher cannot decide about the pod.
    pub(super) fn is_undecided(&self) -> bool {
        self.reason.severity() == Severity::Undecided
    }

    /// The decision of a validation: a policy that enforces denies a pod with findings.
    pub(super) fn decide_validation(self, mode: Validate) -> Decision<'a> {
        let denied = mode == Validate::Enforce && !self.findings.is_empty();
        self.finish(Some(mode), denied.then_some(Denial::Violations))
    }

    fn finish(self, validated: Option<Validate>, denial: Option<Denial>) -> Decision<'a> {
        let Draft { reason, notes, policy, driver, mutations, findings, signature: _ } = self;
        let verdict = denial.map_or(Verdict::Allow { mutations }, Verdict::Deny);
        Decision { verdict, reason, notes, policy, driver, validated, findings }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_severe_note_becomes_reason_of_decision() {
        let mut draft = Draft::new(Reason::SchedulingSet);
        draft.note(Reason::GangSizeUnknown, "a".into());
        draft.note(Reason::GangKept, "b".into());
        let decision = draft.decide(false);
        assert_eq!(decision.reason, Reason::GangSizeUnknown);
        assert_eq!(decision.warnings().collect::<Vec<_>>(), ["spark-usher: a"], "a note is not a warning");
    }

    #[test]
    fn strict_policy_denies_only_undecided_pods() {
        let draft = |reason| {
            let mut draft = Draft::new(Reason::SchedulingSet);
            draft.mutations.push(Mutation::SchedulerName("volcano".into()));
            draft.note(reason, String::new());
            draft
        };
        assert!(draft(Reason::GangSizeUnknown).decide(true).is_allowed());
        assert!(draft(Reason::NoCreator).decide(false).is_allowed());
        let denied = draft(Reason::NoCreator).decide(true);
        assert_eq!(denied.verdict, Verdict::Deny(Denial::Undecided));
        assert!(denied.mutations().is_empty());
    }

    #[test]
    fn enforcing_policy_denies_findings() {
        let draft = || {
            let mut draft = Draft::new(Reason::Valid);
            draft.find(Reason::NotMutated, String::new());
            draft
        };
        assert_eq!(draft().decide_validation(Validate::Enforce).verdict, Verdict::Deny(Denial::Violations));
        assert!(draft().decide_validation(Validate::Warn).is_allowed());
        assert!(Draft::new(Reason::Valid).decide_validation(Validate::Enforce).is_allowed());
    }
}
