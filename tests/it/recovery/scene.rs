//! An application whose driver answers polls, and what the controller does about it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::controller_harness::*;
use crate::support::*;
use serde_json::json;
use usher_core::controller::{DriverAnswer, PollError};
use usher_core::planning::{Action, Recover};
use usher_core::policy::{Budget, Finished, Mode, Recovery, RecoveryRule, RuleSettings};
use usher_core::reason::Reason;
use usher_core::recovery::budget::Attempt;
use usher_core::recovery::report::ReportedFinding;
use usher_core::snapshot::{Change, Group, GroupKey, Owner, RelatedChange, Watched};
use usher_spark::ids::AppKey;
use usher_spark::rest::{DriverMetrics, ExecutorSummary};

/// What the driver answers to polls.
#[derive(Clone, Debug)]
pub(super) enum Answers {
    Nothing,
    Refused,
    /// Registered executors, removed ones with their reason, and the metrics.
    View(Vec<u64>, Vec<(u64, &'static str)>, DriverMetrics),
}

pub(super) const COMPLETE: DriverMetrics =
    DriverMetrics { dropped_events: Some(0), queued_events: Some(0), target: None };

pub(super) struct Scene {
    pub(super) harness: ControllerHarness,
    pub(super) answers: Answers,
    /// The uids of pods for which the check before a deletion fails.
    pub(super) not_confirmed: Vec<&'static str>,
    /// Whether pods that rules delete disappear.
    pub(super) obeys: bool,
    /// How many pods rules would have deleted, were deletions not off.
    pub(super) withheld: BTreeMap<RecoveryRule, u32>,
    /// The most plans in one step.
    pub(super) max_plans: usize,
    /// All actions so far, with their time in seconds.
    pub(super) actions: Vec<(u64, Action)>,
}

impl Scene {
    /// A running driver, and these settings.
    pub(super) fn new(recovery: Recovery) -> Scene {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.policies = harness.policies.clone().with_recovery(recovery);
        harness.observe(&driver().ip("10.0.0.5"));
        Scene {
            harness,
            answers: Answers::View(vec![], vec![], COMPLETE),
            not_confirmed: vec![],
            obeys: false,
            withheld: BTreeMap::new(),
            max_plans: 0,
            actions: Vec::new(),
        }
    }

    pub(super) fn with_conf(recovery: Recovery, conf: &str) -> Scene {
        let mut scene = Scene::new(recovery);
        scene.harness.observe(&driver().conf_map("c").ip("10.0.0.5"));
        scene.harness.conf(conf);
        scene
    }

    pub(super) fn registered(&mut self, ids: &[u64]) {
        self.answers = Answers::View(ids.to_vec(), vec![], COMPLETE);
    }

    /// One step per second. The driver answers each poll immediately.
    pub(super) fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let effects = self.harness.step_after(1);
            self.max_plans = self.max_plans.max(effects.plans);
            for (rule, count) in &effects.withheld {
                *self.withheld.entry(*rule).or_default() += count;
            }
            let at = self.harness.since.as_secs();
            let app = AppKey::new("default", APP);
            let recovers = |action: &Action| match action {
                Action::Recover(deletion) => {
                    Some((deletion.event.pod.name().to_owned(), deletion.seen.uid.to_string()))
                }
                _ => None,
            };
            let deleted = effects.actions.iter().flat_map(|(_, all)| all).filter(|_| self.obeys).filter_map(recovers);
            for (name, uid) in deleted.collect::<Vec<_>>() {
                self.harness.delete_pod(&name, &uid);
            }
            for action in effects.actions.iter().flat_map(|(_, all)| all) {
                if let Action::Recover(deletion) = action
                    && self.not_confirmed.contains(&&*deletion.seen.uid)
                {
                    let kept = Attempt {
                        rule: deletion.rule,
                        uid: deletion.seen.uid.clone(),
                        not_deleted: Some(deletion.check.failure()),
                    };
                    let now = self.harness.now();
                    self.harness.controller.deletion_ended(&app, &kept, now);
                }
            }
            self.actions.extend(effects.actions.into_iter().flat_map(|(_, all)| all).map(|action| (at, action)));
            for poll in effects.driver_polls {
                let row = |id: u64, is_active: bool, reason: Option<&str>| -> ExecutorSummary {
                    let row = json!({"id": id.to_string(), "isActive": is_active, "removeReason": reason});
                    serde_json::from_value(row).unwrap()
                };
                let answer = match self.answers.clone() {
                    Answers::Nothing => DriverAnswer::Failed(PollError::Timeout),
                    Answers::Refused => DriverAnswer::Failed(PollError::Refused),
                    Answers::View(registered, removed, metrics) => DriverAnswer::View {
                        port: 4040,
                        conf: None,
                        executors: registered
                            .into_iter()
                            .map(|id| row(id, true, None))
                            .chain(removed.into_iter().map(|(id, reason)| row(id, false, Some(reason))))
                            .collect(),
                        metrics,
                    },
                };
                let (now, policies) = (self.harness.now(), self.harness.policies.clone());
                _ = self.harness.controller.driver_answered(&poll.key, answer, now, &policies);
            }
        }
    }

