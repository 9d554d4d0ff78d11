//! Listeners with a limit on connections, deadlines on each of them, and a drain at shutdown.

mod accepting;
pub mod capacity;
mod conn;
mod connections;
pub mod metrics;
pub mod server;

pub use connections::Origin;
