//! The true state: the pods of the simulated cluster, all their versions, and the lease.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use usher_core::gang;
use usher_core::lifecycle::checkpoint::Checkpoint;
use usher_core::snapshot::{DriverPod, ObservedPod};
use usher_spark::pod::Pod as Facts;

use super::recovery::Fault;

pub const NAMESPACE: &str = "sim";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A driver's pod with labels.
    Driver,
    /// A pod without labels that a client-mode driver runs in.
    Notebook,
    Executor,
    /// A pod without labels that launched drivers, and that their executors name as their owner.
    Launcher,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub name: String,
    pub uid: String,
    pub version: u64,
    pub role: Role,
    /// The number of its application.
    pub app: usize,
    pub id: u32,
    pub phase: &'static str,
    pub code: Option<i32>,
    pub reason: Option<&'static str>,
    pub finished: Option<Duration>,
    /// The end of the grace period of a requested deletion.
    pub deleting: Option<Duration>,
    pub inactive: bool,
    pub by_usher: bool,
    pub skip: bool,
    pub owner: Option<(String, String)>,
    /// An owner that does not control it.
    pub second_owner: Option<(String, String)>,
    /// Whether `SPARK_DRIVER_URL` has the address of its driver's pod.
    pub has_address: bool,
    /// A container called as the driver's exits again and again, while the driver runs in another one.
    pub restarts: bool,
    pub created: Duration,
    /// When it was first in a final state, deletions of pods that do not run included.
    pub exited: Option<Duration>,
    /// Its driver labelled it.
    pub by_driver: bool,
    /// A client removed its role label: no watch by label shows it any longer.
    pub unlabelled: bool,
    /// What is wrong with it.
    pub fault: Fault,
    /// When it was bound to a node, and when it started.
    pub bound: Option<Duration>,
    pub running: Option<Duration>,
    /// Its Spark container exited, and a sidecar runs on.
    pub lingers: bool,
}

impl Pod {
    pub fn is_finished(&self) -> bool {
        matches!(self.phase, "Failed" | "Succeeded")
    }

    /// Whether its driver counts it as pending or running.
    pub fn is_live(&self) -> bool {
        self.role == Role::Executor && !self.is_finished() && self.deleting.is_none() && !self.inactive
    }

    /// Whether its deletion never ends by itself.
    pub fn terminates_forever(&self) -> bool {
        matches!(self.fault, Fault::NodeLost | Fault::Held)
    }

    /// Whether a watch by label shows it.
    pub fn is_shown(&self) -> bool {
        matches!(self.role, Role::Driver | Role::Executor) && !self.unlabelled
    }

    /// Its address, if another pod needs it.
    pub fn address(&self) -> Option<String> {
        match self.role {
            Role::Driver | Role::Notebook => Some(address_of(self.app)),
            Role::Launcher => Some(format!("10.0.1.{}", self.app + 1)),
            Role::Executor => None,
        }
    }

