//! `spark-usher config`: checks a policy file, prints its schema.

use std::io::{self, Write};
use std::path::PathBuf;

use super::output::{FAILED, OK, UNREADABLE, table};
use usher_core::manifests::creator_policy;
use usher_core::manifests::object::MAX_SIZE;
use usher_core::manifests::validating_policy::{self, Parameters};
use usher_core::policy::{Match, Pattern, Policies, Policy, deletions};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Check a policy file. The exit code is 0 if it is valid, 1 if not, 2 if it cannot be read.
    Check {
        /// Policy file; - reads standard input.
        file: PathBuf,
    },
    /// Print the JSON Schema of the policy file.
    Schema,
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    match &args.command {
        Command::Schema => {
            writeln!(out, "{:#}", usher_config::schema())?;
            Ok(OK)
        }
        Command::Check { file } => {
            let text = match super::input::read(file) {
                Ok(text) => text,
                Err(error) => {
                    writeln!(err, "error: {error}")?;
                    return Ok(UNREADABLE);
                }
            };
            match usher_config::every_error(&text) {
                Ok(config) => {
                    for warning in config.warnings.iter().cloned().chain(of_admission_policies(&config.policies)) {
                        writeln!(err, "warning: {warning}")?;
                    }
                    let head = ["POLICY", "SCHEDULER", "GANG", "QUEUE", "PODS"].map(str::to_owned).to_vec();
                    let rows = std::iter::once(head).chain(config.policies.iter().map(row));
                    table(&rows.collect::<Vec<_>>(), 0, out)?;
                    writeln!(out, "{}", deletions(&config.policies))?;
                    Ok(OK)
                }
                Err(all) => {
                    for wrong in &all {
                        writeln!(err, "error: {}: {wrong}", file.display())?;
                    }
                    if all.len() > 1 {
                        writeln!(err, "{} errors", all.len())?;
                    }
                    Ok(FAILED)
                }
            }
        }
    }
}

/// What an administrator should know about the ValidatingAdmissionPolicies that this file would become, with `validatingPolicy.enabled`.
fn of_admission_policies(policies: &Policies) -> Option<String> {
    let parameters = Parameters {
        name: creator_policy::NAME.to_owned(),
        namespaces: Vec::new(),
        account: "system:serviceaccount:spark-usher:spark-usher".to_owned(),
    };
    match validating_policy::manifests(policies, &parameters) {
        Err(refused) => Some(format!("no ValidatingAdmissionPolicies are possible: {refused}")),
        Ok([objects, _]) => {
            let largest = objects.iter().map(|object| object.to_string().len()).max().unwrap_or_default();
            (largest > MAX_SIZE / 2).then(|| {
                format!(
                    "a ValidatingAdmissionPolicy of this file has {largest} bytes: none is possible above {MAX_SIZE}"
                )
            })
        }
    }
}

/// What a policy sets, and for which pods.
fn row(policy: &Policy) -> Vec<String> {
    let Match { namespaces, namespace_selector, pod_selector } = &policy.matches;
    let names = namespaces.iter().map(Pattern::text).collect::<Vec<_>>().join(", ");
    let place = if names.is_empty() { "all namespaces".to_owned() } else { names };
    let labels =
        [(namespace_selector.is_some(), "the namespace's labels"), (pod_selector.is_some(), "the pod's labels")];
    let labels = labels.into_iter().filter(|(is_set, _)| *is_set).map(|(_, what)| format!(", by {what}"));
    vec![
        policy.name.to_string(),
        policy.scheduler.gang_scheduler.kind.to_owned(),
        policy.gang.shape.as_str().to_owned(),
        policy.queue.as_deref().unwrap_or("-").to_owned(),
        place + &labels.collect::<String>(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_shows_what_a_policy_sets_and_for_which_pods() {
        let text = "apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies:\n- {name: etl, match: {namespaces: [team-*, x], podSelector: \
                    {matchLabels: {a: b}}}, scheduler: {type: volcano}, queue: q}";
        let config = usher_config::from_text(text).unwrap();
        let rows: Vec<Vec<String>> = config.policies.iter().map(row).collect();
        assert_eq!(rows[0], ["etl", "volcano", "executors", "q", "team-*, x, by the pod's labels"]);
        assert_eq!(rows[1], ["default", "none", "pods", "-", "all namespaces"]);
    }

    #[test]
    fn file_whose_admission_policies_are_too_large_is_warned_about() {
        let warned = |policies: usize| {
            let names: Vec<String> = (0..50).map(|number| format!("{}-{number}-*", "n".repeat(50))).collect();
            let policies: Vec<String> = (0..policies)
                .map(|number| format!("{{name: p-{number}, match: {{namespaces: [{}]}}}}", names.join(", ")))
                .collect();
            let text =
                format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{}]", policies.join(", "));
            of_admission_policies(&usher_config::from_text(&text).unwrap().policies)
        };
        assert_eq!(warned(10), None);
        assert!(warned(220).unwrap().contains("bytes: none is possible above 1000000"));
        assert!(warned(400).unwrap().contains("no ValidatingAdmissionPolicies are possible: spark-usher.audit-a"));
    }
}
