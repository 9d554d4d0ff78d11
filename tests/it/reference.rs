//! A model of Spark's lifecycle manager, written step by step from `docs/spark.md#lifecycle-manager`, compared with the
//! controller: the same histories give the same removals, reasons and actions.
//!
//! Three differences are deliberate and part of the model: an exit is stored as long as its pod exists (Spark reports a pod that
//! stays again after three minutes), a deletion that the watch shows is an exit (in Spark only the next poll detects a pod that
//! was deleted while it ran), and a missing executor is reported once a GET has confirmed its absence.

#![allow(clippy::collapsible_match, clippy::collapsible_if, reason = "each operation is one arm")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::*;
use jiff::Timestamp;
use proptest::prelude::*;
use usher_core::controller::{Controller, Lookup, LookupResult, PollResult, Settings};
use usher_core::leader::LeaderState;
use usher_core::planning::{Action, Cleanup};
use usher_core::policy::{Finished, Lifecycle, Policies};
use usher_core::signature::Creator;
use usher_core::snapshot::{Change, Conf, ObservedPod, PodChange, RelatedChange, ServedApis, Watched};
use usher_spark::conf::AppConf;
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::exit::{self, SparkExit};
use usher_spark::ids::PodKey;
use usher_spark::pod::Pod;
use usher_spark::state::ExecutorPodState as State;
use usher_spark::time::Now;

const BEGIN: i64 = 1_800_000_000;
const DELTA: Duration = Duration::from_secs(3);

// ---- the model ----

#[derive(Clone)]
struct ExecutorState {
    state: State,
    diagnostics: Option<Arc<PodDiagnostics>>,
    inactive: bool,
    deleting: bool,
    registered: i64,
}

#[derive(Default)]
struct Model {
    now: BTreeMap<u64, ExecutorState>,
    /// Every snapshot since the last call.
    queue: Vec<BTreeMap<u64, ExecutorState>>,
    /// Ids whose deletion the watch showed.
    deletions_shown: BTreeSet<u64>,
    full: i64,
    last_full: i64,
    removed: BTreeSet<u64>,
    failed: BTreeSet<u64>,
    registered: BTreeMap<u64, i64>,
    inactivated: BTreeSet<u64>,
}

#[derive(Debug, Default, PartialEq)]
struct Round {
    /// `doRemoveExecutor`: exit code, whether the application caused the exit, and the text.
    removals: BTreeMap<u64, (i32, bool, String)>,
    deleted: BTreeSet<u64>,
    labelled: BTreeSet<u64>,
    failures: usize,
}

fn parts(view: SparkExit) -> (i32, bool, String) {
    (view.exit_code, view.caused_by_app, view.message)
}

impl Model {
    fn update(&mut self, id: u64, seen: ExecutorState) {
        self.registered.entry(id).or_insert(seen.registered);
        self.now.insert(id, seen);
        self.queue.push(self.now.clone());
    }

    fn remove(&mut self, id: u64) {
        if self.now.remove(&id).is_some() {
            self.deletions_shown.insert(id);
        }
        self.queue.push(self.now.clone());
    }

    fn replace(&mut self, there: &BTreeSet<u64>, now: i64) {
        self.now.retain(|id, _| there.contains(id));
        self.full = now;
        self.queue.push(self.now.clone());
    }