    fn json(&self, selector: &str) -> Value {
        let text = |at: Duration| wall(at).to_string();
        let mut metadata = json!({
            "name": self.name, "namespace": NAMESPACE, "uid": self.uid, "resourceVersion": self.version.to_string(),
            "creationTimestamp": text(self.created), "labels": {}, "annotations": {},
        });
        if self.is_shown() {
            metadata["labels"]["spark-role"] = if self.role == Role::Driver { "driver" } else { "executor" }.into();
            metadata["labels"]["spark-app-selector"] = selector.into();
            metadata["labels"]["spark-version"] = "4.3.0".into();
        }
        if self.role == Role::Executor {
            metadata["labels"]["spark-exec-id"] = self.id.to_string().into();
        }
        if self.inactive {
            metadata["labels"]["spark-exec-inactive"] = "true".into();
        }
        if self.by_usher {
            metadata["annotations"]["spark-usher.io/ended"] = "x".into();
        }
        if self.skip {
            metadata["annotations"]["spark-usher.io/skip"] = "true".into();
        }
        if let Some(at) = self.deleting {
            metadata["deletionTimestamp"] = text(at).into();
            metadata["deletionGracePeriodSeconds"] = 30.into();
        }
        if let Some((name, uid)) = &self.owner {
            metadata["ownerReferences"] =
                json!([{"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid, "controller": true}]);
        }
        if let (Some((name, uid)), Some(owners)) = (&self.second_owner, metadata["ownerReferences"].as_array_mut()) {
            owners.push(json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}));
        }
        let container =
            if self.role == Role::Executor { "spark-kubernetes-executor" } else { "spark-kubernetes-driver" };
        let mut status = json!({"phase": self.phase});
        if let Some(code) = self.code {
            let finished = text(self.finished.unwrap_or_default());
            status["containerStatuses"] =
                json!([{"name": container, "state": {"terminated": {"exitCode": code, "finishedAt": finished}}}]);
        }
        if let Some(reason) = self.reason {
            status["reason"] = reason.into();
        }
        if let Some(address) = self.address() {
            status["podIP"] = address.into();
        }
        if self.lingers {
            status["containerStatuses"] = json!([{"name": container, "state": {"terminated": {"exitCode": 0}}},
                {"name": "sidecar", "state": {"running": {}}}]);
        }
        if self.fault == Fault::Held {
            metadata["finalizers"] = json!(["example.com/held"]);
        }
        let mut spec = json!({"restartPolicy": "Never", "containers": [{"name": container}]});
        if self.restarts {
            spec["restartPolicy"] = "Always".into();
            status["containerStatuses"] = json!([{"name": container, "state": {"terminated": {"exitCode": 0}}}]);
        }
        if self.has_address {
            let url = format!("spark://CoarseGrainedScheduler@{}:7078", address_of(self.app));
            spec["containers"][0]["env"] = json!([{"name": "SPARK_DRIVER_URL", "value": url}]);
        }
        if self.phase != "Pending" || self.bound.is_some() {
            spec["nodeName"] = "node".into();
        }
        if self.role == Role::Executor && self.owner.is_none() {
            // Its driver is outside the cluster.
            let url = format!("spark://CoarseGrainedScheduler@10.9.{}.{}:7078", self.app, self.id % 8);
            spec["containers"][0]["env"] = json!([{"name": "SPARK_DRIVER_URL", "value": url}]);
        }
        if self.role == Role::Driver {
            spec["volumes"] =
                json!([{"name": "spark-conf-volume-driver", "configMap": {"name": format!("conf-{}", self.app)}}]);
        }
        json!({"metadata": metadata, "spec": spec, "status": status})
    }

    pub fn observation(&self, selector: &str) -> ObservedPod {
        let text = self.json(selector).to_string();
        ObservedPod::of(&Facts::read_whole(text.as_bytes()).unwrap(), gang::scheduling_keys()).unwrap()
    }

    pub fn driver_pod(&self, selector: &str) -> DriverPod {
        let text = self.json(selector).to_string();
        DriverPod::of(&Facts::read_whole(text.as_bytes()).unwrap(), gang::scheduling_keys())
    }
}

fn address_of(app: usize) -> String {
    format!("10.0.0.{}", app + 1)
}

/// The wall clock time at this time of the history.
pub fn wall(at: Duration) -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::try_from(at).unwrap()
}

/// An entry of the API server's log.
#[derive(Clone, Debug)]
pub struct Logged {
    pub version: u64,
    pub name: String,
    /// `None` for a deletion.
    pub pod: Option<Arc<Pod>>,
    pub uid: String,
    /// The object that watches show; `None` for pods without labels.
    pub observation: Option<ObservedPod>,
}

#[derive(Clone, Debug)]
pub struct Lease {
    pub version: u64,
    pub holder: Option<String>,
    pub transitions: i32,
    /// The checkpoint of its holder.
    pub checkpoint: Option<Checkpoint>,
}

