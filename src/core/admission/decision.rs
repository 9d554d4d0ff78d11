//! The decision about one review.

use crate::ownership::resolve::FoundDriver;
use crate::policy::Validate;
use crate::reason::{Reason, Severity};

use super::mutation::Mutation;

/// The decision, with everything that `explain`, the response, the metrics and the log need.
#[derive(Clone, Debug)]
pub struct Decision<'a> {
    /// Whether the pod is admitted.
    pub verdict: Verdict,
    /// The most severe reason.
    pub reason: Reason,
    /// Every reason besides the plain outcome, with a sentence about this pod.
    pub notes: Vec<(Reason, String)>,
    /// The policy that applied, if one was evaluated.
    pub policy: Option<&'a str>,
    /// The driver, by the best evidence.
    pub driver: Option<FoundDriver<'a>>,
    /// For a validation: the mode that applies to the findings.
    pub validated: Option<Validate>,
    /// For a validation: the findings, each reason with a sentence about this pod.
    pub findings: Vec<(Reason, String)>,
}

/// Whether a pod is admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The pod is admitted.
    Allow {
        /// The mutations that the pod does not have already.
        mutations: Vec<Mutation>,
    },
    /// The pod is denied, and nothing of it is changed.
    Deny(Denial),
}

/// Why a pod is denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denial {
    /// The pod cannot be decided about, and its policy is strict.
    Undecided,
    /// The validation has findings, and the pod's policy enforces.
    Violations,
}

impl<'a> Decision<'a> {
    /// Admits the pod unchanged.
    pub fn pass(reason: Reason) -> Decision<'a> {
        Decision {
            verdict: Verdict::Allow { mutations: Vec::new() },
            reason,
            notes: Vec::new(),
            policy: None,
            driver: None,
            validated: None,
            findings: Vec::new(),
        }
    }

    /// Whether the pod is admitted.
    pub fn is_allowed(&self) -> bool {
        matches!(self.verdict, Verdict::Allow { .. })
    }

    /// The mutations of an admitted pod.
    pub fn mutations(&self) -> &[Mutation] {
        match &self.verdict {
            Verdict::Allow { mutations } => mutations,
            Verdict::Deny(_) => &[],
        }
    }

    /// Joins the decision about a creation with the validation of the mutated pod: a denial of either denies the pod.
    pub(super) fn join(mut self, validation: Decision<'a>) -> Decision<'a> {
        self.reason = self.reason.or_more_severe(validation.reason);
        self.validated = validation.validated;
        self.findings = validation.findings;
        // A finding that is reported is not repeated as a note.
        if self.validated != Some(Validate::Audit) {
            self.notes.retain(|(reason, _)| !self.findings.iter().any(|(found, _)| found == reason));
        }
        self.policy = self.policy.or(validation.policy);
        if let Verdict::Deny(denial) = validation.verdict {
            (self.verdict, self.reason, self.policy) = (Verdict::Deny(denial), validation.reason, validation.policy);
        }
        self
    }

    /// Warnings for the client: what was not done and what to do about it. A denial's message contains the findings itself.
    pub fn warnings(&self) -> impl Iterator<Item = String> {
        let warned = self.findings.iter().filter(|_| self.validated == Some(Validate::Warn));
        self.notes
            .iter()
            .chain(warned)
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
    use crate::admission::draft::Draft;

    #[test]
    fn finding_of_validation_replaces_equal_note_unless_it_is_only_audited() {
        for (mode, notes) in [
            (Validate::Audit, vec![Reason::GangKept, Reason::NoCreator]),
            (Validate::Warn, vec![Reason::GangKept]),
            (Validate::Enforce, vec![Reason::GangKept]),
        ] {
            let mut mutated = Draft::new(Reason::SchedulingSet);
            mutated.note(Reason::GangKept, "kept".into());
            mutated.note(Reason::NoCreator, "noted".into());
            let mut validated = Draft::new(Reason::Valid);
            validated.find(Reason::NoCreator, "found".into());
            let joined = mutated.decide(false).join(validated.decide_validation(mode));
            let left: Vec<Reason> = joined.notes.iter().map(|(reason, _)| *reason).collect();
            assert_eq!((left, joined.findings.len()), (notes, 1), "{mode:?}");
            assert_eq!(joined.is_allowed(), mode != Validate::Enforce);
        }
    }

    #[test]
    fn warning_is_one_line_truncated_to_256_characters() {
        let text = warning(&format!("a\nb{}", "é".repeat(400)));
        assert!(text.starts_with("spark-usher: a b"));
        assert_eq!(text.chars().count(), 256);
    }
}
