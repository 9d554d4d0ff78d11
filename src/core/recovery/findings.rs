//! What the recovery rules found in the whole cluster, and which pods they deleted: for metrics, `apps` and `why`.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::{HashMap, Vector};
use jiff::{SignedDuration, Timestamp};

use super::budget::{Attempt, TRY_AGAIN};
use super::report::{DeletedPod, FindingOutcome, RecoveryReport, ReportedFinding};
use crate::policy::RecoveryRule;
use usher_spark::ids::AppKey;

/// At most this many deleted pods are remembered.
const MAX_DELETED: usize = 10_000;

/// See the module's text. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct RecoveryFindings {
    /// The last report of each application in which something was found. Only the leader has them.
    reports: HashMap<AppKey, Arc<RecoveryReport>>,
    /// How many findings of each rule they contain.
    counts: BTreeMap<RecoveryRule, u64>,
    /// The last pods that rules deleted, the oldest first.
    deleted: Vector<Arc<DeletedPod>>,
    /// The same by application.
    deleted_of: HashMap<AppKey, Vector<Arc<DeletedPod>>>,
}

impl RecoveryFindings {
    /// The last report of an application, if something was found.
    pub fn of(&self, app: &AppKey) -> Option<&RecoveryReport> {
        self.reports.get(app).map(|report| &**report)
    }

    /// The last pods of an application that rules deleted, the oldest first.
    pub fn deleted_of(&self, app: &AppKey) -> impl DoubleEndedIterator<Item = &DeletedPod> {
        self.deleted_of.get(app).into_iter().flatten().map(|deleted| &**deleted)
    }

    /// The deletion of the pod of this uid, if a rule deleted it.
    pub fn deletion_of(&self, app: &AppKey, uid: &str) -> Option<&DeletedPod> {
        self.deleted_of(app).rev().find(|deleted| *deleted.uid == *uid)
    }

    /// How many findings of a rule there are in the whole cluster.
    pub fn count(&self, rule: RecoveryRule) -> u64 {
        self.counts.get(&rule).copied().unwrap_or_default()
    }

    /// A round of the rules ended for an application.
    pub(crate) fn found(&mut self, app: &AppKey, report: RecoveryReport) {
        self.forget(app);
        if report.is_empty() {
            return;
        }
        for (rule, count) in &report.counts {
            *self.counts.entry(*rule).or_default() += u64::from(*count);
        }
        self.reports.insert(app.clone(), Arc::new(report));
    }

    /// A deletion ended: a pod that was not deleted is not shown as being deleted until the next round.
    pub(crate) fn ended(&mut self, app: &AppKey, attempt: &Attempt, now: Timestamp) {
        let Some((why, report)) = attempt.not_deleted.zip(self.reports.get_mut(app)) else { return };
        let is_it = |finding: &&mut ReportedFinding| finding.rule == attempt.rule && finding.uid == attempt.uid;
        if let Some(finding) = Arc::make_mut(report).findings.iter_mut().find(is_it) {
            let again = now.saturating_add(SignedDuration::try_from(TRY_AGAIN).unwrap_or_default()).unwrap_or(now);
            finding.outcome = FindingOutcome::NotDeleted(why, again);
        }
    }

    /// An application no longer exists.
    pub(crate) fn forget(&mut self, app: &AppKey) {
        let Some(before) = self.reports.remove(app) else { return };
        for (rule, count) in &before.counts {
            let total = self.counts.entry(*rule).or_default();
            *total = total.saturating_sub(u64::from(*count));
        }
    }

    /// This replica does not lead.
    pub(crate) fn clear_findings(&mut self) {
        if !self.reports.is_empty() {
            self.reports.clear();
            self.counts.clear();
        }
    }

    /// A rule deleted a pod.
    pub(crate) fn deleted(&mut self, pod: DeletedPod) {
        let pod = Arc::new(pod);
        self.deleted_of.entry(pod.app.clone()).or_default().push_back(pod.clone());
        self.deleted.push_back(pod);
        if self.deleted.len() > MAX_DELETED
            && let Some(oldest) = self.deleted.pop_front()
            && let Some(deleted) = self.deleted_of.get_mut(&oldest.app)
        {
            deleted.pop_front();
            if deleted.is_empty() {
                self.deleted_of.remove(&oldest.app);
            }
        }
    }
}
