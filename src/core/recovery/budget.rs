//! How many pods the recovery rules may delete, per rule and application, and in the whole cluster; and how long they wait before
//! they delete another one whose driver replaces it.
//!
//! A new leader does not know what the previous one deleted. So it begins with nothing, and its budgets grow from the time at
//! which it became leader: in no history are more than twice as many pods deleted within a budget's time as the budget allows.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::policy::{Budget, Recovery, RecoveryRule};
use usher_spark::ids::AppKey;

/// Deletions of one round begin within this time; the next round begins later.
const ONE_ROUND: Duration = Duration::from_secs(2);
/// A pod that was not deleted is tried again after this time.
pub(super) const TRY_AGAIN: Duration = Duration::from_secs(60);
/// The wait doubles with each deletion, at most this often.
const MAX_DOUBLINGS: u32 = 5;

/// What the rules have deleted lately.
#[derive(Debug)]
pub struct DeletionBudget {
    /// When this replica became leader.
    since: Instant,
    /// Since when it has, with rules that are not all off.
    measured_since: Instant,
    /// All deletions.
    cluster: Account,
    /// Those in each namespace: one tenant's pods take at most half of the cluster's budget.
    namespaces: BTreeMap<String, Account>,
    apps: BTreeMap<(AppKey, RecoveryRule), Spent>,
}

/// What was deleted in a part of the cluster, and how many deletions are reserved.
#[derive(Debug, Default)]
struct Account {
    deletions: Log,
    reserved: u32,
}

#[derive(Debug, Default)]
struct Spent {
    deletions: Log,
    /// Pods that the last plan is allowed to delete, and whose deletion has not begun.
    reserved: HashSet<Arc<str>>,
    /// How many times the rule has deleted in a row; deletions of one round count once.
    rounds: u32,
    /// When the last deletion began, also of a pod for which an earlier request failed.
    last_begun: Option<Instant>,
    /// Pods that were deleted, or may have been: later attempts take nothing back.
    deleted: HashSet<Arc<str>>,
    /// Pods that were not deleted, why not, and until when they are left alone.
    held: HashMap<Arc<str>, (&'static str, Instant)>,
}

/// How the deletion of a pod by a rule ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub rule: RecoveryRule,
    /// The pod's uid.
    pub uid: Arc<str>,
    /// Why the pod was not deleted, for people: a clause after "because"; `None` if it was, or may have been: a request that
    /// failed may have been executed all the same.
    pub not_deleted: Option<&'static str>,
}

/// A pod, by its uid, and the rule that deletes it.
type Charged = (RecoveryRule, Arc<str>);

/// Deletions in the order of their times. Each pod is in it once for each rule.
#[derive(Debug, Default)]
struct Log {
    deletions: VecDeque<(Instant, Charged)>,
    charged: HashMap<Charged, Instant>,
}

impl Account {
    /// This many reserved deletions have begun, or will not.
    fn free(&mut self, count: u32) {
        self.reserved = self.reserved.saturating_sub(count);
    }
}

impl Log {
    /// When this deletion was charged.
    fn charged(&self, deletion: &Charged) -> Option<Instant> {
        self.charged.get(deletion).copied()
    }

    fn last(&self) -> Option<Instant> {
        self.deletions.back().map(|(at, _)| *at)
    }

    /// How many deletions other than this one were charged within this time.
    fn used(&self, per: Duration, deletion: &Charged, now: Instant) -> u32 {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < per;
        let recent = self.deletions.len() - self.deletions.partition_point(|(at, _)| !is_recent(*at));
        let charged = usize::from(self.charged(deletion).is_some_and(is_recent));
        u32::try_from(recent - charged).unwrap_or(u32::MAX)
    }

