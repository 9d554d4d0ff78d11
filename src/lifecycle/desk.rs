//! The loop's desk: what has come in, what is being looked up, what is being done, and what is due next.
//!
//! It holds the one mutable [`Snapshot`], takes the time as an argument and does nothing itself: the edge hands it
//! changes and answers, and asks for the next [`Turn`]. Everything in it can be lost at any moment; a restart lists,
//! reads and plans anew.
//!
//! * What costs more the more pods there are is done in parts, one a turn: nothing keeps the rest from being done for long.
//! * An application is planned when something about it changed, and each once a minute. A turn plans so many of them, and the
//!   next turn goes on: whatever happens at once, a turn is short.
//! * It is planned only by the leader, once pods and namespaces were listed; groups of a scheduler wait until those were
//!   listed: an empty picture is no reason to act.
//! * What the watch brings is handed over by the [`Store`] in batches, and so are ends: every replica notes those
//!   ([`Exits`]), and the leader tells them.
//! * What a list does not have, or has in another version, is checked before it is believed (`checks`).
//! * It is not planned while its earlier actions are on the way, nor before what its plan needs was read once (or could
//!   not be, three times): a gang is not lowered because we have just started.

mod answers;
mod inbox;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use smol_str::SmolStr;

use super::Now;
use super::checks::{Checks, Found};
use super::election::Standing;
use super::exit::Exit;
use super::exits::Exits;
use super::lookups::Lookups;
use super::mark::{self, Mark};
use super::memory::Memory;
use super::pace::{CrewKey, Held, Pace};
use super::plan::plan;
use super::queue::WorkQueue;
use super::reads::Read;
use super::tombstones::Tombstones;
use super::turn::{Settings, Turn};
use super::walk::Walk;
use crate::plant::{self, Bug};
use crate::policy::Policies;
use crate::snapshot::{Absence, Calls, Change, Replaced, Sighting, Snapshot, Store, SubscriberId, may_be_there};
use crate::spark::ids::{AppKey, PodKey, is_newer};
use inbox::{Inbox, PodList};

/// How soon what the watch brings is planned again after the last time: a burst of pods is one plan.
const PLANS: Duration = Duration::from_millis(250);
/// How often ends are looked at (`spark.kubernetes.executor.eventProcessingInterval`).
const ENDS: Duration = Duration::from_secs(1);
/// The first poll of a new leader comes within so long.
const FIRST_POLL: Duration = Duration::from_secs(30);
/// How often an application is planned again although nothing was heard of it.
const RESYNC: Duration = Duration::from_secs(60);
/// How often what nobody needs any more is forgotten.
const SWEEP: Duration = Duration::from_secs(15);
/// So long a plan waits for what is read for it.
const LONGEST_HELD: Duration = Duration::from_secs(30);
/// A turn takes so many applications on,
const APPS_A_TURN: usize = 64;
/// and no more once their plans go through so many executors together.
const EXECUTORS_A_TURN: usize = 2048;
/// The most pods of a list or a poll, and the most changed applications, that one turn takes in;
const PART: usize = 1024;
/// and the most ends that one turn notes. It reports twice as many.
const ENDS_A_TURN: usize = 128;

/// See the module's text.
#[derive(Debug)]
pub struct Desk {
    settings: Settings,
    store: Store,
    /// The store's subscribers: for plans, and for ends.
    plans: SubscriberId,
    ends: SubscriberId,
    inbox: Inbox,
    /// The list of pods that comes in.
    list: Option<PodList>,
    /// Applications that changed and are not lined up yet.
    touched: Option<indexmap::set::IntoIter<AppKey>>,
    exits: Exits,
    /// Up to where ends are noted once the batch that is being noted is.
    noting: Option<u64>,
    checks: Checks,
    /// Applications to look at: what they want to know, and what is to be done.
    work: WorkQueue<AppKey>,
    walk: Option<Walk>,
    /// When the next poll is due.
    poll: Option<Instant>,
    /// Whether one is on the way.
    polling: bool,
    polls: u64,
    newest: Option<SmolStr>,
    /// Up to here the watch of pods has shown everything,
    position: Option<SmolStr>,
    /// and up to here ends are noted.
    noted: Option<u64>,
    /// The oldest version of executors whose absence was confirmed, since the last batch of ends was taken and in that batch:
    /// they are not open checks any more, and their ends are not noted yet.
    found: Option<u64>,
    found_before: Option<u64>,
    lookups: Lookups,
    memory: BTreeMap<AppKey, Memory>,
    pace: Pace,
    /// Since when an application's plan waits for what is read: whoever names ever new pods must not hold it for ever.
    held: BTreeMap<AppKey, Instant>,
    listed: BTreeSet<&'static str>,
    leading: bool,
    closed: bool,
    last_mark: Option<Mark>,
    /// A list of pods is in, and its version is about to come.
    list_came: bool,
    sweep: Instant,
    gone: Tombstones,
}

