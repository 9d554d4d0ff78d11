//! Reads a text into policies. Every error is reported, with the line, the key and what was expected; no part of an invalid file is
//! used.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_saphyr::Location;

use super::duration::LONGEST;
use super::entry;
use super::file::{Lifecycle, PolicyFile};
use super::nodes;
use super::parse::parse;
use super::recovery;
use super::wrong::{BadConfig, Errors, Wrong};
use usher_core::gang::Shape;
use usher_core::policy::{self, Pattern, Policies, Policy, Validate};

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

/// Validates a text. Of errors in its form it reports the first.
pub fn from_text(text: &str) -> Result<Config, BadConfig> {
    read(text, false).map_err(BadConfig::Wrong)
}

/// The same, with every error that can be found. It reads the text once for each.
pub fn every_error(text: &str) -> Result<Config, Vec<Wrong>> {
    read(text, true)
}

fn read(text: &str, every: bool) -> Result<Config, Vec<Wrong>> {
    let (file, found) = parse(text, every);
    let mut errors = Errors { text, found };
    let Some(file) = file else { return Err(errors.sorted()) };
    let mut warnings = Vec::new();
    let policies = policies(&file, &mut errors, &mut warnings);
    let writers = file.trusted_writers.clone().unwrap_or_else(|| accounts_of(&policies));
    accounts(&file, &writers, &mut errors, &mut warnings);
    if file.lifecycle.poll.0 < SHORTEST_POLL {
        warnings.push(format!(
            "lifecycle.poll is {:?}: every poll lists the metadata of all Spark pods in the cluster{}",
            file.lifecycle.poll.0,
            if file.lifecycle.poll.0 < Duration::from_secs(1) { "; 1s applies" } else { "" }
        ));
    }
    warnings.extend(recovery::warnings(&file.recovery));
    warnings.extend(nodes::warnings(&file.nodes));
    if !errors.found.is_empty() {
        return Err(errors.sorted());
    }
    let patterns = |names: &[String]| names.iter().map(|text| Pattern::new(text)).collect();
    Ok(Config {
        policies: Arc::new(
            Policies::new(policies, patterns(&file.creators.never))
                .with_lifecycle(lifecycle(&file.lifecycle))
                .with_recovery(recovery::settings(&file.recovery, file.lifecycle.dry_run))
                .with_nodes(nodes::settings(&file.nodes))
                .with_trusted_writers(patterns(&writers)),
        ),
        settings: Settings { dry_run: file.lifecycle.dry_run },
        warnings,
    })
}

/// The policies without errors, each checked alone and with those before it.
fn policies(file: &PolicyFile, errors: &mut Errors<'_>, warnings: &mut Vec<String>) -> Vec<Policy> {
    let mut names = BTreeSet::new();
    let mut policies = Vec::new();
    for (i, entry) in file.policies.iter().enumerate() {
        let at = format!("policies[{i}]");
        // A policy with a wrong key is not checked further: without that key it is not what its author meant.
        let checked = (!errors.concern(&at)).then(|| entry::check(errors, &at, entry));
        let name = entry.name.as_str();
        if !names.insert(name) {
            let message = format!("{name:?} is the name of an earlier policy: expected a unique name");
            errors.add(entry.name.at(), &format!("{at}.name"), message);
        }
        let Some(checked) = checked else { continue };
        if errors.concern(&at) {
            continue;
        }
        if let Some(why) = other_queue_key(&checked, &policies) {
            let location = entry.scheduler.queue_key.as_ref().map_or(entry.name.at(), |wanted| wanted.at());
            errors.add(location, &format!("{at}.scheduler.queueKey"), why);
            continue;
        }
        warnings.extend(without_effect(&at, &checked, &policies));
        policies.push(checked);
    }
    policies
}

/// Why the policy's queue key is wrong: an earlier one names another key of the same scheduler.
fn other_queue_key(policy: &Policy, earlier: &[Policy]) -> Option<String> {
    let (kind, queue_key) = (policy.scheduler.gang_scheduler.kind, policy.scheduler.queue_key);
    let other = earlier
        .iter()
        .find(|earlier| earlier.scheduler.gang_scheduler.kind == kind && earlier.scheduler.queue_key != queue_key)?;
    let key = other.scheduler.queue_key.map_or("", |(_, key)| key);
    Some(format!("expected {key}, the key of policy {}: {kind} reads one key", other.name))
}

/// Warnings about what has no effect in a valid policy.
fn without_effect(at: &str, policy: &Policy, earlier: &[Policy]) -> Vec<String> {
    let scheduler = policy.scheduler.gang_scheduler;
    let kind = scheduler.kind;
    let mut warnings = Vec::new();
    if let Some(all) = earlier.iter().find(|earlier| earlier.matches.is_everything()) {
        warnings
            .push(format!("{at} ({}) is never reached: policy {} before it matches every pod", policy.name, all.name));
    }
    if policy.queue.is_some() && !scheduler.takes_queue(policy.gang.shape) {
        let why = match scheduler.takes_queue(Shape::Executors) {
            true => format!("{kind} reads the queue from the PodGroup, and this policy creates no gangs"),
            false => format!("{kind} has no queues"),
        };
        warnings.push(format!("{at}.queue has no effect: {why}"));
    }
    if policy.queues.is_some() && scheduler.harmless_owners.is_some() {
        warnings.push(format!(
            "{at}.queues does not restrict the queue that the labels of a pod's topmost owner name, such as a Job: {kind} reads them before the pod's"
        ));
    }
    warnings
}

/// Checks the names of accounts: those that may change gangs and owners, and those that own nothing.
fn accounts(file: &PolicyFile, writers: &[String], errors: &mut Errors<'_>, warnings: &mut Vec<String>) {
    for (key, names) in [("trustedWriters", writers), ("creators.never", &file.creators.never)] {
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
}

/// The accounts of the schedulers that the policies use.
fn accounts_of(policies: &[Policy]) -> Vec<String> {
    let all = policies.iter().flat_map(|policy| policy.scheduler.gang_scheduler.accounts);
    let all: BTreeSet<String> = all.map(|account| (*account).to_owned()).collect();
    all.into_iter().collect()
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
