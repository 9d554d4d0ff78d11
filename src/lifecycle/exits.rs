//! The executors that ended: Spark's `removedExecutorsCache` and `ExecutorFailureTracker` for every application at once.
//!
//! An end is noted once a pod (by uid), and told once. Spark forgets an executor three minutes after it was removed and
//! then removes one whose pod lingers again; here the entry lives as long as its pod and three minutes more, so nothing is
//! counted twice while it is there to be looked at. Memory is bounded by pods and by the last few ends.
//!
//! Every replica keeps these notes from its own watch, so that a grace that began goes on when another replica takes
//! over. Only the leader tells.

use std::collections::{HashMap, HashSet, VecDeque};
use std::num::NonZeroI64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imbl::Vector;
use jiff::Timestamp;

use super::Now;
use super::cause::{Cause, Left, by_whom, cause};
use super::election::Standing;
use crate::driver::life;
use crate::plant::{self, Bug};
use crate::signature::Creator;
use crate::snapshot::{Batch, Departed, Executor, Snapshot};
use crate::spark::evidence::Evidence;
use crate::spark::exit::{self, SparkView};
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::state::ExecutorPodState;

/// How long an executor is remembered after its pod is gone (`spark.kubernetes.executor.deletedExecutorsCacheTimeout`).
pub const REMEMBERED: Duration = Duration::from_secs(180);
/// How long a replica that does not lead keeps what the leader may have missed: longer than the leader's poll takes to
/// find it.
const KEPT_UNTOLD: Duration = Duration::from_secs(600);
/// How many ends are kept for people to ask about.
const HISTORY: usize = 2048;
/// An executor that ended so shortly after we first saw it had most likely ended before.
const JUST_SEEN: Duration = Duration::from_secs(2);
/// More than so many untold ends are not kept: nobody has led for a long time.
const MOST_UNTOLD: usize = 20_000;
/// Of more creators than these only those are counted of whom something is there.
const MANY_CREATORS: usize = 16;
/// How many failures are counted of one creator's executors: far above any limit that is not "never".
const MOST_FAILURES: usize = 10_000;

/// An end.
#[derive(Clone, Debug, PartialEq)]
pub struct Exit {
    /// Whose executor.
    pub app: AppKey,
    /// As it was seen last.
    pub executor: Arc<Executor>,
    /// Why.
    pub cause: Cause,
    /// How it left the picture.
    pub left: Left,
    /// When it was noted.
    pub at: Timestamp,
    /// Whether the driver's pod that owned it was gone by then.
    pub driver_gone: bool,
    /// For one that a poll did not find: when that was, and after how long an executor counts as missing.
    pub missing: Option<(Timestamp, Duration)>,
    /// It had ended before we ever saw it.
    pub was_over: bool,
    /// The replica that led before has most likely told it.
    pub perhaps_told: bool,
}

impl Exit {
    /// The pod.
    pub fn pod(&self) -> PodKey {
        PodKey::new(self.app.namespace(), &self.executor.name)
    }

    /// What the pod said.
    pub fn evidence(&self) -> Option<&Evidence> {
        self.executor.evidence.as_deref()
    }

    /// What Spark's driver says about it.
    pub fn spark(&self) -> SparkView {
        let id = self.executor.exec_id.unwrap_or_default();
        let nothing = Evidence::default();
        let evidence = self.evidence().unwrap_or(&nothing);
        match (self.executor.state, self.left) {
            (ExecutorPodState::Failed | ExecutorPodState::Succeeded, _) => exit::ended(id, evidence),
            (_, Left::Vanished) => {
                let (polled, delta) = self.missing.unwrap_or((self.at, Duration::ZERO));
                let registered = self.executor.created.map_or(0, NonZeroI64::get).saturating_mul(1000);
                let delta = i64::try_from(delta.as_millis()).unwrap_or(i64::MAX);
                exit::missing(id, registered, polled.as_millisecond(), delta)
            }
            _ => exit::deleted(id, evidence),
        }
    }

