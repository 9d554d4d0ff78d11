//! How a submission reaches the API server (`SparkKubernetesClientFactory`, `Config.scala`).

use std::time::Duration;

use super::conf::SparkConf;
use super::error::{Result, SubmitError, require};

const PREFIX: &str = "spark.kubernetes.authenticate.submission.";
/// In milliseconds.
const CONNECT_TIMEOUT: &str = "spark.kubernetes.submission.connectionTimeout";

/// The settings of the client that submits. Files are paths of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The context of the kubeconfig.
    pub context: Option<String>,
    /// A bearer token.
    pub token: Option<String>,
    /// A file with one.
    pub token_file: Option<String>,
    /// A file with the certificates of the CA.
    pub ca_file: Option<String>,
    /// A file with the client's key,
    pub key_file: Option<String>,
    /// and one with its certificate.
    pub certificate_file: Option<String>,
    /// Whether any certificate is trusted.
    pub trusts_all: bool,
    /// Timeout of a connection.
    pub connect_timeout: Option<Duration>,
}

/// Whether a token can be part of a header.
pub(crate) fn is_header(token: &str) -> bool {
    !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())
}

impl Access {
    /// Reads them.
    pub fn of(conf: &SparkConf) -> Result<Access> {
        let own = |key: &str| conf.get(&format!("{PREFIX}{key}")).map(str::to_owned);
        let (token, token_file) = (own("oauthToken"), own("oauthTokenFile"));
        require(token.is_none() || token_file.is_none(), || {
            format!(
                "Cannot specify OAuth token through both a file {PREFIX}oauthTokenFile and a value {PREFIX}oauthToken."
            )
        })?;
        require(token.as_ref().is_none_or(|token| is_header(token)), || {
            format!("expected a token of visible ASCII characters in {PREFIX}oauthToken")
        })?;
        let millis = conf.integer(CONNECT_TIMEOUT)?.map(u64::try_from).transpose();
        let millis = millis.map_err(|_| SubmitError::expected(&format!("milliseconds in {CONNECT_TIMEOUT}")))?;
        Ok(Access {
            context: conf.get("spark.kubernetes.context").map(str::to_owned).filter(|context| !context.is_empty()),
            token,
            token_file,
            ca_file: own("caCertFile"),
            key_file: own("clientKeyFile"),
            certificate_file: own("clientCertFile"),
            trusts_all: conf.boolean("spark.kubernetes.trust.certificates")?.unwrap_or(false),
            connect_timeout: millis.filter(|millis| *millis > 0).map(Duration::from_millis),
        })
    }

    /// Whether it has credentials, so that no kubeconfig is needed.
    pub fn has_credentials(&self) -> bool {
        self.token.is_some() || self.token_file.is_some() || self.certificate_file.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Access> {
        Access::of(&pairs.iter().copied().collect())
    }

    #[test]
    fn settings_of_the_client_are_read() {
        assert_eq!(of(&[]).unwrap(), Access::default());
        let access = of(&[
            ("spark.kubernetes.context", "prod"),
            ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/t"),
            ("spark.kubernetes.authenticate.submission.caCertFile", "/ca"),
            ("spark.kubernetes.trust.certificates", "true"),
            ("spark.kubernetes.submission.connectionTimeout", "60000"),
        ]);
        let expected = Access {
            context: Some("prod".to_owned()),
            token_file: Some("/t".to_owned()),
            ca_file: Some("/ca".to_owned()),
            trusts_all: true,
            connect_timeout: Some(Duration::from_secs(60)),
            ..Access::default()
        };
        assert_eq!(access.unwrap(), expected);
    }

    #[test]
    fn token_has_one_source() {
        let both = of(&[
            ("spark.kubernetes.authenticate.submission.oauthToken", "t"),
            ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/t"),
        ]);
        assert!(both.unwrap_err().to_string().starts_with("Cannot specify OAuth token through both a file"), "");
        let bad = of(&[("spark.kubernetes.authenticate.submission.oauthToken", "a\u{1}b")]).unwrap_err().to_string();
        assert!(bad.contains("oauthToken") && !bad.contains("a\u{1}b"), "{bad}");
        assert!(of(&[(CONNECT_TIMEOUT, "-1")]).is_err());
    }
}
