//! The log: one line per event, text or JSON, on standard error.

use std::io::IsTerminal;

use clap::ValueEnum;
use tracing_subscriber::EnvFilter;

/// Format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable text.
    #[default]
    Text,
    /// JSON.
    Json,
}

/// Starts logging. `filter` is a level or directives such as `info,spark_usher=debug`.
pub fn init(filter: &str, format: Format) -> anyhow::Result<()> {
    // The client's own lines repeat what the watches log, without the resource.
    let given = filter;
    // EnvFilter would take a word that is not a level for a module of that name, and silence everything else.
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let known = |directive: &str| directive.contains('=') || levels.contains(&directive.to_ascii_lowercase().as_str());
    let modules = |directive: &str| directive.contains("::") || directive.starts_with("spark_usher");
    if let Some(wrong) = filter.split(',').map(str::trim).find(|directive| !known(directive) && !modules(directive)) {
        anyhow::bail!(
            "--log {given}: {wrong:?} is not a log level; expected off, error, warn, info, debug, trace or directives such as info,spark_usher=debug"
        );
    }
    let filter = EnvFilter::try_new(format!("kube_client=off,{given}"))
        .map_err(|error| anyhow::anyhow!("--log {given}: {error}; expected error, warn, info, debug, trace or directives such as info,spark_usher=debug"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    // Another subscriber is installed already: a test's.
    let _ = started;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_log_level_is_rejected() {
        for wrong in ["debugg", "info,verbose", "a=b=c"] {
            assert!(init(wrong, Format::Text).unwrap_err().to_string().contains("expected"), "{wrong}");
        }
        for right in ["info", "WARN", "off", "info,spark_usher=debug", "spark_usher::cluster", "hyper=warn,error"] {
            init(right, Format::Text).unwrap();
        }
    }
}
