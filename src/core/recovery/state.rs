//! State of the recovery of one application, which the leader keeps between two plans. All of it can be lost: a restart or a new
//! leader costs a delay, never a wrong deletion.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::report::RecoveryReport;
use crate::planning::batch::Position;
use crate::policy::RecoveryRule;
use crate::signature::Creator;
use crate::snapshot::GroupKey;

/// A finding that persists is reported again after this time.
const REPORT_AGAIN: Duration = Duration::from_secs(3600);
/// A round begins with a plan of the application, at the earliest this long after the last one.
const SHORTEST_ROUND: Duration = Duration::from_secs(5);
/// A round begins at the latest with the first plan after this time,
const ROUND: Duration = Duration::from_secs(60);
/// and no sooner if it visits more executors than this, unless a rule's time is over.
const LARGE: usize = 4096;
/// An executor that no view has shown as removed for this long is forgotten: views are at least every ten minutes.
const FORGET_CHECKS: Duration = Duration::from_secs(1800);
/// At most this many executors that are missing are remembered of one driver.
const MAX_MISSING: usize = 1024;
/// At most this many pods are counted that would have been deleted.
const MAX_WITHHELD: usize = 4096;
/// At most this many findings are remembered as reported.
const MAX_REPORTED: usize = 4096;

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryState {
    /// When the last round of checks began.
    last_round: Option<Instant>,
    /// The time of the newest view that it judged.
    judged_view: Option<Instant>,
    /// When a rule's time is over: the next round begins then.
    due: Option<Instant>,
    /// Whether the last round has found something.
    has_findings: bool,
    /// Where the current round continues.
    pub(super) position: Position,
    /// What it has found so far.
    pub(super) round: RecoveryReport,
    /// When the next of its times is over.
    round_due: Option<Instant>,
    /// Whether it visits all executors, and not only those that are not settled.
    has_visited_all: bool,
    /// Since when the driver of a creator's executors has been gone.
    gone: BTreeMap<Option<Creator>, Instant>,
    /// Since when nothing contradicts any more that the driver of an executor is gone, by the executor's uid; `None` while something
    /// does. And when it was last visited.
    contradicted: BTreeMap<Arc<str>, (Option<Instant>, Instant)>,
    /// What was seen of the pod of another namespace that created an executor, by the executor's uid.
    elsewhere: BTreeMap<Arc<str>, SeenElsewhere>,
    /// The views that showed that the driver has removed an executor, by the executor's uid.
    checks: BTreeMap<Arc<str>, Checks>,
    /// Since when an executor has been missing on which its driver counts.
    missing: BTreeMap<(Creator, u64), Instant>,
    /// Where the check of a driver's rows continues, if there are too many for one round.
    next_row: BTreeMap<Creator, usize>,
    /// Since when a driver's Spark container has exited, by the pod's uid.
    lingering: BTreeMap<Arc<str>, Instant>,
    /// Since when a driver has had no executors although it wants some, by the pod's uid.
    empty: BTreeMap<Arc<str>, Instant>,
    /// Since when a PodGroup that had started waits again.
    waiting_groups: BTreeMap<GroupKey, Instant>,
    /// Until when the cost of an executor was counted while it did no work, and when it was last visited, by its uid.
    counted: BTreeMap<Arc<str>, (Instant, Instant)>,
    /// Pods that rules would have deleted, were deletions not off, by rule and the pod's uid.
    withheld: BTreeSet<(RecoveryRule, Arc<str>)>,
    /// When findings were last reported, by rule and the pod's uid.
    reported: BTreeMap<(RecoveryRule, Arc<str>), Instant>,
}

/// What was seen of the pod of another namespace that created an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SeenElsewhere {
    had_address: bool,
    gone: Option<Instant>,
    visited: Instant,
}

/// That a pod of another namespace that created an executor is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GoneElsewhere {
    /// Since when, and since when nothing contradicts that.
    pub(super) since: Instant,
    /// Whether it had the address of the driver.
    pub(super) had_address: bool,
}

