//! The executors that exited: Spark's `removedExecutorsCache` and `ExecutorFailureTracker` for all applications of the cluster.
//!
//! Each exit is tracked once per pod (by uid) and reported once. Spark forgets an executor three minutes after its removal and
//! then removes one whose pod lingers a second time; here the entry is kept while its pod exists and three minutes more, so
//! nothing is counted twice while its pod exists. Memory is bounded by the pods and by the most recent exits.
//!
//! Every replica tracks exits from its own watch, so that a grace that began continues when another replica takes over. Only
//! the leader reports, and the [`Checkpoint`] in the Lease shows the next leader what is reported. Executors that had exited
//! before the first leader are history and are not reported.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::cause::{Cause, Removal, cause};
use super::checkpoint::{Checkpoint, FoundCheckpoint, Gap};
use super::driver_at_exit::{DriverAtExit, TOGETHER};
use super::exit::Exit;
use super::outages::Outages;
use super::remembered::{Memory, RememberedExits};
use super::tracked::{AppExits, BatchInProgress, Leadership, RecentRemoval, TrackedExit, Undecided};
use super::unobserved::Unobserved;
use crate::leader::LeaderState;
use crate::ownership::liveness;
use crate::signature::Creator;
use crate::snapshot::{Absence, Batch, Ended, RemovedExecutor, Snapshot};
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::ids::{AppKey, PodKey};
use usher_spark::state::ExecutorPodState;
use usher_spark::time::Now;

/// How long an executor is remembered after its pod was deleted (`spark.kubernetes.executor.deletedExecutorsCacheTimeout`).
pub const REMEMBERED_FOR: Duration = Duration::from_secs(180);
/// How long a follower keeps exits that the leader may have missed: twice as long as the default poll takes to find them. With a
/// longer `lifecycle.poll`, an exit that only a poll finds may be lost with the leader.
const UNREPORTED_FOR: Duration = Duration::from_secs(600);
/// How long a gap in what a leader observed counts: no replica keeps exits that are older. A follower whose watch is stalled
/// observes an exit up to five minutes later than the leader, and the clocks of two machines may run differently fast.
const GAP_LASTS: Duration = Duration::from_secs(1000);
/// At most this many deletions by recovery rules are remembered until the exit is recorded.
const MAX_DELETIONS: usize = 10_000;
/// How many exits are kept for `why` and `apps`.
const HISTORY: usize = 2048;
/// At most this many unreported exits are kept: with more, there has been no leader for a long time.
const MAX_UNREPORTED: usize = 20_000;
/// With more creators than this, failures are counted only for creators that have pods.
const MAX_CREATORS: usize = 16;
/// How many failures are counted of one creator's executors: far above any limit other than "never".
const MAX_FAILURES: usize = 10_000;
/// How long a new leader's watch may be behind the previous leader's.
const CATCH_UP_TIME: Duration = Duration::from_secs(60);

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Exits {
    /// How long to wait for a driver's exit that would explain an executor's.
    driver_exit_window: Duration,
    apps: BTreeMap<AppKey, AppExits>,
    history: Memory,
    /// How many exits were recorded in total.
    recorded: u64,
    batch: Option<BatchInProgress>,
    undecided: VecDeque<Undecided>,
    /// How many of those, from the front, are still to be checked for this batch.
    to_decide: usize,
    /// Drivers whose exit would explain an executor's.
    open_drivers: BTreeSet<PodKey>,
    unreported: VecDeque<(Instant, Exit)>,
    /// Whether this replica led at the last call of `due_reports`.
    leads: bool,
    /// The resourceVersions of exits that are undecided or unreported, and the number of exits with each.
    open_versions: BTreeMap<u64, usize>,
    /// The executors that recovery rules delete, and whose exit is not recorded yet, by uid, and the rule.
    deletions: BTreeMap<Arc<str>, &'static str>,
    /// Executors whose pods were deleted, in order of deletion.
    gone: VecDeque<RecentRemoval>,
    /// Applications with too many creators to remember all of them.
    over_creator_limit: BTreeSet<AppKey>,
    /// When this process first listed pods,
    first_list: Option<Instant>,
    is_listed: bool,
    /// and as of which resourceVersion.
    first_version: Option<u64>,
    /// The resourceVersion of the newest list or poll: pods that it did not contain were deleted by then.
    newest_list: Option<u64>,
    /// The newest exit that was reported, and when: a GET may have shown it before the watch does.
    newest_reported: Option<(Instant, u64)>,
    /// The latest end of an executor whose exit was reported, by the kubelet's clock: our own may be wrong.
    latest_end: Option<Timestamp>,
    /// What our watch did not show.
    unobserved: Unobserved,
    /// When another replica was last observed as the leader,
    last_follower: Option<Instant>,
    /// and since when without a time in which there was none.
    follows_since: Option<Instant>,
    leadership: Option<Leadership>,
    /// The resourceVersion up to which the watch has shown everything.
    position: Option<u64>,
    /// When nothing could be observed.
    pub(crate) outages: Outages,
}