const PODS: &str = "pods";
const NAMESPACES: &str = "namespaces";

impl Desk {
    /// An empty desk.
    pub fn new(now: Instant, settings: Settings) -> Desk {
        let mut store = Store::default();
        let plans = store.subscribe(PLANS, Calls::WithNews, now);
        let ends = store.subscribe(ENDS, Calls::Always, now);
        Desk {
            settings,
            store,
            plans,
            ends,
            inbox: Inbox::default(),
            list: None,
            touched: None,
            noting: None,
            exits: Exits::waiting(settings.explained_within, settings.quiet),
            checks: Checks::new(settings.settle, settings.silence),
            work: WorkQueue::default(),
            walk: None,
            poll: None,
            polling: false,
            polls: 0,
            newest: None,
            position: None,
            found: None,
            found_before: None,
            noted: None,
            lookups: Lookups::default(),
            memory: BTreeMap::new(),
            pace: Pace::default(),
            held: BTreeMap::new(),
            listed: BTreeSet::new(),
            leading: false,
            closed: false,
            last_mark: None,
            list_came: false,
            sweep: now + SWEEP,
            gone: Tombstones::default(),
        }
    }

    /// The picture as it is now.
    pub fn snapshot(&self) -> &Snapshot {
        self.store.snapshot()
    }

    /// What was noted of ends.
    pub fn exits(&self) -> &Exits {
        &self.exits
    }

    /// The newest resourceVersion that was seen of any labelled pod: a list must not be older.
    pub fn newest(&self) -> Option<&str> {
        self.newest.as_deref()
    }

    /// What the next leader has to know of what is told; `None` before pods were listed.
    pub fn mark(&self, now: Now) -> Option<Mark> {
        if self.closed {
            return self.last_mark;
        }
        let unsure = [self.checks.oldest(), self.found, self.found_before];
        Some(self.exits.mark(self.noted?, unsure.into_iter().flatten().min(), now))
    }

    fn note_version(&mut self, seen: &Sighting) {
        let version = seen.version();
        if self.newest.as_ref().is_none_or(|newest| is_newer(version, newest)) {
            self.newest = Some(version.clone());
        }
    }

    fn alive(&mut self, now: Instant) {
        if self.exits.outages.alive(now) {
            self.replan(); // What was due meanwhile is due later.
        }
    }

    /// The API server answered.
    pub fn contact(&mut self, at: Instant) {
        if self.exits.outages.contact(at) {
            self.replan();
        }
    }

    /// This replica leads from now on, and this is what it found.
    pub fn took_over(&mut self, found: mark::Found, now: Instant) {
        self.exits.took_over(found, now);
    }

    /// The last ends that this replica reports, if it leads. Nothing is noted any more: the next leader goes on from the mark.
    pub fn close(&mut self, now: Now, standing: Standing) -> Vec<Exit> {
        self.note_ends(now, usize::MAX);
        self.store.notify();
        self.take_ends(now);
        self.note_ends(now, usize::MAX);
        self.exits.close(self.store.snapshot(), now);
        let last = match standing {
            Standing::Leading => self.exits.to_tell(standing, self.settings.takeover, now.at, usize::MAX),
            Standing::Led | Standing::Leaderless => Vec::new(),
        };
        // A replica that does not lead does not know what the others have reported, and leaves their mark as it is. What this
        // replica learns from now on is not reported.
        self.last_mark = self.mark(now).filter(|_| standing == Standing::Leading);
        self.closed = true;
        last
    }