/// The views that showed that the driver has removed an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Checks {
    /// How many.
    pub(super) count: u32,
    /// The first of them.
    pub(super) since: Instant,
    last: Instant,
}

impl RecoveryState {
    /// Whether there is no state.
    pub fn is_empty(&self) -> bool {
        *self == RecoveryState::default()
    }

    /// Whether the last round has found something.
    pub(super) fn has_findings(&self) -> bool {
        self.has_findings
    }

    /// A part of a round begins, in which all executors are visited, or those that are not settled. Returns whether it is the first.
    pub(super) fn begin_part(&mut self, visits_all: bool, newest_view: Option<Instant>, now: Instant) -> bool {
        let is_first = self.position.is_none();
        if is_first {
            self.round = RecoveryReport::default();
            self.round_due = None;
            (self.last_round, self.judged_view) = (Some(now), newest_view);
        }
        self.has_visited_all = visits_all && (is_first || self.has_visited_all);
        is_first
    }

    /// A time of the current round is over then.
    pub(super) fn due_in_round(&mut self, at: Instant) {
        self.round_due = Some(self.round_due.map_or(at, |due| due.min(at)));
    }

    /// The round has ended. Returns what it has found.
    pub(super) fn end_round(&mut self) -> RecoveryReport {
        self.due = self.round_due;
        self.has_findings = !self.round.is_empty();
        std::mem::take(&mut self.round)
    }

    /// Whether views were remembered that are not judged yet.
    pub(super) fn remembers_views(&self) -> bool {
        !self.checks.is_empty() || !self.missing.is_empty()
    }

    /// No rule and no cost concerns the application: what was learned of a condition that no longer holds is forgotten.
    pub(super) fn rest(&mut self, now: Instant) {
        if *self == RecoveryState::default() {
            return;
        }
        self.reported.retain(|_, last| now.saturating_duration_since(*last) < REPORT_AGAIN);
        // What was counted or reported once is not again.
        let RecoveryState { last_round, judged_view, counted, withheld, reported, .. } = std::mem::take(self);
        let nothing = RecoveryState::default();
        *self = RecoveryState { last_round, judged_view, counted, withheld, reported, ..nothing };
    }

    /// Whether a round of checks begins or continues now. `pause` is the time between two rounds ([`RecoveryState::pause`]).
    pub(super) fn is_due(&self, pause: Duration, now: Instant) -> bool {
        let began = |pause: Duration| self.last_round.is_none_or(|last| now.saturating_duration_since(last) >= pause);
        self.position.is_some() || began(pause) || (self.due.is_some_and(|due| due <= now) && began(SHORTEST_ROUND))
    }

    /// The pause between two rounds. It is at most `shortest_wait`, the shortest `after` of the rules, so that a pod's stage is judged in
    /// time; what begins in a round, such as the time without executors, is found that much later. A finding, or a view that no round
    /// has judged, shortens the pause. A round that visits very many executors takes several plans, and its pause is longer.
    pub(super) fn pause(&self, executors: usize, shortest_wait: Duration, newest_view: Option<Instant>) -> Duration {
        if executors > LARGE {
            return ROUND;
        }
        if self.has_findings || newest_view.is_some_and(|view| self.judged_view.is_none_or(|judged| view > judged)) {
            return SHORTEST_ROUND;
        }
        shortest_wait.clamp(SHORTEST_ROUND, ROUND)
    }

    /// When a round begins although nothing has changed.
    pub(super) fn next_round(&self) -> Option<Instant> {
        let soonest = self.last_round? + SHORTEST_ROUND;
        Some(self.due?.max(soonest))
    }

    /// When a round begins after a change for which it was too early.
    pub(super) fn round_after_change(&self, pause: Duration) -> Option<Instant> {
        let after_pause = self.last_round? + pause;
        Some(self.next_round().map_or(after_pause, |due| due.min(after_pause)))
    }

    /// Observes which creators' drivers are gone.
    pub(super) fn observe_gone(&mut self, gone: &BTreeSet<Option<Creator>>, now: Instant) {
        self.gone.retain(|creator, _| gone.contains(creator));
        for creator in gone {
            self.gone.entry(*creator).or_insert(now);
        }
    }

