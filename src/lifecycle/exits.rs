//! The executors that ended: Spark's `removedExecutorsCache` and `ExecutorFailureTracker` for every application at once.
//!
//! An end is noted once a pod (by uid), and reported once. Spark forgets an executor three minutes after it was removed and
//! then removes one whose pod lingers again; here the entry lives as long as its pod and three minutes more, so nothing is
//! counted twice while it is there to be looked at. Memory is bounded by pods and by the last few ends.
//!
//! Every replica keeps these notes from its own watch, so that a grace that began goes on when another replica takes
//! over. Only the leader reports, and the [`Mark`] in the Lease tells the next leader what is reported. What had ended
//! before anybody led is history and no news.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::Vector;
use indexmap::IndexMap;
use jiff::Timestamp;

use super::Now;
use super::cause::{Cause, Left, cause};
use super::driver_at_end::{DriverAtEnd, TOGETHER};
use super::election::Standing;
use super::exit::Exit;
use super::mark::{Found, Mark};
use super::outages::Outages;
use crate::driver::life;
use crate::plant::{self, Bug};
use crate::signature::Creator;
use crate::snapshot::{Absence, Batch, Departed, Ended, Executor, Snapshot};
use crate::spark::evidence::Evidence;
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::state::ExecutorPodState;

/// How long an executor is remembered after its pod is gone (`spark.kubernetes.executor.deletedExecutorsCacheTimeout`).
pub const REMEMBERED: Duration = Duration::from_secs(180);
/// How long a replica that does not lead keeps what the leader may have missed: twice as long as the default poll takes to find
/// it. With a longer `lifecycle.poll` an end that only a poll finds may be lost with the leader.
const KEPT_UNTOLD: Duration = Duration::from_secs(600);
/// How many ends are kept for people to ask about.
const HISTORY: usize = 2048;
/// More than so many untold ends are not kept: nobody has led for a long time.
const MOST_UNTOLD: usize = 20_000;
/// Of more creators than these only those are counted of whom something is there.
const MANY_CREATORS: usize = 16;
/// How many failures are counted of one creator's executors: far above any limit that is not "never".
const MOST_FAILURES: usize = 10_000;
/// How long a new leader's watch may be behind that of the leader before.
const CATCHES_UP: Duration = Duration::from_secs(60);

/// An executor that ended, as long as it is remembered.
#[derive(Clone, Debug)]
pub(super) struct Note {
    /// When we first saw it in a final state, by our own clock.
    pub(super) since: Instant,
    /// In which version.
    version: Option<NonZeroU64>,
    /// Why it ended.
    pub(super) cause: Cause,
    /// Whether it is still to be decided why, or to be told: nothing is done to its pod before.
    pub(super) is_open: bool,
    /// When its pod was gone.
    gone: Option<Instant>,
    /// Before this version it was not gone yet.
    until: Option<NonZeroU64>,
}

/// What is noted of an application.
#[derive(Debug, Default)]
struct Roll {
    notes: BTreeMap<Arc<str>, Note>,
    /// When executors failed, by who created them.
    failures: HashMap<Option<Creator>, VecDeque<Instant>>,
}

/// An end of which the driver's may still be the reason.
#[derive(Debug)]
struct Undecided {
    since: Instant,
    exit: Exit,
    /// Its position in the history, counted from the first end.
    number: u64,
}

/// An executor whose pod is gone.
#[derive(Debug)]
struct Gone {
    at: Instant,
    app: AppKey,
    uid: Arc<str>,
    /// For one that the watch has not shown to go: where the watch is when it has.
    as_of: Option<u64>,
}

/// A batch of which a part is noted.
#[derive(Debug)]
struct Noting {
    /// As it was when the batch was taken; empty where nothing is revived.
    snapshot: Snapshot,
    ended: indexmap::map::IntoIter<Arc<str>, Ended>,
    ended_again: IndexMap<Arc<str>, Vec<Ended>>,
    revived: IndexMap<Arc<str>, (AppKey, Arc<Executor>)>,
    /// So many of those are dealt with.
    revived_done: usize,
    departed: IndexMap<Arc<str>, Departed>,
    /// Those, one by one, once those that run again are dealt with: a hundred thousand must not be dropped at once.
    departing: Option<indexmap::map::IntoIter<Arc<str>, Departed>>,
    touched: indexmap::set::IntoIter<AppKey>,
}

