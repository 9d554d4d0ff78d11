//! The edge to the API server: the watches and reads that feed the snapshot, and the writes that plans request.
//!
//! [`event_loop`] is the only writer of the snapshot, in every replica. Writes require a [`lease::Leadership`], which only the
//! lease task creates; the exceptions are the Lease itself and a new signing key.

pub mod account;
pub mod apply;
pub mod certificates;
mod discovery;
pub mod driver_api;
pub mod event_loop;
mod evidence;
mod forbidden;
mod group_refused;
pub mod labelled;
pub mod leader_forward;
pub mod lease;
pub mod list;
pub mod lookup_reads;
mod messages;
pub mod metrics;
pub mod namespace_metrics;
mod pod_poll;
pub mod policies;
pub mod progress;
mod recorder;
mod recovery_checks;
pub mod replica;
mod report;
pub mod signing;
pub mod snapshot_metrics;
pub mod vouching;
mod watch;