    /// When it ended, as far as the pod told; else when it was noted.
    pub fn ended_at(&self) -> Timestamp {
        self.evidence().and_then(Evidence::ended_at).map_or(self.at, |ended| ended.min(self.at))
    }

    /// The exit code, if a container told one.
    pub fn exit_code(&self) -> Option<i32> {
        self.evidence()?.exit_code
    }

    /// What is known beyond the cause, in a line.
    pub fn detail(&self) -> String {
        let nothing = Evidence::default();
        let evidence = self.evidence().unwrap_or(&nothing);
        let mut parts = evidence.words_of_end();
        if self.cause == Cause::Vanished {
            parts.push("its pod is gone, and no event told so".to_owned());
        }
        if self.cause == Cause::Deleted {
            let who = by_whom(evidence).unwrap_or_else(|| {
                match self.executor.template.owner.as_ref().filter(|_| self.driver_gone) {
                    Some(owner) => format!("the garbage collector, most likely: its driver {} is gone", owner.name),
                    None => "somebody unknown".to_owned(),
                }
            });
            parts.push(format!("by {who}"));
        } else {
            parts.extend(evidence.disruption.as_ref().map(|words| format!("{}: {}", words.reason, words.message)));
        }
        if let Some(words) = evidence.unscheduled.as_ref().filter(|_| self.executor.node.is_none()) {
            parts.push(format!("never placed: {}", words.message));
        }
        parts.join("; ")
    }
}

/// An executor that ended, as long as it is remembered.
#[derive(Clone, Debug)]
pub(super) struct Note {
    /// When we first saw it in a final state, by our own clock.
    pub(super) since: Instant,
    /// Why it ended.
    pub(super) cause: Cause,
    /// When its pod was gone.
    gone: Option<Instant>,
}

#[derive(Debug, Default)]
struct Roll {
    notes: HashMap<Arc<str>, Note>,
    /// When executors failed, by who created them.
    failures: HashMap<Option<Creator>, VecDeque<Instant>>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Exits {
    apps: HashMap<AppKey, Roll>,
    history: Vector<Exit>,
    untold: VecDeque<(Instant, Exit)>,
    /// When another replica was last seen to lead.
    last_led: Option<Instant>,
}

impl Exits {
    /// Notes what a batch brought. Returns the applications in which something ended.
    pub fn note(&mut self, batch: &Batch, now: Now) -> Vec<AppKey> {
        let mut apps = Vec::new();
        for (app, executor) in batch.ended.values() {
            self.end(app, executor, Left::Stays, now, None, false);
            apps.push(app.clone());
        }
        for (uid, app) in &batch.revived {
            let Some(roll) = self.apps.get_mut(app) else { continue };
            // Its container was started anew; should that end too, it is another end, with a grace of its own.
            let ended_again = batch.snapshot.apps.get(app).is_some_and(|app| {
                app.executors.values().any(|executor| executor.uid == *uid && executor.state.is_final())
            });
            match roll.notes.get_mut(uid) {
                Some(note) if ended_again => note.since = now.at,
                _ => _ = roll.notes.remove(uid),
            }
        }
        for departed in batch.departed.values() {
            let left = if departed.told { Left::Deleted } else { Left::Vanished };
            let Departed { app, executor, missing, .. } = departed;
            self.end(app, executor, left, now, *missing, driver_is_gone(&batch.snapshot, app, executor));
            if let Some(note) = self.apps.get_mut(app).and_then(|roll| roll.notes.get_mut(&executor.uid)) {
                note.gone.get_or_insert(now.at);
            }
            apps.push(app.clone());
        }
        apps.sort_unstable();
        apps.dedup();
        apps
    }

