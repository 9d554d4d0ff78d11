//! A cluster that executes the controller's plans.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part of it")]

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use usher_core::gang::GangScheduler;
use usher_core::lifecycle::Exits;
use usher_core::planning::{Action, ObjectVersion, PlanInput};
use usher_core::policy::{Policies, Policy};
use usher_core::reason::Reason;
use usher_core::reconcile::{self, ApplicationState};
use usher_core::recovery::budget::DeletionBudget;
use usher_core::snapshot::{
    Conf, Group, ObservedPod, Owner, PodChange, ReferencedPod, RelatedChange, ServedApis, Snapshot, Watched,
};
use usher_runtime::clock;
use usher_spark::conf::AppConf;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::time::Now;

use super::*;

/// A cluster that executes the controller's actions.
pub struct GangCluster {
    pub snapshot: Snapshot,
    pub policies: Policies,
    pub memory: ApplicationState,
    pub app: AppKey,
    pub now: Timestamp,
    pub version: u32,
    /// The reasons of all Events and actions.
    pub reasons: Vec<Reason>,
    pub messages: Vec<String>,
    /// How many executors rounds of the recovery rules have visited.
    pub visited: usize,
}

impl GangCluster {
    pub fn new(policy: Policy) -> GangCluster {
        let mut snapshot = Snapshot::default();
        snapshot.apply(RelatedChange::Apis(serving(policy.scheduler.gang_scheduler, 0)));
        let kind = policy.scheduler.gang_scheduler.kind;
        snapshot.apply(RelatedChange::Groups(kind, Watched::Listed(Vec::new())));
        GangCluster {
            snapshot,
            policies: only(policy),
            memory: ApplicationState::default(),
            app: AppKey::new("default", APP),
            now: Timestamp::UNIX_EPOCH,
            version: 1,
            reasons: Vec::new(),
            messages: Vec::new(),
            visited: 0,
        }
    }

    pub fn volcano() -> GangCluster {
        GangCluster::new(policy("volcano"))
    }

    /// A running driver with this configuration.
    pub fn driver(&mut self, conf: &str) -> &mut Self {
        self.observe(
            &by_driver(&driver().conf_map("c"), &self.snapshot, &self.policies)
                .object
                .into_pod()
                .stored(DRIVER_UID)
                .phase("Running"),
        );
        self.conf(DRIVER_UID, conf)
    }

    pub fn conf(&mut self, uid: &str, conf: &str) -> &mut Self {
        let conf = Conf::Known(Arc::new(AppConf::parse(conf)));
        self.snapshot.apply(RelatedChange::Conf(PodKey::new("default", "nb-driver"), uid.into(), conf, vec![]));
        self
    }

    pub fn observe(&mut self, pod: &PodBuilder) -> &mut Self {
        observe(&mut self.snapshot, pod);
        self
    }

    /// An executor that the driver creates now, in this phase.
    pub fn executor(&mut self, id: u32, phase: &str) -> &mut Self {
        let admitted = by_driver(&executor(id), &self.snapshot, &self.policies).object.into_pod();
        self.observe(&admitted.stored(&format!("e{id}")).phase(phase))
    }

    /// An executor that was created while the webhook was unavailable.
    pub fn unmutated_executor(&mut self, id: u32, phase: &str) -> &mut Self {
        self.observe(&executor(id).owned_by("Pod", "nb-driver", DRIVER_UID).stored(&format!("e{id}")).phase(phase))
    }

    pub fn delete_pod(&mut self, id: u32) -> &mut Self {
        self.snapshot.apply(PodChange::Gone(PodKey::new("default", &format!("nb-exec-{id}")), format!("e{id}").into()));
        self
    }

    /// Plans until a plan has no action.
    pub fn settle(&mut self) -> &mut Self {
        let now = Now { at: clock::instant(), wall: self.now };
        for _ in 0..10 {
            let plan = reconcile::plan(
                PlanInput {
                    snapshot: &self.snapshot,
                    key: &self.app,
                    policies: &self.policies,
                    exits: &Exits::default(),
                    now,
                },
                &mut self.memory,
                &mut DeletionBudget::new(now.at),
            );
            self.visited += plan.recovery.visited;
            let mut acted = false;
            for action in plan.into_actions() {
                self.reasons.extend(action.reason());
                acted |= self.apply(action);
            }
            if !acted {
                return self;
            }
        }
        panic!("the plans never become empty: {:?}", self.reasons);
    }