    /// The pods that rules deleted, each with the time of its first deletion: none of them disappears here.
    pub(super) fn deletions(&self) -> Vec<(u64, &Recover)> {
        let mut all: Vec<(u64, &Recover)> = Vec::new();
        for (at, action) in &self.actions {
            if let Action::Recover(deletion) = action
                && all.iter().all(|(_, known)| known.seen.uid != deletion.seen.uid)
            {
                all.push((*at, deletion));
            }
        }
        all
    }

    pub(super) fn findings(&self) -> Vec<ReportedFinding> {
        let app = AppKey::new("default", APP);
        self.harness.controller.recovery().of(&app).map(|report| report.findings.clone()).unwrap_or_default()
    }

    pub(super) fn only_finding(&self) -> ReportedFinding {
        let mut findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }

    /// When an Event or an action with this reason was planned first.
    pub(super) fn first(&self, reason: Reason) -> Option<u64> {
        first_of(&self.actions, reason)
    }
}

/// The defaults of a policy file with `recovery.act: true`.
pub(super) fn acting() -> Recovery {
    Recovery { acts: true, ..Recovery::default() }
}

/// A rule that acts, with a budget that is no limit.
pub(super) fn act(rule: RecoveryRule) -> Recovery {
    let budget = Budget { count: 1_000_000, per: Duration::from_secs(3600) };
    let settings = RuleSettings { mode: Mode::Act, budget, ..rule.defaults() };
    Recovery { budget, ..acting() }.with_rule(rule, settings)
}

/// An executor that is bound to a node and does not start.
pub(super) fn starting(id: u32) -> PodBuilder {
    let mut pod = running(id).phase("Pending").spec("nodeName", "node-1");
    pod.0["status"]["containerStatuses"] = json!([{"name": "spark-kubernetes-executor", "image": "i",
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}}]);
    pod
}

pub(super) fn without_owner(mut pod: PodBuilder) -> PodBuilder {
    pod.0["metadata"].as_object_mut().unwrap().remove("ownerReferences");
    pod
}

/// The key of a PodGroup of the application, for Volcano.
pub(super) fn group_key(name: &str) -> GroupKey {
    GroupKey { namespace: "default".into(), name: name.into(), scheduler: "volcano" }
}

/// A PodGroup of three members that the driver owns.
pub(super) fn group(started: bool) -> Group {
    Group {
        version: "7".into(),
        owner: Some(Owner::of_pod("nb-driver".into(), DRIVER_UID.into())),
        started,
        created: Some(1_763_600_400),
        phase: Some("Inqueue".into()),
        ..pod_group(3)
    }
}

/// An executor that names a PodGroup.
pub(super) fn member(pod: PodBuilder, name: &str) -> PodBuilder {
    pod.annotation("spark-usher.io/by", "batch/volcano").annotation("scheduling.k8s.io/group-name", name)
}

/// All PodGroups of the cluster.
pub(super) fn listed(groups: Vec<(GroupKey, Group)>) -> Change {
    Change::Related(RelatedChange::Groups("volcano", Watched::Listed(groups)))
}

/// Whether a deletion is verified by the driver's view, in which this executor must not be registered.
pub(super) fn not_registered(deletion: &Recover, id: u64) -> bool {
    matches!(&deletion.check, usher_core::planning::Check::NotRegistered(_, of) if *of == id)
}