impl Exits {
    /// Waits `explained_within` for a driver's exit that would explain an executor's. An API server that sent nothing for `quiet`
    /// counts as unavailable.
    pub(crate) fn new(driver_exit_window: Duration, quiet: Duration) -> Exits {
        Exits { driver_exit_window, outages: Outages::new(quiet), ..Exits::default() }
    }

    /// Pods were listed. Executors that are final in the first list had exited before it.
    pub(crate) fn list_started(&mut self, now: Instant) {
        // An interrupted list does not count.
        if !self.is_listed {
            self.first_list = Some(now);
        }
    }

    /// The first list is complete, as of this resourceVersion.
    pub(crate) fn first_listed(&mut self, version: &str) {
        self.is_listed = true;
        self.first_version = version.parse().ok();
    }

    /// Pods were listed, or polled, as of a resourceVersion.
    pub(crate) fn list_at(&mut self, version: &str) {
        self.newest_list = version.parse().ok().max(self.newest_list);
    }

    /// The watch had shown everything up to `before`, and then pods were listed as of `version`: pods that were created and
    /// deleted between them were not observed.
    pub(crate) fn relisted(&mut self, before: &str, version: &str, now: Instant) {
        if let (Ok(before), Ok(version)) = (before.parse(), version.parse())
            && before < version
        {
            self.unobserved.add((before, version), now, GAP_LASTS);
        }
    }

    /// This replica becomes the leader, after another one or as the first.
    pub(crate) fn leadership_acquired(&mut self, found: FoundCheckpoint, now: Instant) {
        self.deletions.clear();
        self.follows_since = None;
        self.leadership = Some(Leadership { at: now, found, caught_up: None });
    }

    /// Processes a whole batch in one call.
    pub fn record(&mut self, batch: Batch, now: Now) {
        let snapshot = batch.snapshot.clone();
        self.begin_batch(batch);
        self.decide(&snapshot, now, usize::MAX);
        self.continue_batch(&snapshot, now, usize::MAX);
    }

    /// Starts a batch, to be processed in parts; the undecided exits are checked once more.
    pub(crate) fn begin_batch(&mut self, batch: Batch) {
        let Batch { snapshot, ended, ended_again, revived, removed, touched, .. } = batch;
        let (ended, touched) = (ended.into_iter(), touched.into_iter());
        // An old snapshot that is kept is copied whole as the new one changes.
        let snapshot = if revived.is_empty() { Snapshot::default() } else { snapshot };
        let (revived_done, remaining_removals) = (0, None);
        let batch = BatchInProgress {
            snapshot,
            ended,
            ended_again,
            revived,
            revived_done,
            removed,
            remaining_removals,
            touched,
        };
        self.batch = Some(batch);
        self.to_decide = self.undecided.len();
    }

