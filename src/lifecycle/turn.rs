//! What the desk is told at the beginning, what it is answered, and what it wants done.

use std::time::{Duration, Instant};

use super::action::Action;
use super::exit::Exit;
use super::pace::CrewKey;
use super::reads::Read;
use crate::snapshot::{Conf, DriverPod, Listed, Sighting};

/// What is fixed for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// For jitter, so that replicas do not march in step.
    pub seed: u64,
    /// Ends that a replica has noted for so long were told by whoever led, where the Lease has no mark.
    pub takeover: Duration,
    /// For so long after an executor ended the end of its driver is awaited, where it would explain the executor's.
    pub explained_within: Duration,
    /// How long the watch of pods may take to show what a poll has seen, before somebody looks by name.
    pub settle: Duration,
    /// An API server that has not answered the election for so long was away: longer than between two renewals.
    pub quiet: Duration,
    /// A watch of pods that is silent for so long, while a poll shows that something changed, is dead. API servers send a
    /// bookmark a minute.
    pub silence: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 0,
            takeover: Duration::from_secs(15),
            explained_within: Duration::from_secs(5),
            settle: Duration::from_secs(10),
            quiet: Duration::from_secs(15),
            silence: Duration::from_secs(130),
        }
    }
}

/// What a live read answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The labelled pod of that name.
    Sighting(Sighting),
    /// The pod of that name or address.
    Pod(DriverPod),
    /// What the driver's ConfigMap says.
    Conf(Conf),
    /// All pods of that namespace.
    All(Listed),
    /// The API server knows no such object.
    Absent,
    /// It could not be read; try again.
    Failed,
}

/// What is to be done now.
#[derive(Debug, Default)]
pub struct Turn {
    /// Objects to read.
    pub reads: Vec<Read>,
    /// Actions in their order, by whose executors they are for.
    pub actions: Vec<(CrewKey, Vec<Action>)>,
    /// Ends to tell. Only the leader gets any.
    pub exits: Vec<Exit>,
    /// Whether the full truth is to be read now: [`Desk::polled`](super::Desk::polled) takes it.
    pub poll: bool,
    /// Whether the watch of pods has lost something and is to be started again.
    pub rewatch: bool,
    /// When to ask again even if nothing is heard.
    pub wake: Option<Instant>,
}
