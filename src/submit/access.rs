//! How a submission reaches the API server (`SparkKubernetesClientFactory`, `Config.scala`).

use std::time::Duration;

use super::conf::SparkConf;
use super::error::{Result, SubmitError, require};
use usher_kube::access::{Access, is_header};

const PREFIX: &str = "spark.kubernetes.authenticate.submission.";
/// In milliseconds.
const CONNECT_TIMEOUT: &str = "spark.kubernetes.submission.connectionTimeout";

/// Reads the settings of the client that submits.
pub fn access(conf: &SparkConf) -> Result<Access> {
    let setting = |key: &str| conf.get(&format!("{PREFIX}{key}")).map(str::to_owned);
    let (token, token_file) = (setting("oauthToken"), setting("oauthTokenFile"));
    require(token.is_none() || token_file.is_none(), || {
        format!("Cannot specify OAuth token through both a file {PREFIX}oauthTokenFile and a value {PREFIX}oauthToken.")
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
        ca_file: setting("caCertFile"),
        key_file: setting("clientKeyFile"),
        certificate_file: setting("clientCertFile"),
        trusts_all: conf.boolean("spark.kubernetes.trust.certificates")?.unwrap_or(false),
        connect_timeout: millis.filter(|millis| *millis > 0).map(Duration::from_millis),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Access> {
        access(&pairs.iter().copied().collect())
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