    /// Since when the driver of a creator's executors has been gone.
    pub(super) fn gone_since(&self, creator: Option<Creator>) -> Option<Instant> {
        self.gone.get(&creator).copied()
    }

    /// Since when nothing contradicts that the driver of an executor is gone, if something has, and does not now.
    pub(super) fn uncontradicted_since(
        &mut self,
        uid: &Arc<str>,
        is_contradicted: bool,
        now: Instant,
    ) -> Option<Instant> {
        if is_contradicted {
            self.contradicted.insert(uid.clone(), (None, now));
            return None;
        }
        let (since, visited) = self.contradicted.get_mut(uid)?;
        *visited = now;
        Some(*since.get_or_insert(now))
    }

    /// Remembers whether the pod of another namespace that created an executor has the driver's address, and since when it is gone.
    pub(super) fn gone_elsewhere(
        &mut self,
        uid: &Arc<str>,
        has_address: bool,
        is_gone: bool,
        now: Instant,
    ) -> Option<GoneElsewhere> {
        let seen = SeenElsewhere { had_address: false, gone: None, visited: now };
        let seen = self.elsewhere.entry(uid.clone()).or_insert(seen);
        seen.had_address |= has_address;
        seen.visited = now;
        seen.gone = is_gone.then(|| seen.gone.unwrap_or(now));
        Some(GoneElsewhere { since: seen.gone?, had_address: seen.had_address })
    }

    /// A view of this time shows that the driver has removed the executor.
    pub(super) fn check(&mut self, uid: &Arc<str>, view: Instant) -> Checks {
        let checks = self.checks.entry(uid.clone()).or_insert(Checks { count: 0, since: view, last: view });
        if checks.count == 0 || checks.last < view {
            checks.count = checks.count.saturating_add(1);
            checks.last = view;
        }
        *checks
    }

    /// A view shows that the driver counts on the executor of this uid.
    pub(super) fn forget_checks(&mut self, uid: &str) {
        self.checks.remove(uid);
    }

    /// Since when views have shown that the driver has removed the executor of this uid.
    pub(super) fn removed_since(&self, uid: &str) -> Option<Instant> {
        self.checks.get(uid).map(|checks| checks.since)
    }

    /// The cost of an executor is counted until now. Returns until when it was before.
    pub(super) fn count(&mut self, uid: &Arc<str>, now: Instant) -> Option<Instant> {
        self.counted.insert(uid.clone(), (now, now)).map(|(until, _)| until)
    }

    /// Of how many executors a cost was counted.
    pub(super) fn counted(&self) -> usize {
        self.counted.len()
    }

    /// An executor does work now, or nothing is known: what was counted of it is not counted again.
    pub(super) fn keep_counted(&mut self, uid: &str, now: Instant) {
        if let Some((_, visited)) = self.counted.get_mut(uid) {
            *visited = now;
        }
    }

    /// The rows of a view to check now, at most this many: those after the last ones, from the first again.
    pub(super) fn rows_to_check(&mut self, driver: Creator, rows: usize, max: usize) -> Range<usize> {
        let begin = self.next_row.remove(&driver).filter(|next| *next < rows).unwrap_or_default();
        let end = rows.min(begin + max);
        if end < rows {
            self.next_row.insert(driver, end);
        }
        begin..end
    }

    /// The executors that a driver's view contains and that have no pod, and since when. `ids` are those of the `rows`
    /// from the first to the last id; `is_row` is whether the view still contains an executor of another row.
    pub(super) fn missing(
        &mut self,
        driver: Creator,
        rows: RangeInclusive<u64>,
        ids: &BTreeSet<u64>,
        is_row: impl Fn(u64) -> bool,
        now: Instant,
    ) -> BTreeMap<u64, Instant> {
        let is_other = |id: u64| !rows.contains(&id) && is_row(id);
        self.missing.retain(|(row_driver, id), _| *row_driver != driver || ids.contains(id) || is_other(*id));
        let mut known = self.missing.keys().filter(|(row_driver, _)| *row_driver == driver).count();
        for id in ids {
            if let Entry::Vacant(entry) = self.missing.entry((driver, *id))
                && known < MAX_MISSING
            {
                entry.insert(now);
                known += 1;
            }
        }
        self.missing
            .iter()
            .filter(|((row_driver, _), _)| *row_driver == driver)
            .map(|((_, id), since)| (*id, *since))
            .collect()
    }

