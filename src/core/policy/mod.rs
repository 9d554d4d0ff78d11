//! Policies as the core reads them: validated and fully parsed. `usher-config` creates them from the file.

mod deletions;
pub mod matching;
pub mod nodes;
pub mod overrides;
pub mod recovery;

use schemars::JsonSchema;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use deletions::deletions;
pub use matching::{Match, Pattern};
pub use nodes::NodeSettings;
pub use recovery::{Budget, DriverAccess, DriverViews, Mode, Recovery, RecoveryRule, RuleSettings};

use crate::annotations::{MetadataField, Override};
use crate::gang::{GangScheduler, Membership, NameTemplate, Shape};
use crate::snapshot::{Namespace, SchedulingFields};
use usher_spark::pod::Pod;

/// All policies, and the settings for the whole cluster.
#[derive(Clone, Debug)]
pub struct Policies {
    /// In order; the first match wins.
    list: Vec<Policy>,
    /// For pods that no other policy matches: they get their owner and nothing else.
    catch_all: Policy,
    /// Accounts that create pods for others and therefore never become owners.
    creators_never: Vec<Pattern>,
    /// Accounts that may change gang keys and owners of existing pods.
    trusted_writers: Vec<Pattern>,
    /// The lifecycle configuration of executors that exited.
    pub lifecycle: Lifecycle,
    /// Settings of the recovery of executors.
    pub recovery: Recovery,
    /// Settings of the nodes that refuse or break executors.
    pub nodes: NodeSettings,
}

/// The lifecycle configuration of executors that exited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifecycle {
    /// How long a live driver may act first: at least twice the time that the driver may need to detect the exit.
    pub grace: Duration,
    /// What is done with their pods.
    pub finished: Finished,
    /// Which executors are kept for a driver that keeps its own.
    pub keep: Keep,
    /// How long pods are kept whose exit the application caused.
    pub keep_failed: Duration,
    /// How often the leader lists all labelled pods.
    pub poll: Duration,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Lifecycle {
            grace: Duration::from_secs(180),
            finished: Finished::Label,
            keep: Keep::default(),
            keep_failed: Duration::from_secs(3600),
            poll: Duration::from_secs(300),
        }
    }
}

/// What the controller does with finished executors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Finished {
    /// They are reported.
    Report,
    /// They are labelled inactive.
    Label,
    /// They are deleted, or labelled if the driver keeps its own.
    Delete,
}

/// Which executors are kept for a driver that keeps its own (`spark.kubernetes.executor.deleteOnTermination=false`). By
/// default, the Apache Spark operator sets this for applications with static allocation and restart policy `Never`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Keep {
    /// All of them.
    #[default]
    Respect,
    /// All of them, until the driver has ended.
    UntilDriverEnds,
    /// Those that ran: nothing can be inspected in a pod that a kubelet rejected, or that never started.
    NeverRan,
}

#[derive(Clone, Debug)]
pub struct Policy {
    /// The name, `[a-z0-9-]{1,40}`, unique in the file.
    pub name: Arc<str>,
    /// The pods that it selects.
    pub matches: Match,
    /// The scheduler that places them.
    pub scheduler: SchedulerChoice,
    /// The queue that they use.
    pub queue: Option<Arc<str>>,
    /// Priority class of drivers.
    pub driver_class: Option<Arc<str>>,
    /// Priority class of executors.
    pub executor_class: Option<Arc<str>>,
    /// How executors wait for each other.
    pub gang: Gang,
    /// The spark-usher annotations that take effect.
    pub overrides: BTreeSet<Override>,
    /// Whether undecided pods are rejected.
    pub strict: bool,
    /// What validating admission does about findings.
    pub validate: Validate,
    /// The queues that pods may name; `None` means any.
    pub queues: Option<Vec<Pattern>>,
    /// Labels of the nodes on which only this policy's scheduler places pods; empty if there are no such nodes.
    pub node_pool: BTreeMap<String, String>,
}

/// What validating admission does about findings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
pub enum Validate {
    /// It adds audit annotations.
    #[default]
    Audit,
    /// It also warns the client.
    Warn,
    /// It rejects the request.
    Enforce,
}

