//! The cost of the controller in a large cluster: one application of 100,000 executors, 100,000 applications of one, and 10,000
//! gangs in one namespace. The longest step is the longest time that the controller's task is busy without a pause, as
//! `cluster::controller` drives it: up to 256 events and one step.
//!
//! ```text
//! cargo bench --bench scale
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::cast_precision_loss,
    reason = "a benchmark prints its results"
)]

#[path = "support/pods.rs"]
mod pods;
#[path = "support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use pods::Recorded;
use serde_json::json;
use spark_usher::controller::{Controller, ExecutorSetKey, LookupResult, PollResult, Settings};
use spark_usher::gang::{self, GangScheduler};
use spark_usher::leader::LeaderState;
use spark_usher::policy::Policies;
use spark_usher::reconcile::Action;
use spark_usher::snapshot::{Change, Group, ObservedPod, Owner, PodChange, RelatedChange, Replaced, ServedApis};
use spark_usher::spark::pod::Pod;
use spark_usher::time::Now;

/// The limit of the longest step.
const LIMIT: Duration = Duration::from_millis(10);
/// The controller's task handles up to this many events before a step.
const AT_ONCE: usize = 256;
/// The interval of steps while events arrive.
const BETWEEN: Duration = Duration::from_millis(10);

struct Cluster {
    controller: Controller,
    policies: Policies,
    began: Instant,
    since: Duration,
    version: usize,
    /// Actions in flight, which finish at the next step.
    acting: Vec<(ExecutorSetKey, Vec<Action>)>,
    /// The time of all steps since the last report.
    spent: Duration,
    longest: Duration,
    actions: usize,
    /// The template of executors that are labelled inactive, and the number of applications.
    inactive: (Recorded, usize),
}

impl Cluster {
    fn new(apps: usize) -> Cluster {
        let began = Instant::now();
        let mut cluster = Cluster {
            controller: Controller::new(began, Settings::default()),
            policies: Policies::default(),
            began,
            since: Duration::ZERO,
            version: 2_000_000,
            acting: Vec::new(),
            spent: Duration::ZERO,
            longest: Duration::ZERO,
            actions: 0,
            inactive: (owned(|pod| pod["metadata"]["labels"]["spark-exec-inactive"] = "true".into()), apps),
        };
        let volcano = GangScheduler::of_kind("volcano").unwrap();
        let now = cluster.now();
        cluster.controller.watch_event(
            Change::Related(RelatedChange::Apis(ServedApis(BTreeMap::from([("volcano", &volcano.apis[0])])))),
            now,
        );
        cluster.controller.watch_event(Change::Related(RelatedChange::Replaced(Replaced::Namespaces(Vec::new()))), now);
        cluster
            .controller
            .watch_event(Change::Related(RelatedChange::Replaced(Replaced::Groups("volcano", Vec::new()))), now);
        cluster
    }

    fn now(&self) -> Now {
        Now { at: self.began + self.since, wall: Timestamp::UNIX_EPOCH + self.since }
    }

    /// Returns the results of a phase and resets them.
    fn figures(&mut self) -> (Duration, Duration, usize) {
        (std::mem::take(&mut self.spent), std::mem::take(&mut self.longest), std::mem::take(&mut self.actions))
    }

