//! A simulation of complete replicas: the product's own watches, election, controller and writes run on one thread, with a paused
//! clock, against the sandbox's API without sockets. A seed is one history, which replays.

pub mod apps;
pub mod judge;
pub mod line;
pub mod replica;
mod run;
pub mod told;
pub mod trouble;
pub mod world;
