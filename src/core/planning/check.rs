//! What is verified before a recovery rule's deletion.

use std::sync::Arc;

use crate::drivers::DriverPoll;
use usher_spark::ids::PodIdentity;

/// What is verified again immediately before a pod is deleted.
#[derive(Clone, Debug, PartialEq)]
pub enum Check {
    /// The uid and resourceVersion of the pod: nothing else can have changed.
    Version,
    /// The executors of the application are listed: none may be pending or running. The driver is polled again: it must answer, and none may be registered with it.
    NoExecutors(Box<DriverPoll>),
    /// The driver is polled again: the executor of this id must not be registered.
    NotRegistered(Box<DriverPoll>, u64),
    /// This pod is read again, by name: it must not exist with this uid, or must have exited. So are all other pods that may be the
    /// driver ([`Witnesses`](crate::ownership::contradiction::Witnesses)).
    DriverGone(PodIdentity),
    /// This node is read again: it must not exist. The pod is deleted without a grace period.
    NodeGone(Arc<str>),
}

impl Check {
    /// What only mode `act` checks, for people: empty, or a clause that begins with a space.
    pub fn condition(&self) -> &'static str {
        match self {
            Check::NodeGone(_) => " if its node no longer exists",
            Check::Version | Check::NoExecutors(_) | Check::NotRegistered(..) | Check::DriverGone(..) => "",
        }
    }

    /// Why the pod is not deleted if the check fails, for people: a clause after "because".
    pub fn failure(&self) -> &'static str {
        match self {
            Check::Version => "it changed meanwhile",
            Check::NoExecutors(_) => {
                "an executor of the application exists, or its driver, polled once more, did not answer"
            }
            Check::NotRegistered(..) => "its driver, polled once more, did not confirm that it is not registered",
            Check::DriverGone(..) => {
                "its driver's pod, or another pod that may be its driver, has not exited or cannot be read"
            }
            Check::NodeGone(_) => "its node exists",
        }
    }
}