    /// A recovery rule is about to delete the pod of this uid, or has not deleted it.
    pub(crate) fn rule_deletes(&mut self, uid: &Arc<str>, rule: Option<&'static str>) {
        match rule {
            Some(rule) if self.deletions.len() < MAX_DELETIONS => _ = self.deletions.insert(uid.clone(), rule),
            Some(_) => {}
            None => _ = self.deletions.remove(uid),
        }
    }

    /// Whether a batch is not completely processed yet.
    pub(crate) fn has_batch(&self) -> bool {
        self.batch.is_some()
    }

    /// Processes a part of the batch. Returns the applications in which executors exited.
    pub(crate) fn continue_batch(&mut self, snapshot: &Snapshot, now: Now, max: usize) -> Vec<AppKey> {
        let Some(mut batch) = self.batch.take() else { return Vec::new() };
        let (mut apps, mut left) = (Vec::new(), max);
        while left > 0
            && let Some((uid, ended)) = batch.ended.next()
        {
            left -= 1;
            if batch.revived.contains_key(&uid) {
                // The exit that was recorded before is obsolete; this is another one, with its own grace.
                self.forget(&ended.app, &uid);
            }
            self.end(&ended, Removal::Present, now, None, snapshot);
            for again in batch.ended_again.get(&uid).into_iter().flatten() {
                self.forget(&again.app, &uid);
                self.end(again, Removal::Present, now, None, snapshot);
            }
            apps.push(ended.app);
        }
        while left > 0
            && let Some((uid, (app, executor))) = batch.revived.get_index(batch.revived_done)
        {
            left -= 1;
            // Its last state in this batch: later exits are in the next batch.
            let there = batch.snapshot.executor(app.namespace(), &executor.name).map(|(_, there)| there);
            let last = batch.removed.get(uid).map(|removed| &removed.executor);
            if !last.or(there).is_some_and(|last| last.uid == *uid && last.state.is_final()) {
                self.forget(app, uid);
            }
            batch.revived_done += 1;
        }
        while left > 0
            && let Some((uid, removed)) =
                batch.remaining_removals.get_or_insert_with(|| std::mem::take(&mut batch.removed).into_iter()).next()
        {
            left -= 1;
            self.removed(uid, removed, now, snapshot, &mut apps);
        }
        while left > 0
            && let Some(app) = batch.touched.next()
        {
            left -= 1;
            self.forget_app(&app, snapshot);
        }
        if left == 0 {
            self.batch = Some(batch);
        }
        apps.sort_unstable();
        apps.dedup();
        apps
    }

    fn removed(
        &mut self,
        uid: Arc<str>,
        removed: RemovedExecutor,
        now: Now,
        snapshot: &Snapshot,
        apps: &mut Vec<AppKey>,
    ) {
        let left = match removed.absence {
            Absence::NotListed => Removal::Vanished,
            Absence::Unversioned => Removal::Unobserved,
            Absence::Deleted | Absence::Unselected => Removal::Deleted,
        };
        let (app, executor) = (removed.app.clone(), removed.executor.clone());
        let was_live = !executor.state.is_final();
        let after = was_live.then(|| executor.version.clone());
        let version = executor.version.parse().ok();
        let ended = Ended { app: app.clone(), executor, was_live, after };
        self.end(&ended, left, now, Some(&removed), snapshot);
        if let Some(tracked) = self.apps.get_mut(&app).and_then(|app_exits| app_exits.exits.get_mut(&uid))
            && tracked.gone.is_none()
        {
            tracked.gone = Some(now.at);
            tracked.until = version;
            let as_of = (left != Removal::Deleted).then(|| self.newest_list.max(self.position)).flatten();
            self.gone.push_back(RecentRemoval { at: now.at, app: app.clone(), uid, as_of });
        }
        apps.push(app);
    }