    /// What the controller's task does between two waits: handles changes, then steps. Returns after which time it steps again.
    fn step(&mut self, news: impl FnOnce(&mut Controller, Now)) -> Option<Duration> {
        let now = self.now();
        let done = std::mem::take(&mut self.acting);
        let changes: Vec<Change> =
            done.iter().flat_map(|(_, actions)| actions).filter_map(|action| self.written(action)).collect();
        let begin = Instant::now();
        for change in changes {
            self.controller.apply_written(change, now);
        }
        for (set, _) in done {
            self.controller.actions_finished(&set, false, true, now.at);
        }
        news(&mut self.controller, now);
        let effects = self.controller.step(now, &self.policies, LeaderState::Leader);
        black_box((
            self.controller.snapshot().clone(),
            self.controller.exits().history().clone(),
            self.controller.checkpoint(now),
        ));
        let took = begin.elapsed();
        self.spent += took;
        self.longest = self.longest.max(took);
        self.actions += effects.actions.iter().map(|(_, actions)| actions.len()).sum::<usize>();
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
                    owner: owner.clone().map(|owner| Owner::of_pod(owner.name, owner.uid)),
                    started: *started,
                    created: None,
                    deleting: false,
                    phase: None,
                    spec: spec.clone(),
                };
                Some(Change::Related(RelatedChange::Group(key.clone(), group)))
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
            Action::DeleteGroup { key, .. } => Some(Change::Related(RelatedChange::GroupGone(key.clone()))),
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

fn print(name: &str, what: &str, (spent, longest, actions): (Duration, Duration, usize), each: Option<usize>) {
    let verdict = if longest <= LIMIT { "" } else { "  ABOVE THE LIMIT" };
    let each =
        each.map_or_else(String::new, |count| format!("{:>7.2} µs each, ", spent.as_secs_f64() * 1e6 / count as f64));
    println!("{name}: {what:<42} {each}{actions:>6} actions, longest step {longest:>10.2?} (limit {LIMIT:?}){verdict}");
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

struct Scenario {
    name: &'static str,
    apps: usize,
    executors: usize,
    recorded: Recorded,
}

impl Scenario {
    fn executors(&self, phase: &str, version: usize) -> impl Iterator<Item = ObservedPod> {
        (0..self.executors).map(move |number| self.recorded.observation(number, self.apps, phase, version + number))
    }

    fn pods(&self, phase: &str, version: usize) -> Vec<ObservedPod> {
        (0..self.apps).map(driver).chain(self.executors(phase, version)).collect()
    }

    fn run(&self) {
        let (name, count) = (self.name, self.executors);
        let mut cluster = Cluster::new(self.apps);
        cluster.run(Duration::from_secs(1));
        cluster.figures();

        cluster.list(self.pods("Running", 0), "1200000");
        cluster.run(Duration::from_secs(60));
        print(name, "the first list and every plan", cluster.figures(), Some(count));

        // Ten seconds with 1,000 events per second.
        let events: Vec<Change> = (0..10_000)
            .map(|event| {
                let number = event * 7919 % count;
                let phase = if event / count.min(10_000) % 2 == 0 { "Pending" } else { "Running" };
                Change::Pods(PodChange::Observed(self.recorded.observation(number, self.apps, phase, 300_000 + event)))
            })
            .collect();
        let mut events = events.into_iter();
        for _ in 0..1000 {
            let some: Vec<Change> = events.by_ref().take(10).collect();
            cluster.step(|controller, now| some.into_iter().for_each(|change| controller.watch_event(change, now)));
            cluster.since += BETWEEN;
        }
        let figures = cluster.figures();
        println!("{name}: 1,000 events per second use {:.1} % of a core", figures.0.as_secs_f64() * 10.0);
        print(name, "events with their plans", figures, Some(10_000));

        // One event and its plan.
        for event in 0..100 {
            let observation = self.recorded.observation(event * 31 % count, self.apps, "Running", 400_000 + event);
            cluster.step(|controller, now| controller.watch_event(Change::Pods(PodChange::Observed(observation)), now));
            cluster.since += Duration::from_millis(250);
            cluster.step(|_, _| {});
        }
        print(name, "one event and its plan", cluster.figures(), Some(100));

        cluster.run(Duration::from_secs(65));
        print(name, "a minute without events", cluster.figures(), None);

        // The edge adds the pods of a poll one after another, between other events.
        let pods = self.pods("Running", 500_000);
        let mut polled = PollResult::default();
        for pod in &pods {
            let key = pod.key();
            polled.add(cluster.controller.snapshot(), key.namespace(), key.name(), pod.uid(), pod.version());
        }
        let polled = polled.finish("1600000");
        cluster.figures();
        let policies = Policies::default();
        cluster.step(|controller, now| controller.poll_finished(Some(polled), now, &policies));
        cluster.run(Duration::from_secs(1));
        print(name, "a poll in which every pod is newer", cluster.figures(), Some(count));

        cluster.list(pods, "1600000");
        print(name, "a relist of all pods", cluster.figures(), Some(count));

        let all = self.executors("Failed", 600_000).map(PodChange::Observed).map(Change::Pods).collect();
        cluster.feed(all);
        cluster.run(Duration::from_secs(600));
        print(name, "every executor fails, then ten minutes", cluster.figures(), Some(count));

        let gone = self.executors("Failed", 5_000_000).map(PodChange::Deleted).map(Change::Pods).collect();
        cluster.feed(gone);
        cluster.run(Duration::from_secs(700));
        print(name, "every executor is deleted, then ten minutes", cluster.figures(), Some(count));
        println!();
    }
}

fn main() {
    // `cargo test --benches` also runs this program, without a test.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let gang = owned(|pod| {
        pod["spec"]["schedulerName"] = "volcano".into();
        pod["metadata"]["annotations"] =
            json!({"spark-usher.io/by": "default/volcano", "scheduling.k8s.io/group-name": "spark-@driver"});
    });
    for scenario in [
        Scenario { name: "1 × 100,000", apps: 1, executors: 100_000, recorded: owned(|_| {}) },
        Scenario { name: "100,000 × 1", apps: 100_000, executors: 100_000, recorded: owned(|_| {}) },
        Scenario { name: "10,000 gangs", apps: 10_000, executors: 50_000, recorded: gang },
    ] {
        scenario.run();
    }
}
