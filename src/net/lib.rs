//! What every server of this program needs, whatever it serves: logs and metrics ([`telemetry`]), certificates ([`tls`]), and listeners
//! that no client can occupy ([`listener`]).

pub mod listener;
pub mod telemetry;
pub mod tls;
