//! The edge towards the API server: watches and reads that feed the snapshot, and the writes that plans ask for.
//!
//! [`reconcile`] is the only writer of the snapshot; every replica runs it. Writes need a [`lease::Leadership`], which
//! only the lease task hands out.

pub mod account;
pub mod apply;
pub mod certificates;
pub mod client;
mod discovery;
mod events;
mod forbidden;
pub mod lease;
pub mod limit;
pub mod picture;
pub mod policies;
mod poll;
mod reads;
mod recent;
pub mod reconcile;
pub mod registration;
pub mod replica;
mod report;
pub mod rights;
pub mod signing;
mod stream;
pub mod view;
mod watch;
