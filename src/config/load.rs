//! Parses a text into policies. Every error names the line, the key and what was expected; no part of an invalid file is
//! used.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use serde::Deserialize;
use serde_saphyr::Location;

use super::file::{self, Lifecycle, MinMemberFile, Operator, PolicyEntry, PolicyFile, SelectorFile};
use super::label_text::texts;
use super::located::Located;
use super::nodes;
use super::recovery;
use super::span::LONGEST;
use crate::gang::{Membership, Shape};
use crate::policy::{self, Gang, Match, Pattern, Policies, Policy, SchedulerChoice, Validate, default_overrides};
use crate::text::{is_dns_byte, is_dns_subdomain, is_label_value};

/// A valid policy file.
#[derive(Clone, Debug)]
pub struct Config {
    /// The policies, for the core.
    pub policies: Arc<Policies>,
    /// The settings, for the edge.
    pub settings: Settings,
    /// Warnings about a valid file.
    pub warnings: Vec<String>,
}

/// Settings of the controller.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Settings {
    /// Whether actions are only reported, not carried out.
    pub dry_run: bool,
}

impl Default for Config {
    /// Without a file: every executor gets its owner, and nothing else changes.
    fn default() -> Self {
        Config { policies: Arc::new(Policies::default()), settings: Settings::default(), warnings: Vec::new() }
    }
}

/// Why a file is rejected.
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
    /// Its content is invalid.
    #[error("{0}")]
    Wrong(Wrong),
}

/// An error and its location.
#[derive(Debug)]
pub struct Wrong {
    /// Line, from 1; 0 when unknown.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// The key's path, such as `policies[0].gang.name`.
    pub path: String,
    /// The error, and what was expected.
    pub message: String,
    /// The text of the line.
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

/// Reads and validates a file.
pub fn from_path(path: &Path) -> Result<Config, BadConfig> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BadConfig::Unreadable { path: path.display().to_string(), source })?;
    from_text(&text)
}

/// Validates a text.
pub fn from_text(text: &str) -> Result<Config, BadConfig> {
    let mut warnings = Vec::new();
    let file = parse(text)?;
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
                format!("{:?} is the name of an earlier policy: expected a unique name", &*checked.name),
            ));
        }
        let scheduler = &checked.scheduler;
        let is_other = |earlier: &&Policy| {
            earlier.scheduler.gang_scheduler.kind == scheduler.gang_scheduler.kind
                && earlier.scheduler.queue_key != scheduler.queue_key
        };
        if let Some(earlier) = policies.iter().find(is_other) {
            let (kind, key) = (scheduler.gang_scheduler.kind, earlier.scheduler.queue_key.map_or("", |(_, key)| key));
            let why = format!("expected {key}, the key of policy {}: {kind} reads one key", earlier.name);
            let location = policy.scheduler.queue_key.as_ref().map_or(policy.name.at(), |wanted| wanted.at());
            return Err(wrong(text, location, &format!("{at}.scheduler.queueKey"), why));
        }
        if let Some(all) = policies.iter().find(|earlier: &&Policy| earlier.matches.is_everything()) {
            warnings.push(format!(
                "{at} ({}) is never reached: policy {} before it matches every pod",
                checked.name, all.name
            ));
        }
        if checked.queue.is_some() && !checked.scheduler.gang_scheduler.takes_queue(checked.gang.shape) {
            let kind = checked.scheduler.gang_scheduler.kind;
            let why = match checked.scheduler.gang_scheduler.takes_queue(Shape::Executors) {
                true => format!("{kind} reads the queue from the PodGroup, and this policy creates no gangs"),
                false => format!("{kind} has no queues"),
            };
            warnings.push(format!("{at}.queue has no effect: {why}"));
        }
        if checked.queues.is_some() && checked.scheduler.gang_scheduler.harmless_owners.is_some() {
            warnings.push(format!(
                "{at}.queues does not restrict the queue that the labels of a pod's topmost owner name, such as a Job: {} reads them before the pod's",
                checked.scheduler.gang_scheduler.kind
            ));
        }
        policies.push(checked);
    }
    let writers = match &file.trusted_writers {
        Some(named) => named.clone(),
        None => accounts_of(&policies),
    };
    for (key, names) in [("trustedWriters", &writers), ("creators.never", &file.creators.never)] {
        if names.iter().any(String::is_empty) {
            return Err(wrong(
                text,
                Location::UNKNOWN,
                key,
                "empty name: expected a name, in which * and ? are wildcards".to_owned(),
            ));
        }
        if names.iter().any(|name| name == "*") {
            warnings.push(format!("{key} contains *, which matches every account"));
        }
    }
    if writers.is_empty() && file.policies.iter().any(|policy| policy.validate == Validate::Enforce) {
        warnings.push(
            "validate: Enforce without trustedWriters denies changes of gangs and owners by the controllers of schedulers \
             and by administrators outside system:masters"
                .to_owned(),
        );
    }
    if file.lifecycle.poll.0 < SHORTEST_POLL {
        warnings.push(format!(
            "lifecycle.poll is {:?}: every poll lists the metadata of all Spark pods in the cluster{}",
            file.lifecycle.poll.0,
            if file.lifecycle.poll.0 < Duration::from_secs(1) { "; 1s applies" } else { "" }
        ));
    }
    warnings.extend(recovery::warnings(&file.recovery));
    warnings.extend(nodes::warnings(&file.nodes));
    let trusted = writers.iter().map(|text| Pattern::new(text)).collect();
    let never = file.creators.never.iter().map(|text| Pattern::new(text)).collect();
    Ok(Config {
        policies: Arc::new(
            Policies::new(policies, never)
                .with_lifecycle(lifecycle(&file.lifecycle))
                .with_recovery(recovery::settings(&file.recovery, file.lifecycle.dry_run))
                .with_nodes(nodes::settings(&file.nodes))
                .with_trusted_writers(trusted),
        ),
        settings: Settings { dry_run: file.lifecycle.dry_run },
        warnings,
    })
}