/// What was found when this replica began to lead.
#[derive(Clone, Copy, Debug)]
struct Began {
    at: Instant,
    found: Found,
    /// When our watch had delivered every change that the previous leader may have reported.
    caught_up: Option<Instant>,
}

impl Began {
    /// The newest resourceVersion of ends that the previous leader may have reported.
    fn before(&self) -> u64 {
        let taken = self.found.taken.filter(|_| !self.found.is_released);
        self.found.mark.map_or(0, |mark| mark.through).max(taken.unwrap_or_default())
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Exits {
    /// How long the end of a driver is awaited that would explain an executor's.
    explained_within: Duration,
    apps: BTreeMap<AppKey, Roll>,
    history: Vector<Exit>,
    /// How many ends there were.
    noted: u64,
    noting: Option<Noting>,
    undecided: VecDeque<Undecided>,
    /// So many of those, from the front, are still to be looked at this time.
    to_decide: usize,
    /// Drivers whose end would explain that of an executor.
    open_drivers: BTreeSet<PodKey>,
    untold: VecDeque<(Instant, Exit)>,
    /// Whether this replica led when it was last asked what to report.
    leads: bool,
    /// The resourceVersions with which those ended that are undecided or untold, and how many with each.
    waiting: BTreeMap<u64, usize>,
    /// Executors whose pods are gone, in the order in which they went.
    gone: VecDeque<Gone>,
    /// Applications of more creators than are all remembered.
    crowded: BTreeSet<AppKey>,
    /// When this process first had a list of pods,
    first_list: Option<Instant>,
    is_listed: bool,
    /// and as of which resourceVersion.
    first_version: Option<u64>,
    /// The newest list or poll was as of this resourceVersion: what it did not have had gone by then.
    newest_list: Option<u64>,
    /// The newest end that was told, and when: a look by name may have shown it before the watch does.
    newest_told: Option<(Instant, u64)>,
    /// Between these resourceVersions nothing was seen, and when that was found out.
    unseen: Option<(Instant, (u64, u64))>,
    /// When another replica was last seen to lead.
    last_led: Option<Instant>,
    began: Option<Began>,
    /// Up to here the watch has shown everything.
    position: Option<u64>,
    /// When nothing could be seen.
    pub(super) outages: Outages,
}

impl Exits {
    /// The end of a driver that would explain an executor's is awaited for so long, and an API server from which nothing
    /// came for `quiet` was away.
    pub(super) fn waiting(explained_within: Duration, quiet: Duration) -> Exits {
        Exits { explained_within, outages: Outages::new(quiet), ..Exits::default() }
    }

    /// Pods were listed. What has ended in the first list had ended before we came.
    pub(super) fn listed(&mut self, now: Instant) {
        // One that was cut off was no list.
        if !self.is_listed {
            self.first_list = Some(now);
        }
    }

    /// The first list was as of this resourceVersion.
    pub(super) fn first_listed(&mut self, version: &str) {
        self.is_listed = true;
        self.first_version = version.parse().ok();
    }

    /// Pods were listed, or polled, as of a resourceVersion.
    pub(super) fn list_as_of(&mut self, version: &str) {
        self.newest_list = version.parse().ok().max(self.newest_list);
    }

    /// The watch had shown everything up to a resourceVersion, and then pods were listed as of another: who came and went
    /// between them was not seen.
    pub(super) fn relisted(&mut self, before: &str, version: &str, now: Instant) {
        if let (Ok(before), Ok(version)) = (before.parse(), version.parse())
            && before < version
        {
            let unseen = self.unseen.filter(|(at, _)| now.saturating_duration_since(*at) < KEPT_UNTOLD);
            let gap = unseen.map_or((before, version), |(_, gap)| wider(gap, (before, version)));
            self.unseen = Some((now, gap));
        }
    }

    /// This replica leads from now on, after another one or as the first.
    pub(super) fn took_over(&mut self, found: Found, now: Instant) {
        self.began = Some(Began { at: now, found, caught_up: None });
    }

    /// Notes what a batch brought, all at once.
    pub fn note(&mut self, batch: Batch, now: Now) {
        let snapshot = batch.snapshot.clone();
        self.begin(batch);
        self.decide(&snapshot, now, usize::MAX);
        self.go_on(&snapshot, now, usize::MAX);
    }

    /// Takes a batch over, to be noted in parts, and what is undecided is looked at once more.
    pub(super) fn begin(&mut self, batch: Batch) {
        let Batch { snapshot, ended, ended_again, revived, departed, touched, .. } = batch;
        let (ended, touched) = (ended.into_iter(), touched.into_iter());
        // An old picture that is kept is all copied as the new one changes.
        let snapshot = if revived.is_empty() { Snapshot::default() } else { snapshot };
        let (revived_done, departing) = (0, None);
        let noting = Noting { snapshot, ended, ended_again, revived, revived_done, departed, departing, touched };
        self.noting = Some(noting);
        self.to_decide = self.undecided.len();
    }

    /// Whether a batch is not noted as a whole yet.
    pub(super) fn is_noting(&self) -> bool {
        self.noting.is_some()
    }

    /// Notes a part of the batch. Returns the applications in which something ended.
    pub(super) fn go_on(&mut self, snapshot: &Snapshot, now: Now, most: usize) -> Vec<AppKey> {
        let Some(mut noting) = self.noting.take() else { return Vec::new() };
        let (mut apps, mut left) = (Vec::new(), most);
        while left > 0
            && let Some((uid, ended)) = noting.ended.next()
        {
            left -= 1;
            if noting.revived.contains_key(&uid) {
                // An end that was noted before is over; this one is another, with a grace of its own.
                self.forget(&ended.app, &uid);
            }
            self.end(&ended, Left::Stays, now, (None, None), snapshot);
            for again in noting.ended_again.get(&uid).into_iter().flatten() {
                self.forget(&again.app, &uid);
                self.end(again, Left::Stays, now, (None, None), snapshot);
            }
            apps.push(ended.app);
        }
        while left > 0
            && let Some((uid, (app, executor))) = noting.revived.get_index(noting.revived_done)
        {
            left -= 1;
            // As it was last: what ended since is in the next batch.
            let there = noting.snapshot.executor(app.namespace(), &executor.name).map(|(_, there)| there);
            let last = noting.departed.get(uid).map(|departed| &departed.executor);
            if !last.or(there).is_some_and(|last| last.uid == *uid && last.state.is_final()) {
                self.forget(app, uid);
            }
            noting.revived_done += 1;
        }
        while left > 0
            && let Some((uid, departed)) =
                noting.departing.get_or_insert_with(|| std::mem::take(&mut noting.departed).into_iter()).next()
        {
            left -= 1;
            self.depart(uid, departed, now, snapshot, &mut apps);
        }
        while left > 0
            && let Some(app) = noting.touched.next()
        {
            left -= 1;
            self.forget_roll(&app, snapshot);
        }
        if left == 0 {
            self.noting = Some(noting);
        }
        apps.sort_unstable();
        apps.dedup();
        apps
    }

    fn depart(&mut self, uid: Arc<str>, departed: Departed, now: Now, snapshot: &Snapshot, apps: &mut Vec<AppKey>) {
        let left = match departed.absence {
            _ if plant::is(Bug::DeletedIsVanished) => Left::Vanished,
            Absence::NotListed => Left::Vanished,
            Absence::Unversioned => Left::Unshown,
            Absence::Deleted | Absence::Unselected => Left::Deleted,
        };
        let Departed { app, executor, missing, asked, .. } = departed;
        let was_live = !executor.state.is_final();
        let after = was_live.then(|| executor.version.clone());
        let version = executor.version.parse().ok();
        let ended = Ended { app: app.clone(), executor, was_live, after };
        self.end(&ended, left, now, (missing, asked), snapshot);
        if let Some(note) = self.apps.get_mut(&app).and_then(|roll| roll.notes.get_mut(&uid))
            && note.gone.is_none()
        {
            note.gone = Some(now.at);
            note.until = version;
            let as_of = (left != Left::Deleted).then(|| self.newest_list.max(self.position)).flatten();
            self.gone.push_back(Gone { at: now.at, app: app.clone(), uid, as_of });
        }
        apps.push(app);
    }

    /// Forgets what is counted of an application of which nothing is left.
    fn forget_roll(&mut self, app: &AppKey, snapshot: &Snapshot) {
        if self.apps.get(app).is_some_and(|roll| roll.notes.is_empty()) && !snapshot.apps.contains_key(app) {
            self.apps.remove(app);
        }
    }

    /// Its container runs again.
    fn forget(&mut self, app: &AppKey, uid: &str) {
        if let Some(roll) = self.apps.get_mut(app) {
            roll.notes.remove(uid);
        }
    }

    fn end(
        &mut self,
        ended: &Ended,
        left: Left,
        now: Now,
        (missing, asked): (Option<(Timestamp, Duration)>, Option<Instant>),
        snapshot: &Snapshot,
    ) {
        let Ended { app, executor, was_live, after } = ended;
        let roll = self.apps.entry(app.clone()).or_default();
        if let Some(note) = roll.notes.get_mut(&executor.uid) {
            note.gone = None; // A list from the past has brought it back; it will go again.
            return;
        }
        let driver = DriverAtEnd::of(snapshot, app, executor);
        let was_over = !was_live
            && left == Left::Stays
            && executor.first_seen.is_none_or(|seen| self.first_list.is_some_and(|first| seen <= first));
        // Labelled before we first saw it: it was reported then, and is only kept for `why`. Unless its driver labelled it
        // while no replica ran, which the mark decides.
        let labelled_before = executor.inactive && !was_live;
        // Or while our watch was interrupted.
        let in_gap = || {
            let version = executor.version.parse().ok();
            self.unseen.zip(version).is_some_and(|((_, (from, to)), at)| from < at && at <= to)
        };
        let dealt_with = labelled_before && (executor.inactive_by_us || !(was_over || in_gap()));
        let mut exit = Exit {
            app: app.clone(),
            executor: executor.clone(),
            cause: cause(executor, left),
            left,
            at: now.wall,
            driver,
            missing,
            was_over,
            after: after.as_ref().and_then(|version| version.parse().ok()),
            asked,
            perhaps_told: false,
        };
        // Of one that had ended before we came, only times tell what came first.
        if !(was_over && exit.driver.is_untimed()) {
            exit.cause = exit.driver.explain(exit.cause, exit.evidence(), exit.at);
        }
        let version = exit.version();
        let at = version.and_then(NonZeroU64::new);
        let note =
            Note { since: now.at, version: at, cause: exit.cause, is_open: !dealt_with, gone: None, until: None };
        roll.notes.insert(executor.uid.clone(), note);
        if executor.state == ExecutorPodState::Failed && !labelled_before {
            let failures = roll.failures.entry(executor.counts_to()).or_default();
            if failures.len() >= MOST_FAILURES {
                failures.pop_front();
            }
            failures.push_back(now.at);
            if roll.failures.len() > MANY_CREATORS {
                self.crowded.insert(app.clone());
            }
        }
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(exit.clone());
        let number = self.noted;
        self.noted += 1;
        if dealt_with {
            return;
        }
        if let Some(version) = version {
            *self.waiting.entry(version).or_default() += 1;
        }
        let waits = exit.driver.open().is_some() && !was_over && !self.explained_within.is_zero();
        if waits && DriverAtEnd::would_explain(exit.cause, exit.evidence()) {
            self.explains(&exit);
            self.undecided.push_back(Undecided { since: now.at, exit, number });
        } else {
            self.keep(now.at, exit);
        }
    }

    fn keep(&mut self, since: Instant, exit: Exit) {
        // An exit that a leader drops is never reported.
        if self.untold.len() >= MOST_UNTOLD && !self.leads {
            self.pop_untold();
        }
        self.untold.push_back((since, exit));
    }

    /// The oldest that is untold, which is dealt with from now on: it is told, whoever leads has told it by now, or nobody
    /// ever will.
    fn pop_untold(&mut self) -> Option<(Instant, Exit)> {
        let (since, exit) = self.untold.pop_front()?;
        self.settle(&exit.app, &exit.executor.uid);
        if let Some(version) = exit.version()
            && let Some(count) = self.waiting.get_mut(&version)
        {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&version);
            }
        }
        Some((since, exit))
    }

