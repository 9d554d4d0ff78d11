//! Reads a text into policies. Every error is reported, with the line, the key and what was expected; no part of an invalid file is
//! used.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use serde_saphyr::Location;

use super::file::{Lifecycle, MinMemberFile, Operator, PolicyEntry, SelectorFile};
use super::label_text::texts;
use super::located::Located;
use super::nodes;
use super::parse::parse;
use super::recovery;
use super::span::LONGEST;
use super::wrong::{BadConfig, Errors, Wrong};
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

/// Reads and validates a file.
pub fn from_path(path: &Path) -> Result<Config, BadConfig> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| BadConfig::Unreadable { path: path.display().to_string(), source })?;
    from_text(&text)
}

/// Validates a text. Of errors in its form it reports the first.
pub fn from_text(text: &str) -> Result<Config, BadConfig> {
    read(text, false).map_err(BadConfig::Wrong)
}

/// The same, with every error that can be found. It reads the text once for each.
pub fn every_error(text: &str) -> Result<Config, Vec<Wrong>> {
    read(text, true)
}

fn read(text: &str, every: bool) -> Result<Config, Vec<Wrong>> {
    let mut warnings = Vec::new();
    let (file, found) = parse(text, every);
    let mut errors = Errors { text, found };
    let Some(file) = file else { return Err(errors.sorted()) };
    let mut names = BTreeSet::new();
    let mut policies = Vec::new();
    for (i, policy) in file.policies.iter().enumerate() {
        let at = format!("policies[{i}]");
        // What is left of it without the keys that are wrong is not what was meant.
        let is_cut = errors.concern(&at);
        let is_new = names.insert(policy.name.as_str());
        let checked = (!is_cut).then(|| check(&mut errors, &at, policy));
        if !is_new {
            let message =
                format!("{:?} is the name of an earlier policy: expected a unique name", policy.name.as_str());
            errors.add(policy.name.at(), &format!("{at}.name"), message);
        }
        let Some(checked) = checked else { continue };
        if errors.concern(&at) {
            continue;
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
            errors.add(location, &format!("{at}.scheduler.queueKey"), why);
            continue;
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
            let message = "empty name: expected a name, in which * and ? are wildcards".to_owned();
            errors.add(Location::UNKNOWN, key, message);
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
    if !errors.found.is_empty() {
        return Err(errors.sorted());
    }
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

/// Validates one policy, including errors that involve several keys.
fn check(errors: &mut Errors<'_>, at: &str, file: &PolicyEntry) -> Policy {
    // With a name of a scheduler and no type, the type is missing: what depends on it is not known.
    let is_typed = file.scheduler.kind.is_some() || file.scheduler.name.is_none();
    let mut refuse = |location: Location, key: &str, message: String| {
        if !is_typed && ["scheduler.queueKey", "queue", "gang.shape", "gang.membership"].contains(&key) {
            return;
        }
        errors.add(location, &format!("{at}.{key}"), message);
    };
    let name = &*file.name;
    if name == policy::CATCH_ALL {
        let why = format!("{name:?} is the name of the catch-all policy that comes last: expected another name");
        refuse(file.name.at(), "name", why);
    }
    if name.is_empty() || name.len() > 40 || !name.bytes().all(is_dns_byte) {
        refuse(file.name.at(), "name", format!("{name:?}: expected 1 to 40 characters of a-z, 0-9 and -"));
    }
    if let (Some(name), None) = (&file.scheduler.name, &file.scheduler.kind) {
        let why = "no effect without scheduler.type: expected both".to_owned();
        refuse(name.at(), "scheduler.name", why);
    }
    let scheduler = file.scheduler.kind.unwrap_or_default().0;
    let (driver, executor) = (&file.priority_class.driver, &file.priority_class.executor);
    let names = [
        ("scheduler.name", &file.scheduler.name),
        ("priorityClass.driver", driver),
        ("priorityClass.executor", executor),
    ];
    for (key, name) in names.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?))) {
        if let Err(why) = subdomain(name) {
            refuse(name.at(), key, why);
        }
    }
    let queue_key = match &file.scheduler.queue_key {
        None => scheduler.queue_key,
        Some(wanted) => {
            let key = scheduler.own_queue_keys().find(|(_, key)| *key == wanted.as_str());
            if key.is_none() {
                let mut known: Vec<&str> = scheduler.own_queue_keys().map(|(_, key)| key).collect();
                known.dedup();
                let why = if known.is_empty() {
                    format!("{} reads no queue from pods: expected no key", scheduler.kind)
                } else {
                    format!("{:?}: {} does not read it: expected {}", **wanted, scheduler.kind, known.join(" or "))
                };
                refuse(wanted.at(), "scheduler.queueKey", why);
            }
            key
        }
    };
    let node_pool = texts(&file.node_pool);
    for (key, value) in &node_pool {
        let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
        let sound = !name.is_empty() && is_label_value(name) && (prefix.is_empty() || subdomain(prefix).is_ok());
        if !sound || !is_label_value(value) {
            let why = format!("{key}={value} is not a valid label: expected a node label such as pool: spark");
            refuse(file.name.at(), "nodePool", why);
        }
    }
    if file.queues.as_ref().is_some_and(|queues| queues.iter().any(String::is_empty)) {
        let message = "empty name: expected a queue, in which * and ? are wildcards".to_owned();
        refuse(file.name.at(), "queues", message);
    }
    let label_queue = matches!(queue_key, Some((crate::annotations::MetadataField::Label, _)));
    match &file.queue {
        Some(queue) if label_queue && !is_label_value(queue) => {
            let why = format!(
                "{:?}: {} reads the queue from a label: expected at most 63 characters of a-z, A-Z, 0-9, -, _ and .",
                **queue, scheduler.kind
            );
            refuse(queue.at(), "queue", why);
        }
        None if scheduler.queue_required => {
            let message = format!("missing: expected a queue, which {} requires on every pod", scheduler.kind);
            refuse(file.name.at(), "queue", message);
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
                refuse(wanted.at(), "gang.shape", why);
            }
            shape
        }
    };
    let membership = match &file.gang.membership {
        None => Membership::PodGroup,
        Some(wanted) => match **wanted {
            Membership::PodGroup => Membership::PodGroup,
            Membership::Annotations => {
                if scheduler.kind != "koordinator" {
                    let message = format!(
                        "annotations: only koordinator supports them, not {}: expected podGroup",
                        scheduler.kind
                    );
                    refuse(wanted.at(), "gang.membership", message);
                }
                Membership::Annotations
            }
        },
    };
    let mut selector = |wanted: &Option<Located<SelectorFile>>, key: &str| {
        let wanted = wanted.as_ref()?;
        selector(wanted).map_err(|why| refuse(wanted.at(), key, why)).ok()
    };
    Policy {
        name: name.as_str().into(),
        matches: Match {
            namespaces: file.matches.namespaces.iter().map(|text| Pattern::new(text)).collect(),
            namespace_selector: selector(&file.matches.namespace_selector, "match.namespaceSelector"),
            pod_selector: selector(&file.matches.pod_selector, "match.podSelector").map(Into::into),
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
    }
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
