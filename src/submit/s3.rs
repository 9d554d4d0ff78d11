//! The settings of Hadoop's S3A file system, which the driver reads too: `spark.hadoop.fs.s3a.*`, and for one bucket
//! `spark.hadoop.fs.s3a.bucket.NAME.*` (hadoop-aws, `Constants.java`).

use super::conf::SparkConf;
use super::error::{Result, SubmitError, require};
use usher_kube::access::is_header;

const PREFIX: &str = "spark.hadoop.fs.s3a.";

/// How to reach a bucket. What is `None` comes from the environment, as with the tools of AWS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct S3Settings {
    /// The URL of an S3-compatible service; `None`: AWS.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    pub access_key: Option<String>,
    pub secret_key: Option<String>,
    /// The token of temporary credentials.
    pub session_token: Option<String>,
    /// Whether the bucket is in the path, and not in the host.
    pub is_path_style: bool,
    /// Whether requests are not signed.
    pub is_anonymous: bool,
    /// Whether the configuration names the service, even if that is AWS.
    pub names_service: bool,
}

impl S3Settings {
    /// Reads them for a bucket.
    pub fn of(conf: &SparkConf, bucket: &str) -> Result<S3Settings> {
        let key = |name: &str| [format!("{PREFIX}bucket.{bucket}.{name}"), format!("{PREFIX}{name}")];
        let get = |name: &str| {
            key(name).iter().find_map(|key| conf.get(key)).map(str::trim).filter(|value| !value.is_empty())
        };
        let is = |name: &str, default: bool| match get(name).map(str::to_ascii_lowercase).as_deref() {
            None => Ok(default),
            Some("true") => Ok(true),
            Some("false") => Ok(false),
            Some(other) => Err(SubmitError::expected(&format!("true or false in {PREFIX}{name}, not {other}"))),
        };
        let has_tls = is("connection.ssl.enabled", true)?;
        let endpoint = get("endpoint").filter(|endpoint| *endpoint != "s3.amazonaws.com").map(|endpoint| {
            let scheme = if has_tls { "https" } else { "http" };
            let url = if endpoint.contains("://") { endpoint.to_owned() } else { format!("{scheme}://{endpoint}") };
            url.trim_end_matches('/').to_owned()
        });
        require(endpoint.as_ref().is_none_or(|endpoint| !endpoint.contains('@')), || {
            format!(
                "expected a URL without credentials in {PREFIX}endpoint: these are {PREFIX}access.key and {PREFIX}secret.key"
            )
        })?;
        for name in ["access.key", "secret.key", "session.token"] {
            // They become part of a header.
            require(get(name).is_none_or(is_header), || {
                format!("expected a key of visible ASCII characters in {PREFIX}{name}")
            })?;
        }
        require(get("access.key").is_some() == get("secret.key").is_some(), || {
            format!("expected both {PREFIX}access.key and {PREFIX}secret.key, or none of them")
        })?;
        let setting = |name: &str| get(name).map(str::to_owned);
        Ok(S3Settings {
            names_service: get("endpoint").is_some(),
            endpoint,
            region: setting("endpoint.region"),
            access_key: setting("access.key"),
            secret_key: setting("secret.key"),
            session_token: setting("session.token"),
            is_path_style: is("path.style.access", false)?,
            is_anonymous: get("aws.credentials.provider").is_some_and(|class| class.contains("Anonymous")),
        })
    }
}

/// Bucket and key of a URI with the scheme `s3a`, `s3n` or `s3`.
pub fn s3_location(uri: &str) -> Option<(&str, &str)> {
    let rest = ["s3a://", "s3://", "s3n://"].iter().find_map(|scheme| uri.strip_prefix(scheme))?;
    rest.split_once('/').filter(|(bucket, key)| !bucket.is_empty() && !key.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<S3Settings> {
        let keys = pairs.iter().map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()));
        S3Settings::of(&keys.collect(), "b")
    }

    #[test]
    fn settings_of_the_bucket_precede_those_of_all() {
        assert_eq!(of(&[]).unwrap(), S3Settings::default());
        let settings = of(&[
            ("endpoint", "minio.example:9000"),
            ("connection.ssl.enabled", "false"),
            ("path.style.access", "TRUE"),
            ("access.key", "all"),
            ("bucket.b.access.key", "own"),
            ("bucket.other.access.key", "other"),
            ("secret.key", " s "),
        ])
        .unwrap();
        let expected = S3Settings {
            endpoint: Some("http://minio.example:9000".to_owned()),
            access_key: Some("own".to_owned()),
            secret_key: Some("s".to_owned()),
            is_path_style: true,
            names_service: true,
            ..S3Settings::default()
        };
        assert_eq!(settings, expected);
        assert_eq!(of(&[("endpoint", "s3.amazonaws.com")]).unwrap().endpoint, None);
        assert_eq!(of(&[("endpoint", "https://e/")]).unwrap().endpoint.as_deref(), Some("https://e"));
        let anonymous = "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider";
        assert!(of(&[("aws.credentials.provider", anonymous)]).unwrap().is_anonymous);
        for (pairs, words) in [
            (&[("access.key", "a")][..], "both"),
            (
                &[("access.key", "a\nb"), ("secret.key", "s")],
                "visible ASCII characters in spark.hadoop.fs.s3a.access.key",
            ),
            (&[("endpoint", "http://u:p@h")], "without credentials"),
        ] {
            let error = of(pairs).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("u:p"), "{error}");
        }
        assert!(of(&[("path.style.access", "maybe")]).unwrap_err().to_string().contains("path.style.access"));
    }

    #[test]
    fn location_is_bucket_and_key() {
        assert_eq!(s3_location("s3a://b/up/x y"), Some(("b", "up/x y")));
        assert_eq!(
            (s3_location("s3://b/x"), s3_location("s3a://b"), s3_location("hdfs://b/x")),
            (Some(("b", "x")), None, None)
        );
    }
}
