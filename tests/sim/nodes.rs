//! Histories of a cluster in which some nodes refuse executors and one application is broken: only those nodes become suspect, on
//! every replica, no more of them are avoided than the cap allows, and every suspicion ends.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::controller_harness::ControllerHarness;
use crate::support::rng::Rng;
use crate::support::*;
use serde_json::{Value, json};
use usher_core::leader::LeaderState;
use usher_core::policy::{Finished, NodeSettings};
use usher_core::snapshot::{Change, Node, ObservedPod, PodChange, RelatedChange, Watched};

const NODES: u64 = 50;
const APPS: u64 = 12;
const EXECUTORS: usize = 4;
/// Applications below this number are broken: their executors fail wherever they are.
const BROKEN: u64 = 2;
/// The application that some nodes refuse.
const PICKY: u64 = 2;
/// On nodes below this number executors fail by the node, but rarely: not twice within the window.
const RARE: u64 = 6;

struct Executor {
    app: u64,
    node: u64,
    pod: PodBuilder,
    /// When it starts or fails, and when it is gone.
    next: u64,
    /// What happens then.
    then: Then,
}

#[derive(Clone, Copy, PartialEq)]
enum Then {
    Start,
    End,
    Remove,
}

struct Replica {
    harness: ControllerHarness,
    /// Changes that its watch has not shown yet.
    late: Vec<(u64, Change)>,
    /// When it started.
    since: u64,
}

struct History {
    rng: Rng,
    settings: NodeSettings,
    /// The nodes that refuse executors, and until when.
    bad: BTreeMap<u64, u64>,
    replicas: Vec<Replica>,
    executors: Vec<Executor>,
    created: u64,
    version: u64,
    now: u64,
    /// The last refusal on each node, and the refusals of late: time and application.
    refusals: BTreeMap<u64, Vec<(u64, u64)>>,
    /// The last rare failure on each node.
    rare: BTreeMap<u64, u64>,
}

fn name(node: u64) -> String {
    format!("node-{node}")
}

fn nodes() -> Change {
    let node = |number| Node {
        uid: name(number).into(),
        kubelet: "v1.31.4".into(),
        ready: true,
        cordoned: false,
        allocatable: Default::default(),
        labels: [].into(),
    };
    let all = (0..NODES).map(|number| (name(number).into(), node(number))).collect();
    Change::Related(RelatedChange::Nodes(Watched::Listed(all)))
}

impl History {
    fn new(seed: u64, bad: u64) -> History {
        let mut rng = Rng::new(seed);
        let settings = NodeSettings { avoid: true, ..NodeSettings::default() };
        let mut chosen = BTreeMap::new();
        while (chosen.len() as u64) < bad {
            chosen.insert(rng.below(NODES), 2000 + rng.below(600));
        }
        let mut history = History {
            rng,
            settings,
            bad: chosen,
            replicas: Vec::new(),
            executors: Vec::new(),
            created: 0,
            version: 100,
            now: 0,
            refusals: BTreeMap::new(),
            rare: BTreeMap::new(),
        };
        for number in 0..2 {
            let replica = history.replica(number);
            history.replicas.push(replica);
        }
        history
    }

    /// A replica that starts now: it lists the pods that exist.
    fn replica(&self, number: usize) -> Replica {
        let mut harness = ControllerHarness::new(Finished::Report);
        harness.policies = harness.policies.clone().with_nodes(self.settings);
        harness.leader_state = if number == 0 { LeaderState::Leader } else { LeaderState::Follower };
        harness.since = std::time::Duration::from_secs(self.now);
        harness.apply(nodes());
        let all: Vec<ObservedPod> = self.executors.iter().map(|executor| executor.pod.observation()).collect();
        harness.apply(PodChange::Listed(all));
        Replica { harness, late: Vec::new(), since: self.now }
    }

    fn is_bad(&self, node: u64) -> bool {
        self.bad.get(&node).is_some_and(|until| (600..*until).contains(&self.now))
    }