    pub(super) fn lingering_since(&mut self, uid: &Arc<str>, now: Instant) -> Instant {
        *self.lingering.entry(uid.clone()).or_insert(now)
    }

    pub(super) fn does_not_linger(&mut self, uid: &str) {
        self.lingering.remove(uid);
    }

    pub(super) fn empty_since(&mut self, uid: &Arc<str>, now: Instant) -> Instant {
        *self.empty.entry(uid.clone()).or_insert(now)
    }

    pub(super) fn has_executors(&mut self, uid: &str) {
        self.empty.remove(uid);
    }

    /// Ends the time without executors of the drivers that have some, and that of PodGroups that do not wait again.
    pub(super) fn end_conditions(&mut self, is_empty: impl Fn(&str) -> bool, waits: impl Fn(&GroupKey) -> bool) {
        self.empty.retain(|uid, _| is_empty(uid));
        self.waiting_groups.retain(|group, _| waits(group));
    }

    pub(super) fn group_waits_since(&mut self, key: &GroupKey, now: Instant) -> Instant {
        *self.waiting_groups.entry(key.clone()).or_insert(now)
    }

    pub(super) fn clear_group(&mut self, key: &GroupKey) {
        self.waiting_groups.remove(key);
    }

    /// A rule would have deleted a pod, were deletions not off. Returns whether that is new.
    pub(super) fn withhold(&mut self, rule: RecoveryRule, uid: &Arc<str>) -> bool {
        self.withheld.len() < MAX_WITHHELD && self.withheld.insert((rule, uid.clone()))
    }

    /// Whether a finding is to be reported now: it is new, or was reported long ago.
    pub(super) fn report(&mut self, rule: RecoveryRule, uid: &Arc<str>, now: Instant) -> bool {
        let key = (rule, uid.clone());
        let is_due = |last: &Instant| now.saturating_duration_since(*last) >= REPORT_AGAIN;
        if !self.reported.get(&key).is_none_or(is_due) {
            return false;
        }
        if self.reported.len() >= MAX_REPORTED && !self.reported.contains_key(&key) {
            return false;
        }
        self.reported.insert(key, now);
        true
    }

