//! A controller in simulated time, driven as `cluster::event_loop` drives it: up to 128 events and one step, whose longest is the
//! longest time that the controller's task is busy without a pause.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::json;
use usher_core::controller::{Controller, ExecutorSetKey, LookupResult, PollResult, Settings};
use usher_core::gang::{self, GangScheduler};
use usher_core::leader::LeaderState;
use usher_core::planning::Action;
use usher_core::policy::Policies;
use usher_core::snapshot::{Change, Group, ObservedPod, Owner, PodChange, RelatedChange, ServedApis, Watched};
use usher_spark::pod::Pod;
use usher_spark::time::Now;

use crate::pods::Recorded;

/// The controller's task handles up to this many events before a step.
const AT_ONCE: usize = 128;
/// The interval of steps while events arrive.
const BETWEEN: Duration = Duration::from_millis(10);

/// What a step does, measured: returns its number of allocations, where those are counted.
pub(crate) type Measure = fn(&mut dyn FnMut()) -> u64;

/// What steps took and did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) spent: Duration,
    pub(crate) longest: Duration,
    pub(crate) allocations: u64,
    pub(crate) plans: usize,
    pub(crate) lookups: usize,
    pub(crate) actions: usize,
}

pub(crate) struct Cluster {
    controller: Controller,
    policies: Policies,
    began: Instant,
    since: Duration,
    version: usize,
    /// Actions in flight, which finish at the next step.
    acting: Vec<(ExecutorSetKey, Vec<Action>)>,
    measure: Measure,
    /// Since the last report.
    figures: Figures,
    /// The template of executors that are labelled inactive, and the number of applications.
    inactive: (Recorded, usize),
}

impl Cluster {
    fn new(apps: usize, measure: Measure) -> Cluster {
        let began = Instant::now();
        let mut cluster = Cluster {
            controller: Controller::new(began, Settings::default()),
            policies: Policies::default(),
            began,
            since: Duration::ZERO,
            version: 2_000_000,
            acting: Vec::new(),
            measure,
            figures: Figures::default(),
            inactive: (owned(|pod| pod["metadata"]["labels"]["spark-exec-inactive"] = "true".into()), apps),
        };
        let volcano = GangScheduler::of_kind("volcano").unwrap();
        let now = cluster.now();
        cluster
            .controller
            .watch_event(RelatedChange::Apis(ServedApis(BTreeMap::from([("volcano", &volcano.apis[0])]))), now);
        cluster.controller.watch_event(RelatedChange::Namespaces(Watched::Listed(Vec::new())), now);
        cluster.controller.watch_event(RelatedChange::Groups("volcano", Watched::Listed(Vec::new())), now);
        cluster
    }

    fn now(&self) -> Now {
        Now { at: self.began + self.since, wall: Timestamp::UNIX_EPOCH + self.since }
    }

    /// What the controller's task does between two waits: handles changes, then steps. Returns after which time it steps again.
    fn step(&mut self, news: impl FnOnce(&mut Controller, Now)) -> Option<Duration> {
        let now = self.now();
        let done = std::mem::take(&mut self.acting);
        let changes: Vec<Change> =
            done.iter().flat_map(|(_, actions)| actions).filter_map(|action| self.written(action)).collect();
        let mut input = Some((changes, done, news));
        let mut effects = None;
        let Cluster { controller, policies, .. } = self;
        let mut work = || {
            let Some((changes, done, news)) = input.take() else { return };
            for change in changes {
                controller.apply_written(change, now);
            }
            for (set, _) in done {
                controller.actions_finished(&set, false, true, now.at);
            }
            news(controller, now);
            effects = Some(controller.step(now, policies, LeaderState::Leader));
            black_box((
                controller.snapshot().clone(),
                controller.exits().history().clone(),
                controller.checkpoint(now),
            ));
        };
        let begin = Instant::now();
        self.figures.allocations += (self.measure)(&mut work);
        let took = begin.elapsed();
        let effects = effects.unwrap();
        self.figures.spent += took;
        self.figures.longest = self.figures.longest.max(took);
        self.figures.plans += effects.plans;
        self.figures.lookups += effects.lookups.len();
        self.figures.actions += effects.actions.iter().map(|(_, actions)| actions.len()).sum::<usize>();
        self.acting = effects.actions;
        for read in effects.lookups {
            self.controller.lookup_answered(&read, LookupResult::Absent, now);
        }
        let wake = effects.wake_at.map(|wake| wake.saturating_duration_since(now.at));
        if self.acting.is_empty() { wake } else { Some(Duration::ZERO) }
    }

