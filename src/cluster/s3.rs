//! Uploads to S3-compatible storage.

use anyhow::{Context, anyhow};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{ObjectStoreExt, RetryConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

use crate::submit::{S3Settings, SparkConf, s3_location};

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

/// Writes a file to a URI, which must be one of S3. Nothing is visible there before everything was written.
pub(super) async fn write(conf: &SparkConf, from: &str, to: &str) -> anyhow::Result<Written> {
    let (bucket, key) = s3_location(to).ok_or_else(|| anyhow!("expected s3a://BUCKET/PATH"))?;
    let store = Arc::new(store(&S3Settings::of(conf, bucket)?, bucket)?);
    // Empty parts of a path have no meaning for Hadoop.
    let key = Path::from_iter(key.split('/').filter(|part| !part.is_empty()));
    let mut file = tokio::fs::File::open(from).await?;
    let mut writer = BufWriter::new(store.clone(), key.clone());
    if let Err(error) = tokio::io::copy(&mut file, &mut writer).await {
        let _ = writer.abort().await;
        return Err(error.into());
    }
    writer.shutdown().await?;
    Ok(Written { store, key, uri: to.to_owned() })
}

fn store(settings: &S3Settings, bucket: &str) -> anyhow::Result<AmazonS3> {
    let S3Settings { endpoint, region, access_key, secret_key, session_token, is_path_style, is_anonymous } = settings;
    let mut builder = AmazonS3Builder::from_env()
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