    /// Forgets the counts of an application of which nothing is left.
    fn forget_app(&mut self, app: &AppKey, snapshot: &Snapshot) {
        if self.apps.get(app).is_some_and(|app_exits| app_exits.exits.is_empty()) && !snapshot.apps.contains_key(app) {
            self.apps.remove(app);
        }
    }

    /// Forgets an exit because the container runs again.
    fn forget(&mut self, app: &AppKey, uid: &str) {
        if let Some(app_exits) = self.apps.get_mut(app) {
            app_exits.exits.remove(uid);
        }
    }

    fn end(&mut self, ended: &Ended, left: Removal, now: Now, removed: Option<&RemovedExecutor>, snapshot: &Snapshot) {
        let Ended { app, executor, was_live, after } = ended;
        let app_exits = self.apps.entry(app.clone()).or_default();
        if let Some(tracked) = app_exits.exits.get_mut(&executor.uid) {
            tracked.gone = None; // A stale list contained it again; it will be removed again.
            self.deletions.remove(&executor.uid);
            return;
        }
        let driver = DriverAtExit::of(snapshot, app, executor);
        let was_over = !was_live
            && left == Removal::Present
            && executor.first_seen.is_none_or(|seen| self.first_list.is_some_and(|first| seen <= first));
        // Labelled before we first observed it: it was reported then, and is only kept for `why`. Unless its driver labelled it
        // while no replica ran, which the checkpoint decides.
        let labelled_before = executor.inactive && !was_live;
        // Or while our watch was interrupted.
        let in_gap = || {
            let version = executor.version.parse::<u64>().ok();
            version.is_some_and(|at| self.unobserved.has(at))
        };
        let is_handled = labelled_before && (executor.inactive_by_usher || !(was_over || in_gap()));
        let mut exit = Exit {
            app: app.clone(),
            executor: executor.clone(),
            cause: cause(executor, left),
            removal: left,
            at: now.wall,
            driver,
            missing: removed.and_then(|removed| removed.missing),
            was_over,
            after: after.as_ref().and_then(|version| version.parse().ok()),
            asked: removed.and_then(|removed| removed.asked),
            rule: self.deletions.remove(&executor.uid).filter(|_| left != Removal::Present || executor.deleting),
            possibly_reported: false,
        };
        if exit.rule.is_some() && exit.cause == Cause::Deleted {
            exit.cause = Cause::DeletedByRule;
        }
        // If it had exited before the first list, only times show which of the two exited first.
        if !(was_over && exit.driver.is_untimed()) {
            exit.cause = exit.driver.explain(exit.cause, exit.evidence(), exit.at);
        }
        let version = exit.version();
        let at = version.and_then(NonZeroU64::new);
        let tracked = TrackedExit {
            since: now.at,
            version: at,
            cause: exit.cause,
            is_open: !is_handled,
            gone: None,
            until: None,
        };
        app_exits.exits.insert(executor.uid.clone(), tracked);
        if executor.state == ExecutorPodState::Failed && !labelled_before {
            let failures = app_exits.failures.entry(executor.counted_creator()).or_default();
            if failures.len() >= MAX_FAILURES {
                failures.pop_front();
            }
            failures.push_back(now.at);
            if app_exits.failures.len() > MAX_CREATORS {
                self.over_creator_limit.insert(app.clone());
            }
        }
        let number = self.recorded;
        self.history.push(number, exit.clone(), HISTORY);
        self.recorded += 1;
        if is_handled {
            return;
        }
        if let Some(version) = exit.held_version() {
            *self.open_versions.entry(version).or_default() += 1;
        }
        let waits = exit.driver.open().is_some() && !was_over && !self.driver_exit_window.is_zero();
        if waits && DriverAtExit::would_explain(exit.cause, exit.evidence()) {
            self.explains(&exit);
            self.undecided.push_back(Undecided { since: now.at, exit, number });
        } else {
            self.keep(now.at, exit);
        }
    }

