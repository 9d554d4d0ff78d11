//! What executors cost that did no work for their application: the cores and the memory that they request, for how long, and why.
//!
//! Rounds of the recovery rules measure it ([`super::round`]), from what the leader observed: nothing is counted twice by two
//! leaders, and up to a minute of each executor, between two rounds, may be missing.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::OrdMap;
use jiff::Timestamp;

use super::namespaces::CountedNamespaces;
use super::rules::{RuleContext, SetContext};
use super::state::RecoveryState;
use super::waiting::waiting_group;
use crate::drivers::{Registration, registration_in};
use crate::lifecycle::cause::Cause;
use crate::lifecycle::exit::Exit;
use crate::ownership::liveness::DriverLiveness;
use crate::policy::RecoveryRule;
use crate::snapshot::{Executor, Stage};
use usher_spark::ids::AppKey;
use usher_spark::resources::ResourceList;
use usher_spark::text::vocabulary;

vocabulary! {
    /// Why an executor did no work.
    WasteCause
    /// It is on a node although its driver is gone.
    Orphaned = "orphaned";
    /// It is on a node while its gang has not started: others of it wait.
    Gang = "gang";
    /// A node rejected it: from its creation until then.
    Refused = "refused";
    /// It is bound to a node and has not started within the time of the rule `stuck`.
    Stuck = "stuck";
    /// It runs and has not registered with its driver within the time of the rule `unregistered`.
    Unregistered = "unregistered";
    /// It runs although its driver has removed it.
    GivenUp = "given-up";
    /// Its Spark container has exited, and another container of its pod runs on.
    Lingering = "lingering";
    /// Its node does not respond, or does not terminate it.
    Node = "node";
}

/// Resources that were requested, each multiplied by the time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Cores of CPU times seconds.
    pub core_seconds: f64,
    /// Bytes of memory, in seconds.
    pub byte_seconds: f64,
}

/// More cores and bytes of memory than any node has.
const MAX_CORES: f64 = 4096.0;
const MAX_BYTES: f64 = (1u64 << 46) as f64;

impl Amount {
    /// What these resources cost in this time. More than any node has counts as what the largest node has: such a pod runs nowhere,
    /// and would make the sums of all others invisible.
    pub fn of(resources: &ResourceList, time: Duration) -> Amount {
        let usage = |name: &str, max: f64| {
            resources.get(name).map_or(0.0, |quantity| quantity.as_f64()).clamp(0.0, max) * time.as_secs_f64()
        };
        Amount { core_seconds: usage("cpu", MAX_CORES), byte_seconds: usage("memory", MAX_BYTES) }
    }

    /// Adds another one.
    pub fn add(&mut self, other: Amount) {
        self.core_seconds += other.core_seconds;
        self.byte_seconds += other.byte_seconds;
    }
}

/// Why an executor does no work now, and since when.
pub fn of_executor(
    context: &RuleContext<'_>,
    set_context: &SetContext<'_>,
    executor: &Executor,
    state: &RecoveryState,
) -> Option<(WasteCause, Instant)> {
    let seen = executor.stage_seen()?;
    executor.node.as_ref()?;
    let stage = executor.stage();
    let node_since = match stage {
        Stage::Final => return None,
        Stage::Lingering => return Some((WasteCause::Lingering, seen)),
        // It waits for a finalizer only.
        Stage::Terminating if executor.is_over && !executor.lingers => return None,
        Stage::Terminating => Some(seen + executor.termination_grace()).filter(|since| *since <= context.now.at),
        Stage::Unknown => Some(seen),
        Stage::Unscheduled | Stage::Initializing | Stage::Starting | Stage::Running => None,
    };
    if let Some(since) = node_since {
        return Some((WasteCause::Node, since));
    }
    if stage == Stage::Terminating || executor.inactive {
        return None;
    }
    if let Some(gone) =
        set_context.gone_since.filter(|_| set_context.set.driver == DriverLiveness::Gone && set_context.set.is_certain)
    {
        return Some((WasteCause::Orphaned, executor.first_seen.map_or(gone, |seen| seen.max(gone))));
    }
    let view = set_context.view.as_ref().map(|(view, _)| *view);
    let within = Some(context.recovery.rule(RecoveryRule::Unregistered).after);
    let registration = registration_in(view, executor, within);
    if matches!(registration, Registration::Registered(_)) {
        return None;
    }
    if waiting_group(context.snapshot, context.key, &executor.template.scheduling).is_some() {
        return Some((WasteCause::Gang, seen));
    }
    match (stage, registration) {
        (Stage::Starting | Stage::Initializing, _) => {
            let is_late = seen + context.recovery.starts_within(stage) <= context.now.at;
            is_late.then_some((WasteCause::Stuck, seen))
        }
        (Stage::Running, Registration::NotRegistered) => Some((WasteCause::Unregistered, seen)),
        (Stage::Running, Registration::Removed(_)) => {
            Some((WasteCause::GivenUp, state.removed_since(&executor.uid).unwrap_or(context.now.at)))
        }
        _ => None,
    }
}

