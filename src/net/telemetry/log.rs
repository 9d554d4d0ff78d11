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

/// The target of every line that the program logs begins with one of these: its crates are `usher_core`, `usher_server` and so on.
const TARGETS: [&str; 2] = ["spark_usher", "usher"];

/// Starts logging. `given` is a level or directives such as `info,spark_usher=debug`.
pub fn init(given: &str, format: Format) -> anyhow::Result<()> {
    let filter = filter(given)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match format {
        Format::Text => builder.with_ansi(std::io::stderr().is_terminal()).with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    // Another subscriber is installed already: a test's.
    let _ = started;
    Ok(())
}

/// `spark_usher` in a directive means all crates of the program.
fn filter(given: &str) -> anyhow::Result<EnvFilter> {
    let expected = "expected off, error, warn, info, debug, trace or directives such as info,spark_usher=debug";
    // EnvFilter would take a word that is not a level for a module of that name, and silence everything else.
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    let known = |directive: &str| directive.contains('=') || levels.contains(&directive.to_ascii_lowercase().as_str());
    let modules =
        |directive: &str| directive.contains("::") || TARGETS.iter().any(|prefix| directive.starts_with(prefix));
    let directives = || given.split(',').map(str::trim);
    if let Some(wrong) = directives().find(|directive| !known(directive) && !modules(directive)) {
        anyhow::bail!("--log {given}: {wrong:?} is not a log level; {expected}");
    }
    // The client's own lines repeat what the watches log, without the resource.
    let mut all = vec!["kube_client=off".to_owned()];
    for directive in directives() {
        let rest = directive.strip_prefix("spark_usher").filter(|rest| rest.is_empty() || rest.starts_with('='));
        all.extend(rest.map(|level| format!("usher{level}")));
        all.push(directive.to_owned());
    }
    EnvFilter::try_new(all.join(",")).map_err(|error| anyhow::anyhow!("--log {given}: {error}; {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_log_level_is_rejected() {
        for wrong in ["debugg", "info,verbose", "a=b=c"] {
            assert!(init(wrong, Format::Text).unwrap_err().to_string().contains("expected"), "{wrong}");
        }
        for right in ["info", "WARN", "off", "info,spark_usher=debug", "usher_server::cluster", "hyper=warn,error"] {
            init(right, Format::Text).unwrap();
        }
    }

    #[test]
    fn name_of_the_program_means_all_its_crates() {
        let enabled = |given: &str| {
            let subscriber = tracing_subscriber::fmt().with_env_filter(filter(given).unwrap()).finish();
            tracing::subscriber::with_default(subscriber, || {
                [
                    tracing::enabled!(target: "usher_core::snapshot", tracing::Level::DEBUG),
                    tracing::enabled!(target: "spark_usher::cli", tracing::Level::DEBUG),
                    tracing::enabled!(target: "hyper::client", tracing::Level::DEBUG),
                ]
            })
        };
        assert_eq!(enabled("info,spark_usher=debug"), [true, true, false]);
        assert_eq!(enabled("info, usher_core=debug"), [true, false, false]);
        assert_eq!(enabled("spark_usher"), [true, true, false]);
        assert_eq!(enabled("info"), [false; 3]);
    }
}
