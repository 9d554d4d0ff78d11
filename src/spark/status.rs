//! `status` of a pod: phase, conditions, and the states of its containers.

use serde::Deserialize;

use super::wire_text::{Text, null_is_empty};

/// `status` of a pod.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status<'a> {
    /// `Pending`, `Running`, `Succeeded`, `Failed`, `Unknown`.
    #[serde(borrow)]
    pub phase: Option<Text<'a>>,
    /// One word from the component that stopped the pod: `Evicted`, `NodeLost`, `OutOfcpu` …
    #[serde(default)]
    pub reason: Option<Text<'a>>,
    /// The same for people.
    #[serde(default)]
    pub message: Option<Text<'a>>,
    /// When the kubelet accepted or rejected the pod.
    #[serde(default)]
    pub start_time: Option<Text<'a>>,
    /// The pod's address.
    #[serde(rename = "podIP")]
    pub pod_ip: Option<Text<'a>>,
    /// `PodScheduled`, `DisruptionTarget` …
    #[serde(default, deserialize_with = "null_is_empty")]
    pub conditions: Vec<Condition<'a>>,
    /// One entry per init container that the kubelet knows.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub init_container_statuses: Vec<ContainerStatus<'a>>,
    /// One entry per container that the kubelet knows.
    #[serde(default, deserialize_with = "null_is_empty")]
    pub container_statuses: Vec<ContainerStatus<'a>>,
}

/// One entry of `status.conditions`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition<'a> {
    /// Its type.
    #[serde(borrow, default, rename = "type")]
    pub kind: Text<'a>,
    /// `True`, `False` or `Unknown`.
    #[serde(default)]
    pub status: Text<'a>,
    /// One word.
    #[serde(default)]
    pub reason: Option<Text<'a>>,
    /// For people.
    #[serde(default)]
    pub message: Option<Text<'a>>,
    /// Since when it has this status.
    #[serde(default)]
    pub last_transition_time: Option<Text<'a>>,
}

/// One entry of `status.containerStatuses`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerStatus<'a> {
    /// The container's name.
    #[serde(borrow, default)]
    pub name: Text<'a>,
    /// The image as it was resolved.
    #[serde(default)]
    pub image: Option<Text<'a>>,
    /// Its current state.
    #[serde(default)]
    pub state: Option<ContainerState<'a>>,
    /// Its state before the last restart.
    #[serde(default)]
    pub last_state: Option<ContainerState<'a>>,
    /// How often it was restarted.
    #[serde(default)]
    pub restart_count: i32,
    /// Whether it runs and has passed its startup probe, or has none.
    #[serde(default)]
    pub started: Option<bool>,
}

impl<'a> ContainerStatus<'a> {
    /// How it exited, if it has.
    pub fn terminated(&self) -> Option<&Terminated<'a>> {
        self.state.as_ref()?.terminated.as_ref()
    }
}

/// `state` of a container: at most one of the three.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct ContainerState<'a> {
    /// It has not started.
    #[serde(borrow, default)]
    pub waiting: Option<Waiting<'a>>,
    /// It runs.
    #[serde(default)]
    pub running: Option<Running<'a>>,
    /// It exited.
    #[serde(default)]
    pub terminated: Option<Terminated<'a>>,
}

/// A container that waits.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Waiting<'a> {
    /// `ContainerCreating`, `ImagePullBackOff` …
    #[serde(borrow, default)]
    pub reason: Option<Text<'a>>,
    /// For people.
    #[serde(default)]
    pub message: Option<Text<'a>>,
}

/// A container that runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Running<'a> {
    /// Since when.
    #[serde(borrow, default)]
    pub started_at: Option<Text<'a>>,
}

/// How a container exited.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Terminated<'a> {
    #[serde(default)]
    pub exit_code: i32,
    /// `Completed`, `Error`, `OOMKilled`, `ContainerCannotRun` …
    #[serde(borrow, default)]
    pub reason: Option<Text<'a>>,
    /// For people.
    #[serde(default)]
    pub message: Option<Text<'a>>,
    /// When it started.
    #[serde(default)]
    pub started_at: Option<Text<'a>>,
    /// When it exited.
    #[serde(default)]
    pub finished_at: Option<Text<'a>>,
}