    fn end(
        &mut self,
        app: &AppKey,
        executor: &Arc<Executor>,
        left: Left,
        now: Now,
        missing: Option<(Timestamp, Duration)>,
        driver_gone: bool,
    ) {
        let roll = self.apps.entry(app.clone()).or_default();
        if let Some(note) = roll.notes.get_mut(&executor.uid) {
            note.gone = None; // A list from the past has brought it back; it will go again.
            return;
        }
        let cause = cause(executor, left);
        roll.notes.insert(executor.uid.clone(), Note { since: now.at, cause, gone: None });
        // Labelled before we looked: whoever did that has dealt with it, and it is kept only for those who ask.
        let dealt_with = executor.inactive;
        if executor.state == ExecutorPodState::Failed && !dealt_with {
            let failures = roll.failures.entry(executor.counts_to()).or_default();
            if failures.len() >= MOST_FAILURES {
                failures.pop_front();
            }
            failures.push_back(now.at);
        }
        let was_over = left == Left::Stays
            && executor.first_seen.is_none_or(|seen| now.at.saturating_duration_since(seen) < JUST_SEEN);
        let exit = Exit {
            app: app.clone(),
            executor: executor.clone(),
            cause,
            left,
            at: now.wall,
            driver_gone,
            missing,
            was_over,
            perhaps_told: false,
        };
        if !dealt_with {
            if self.untold.len() >= MOST_UNTOLD {
                self.untold.pop_front();
            }
            self.untold.push_back((now.at, exit.clone()));
        }
        if self.history.len() >= HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(exit);
    }

    /// What is still to be told. A replica that is led by another keeps what it notes for a while: should that one
    /// die, it is told again rather than never. What was noted longer than `takeover` ago was most likely told before;
    /// it says so.
    pub fn to_tell(&mut self, standing: Standing, takeover: Duration, now: Instant) -> Vec<Exit> {
        let age = |since: Instant| now.saturating_duration_since(since);
        match standing {
            Standing::Leaderless => Vec::new(),
            Standing::Led if plant::is(Bug::FollowerForgets) => {
                self.untold.clear();
                Vec::new()
            }
            Standing::Led => {
                self.last_led = Some(now);
                while self.untold.front().is_some_and(|(since, _)| age(*since) >= KEPT_UNTOLD) {
                    self.untold.pop_front();
                }
                Vec::new()
            }
            Standing::Leading => {
                let all = std::mem::take(&mut self.untold).into_iter();
                let led = self.last_led;
                // It was told if somebody led for long enough after we noted it; or if it was over when we came, and
                // somebody led before us.
                let told = |since: Instant, exit: &Exit| {
                    led.is_some_and(|led| exit.was_over || led.saturating_duration_since(since) >= takeover)
                };
                all.map(|(since, exit)| Exit { perhaps_told: told(since, &exit), ..exit }).collect()
            }
        }
    }

    /// Forgets executors that are gone for long enough, and with its application what is counted of it.
    pub fn expire(&mut self, snapshot: &Snapshot, now: Instant) {
        if plant::is(Bug::CacheForgotten) {
            self.apps.clear();
        }
        self.apps.retain(|app, roll| {
            if roll.failures.len() > MANY_CREATORS {
                let there: HashSet<Option<Creator>> =
                    snapshot.apps.get(app).into_iter().flat_map(|app| life::creators(app)).collect();
                roll.failures.retain(|creator, _| there.contains(creator));
            }
            roll.notes.retain(|_, note| note.gone.is_none_or(|gone| now.saturating_duration_since(gone) < REMEMBERED));
            !roll.notes.is_empty() || snapshot.apps.contains_key(app)
        });
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

/// Whether the driver's pod that owned an executor is there no more. Labelled drivers are in the picture, and the others
/// are followed as long as an executor names them.
fn driver_is_gone(snapshot: &Snapshot, app: &AppKey, executor: &Executor) -> bool {
    let owner = executor.template.owner.as_ref().filter(|owner| owner.is_pod);
    owner.is_some_and(|owner| {
        snapshot.driver_pod(app.namespace(), &owner.name).is_none_or(|driver| driver.uid != owner.uid)
    })
}