    fn keep(&mut self, since: Instant, exit: Exit) {
        // An exit that a leader drops is never reported.
        if self.unreported.len() >= MAX_UNREPORTED && !self.leads {
            self.pop_unreported();
        }
        self.unreported.push_back((since, exit));
    }

    /// Takes the oldest unreported exit, which is settled from now on: it is reported now, the leader has reported it by now, or
    /// it will never be reported.
    fn pop_unreported(&mut self) -> Option<(Instant, Exit)> {
        let (since, exit) = self.unreported.pop_front()?;
        self.settle(&exit.app, &exit.executor.uid);
        if let Some(version) = exit.held_version()
            && let Some(count) = self.open_versions.get_mut(&version)
        {
            *count -= 1;
            if *count == 0 {
                self.open_versions.remove(&version);
            }
        }
        Some((since, exit))
    }

    /// Notes the driver whose exit would explain an executor's.
    fn explains(&mut self, exit: &Exit) {
        self.open_drivers.extend(exit.driver.open().map(|driver| PodKey::new(exit.app.namespace(), driver)));
    }

    /// Settles an exit: it is reported, or never will be.
    fn settle(&mut self, app: &AppKey, uid: &str) {
        if let Some(tracked) = self.apps.get_mut(app).and_then(|app_exits| app_exits.exits.get_mut(uid)) {
            tracked.is_open = false;
        }
    }

    /// How many exits were recorded in total.
    pub(crate) fn recorded(&self) -> u64 {
        self.recorded
    }

    /// Checks the drivers of some undecided exits again.
    pub(crate) fn decide(&mut self, snapshot: &Snapshot, now: Now, max: usize) {
        let some = self.to_decide.min(max);
        self.to_decide -= some;
        self.decide_some(snapshot, now, some, false);
    }

    /// `at_last`: exits that are not explained now never will be.
    fn decide_some(&mut self, snapshot: &Snapshot, now: Now, some: usize, at_last: bool) {
        for _ in 0..some {
            let Some(mut undecided) = self.undecided.pop_front() else { return };
            let exit = &mut undecided.exit;
            let age = now.at.saturating_duration_since(undecided.since);
            let driver = DriverAtExit::of(snapshot, &exit.app, &exit.executor);
            // The time of such a driver's exit is unknown.
            if !(driver.is_untimed() && exit.cause == Cause::Error && age > TOGETHER) {
                exit.driver.observe(driver);
            }
            if exit.driver.open().is_some() && age < self.driver_exit_window && !at_last {
                self.explains(&undecided.exit);
                self.undecided.push_back(undecided);
                continue;
            }
            exit.cause = exit.driver.explain(exit.cause, exit.evidence(), exit.at);
            let Undecided { since, exit, number } = undecided;
            let app_exits = self.apps.get_mut(&exit.app);
            if let Some(tracked) = app_exits.and_then(|app_exits| app_exits.exits.get_mut(&exit.executor.uid)) {
                tracked.cause = exit.cause;
            }
            self.history.update(number, &exit);
            self.keep(since, exit);
        }
    }

