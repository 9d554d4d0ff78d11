//! A simulation of complete replicas: the product's own watches, election, controller and writes run on one thread, with a paused
//! clock, against the sandbox's API without sockets. A seed is one history, which replays.

pub mod apps;
pub mod cluster;
pub mod connection;
pub mod faults;
pub mod invariants;
pub mod log;
pub mod replica;
pub mod run;