    /// Notes whose end would explain an executor's.
    fn explains(&mut self, exit: &Exit) {
        self.open_drivers.extend(exit.driver.open().map(|driver| PodKey::new(exit.app.namespace(), driver)));
    }

    /// What is noted of an end is told, as far as it ever will be.
    fn settle(&mut self, app: &AppKey, uid: &str) {
        if let Some(note) = self.apps.get_mut(app).and_then(|roll| roll.notes.get_mut(uid)) {
            note.is_open = false;
        }
    }

    /// Looks again at the drivers of some of those whose end they may explain.
    pub(super) fn decide(&mut self, snapshot: &Snapshot, now: Now, most: usize) {
        let some = self.to_decide.min(most);
        self.to_decide -= some;
        self.decide_some(snapshot, now, some, false);
    }

    /// `at_last`: what is not explained yet never will be.
    fn decide_some(&mut self, snapshot: &Snapshot, now: Now, some: usize, at_last: bool) {
        for _ in 0..some {
            let Some(mut undecided) = self.undecided.pop_front() else { return };
            let exit = &mut undecided.exit;
            let age = now.at.saturating_duration_since(undecided.since);
            let driver = DriverAtEnd::of(snapshot, &exit.app, &exit.executor);
            // Of one that is gone, or going, nobody knows since when.
            if !(driver.is_untimed() && exit.cause == Cause::Error && age > TOGETHER) {
                exit.driver.learn(driver);
            }
            if exit.driver.open().is_some() && age < self.explained_within && !at_last {
                self.explains(&undecided.exit);
                self.undecided.push_back(undecided);
                continue;
            }
            exit.cause = exit.driver.explain(exit.cause, exit.evidence(), exit.at);
            let Undecided { since, exit, number } = undecided;
            let roll = self.apps.get_mut(&exit.app);
            if let Some(note) = roll.and_then(|roll| roll.notes.get_mut(&exit.executor.uid)) {
                note.cause = exit.cause;
            }
            // The history keeps the last ones.
            let kept = usize::try_from(self.noted - number).ok().and_then(|back| self.history.len().checked_sub(back));
            if let Some(kept) = kept.and_then(|at| self.history.get_mut(at)) {
                *kept = exit.clone();
            }
            self.keep(since, exit);
        }
    }

