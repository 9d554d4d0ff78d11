//! Certificates: read and checked, reloaded by content, or self-made.

pub mod ca;
pub mod clients;
pub mod load;
pub mod rotation;
pub mod serving;

/// Makes ring the process's TLS provider. Called once, first thing in `main` and in tests.
pub fn install_provider() {
    // An error means that somebody installed one already, which can only be ring (see deny.toml).
    let _ = rustls::crypto::ring::default_provider().install_default();
}