    /// The exits to report, at most `max`. A follower keeps the exits that it records for a while: if the leader dies, it
    /// reports those that the leader's checkpoint does not cover. `takeover` is how long a leader without a checkpoint takes to
    /// report.
    pub fn due_reports(
        &mut self,
        leader_state: LeaderState,
        takeover: Duration,
        now: Instant,
        max: usize,
    ) -> Vec<Exit> {
        self.leads = leader_state == LeaderState::Leader;
        let age = |since: Instant| now.saturating_duration_since(since);
        match leader_state {
            LeaderState::NoLeader => {
                self.follows_since = None;
                Vec::new()
            }
            LeaderState::Follower => {
                self.last_follower = Some(now);
                // A new leader may not know what was observed while there was none.
                let follows_since = *self.follows_since.get_or_insert(now);
                while self
                    .unreported
                    .front()
                    .is_some_and(|(since, _)| age((*since).max(follows_since)) >= UNREPORTED_FOR)
                {
                    self.pop_unreported();
                }
                Vec::new()
            }
            LeaderState::Leader => {
                let mut reported = Vec::new();
                for _ in 0..max {
                    let Some((since, exit)) = self.pop_unreported() else { break };
                    self.latest_end = self.latest_end.max(exit.evidence().and_then(PodDiagnostics::ended_at));
                    if let Some(possibly_reported) = self.was_reported(since, &exit, takeover) {
                        let newest = self.newest_reported.map(|(_, newest)| newest);
                        let ended = exit.version().or(self.newest_list);
                        self.newest_reported = ended.max(newest).map(|newest| (now, newest));
                        reported.push(Exit { possibly_reported, ..exit });
                    }
                }
                reported
            }
        }
    }

    /// Whether there is work left: a leader continues immediately.
    pub(crate) fn is_busy(&self, leader_state: LeaderState) -> bool {
        self.has_batch() || self.to_decide > 0 || (leader_state == LeaderState::Leader && !self.unreported.is_empty())
    }

    /// Whether an exit may have been reported before this replica led; `None` if it was, or if it is history.
    fn was_reported(&self, since: Instant, exit: &Exit, takeover: Duration) -> Option<bool> {
        // Our watch may deliver late what the previous leader has reported, and a GET may be answered late.
        let first = exit.asked.map_or(since, |asked| asked.min(since));
        // Never observed live, and labelled: without a checkpoint it counts as reported by the replica or driver that labelled
        // it.
        let labelled = exit.was_over && exit.executor.inactive;
        let Some(began) = self.leadership.filter(|began| exit.was_over || first <= self.is_catching_up(began)) else {
            return (!labelled).then_some(false);
        };
        let led_then = self.last_follower.is_some_and(|led| since <= led);
        let Some(checkpoint) = began.found.checkpoint else {
            // A first installation, or a leader of a version without checkpoints: exits that it was about to report when it
            // stopped are reported again rather than never.
            let led_on = since <= began.at
                && self.last_follower.is_some_and(|led| led.saturating_duration_since(since) >= takeover);
            let age = exit.at.duration_since(exit.ended_at()).unsigned_abs();
            // The first list may come late.
            let is_after = exit.version().zip(began.found.taken).is_some_and(|(ended, taken)| ended > taken);
            let is_history = exit.was_over && !((began.found.was_held || is_after) && age <= takeover);
            return (!is_history && !led_on).then_some(led_then || (began.found.was_held && !is_after));
        };
        // It may have been reported when it exited, and the version of that exit is unknown.
        let Some(ended) = exit.version() else { return Some(true) };
        // The leader that wrote the checkpoint had reported every exit of pods that still existed when a gap ended.
        let was_present = |gap: &Gap| gap.to <= checkpoint.through && self.is_present(exit, ended, gap.to);
        match checkpoint.covers(ended) {
            Some(true) => return None,
            None if checkpoint.gaps.of(ended).is_some_and(was_present) => return None,
            None => return Some(true),
            Some(false) => {}
        }
        // The executor may have exited before the checkpoint and its pod changed after it: no version after the checkpoint is
        // known with which it had not exited, and the time of its exit is not after the checkpoint, or unknown.
        let unseen = exit.after.is_none_or(|after| after < checkpoint.through);
        let ended_at = exit.evidence().and_then(PodDiagnostics::ended_at);
        // A labelled pod has changed since its exit, regardless of clocks.
        let changed = unseen && (labelled || ended_at.is_none_or(|at| at <= checkpoint.at));
        let before = began.found.taken.is_none_or(|taken| ended <= taken) && !began.found.is_released;
        Some(changed || before)
    }