    /// What is still to be told. A replica that is led by another keeps what it notes for a while: should that one
    /// die, what its mark does not cover is told. `takeover` is how long a leader without a mark takes to tell. At most
    /// `most` at a time.
    pub fn to_tell(&mut self, standing: Standing, takeover: Duration, now: Instant, most: usize) -> Vec<Exit> {
        self.leads = standing == Standing::Leading;
        let age = |since: Instant| now.saturating_duration_since(since);
        match standing {
            Standing::Leaderless => Vec::new(),
            Standing::Led if plant::is(Bug::FollowerForgets) => {
                while self.pop_untold().is_some() {}
                Vec::new()
            }
            Standing::Led if !plant::is(Bug::FollowersTell) => {
                self.last_led = Some(now);
                while self.untold.front().is_some_and(|(since, _)| age(*since) >= KEPT_UNTOLD) {
                    self.pop_untold();
                }
                Vec::new()
            }
            Standing::Leading | Standing::Led => {
                let mut told = Vec::new();
                for _ in 0..most {
                    let Some((since, exit)) = self.pop_untold() else { break };
                    if let Some(perhaps_told) = self.was_told(since, &exit, takeover) {
                        let newest = self.newest_told.map(|(_, newest)| newest);
                        let ended = exit.version().or(self.newest_list);
                        self.newest_told = ended.max(newest).map(|newest| (now, newest));
                        let in_doubt = perhaps_told || plant::is(Bug::DoubtAlwaysSaid);
                        let perhaps_told = in_doubt && !plant::is(Bug::DoubtNotSaid);
                        told.push(Exit { perhaps_told, ..exit });
                    }
                }
                told
            }
        }
    }