/// A scheduler and its name.
#[derive(Clone, Debug)]
pub struct SchedulerChoice {
    /// The wire format.
    pub gang_scheduler: &'static GangScheduler,
    /// `schedulerName`; `None` keeps the pod's.
    pub name: Option<Arc<str>>,
    /// Which names on a pod are replaced.
    pub replace: Replace,
    /// The key by which a pod names its queue: one of those that the scheduler reads.
    pub queue_key: Option<(MetadataField, &'static str)>,
}

/// Which scheduler names are replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Replace {
    /// Only `default-scheduler` or an unset name; a pod that names another scheduler keeps it.
    #[default]
    Default,
    /// Any name.
    Always,
}

/// How executors wait for each other.
#[derive(Clone, Debug)]
pub struct Gang {
    /// The gang's shape; [`Shape::Pods`] if gangs are disabled.
    pub shape: Shape,
    /// How members declare their gang.
    pub membership: Membership,
    /// The gang's size; `None` follows the application's.
    pub min_member: Option<u32>,
    /// The gang's name.
    pub name: NameTemplate,
    /// Whether the driver's ConfigMap may be read for the application's size.
    pub read_spark_conf: bool,
}

impl Policy {
    /// Whether pods may name this queue.
    pub fn allows_queue(&self, queue: &str) -> bool {
        let matches = |patterns: &Vec<Pattern>| patterns.iter().any(|pattern| pattern.matches(queue));
        self.queue.as_deref() == Some(queue) || self.queues.as_ref().is_none_or(matches)
    }
}

impl SchedulerChoice {
    /// A scheduler under its default name.
    pub fn of(scheduler: &'static GangScheduler) -> SchedulerChoice {
        SchedulerChoice {
            gang_scheduler: scheduler,
            name: scheduler.default_name.map(Arc::from),
            queue_key: scheduler.queue_key,
            replace: Replace::Default,
        }
    }

    /// Whether a pod with this schedulerName may get this scheduler.
    pub fn takes(&self, present: Option<&str>) -> bool {
        match (self.replace, present) {
            (Replace::Always, _) | (_, None | Some("" | DEFAULT_SCHEDULER)) => true,
            (Replace::Default, Some(present)) => {
                self.name.as_deref() == Some(present) || self.gang_scheduler.default_name == Some(present)
            }
        }
    }
}

/// The name of the implicit policy that comes last.
pub const CATCH_ALL: &str = "default";
/// The scheduler that every cluster has.
pub const DEFAULT_SCHEDULER: &str = "default-scheduler";

impl Policy {
    /// The name of the one scheduler that places pods on the nodes of the policy's pool, if this is another name.
    pub fn reserved_for(&self, scheduler: &str) -> Option<&str> {
        let configured = self.scheduler.name.as_deref().unwrap_or(DEFAULT_SCHEDULER);
        (!self.node_pool.is_empty() && configured != scheduler).then_some(configured)
    }

    /// Whether a node with these labels is of the policy's pool, which is not empty.
    pub fn has_node<'n>(&self, label: impl Fn(&str) -> Option<&'n str>) -> bool {
        self.node_pool.iter().all(|(key, value)| label(key) == Some(value))
    }

    /// The implicit last policy: ownership only, for every pod.
    pub fn fallback() -> Policy {
        Policy {
            name: CATCH_ALL.into(),
            matches: Match::everything(),
            scheduler: SchedulerChoice::of(&crate::gang::NONE),
            queue: None,
            driver_class: None,
            executor_class: None,
            gang: Gang {
                shape: Shape::Pods,
                membership: Membership::PodGroup,
                min_member: None,
                name: NameTemplate::default(),
                read_spark_conf: true,
            },
            overrides: default_overrides(),
            strict: false,
            validate: Validate::default(),
            queues: None,
            node_pool: BTreeMap::new(),
        }
    }
}

/// Annotations that take effect unless a policy lists its own: facts about the application, which change no policy.
pub fn default_overrides() -> BTreeSet<Override> {
    [Override::MinMember, Override::ExecutorResources].into()
}

impl Default for Policies {
    fn default() -> Self {
        Policies::new(Vec::new(), Vec::new())
    }
}

impl Policies {
    /// Completes a list with the implicit last policy, which has no conditions.
    pub fn new(list: Vec<Policy>, creators_never: Vec<Pattern>) -> Policies {
        Policies {
            list,
            catch_all: Policy::fallback(),
            creators_never,
            trusted_writers: Vec::new(),
            lifecycle: Lifecycle::default(),
            recovery: Recovery::default(),
            nodes: NodeSettings::default(),
        }
    }