/// The accounts of the schedulers that the policies use.
fn accounts_of(policies: &[Policy]) -> Vec<String> {
    let all = policies.iter().flat_map(|policy| policy.scheduler.gang_scheduler.accounts);
    let all: BTreeSet<String> = all.map(|account| (*account).to_owned()).collect();
    all.into_iter().collect()
}

/// The keys that name a file's schema; all other keys are ignored.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: Option<Located<String>>,
    kind: Option<Located<String>>,
}

/// Checks `apiVersion` and `kind` before other keys: a file of a later version has keys that this one does not know.
fn version(text: &str) -> Result<(), BadConfig> {
    // If the text is not a map, or these keys have another type, parsing the whole file reports it.
    let Ok(TypeMeta { api_version, kind }) = serde_saphyr::from_str(text) else { return Ok(()) };
    for (key, value, known) in [("apiVersion", &api_version, file::API_VERSION), ("kind", &kind, file::KIND)] {
        if let Some(value) = value.as_ref().filter(|value| ***value != known) {
            let message = format!("unknown {key} {:?}: expected {known}", **value);
            return Err(wrong(text, value.at(), key, message));
        }
    }
    Ok(())
}

/// Rejects a file without `apiVersion` or `kind`. Every key has a default, so that the empty beginning of a file that is being
/// written, or was lost, would be valid, and would switch every policy off.
fn check_complete(text: &str, file: &PolicyFile) -> Result<(), BadConfig> {
    let missing = match (&file.api_version, &file.kind) {
        (Some(_), Some(_)) => return Ok(()),
        (None, Some(_)) => "apiVersion is missing",
        (Some(_), None) => "kind is missing",
        (None, None) => "apiVersion and kind are missing",
    };
    let (api_version, kind) = (file::API_VERSION, file::KIND);
    let message =
        format!("{missing}: expected apiVersion: {api_version} and kind: {kind}, also in a file without policies");
    Err(wrong(text, Location::UNKNOWN, "", message))
}

