//! What was decided about one review.

use crate::driver::resolve::FoundDriver;
use crate::policy::Validate;
use crate::reason::{Reason, Weight};
use crate::signature::Creator;

use super::mutation::Mutation;

/// The decision, with everything that `explain`, the answer, the metrics and the log need.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// Whether the pod may come in.
    pub allowed: bool,
    /// The weightiest reason.
    pub reason: Reason,
    /// Every reason beside the plain outcome, with a sentence about this pod.
    pub notes: Vec<(Reason, String)>,
    /// The policy that held, if one was asked.
    pub policy: Option<&'a str>,
    /// The driver, by the best evidence.
    pub driver: Option<FoundDriver<'a>>,
    /// What is to change; only what is not so already.
    pub mutations: Vec<Mutation>,
    /// For a judgement: what is done about what was found.
    pub judged: Option<Validate>,
    /// For a judgement: what was found, each reason with a sentence about this pod.
    pub findings: Vec<(Reason, String)>,
    /// The creator that the pod's signature is to name, if it gets one.
    pub signs: Option<Creator>,
}

impl<'a> Decision<'a> {
    /// Allowed as it is.
    pub fn pass(reason: Reason) -> Decision<'a> {
        Decision {
            allowed: true,
            reason,
            notes: Vec::new(),
            policy: None,
            driver: None,
            mutations: Vec::new(),
            judged: None,
            findings: Vec::new(),
            signs: None,
        }
    }

    /// Adds a reason and its sentence. The weightiest becomes the decision's.
    pub fn note(&mut self, reason: Reason, sentence: String) {
        self.weigh(reason);
        self.notes.push((reason, sentence));
    }

    /// Adds what a judgement found, and its sentence.
    pub fn find(&mut self, reason: Reason, sentence: String) {
        self.weigh(reason);
        self.findings.push((reason, sentence));
    }

    fn weigh(&mut self, reason: Reason) {
        if reason.weight() > self.reason.weight() {
            self.reason = reason;
        }
    }

    /// Takes over what was found in the pod as this decision makes it.
    pub(super) fn join(&mut self, judgement: Decision<'a>) {
        self.weigh(judgement.reason);
        self.judged = judgement.judged;
        self.findings = judgement.findings;
        // Said once.
        if self.judged != Some(Validate::Audit) {
            self.notes.retain(|(reason, _)| !self.findings.iter().any(|(found, _)| found == reason));
        }
        self.policy = self.policy.or(judgement.policy);
        self.close_if(false);
        if !self.allowed {
            (self.reason, self.policy) = (judgement.reason, judgement.policy);
        }
    }

    /// Refuses what could not be decided, when the policy is strict, and what was found, when it enforces. This is the
    /// one place that decides between open and closed.
    pub fn close_if(&mut self, strict: bool) {
        let closed = match self.judged {
            None => strict && self.reason.weight() == Weight::Undecided,
            Some(mode) => mode == Validate::Enforce && !self.findings.is_empty(),
        };
        if closed {
            self.allowed = false;
            self.mutations.clear();
        }
    }

    /// Whoever did this may: it is no finding.
    pub(super) fn trust(&mut self, reason: Reason) {
        if !std::mem::take(&mut self.findings).is_empty() {
            self.reason = reason;
        }
    }

    /// Sentences for the client: what was left undone and what to do about it. A refusal says itself what was found.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let heard = self.findings.iter().filter(|_| self.judged == Some(Validate::Warn));
        self.notes
            .iter()
            .chain(heard)
            .filter(|(reason, _)| reason.weight() >= Weight::Warning)
            .map(|(_, text)| warning(text))
    }
}

/// Longest warning that API servers pass on whole when there are many (`filters/warning.go`).
const MAX_WARNING: usize = 256;

/// Prefixed, cut to what is passed on, without control characters (which would drop the whole header).
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
        let mut decision = Decision::pass(Reason::Seated);
        decision.note(Reason::GangSizeUnknown, "a".into());
        decision.note(Reason::AlreadySeated, "b".into());
        assert_eq!(decision.reason, Reason::GangSizeUnknown);
        assert_eq!(decision.warnings().collect::<Vec<_>>(), ["spark-usher: a"], "a note is no warning");
    }

    #[test]
    fn strict_refuses_only_what_is_undecided_and_changes_nothing_then() {
        let mut decision = Decision::pass(Reason::Seated);
        decision.mutations.push(Mutation::SchedulerName("volcano".into()));
        decision.note(Reason::GangSizeUnknown, String::new());
        decision.close_if(true);
        assert!(decision.allowed);
        decision.note(Reason::NoCreator, String::new());
        decision.close_if(false);
        assert!(decision.allowed);
        decision.close_if(true);
        assert!(!decision.allowed && decision.mutations.is_empty());
    }

    #[test]
    fn warnings_fit_the_header() {
        let text = warning(&format!("a\nb{}", "é".repeat(400)));
        assert!(text.starts_with("spark-usher: a b"));
        assert_eq!(text.chars().count(), 256);
    }
}
