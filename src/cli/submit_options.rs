//! The options of `spark-usher submit` that spark-submit does not have.

use std::path::PathBuf;
use std::time::Duration;

use super::api_server::ApiServer;
use super::submit_help::is_switch;
use usher_spark::text::is_dns_label;
use usher_submit::{Rest, SparkConf, SubmitError, access};

/// The options that spark-submit does not have.
#[derive(Debug, Default)]
pub(super) struct UsherOptions {
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

impl UsherOptions {
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
            request_timeout: Duration::ZERO,
            kubeconfig: self.kubeconfig.clone(),
            context: self.context.clone(),
            master: conf.get("spark.master").map(str::to_owned),
            access: access(conf)?,
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