fn parse(text: &str) -> Result<PolicyFile, BadConfig> {
    version(text)?;
    let mut path = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            // Spanned values are maps to the library.
            path = error.path().to_string().replace(".value", "");
            error.into_inner()
        })
    });
    let file = parsed.map_err(|error| {
        let at = error.location();
        let message = error.without_snippet().to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        wrong(text, at.unwrap_or(Location::UNKNOWN), &path, expected(message))
    })?;
    check_complete(text, &file)?;
    Ok(file)
}

/// Adds to a parser's message, which names the invalid text, what would be valid.
fn expected(message: &str) -> String {
    let hint = match message {
        "invalid boolean" => "true or false",
        _ if message.starts_with("invalid u") || message.starts_with("invalid i") => "a whole number, 0 or more",
        "expected sequence start" => return "expected a list".to_owned(),
        "expected mapping start" => return "expected a map of keys and values".to_owned(),
        "expected string scalar" => return "expected a string".to_owned(),
        _ if message.contains("invalid type: unit value, ") => {
            return message.replace("invalid type: unit value, ", "found no value, ");
        }
        _ if message.starts_with("cannot deserialize null into string") => {
            return "found no value, expected a string".to_owned();
        }
        _ if message.starts_with("multiple YAML documents") => {
            return "expected one YAML document, found several".to_owned();
        }
        // The rest is about the settings of the library.
        _ if message.starts_with("duplicate mapping key") => {
            let message = message.split(", set ").next().unwrap_or_default();
            return format!("{message}: expected each key once");
        }
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

/// Validates one policy, including errors that involve several keys.
fn check(text: &str, at: &str, file: &PolicyEntry) -> Result<Policy, BadConfig> {
    let refuse =
        |location: Location, key: &str, message: String| wrong(text, location, &format!("{at}.{key}"), message);
    let name = &*file.name;
    if name == policy::CATCH_ALL {
        let why = format!("{name:?} is the name of the catch-all policy that comes last: expected another name");
        return Err(refuse(file.name.at(), "name", why));
    }
    if name.is_empty() || name.len() > 40 || !name.bytes().all(is_dns_byte) {
        return Err(refuse(file.name.at(), "name", format!("{name:?}: expected 1 to 40 characters of a-z, 0-9 and -")));
    }
    if let (Some(name), None) = (&file.scheduler.name, &file.scheduler.kind) {
        let why = "no effect without scheduler.type: expected both".to_owned();
        return Err(refuse(name.at(), "scheduler.name", why));
    }
    let scheduler = file.scheduler.kind.unwrap_or_default().0;
    if let Some(name) = &file.scheduler.name {
        subdomain(name).map_err(|why| refuse(name.at(), "scheduler.name", why))?;
    }
    let queue_key = match &file.scheduler.queue_key {
        None => scheduler.queue_key,
        Some(wanted) => {
            let key = scheduler.own_queue_keys().find(|(_, key)| *key == wanted.as_str());
            Some(key.ok_or_else(|| {
                let mut known: Vec<&str> = scheduler.own_queue_keys().map(|(_, key)| key).collect();
                known.dedup();
                let why = if known.is_empty() {
                    format!("{} reads no queue from pods: expected no key", scheduler.kind)
                } else {
                    format!("{:?}: {} does not read it: expected {}", **wanted, scheduler.kind, known.join(" or "))
                };
                refuse(wanted.at(), "scheduler.queueKey", why)
            })?)
        }
    };
    for (key, class) in [("driver", &file.priority_class.driver), ("executor", &file.priority_class.executor)] {
        if let Some(class) = class {
            subdomain(class).map_err(|why| refuse(class.at(), &format!("priorityClass.{key}"), why))?;
        }
    }
    let node_pool = texts(&file.node_pool);
    for (key, value) in &node_pool {
        let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
        let sound = !name.is_empty() && is_label_value(name) && (prefix.is_empty() || subdomain(prefix).is_ok());
        if !sound || !is_label_value(value) {
            let why = format!("{key}={value} is not a valid label: expected a node label such as pool: spark");
            return Err(refuse(file.name.at(), "nodePool", why));
        }
    }
    if file.queues.as_ref().is_some_and(|queues| queues.iter().any(String::is_empty)) {
        return Err(refuse(
            file.name.at(),
            "queues",
            "empty name: expected a queue, in which * and ? are wildcards".to_owned(),
        ));
    }
    let label_queue = matches!(queue_key, Some((crate::annotations::MetadataField::Label, _)));
    match &file.queue {
        Some(queue) if label_queue && !is_label_value(queue) => {
            let why = format!(
                "{:?}: {} reads the queue from a label: expected at most 63 characters of a-z, A-Z, 0-9, -, _ and .",
                **queue, scheduler.kind
            );
            return Err(refuse(queue.at(), "queue", why));
        }
        None if scheduler.queue_required => {
            return Err(refuse(
                file.name.at(),
                "queue",
                format!("missing: expected a queue, which {} requires on every pod", scheduler.kind),
            ));
        }
        _ => {}
    }
    let shape = match &file.gang.shape {
        _ if !file.gang.enabled => Shape::Pods,
        None => scheduler.default_shape(),
        Some(wanted) => {
            let shape = **wanted;
            if shape != Shape::Pods && !scheduler.shapes.contains(&shape) {
                let can: Vec<&str> = scheduler.shapes.iter().map(|shape| shape.as_str()).collect();
                let why = format!(
                    "{:?}: a gang of this shape never starts on {}: expected {}",
                    shape.as_str(),
                    scheduler.kind,
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
            Membership::PodGroup => Membership::PodGroup,
            Membership::Annotations if scheduler.kind == "koordinator" => Membership::Annotations,
            Membership::Annotations => {
                return Err(refuse(
                    wanted.at(),
                    "gang.membership",
                    format!("annotations: only koordinator supports them, not {}: expected podGroup", scheduler.kind),
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
            gang_scheduler: scheduler,
            name: file
                .scheduler
                .name
                .as_ref()
                .map(|name| name.as_str().into())
                .or(scheduler.default_name.map(Arc::from)),
            replace: file.scheduler.replace,
            queue_key,
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
        overrides: file.overrides.as_ref().map_or_else(default_overrides, |list| list.iter().copied().collect()),
        strict: file.strict,
        validate: file.validate,
        queues: file.queues.as_ref().map(|queues| queues.iter().map(|text| Pattern::new(text)).collect()),
        node_pool,
    })
}

/// Names of schedulers and priority classes must be DNS subdomains, or the API server rejects the pod.
fn subdomain(name: &str) -> Result<(), String> {
    if is_dns_subdomain(name) {
        Ok(())
    } else {
        Err(format!(
            "{name:?}: expected a name of a-z, 0-9, - and ., each part between dots with a letter or digit at both ends"
        ))
    }
}

fn selector(file: &SelectorFile) -> Result<Selector, String> {
    for requirement in &file.match_expressions {
        let wants_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
        if wants_values == requirement.values.is_empty() {
            let expected = if wants_values { "expected values" } else { "expected no values" };
            return Err(format!("{} {:?}: {expected}", requirement.key.0, requirement.operator));
        }
    }
    let expressions = file.match_expressions.iter().map(|requirement| LabelSelectorRequirement {
        key: requirement.key.0.clone(),
        operator: format!("{:?}", requirement.operator),
        values: (!requirement.values.is_empty())
            .then(|| requirement.values.iter().map(|value| value.0.clone()).collect()),
    });
    let selector =
        LabelSelector { match_labels: Some(texts(&file.match_labels)), match_expressions: Some(expressions.collect()) };
    selector.try_into().map_err(|error: kube::core::ParseExpressionError| error.to_string())
}

/// A shorter interval between polls causes a warning.
const SHORTEST_POLL: Duration = Duration::from_secs(30);

fn lifecycle(file: &Lifecycle) -> policy::Lifecycle {
    policy::Lifecycle {
        grace: file.grace.0.min(LONGEST),
        finished: file.finished,
        keep: file.keep,
        keep_failed: file.keep_failed.0.min(LONGEST),
        poll: file.poll.0.clamp(Duration::from_secs(1), LONGEST),
    }
}
