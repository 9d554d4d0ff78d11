//! What a process runs on: clocks, randomness, readiness, shutdown, supervised tasks, files that change, limits of the process.

pub mod background;
pub mod clock;
pub mod descriptors;
pub mod files;
pub mod isolated;
pub mod random;
pub mod ready;
pub mod shutdown;
pub mod supervise;