    fn written(&mut self, action: &Action) -> Option<Change> {
        self.version += 1;
        let version: Arc<str> = self.version.to_string().into();
        match action {
            Action::CreateGroup { key, app, spec, owner, started, .. } => {
                let group = Group {
                    uid: format!("g{version}").into(),
                    version,
                    selector: Some(app.selector().into()),
                    owner: owner.clone().map(|owner| Owner::of_pod(owner.key.name().into(), owner.uid)),
                    started: *started,
                    created: None,
                    deleting: false,
                    phase: None,
                    waits: None,
                    spec: spec.clone(),
                };
                Some(Change::Related(RelatedChange::Groups(key.scheduler, Watched::Upserted(key.clone(), group))))
            }
            // The watch shows the label.
            Action::CleanUp { executor, .. } => {
                let mut numbers = executor.name().split('-').filter_map(|part| part.parse::<usize>().ok());
                let (app, id) = (numbers.next().unwrap(), numbers.next_back().unwrap());
                let number = id * self.inactive.1 + app;
                Some(Change::Pods(PodChange::Observed(self.inactive.0.observation(
                    number,
                    self.inactive.1,
                    "Failed",
                    self.version,
                ))))
            }
            Action::DeleteGroup { key, .. } => {
                Some(Change::Related(RelatedChange::Groups(key.scheduler, Watched::Removed(key.clone()))))
            }
            _ => None,
        }
    }

    /// Steps for this time, whenever a step is due.
    fn run(&mut self, time: Duration) {
        let until = self.since + time;
        while self.since < until {
            let wait = self.step(|_, _| {}).unwrap_or(time);
            self.since = (self.since + wait.max(Duration::from_millis(1))).min(until);
        }
    }

    /// Feeds changes as fast as the controller accepts them.
    fn feed(&mut self, changes: Vec<Change>) {
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let some: Vec<Change> = changes.by_ref().take(AT_ONCE).collect();
            self.step(|controller, now| some.into_iter().for_each(|change| controller.watch_event(change, now)));
            self.since += Duration::from_millis(1);
        }
    }

    fn list(&mut self, pods: Vec<ObservedPod>, version: &str) {
        // As `cluster::watch` reads a list, 256 pods at a time.
        self.step(Controller::list_started);
        let mut pods = pods.into_iter().peekable();
        while pods.peek().is_some() {
            let some: Vec<ObservedPod> = pods.by_ref().take(256).collect();
            self.step(|controller, now| controller.list_page(some, now));
            self.since += Duration::from_millis(1);
        }
        self.step(|controller, now| {
            controller.list_finished(now);
            controller.bookmark(version, now);
        });
        self.run(Duration::from_secs(2));
    }
}

/// Executors whose owner is the pod `driver-APP`.
fn owned(change: impl FnOnce(&mut serde_json::Value)) -> Recorded {
    Recorded::with(|pod| {
        pod["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": "@driver", "uid": "uid-@driver", "controller": true}]);
        change(pod);
    })
}

