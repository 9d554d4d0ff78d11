//! Reports about the recovery: what an application lacks, what its rules found, and what they deleted.

use serde::{Deserialize, Serialize};

use usher_core::drivers::target::{Target, TargetSource};
use usher_core::recovery::report::{DeletedPod, ReportedFinding};
use usher_core::recovery::shortage::Shortage;
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_spark::text::capitalized;
use usher_spark::time::in_seconds;

/// How many executors an application wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetReport {
    /// How many.
    pub count: u32,
    /// Whether it may want more: the configuration states a minimum only.
    pub at_least: bool,
    /// How that is known.
    pub source: String,
}

/// How many executors an application wants and has, and why it lacks some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShortageReport {
    /// How many executors it wants.
    pub target: u32,
    /// How that is known.
    pub source: String,
    /// How many run.
    pub running: usize,
    /// How many are pending.
    pub pending: usize,
    /// Since when fewer executors run than it wants now, at least; `None` if that is not known.
    #[serde(default)]
    pub since: Option<String>,
    /// Why the others do not run, the most frequent cause first.
    pub causes: Vec<ShortageCauseReport>,
    /// How many executors exited abnormally within ten minutes, by cause: `2 failed with an error, 1 evicted`. Empty if none did, or if
    /// a cause says it.
    #[serde(default)]
    pub exits: String,
}

impl ShortageReport {
    /// How many executors do not run.
    pub fn lacking(&self) -> usize {
        usize::try_from(self.target).unwrap_or(usize::MAX).saturating_sub(self.running)
    }

    /// Why, in one line: each cause, with what is known of the first, and recent exits.
    pub fn why(&self) -> String {
        let is_one = self.causes.len() == 1;
        let causes = self.causes.iter().enumerate().map(|(at, cause)| {
            let count = if is_one { String::new() } else { format!(" ({})", cause.count) };
            let message = Some(&cause.message).filter(|message| at == 0 && !message.is_empty());
            format!("{}{count}{}", cause.phrase(), message.map_or_else(String::new, |message| format!(": {message}")))
        });
        let exits = (!self.exits.is_empty()).then(|| format!("exits within 10 minutes: {}", self.exits));
        capitalized(&causes.chain(exits).collect::<Vec<_>>().join("; "))
    }
}

/// Why executors do not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShortageCauseReport {
    /// The cause, in a word.
    pub cause: String,
    /// How many executors.
    pub count: usize,
    /// What is known of one of them.
    pub message: String,
}

impl ShortageCauseReport {
    /// The cause in a few words for people; the word itself, if a later version reports it.
    pub fn phrase(&self) -> &str {
        ShortageCause::of(&self.cause).map_or(&*self.cause, |cause| cause.phrase())
    }

    /// What to do about it; empty if it is enough to wait.
    pub fn remedy(&self) -> &'static str {
        ShortageCause::of(&self.cause).map_or("", ShortageCause::remedy)
    }
}

/// What a recovery rule found, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FindingReport {
    pub rule: String,
    pub pod: String,
    pub uid: String,
    /// Since when the rule's condition has held.
    pub since: String,
    /// What is wrong.
    pub message: String,
    /// What is done about it.
    pub outcome: String,
}

/// A pod that a recovery rule deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeletionReport {
    pub rule: String,
    pub pod: String,
    pub uid: String,
    /// When.
    pub at: String,
    /// What was wrong.
    pub message: String,
}

pub(super) fn target(target: Target) -> TargetReport {
    TargetReport {
        count: target.count,
        at_least: target.source == TargetSource::MinExecutors,
        source: target.source.text().to_owned(),
    }
}

pub(super) fn shortage(shortage: Shortage) -> ShortageReport {
    let causes = shortage.causes.into_iter().map(|cause| ShortageCauseReport {
        cause: cause.kind.as_str().to_owned(),
        count: cause.count,
        message: cause.message,
    });
    ShortageReport {
        target: shortage.target.count,
        source: shortage.target.source.text().to_owned(),
        running: shortage.running,
        pending: shortage.pending,
        since: shortage.since.map(in_seconds),
        causes: causes.collect(),
        exits: shortage.exits,
    }
}

pub(super) fn finding(finding: &ReportedFinding) -> FindingReport {
    FindingReport {
        rule: finding.rule.as_str().to_owned(),
        pod: finding.pod.name().to_owned(),
        uid: finding.uid.to_string(),
        since: in_seconds(finding.since),
        message: finding.message.clone(),
        outcome: finding.outcome.text(),
    }
}

pub(super) fn deletion(deleted: &DeletedPod) -> DeletionReport {
    DeletionReport {
        rule: deleted.rule.as_str().to_owned(),
        pod: deleted.pod.name().to_owned(),
        uid: deleted.uid.to_string(),
        at: in_seconds(deleted.at),
        message: deleted.message.clone(),
    }
}