    /// Whether a budget allows the deletion of this pod, while this many others are reserved; else when it does. `since` is when this
    /// replica became leader.
    fn available(
        &self,
        budget: Budget,
        reserved: u32,
        deletion: &Charged,
        since: Instant,
        now: Instant,
    ) -> Result<(), Instant> {
        let Budget { count, per } = budget;
        let used = self.used(per, deletion, now).saturating_add(reserved);
        // What the previous leader may have used.
        let led = now.saturating_duration_since(since).min(per);
        let earned = if per.is_zero() { 1.0 } else { led.as_secs_f64() / per.as_secs_f64() };
        let earned = (f64::from(count) * earned).floor() as u32;
        if used < earned.min(count) {
            return Ok(());
        }
        if count == 0 {
            return Err(now + per.max(Duration::from_secs(60)));
        }
        let each = per / count;
        let grown = since + each.saturating_mul(used.saturating_add(1).min(count)) + Duration::from_millis(1);
        let freed = self.first_of_last(count).filter(|_| used >= count).map_or(now, |at| at + per);
        Err(grown.max(freed).max(now + Duration::from_millis(1)))
    }

    /// When this many of the last deletions were charged: the time of the first of them.
    fn first_of_last(&self, count: u32) -> Option<Instant> {
        let at = self.deletions.len().checked_sub(usize::try_from(count).ok()?)?;
        self.deletions.get(at).map(|(at, _)| *at)
    }

    /// Charges a deletion, instead of an earlier charge.
    fn charge(&mut self, deletion: Charged, now: Instant) {
        if self.charged.insert(deletion.clone(), now).is_some() {
            self.deletions.retain(|(_, other)| *other != deletion);
        }
        self.deletions.push_back((now, deletion));
    }

    /// Takes a charge back. Returns whether it was the only one of its round.
    fn take_back(&mut self, deletion: &Charged) -> bool {
        let Some(charged) = self.charged.remove(deletion) else { return false };
        self.deletions.retain(|(_, other)| other != deletion);
        let distance = |at: Instant| at.saturating_duration_since(charged).max(charged.saturating_duration_since(at));
        self.deletions.iter().all(|(at, _)| distance(*at) >= ONE_ROUND)
    }

    /// Forgets deletions that were charged this long ago, except the last `kept`.
    fn expire(&mut self, per: Duration, kept: usize, now: Instant) {
        while self.deletions.len() > kept
            && let Some((_, deletion)) =
                self.deletions.pop_front_if(|(at, _)| now.saturating_duration_since(*at) >= per)
        {
            self.charged.remove(&deletion);
        }
    }
}

/// Why a deletion must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exhausted {
    /// The rule's budget for the application is used up until this time.
    Application(Instant),
    /// The budget for the cluster is used up until this time.
    Cluster(Instant),
    /// The namespace's share of that, one half, is used up until this time.
    Namespace(Instant),
    /// The driver replaced the last one, and another one is in the same trouble: the rule waits longer each time.
    BackOff(Instant),
    /// The pod was not deleted a moment ago, for this reason.
    Held(&'static str, Instant),
}

impl Exhausted {
    /// When the deletion is possible at the earliest.
    pub fn until(self) -> Instant {
        match self {
            Exhausted::Application(at)
            | Exhausted::Cluster(at)
            | Exhausted::Namespace(at)
            | Exhausted::BackOff(at)
            | Exhausted::Held(_, at) => at,
        }
    }

    /// The reason, for people.
    pub fn text(self) -> &'static str {
        match self {
            Exhausted::Application(_) => "the rule's budget for this application is used up",
            Exhausted::Cluster(_) => "the budget of all rules for the cluster is used up",
            Exhausted::Namespace(_) => "this namespace has used up half of the cluster's budget",
            Exhausted::BackOff(_) => "its predecessor was deleted for the same reason, so the rule waits longer",
            Exhausted::Held(why, _) => why,
        }
    }
}

impl DeletionBudget {
    /// The budget of a leader that begins now.
    pub fn new(now: Instant) -> DeletionBudget {
        DeletionBudget {
            since: now,
            measured_since: now,
            cluster: Account::default(),
            namespaces: BTreeMap::new(),
            apps: BTreeMap::new(),
        }
    }

