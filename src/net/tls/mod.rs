//! Certificates: read and validated, reloaded by content, or generated.

pub mod ca;
pub mod clients;
pub mod load;
pub mod rotation;
pub mod serving;

/// Installs ring as the TLS provider of the process. Called first in `main` and in tests.
pub fn install_provider() {
    // An error means that a provider is installed already, which can only be ring (see deny.toml).
    let _ = rustls::crypto::ring::default_provider().install_default();
}