    /// Forgets drivers and PodGroups that no longer exist, and executors that were not found lately.
    pub(super) fn retain(
        &mut self,
        drivers: &BTreeSet<&str>,
        creators: &BTreeSet<Creator>,
        groups: impl Fn(&GroupKey) -> bool,
        now: Instant,
    ) {
        let is_recent = |at: Instant, time: Duration| now.saturating_duration_since(at) < time;
        self.checks.retain(|_, checks| is_recent(checks.last, FORGET_CHECKS));
        let is_visited = |visited: Instant| self.last_round.is_some_and(|began| visited >= began);
        if self.has_visited_all {
            self.counted.retain(|_, (_, visited)| is_visited(*visited));
        }
        // What contradicts is asked of all executors of drivers that are gone.
        self.contradicted.retain(|_, (_, visited)| is_visited(*visited));
        self.elsewhere.retain(|_, seen| is_visited(seen.visited));
        self.missing.retain(|(creator, _), _| creators.contains(creator));
        self.next_row.retain(|creator, _| creators.contains(creator));
        self.lingering.retain(|uid, _| drivers.contains(&**uid));
        self.empty.retain(|uid, _| drivers.contains(&**uid));
        self.waiting_groups.retain(|key, _| groups(key));
        self.reported.retain(|_, last| is_recent(*last, REPORT_AGAIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_time::instant;

    #[test]
    fn view_that_was_read_before_a_round_and_judged_by_none_does_not_wait() {
        let (began, wait) = (instant(), Duration::from_secs(60));
        let at = |seconds| began + Duration::from_secs(seconds);
        // The request was sent at 29 s, a round began at 30 s with the view of 0 s, and then the answer arrived.
        let state = RecoveryState { last_round: Some(at(30)), judged_view: Some(began), ..Default::default() };
        assert_eq!(state.pause(1, wait, Some(began)), wait);
        assert_eq!(state.pause(1, wait, Some(at(29))), SHORTEST_ROUND);
    }

    #[test]
    fn executors_that_are_missing_are_forgotten_once_the_view_has_them_no_more() {
        let (mut state, now, driver) = (RecoveryState::default(), instant(), Creator::of_pod("d", "u"));
        // A driver whose rows have other ids in every view, read in parts: the ids between two parts are in none of them.
        for round in 0..1000u64 {
            let ids: BTreeSet<u64> = (0..256).map(|id| round * 1000 + id).collect();
            let rows = ids.clone();
            let range = round * 1000..=round * 1000 + 256;
            let missing = state.missing(driver, range, &ids, |id| rows.contains(&id), now);
            assert_eq!(missing.len(), 256);
        }
        assert_eq!(state.missing.len(), 256);
        // And one that has them all.
        for round in 0..1000u64 {
            let ids: BTreeSet<u64> = (0..256).map(|id| round * 1000 + id).collect();
            state.missing(driver, round * 1000..=round * 1000 + 256, &ids, |_| true, now);
        }
        assert_eq!(state.missing.len(), MAX_MISSING);
        let other = Creator::of_pod("e", "v");
        assert_eq!(state.missing(other, 0..=9, &BTreeSet::from([1]), |_| true, now).len(), 1);
    }

    #[test]
    fn round_begins_in_time_for_every_rule_and_sooner_for_findings_and_views() {
        let now = instant();
        let (at, seconds) = (|seconds| now + Duration::from_secs(seconds), Duration::from_secs);
        let mut state = RecoveryState { last_round: Some(now), judged_view: Some(now), ..RecoveryState::default() };
        let pauses = |state: &RecoveryState, executors| {
            let pause = |wait, view| state.pause(executors, seconds(wait), view).as_secs();
            [pause(0, None), pause(20, None), pause(600, None), pause(600, Some(now)), pause(600, Some(at(1)))]
        };
        assert_eq!(pauses(&state, 10), [5, 20, 60, 60, 5]);
        assert_eq!(pauses(&state, LARGE + 1), [60; 5]);
        state.has_findings = true;
        assert_eq!(pauses(&state, 10), [5; 5]);
        assert!(!state.is_due(seconds(20), at(19)) && state.is_due(seconds(20), at(20)));
        assert_eq!(state.round_after_change(seconds(20)), Some(at(20)));
        state.due = Some(at(7));
        assert!(!state.is_due(seconds(20), at(6)) && state.is_due(seconds(20), at(7)));
        assert_eq!(state.round_after_change(seconds(20)), Some(at(7)));
        assert!(RecoveryState::default().is_due(ROUND, now), "the first plan begins one");
    }

    #[test]
    fn settled_application_forgets_conditions_but_not_what_was_reported_and_counted() {
        let (mut state, now, uid) = (RecoveryState::default(), instant(), Arc::<str>::from("u"));
        state.rest(now);
        assert!(state.is_empty());
        state.has_findings = true;
        state.observe_gone(&BTreeSet::from([None]), now);
        state.lingering_since(&uid, now);
        state.uncontradicted_since(&uid, true, now);
        state.count(&uid, now);
        assert!(state.report(RecoveryRule::Orphans, &uid, now) && state.withhold(RecoveryRule::Orphans, &uid));
        state.rest(now);
        assert!(!state.has_findings && state.gone_since(None).is_none());
        assert!(state.lingering.is_empty() && state.contradicted.is_empty());
        assert!(!state.report(RecoveryRule::Orphans, &uid, now) && !state.withhold(RecoveryRule::Orphans, &uid));
        assert_eq!(state.count(&uid, now), Some(now));
        state.rest(now + REPORT_AGAIN);
        assert!(state.report(RecoveryRule::Orphans, &uid, now + REPORT_AGAIN));
    }
}
