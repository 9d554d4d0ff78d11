//! The policies in use: read once at the start, and again whenever the policy file changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use super::metrics::FileMetrics;
use super::reload::{Reloader, Removed};
use usher_config::{BadConfig, Config};
use usher_core::policy::{Policies, deletions};
use usher_runtime::clock;
use usher_runtime::supervise::Supervisor;

/// The source of the policies.
#[derive(Clone, Debug)]
pub enum ConfigSource {
    /// None: every executor gets its ownerReference, and finished executors that their driver leaves behind are labelled.
    Nothing,
    /// A file, which is polled.
    File(PathBuf),
    /// These policies, for the life of the process.
    Given(Box<Config>),
}

/// The policies in use. Cloning it is cheap.
#[derive(Clone, Debug)]
pub(super) struct InUse {
    pub(super) policies: Arc<ArcSwap<Policies>>,
    /// When they changed; `None` if they never do.
    pub(super) changed: Arc<ArcSwapOption<Instant>>,
    /// A new value whenever they change: whether nothing may be written.
    pub(super) dry_run: watch::Receiver<bool>,
}

/// Reads the policies, and starts to poll their file every `every`.
pub(super) async fn start(
    source: ConfigSource,
    every: Duration,
    metrics: &FileMetrics,
    supervisor: &mut Supervisor,
) -> anyhow::Result<InUse> {
    let (config, reloader) = first_config(source, every).await?;
    metrics.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
    let (dry_run, seen) = watch::channel(config.settings.dry_run);
    let policies = Arc::new(ArcSwap::new(config.policies));
    let in_use = InUse { policies, changed: Arc::new(ArcSwapOption::empty()), dry_run: seen };
    if let Some(reloader) = reloader {
        // The other replicas may still have the previous file.
        in_use.changed.store(Some(Arc::new(clock::instant())));
        let (stop, shown) = (supervisor.token().clone(), reloader.path());
        let (replaced, metrics) = (in_use.clone(), metrics.clone());
        supervisor.run("policy file", async move {
            let apply = |outcome: Result<Config, BadConfig>| {
                let result = match outcome {
                    Ok(config) => {
                        dry_run.send_replace(replaced.replace(config, &metrics));
                        "ok"
                    }
                    Err(error) => {
                        tracing::error!(file = shown, %error, "cannot load the policy file; the previous one stays in use");
                        "refused"
                    }
                };
                metrics.config_reloads.with_label_values(&[result]).inc();
            };
            reloader.run(stop, apply).await;
        });
    }
    Ok(in_use)
}

impl InUse {
    /// Replaces the policies with those of the new file. Returns whether nothing may be written now.
    fn replace(&self, config: Config, metrics: &FileMetrics) -> bool {
        warn(&config);
        let deletions = deletions(&config.policies);
        tracing::info!(policies = config.policies.listed().len(), deletions, "policy file reloaded");
        metrics.poll_interval.set(config.policies.lifecycle.poll.as_secs_f64());
        warn_of_removed(&Removed::between(&self.policies.load(), &config.policies), metrics);
        self.policies.store(config.policies);
        self.changed.store(Some(Arc::new(clock::instant())));
        config.settings.dry_run
    }
}

async fn first_config(source: ConfigSource, every: Duration) -> anyhow::Result<(Config, Option<Reloader>)> {
    let path = match source {
        ConfigSource::Nothing => {
            let config = Config::default();
            let deletions = deletions(&config.policies);
            tracing::info!(
                deletions,
                "no policy file: executors get their ownerReference, finished executors that their driver leaves behind are labelled"
            );
            return Ok((config, None));
        }
        ConfigSource::Given(config) => return Ok((*config, None)),
        ConfigSource::File(path) => path,
    };
    let shown = path.display().to_string();
    let mut reloader = Reloader::new(path, every);
    let config = reloader.first().await.map_err(|error| match error {
        BadConfig::Unreadable { .. } => anyhow::anyhow!("{error}"), // The error names the file itself.
        BadConfig::Wrong(_) => anyhow::anyhow!("{shown}: {error}"),
    })?;
    warn(&config);
    let deletions = deletions(&config.policies);
    tracing::info!(file = shown, policies = config.policies.listed().len(), deletions, "policy file loaded");
    Ok((config, Some(reloader)))
}

fn warn(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!(warning, "the policy file has a warning");
    }
}

/// Warns if pods are no longer placed, or violations no longer denied: a file that lost its end has that effect, too.
fn warn_of_removed(removed: &Removed<'_>, metrics: &FileMetrics) {
    for (what, names) in [("policy", &removed.policies), ("enforce", &removed.enforce)] {
        let label = metrics.config_removed.with_label_values(&[what]);
        label.inc_by(u64::try_from(names.len()).unwrap_or(u64::MAX));
    }
    if !removed.policies.is_empty() {
        tracing::warn!(policies = removed.policies.join(", "), "the new policy file no longer has these policies");
    }
    if !removed.enforce.is_empty() {
        tracing::warn!(
            policies = removed.enforce.join(", "),
            "the new policy file no longer has validate: Enforce for these policies: violations are not denied"
        );
    }
}