    /// Whether there is more to do than was done: a leader goes on at once.
    pub(super) fn is_busy(&self, standing: Standing) -> bool {
        self.is_noting() || self.to_decide > 0 || (standing == Standing::Leading && !self.untold.is_empty())
    }

    /// Whether an end may have been told before this replica led; `None` for one that was, or that is history.
    fn was_told(&self, since: Instant, exit: &Exit, takeover: Duration) -> Option<bool> {
        // Our watch may deliver late what the previous leader has reported, and a GET may be answered late.
        let first = exit.asked.map_or(since, |asked| asked.min(since));
        // Never seen live, and labelled: without a mark it counts as reported by whoever labelled it.
        let labelled = exit.was_over && exit.executor.inactive;
        let Some(began) = self.began.filter(|began| exit.was_over || first <= self.catches_up(began)) else {
            return (!labelled).then_some(false);
        };
        let led_then = self.last_led.is_some_and(|led| since <= led);
        let Some(mark) = began.found.mark.filter(|_| !plant::is(Bug::MarkIgnored)) else {
            // A first installation, or a leader of a version without marks: what it was about to tell when it went is told
            // again rather than never.
            let led_on =
                since <= began.at && self.last_led.is_some_and(|led| led.saturating_duration_since(since) >= takeover);
            let age = exit.at.duration_since(exit.ended_at()).unsigned_abs();
            let is_history = exit.was_over && !(began.found.was_held && age <= takeover);
            let before = exit.version().is_none_or(|ended| began.found.taken.is_none_or(|taken| ended <= taken));
            return (!is_history && !led_on).then_some(led_then || (began.found.was_held && before));
        };
        // It may have been told when it ended, and nobody knows when that was.
        let Some(ended) = exit.version() else { return Some(true) };
        match mark.covers(ended) {
            Some(true) => return None,
            // The leader that wrote the mark had reported every exit of pods that still existed when the gap ended.
            None if mark.gap.is_some_and(|(_, to)| to <= mark.through && self.stayed(exit, ended, to)) => return None,
            None => return Some(true),
            Some(false) => {}
        }
        // The pod may have ended before the mark and changed after it: no version after the mark is known with which it had not
        // ended, and the time of its end is not after the mark, or unknown.
        let unseen = exit.after.is_none_or(|after| after < mark.through);
        let ended_at = exit.evidence().and_then(Evidence::ended_at);
        // A labelled pod has changed since it ended, whatever the clocks say.
        let changed = unseen && (labelled || ended_at.is_none_or(|at| at <= mark.at));
        let before = began.found.taken.is_none_or(|taken| ended <= taken) && !began.found.is_released;
        Some(changed || before)
    }