/// The driver of an application.
fn driver(app: usize) -> ObservedPod {
    let pod = json!({
        "metadata": {"name": format!("driver-{app:05}"), "namespace": "default", "uid": format!("uid-driver-{app:05}"),
            "resourceVersion": "1000", "labels": {"spark-role": "driver",
            "spark-app-selector": format!("spark-5ce218ea51d24d51bcb1500360d{app:05}")}},
        "spec": {"containers": [{"name": "spark-kubernetes-driver"}]},
        "status": {"phase": "Running"}});
    ObservedPod::of(&Pod::read_whole(pod.to_string().as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
}

/// Applications with executors of one kind.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) apps: usize,
    pub(crate) executors: usize,
    recorded: Recorded,
}

impl Scenario {
    /// Executors that their driver's pod owns.
    pub(crate) fn owned(name: &'static str, apps: usize, executors: usize) -> Scenario {
        Scenario { name, apps, executors, recorded: owned(|_| {}) }
    }

    /// Executors in gangs of Volcano.
    pub(crate) fn gangs(name: &'static str, apps: usize, executors: usize) -> Scenario {
        let recorded = owned(|pod| {
            pod["spec"]["schedulerName"] = "volcano".into();
            pod["metadata"]["annotations"] =
                json!({"spark-usher.io/by": "default/volcano", "scheduling.k8s.io/group-name": "spark-@driver"});
        });
        Scenario { name, apps, executors, recorded }
    }

    fn executors(&self, phase: &str, version: usize) -> impl Iterator<Item = ObservedPod> {
        (0..self.executors).map(move |number| self.recorded.observation(number, self.apps, phase, version + number))
    }

    fn pods(&self, phase: &str, version: usize) -> Vec<ObservedPod> {
        (0..self.apps).map(driver).chain(self.executors(phase, version)).collect()
    }

    /// Runs all phases, and reports each: what it did, what that took, and of how many events or pods.
    pub(crate) fn run(&self, measure: Measure, mut report: impl FnMut(&'static str, Figures, Option<usize>)) {
        let count = self.executors;
        let mut cluster = Cluster::new(self.apps, measure);
        cluster.run(Duration::from_secs(1));
        cluster.figures = Figures::default();
        let mut ended = |cluster: &mut Cluster, what, each| report(what, std::mem::take(&mut cluster.figures), each);

        cluster.list(self.pods("Running", 0), "1200000");
        cluster.run(Duration::from_secs(60));
        ended(&mut cluster, "the first list and every plan", Some(count));

        // Ten seconds with 1,000 events per second.
        for burst in 0..1000 {
            let event = |event: usize| {
                let number = event * 7919 % count;
                let phase = if (event / count.min(10_000)).is_multiple_of(2) { "Pending" } else { "Running" };
                Change::Pods(PodChange::Observed(self.recorded.observation(number, self.apps, phase, 300_000 + event)))
            };
            let some: Vec<Change> = (burst * 10..burst * 10 + 10).map(event).collect();
            cluster.step(|controller, now| some.into_iter().for_each(|change| controller.watch_event(change, now)));
            cluster.since += BETWEEN;
        }
        ended(&mut cluster, "1,000 events per second and their plans", Some(10_000));

        for event in 0..100 {
            let observation = self.recorded.observation(event * 31 % count, self.apps, "Running", 400_000 + event);
            cluster.step(|controller, now| controller.watch_event(PodChange::Observed(observation), now));
            cluster.since += Duration::from_millis(250);
            cluster.step(|_, _| {});
        }
        ended(&mut cluster, "one event and its plan", Some(100));

        cluster.run(Duration::from_secs(65));
        ended(&mut cluster, "a minute without events", None);

        // The edge adds the pods of a poll one after another, between other events.
        let pods = self.pods("Running", 500_000);
        let mut polled = PollResult::default();
        for pod in &pods {
            let key = pod.key();
            polled.add(cluster.controller.snapshot(), key.namespace(), key.name(), pod.uid(), pod.version());
        }
        let polled = polled.finish("1600000");
        let policies = Policies::default();
        cluster.step(|controller, now| controller.poll_finished(Some(polled), now, &policies));
        cluster.run(Duration::from_secs(1));
        ended(&mut cluster, "a poll in which every pod is newer", Some(count));

        cluster.list(pods, "1600000");
        ended(&mut cluster, "a relist of all pods", Some(count));

        let all = self.executors("Failed", 600_000).map(PodChange::Observed).map(Change::Pods).collect();
        cluster.feed(all);
        cluster.run(Duration::from_secs(600));
        ended(&mut cluster, "every executor fails, then ten minutes", Some(count));

        let gone = self.executors("Failed", 5_000_000).map(PodChange::Deleted).map(Change::Pods).collect();
        cluster.feed(gone);
        cluster.run(Duration::from_secs(700));
        ended(&mut cluster, "every executor is deleted, then ten minutes", Some(count));
    }
}