    /// A pod changes; each replica's watch shows that soon.
    fn observe(&mut self, at: usize, status: Value) {
        self.version += 1;
        let pod = &mut self.executors[at].pod;
        pod.0["status"] = status;
        pod.0["metadata"]["resourceVersion"] = self.version.to_string().into();
        let change = Change::Pods(PodChange::Observed(pod.observation()));
        self.send(&change);
    }

    fn send(&mut self, change: &Change) {
        for replica in &mut self.replicas {
            let last = replica.late.last().map_or(0, |(at, _)| *at);
            let at = (self.now + self.rng.below(3)).max(last);
            replica.late.push((at, change.clone()));
        }
    }

    /// The scheduler places an executor on any node that it does not avoid.
    fn create(&mut self, app: u64) {
        let webhook = self.rng.below(self.replicas.len() as u64) as usize;
        let avoided = self.replicas[webhook].harness.controller.snapshot().avoided_nodes.clone();
        let mut node = self.rng.below(NODES);
        // A node that refuses pods looks free.
        if self.rng.chance(10) {
            let bad: Vec<u64> = self.bad.keys().copied().collect();
            node = bad[self.rng.below(bad.len() as u64) as usize];
        }
        if app == PICKY && self.rng.chance(30) {
            node = 7;
        }
        while avoided.contains(&*name(node)) {
            node = self.rng.below(NODES);
        }
        self.created += 1;
        let pod_name = format!("app-{app}-exec-{}", self.created);
        let pod = pod(&pod_name)
            .executor_of(&format!("app-{app}"), self.created as u32)
            .stored(&pod_name)
            .spec("nodeName", name(node));
        let next = self.now + 1 + self.rng.below(5);
        self.executors.push(Executor { app, node, pod, next, then: Then::Start });
        self.observe(self.executors.len() - 1, json!({"phase": "Pending"}));
    }

