//! The decision about one review.

use crate::ownership::resolve::FoundDriver;
use crate::policy::Validate;
use crate::reason::{Reason, Severity};
use crate::signature::Creator;

use super::mutation::Mutation;

/// The decision, with everything that `explain`, the response, the metrics and the log need.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// Whether the pod is admitted.
    pub allowed: bool,
    /// The most severe reason.
    pub reason: Reason,
    /// Every reason besides the plain outcome, with a sentence about this pod.
    pub notes: Vec<(Reason, String)>,
    /// The policy that applied, if one was evaluated.
    pub policy: Option<&'a str>,
    /// The driver, by the best evidence.
    pub driver: Option<FoundDriver<'a>>,
    /// The mutations that the pod does not have already.
    pub mutations: Vec<Mutation>,
    /// For a validation: the mode that applies to the findings.
    pub validated: Option<Validate>,
    /// For a validation: the findings, each reason with a sentence about this pod.
    pub findings: Vec<(Reason, String)>,
    /// The creator that the pod's signature names, if it gets one.
    pub signature: Option<Creator>,
}

impl<'a> Decision<'a> {
    /// Admits the pod unchanged.
    pub fn pass(reason: Reason) -> Decision<'a> {
        Decision {
            allowed: true,
            reason,
            notes: Vec::new(),
            policy: None,
            driver: None,
            mutations: Vec::new(),
            validated: None,
            findings: Vec::new(),
            signature: None,
        }
    }

    /// Adds a reason and its sentence. The most severe reason becomes the decision's.
    pub fn note(&mut self, reason: Reason, sentence: String) {
        self.raise(reason);
        self.notes.push((reason, sentence));
    }

    /// Adds a validation's finding, and its sentence.
    pub fn find(&mut self, reason: Reason, sentence: String) {
        self.raise(reason);
        self.findings.push((reason, sentence));
    }

    fn raise(&mut self, reason: Reason) {
        if reason.severity() > self.reason.severity() {
            self.reason = reason;
        }
    }

    /// Adds the findings of validating the mutated pod.
    pub(super) fn join(&mut self, validation: Decision<'a>) {
        self.raise(validation.reason);
        self.validated = validation.validated;
        self.findings = validation.findings;
        // A finding that is reported is not repeated as a note.
        if self.validated != Some(Validate::Audit) {
            self.notes.retain(|(reason, _)| !self.findings.iter().any(|(found, _)| found == reason));
        }
        self.policy = self.policy.or(validation.policy);
        self.apply_failure_mode(false);
        if !self.allowed {
            (self.reason, self.policy) = (validation.reason, validation.policy);
        }
    }

    /// Rejects an undecided pod if the policy is strict, and a pod with findings if the policy enforces. This is the one
    /// place that decides between failing open and failing closed.
    pub fn apply_failure_mode(&mut self, strict: bool) {
        let closed = match self.validated {
            None => strict && self.reason.severity() == Severity::Undecided,
            Some(mode) => mode == Validate::Enforce && !self.findings.is_empty(),
        };
        if closed {
            self.allowed = false;
            self.mutations.clear();
        }
    }

    /// Drops the findings, because the requester is trusted.
    pub(super) fn trust(&mut self, reason: Reason) {
        if !std::mem::take(&mut self.findings).is_empty() {
            self.reason = reason;
        }
    }

    /// Warnings for the client: what was not done and what to do about it. A denial's message contains the findings itself.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let heard = self.findings.iter().filter(|_| self.validated == Some(Validate::Warn));
        self.notes
            .iter()
            .chain(heard)
            .filter(|(reason, _)| reason.severity() >= Severity::Warning)
            .map(|(_, text)| warning(text))
    }
}

/// Longest warning that API servers pass on untruncated when there are many (`filters/warning.go`).
const MAX_WARNING: usize = 256;

/// Prefixed, truncated to [`MAX_WARNING`], without control characters (which would drop the whole header).
fn warning(text: &str) -> String {
    let mut out = String::from("spark-usher: ");
    out.extend(text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(MAX_WARNING - out.len()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_weightiest_reason_is_shown() {
        let mut decision = Decision::pass(Reason::SchedulingSet);
        decision.note(Reason::GangSizeUnknown, "a".into());
        decision.note(Reason::GangKept, "b".into());
        assert_eq!(decision.reason, Reason::GangSizeUnknown);
        assert_eq!(decision.warnings().collect::<Vec<_>>(), ["spark-usher: a"], "a note is no warning");
    }

    #[test]
    fn strict_refuses_only_what_is_undecided_and_changes_nothing_then() {
        let mut decision = Decision::pass(Reason::SchedulingSet);
        decision.mutations.push(Mutation::SchedulerName("volcano".into()));
        decision.note(Reason::GangSizeUnknown, String::new());
        decision.apply_failure_mode(true);
        assert!(decision.allowed);
        decision.note(Reason::NoCreator, String::new());
        decision.apply_failure_mode(false);
        assert!(decision.allowed);
        decision.apply_failure_mode(true);
        assert!(!decision.allowed && decision.mutations.is_empty());
    }

    #[test]
    fn warnings_fit_the_header() {
        let text = warning(&format!("a\nb{}", "é".repeat(400)));
        assert!(text.starts_with("spark-usher: a b"));
        assert_eq!(text.chars().count(), 256);
    }
}