    /// The values of `schedulerName` that select this scheduler: its default name, and those that policies give it.
    pub fn scheduler_names(&self, scheduler: &GangScheduler) -> BTreeSet<&str> {
        let of_kind = self.iter().filter(|policy| policy.scheduler.gang_scheduler.kind == scheduler.kind);
        scheduler
            .default_name
            .into_iter()
            .chain(of_kind.filter_map(|policy| policy.scheduler.name.as_deref()))
            .collect()
    }

    /// The key by which pods name their queue to a scheduler: the one that its first policy sets, else its type's own.
    pub fn queue_key(&self, scheduler: &GangScheduler) -> Option<(MetadataField, &'static str)> {
        let mut choices = self.iter().map(|policy| &policy.scheduler);
        let chosen = choices.find(|choice| choice.gang_scheduler.kind == scheduler.kind);
        chosen.map_or(scheduler.queue_key, |choice| choice.queue_key)
    }

    /// The same with this lifecycle configuration.
    pub fn with_lifecycle(self, lifecycle: Lifecycle) -> Policies {
        Policies { lifecycle, ..self }
    }

    /// The same with these settings of the recovery.
    pub fn with_recovery(self, recovery: Recovery) -> Policies {
        Policies { recovery, ..self }
    }

    /// The same with these settings of nodes.
    pub fn with_nodes(self, nodes: NodeSettings) -> Policies {
        Policies { nodes, ..self }
    }

    /// The same with these accounts that may change gang keys and owners of existing pods.
    pub fn with_trusted_writers(self, trusted_writers: Vec<Pattern>) -> Policies {
        Policies { trusted_writers, ..self }
    }

    /// The first policy that matches a pod; `None` if that depends on the labels of a namespace that is not known.
    pub fn choose(&self, namespace: &str, known: Option<&Namespace>, pod: &Pod<'_>) -> Option<&Policy> {
        for policy in &self.list {
            if policy.matches.matches_pod(namespace, known, pod.metadata.labels.as_ref())? {
                return Some(policy);
            }
        }
        Some(&self.catch_all)
    }

    /// The policies of which one is the first to match a pod: one, if the namespace is known or no policy before it depends on that.
    pub fn candidates(
        &self,
        namespace: &str,
        known: Option<&Namespace>,
        pod: &Pod<'_>,
    ) -> impl Iterator<Item = &Policy> {
        let mut is_reached = true;
        self.iter().filter(move |policy| {
            let matched = match is_reached {
                true => policy.matches.matches_pod(namespace, known, pod.metadata.labels.as_ref()),
                false => Some(false),
            };
            is_reached &= matched != Some(true);
            matched != Some(false)
        })
    }

