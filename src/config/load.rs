//! From text to policies. Everything that is wrong names its line, its key and what was expected; nothing of a bad file
//! is used.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use serde_saphyr::Location;

use super::file::{
    ConfigFile, Finished, Lifecycle, MembershipFile, MinMemberFile, Nodes, Operator, OverrideName, PolicyFile,
    Recovery, ReplaceFile, SelectorFile, ShapeFile, ValidateMode,
};
use super::located::Located;
use crate::gang::{self, Membership, Shape};
use crate::policy::{
    self, Gang, Match, Pattern, Policies, Policy, Replace, SchedulerChoice, Validate, default_overrides,
};
use crate::snapshot::Override;

/// A file that was read.
#[derive(Clone, Debug)]
pub struct Config {
    /// For the core.
    pub policies: Arc<Policies>,
    /// For the edge.
    pub settings: Settings,
    /// What is odd about the file but no reason to refuse it.
    pub warnings: Vec<String>,
}

/// Settings of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// Say what would be done, and do nothing.
    pub dry_run: bool,
}

impl Default for Config {
    /// Without a file: every executor gets its owner, and nothing else changes.
    fn default() -> Self {
        Config { policies: Arc::new(Policies::default()), settings: Settings::default(), warnings: Vec::new() }
    }
}

/// A file that is refused.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    /// It cannot be read.
    #[error("cannot read the policy file {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error("{0}")]
    Wrong(Wrong),
}

/// What is wrong, where.
#[derive(Debug)]
pub struct Wrong {
    /// Line, from 1; 0 when unknown.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// The key's path, such as `policies[0].gang.name`.
    pub path: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// The line itself.
    pub source: String,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { line, column, path, message, source } = self;
        if *line > 0 {
            write!(f, "line {line}, column {column}: ")?;
        }
        if !path.is_empty() && path != "." {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)?;
        if !source.trim().is_empty() {
            write!(
                f,
                "\n  {line} | {source}\n  {:width$} | {:>column$}",
                "",
                "^",
                width = line.to_string().len(),
                column = *column as usize
            )?;
        }
        Ok(())
    }
}

/// Reads and checks a file.
pub fn from_path(path: &Path) -> Result<Config, BadConfig> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BadConfig::Unreadable { path: path.display().to_string(), source })?;
    from_text(&text)
}

/// Checks a text.
pub fn from_text(text: &str) -> Result<Config, BadConfig> {
    let file = parse(text)?;
    let mut warnings = Vec::new();
    let mut names = BTreeSet::new();
    let mut policies = Vec::new();
    for (i, policy) in file.policies.iter().enumerate() {
        let at = format!("policies[{i}]");
        let checked = check(text, &at, policy)?;
        if !names.insert(checked.name.clone()) {
            return Err(wrong(
                text,
                policy.name.at(),
                &format!("{at}.name"),
                format!("{:?} is the name of an earlier policy: expected a name of its own", &*checked.name),
            ));
        }
        if let Some(all) = policies.iter().find(|earlier: &&Policy| earlier.matches.is_everything()) {
            warnings
                .push(format!("{at} ({}) is never reached: {} before it matches every pod", checked.name, all.name));
        }
        if checked.queue.is_some() && !checked.scheduler.row.takes_queue(checked.gang.shape) {
            let kind = checked.scheduler.row.kind;
            let why = match checked.scheduler.row.takes_queue(Shape::Executors) {
                true => format!("{kind} reads the queue from the PodGroup, and this policy makes no gangs"),
                false => format!("{kind} knows no queues"),
            };
            warnings.push(format!("{at}.queue has no effect: {why}"));
        }
        policies.push(checked);
    }
    warnings.extend(without_effect(&file));
    let writers = match &file.trusted_writers {
        Some(named) => named.clone(),
        None => accounts_of(&policies),
    };
    for (key, names) in [("trustedWriters", &writers), ("creators.never", &file.creators.never)] {
        if names.iter().any(String::is_empty) {
            return Err(wrong(text, Location::UNKNOWN, key, "an empty name: expected names with * and ?".to_owned()));
        }
        if names.iter().any(|name| name == "*") {
            warnings.push(format!("{key} has *: that is everybody"));
        }
    }
    if writers.is_empty() && file.policies.iter().any(|policy| policy.validate == ValidateMode::Enforce) {
        warnings.push(
            "validate: Enforce with no trustedWriters: schedulers' controllers and administrators that are not \
             system:masters are refused changes of gangs and owners"
                .to_owned(),
        );
    }
    if file.lifecycle.poll.0 < SHORTEST_POLL {
        warnings.push(format!(
            "lifecycle.poll is {:?}: every poll reads the name of each Spark pod in the cluster",
            file.lifecycle.poll.0
        ));
    }
    let trusted = writers.iter().map(|text| Pattern::new(text)).collect();
    let never = file.creators.never.iter().map(|text| Pattern::new(text)).collect();
    Ok(Config {
        policies: Arc::new(
            Policies::new(policies, never).with_lifecycle(lifecycle(&file.lifecycle)).with_trusted_writers(trusted),
        ),
        settings: Settings { dry_run: file.lifecycle.dry_run },
        warnings,
    })
}