    /// Takes a change in.
    fn take(&mut self, mut change: Change, now: Now) {
        let mut driver_gone = None;
        match &mut change {
            // News that was overtaken.
            Change::Pod(seen) if self.gone.has_overtaken(seen.uid(), seen.version()) => return,
            Change::PodDeleted(seen) if self.is_gone(seen.uid()) => return self.gone.is_shown(seen.uid()),
            Change::Pod(seen) => {
                seen.seen_at(now.at);
                self.note_version(seen);
            }
            // Plans have waited for this.
            Change::Replaced(Replaced::Namespaces(_)) if self.listed.insert(NAMESPACES) => self.replan(),
            Change::PodGone(pod, uid) => {
                self.gone.bury(uid);
                driver_gone = self.labelled_driver(pod, uid);
            }
            Change::PodDeleted(seen) => {
                seen.seen_at(now.at);
                self.note_version(seen);
                match seen {
                    Sighting::Executor(_, executor) if may_be_there(executor) => {}
                    _ => self.gone.bury(seen.uid()),
                }
                driver_gone = self.labelled_driver(&seen.key(), seen.uid());
            }
            Change::GroupGone(key) => {
                if let Some(uid) = self.snapshot().groups.get(key).map(|group| group.uid.clone()) {
                    self.gone.bury(&uid);
                }
            }
            Change::GroupsListed(kind) if !self.snapshot().listed.contains(kind) => {
                self.replan(); // Gangs have waited for this, and an empty list touches none of them.
            }
            Change::Apis(apis) => {
                // Of an API that is served no more, or in another version, nothing is known.
                let changed = |kind: &&'static str| {
                    let had = self.store.snapshot().apis.as_ref().and_then(|had| had.get(kind));
                    had.is_some() && had != apis.get(kind)
                };
                let kinds: Vec<&'static str> = self.snapshot().listed.iter().copied().filter(changed).collect();
                for kind in kinds {
                    self.store.apply(Change::Unlisted(kind), now.wall);
                }
            }
            _ => {}
        }
        for departed in self.store.apply(change, now.wall) {
            self.gone.leave(&departed.executor.uid, departed.executor.version.clone());
            // The end of one that had ended is no news; a live one may still be there.
            if departed.executor.state.is_final() || plant::is(Bug::AbsentIsGone) {
                self.store.gone(departed);
            } else if departed.absence == Absence::Unselected && self.checks.is_crowded() {
                // Without deletionTimestamp only a label was taken off, and the executor lives: somebody does that to very many,
                // and not each is worth a GET.
            } else if let Some(before) = self.checks.absent(departed, now.at) {
                self.found(Found::Gone(before), now);
            }
        }
        // The snapshot knows that it is gone, and follows it from now on.
        if let Some((app, pod, uid)) = driver_gone.filter(|(_, pod, _)| self.snapshot().followed.contains_key(pod)) {
            self.lookups.know(Read::Pod(pod), uid, std::slice::from_ref(&app), now.at);
        }
    }

    /// The application of a labelled driver of that uid, if executors of it are left.
    fn labelled_driver(&self, pod: &PodKey, uid: &Arc<str>) -> Option<(AppKey, PodKey, Arc<str>)> {
        let (key, _) =
            self.snapshot().labelled_driver(pod.namespace(), pod.name()).filter(|(_, driver)| driver.uid == *uid)?;
        let app = self.snapshot().apps.get(key)?;
        (!app.executors().is_empty()).then(|| (key.clone(), pod.clone(), uid.clone()))
    }

    /// Whether what has this uid went a moment ago.
    fn is_gone(&self, uid: &str) -> bool {
        self.gone.has(uid)
    }

    /// Takes in what the answer to a write or a read told, so that the next plan needs not wait for the watch; unless the
    /// watch has shown something newer since. Versions of one object grow as numbers.
    pub fn written(&mut self, change: Change, now: Now) {
        let news = match &change {
            Change::Group(key, group) => match self.snapshot().groups.get(key) {
                Some(known) if known.uid == group.uid => is_newer(&group.version, &known.version),
                _ => !self.is_gone(&group.uid),
            },
            _ => true,
        };
        if news {
            self.take(change, now);
        }
    }

    /// Whether what plans rest on was listed. Groups wait for more: for what the cluster serves, and for their own list.
    pub fn is_complete(&self) -> bool {
        self.listed.contains(PODS) && self.listed.contains(NAMESPACES)
    }

    /// Everything is planned again: policies have changed, or something that all rest on.
    pub fn replan(&mut self) {
        self.walk = Some(Walk::default());
    }

    /// What is due now.
    pub fn turn(&mut self, now: Now, policies: &Policies, standing: Standing) -> Turn {
        let leading = standing == Standing::Leading;
        if leading && !self.leading {
            self.replan();
            self.poll = Some(now.at + self.jitter(policies.lifecycle.poll.min(FIRST_POLL)));
        }
        if self.leading && !leading && !plant::is(Bug::AddressesNeverRest) {
            self.lookups.forget_addresses();
        }
        self.leading = leading;
        let mut turn = Turn::default();
        self.inbox.renew();
        if self.sweep <= now.at {
            self.sweep = now.at + SWEEP;
            // The list of a poll that is on the way, or is being compared, may still have what has gone since.
            if !self.polling && !self.checks.is_judging() {
                self.gone.sweep(now.at);
            }
            self.store.tidy();
        }
        self.pace.sweep(now.at, PART);
        if !self.inbox.is_empty() {
            self.take_in(now);
        }
        if self.checks.is_concluding() {
            self.conclude(now);
        }
        if self.checks.is_judging() {
            self.judge();
        }
        self.line_up(now.at);
        if !self.closed {
            self.take_ends(now);
            self.note_ends(now, ENDS_A_TURN);
            // As many as a turn notes, and as it decides.
            turn.exits = self.exits.to_tell(standing, self.settings.takeover, now.at, 2 * ENDS_A_TURN);
        }
        if !leading {
            self.pace.give_up();
            self.memory.clear();
            self.held.clear();
            self.poll = None;
        }
        if self.inbox.is_empty() {
            if let Some(walk) = &mut self.walk
                && walk.line_up(self.store.snapshot(), &mut self.work)
            {
                self.walk = None;
            }
            self.work_off(now, policies);
        }
        self.due_reads(now.at, &mut turn);
        if leading && self.is_complete() {
            turn.actions = self.pace.begin();
            if self.poll.is_some_and(|due| due <= now.at) && !self.polling {
                self.poll = None;
                self.polling = true;
                turn.poll = !plant::is(Bug::NeverPolls);
            }
        }
        turn.rewatch = self.checks.restart(now.at);
        turn.wake = self.next_wake(now.at);
        turn
    }

    /// Takes on what is due, as much as one turn may.
    fn work_off(&mut self, now: Now, policies: &Policies) {
        let mut executors = 0;
        for _ in 0..APPS_A_TURN {
            if executors >= EXECUTORS_A_TURN {
                break;
            }
            let Some(app) = self.work.get(now.at) else { break };
            executors += self.snapshot().apps.get(&app).map_or(0, |app| app.unsettled());
            self.ask(&app, policies, now);
            if self.leading && self.is_complete() {
                self.plan(&app, now, policies);
            }
            self.work.done(&app);
        }
    }

    fn plan(&mut self, app: &AppKey, now: Now, policies: &Policies) {
        match self.pace.holds(app, now.at, self.store.snapshot()) {
            Held::No => {}
            Held::Until(at) => return self.work.add_after(app.clone(), at),
            Held::Acting => return,
        }
        if self.lookups.is_unsettled(app) {
            let since = *self.held.entry(app.clone()).or_insert(now.at);
            if now.at.saturating_duration_since(since) < LONGEST_HELD {
                // The answer makes it due sooner.
                return self.work.add_after(app.clone(), since + LONGEST_HELD);
            }
        }
        self.held.remove(app);
        let memory = self.memory.entry(app.clone()).or_default();
        let plan = plan(self.store.snapshot(), app, now, policies, memory, &self.exits);
        let is_left = !memory.is_empty() || self.store.snapshot().apps.contains_key(app) || !plan.crews.is_empty();
        if memory.is_empty() {
            self.memory.remove(app);
        }
        let later = plan.later;
        let paused = self.pace.plan(app, plan, now.at);
        let resync = (is_left && !plant::is(Bug::ActionNotRetried)).then(|| now.at + RESYNC);
        if let Some(at) = later.into_iter().chain(paused).chain(resync).min() {
            self.work.add_after(app.clone(), at);
        }
    }

    /// Lines up applications that changed.
    fn line_up(&mut self, now: Instant) {
        if self.touched.is_none() {
            self.touched = self.store.take(self.plans, now).map(|batch| batch.touched.into_iter());
        }
        if let Some(touched) = &mut self.touched {
            touched.by_ref().take(PART).for_each(|app| self.work.add(app));
            if touched.len() == 0 {
                self.touched = None;
                self.store.done(self.plans, now);
            }
        }
    }

    /// Takes the next batch of ends over, once the one before is noted. Half a list says nothing of ends: the pods of their
    /// drivers may come with the rest.
    fn take_ends(&mut self, now: Now) {
        if self.listed.contains(PODS)
            && let Some(batch) = self.store.take(self.ends, now.at)
        {
            self.noting = self.position.as_ref().and_then(|position| position.parse().ok()).or(self.noted);
            self.exits.at(self.noting, now.at);
            self.exits.begin(batch);
            self.found_before = self.found.take();
        }
    }

    /// Notes ends, decides about those that waited, and forgets those that are long past.
    fn note_ends(&mut self, now: Now, most: usize) {
        let was_noting = self.exits.is_noting();
        self.exits.decide(self.store.snapshot(), now, most);
        self.exits.go_on(self.store.snapshot(), now, most).into_iter().for_each(|app| self.work.add(app));
        for driver in self.exits.explaining_drivers() {
            self.lookups.refresh(Read::Pod(driver), now.at);
        }
        self.exits.expire(self.store.snapshot(), now.at, most);
        if was_noting && !self.exits.is_noting() {
            self.noted = self.noting;
            self.found_before = None;
            self.store.done(self.ends, now.at);
        }
    }

    /// Whether something is done in parts, and is not done yet.
    fn is_busy(&self) -> bool {
        let standing = if self.leading { Standing::Leading } else { Standing::Led };
        !self.inbox.is_empty()
            || self.touched.is_some()
            || self.checks.is_concluding()
            || self.checks.is_judging()
            || self.exits.is_busy(standing)
    }

    /// A tenth more or less. Not random: it need not be.
    fn jitter(&mut self, span: Duration) -> Duration {
        self.polls = self.polls.wrapping_add(1);
        let mixed = (self.settings.seed ^ self.polls).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let share = u32::try_from(mixed % 200).unwrap_or_default();
        span.saturating_mul(900 + share) / 1000
    }

    /// Actions for a creator's executors were done, or some of them failed. Either way the next plan tells what is missing.
    pub fn done(&mut self, crew: &CrewKey, failed: bool, wrote: bool, now: Instant) {
        if let Some(at) = self.pace.done(crew, failed, wrote, now) {
            self.work.add_after(crew.app.clone(), at);
        }
    }

    fn next_wake(&self, now: Instant) -> Option<Instant> {
        if self.closed {
            return Some(now + ENDS);
        }
        let plans = self.leading && self.is_complete();
        let poll = self.poll.filter(|_| plans && !self.polling);
        let walk = (self.walk.is_some() || self.is_busy()).then_some(now);
        let reads = self.lookups.next(now).into_iter().chain(self.checks.next(now));
        let ends = self.store.next_of(self.ends, now).filter(|_| self.listed.contains(PODS));
        let news = self.store.next_of(self.plans, now).into_iter().chain(ends);
        let work = self.work.next(now).into_iter().chain(walk).chain(poll).chain(news);
        reads.chain(work).chain([self.sweep]).min()
    }
}
