//! `spark-usher doctor`: is the installation well? Run by a person with a kubeconfig. It writes nothing, unless gangs are to be
//! tried out (`--gang`).

mod checks;
mod gang;
mod gather;
mod policies;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::cluster::client::{self, Brief};
use crate::cluster::rights::{self, Named};
use crate::runtime::clock;

use super::Output;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// kubeconfig; without it $KUBECONFIG, ~/.kube/config, or the pod that it runs in.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long)]
    context: Option<String>,
    /// Where spark-usher is installed.
    #[arg(long, short, value_name = "NAMESPACE", default_value = "spark-usher")]
    namespace: String,
    /// Where an executor is asked for, by dry run: some namespace that is looked after.
    #[arg(long, value_name = "NAMESPACE", default_value = "default")]
    try_in: String,
    /// How to print.
    #[arg(short, long, value_enum, default_value = "text")]
    output: Output,
    /// Print what its account must be allowed, and what for, and ask no cluster.
    #[arg(long)]
    rights: bool,
    #[command(flatten)]
    gang: gang::Args,
}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    /// As it should be.
    Ok,
    /// Somebody should know, or it could not be told.
    Warning,
    /// It does not work.
    Failed,
}

impl Grade {
    fn as_str(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warning => "warning",
            Grade::Failed => "failed",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    grade: Grade,
    what: String,
    /// What to do about it; empty when nothing is.
    fix: String,
}

impl Finding {
    fn ok(what: impl Into<String>) -> Finding {
        Finding { grade: Grade::Ok, what: what.into(), fix: String::new() }
    }

    fn warning(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade: Grade::Warning, what: what.into(), fix: fix.into() }
    }

    fn failed(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade: Grade::Failed, what: what.into(), fix: fix.into() }
    }

    fn to_json(&self) -> Value {
        json!({"result": self.grade.as_str(), "what": self.what, "fix": self.fix})
    }
}

fn print(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    for finding in findings {
        writeln!(out, "{:<8} {}", finding.grade.as_str(), super::plain(&finding.what))?;
        if !finding.fix.is_empty() {
            writeln!(out, "{:<8} → {}", "", super::plain(&finding.fix))?;
        }
    }
    out.flush()
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    if args.rights {
        print_rights(args.output, out)?;
        return Ok(super::OK);
    }
    if let Some(namespace) = args.gang.namespace() {
        return gang::run(args, namespace, out, err);
    }
    let examined = super::block_on(async {
        let cluster = client::connect(args.kubeconfig.as_deref(), args.context.as_deref()).await?;
        let facts = gather::gather(&cluster.client, &args.namespace, &args.try_in, clock::now())
            .await
            .map_err(|error| anyhow::anyhow!("{}: {}", cluster.server, Brief(&error)))?;
        Ok(checks::examine(&facts))
    });
    let findings = match examined {
        Ok(findings) => findings,
        Err(error) => return super::failed(err, &error),
    };
    match args.output {
        Output::Json => {
            writeln!(out, "{:#}", Value::Array(findings.iter().map(Finding::to_json).collect()))?;
        }
        Output::Text => print(&findings, out)?,
    }
    let worst = findings.iter().map(|finding| finding.grade).max();
    Ok(if worst == Some(Grade::Failed) { super::FAILED } else { super::OK })
}

fn print_rights(output: Output, out: &mut dyn Write) -> io::Result<()> {
    let all = rights::all();
    if output == Output::Json {
        let list = all.iter().map(|right| {
            json!({
                "group": right.group, "resource": right.resource, "verbs": right.verbs,
                "scope": format!("{:?}", right.scope), "named": right.named != Named::Any,
                "when": format!("{:?}", right.when), "why": right.why,
            })
        });
        return writeln!(out, "{:#}", Value::Array(list.collect()));
    }
    for right in all {
        let what = [right.resource, if right.group.is_empty() { "" } else { "." }, right.group].concat();
        let (scope, named) = (format!("{:?}", right.scope), format!("{:?}", right.named));
        let named =
            if right.named == Named::Any { String::new() } else { format!(" ({} alone)", named.to_lowercase()) };
        writeln!(out, "{:<60} {:<32} {}{named}: {}", what, right.verbs.join(","), scope.to_lowercase(), right.why)?;
    }
    Ok(())
}