    /// The strictest of these, [`Policies::candidates`] or [`Policies::possible`]; of equal ones the first.
    pub fn strictest<'p, K: Ord>(
        &'p self,
        among: impl Iterator<Item = &'p Policy>,
        strictness: impl Fn(&Policy) -> K,
    ) -> &'p Policy {
        let stricter = |max, policy| if strictness(policy) > strictness(max) { policy } else { max };
        among.reduce(stricter).unwrap_or(&self.catch_all)
    }

    /// Whether the policy of a pod may depend on the labels of this namespace.
    pub fn depend_on_labels_of(&self, namespace: &str) -> bool {
        self.possible(namespace, None).any(|policy| policy.matches.of_namespace(namespace, None).is_none())
    }

    /// Every policy that can be the first to match some pod of a namespace.
    pub fn possible(&self, namespace: &str, known: Option<&Namespace>) -> impl Iterator<Item = &Policy> {
        let mut reached = true;
        let verdict = move |policy: &Policy| policy.matches.of_namespace(namespace, known);
        let certain = |policy: &Policy| policy.matches.selects_all_pods();
        self.iter().filter(move |policy| {
            let matches = verdict(policy);
            let possible = reached && matches != Some(false);
            reached &= !(matches == Some(true) && certain(policy));
            possible
        })
    }

    /// The policies of the file, without the implicit last one.
    pub fn listed(&self) -> &[Policy] {
        &self.list
    }

    /// The accounts whose pods never become owners, as the file has them.
    pub fn creators_never(&self) -> impl Iterator<Item = String> {
        self.creators_never.iter().map(Pattern::text)
    }

    /// The accounts and groups that may change gang keys and owners of existing pods, as the file has them.
    pub fn trusted_writers(&self) -> impl Iterator<Item = String> {
        self.trusted_writers.iter().map(Pattern::text)
    }

    pub fn named(&self, name: &str) -> Option<&Policy> {
        self.iter().find(|policy| &*policy.name == name)
    }

    /// The policy that set these scheduling fields, if it still exists.
    pub fn of_scheduling(&self, scheduling: &SchedulingFields) -> Option<&Policy> {
        self.named(scheduling.set_by()?.0)
    }

    /// All policies in order.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.list.iter().chain([&self.catch_all])
    }

    /// Whether this account, or a group of it, may change gang keys and owners of existing pods.
    pub fn is_trusted_writer(&self, name: &str) -> bool {
        self.trusted_writers.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether pods of this account never become owners.
    pub fn never_owns(&self, username: &str) -> bool {
        self.creators_never.iter().any(|pattern| pattern.matches(username))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(name: &str, matches: Match) -> Policy {
        Policy { name: name.into(), matches, ..Policy::fallback() }
    }

    fn name<'p>(policies: &'p Policies, namespace: &str, known: Option<&Namespace>) -> &'p str {
        let pod: Pod<'_> = serde_json::from_str(r#"{"metadata":{"labels":{"tier":"gold"}}}"#).unwrap();
        policies.choose(namespace, known, &pod).map_or("?", |policy| &policy.name)
    }

    #[test]
    fn first_matching_policy_wins_and_default_applies_otherwise() {
        let team = Match { namespaces: vec![Pattern::new("team-*")], ..Match::everything() };
        let policies = Policies::new(vec![policy("a", team.clone()), policy("b", team)], vec![]);
        assert_eq!(name(&policies, "team-x", None), "a");
        assert_eq!(name(&policies, "other", None), "default");
        assert!(policies.named("b").is_some() && policies.named("default").is_some() && policies.named("c").is_none());
    }

    #[test]
    fn unobserved_namespace_is_undecided_only_for_namespace_selectors() {
        let by_label = Match {
            namespaces: vec![Pattern::new("team-*")],
            namespace_selector: Some([("env".to_owned(), "prod".to_owned())].into_iter().collect()),
            ..Match::everything()
        };
        let policies = Policies::new(vec![policy("prod", by_label)], vec![]);
        assert_eq!(name(&policies, "team-x", None), "?");
        assert_eq!(name(&policies, "other", None), "default", "the namespace's name alone decides");
        let prod = Namespace { labels: [("env".to_owned(), "prod".to_owned())].into(), ..Namespace::default() };
        assert_eq!(name(&policies, "team-x", Some(&prod)), "prod");
        assert_eq!(name(&policies, "team-x", Some(&Namespace::default())), "default");
    }

    #[test]
    fn policy_matches_pod_labels() {
        let gold = Match {
            pod_selector: Some([("tier".to_owned(), "gold".to_owned())].into_iter().collect()),
            ..Match::everything()
        };
        let silver = Match {
            pod_selector: Some([("tier".to_owned(), "silver".to_owned())].into_iter().collect()),
            ..Match::everything()
        };
        let policies = Policies::new(vec![policy("silver", silver), policy("gold", gold)], vec![]);
        assert_eq!(name(&policies, "x", None), "gold");
    }

    #[test]
    fn only_default_scheduler_is_replaced_unless_always() {
        let mut choice = SchedulerChoice {
            name: Some("volcano-b".into()),
            ..SchedulerChoice::of(GangScheduler::of_kind("volcano").unwrap())
        };
        assert!(choice.takes(None) && choice.takes(Some("default-scheduler")) && choice.takes(Some("volcano-b")));
        assert!(choice.takes(Some("volcano")), "the type's own name is the same scheduler");
        assert!(!choice.takes(Some("yunikorn")));
        choice.replace = Replace::Always;
        assert!(choice.takes(Some("yunikorn")));
    }

    #[test]
    fn never_creator_accounts_match_by_glob() {
        let policies = Policies::new(vec![], vec![Pattern::new("system:serviceaccount:vcluster-*:*")]);
        assert!(policies.never_owns("system:serviceaccount:vcluster-a:vc"));
        assert!(!policies.never_owns("system:serviceaccount:team:spark"));
    }
}
