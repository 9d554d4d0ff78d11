//! `spark-usher policy`: admission policies that the API server evaluates itself: MutatingAdmissionPolicies that
//! replace the webhook while it is unavailable, ValidatingAdmissionPolicies that deny without the webhook, or those that
//! vouch for the webhook's signatures.

use std::io::{self, Write};
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use serde_json::{Value, json};

use super::output::{FAILED, OK, UNREADABLE};
use usher_config::Config;
use usher_core::manifests::installation::except;
use usher_core::manifests::{creator_policy, fallback_policy, validating_policy};
use usher_spark::text::is_dns_label;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Policy file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print ValidatingAdmissionPolicies, one for each `validate` mode of the file, instead of the fallback policy.
    #[arg(long, requires = "account", conflicts_with = "scheduler")]
    validating: bool,
    /// Print the creator policy, which does not depend on the policy file: no pod is stored with another creator than the API
    /// server authenticated, and only spark-usher changes its annotations. Replicas sign and believe signatures only with it.
    #[arg(long, requires = "account", conflicts_with_all = ["validating", "scheduler", "config", "exclude"])]
    creator: bool,
    /// With --validating or --creator: user name of spark-usher's account, such as
    /// system:serviceaccount:spark-usher:spark-usher.
    #[arg(long, value_name = "USER")]
    account: Option<String>,
    /// Also set schedulerName, but no gang: for a file with one policy whose scheduler is not Volcano.
    #[arg(long)]
    scheduler: bool,
    /// First part of the names.
    #[arg(long, default_value = creator_policy::NAME)]
    name: String,
    /// Namespaces to exclude.
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',', default_value = "kube-system")]
    exclude: Vec<String>,
    /// Requirements on the labels of namespaces instead of --exclude, a JSON list of matchExpressions: the same as `spark-usher
    /// serve --admission-policy-namespaces`.
    #[arg(long, value_name = "JSON", value_parser = requirements, conflicts_with = "exclude")]
    namespaces: Option<Namespaces>,
    /// Output format.
    #[arg(short, long, value_enum, default_value = "yaml")]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// YAML documents for kubectl.
    Yaml,
    /// A JSON List.
    Json,
}

/// Requirements on the labels of namespaces. (clap takes a plain `Vec` for a flag that is given several times.)
#[derive(Clone, Debug)]
pub(super) struct Namespaces(pub(super) Vec<Value>);

/// Parses requirements on labels.
pub(super) fn requirements(text: &str) -> Result<Namespaces, String> {
    let list: Vec<LabelSelectorRequirement> =
        serde_json::from_str(text).map_err(|error| format!("expected a JSON list of matchExpressions: {error}"))?;
    let selector = LabelSelector { match_expressions: Some(list.clone()), ..LabelSelector::default() };
    Selector::try_from(selector).map_err(|error| error.to_string())?;
    let list = list.iter().map(serde_json::to_value).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
    Ok(Namespaces(list))
}

pub(super) fn run(args: &Args, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<u8> {
    let config = match &args.config {
        None => Config::default(),
        Some(path) => match super::input::policy_file(path) {
            Ok(config) => config,
            Err(error) => {
                writeln!(err, "error: {}: {error}", path.display())?;
                return Ok(UNREADABLE);
            }
        },
    };
    let result = manifests(args, &config);
    if let Ok((_, Some(warning))) = &result {
        writeln!(err, "warning: {warning}")?;
    }
    match result {
        Ok((manifests, _)) if args.output == Output::Json => {
            writeln!(out, "{:#}", json!({"apiVersion": "v1", "kind": "List", "items": manifests}))?;
            Ok(OK)
        }
        Ok((manifests, _)) => {
            let (version, flags) = match (args.validating, args.creator) {
                (true, _) => ("1.30", " --validating …"),
                (_, true) => ("1.30", " --creator …"),
                _ => ("1.36", ""),
            };
            writeln!(
                out,
                "# For Kubernetes {version} and newer: spark-usher policy{flags} | kubectl apply --server-side --force-conflicts -f -"
            )?;
            for manifest in manifests {
                let text = serde_saphyr::to_string(&manifest).map_err(io::Error::other)?;
                write!(out, "---\n{text}")?;
            }
            Ok(OK)
        }
        Err(refused) => {
            writeln!(err, "error: {refused}")?;
            Ok(FAILED)
        }
    }
}

/// The manifests, and a warning if not all that were asked for are possible.
fn manifests(args: &Args, config: &Config) -> Result<(Vec<Value>, Option<String>), String> {
    if let Some(wrong) = args.exclude.iter().find(|name| !is_dns_label(name)) {
        return Err(format!("--exclude {wrong:?}: expected the name of a namespace, without wildcards"));
    }
    if args.account.is_some() && !args.validating && !args.creator {
        return Err("--account has no effect without --validating or --creator: expected one of them".to_owned());
    }
    let (name, account) = (args.name.clone(), args.account.clone().unwrap_or_default());
    if args.creator {
        let manifests = creator_policy::manifests(&name, &account).map_err(|refused| refused.to_string())?;
        return Ok((manifests, None));
    }
    let namespaces = args.namespaces.as_ref().map_or_else(|| except(&args.exclude), |namespaces| namespaces.0.clone());
    if args.validating {
        let parameters = validating_policy::Parameters { name, namespaces, account };
        let slots = validating_policy::manifests(&config.policies, &parameters);
        return slots.map(|[first, _]| (first, None)).map_err(|refused| refused.to_string());
    }
    let parameters = fallback_policy::Parameters { name, namespaces, scheduler: args.scheduler };
    match fallback_policy::manifests(&config.policies, &parameters) {
        (objects, Some(refused)) if objects.is_empty() => Err(refused.to_string()),
        (objects, refused) => {
            let warning = refused.map(|refused| format!("only the policy of the owner is possible: {refused}"));
            Ok((objects, warning))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(scheduler: bool, exclude: &str) -> Args {
        Args {
            config: None,
            validating: false,
            creator: false,
            account: None,
            scheduler,
            name: creator_policy::NAME.to_owned(),
            exclude: vec!["kube-system".to_owned(), exclude.to_owned()],
            namespaces: None,
            output: Output::Yaml,
        }
    }

    #[test]
    fn policy_of_the_owner_is_printed_with_a_warning_where_that_of_the_scheduler_is_impossible() {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        assert_eq!(run(&args(true, "team-a"), &mut out, &mut err).unwrap(), OK);
        let [out, err] = [out, err].map(|text| String::from_utf8(text).unwrap());
        assert!(out.contains("fallback-owner") && !out.contains("fallback-scheduler"), "{out}");
        assert!(err.starts_with("warning: only the policy of the owner is possible: found 0 policies"), "{err}");
    }

    #[test]
    fn invalid_excluded_namespace_is_rejected() {
        let error = |exclude: &str| manifests(&args(false, exclude), &Config::default()).err();
        assert_eq!(error("team-a"), None);
        for wrong in ["a*", "Team", "", "a.b", &"a".repeat(64)] {
            assert!(error(wrong).unwrap().contains("expected the name of a namespace"), "{wrong}");
        }
    }
}
