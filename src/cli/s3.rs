//! Uploads to S3-compatible storage.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStoreExt, RetryConfig};
use tokio::io::AsyncWriteExt;

use usher_kube::client::Brief;
use usher_runtime::shutdown::Interrupt;
use usher_submit::{S3Settings, SparkConf, s3_location};

/// How long a request is tried again.
const RETRIES: Duration = Duration::from_secs(30);

/// An object that was written.
#[derive(Debug)]
pub(super) struct Written {
    store: Arc<AmazonS3>,
    key: Path,
    pub(super) uri: String,
}

impl Written {
    /// Deletes it; its URI if that fails.
    pub(super) async fn take_back(self) -> Option<String> {
        let deleted = self.store.delete(&self.key).await;
        deleted.is_err_and(|error| !matches!(error, object_store::Error::NotFound { .. })).then_some(self.uri)
    }
}

/// Writes a file to a URI, which must be one of S3, until a signal comes. Nothing is visible there before everything was written; what may
/// have been written is in `done`, also after a failure.
pub(super) async fn write(
    conf: &SparkConf,
    variables: &SparkConf,
    (from, to): (&str, &str),
    interrupt: &mut Interrupt,
    done: &mut Vec<Written>,
) -> anyhow::Result<()> {
    let (bucket, key) = s3_location(to).ok_or_else(|| anyhow!("expected s3a://BUCKET/PATH"))?;
    let settings = S3Settings::of(conf, bucket)?;
    let store = Arc::new(store(&settings, variables, bucket)?);
    // Empty parts of a path have no meaning for Hadoop. All else is the name of the object, as it is.
    let parts: Vec<&str> = key.split('/').filter(|part| !part.is_empty()).collect();
    let key = Path::parse(parts.join("/"))?;
    let mut file = tokio::fs::File::open(from).await?;
    done.push(Written { store: store.clone(), key: key.clone(), uri: to.to_owned() });
    let mut writer = BufWriter::new(store, key);
    let written = tokio::select! {
        biased;
        () = interrupt.wait() => Err(anyhow!("interrupted")),
        copied = tokio::io::copy(&mut file, &mut writer) => copied.map(|_| ()).map_err(anyhow::Error::from),
    };
    // The last part, and what makes the object visible, is not interrupted: it would not be known whether it exists.
    let written = match written {
        Ok(()) => writer.shutdown().await.map_err(anyhow::Error::from),
        Err(error) => {
            let _ = writer.abort().await;
            Err(error)
        }
    };
    written.map_err(|error| {
        let hint = "expected spark.hadoop.fs.s3a.access.key and secret.key, or credentials of AWS in the environment";
        let has_keys = settings.access_key.is_some() || settings.is_anonymous;
        let cause = Brief(error.as_ref()).to_string();
        if has_keys || interrupt.has_come() { anyhow!("{cause}") } else { anyhow!("{cause} ({hint})") }
    })
}

fn store(settings: &S3Settings, variables: &SparkConf, bucket: &str) -> anyhow::Result<AmazonS3> {
    let S3Settings { endpoint, region, access_key, secret_key, session_token, is_path_style, is_anonymous, .. } =
        settings;
    let mut builder = AmazonS3Builder::new();
    // What the configuration says about credentials and the service, it says alone.
    let is_own = |name: &str| {
        let is_credential =
            ["ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"].iter().any(|key| name.ends_with(key));
        (access_key.is_some() && is_credential) || (settings.names_service && name.contains("ENDPOINT"))
    };
    for (name, value) in variables.iter().filter(|(name, _)| name.starts_with("AWS_") && !is_own(name)) {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    builder = builder
        .with_bucket_name(bucket)
        .with_retry(RetryConfig { retry_timeout: RETRIES, ..RetryConfig::default() })
        .with_skip_signature(*is_anonymous)
        .with_virtual_hosted_style_request(!is_path_style);
    if let Some(endpoint) = endpoint {
        // The host has the name of the bucket, unless the path has.
        let url = match endpoint.split_once("://").filter(|_| !is_path_style) {
            Some((scheme, host)) => format!("{scheme}://{bucket}.{host}"),
            None => endpoint.clone(),
        };
        builder = builder.with_allow_http(url.starts_with("http://")).with_endpoint(url);
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    if let (Some(access), Some(secret)) = (access_key, secret_key) {
        builder = builder.with_access_key_id(access).with_secret_access_key(secret);
    }
    if let Some(token) = session_token {
        builder = builder.with_token(token);
    }
    builder.build().context("the settings of S3 are incomplete")
}