/// The accounts of the schedulers that the policies use.
fn accounts_of(policies: &[Policy]) -> Vec<String> {
    let all = policies.iter().flat_map(|policy| policy.scheduler.row.accounts);
    let all: BTreeSet<String> = all.map(|account| (*account).to_owned()).collect();
    all.into_iter().collect()
}

fn parse(text: &str) -> Result<ConfigFile, BadConfig> {
    // An empty file is a file without policies.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(ConfigFile::default());
    }
    let mut path = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = error.path().to_string();
            error.into_inner()
        })
    });
    parsed.map_err(|error| {
        let at = error.location();
        let message = error.without_snippet().to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        wrong(text, at.unwrap_or(Location::UNKNOWN), &path, expected(message))
    })
}

/// The parser says what is invalid; people want to know what would be valid.
fn expected(message: &str) -> String {
    let hint = match message {
        "invalid boolean" => "true or false",
        _ if message.starts_with("invalid u") || message.starts_with("invalid i") => "a whole number, 0 or more",
        "expected sequence start" => return "expected a list".to_owned(),
        "expected mapping start" => return "expected a map of keys and values".to_owned(),
        "expected string scalar" => return "expected a text".to_owned(),
        _ => return message.to_owned(),
    };
    format!("{message}: expected {hint}")
}

fn wrong(text: &str, at: Location, path: &str, message: String) -> BadConfig {
    let source = usize::try_from(at.line()).ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
    BadConfig::Wrong(Wrong {
        line: at.line(),
        column: at.column().max(1),
        path: path.to_owned(),
        message,
        source: source.unwrap_or_default().to_owned(),
    })
}

/// One policy, with everything that only several keys together can get wrong.
fn check(text: &str, at: &str, file: &PolicyFile) -> Result<Policy, BadConfig> {
    let refuse =
        |location: Location, key: &str, message: String| wrong(text, location, &format!("{at}.{key}"), message);
    let name = &*file.name;
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    if name.is_empty() || name.len() > 40 || !name.bytes().all(plain) {
        return Err(refuse(file.name.at(), "name", format!("{name:?}: expected 1 to 40 characters of a-z, 0-9 and -")));
    }
    if let (Some(name), None) = (&file.scheduler.name, &file.scheduler.kind) {
        let why = "a name without scheduler.type, which would have no effect: expected both".to_owned();
        return Err(refuse(name.at(), "scheduler.name", why));
    }
    let row = file.scheduler.kind.unwrap_or_default().0;
    if let Some(name) = &file.scheduler.name {
        subdomain(name).map_err(|why| refuse(name.at(), "scheduler.name", why))?;
    }
    for (key, class) in [("driver", &file.priority_class.driver), ("executor", &file.priority_class.executor)] {
        if let Some(class) = class {
            subdomain(class).map_err(|why| refuse(class.at(), &format!("priorityClass.{key}"), why))?;
        }
    }
    for (key, value) in &file.node_pool {
        let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
        let sound = !name.is_empty() && gang::is_label_value(name) && (prefix.is_empty() || subdomain(prefix).is_ok());
        if !sound || !gang::is_label_value(value) {
            let why = format!("{key}={value}: expected a label of nodes, such as pool: spark");
            return Err(refuse(file.name.at(), "nodePool", why));
        }
    }
    if file.queues.as_ref().is_some_and(|queues| queues.iter().any(String::is_empty)) {
        return Err(refuse(file.name.at(), "queues", "an empty name: expected queues with * and ?".to_owned()));
    }
    let label_queue = matches!(row.queue_key, Some((crate::snapshot::MarkPlace::Label, _)));
    match &file.queue {
        Some(queue) if label_queue && !gang::is_label_value(queue) => {
            let why = format!(
                "{:?}: {} reads the queue from a label: expected at most 63 of a-z, A-Z, 0-9, -, _ and .",
                **queue, row.kind
            );
            return Err(refuse(queue.at(), "queue", why));
        }
        None if row.queue_required => {
            return Err(refuse(
                file.name.at(),
                "queue",
                format!("missing: expected a queue, which {} needs on every pod", row.kind),
            ));
        }
        _ => {}
    }
    let shape = match &file.gang.shape {
        _ if !file.gang.enabled => Shape::Pods,
        None => row.default_shape(),
        Some(wanted) => {
            let shape = match **wanted {
                ShapeFile::Pods => Shape::Pods,
                ShapeFile::Executors => Shape::Executors,
                ShapeFile::App => Shape::App,
            };
            if shape != Shape::Pods && !row.shapes.contains(&shape) {
                let can: Vec<&str> = row.shapes.iter().map(|shape| shape.as_str()).collect();
                let why = format!(
                    "{:?}: a gang of this shape never starts on {}: expected {}",
                    shape.as_str(),
                    row.kind,
                    can.join(" or ")
                );
                return Err(refuse(wanted.at(), "gang.shape", why));
            }
            shape
        }
    };
    let membership = match &file.gang.membership {
        None => Membership::PodGroup,
        Some(wanted) => match **wanted {
            MembershipFile::PodGroup => Membership::PodGroup,
            MembershipFile::Annotations if row.kind == "koordinator" => Membership::Annotations,
            MembershipFile::Annotations => {
                return Err(refuse(
                    wanted.at(),
                    "gang.membership",
                    format!("annotations: {} has one way only: expected podGroup", row.kind),
                ));
            }
        },
    };
    let selector = |wanted: &Option<Located<SelectorFile>>, key: &str| {
        wanted.as_ref().map(|wanted| selector(wanted).map_err(|why| refuse(wanted.at(), key, why))).transpose()
    };
    Ok(Policy {
        name: name.as_str().into(),
        matches: Match {
            namespaces: file.matches.namespaces.iter().map(|text| Pattern::new(text)).collect(),
            namespace_selector: selector(&file.matches.namespace_selector, "match.namespaceSelector")?,
            pod_selector: selector(&file.matches.pod_selector, "match.podSelector")?.map(Into::into),
        },
        scheduler: SchedulerChoice {
            row,
            name: file.scheduler.name.as_ref().map(|name| name.as_str().into()).or(row.default_name.map(Arc::from)),
            replace: match file.scheduler.replace {
                ReplaceFile::Default => Replace::Default,
                ReplaceFile::Always => Replace::Always,
            },
        },
        queue: file.queue.as_ref().map(|queue| queue.as_str().into()),
        driver_class: file.priority_class.driver.as_ref().map(|class| class.as_str().into()),
        executor_class: file.priority_class.executor.as_ref().map(|class| class.as_str().into()),
        gang: Gang {
            shape,
            membership,
            min_member: match file.gang.min_member {
                MinMemberFile::Auto => None,
                MinMemberFile::Count(count) => Some(count),
            },
            name: file.gang.name.0.clone(),
            read_spark_conf: file.gang.read_spark_conf,
        },
        overrides: file
            .overrides
            .as_ref()
            .map_or_else(default_overrides, |list| list.iter().map(override_of).collect()),
        strict: file.strict,
        validate: match file.validate {
            ValidateMode::Audit => Validate::Audit,
            ValidateMode::Warn => Validate::Warn,
            ValidateMode::Enforce => Validate::Enforce,
        },
        queues: file.queues.as_ref().map(|queues| queues.iter().map(|text| Pattern::new(text)).collect()),
        node_pool: file.node_pool.clone(),
    })
}

