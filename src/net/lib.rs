//! What every server of this program needs, whatever it serves: its clocks and tasks ([`runtime`]), logs and metrics ([`telemetry`]),
//! certificates ([`tls`]), and listeners that no client can occupy ([`listener`]).

pub mod listener;
pub mod runtime;
pub mod telemetry;
pub mod tls;
