//! Nodes that refuse or break executors.
//!
//! A node is suspect after different executors of several applications failed on it, each by something that the node does and
//! no application: a refusal by its kubelet, a container that its runtime cannot create, a shortage of its own memory. Every replica
//! derives the same from what its watch shows ([`NodeLedger`]), so that every replica's webhook can avoid the node.

mod fault;
mod ledger;

pub use fault::{FaultKind, NodeFault};
pub use ledger::{MAX_FAULTS, NodeLedger, NodeRecord, Running, Suspicion};