    /// One call of the subscriber.
    fn call(&mut self, deletes: bool) -> Round {
        let mut round = Round::default();
        let mut this_round = BTreeSet::new();
        let snapshots = std::mem::take(&mut self.queue);
        for snapshot in &snapshots {
            for (id, seen) in snapshot {
                if seen.state == State::Failed {
                    self.failed.insert(*id);
                }
                if seen.inactive {
                    self.inactivated.remove(id);
                    continue;
                }
                let nothing = PodDiagnostics::default();
                let diagnostics = seen.diagnostics.as_deref().unwrap_or(&nothing);
                match seen.state {
                    State::Deleted => {
                        this_round.insert(*id);
                        if self.removed.insert(*id) {
                            round.removals.insert(*id, parts(exit::deleted(*id, diagnostics)));
                        }
                        self.inactivated.remove(id);
                    }
                    State::Failed | State::Succeeded => {
                        this_round.insert(*id);
                        if self.removed.insert(*id) {
                            round.removals.insert(*id, parts(exit::ended(*id, diagnostics)));
                        }
                    }
                    _ => {}
                }
            }
        }
        // The watch showed the deletion.
        for id in std::mem::take(&mut self.deletions_shown) {
            this_round.insert(id);
            if self.removed.insert(id) {
                round.removals.insert(id, parts(exit::deleted(id, &PodDiagnostics::default())));
            }
        }
        // Existing pods in a final state get an action in every round.
        for (id, seen) in &self.now {
            let finished = matches!(seen.state, State::Failed | State::Succeeded);
            if finished && !seen.inactive && !seen.deleting {
                if deletes {
                    round.deleted.insert(*id)
                } else {
                    round.labelled.insert(*id)
                };
            }
        }
        if self.full != self.last_full {
            self.last_full = self.full;
            for (id, registered) in &self.registered {
                let age = self.full - registered;
                if !self.now.contains_key(id)
                    && !this_round.contains(id)
                    && age > DELTA.as_secs() as i64
                    && self.removed.insert(*id)
                {
                    let delta = DELTA.as_millis() as i64;
                    let view = exit::missing(*id, registered * 1000, self.full * 1000, delta);
                    round.removals.insert(*id, parts(view));
                }
            }
        }
        round.failures = self.failed.len();
        round
    }
}

// ---- the controller ----

struct ControllerUnderTest {
    controller: Controller,
    began: Instant,
    seconds: i64,
    policies: Policies,
}

impl ControllerUnderTest {
    fn new(deletes: bool) -> ControllerUnderTest {
        let began = Instant::now();
        let finished = if deletes { Finished::Delete } else { Finished::Label };
        let lifecycle = Lifecycle {
            grace: Duration::ZERO,
            finished,
            keep_failed: Duration::ZERO,
            poll: DELTA,
            ..Lifecycle::default()
        };
        let policies = Policies::default().with_lifecycle(lifecycle);
        // Spark waits neither for the driver's exit nor for a late watch.
        let settings =
            Settings { driver_exit_window: Duration::ZERO, settle_time: Duration::ZERO, ..Settings::default() };
        let mut controller =
            ControllerUnderTest { controller: Controller::new(began, settings), began, seconds: 0, policies };
        controller.apply(RelatedChange::Apis(ServedApis::default()));
        controller.apply(RelatedChange::Namespaces(Watched::Listed(Vec::new())));
        controller.apply(PodChange::Listed(Vec::new()));
        controller.apply(PodChange::Observed(driver().conf_map("conf").observation()));
        let key = PodKey::new("default", "nb-driver");
        let conf = AppConf::parse(
            "spark.kubernetes.executor.apiPollingInterval=0\nspark.kubernetes.executor.missingPodDetectDelta=0\n\
             spark.executor.maxNumFailures=1000000",
        );
        controller.apply(RelatedChange::Conf(key, DRIVER_UID.into(), Conf::Known(conf.into()), Vec::new()));
        controller
    }

    fn now(&self) -> Now {
        let at = self.began + Duration::from_secs(self.seconds.unsigned_abs());
        Now { at, wall: Timestamp::from_second(BEGIN + self.seconds).unwrap() }
    }

    fn apply(&mut self, change: impl Into<Change>) {
        let now = self.now();
        self.controller.watch_event(change, now);
    }

    fn poll(&mut self, there: &BTreeSet<u64>, versions: &BTreeMap<u64, u32>) {
        let mut polled = PollResult::default();
        polled.add(self.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
        for id in there {
            let version = versions[id].to_string();
            polled.add(self.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), &version);
        }
        let now = self.now();
        self.controller.poll_finished(Some(polled.finish("1000000")), now, &self.policies.clone());
        let effects = self.controller.step(now, &self.policies, LeaderState::Follower);
        assert!(effects.actions.is_empty());
        for read in effects.lookups {
            let Lookup::Labelled(pod) = &read else { continue };
            let id: u64 = pod.name().trim_start_matches("nb-exec-").parse().unwrap();
            assert!(!there.contains(&id), "only missing executors are read by name");
            self.controller.lookup_answered(&read, LookupResult::Absent, now);
        }
    }