fn override_of(name: &OverrideName) -> Override {
    match name {
        OverrideName::Skip => Override::Skip,
        OverrideName::Scheduler => Override::Scheduler,
        OverrideName::Queue => Override::Queue,
        OverrideName::MinMember => Override::MinMember,
        OverrideName::ExecutorResources => Override::ExecutorResources,
    }
}

/// Names of schedulers and priority classes: a DNS subdomain, or the API server refuses the pod.
fn subdomain(name: &str) -> Result<(), String> {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = name.as_bytes();
    let inner = bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-' || *b == b'.');
    if name.len() <= 253 && edge(bytes.first()) && edge(bytes.last()) && inner {
        Ok(())
    } else {
        Err(format!("{name:?}: expected a name of a-z, 0-9, - and ., with a letter or digit at both ends"))
    }
}

fn selector(file: &SelectorFile) -> Result<Selector, String> {
    for requirement in &file.match_expressions {
        let wants_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
        if wants_values == requirement.values.is_empty() {
            let expected = if wants_values { "expected values" } else { "expected no values" };
            return Err(format!("{} {:?}: {expected}", requirement.key, requirement.operator));
        }
    }
    let expressions = file.match_expressions.iter().map(|requirement| LabelSelectorRequirement {
        key: requirement.key.clone(),
        operator: format!("{:?}", requirement.operator),
        values: (!requirement.values.is_empty()).then(|| requirement.values.clone()),
    });
    let selector =
        LabelSelector { match_labels: Some(file.match_labels.clone()), match_expressions: Some(expressions.collect()) };
    selector.try_into().map_err(|error: kube::core::ParseExpressionError| error.to_string())
}

/// Polls that follow each other faster are worth a word.
const SHORTEST_POLL: Duration = Duration::from_secs(30);

/// Longer than anything that anybody means.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

fn lifecycle(file: &Lifecycle) -> policy::Lifecycle {
    policy::Lifecycle {
        grace: file.grace.0.min(LONGEST),
        finished: match file.finished {
            Finished::Report => policy::Finished::Report,
            Finished::Label => policy::Finished::Label,
            Finished::Delete => policy::Finished::Delete,
        },
        keep_failed: file.keep_failed.0.min(LONGEST),
        poll: file.poll.0.clamp(Duration::from_secs(1), LONGEST),
    }
}

/// Keys of the schema whose function is not built yet: they are checked and have no effect, which must be said.
fn without_effect(file: &ConfigFile) -> Vec<String> {
    let mut keys = Vec::new();
    if file.recovery != Recovery::default() {
        keys.push("recovery");
    }
    if file.nodes != Nodes::default() {
        keys.push("nodes");
    }
    keys.into_iter().map(|key| format!("{key} is checked but has no effect in this version")).collect()
}
