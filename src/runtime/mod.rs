//! The machine room: clocks, readiness, shutdown, supervised tasks, files that change.

pub mod clock;
pub mod files;
pub mod random;
pub mod ready;
pub mod shutdown;
pub mod supervise;