    fn call(&mut self, model: &Model) -> Round {
        self.seconds += 1;
        let now = self.now();
        let effects = self.controller.step(now, &self.policies, LeaderState::Leader);
        let mut round = Round { failures: 0, ..Round::default() };
        for exit in effects.exits {
            let id = exit.executor.exec_id.unwrap();
            assert!(round.removals.insert(id.into(), parts(exit.spark())).is_none(), "an exit is reported twice");
        }
        for (set, actions) in effects.actions {
            for action in actions {
                let Action::CleanUp { executor, how, .. } = action else { continue };
                let id: u64 = executor.name().trim_start_matches("nb-exec-").parse().unwrap();
                let all = if how == Cleanup::Delete { &mut round.deleted } else { &mut round.labelled };
                assert!(all.insert(id), "an executor has two actions");
            }
            // The write fails, so that the next round retries.
            self.controller.actions_finished(&set, false, false, now.at);
        }
        self.controller.requeue_all();
        let app = usher_spark::ids::AppKey::new("default", APP);
        round.failures =
            self.controller.exits().failures(&app, Some(Creator::of_pod("nb-driver", DRIVER_UID)), None, now.at)
                as usize;
        let _ = model;
        round
    }
}

// ---- histories ----

#[derive(Clone, Debug)]
enum Op {
    Create(u64),
    Run(u64),
    Fail(u64, i32, bool),
    Succeed(u64),
    /// A deletion is requested: a pod that does not run counts as deleted.
    RequestDeletion(u64),
    /// The pod is removed, and the watch shows it.
    Delete(u64),
    /// The pod is removed, and the watch does not show it.
    DeleteUnobserved(u64),
    Label(u64),
    Poll,
    Call,
}

fn op() -> impl Strategy<Value = Op> {
    let id = 1u64..8;
    prop_oneof![
        4 => id.clone().prop_map(Op::Create),
        5 => id.clone().prop_map(Op::Run),
        4 => (id.clone(), prop_oneof![Just(1), Just(137), Just(52)], any::<bool>()).prop_map(|(id, code, reason)| Op::Fail(id, code, reason)),
        2 => id.clone().prop_map(Op::Succeed),
        2 => id.clone().prop_map(Op::RequestDeletion),
        3 => id.clone().prop_map(Op::Delete),
        2 => id.clone().prop_map(Op::DeleteUnobserved),
        1 => id.prop_map(Op::Label),
        1 => Just(Op::Poll),
        4 => Just(Op::Call),
    ]
}

#[derive(Default)]
struct World {
    pods: BTreeMap<u64, PodBuilder>,
    versions: BTreeMap<u64, u32>,
    version: u32,
    used: BTreeSet<u64>,
}

impl World {
    fn change(
        &mut self,
        id: u64,
        model: &mut Model,
        controller: &mut ControllerUnderTest,
        change: impl FnOnce(PodBuilder) -> PodBuilder,
    ) {
        let Some(pod) = self.pods.remove(&id) else { return };
        self.version += 1;
        let mut pod = change(pod);
        pod.0["metadata"]["resourceVersion"] = (self.version + 10).to_string().into();
        self.versions.insert(id, self.version + 10);
        let text = pod.0.to_string();
        let facts = Pod::read_whole(text.as_bytes()).unwrap();
        let state = State::of_pod(&facts);
        let ObservedPod::Executor(_, executor) = pod.observation() else { panic!() };
        model.update(
            id,
            ExecutorState {
                state,
                diagnostics: executor.diagnostics.clone(),
                inactive: executor.inactive,
                deleting: executor.deleting,
                registered: executor.created.unwrap().get().into(),
            },
        );
        controller.apply(PodChange::Observed(pod.observation()));
        self.pods.insert(id, pod);
    }
}