    /// Whether the pod of an executor that ended with this version was still there, in that state, as of another.
    fn stayed(&self, exit: &Exit, ended: u64, as_of: u64) -> bool {
        let note = self.apps.get(&exit.app).and_then(|roll| roll.notes.get(&exit.executor.uid));
        let Some(note) =
            note.filter(|note| exit.left == Left::Stays && note.version.is_some_and(|at| at.get() == ended))
        else {
            return false;
        };
        match note.gone {
            Some(_) => note.until.is_some_and(|until| until.get() > as_of),
            // What is noted in part may be gone.
            None => !self.is_noting() && self.position.is_some_and(|position| position >= as_of),
        }
    }

    /// Until when ends may be noted that the previous leader has reported: a minute after the watch has caught up. After a
    /// restore of etcd it never does.
    fn catches_up(&self, began: &Began) -> Instant {
        began.caught_up.map_or(began.at + KEPT_UNTOLD, |caught_up| caught_up + CATCHES_UP)
    }

    /// The watch has shown everything up to here, and its ends are about to be noted.
    pub(super) fn at(&mut self, position: Option<u64>, now: Instant) {
        self.position = position;
        if let Some(began) = &mut self.began
            && began.caught_up.is_none()
            && position.is_some_and(|position| position >= began.before())
        {
            began.caught_up = Some(now);
        }
    }