/// Whether an executor holds resources of a node.
pub fn holds_resources(executor: &Executor) -> bool {
    executor.node.is_some() && (!executor.is_over || executor.lingers)
}

/// The longest time between creation and rejection that counts.
const MAX_REFUSED: Duration = Duration::from_secs(3600);

/// What an executor cost that a node rejected.
pub fn of_exit(exit: &Exit) -> Option<Amount> {
    let created = exit.executor.created.filter(|_| exit.cause == Cause::AdmissionRefused)?;
    let seconds = u64::try_from(exit.ended_at().as_second() - i64::from(created.get())).ok()?;
    Some(Amount::of(&exit.executor.template.requests, Duration::from_secs(seconds).min(MAX_REFUSED)))
}

/// At most this many applications are remembered one by one.
const MAX_APPS: usize = 5000;
/// An executor that a rule deleted would have cost this long at most.
const GIVEN_BACK: Duration = Duration::from_secs(3600);
/// At most this many deleted executors are tracked.
const MAX_TRACKED: usize = 10_000;

/// The costs since this replica began to lead, by application, namespace and cause. Cloning it is cheap.
#[derive(Clone, Debug, Default)]
pub struct CostLedger {
    /// Since when it counts: since this replica began to lead.
    pub since: Option<Timestamp>,
    apps: OrdMap<AppKey, BTreeMap<WasteCause, Amount>>,
    /// The same, in the order in which they were added.
    order: imbl::Vector<AppKey>,
    namespaces: OrdMap<(Arc<str>, WasteCause), Amount>,
    given_back: OrdMap<(Arc<str>, RecoveryRule), Amount>,
    names: CountedNamespaces,
}

/// An executor that a rule deleted.
#[derive(Clone, Debug)]
struct DeletedExecutor {
    namespace: Arc<str>,
    rule: RecoveryRule,
    resources: ResourceList,
    until: Instant,
}

/// Executors that rules deleted lately: what they would have cost since.
#[derive(Debug, Default)]
pub struct GivenBack {
    tracked: VecDeque<DeletedExecutor>,
    counted: Option<Instant>,
}

impl GivenBack {
    /// A rule deleted an executor with these requests.
    pub fn deleted(&mut self, namespace: &str, rule: RecoveryRule, resources: &ResourceList, now: Instant) {
        if self.tracked.len() < MAX_TRACKED {
            let (namespace, resources) = (namespace.into(), resources.clone());
            self.tracked.push_back(DeletedExecutor { namespace, rule, resources, until: now + GIVEN_BACK });
        }
    }

    /// What they would have cost since the last call.
    pub fn count(&mut self, now: Instant) -> Vec<(Arc<str>, RecoveryRule, Amount)> {
        let from = self.counted.replace(now).unwrap_or(now);
        let amount = |one: &DeletedExecutor| {
            // It was deleted within this time, or before.
            let begin = (one.until - GIVEN_BACK).max(from);
            Amount::of(&one.resources, now.min(one.until).saturating_duration_since(begin))
        };
        let counted = self.tracked.iter().map(|one| (one.namespace.clone(), one.rule, amount(one))).collect();
        while self.tracked.pop_front_if(|one| one.until <= now).is_some() {}
        counted
    }
}

impl CostLedger {
    pub fn since(now: Timestamp) -> CostLedger {
        CostLedger { since: Some(now), ..CostLedger::default() }
    }

    /// An application's executors did no work.
    pub fn add(&mut self, app: &AppKey, cause: WasteCause, amount: Amount) {
        if !self.apps.contains_key(app) {
            self.order.push_back(app.clone());
            if self.order.len() > MAX_APPS
                && let Some(oldest) = self.order.pop_front()
            {
                self.apps.remove(&oldest);
            }
        }
        self.apps.entry(app.clone()).or_default().entry(cause).or_default().add(amount);
        self.namespaces.entry((self.names.name(app.namespace()), cause)).or_default().add(amount);
    }

    /// A rule gave resources back.
    pub fn add_given_back(&mut self, namespace: &str, rule: RecoveryRule, amount: Amount) {
        self.given_back.entry((self.names.name(namespace), rule)).or_default().add(amount);
    }