    /// Whether the pod of an executor that exited with version `ended` still existed, in that state, as of another version.
    fn is_present(&self, exit: &Exit, ended: u64, as_of: u64) -> bool {
        let tracked = self.apps.get(&exit.app).and_then(|app_exits| app_exits.exits.get(&exit.executor.uid));
        let Some(tracked) = tracked
            .filter(|tracked| exit.removal == Removal::Present && tracked.version.is_some_and(|at| at.get() == ended))
        else {
            return false;
        };
        match tracked.gone {
            Some(_) => tracked.until.is_some_and(|until| until.get() > as_of),
            // A batch that is processed in part may contain its deletion.
            None => !self.has_batch() && self.position.is_some_and(|position| position >= as_of),
        }
    }

    /// Until when exits may be recorded that the previous leader has reported: a minute after the watch has caught up. After a
    /// restore of etcd it never does.
    fn is_catching_up(&self, began: &Leadership) -> Instant {
        began.caught_up.map_or(began.at + UNREPORTED_FOR, |caught_up| caught_up + CATCH_UP_TIME)
    }

    /// The watch has shown everything up to `position`, and these exits are about to be recorded.
    pub(crate) fn record_position(&mut self, position: Option<u64>, now: Instant) {
        self.position = position;
        if let Some(began) = &mut self.leadership
            && began.caught_up.is_none()
            && position.is_some_and(|position| position >= began.before())
        {
            began.caught_up = Some(now);
        }
    }

    /// The checkpoint up to which every exit is reported, where the watch had shown everything up to `position` when the last
    /// batch was recorded, and it is unknown whether the executor that left the watch at `unsure` has exited.
    pub fn checkpoint(&self, position: u64, unsure: Option<u64>, now: Now) -> Checkpoint {
        let first = self.open_versions.keys().next().copied();
        let through = first.map_or(position, |first| position.min(first.saturating_sub(1)));
        // Our watch may be behind the previous leader's. After a restore of etcd it stays so, and ours counts.
        let behind = self.leadership.filter(|began| now.at <= self.is_catching_up(began));
        let before = behind.and_then(|began| began.found.checkpoint).map_or(0, |checkpoint| checkpoint.through);
        let age = |since: Instant| now.at.saturating_duration_since(since);
        let gap = |since: Instant, (from, to): (u64, u64)| Gap { from, to, age: age(since) };
        // Those of earlier leaders that we have not observed ourselves.
        let found = self.leadership.and_then(|began| Some((began, began.found.checkpoint?)));
        let found = found.into_iter().flat_map(|(began, found)| {
            let aged = move |gap: &Gap| Gap {
                age: gap.age.saturating_add(now.at.saturating_duration_since(began.at)),
                ..*gap
            };
            found.gaps.iter().map(aged).collect::<Vec<Gap>>()
        });
        let found = found.filter(|gap| gap.to > through || !self.has_observed(gap));
        let since_leadership = self.leadership.and_then(|began| {
            let (first, found) = (self.first_version?, began.found.checkpoint?);
            Some(gap(began.at, (found.through, first)))
        });
        // This gap ends past `through`: exits of pods that still exist may be unreported, too.
        let unsure = unsure.filter(|unsure| *unsure <= position);
        let unsure = unsure.map(|unsure| gap(now.at, (unsure.saturating_sub(1), position + 1)));
        // Other replicas may have observed them. That this replica did not see what the previous leader reported makes no exit possibly repeated.
        let reported = self.leadership.filter(|began| began.caught_up.is_some());
        let reported = reported.and_then(|began| began.found.checkpoint).map_or(0, |found| found.through);
        let unobserved = self.unobserved.iter().map(|(at, (from, to))| gap(*at, ((*from).max(reported), *to)));
        let ahead = self.newest_reported.filter(|(_, newest)| *newest > through);
        let ahead = ahead.map(|(at, newest)| gap(at, (through, newest)));
        // Exits that a crashed leader may have reported are possibly repeated until our watch has shown them.
        let crashed = self.leadership.filter(|began| began.found.was_held && !began.found.is_released);
        let crashed = crashed.and_then(|began| {
            let taken = began.found.taken.filter(|taken| *taken > through)?;
            Some(gap(began.at, (began.found.checkpoint.map_or(0, |checkpoint| checkpoint.through), taken)))
        });
        let all = found.chain(since_leadership).chain(unsure).chain(unobserved).chain(ahead).chain(crashed);
        // For as long as other replicas keep their exits.
        let gaps = all.filter(|gap| gap.age < GAP_LASTS).collect();
        let at = self.latest_end.map_or(now.wall, |end| end.max(now.wall));
        Checkpoint { through: through.max(before), at, gaps }
    }

