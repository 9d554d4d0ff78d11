//! A controller that tests drive step by step, usually one step per second: each test is a history.

#![allow(dead_code, unreachable_pub, reason = "a module of several tests, each of which uses a part of it")]

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use usher_core::controller::{Controller, Effects, Lookup, LookupResult, Settings};
use usher_core::leader::LeaderState;
use usher_core::planning::Action;
use usher_core::policy::{Finished, Lifecycle, Policies};
use usher_core::reason::Reason;
use usher_core::signature::Creator;
use usher_core::snapshot::{Change, Conf, Listed, PodChange, RelatedChange, ServedApis, Watched};
use usher_report::views::History;
use usher_spark::conf::AppConf;
use usher_spark::ids::PodKey;
use usher_spark::time::Now;

use super::*;

pub struct ControllerHarness {
    pub controller: Controller,
    pub at: Instant,
    pub since: Duration,
    pub policies: Policies,
    pub leader_state: LeaderState,
    /// Executors without labels, by name and uid: only a list of all pods contains them.
    pub unlabelled: Vec<(String, String)>,
    /// Whether LISTs of all pods of a namespace fail.
    pub lists_fail: bool,
    /// The number of LISTs of all pods of a namespace.
    pub lists: usize,
}

impl ControllerHarness {
    pub fn new(finished: Finished) -> ControllerHarness {
        let lifecycle = Lifecycle { finished, ..Lifecycle::default() };
        let mut harness =
            ControllerHarness::with_empty_lists(Policies::default().with_lifecycle(lifecycle), ServedApis::default());
        let now = harness.now();
        harness.controller.bookmark("0", now);
        harness
    }

    /// A controller that received empty lists of pods and namespaces, in a cluster with these PodGroup APIs.
    pub fn with_empty_lists(policies: Policies, apis: ServedApis) -> ControllerHarness {
        let at = Instant::now();
        let mut harness = ControllerHarness {
            controller: Controller::new(at, Settings::default()),
            at,
            since: Duration::ZERO,
            policies,
            leader_state: LeaderState::Leader,
            unlabelled: Vec::new(),
            lists_fail: false,
            lists: 0,
        };
        harness.apply(RelatedChange::Apis(apis));
        harness.apply(RelatedChange::Namespaces(Watched::Listed(Vec::new())));
        harness.apply(PodChange::Listed(Vec::new()));
        harness
    }

    pub fn now(&self) -> Now {
        let wall = Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::try_from(self.since).unwrap();
        Now { at: self.at + self.since, wall }
    }

    pub fn apply(&mut self, change: impl Into<Change>) {
        let now = self.now();
        self.controller.watch_event(change, now);
    }

    pub fn observe(&mut self, pod: &PodBuilder) {
        self.apply(PodChange::Observed(pod.observation()));
    }

    pub fn delete_pod(&mut self, name: &str, uid: &str) {
        self.apply(PodChange::Gone(PodKey::new("default", name), uid.into()));
    }

    /// A step whose lookups remain unanswered and whose actions remain in flight.
    pub fn step_unanswered(&mut self, after: Duration) -> Effects {
        self.since += after;
        let now = self.now();
        self.controller.step(now, &self.policies, self.leader_state)
    }

    /// A step whose actions finish without a write, and whose lookups are answered: no other pod exists, no ConfigMap is readable.
    pub fn step_after(&mut self, seconds: u64) -> Effects {
        let mut effects = self.step_unanswered(Duration::from_secs(seconds));
        let now = self.now();
        for (set, _) in &effects.actions {
            self.controller.actions_finished(set, false, false, now.at);
        }
        for read in std::mem::take(&mut effects.lookups) {
            match &read {
                Lookup::Pod(_) => self.controller.lookup_answered(&read, LookupResult::Absent, now),
                Lookup::Conf(..) => self.controller.lookup_answered(&read, LookupResult::Conf(Conf::Unreadable), now),
                Lookup::All(_) if self.lists_fail => {
                    self.controller.lookup_answered(&read, LookupResult::Failed, now);
                }
                Lookup::All(namespace) => {
                    self.lists += 1;
                    let mut all = Listed::default();
                    self.unlabelled.iter().for_each(|(name, uid)| all.insert(namespace, name, uid));
                    all.seal();
                    self.controller.lookup_answered(&read, LookupResult::All(all), now);
                }
                _ => effects.lookups.push(read),
            }
        }
        effects
    }

    /// All actions within this time, with one step per second.
    pub fn actions_within(&mut self, seconds: u64) -> Vec<(u64, Action)> {
        let begin = self.since;
        let mut all = Vec::new();
        for _ in 0..seconds {
            let effects = self.step_after(1);
            let at = (self.since - begin).as_secs();
            all.extend(effects.actions.into_iter().flat_map(|(_, actions)| actions).map(|action| (at, action)));
        }
        all
    }

    /// What the debug port shows beside the snapshot.
    pub fn history(&self) -> History {
        History {
            exits: self.controller.exits().history().clone(),
            recovery: self.controller.recovery().clone(),
            costs: self.controller.costs().clone(),
            nodes: self.controller.nodes().clone(),
        }
    }

    pub fn conf(&mut self, text: &str) {
        let conf = Conf::Known(AppConf::parse(text).into());
        self.apply(RelatedChange::Conf(PodKey::new("default", "nb-driver"), DRIVER_UID.into(), conf, Vec::new()));
    }
}

pub fn running(id: u32) -> PodBuilder {
    executor(id).label("spark-version", "4.3.0").stored(&format!("e{id}")).phase("Running").owned_by(
        "Pod",
        "nb-driver",
        DRIVER_UID,
    )
}

pub fn version(mut pod: PodBuilder, version: u32) -> PodBuilder {
    pod.0["metadata"]["resourceVersion"] = version.to_string().into();
    pod
}

/// The creator of the executors.
pub fn creator() -> Option<Creator> {
    Some(Creator::of_pod("nb-driver", DRIVER_UID))
}

pub fn failed(id: u32, code: i32) -> PodBuilder {
    let mut pod = version(running(id), 5).phase("Failed");
    pod.0["status"]["containerStatuses"] =
        serde_json::json!([{"name": "main", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}]);
    pod
}

/// An executor whose container exited and will restart.
pub fn crashed(id: u32, at: u32) -> PodBuilder {
    let mut pod = version(running(id), at).spec("restartPolicy", "Always");
    pod.0["status"]["containerStatuses"] =
        serde_json::json!([{"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}]);
    pod
}

pub fn first_of(actions: &[(u64, Action)], reason: Reason) -> Option<u64> {
    actions.iter().find(|(_, action)| action.reason() == Some(reason)).map(|(at, _)| *at)
}

/// The exits that a leader reports in its next step: executor id, and whether they may have been reported before.
pub fn reported_exits(harness: &mut ControllerHarness) -> Vec<(u64, bool)> {
    let exits = harness.step_after(1).exits;
    exits.iter().map(|exit| (exit.executor.exec_id.unwrap().into(), exit.possibly_reported)).collect()
}