    fn act(&mut self) {
        for app in 0..APPS {
            let live = self.executors.iter().filter(|of| of.app == app && of.then != Then::Remove).count();
            // A broken application that was refused again and again waits a little.
            if live < EXECUTORS && self.rng.chance(if app < BROKEN { 20 } else { 5 }) {
                self.create(app);
            }
        }
        let due: Vec<usize> = (0..self.executors.len()).filter(|at| self.executors[*at].next <= self.now).collect();
        for at in due.into_iter().rev() {
            let Executor { app, node, then, .. } = self.executors[at];
            let ended = |code: u32, reason: &str| {
                json!({"phase": "Failed", "containerStatuses": [{"name": "main",
                    "state": {"terminated": {"exitCode": code, "reason": reason}}}]})
            };
            match then {
                Then::Start if self.is_bad(node) => {
                    // What broken applications say proves nothing.
                    if app >= BROKEN {
                        self.refusals.entry(node).or_default().push((self.now, app));
                    }
                    self.observe(at, json!({"phase": "Failed", "reason": "OutOfcpu", "message": "Pod was rejected"}));
                    (self.executors[at].then, self.executors[at].next) = (Then::Remove, self.now + self.rng.below(30));
                }
                // This application alone requests what some nodes lack.
                Then::Start if app == PICKY && node % 10 == 7 => {
                    let reason = "OutOfhugepages-2Mi";
                    self.observe(at, json!({"phase": "Failed", "reason": reason, "message": "Pod was rejected"}));
                    (self.executors[at].then, self.executors[at].next) = (Then::Remove, self.now + self.rng.below(30));
                }
                Then::Start if app < BROKEN => {
                    // The first one requests what no kubelet has; nothing else is known to be its own doing.
                    let status = match if app == 0 { 3 } else { self.rng.below(3) } {
                        3 => json!({"phase": "Failed", "reason": "OutOfexample.com/x", "message": "Pod was rejected"}),
                        0 => {
                            json!({"phase": "Failed", "reason": "TopologyAffinityError", "message": "Resources cannot be allocated"})
                        }
                        1 => json!({"phase": "Pending", "containerStatuses": [{"name": "main", "image": "i",
                            "state": {"waiting": {"reason": "CreateContainerError", "message": "context deadline exceeded"}}}]}),
                        _ => ended(137, "Error"),
                    };
                    self.observe(at, status);
                    (self.executors[at].then, self.executors[at].next) = (Then::Remove, self.now + self.rng.below(60));
                }
                Then::Start => {
                    self.observe(at, json!({"phase": "Running"}));
                    (self.executors[at].then, self.executors[at].next) =
                        (Then::End, self.now + 60 + self.rng.below(600));
                }
                Then::End => {
                    // Its own memory limit, its own error, or its work is done.
                    let rare = self.rare.get(&node).is_none_or(|at| at + 1900 < self.now);
                    let status = match self.rng.below(3) {
                        _ if node < RARE && rare && !self.bad.contains_key(&node) => {
                            self.rare.insert(node, self.now);
                            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."})
                        }
                        0 => ended(137, "OOMKilled"),
                        1 => ended(1, "Error"),
                        _ => json!({"phase": "Succeeded"}),
                    };
                    self.observe(at, status);
                    (self.executors[at].then, self.executors[at].next) = (Then::Remove, self.now + self.rng.below(30));
                }
                Then::Remove => {
                    let gone = self.executors.swap_remove(at);
                    self.send(&Change::Pods(PodChange::Deleted(gone.pod.observation())));
                }
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        if self.rng.once_in(4000) {
            let number = self.rng.below(2) as usize;
            self.replicas[number] = self.replica(number);
        }
        self.act();
        for replica in &mut self.replicas {
            let later = replica.late.iter().position(|(at, _)| *at > self.now).unwrap_or(replica.late.len());
            for (_, change) in replica.late.drain(..later) {
                replica.harness.apply(change);
            }
            replica.harness.step_after(1);
        }
        self.check();
    }

    fn check(&self) {
        let cap = self.settings.max_avoided(NODES as usize);
        let bad: BTreeSet<String> = self.bad.keys().map(|node| name(*node)).collect();
        for replica in &self.replicas {
            let controller = &replica.harness.controller;
            let suspects: BTreeSet<String> = controller.nodes().suspects().map(|(node, _)| node.to_string()).collect();
            assert!(suspects.is_subset(&bad), "at {}: {suspects:?} are suspect, and only {bad:?} are bad", self.now);
            let avoided: BTreeSet<String> =
                controller.snapshot().avoided_nodes.iter().map(|node| node.to_string()).collect();
            assert!(avoided.is_subset(&suspects) && avoided.len() <= cap, "at {}: {avoided:?}", self.now);
            for (node, refusals) in &self.refusals {
                let last = refusals.iter().map(|(at, _)| *at).max().unwrap();
                let knows: Vec<&(u64, u64)> =
                    refusals.iter().filter(|(at, _)| *at >= replica.since && *at + 1700 >= self.now).collect();
                let apps: BTreeSet<u64> = knows.iter().map(|(_, app)| *app).collect();
                let is_due = knows.len() >= 3 && apps.len() >= 2 && last + 10 <= self.now;
                let name = name(*node);
                assert!(!is_due || suspects.contains(&name), "at {}: {name} is not suspect: {knows:?}", self.now);
                assert!(
                    last + 3660 >= self.now || !suspects.contains(&name),
                    "at {}: {name} is still suspect",
                    self.now
                );
            }
        }
    }

    fn run(seed: u64, bad: u64) -> u64 {
        let mut history = History::new(seed, bad);
        let mut suspected = 0;
        while history.now < 6_300 {
            history.step();
            suspected = suspected.max(history.replicas[0].harness.controller.nodes().suspects().count() as u64);
        }
        assert!(history.replicas.iter().all(|replica| replica.harness.controller.nodes().suspects().next().is_none()));
        suspected
    }
}

#[test]
fn only_bad_nodes_are_suspect_and_every_suspicion_ends() {
    for seed in 0..2 {
        assert_eq!(History::run(seed, 1), 1, "seed {seed}: the bad node was never suspect");
        assert!(History::run(seed, 6) >= 4, "seed {seed}: most bad nodes are found");
    }
}

/// A history of several bad nodes, or of one.
pub fn check(seed: u64) {
    let bad = if seed.is_multiple_of(2) { 6 } else { 1 };
    assert!(History::run(seed, bad) >= 1, "no bad node was ever suspect");
}