    /// This replica is leader again: meanwhile another one may have deleted pods.
    pub(crate) fn leads_since(&mut self, now: Instant) {
        (self.since, self.measured_since) = (now, now);
        // Nothing of what was planned before begins.
        self.cluster.reserved = 0;
        self.namespaces.values_mut().for_each(|account| account.reserved = 0);
        self.apps.values_mut().for_each(|spent| spent.reserved.clear());
    }

    /// Every rule is off: nothing is measured.
    pub(crate) fn rules_are_off(&mut self, now: Instant) {
        self.measured_since = now;
    }

    /// Since when costs have been measured: this replica leads, and a rule is on.
    pub fn measured_since(&self) -> Instant {
        self.measured_since
    }

    /// A round of an application begins: what the previous one reserved, and did not begin, is planned again or void.
    pub(crate) fn begin_round(&mut self, app: &AppKey) {
        let from = (app.clone(), RecoveryRule::ALL[0]);
        for (_, spent) in self.apps.range_mut(from..).take_while(|((charged, _), _)| charged == app) {
            let freed = count(spent.reserved.len());
            self.cluster.free(freed);
            if let Some(account) = self.namespaces.get_mut(app.namespace()) {
                account.free(freed);
            }
            spent.reserved.clear();
        }
    }

    /// Begins a deletion: it is charged. Returns whether it is still allowed: it was reserved, or can be. A pod whose deletion failed
    /// is charged again, instead of the first time.
    pub(crate) fn begin(
        &mut self,
        recovery: &Recovery,
        app: &AppKey,
        rule: RecoveryRule,
        uid: &Arc<str>,
        now: Instant,
    ) -> bool {
        if self.reserve(recovery, app, rule, uid, now).is_err() {
            return false;
        }
        let spent = self.apps.entry((app.clone(), rule)).or_default();
        let of_namespace = self.namespaces.entry(app.namespace().to_owned()).or_default();
        if spent.reserved.remove(uid) {
            self.cluster.free(1);
            of_namespace.free(1);
        }
        let deletion = (rule, uid.clone());
        let is_retry = spent.deletions.charged(&deletion).is_some();
        let is_new = spent.last_begun.is_none_or(|last| now.saturating_duration_since(last) >= ONE_ROUND);
        if is_new && !is_retry {
            spent.rounds += 1;
        }
        spent.last_begun = Some(now);
        spent.deletions.charge(deletion.clone(), now);
        of_namespace.deletions.charge(deletion.clone(), now);
        self.cluster.deletions.charge(deletion, now);
        true
    }

    /// Reserves a deletion until it begins, or until the next round.
    pub fn reserve(
        &mut self,
        recovery: &Recovery,
        app: &AppKey,
        rule: RecoveryRule,
        uid: &Arc<str>,
        now: Instant,
    ) -> Result<(), Exhausted> {
        let settings = recovery.rule(rule);
        let spent = self.apps.entry((app.clone(), rule)).or_default();
        let deletion = (rule, uid.clone());
        let is_retry = spent.deletions.charged(&deletion).is_some();
        if let Some((why, until)) = spent.held.get(uid).filter(|(_, until)| *until > now) {
            return Err(Exhausted::Held(why, *until));
        }
        if spent.reserved.contains(uid) {
            return Ok(());
        }
        let is_earlier = |last: &Instant| now.saturating_duration_since(*last) >= ONE_ROUND;
        if let Some(last) = spent.last_begun.filter(|last| is_earlier(last) && !is_retry)
            && let until = last + back_off(rule, settings.after, spent.rounds)
            && until > now
        {
            return Err(Exhausted::BackOff(until));
        }
        let (since, reserved) = (self.since, count(spent.reserved.len()));
        let available =
            |budget, deletions: &Log, reserved| deletions.available(budget, reserved, &deletion, since, now);
        available(settings.budget, &spent.deletions, reserved).map_err(Exhausted::Application)?;
        available(recovery.budget, &self.cluster.deletions, self.cluster.reserved).map_err(Exhausted::Cluster)?;
        let of_namespace = self.namespaces.entry(app.namespace().to_owned()).or_default();
        let share = Budget { count: recovery.budget.count.div_ceil(2), ..recovery.budget };
        available(share, &of_namespace.deletions, of_namespace.reserved).map_err(Exhausted::Namespace)?;
        // One that was charged already is counted already.
        if !is_retry && spent.reserved.insert(uid.clone()) {
            self.cluster.reserved += 1;
            of_namespace.reserved += 1;
        }
        Ok(())
    }