#[derive(Default)]
pub struct Truth {
    pub version: u64,
    pub pods: BTreeMap<String, Pod>,
    pub log: Vec<Logged>,
    pub lease: Option<Lease>,
    /// When each executor first was in a final state or deleted, by uid.
    pub exits: BTreeMap<String, Duration>,
    /// Executors that were deleted after no watch showed them: a replica that missed the removal of the label may miss the exit.
    pub removed_unlabelled: BTreeSet<String>,
    pub selectors: Vec<String>,
}

/// The API server's response to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    Done,
    Conflict,
    NotFound,
}

impl Truth {
    pub fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Stores a new or changed pod.
    pub fn put(&mut self, mut pod: Pod, now: Duration) {
        pod.version = self.next_version();
        if pod.role == Role::Executor
            && !pod.unlabelled
            && (pod.is_finished() || (pod.deleting.is_some() && pod.phase == "Pending"))
        {
            pod.exited.get_or_insert(now);
            self.exits.entry(pod.uid.clone()).or_insert(now);
        }
        let (name, uid) = (pod.name.clone(), pod.uid.clone());
        let (shown, observation) = if pod.is_shown() {
            (Some(Arc::new(pod.clone())), Some(pod.observation(&self.selectors[pod.app])))
        } else {
            // A watch by label shows its deletion, with its last labelled state.
            let before = self.pods.get(&name).filter(|before| before.uid == uid && before.is_shown());
            let last = before.map(|before| Pod { version: pod.version, ..before.clone() });
            (None, last.map(|last| last.observation(&self.selectors[pod.app])))
        };
        self.log.push(Logged { version: pod.version, name: name.clone(), pod: shown, uid, observation });
        self.pods.insert(name, pod);
    }

    /// Removes a pod.
    pub fn remove(&mut self, name: &str, now: Duration) {
        let Some(mut pod) = self.pods.remove(name) else { return };
        if pod.role == Role::Executor && pod.unlabelled {
            self.removed_unlabelled.insert(pod.uid.clone());
        } else if pod.role == Role::Executor {
            self.exits.entry(pod.uid.clone()).or_insert(now);
        }
        let version = self.next_version();
        pod.version = version;
        let observation = pod.is_shown().then(|| pod.observation(&self.selectors[pod.app]));
        self.log.push(Logged { version, name: name.to_owned(), pod: None, uid: pod.uid, observation });
    }

    pub fn change(&mut self, name: &str, now: Duration, change: impl FnOnce(&mut Pod)) {
        if let Some(mut pod) = self.pods.get(name).cloned() {
            change(&mut pod);
            self.put(pod, now);
        }
    }

    /// The labelled pods at this version.
    pub fn list_at(&self, version: u64) -> Vec<(Arc<Pod>, ObservedPod)> {
        let mut all = BTreeMap::new();
        for entry in self.log.iter().take_while(|entry| entry.version <= version) {
            match (&entry.pod, &entry.observation) {
                (Some(pod), Some(observation)) => {
                    _ = all.insert(entry.name.clone(), (pod.clone(), observation.clone()))
                }
                _ => _ = all.remove(&entry.name),
            }
        }
        all.into_values().collect()
    }

    /// Requests a deletion: running pods stop after the grace period, others are removed immediately.
    pub fn delete(&mut self, name: &str, grace: Duration, now: Duration) {
        match self.pods.get(name) {
            Some(pod) if (pod.phase == "Running" || pod.terminates_forever()) && !grace.is_zero() => {
                let until = pod.deleting.unwrap_or(now + grace);
                self.change(name, now, |pod| pod.deleting = Some(until));
            }
            Some(_) => self.remove(name, now),
            None => {}
        }
    }

    /// The result of a write with these preconditions.
    pub fn check(&self, name: &str, uid: Option<&str>, version: Option<&str>) -> Answered {
        match self.pods.get(name) {
            None => Answered::NotFound,
            Some(pod) if uid.is_some_and(|uid| uid != pod.uid) => Answered::Conflict,
            Some(pod) if version.is_some_and(|version| version != pod.version.to_string()) => Answered::Conflict,
            Some(_) => Answered::Done,
        }
    }
}