fn exited(mut pod: PodBuilder, phase: &str, code: i32, reason: bool) -> PodBuilder {
    pod.0["status"]["phase"] = phase.into();
    pod.0["status"]["containerStatuses"] = serde_json::json!([{"name": "spark-kubernetes-executor", "image": "spark",
        "state": {"terminated": {"exitCode": code, "reason": "Error", "startedAt": "2026-11-21T00:00:00Z"}}}]);
    if reason {
        pod.0["status"]["reason"] = "Evicted".into();
        pod.0["status"]["message"] = "low on memory".into();
    }
    pod
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn controller_agrees_with_model_of_spark_lifecycle_manager(
        deletes in any::<bool>(), ops in prop::collection::vec(op(), 1..80),
    ) {
        let (mut model, mut world) = (Model::default(), World::default());
        let mut controller = ControllerUnderTest::new(deletes);
        for op in ops {
            let phase = |world: &World, id: u64| world.pods.get(&id).map(|pod| pod.0["status"]["phase"].as_str().unwrap_or_default().to_owned());
            match op {
                Op::Create(id) => {
                    if world.used.insert(id) {
                        let owned = executor(id as u32).owned_by("Pod", "nb-driver", DRIVER_UID);
                        let mut pod = owned.stored(&format!("e{id}")).phase("Pending").label("spark-version", "4.3.0");
                        pod.0["metadata"]["creationTimestamp"] = controller.now().wall.to_string().into();
                        world.pods.insert(id, pod);
                        world.change(id, &mut model, &mut controller, |pod| pod);
                    }
                }
                Op::Run(id) if phase(&world, id).as_deref() == Some("Pending") => {
                    world.change(id, &mut model, &mut controller, |pod| pod.phase("Running"));
                }
                Op::Fail(id, code, reason) if phase(&world, id).as_deref() == Some("Running") => {
                    world.change(id, &mut model, &mut controller, |pod| exited(pod, "Failed", code, reason));
                }
                Op::Succeed(id) if phase(&world, id).as_deref() == Some("Running") => {
                    world.change(id, &mut model, &mut controller, |pod| exited(pod, "Succeeded", 0, false));
                }
                Op::RequestDeletion(id) => world.change(id, &mut model, &mut controller, PodBuilder::deleting),
                Op::Label(id) => {
                    let final_ = matches!(phase(&world, id).as_deref(), Some("Failed" | "Succeeded"));
                    if final_ {
                        // Labelled by spark-usher: a driver that labels one retains all of them.
                        world.change(id, &mut model, &mut controller, |pod| {
                            pod.label("spark-exec-inactive", "true").annotation("spark-usher.io/ended", "error")
                        });
                    }
                }
                Op::Delete(id) => {
                    if world.pods.remove(&id).is_some() {
                        model.remove(id);
                        let key = PodKey::new("default", &format!("nb-exec-{id}"));
                        controller.apply(PodChange::Gone(key, format!("e{id}").into()));
                    }
                }
                Op::DeleteUnobserved(id) => _ = world.pods.remove(&id),
                Op::Poll => {
                    let there: BTreeSet<u64> = world.pods.keys().copied().collect();
                    // A young pod is not missing yet: in Spark because of its age, here because no GET is due.
                    let young = model.now.iter().filter(|(id, seen)| {
                        let age = controller.now().wall.as_second() - seen.registered;
                        !there.contains(id) && age <= DELTA.as_secs() as i64
                    }).map(|(id, _)| *id).collect::<Vec<_>>();
                    if young.is_empty() {
                        model.replace(&there, controller.now().wall.as_second());
                        controller.poll(&there, &world.versions);
                    }
                }
                Op::Call => {
                    let expected = model.call(deletes);
                    let got = controller.call(&model);
                    prop_assert_eq!(got, expected);
                }
                _ => {}
            }
        }
    }
}
