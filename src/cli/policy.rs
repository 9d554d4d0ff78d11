//! `spark-usher policy`: the MutatingAdmissionPolicies that stand in for the webhook while it is away.

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::json;

use crate::admission::fallback::{self, Wanted};
use crate::config::{self, Config};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The policy file: whose pods never own (creators.never), and which scheduler.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set schedulerName too, never the gang: for a file with one policy, not of Volcano.
    #[arg(long)]
    scheduler: bool,
    /// Name of the policy and its binding.
    #[arg(long, default_value = "spark-usher-fallback")]
    name: String,
    /// Namespaces to leave alone.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', default_value = "kube-system")]
    exclude: Vec<String>,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// Documents for kubectl.
    Yaml,
    /// A List.
    Json,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let config = match &args.config {
        None => Config::default(),
        Some(path) => match config::from_path(path) {
            Ok(config) => config,
            Err(error) => {
                writeln!(err, "error: {}: {error}", path.display())?;
                return Ok(super::UNREADABLE);
            }
        },
    };
    let wanted = Wanted { name: args.name.clone(), excluded: args.exclude.clone(), scheduler: args.scheduler };
    match fallback::manifests(&config.policies, &wanted) {
        Ok(manifests) if args.output == Output::Json => {
            writeln!(out, "{:#}", json!({"apiVersion": "v1", "kind": "List", "items": manifests}))?;
            Ok(super::OK)
        }
        Ok(manifests) => {
            writeln!(out, "# For Kubernetes 1.36 and newer: spark-usher policy | kubectl apply -f -")?;
            for manifest in manifests {
                let text = serde_saphyr::to_string(&manifest).map_err(io::Error::other)?;
                write!(out, "---\n{text}")?;
            }
            Ok(super::OK)
        }
        Err(refused) => {
            writeln!(err, "error: {refused}")?;
            Ok(super::FAILED)
        }
    }
}
