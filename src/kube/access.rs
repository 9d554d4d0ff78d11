//! How a client reaches the API server when it submits an application.

use std::time::Duration;

/// The settings of the client that submits. Files are paths of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// A context of the kubeconfig.
    pub context: Option<String>,
    /// Text of a bearer token, sent as it stands.
    pub token: Option<String>,
    pub token_file: Option<String>,
    /// A file with the certificates of the CA.
    pub ca_file: Option<String>,
    /// The client's key and its certificate.
    pub key_file: Option<String>,
    pub certificate_file: Option<String>,
    /// Whether any certificate is trusted.
    pub trusts_all: bool,
    /// Timeout of a connection.
    pub connect_timeout: Option<Duration>,
}

/// Whether a token can be part of a header.
pub fn is_header(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Access {
    /// Whether it has credentials, so that no kubeconfig is needed.
    pub(crate) fn has_credentials(&self) -> bool {
        self.token.is_some() || self.token_file.is_some() || self.certificate_file.is_some()
    }
}
