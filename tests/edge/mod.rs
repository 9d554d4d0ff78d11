//! A simulation of whole replicas: the product's own watches, election, loop and writes run on one thread, with a paused
//! clock, against the sandbox's API without sockets.

pub mod line;
pub mod told;
pub mod world;