    pub fn apply(&mut self, action: Action) -> bool {
        self.version += 1;
        let version: Arc<str> = self.version.to_string().into();
        match action {
            Action::CreateGroup { key, app, spec, owner, started, .. } => {
                assert!(!self.snapshot.groups.contains_key(&key), "created twice");
                let group = Group {
                    uid: format!("g{version}").into(),
                    version,
                    selector: Some(app.selector().into()),
                    owner: owner.map(|owner| Owner::of_pod(owner.key.name().into(), owner.uid)),
                    started,
                    created: None,
                    deleting: false,
                    phase: None,
                    waits: None,
                    spec,
                };
                self.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
            }
            Action::PatchGroup { key, seen, patch, .. } => {
                let mut group = (**self.snapshot.groups.get(&key).unwrap()).clone();
                assert_eq!(ObjectVersion::from(&group), seen, "preconditions");
                json_patch::merge(&mut group.spec, patch.get("spec").unwrap_or(&json!({})));
                if let Some(owner) = patch.pointer("/metadata/ownerReferences/0/uid") {
                    let name = "nb-driver".into();
                    group.owner = Some(Owner::of_pod(name, owner.as_str().unwrap().into()));
                }
                group.started |= patch.pointer("/metadata/annotations").is_some();
                group.version = version;
                self.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)));
            }
            Action::DeleteGroup { key, seen, .. } => {
                assert_eq!(self.snapshot.groups.get(&key).unwrap().uid, seen.uid);
                self.snapshot.apply(RelatedChange::Groups(key.scheduler, Watched::Removed(key)));
            }
            Action::Adopt { executor, driver, .. } => {
                let id: u32 = executor.name().rsplit('-').next().unwrap().parse().unwrap();
                let (_, known) = self.snapshot.executor("default", executor.name()).unwrap();
                let mut known = (**known).clone();
                let owner = usher_core::snapshot::Owner::of_pod(driver.key.name().into(), driver.uid);
                Arc::make_mut(&mut known.template).owner = Some(owner);
                assert_eq!(known.exec_id, Some(id));
                self.snapshot.apply(PodChange::Observed(ObservedPod::Executor(self.app.clone(), known)));
            }
            Action::CleanUp { .. } | Action::Recover(_) => panic!("expected no deletion in a plan for gangs"),
            Action::RecordEvent(event) => {
                self.messages.push(event.message);
                return false;
            }
        }
        true
    }

    pub fn groups(&self) -> BTreeMap<String, Value> {
        self.snapshot.groups.iter().map(|(key, group)| (key.name.to_string(), group.spec.clone())).collect()
    }

    /// The size of the only PodGroup.
    pub fn count(&self) -> u64 {
        let groups = self.groups();
        assert_eq!(groups.len(), 1, "{groups:?}");
        let spec = groups.values().next().unwrap();
        spec.get("minMember").or_else(|| spec.pointer("/schedulingPolicy/gang/minCount")).unwrap().as_u64().unwrap()
    }

    pub fn has_reason(&self, reason: Reason) -> bool {
        self.reasons.contains(&reason)
    }
}

pub trait IntoPod {
    fn into_pod(self) -> PodBuilder;
}

impl IntoPod for Value {
    fn into_pod(self) -> PodBuilder {
        PodBuilder(self)
    }
}

pub fn serving(row: &'static GangScheduler, version: usize) -> ServedApis {
    ServedApis(row.apis.get(version).map(|api| (row.kind, api)).into_iter().collect())
}

pub fn referenced_pod(pod: &PodBuilder) -> ReferencedPod {
    match pod.observation() {
        ObservedPod::Other(_, pod) | ObservedPod::Driver(_, pod) => ReferencedPod::Present(Arc::new(pod)),
        ObservedPod::Executor(..) => panic!("an executor is not looked up as a driver"),
    }
}
