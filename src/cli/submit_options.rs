//! The options of `spark-usher submit` that spark-submit does not have, and its help.

use std::path::PathBuf;

use super::drivers::ApiServer;
use crate::submit::{Access, Rest, SparkConf, SubmitError};
use crate::text::is_dns_label;

pub(super) const HELP: &str = "\
Options of spark-submit: --master, --name, --class, --conf, --properties-file,
--load-spark-defaults, --jars, --files, --py-files, --archives, --packages, --exclude-packages,
--repositories, --driver-memory, --driver-cores, --driver-java-options, --driver-library-path,
--driver-class-path, --executor-memory, --executor-cores, --num-executors, --queue, --principal,
--keytab, --proxy-user. Only cluster mode on Kubernetes: --deploy-mode cluster is the default.

Options of spark-usher:
  --dry-run[=server]       Print what would be created, in this order, as a v1 List; nothing is
                           sent, or (server) everything is sent but not stored: admission, quota
                           and defaults of the API server apply
  -o, --output FORMAT      With --dry-run: yaml or json [default: yaml]. Without: text, or json for
                           an event in each line
  --follow                 Print the driver's log while waiting
  --no-wait                Do not wait for the end: the same as
                           --conf spark.kubernetes.submission.waitAppCompletion=false
  --gang                   Write the number of executors and what one requests on the driver, for
                           the gang that the policy makes
  --policy FILE            Validate the submission against this policy file of spark-usher: print
                           what it does with it; do not submit what it denies, or a gang that never
                           fits its queue, where the scheduler has queues with limits (Volcano)
  --spark-exit-codes       Exit with 0 however the driver ends
  --spark-compatible       The same, and print what spark-submit logs
  --spark-version VERSION  The Spark in the image, 3.5 to 4.3 [default: the image's tag if it begins
                           with a version, else 4.3.0]
  -n, --namespace NAME     The same as --conf spark.kubernetes.namespace=NAME
  --kubeconfig FILE        The default is $KUBECONFIG, ~/.kube/config, or the service account of
                           the pod
  --context NAME           Context of the kubeconfig
  --version                Print the version of spark-usher, and for which versions of Spark it
                           submits
  --help                   Print this

--kill ID and --status ID do and print what they do in spark-submit. The exit code is 0 if the
application succeeded, or was submitted with --no-wait; 1 if it was not submitted; 2 if the
arguments are wrong; 3 if it failed; 4 if its driver was deleted; 5 if it was submitted, but its
end is not known, because it cannot be watched; 130 after Ctrl-C, which leaves an application that
was submitted running. A second Ctrl-C ends immediately, and may leave a part of a submission
behind.

Without --master, spark.master and $MASTER, the API server of the kubeconfig is used.

Example: spark-usher submit --name pi --class org.apache.spark.examples.SparkPi \\
           --conf spark.kubernetes.container.image=apache/spark:4.0.1 --num-executors 3 \\
           local:///opt/spark/examples/jars/spark-examples.jar 1000";

/// Options that have no equal in spark-submit, for completions: name, value and help.
pub(super) const OPTIONS: [(&str, &str, &str); 18] = [
    ("--dry-run", "", "Print what would be created"),
    ("--output", "FORMAT", "yaml or json with --dry-run, otherwise text or json"),
    ("--follow", "", "Print the driver's log while waiting"),
    ("--no-wait", "", "Do not wait for the end"),
    ("--gang", "", "Write the size of the gang on the driver"),
    ("--policy", "FILE", "Validate the submission against a policy file"),
    ("--spark-exit-codes", "", "Exit with 0 however the driver ends"),
    ("--spark-compatible", "", "The same, and print what spark-submit logs"),
    ("--spark-version", "VERSION", "The Spark in the image"),
    ("--namespace", "NAME", "The namespace"),
    ("--kubeconfig", "FILE", "The kubeconfig"),
    ("--context", "NAME", "Context of the kubeconfig"),
    ("--kill", "ID", "As spark-submit --kill"),
    ("--status", "ID", "As spark-submit --status"),
    ("--load-spark-defaults", "", "Read spark-defaults.conf beside --properties-file"),
    ("--verbose", "", "Accepted, without effect"),
    ("--version", "", "Print the version"),
    ("--help", "", "Print help"),
];

/// Whether an option never has a value. That of `--dry-run` is optional.
fn is_switch(name: &str) -> bool {
    OPTIONS.iter().any(|(option, value, _)| *option == name && value.is_empty()) && name != "--dry-run"
}