    /// A deletion ended. If it did not happen, its charge is taken back, and it is possible again after a while.
    pub fn ended(&mut self, app: &AppKey, deletion: &Attempt, now: Instant) {
        let Some(spent) = self.apps.get_mut(&(app.clone(), deletion.rule)) else { return };
        let Some(why) = deletion.not_deleted else {
            spent.deleted.insert(deletion.uid.clone());
            return;
        };
        if !spent.deleted.contains(&deletion.uid) {
            let charge = (deletion.rule, deletion.uid.clone());
            if spent.deletions.take_back(&charge) {
                spent.rounds = spent.rounds.saturating_sub(1);
                spent.last_begun = spent.deletions.last();
            }
            self.cluster.deletions.take_back(&charge);
            if let Some(of_namespace) = self.namespaces.get_mut(app.namespace()) {
                of_namespace.deletions.take_back(&charge);
            }
        }
        spent.held.insert(deletion.uid.clone(), (why, now + TRY_AGAIN));
    }

    /// Forgets deletions that no longer count.
    pub fn prune(&mut self, recovery: &Recovery, now: Instant) {
        self.cluster.deletions.expire(recovery.budget.per, 0, now);
        self.namespaces.retain(|_, account| {
            account.deletions.expire(recovery.budget.per, 0, now);
            account.reserved > 0 || account.deletions.last().is_some()
        });
        self.apps.retain(|(_, rule), spent| {
            let settings = recovery.rule(*rule);
            let remembered = settings.budget.per.max(back_off(*rule, settings.after, spent.rounds) * 2);
            // The last one decides how long the rule waits.
            spent.deletions.expire(settings.budget.per, 1, now);
            let Spent { deletions, deleted, held, reserved, .. } = spent;
            deleted.retain(|uid| deletions.charged(&(*rule, uid.clone())).is_some());
            held.retain(|_, (_, until)| *until > now);
            !held.is_empty()
                || !reserved.is_empty()
                || spent.deletions.last().is_some_and(|last| now.saturating_duration_since(last) < remembered)
        });
    }
}

/// How long a rule waits after it deleted something of an application. A replacement that gets into the same trouble again will
/// not be cured by yet another one.
fn back_off(rule: RecoveryRule, after: Duration, rounds: u32) -> Duration {
    if !rule.needs_view() || rounds == 0 {
        return Duration::ZERO;
    }
    after.max(Duration::from_secs(60)).saturating_mul(1 << (rounds - 1).min(MAX_DOUBLINGS))
}

fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::RuleSettings;
    use crate::test_time::instant;

    const HOUR: Duration = Duration::from_secs(3600);

    fn recovery(rule: RecoveryRule, count: u32, cluster: u32) -> Recovery {
        let settings = RuleSettings { budget: Budget { count, per: HOUR }, ..rule.defaults() };
        Recovery { budget: Budget { count: cluster, per: HOUR }, ..Recovery::default() }.with_rule(rule, settings)
    }

    /// Reserves a deletion and begins it.
    fn take(
        budget: &mut DeletionBudget,
        recovery: &Recovery,
        app: &AppKey,
        rule: RecoveryRule,
        uid: &Arc<str>,
        now: Instant,
    ) -> Result<(), Exhausted> {
        budget.reserve(recovery, app, rule, uid, now)?;
        assert!(budget.begin(recovery, app, rule, uid, now));
        Ok(())
    }

    fn app(number: u32) -> AppKey {
        AppKey::new(&format!("team-{number}"), &format!("spark-{number}"))
    }

    fn uid(number: u32) -> Arc<str> {
        format!("u{number}").into()
    }

    #[test]
    fn budget_of_new_leader_grows_with_time_and_is_never_exceeded_within_its_period() {
        let (rule, began) = (RecoveryRule::Orphans, instant());
        let recovery = recovery(rule, 60, 1000);
        let mut budget = DeletionBudget::new(began);
        let mut taken: Vec<Duration> = Vec::new();
        for second in 0..4 * 3600_u32 {
            let at = Duration::from_secs(second.into());
            while take(&mut budget, &recovery, &app(1), rule, &uid(u32::try_from(taken.len()).unwrap()), began + at)
                .is_ok()
            {
                taken.push(at);
            }
            budget.prune(&recovery, began + at);
        }
        assert_eq!(taken[0], Duration::from_secs(60), "a sixtieth of an hour for one of sixty");
        for (at, first) in taken.iter().enumerate() {
            let within = taken[at..].iter().filter(|other| **other < *first + HOUR).count();
            assert!(within <= 60, "{within} within an hour of {first:?}");
        }
        assert!(taken.len() >= 200, "{} of at most 240 in four hours", taken.len());
    }

    #[test]
    fn exhausted_budget_states_when_it_is_available_again() {
        let (rule, began) = (RecoveryRule::Orphans, instant());
        let recovery = recovery(rule, 2, 1000);
        let mut budget = DeletionBudget::new(began);
        let mut now = began;
        for number in 0..6 {
            let Err(exhausted) = take(&mut budget, &recovery, &app(1), rule, &uid(number), now) else { continue };
            assert!(exhausted.until() > now && exhausted.until() <= now + HOUR, "{exhausted:?}");
            now = exhausted.until();
            assert_eq!(take(&mut budget, &recovery, &app(1), rule, &uid(number), now), Ok(()), "{number}");
        }
    }

    #[test]
    fn pod_whose_deletion_failed_is_charged_once_and_others_have_their_own_budget() {
        let (rule, began) = (RecoveryRule::Orphans, instant());
        let (recovery, now) = (recovery(rule, 1, 2), began + HOUR);
        let mut budget = DeletionBudget::new(began);
        let mut taking = |number, pod| take(&mut budget, &recovery, &app(number), rule, &uid(pod), now);
        assert_eq!([taking(1, 1), taking(1, 1)], [Ok(()), Ok(())]);
        assert!(matches!(taking(1, 2), Err(Exhausted::Application(_))));
        assert_eq!(taking(2, 3), Ok(()));
        assert!(matches!(taking(3, 4), Err(Exhausted::Cluster(_))));
    }

    #[test]
    fn one_namespace_takes_at_most_half_of_the_budget_of_the_cluster() {
        let (rule, began) = (RecoveryRule::Refused, instant());
        let (recovery, now) = (recovery(rule, 100, 10), began + HOUR);
        let mut budget = DeletionBudget::new(began);
        // A tenant has as many applications as it likes.
        let evil = |number: u32| AppKey::new("evil", &format!("spark-{number}"));
        for number in 0..5 {
            assert_eq!(take(&mut budget, &recovery, &evil(number), rule, &uid(number), now), Ok(()));
        }
        let full = budget.reserve(&recovery, &evil(5), rule, &uid(5), now);
        assert!(matches!(full, Err(Exhausted::Namespace(until)) if until > now), "{full:?}");
        for number in 10..15 {
            assert!(budget.reserve(&recovery, &app(1), rule, &uid(number), now).is_ok(), "others are served");
        }
        // What is planned and not begun counts until the next round.
        assert!(budget.reserve(&recovery, &app(1), rule, &uid(15), now).is_err());
        budget.begin_round(&app(1));
        assert!(budget.reserve(&recovery, &app(1), rule, &uid(15), now).is_ok());
        budget.prune(&recovery, now + HOUR);
        assert_eq!(budget.namespaces.keys().collect::<Vec<_>>(), ["team-1"]);
    }

    #[test]
    fn reservation_counts_until_it_begins_or_the_next_round() {
        let (rule, began) = (RecoveryRule::Orphans, instant());
        let (recovery, now) = (recovery(rule, 2, 3), began + HOUR);
        let mut budget = DeletionBudget::new(began);
        let reserve = |budget: &mut DeletionBudget, number, pod| {
            budget.reserve(&recovery, &app(number), rule, &uid(pod), now).is_ok()
        };
        assert!(reserve(&mut budget, 1, 1) && reserve(&mut budget, 1, 2) && reserve(&mut budget, 1, 2));
        assert!(!reserve(&mut budget, 1, 3), "the application's two are reserved");
        assert!(reserve(&mut budget, 2, 4) && !reserve(&mut budget, 3, 5), "and the cluster's three");
        // Of two that were reserved, one begins; the other one is void with the next round.
        assert!(budget.begin(&recovery, &app(1), rule, &uid(1), now));
        budget.begin_round(&app(1));
        assert!(reserve(&mut budget, 1, 3) && !reserve(&mut budget, 1, 2));
        assert!(!budget.begin(&recovery, &app(1), rule, &uid(2), now), "it is not reserved any more");
        // A replica that leads again has planned nothing.
        budget.leads_since(began);
        assert!(reserve(&mut budget, 1, 2) && reserve(&mut budget, 3, 5) && !reserve(&mut budget, 2, 4));
        assert_eq!(budget.cluster.reserved, 2);
    }

    #[test]
    fn deletion_that_did_not_happen_is_taken_back_unless_an_earlier_request_may_have_been_executed() {
        let (rule, began) = (RecoveryRule::Orphans, instant());
        let (recovery, now) = (recovery(rule, 1, 10), began + HOUR);
        let mut budget = DeletionBudget::new(began);
        let charge = |number| (app(number), rule);
        let attempt = |not_deleted| Attempt { rule, uid: uid(1), not_deleted };
        for (number, first, is_taken_back) in [(1, Some("it changed"), true), (2, None, false)] {
            let (app, rule) = charge(number);
            take(&mut budget, &recovery, &app, rule, &uid(1), now).unwrap();
            budget.ended(&app, &attempt(first), now);
            budget.ended(&app, &attempt(Some("it changed")), now);
            let held = budget.reserve(&recovery, &app, rule, &uid(1), now);
            assert_eq!(held, Err(Exhausted::Held("it changed", now + TRY_AGAIN)));
            assert_eq!(budget.reserve(&recovery, &app, rule, &uid(2), now).is_ok(), is_taken_back);
        }
    }

    #[test]
    fn rule_waits_twice_as_long_before_it_deletes_each_replacement() {
        let (rule, began) = (RecoveryRule::Stuck, instant());
        let recovery = recovery(rule, 1000, 1000);
        let mut budget = DeletionBudget::new(began);
        let mut now = began + HOUR;
        let mut waits = Vec::new();
        for number in 0..8 {
            if let Err(exhausted) = take(&mut budget, &recovery, &app(1), rule, &uid(number), now) {
                assert!(matches!(exhausted, Exhausted::BackOff(_)));
                waits.push((exhausted.until() - now).as_secs().div_ceil(60));
                now = exhausted.until();
                budget.prune(&recovery, now);
                take(&mut budget, &recovery, &app(1), rule, &uid(number), now).unwrap();
            }
            // Others in the same trouble at the same time are deleted with it.
            take(&mut budget, &recovery, &app(1), rule, &uid(100 + number), now).unwrap();
            now += Duration::from_secs(5);
        }
        assert_eq!(waits, [10, 20, 40, 80, 160, 320, 320]);
        budget.prune(&recovery, now + Duration::from_secs(86_400));
        assert!(
            budget.apps.is_empty()
                && budget.cluster.deletions.last().is_none()
                && budget.cluster.deletions.charged.is_empty()
        );
    }
}
