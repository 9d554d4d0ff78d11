//! `spark-usher doctor`: checks an installation with the user's kubeconfig. It writes nothing, unless it tests gangs
//! (`--gang`).

mod checks;
mod finding;
mod gang;
mod gather;
mod policies;
mod target;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::output::{FAILED, OK, Output, block_on, failed, no_names};
use checks::Examination;
use finding::{Finding, Grade, print, summary};
use gather::{Facts, Part};
use target::Target;
use usher_core::manifests::rbac::{self, Named, Scope};
use usher_kube::client::{self, Brief};
use usher_runtime::clock;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    target: Target,
    /// Namespace of the dry-run creation of an executor: one that the webhook selects.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    dry_run_namespace: String,
    /// Exit with 1 also if something could not be checked, as in a test of the installation.
    #[arg(long)]
    strict: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Print the permissions that spark-usher's account needs, and why. Sends no request.
    #[arg(long)]
    print_rbac: bool,
    #[command(flatten)]
    gang: gang::Args,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.output == Output::Name {
        return no_names(err);
    }
    if args.print_rbac {
        print_rules(args.output, out)?;
        return Ok(OK);
    }
    if let Some(namespace) = args.gang.namespace() {
        return gang::run(&args.gang, &args.target, args.output, namespace, out, err);
    }
    let examined = block_on(async {
        let cluster = client::of(args.target.config().await?)?;
        let mut facts = Facts::begin(&cluster.client, &args.target.namespace, &args.dry_run_namespace, clock::now())
            .await
            .map_err(|error| anyhow::anyhow!("{}: {}", cluster.server, Brief(&error)))?;
        let mut examination = Examination::default();
        for part in Part::ALL {
            facts.read(part, &cluster.client).await;
            let known = examination.findings.len();
            let continues = examination.examine(part, &facts);
            if args.output.is_text() {
                // Not all at the end: an API server may take seconds for each part.
                let new = examination.findings.get(known..).unwrap_or_default();
                args.output.write(&(), [], out, |out| print(new, out))?;
                out.flush()?;
            }
            if !continues {
                break;
            }
        }
        Ok(examination.findings)
    });
    let findings = match examined {
        Ok(findings) => findings,
        // The reader may have closed the pipe.
        Err(error) => match error.downcast::<io::Error>() {
            Ok(error) => return Err(error),
            Err(error) => return failed(err, &error),
        },
    };
    let list: Vec<Value> = findings.iter().map(Finding::to_json).collect();
    args.output.write(&list, [], out, |out| summary(&findings, out))?;
    let worst = findings.iter().map(|finding| finding.grade).max();
    let max = if args.strict { Grade::Warning } else { Grade::Unchecked };
    Ok(if worst > Some(max) { FAILED } else { OK })
}

fn print_rules(output: Output, out: &mut dyn Write) -> io::Result<()> {
    let list = rbac::all().into_iter().map(|permission| {
        json!({
            "group": permission.group, "resource": permission.resource, "verbs": permission.verbs,
            "scope": format!("{:?}", permission.scope), "named": permission.named != Named::Any,
            "when": format!("{:?}", permission.when), "why": permission.why,
        })
    });
    output.write(&list.collect::<Vec<_>>(), [], out, rules)
}

fn rules(out: &mut dyn Write) -> io::Result<()> {
    for permission in rbac::all() {
        let what = [permission.resource, if permission.group.is_empty() { "" } else { "." }, permission.group].concat();
        let scope = match permission.scope {
            Scope::Cluster => "cluster",
            Scope::Own => "own",
        };
        let named = Some(permission.named).filter(|named| *named != Named::Any);
        let named = named.map_or_else(String::new, |named| format!(" (only {})", named.text()));
        writeln!(out, "{:<60} {:<32} {}{named}: {}", what, permission.verbs.join(","), scope, permission.why)?;
    }
    Ok(())
}