    /// Up to where every end is told, when the watch had shown everything up to `position` at the last note, and it is not
    /// known whether what left the watch at `unsure` has ended.
    pub fn mark(&self, position: u64, unsure: Option<u64>, now: Now) -> Mark {
        let first = self.waiting.keys().next().copied();
        let through = first.map_or(position, |first| position.min(first.saturating_sub(1)));
        // Our watch may be behind that of whoever led before. After a restore of etcd it stays so, and ours counts.
        let lately = |within| self.began.filter(|began| now.at.saturating_duration_since(began.at) < within);
        let behind = self.began.filter(|began| now.at <= self.catches_up(began));
        let before = behind.and_then(|began| began.found.mark).map_or(0, |mark| mark.through);
        // For as long as others keep what they have noted.
        let found = lately(KEPT_UNTOLD).and_then(|began| began.found.mark);
        let gap = found.and_then(|found| {
            let own = self.first_version.filter(|first| *first > found.through).map(|first| (found.through, first));
            own.into_iter().chain(found.gap).reduce(wider)
        });
        // This gap ends past `through`: exits of pods that still exist may be unreported, too.
        let unsure = unsure.filter(|unsure| *unsure <= position).map(|unsure| (unsure.saturating_sub(1), position + 1));
        // Others may have seen it, and keep it for so long.
        let unseen = self.unseen.filter(|(at, _)| now.at.saturating_duration_since(*at) < KEPT_UNTOLD);
        let told = self.newest_told.filter(|(at, _)| now.at.saturating_duration_since(*at) < KEPT_UNTOLD);
        let ahead = told.map(|(_, newest)| (through, newest)).filter(|(through, newest)| newest > through);
        // What whoever crashed before us may have told is in doubt until our watch has shown it.
        let crashed = lately(KEPT_UNTOLD).filter(|began| began.found.was_held && !began.found.is_released);
        let doubt = crashed
            .and_then(|began| Some((began.found.mark.map_or(0, |mark| mark.through), began.found.taken?)))
            .filter(|(_, taken)| *taken > through);
        let gaps = gap.into_iter().chain(unsure).chain(unseen.map(|(_, gap)| gap));
        let gap = gaps.chain(ahead).chain(doubt).reduce(wider);
        Mark { through: through.max(before), at: now.wall, gap }
    }

    /// Drivers' pods whose end would explain that of an executor, each once: those that no watch shows are to be read again.
    pub(super) fn explaining_drivers(&mut self) -> BTreeSet<PodKey> {
        std::mem::take(&mut self.open_drivers)
    }

    /// Notes and decides everything: nothing is to wait any more.
    pub(super) fn close(&mut self, snapshot: &Snapshot, now: Now) {
        self.go_on(snapshot, now, usize::MAX);
        self.decide_some(snapshot, now, self.undecided.len(), true);
    }

    /// Forgets executors that are gone for long enough, and with its application what is counted of it; at most `most` at a
    /// time.
    pub fn expire(&mut self, snapshot: &Snapshot, now: Instant, most: usize) {
        if plant::is(Bug::CacheForgotten) {
            self.apps.clear();
        }
        for app in std::mem::take(&mut self.crowded) {
            let Some(roll) = self.apps.get_mut(&app) else { continue };
            let there: HashSet<Option<Creator>> =
                snapshot.apps.get(&app).into_iter().flat_map(|app| life::creators(app)).collect();
            roll.failures.retain(|creator, _| there.contains(creator));
        }
        for _ in 0..most {
            let position = self.position;
            let is_due = |gone: &mut Gone| {
                let age = now.saturating_duration_since(gone.at);
                // A late watch has yet to deliver a deletion that a GET has confirmed.
                age >= REMEMBERED && (gone.as_of.is_none_or(|as_of| position >= Some(as_of)) || age >= KEPT_UNTOLD)
            };
            let Some(Gone { at, app, uid, .. }) = self.gone.pop_front_if(is_due) else { break };
            if let Some(roll) = self.apps.get_mut(&app)
                && roll.notes.get(&uid).is_some_and(|note| note.gone == Some(at))
            {
                roll.notes.remove(&uid);
                self.forget_roll(&app, snapshot);
            }
        }
    }

    /// What is noted of an executor.
    pub(super) fn of(&self, app: &AppKey, uid: &str) -> Option<&Note> {
        self.apps.get(app)?.notes.get(uid)
    }

    /// How many executors of an application that a creator made failed within a time; without one, ever.
    pub fn failures(&self, app: &AppKey, of: Option<Creator>, within: Option<Duration>, now: Instant) -> u32 {
        let Some(failures) = self.apps.get(app).and_then(|roll| roll.failures.get(&of)) else { return 0 };
        let counts = |at: &&Instant| within.is_none_or(|within| now.saturating_duration_since(**at) <= within);
        u32::try_from(failures.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    /// The last ends, the newest last. Cloning it is cheap.
    pub fn history(&self) -> &Vector<Exit> {
        &self.history
    }
}

/// One gap for two, and what lies between them.
fn wider((from, to): (u64, u64), (also_from, also_to): (u64, u64)) -> (u64, u64) {
    (from.min(also_from), to.max(also_to))
}