    /// The costs of applications, by cause.
    pub fn apps(&self) -> impl Iterator<Item = (&AppKey, WasteCause, Amount)> {
        self.apps.iter().flat_map(|(app, causes)| causes.iter().map(move |(cause, amount)| (app, *cause, *amount)))
    }

    /// The costs of namespaces, by cause.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, WasteCause, Amount)> {
        self.namespaces.iter().map(|((namespace, cause), amount)| (&**namespace, *cause, *amount))
    }

    /// What rules gave back, by namespace.
    pub fn given_back(&self) -> impl Iterator<Item = (&str, RecoveryRule, Amount)> {
        self.given_back.iter().map(|((namespace, rule), amount)| (&**namespace, *rule, *amount))
    }
}

/// Until when a part of an executor's time was counted, so that no time is counted twice.
pub fn uncounted(since: Instant, counted: Option<Instant>, leads_since: Instant, now: Instant) -> Duration {
    let from = counted.map_or_else(|| since.max(leads_since), |counted| counted.max(since));
    now.saturating_duration_since(from)
}

#[cfg(test)]
mod tests {
    use super::super::namespaces::{MAX_NAMESPACES, OTHER};
    use super::*;
    use crate::test_time::instant;
    use usher_spark::quantity::Quantity;

    fn resources() -> ResourceList {
        let mut resources = ResourceList::default();
        resources.set("cpu", Quantity::units(2));
        resources.set("memory", Quantity::mebibytes(1));
        resources
    }

    #[test]
    fn amount_is_requests_times_time() {
        let amount = Amount::of(&resources(), Duration::from_secs(10));
        assert_eq!(amount, Amount { core_seconds: 20.0, byte_seconds: 10.0 * 1_048_576.0 });
        assert_eq!(Amount::of(&ResourceList::default(), Duration::from_secs(10)), Amount::default());
        let mut made_up = ResourceList::default();
        for resource in ["cpu", "memory"] {
            made_up.set(resource, "9E".parse().unwrap());
        }
        let amount = Amount::of(&made_up, Duration::from_secs(1));
        assert_eq!(amount, Amount { core_seconds: MAX_CORES, byte_seconds: MAX_BYTES });
    }

    #[test]
    fn time_is_counted_once_and_never_from_before_this_replica_led() {
        let at = |seconds| instant() + Duration::from_secs(seconds);
        let now = at(0);
        let at = |seconds| now + Duration::from_secs(seconds);
        let seconds = |since, counted, leads| uncounted(since, counted, leads, at(100)).as_secs();
        assert_eq!(seconds(at(40), None, at(0)), 60);
        assert_eq!(seconds(at(40), None, at(70)), 30, "the previous leader counted the rest");
        assert_eq!(seconds(at(40), Some(at(90)), at(0)), 10);
        assert_eq!(seconds(at(95), Some(at(90)), at(0)), 5, "another condition began later");
    }

    #[test]
    fn deleted_executors_give_back_an_hour_at_most() {
        let now = instant();
        let at = |seconds| now + Duration::from_secs(seconds);
        let mut back = GivenBack::default();
        assert!(back.count(at(0)).is_empty());
        back.deleted("n", RecoveryRule::Orphans, &resources(), at(30));
        let cores =
            |back: &mut GivenBack, at| back.count(at).iter().map(|(.., amount)| amount.core_seconds).sum::<f64>();
        assert_eq!(cores(&mut back, at(60)), 60.0, "thirty seconds of two cores");
        assert_eq!(cores(&mut back, at(120)), 120.0);
        assert_eq!(cores(&mut back, at(10_000)), 2.0 * (3600.0 - 90.0));
        assert_eq!(cores(&mut back, at(20_000)), 0.0);
        assert!(back.tracked.is_empty());
    }

    #[test]
    fn applications_and_namespaces_are_bounded_and_nothing_is_lost() {
        let mut ledger = CostLedger::default();
        let amount = Amount { core_seconds: 1.0, byte_seconds: 1.0 };
        for number in 0..MAX_APPS + 100 {
            let app = AppKey::new(&format!("n{number}"), "spark-a");
            ledger.add(&app, WasteCause::Gang, amount);
        }
        assert_eq!(ledger.apps().count(), MAX_APPS);
        assert_eq!(ledger.namespaces().count(), MAX_NAMESPACES + 1);
        let total: f64 = ledger.namespaces().map(|(.., amount)| amount.core_seconds).sum();
        assert_eq!(total, (MAX_APPS + 100) as f64);
        assert!(ledger.namespaces().any(|(name, ..)| name == OTHER));
    }
}
