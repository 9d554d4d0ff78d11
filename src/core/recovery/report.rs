//! What the rules found about an application in their last round, and which pods they deleted, for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use super::finding::{Finding, NoRemedy};
use crate::policy::RecoveryRule;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::time::whole_second;

/// At most this many findings of one application are kept; the counts contain all.
const MAX_FINDINGS: usize = 100;

/// What the rules found about an application in their last round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The findings, at most 100.
    pub findings: Vec<ReportedFinding>,
    /// How many findings there are of each rule.
    pub counts: BTreeMap<RecoveryRule, u32>,
}

/// A finding, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportedFinding {
    pub rule: RecoveryRule,
    pub pod: PodKey,
    pub uid: Arc<str>,
    /// Since when the rule's condition has held.
    pub since: Timestamp,
    /// What is wrong.
    pub message: String,
    /// What is done about it.
    pub outcome: FindingOutcome,
}

/// What is done about a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingOutcome {
    /// The pod is being deleted.
    Deleting,
    /// It would be deleted, but the rule's mode is `warn`. The text is a condition that only mode `act` checks.
    Warned(&'static str),
    /// It would be deleted, but `recovery.act` is false; on the same condition.
    NotActing(&'static str),
    /// It would be deleted, but `lifecycle.dryRun` is true; on the same condition.
    DryRun(&'static str),
    /// It was not deleted, for this reason; this is tried again at this time at the earliest.
    NotDeleted(&'static str, Timestamp),
    /// It will be deleted later, for this reason, at this time at the earliest.
    Later(&'static str, Timestamp),
    /// It is not deleted, for this reason.
    Kept(NoRemedy),
}

impl FindingOutcome {
    /// The outcome, for people: a clause.
    pub fn text(self) -> String {
        match self {
            FindingOutcome::Deleting => "is being deleted".to_owned(),
            FindingOutcome::Warned(condition) => format!("would be deleted in mode act{condition}"),
            FindingOutcome::NotActing(condition) => format!("would be deleted{condition}, but recovery.act is false"),
            FindingOutcome::DryRun(condition) => format!("would be deleted{condition}, but lifecycle.dryRun is true"),
            FindingOutcome::NotDeleted(why, at) => {
                format!("was not deleted, because {why}; checked again after {}", whole_second(at))
            }
            FindingOutcome::Later(why, at) => format!("will be deleted after {}: {why}", whole_second(at)),
            FindingOutcome::Kept(why) => why.text().to_owned(),
        }
    }
}

impl RecoveryReport {
    pub fn add(&mut self, finding: &Finding, since: Timestamp, outcome: FindingOutcome) {
        *self.counts.entry(finding.rule).or_default() += 1;
        if self.findings.len() < MAX_FINDINGS {
            self.findings.push(ReportedFinding {
                rule: finding.rule,
                pod: finding.pod.clone(),
                uid: finding.uid.clone(),
                since,
                message: finding.message.clone(),
                outcome,
            });
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }
}

/// A pod that a rule deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedPod {
    /// Its application.
    pub app: AppKey,
    pub rule: RecoveryRule,
    pub pod: PodKey,
    pub uid: Arc<str>,
    /// When.
    pub at: Timestamp,
    /// What was wrong, and what follows.
    pub message: String,
}