    /// Since which resourceVersion our own watch has shown everything; `None` before the first list.
    pub fn observed_since(&self) -> Option<u64> {
        Some(self.unobserved.iter().map(|(_, (_, to))| *to).fold(self.first_version?, u64::max))
    }

    /// Whether our own watch has shown everything in a gap of an earlier leader: then we report all of it.
    fn has_observed(&self, gap: &Gap) -> bool {
        self.first_version.is_some_and(|first| first <= gap.from) && !self.unobserved.overlaps(gap)
    }

    /// Driver pods whose exit would explain an executor's, each once: those that no watch shows are to be read again.
    pub(crate) fn explaining_drivers(&mut self) -> BTreeSet<PodKey> {
        std::mem::take(&mut self.open_drivers)
    }

    /// Notes and decides everything, without further waiting.
    pub(crate) fn close(&mut self, snapshot: &Snapshot, now: Now) {
        self.continue_batch(snapshot, now, usize::MAX);
        self.decide_some(snapshot, now, self.undecided.len(), true);
    }

    /// Forgets at most `max` executors whose pods were deleted long enough ago, and with an application its counts.
    pub fn expire(&mut self, snapshot: &Snapshot, now: Instant, max: usize) {
        for app in std::mem::take(&mut self.over_creator_limit) {
            let Some(app_exits) = self.apps.get_mut(&app) else { continue };
            let there: HashSet<Option<Creator>> =
                snapshot.apps.get(&app).into_iter().flat_map(|app| liveness::creators(app)).collect();
            app_exits.failures.retain(|creator, _| there.contains(creator));
        }
        for _ in 0..max {
            let position = self.position;
            let is_due = |gone: &mut RecentRemoval| {
                let age = now.saturating_duration_since(gone.at);
                // A late watch has yet to deliver a deletion that a GET has confirmed.
                age >= REMEMBERED_FOR
                    && (gone.as_of.is_none_or(|as_of| position >= Some(as_of)) || age >= UNREPORTED_FOR)
            };
            let Some(RecentRemoval { at, app, uid, .. }) = self.gone.pop_front_if(is_due) else { break };
            if let Some(app_exits) = self.apps.get_mut(&app)
                && app_exits.exits.get(&uid).is_some_and(|tracked| tracked.gone == Some(at))
            {
                app_exits.exits.remove(&uid);
                self.forget_app(&app, snapshot);
            }
        }
    }

    /// The tracked exit of an executor.
    pub(crate) fn of(&self, app: &AppKey, uid: &str) -> Option<&TrackedExit> {
        self.apps.get(app)?.exits.get(uid)
    }

    /// How many executors of an application that a creator created failed within a time; without one, ever.
    pub fn failures(&self, app: &AppKey, creator: Option<Creator>, within: Option<Duration>, now: Instant) -> u32 {
        let Some(failures) = self.apps.get(app).and_then(|app_exits| app_exits.failures.get(&creator)) else {
            return 0;
        };
        let counts = |at: &&Instant| within.is_none_or(|within| now.saturating_duration_since(**at) <= within);
        u32::try_from(failures.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    pub fn history(&self) -> &RememberedExits {
        self.history.exits()
    }
}