/// The options that spark-submit does not have.
#[derive(Debug, Default)]
pub(super) struct Own {
    pub(super) dry_run: Option<DryRun>,
    pub(super) format: Option<Format>,
    pub(super) help: bool,
    pub(super) shows_version: bool,
    pub(super) follow: bool,
    pub(super) no_wait: bool,
    pub(super) gang: bool,
    pub(super) spark_exit_codes: bool,
    pub(super) spark_compatible: bool,
    pub(super) kill: Option<String>,
    pub(super) status: Option<String>,
    pub(super) version: Option<String>,
    pub(super) policy: Option<PathBuf>,
    pub(super) namespace: Option<String>,
    pub(super) kubeconfig: Option<PathBuf>,
    pub(super) context: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DryRun {
    Client,
    Server,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Text,
    Json,
    Yaml,
}

impl Own {
    pub(super) fn take<'a>(
        &mut self,
        name: &str,
        inline: Option<&'a str>,
        rest: &mut Rest<'a>,
    ) -> Result<bool, SubmitError> {
        if let (Some(value), true) = (inline, is_switch(name)) {
            return Err(SubmitError::expected(&format!("{name} without a value, not {name}={value}")));
        }
        let next = rest.clone().next().map(String::as_str);
        if name == "--dry-run" && inline.is_none() && matches!(next, Some("server" | "client")) {
            return Err(SubmitError::expected("--dry-run or --dry-run=server: its value follows a ="));
        }
        let mut value = || {
            let value = inline.map(str::to_owned).or_else(|| rest.next().cloned());
            value.ok_or_else(|| SubmitError::expected(&format!("a value after {name}")))
        };
        match name {
            "--dry-run" => {
                self.dry_run = Some(match inline {
                    None | Some("client") => DryRun::Client,
                    Some("server") => DryRun::Server,
                    Some(other) => {
                        return Err(SubmitError::expected(&format!("--dry-run or --dry-run=server, not {other}")));
                    }
                });
            }
            "--help" | "-h" => self.help = true,
            "--version" => self.shows_version = true,
            "--output" | "-o" => {
                self.format = Some(match value()?.as_str() {
                    "json" => Format::Json,
                    "yaml" => Format::Yaml,
                    "text" => Format::Text,
                    other => return Err(SubmitError::expected(&format!("-o yaml, json or text, not {other}"))),
                });
            }
            "--follow" => self.follow = true,
            "--no-wait" => self.no_wait = true,
            "--gang" => self.gang = true,
            "--spark-exit-codes" => self.spark_exit_codes = true,
            "--spark-compatible" => self.spark_compatible = true,
            "--kill" => self.kill = Some(value()?),
            "--status" => self.status = Some(value()?),
            "--policy" => self.policy = Some(value()?.into()),
            "--spark-version" => self.version = Some(value()?),
            "--namespace" | "-n" => self.namespace = Some(value()?),
            "--kubeconfig" => self.kubeconfig = Some(value()?.into()),
            "--context" => self.context = Some(value()?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// What excludes each other.
    pub(super) fn check(&self) -> Result<(), SubmitError> {
        let is_request = self.kill.is_some() || self.status.is_some();
        let has_own = self.dry_run.is_some()
            || self.format.is_some()
            || self.follow
            || self.no_wait
            || self.gang
            || self.policy.is_some();
        let wrong = match (self.dry_run, self.format) {
            _ if self.kill.is_some() && self.status.is_some() => "only one of --kill and --status",
            _ if is_request && has_own => {
                "none of --dry-run, --output, --follow, --no-wait, --gang and --policy with --kill or --status: the commands kill and status have more"
            }
            (None, Some(Format::Yaml)) => "--dry-run with -o yaml",
            (Some(_), Some(Format::Text)) => "-o yaml or -o json with --dry-run",
            _ if self.no_wait && self.follow => "only one of --follow and --no-wait",
            (_, Some(_)) if self.spark_compatible => "only one of --output and --spark-compatible",
            _ if self.spark_compatible && self.follow => "only one of --follow and --spark-compatible",
            _ => match self.namespace.as_deref().filter(|namespace| !is_dns_label(namespace)) {
                Some(namespace) => return Err(SubmitError::expected(&format!("a namespace, not {namespace:?}"))),
                None => return Ok(()),
            },
        };
        Err(SubmitError::expected(wrong))
    }

    /// The options that name the API server again, for another command, each with a blank after it.
    pub(super) fn place(&self, master: Option<&str>) -> String {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        [("--kubeconfig", kubeconfig.as_deref()), ("--context", self.context.as_deref()), ("--master", master)]
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name} {} ", quoted(value?))))
            .collect()
    }

    /// The API server, with what the configuration says about it.
    pub(super) fn server(&self, conf: &SparkConf) -> Result<ApiServer, SubmitError> {
        Ok(ApiServer {
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            master: conf.get("spark.master").map(str::to_owned),
            access: Access::of(conf)?,
        })
    }
}

/// A word of a shell.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/:.-_=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
