//! Objects that are read by name, and how often: each once for all applications that want it, again once a minute, or more
//! rarely where there are very many, and ever more rarely where it is absent or cannot be read.
//!
//! Pure: whoever owns this does the reading. A step costs what is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::pace::pause;
use super::queue::WorkQueue;
use super::reads::Read;
use crate::plant::{self, Bug};
use crate::spark::ids::{AppKey, PodKey};

/// How many reads are on the way at once. Confirmations have places of their own.
const AT_ONCE: usize = 16;
/// What was read so lately is not read again because something may have changed.
const JUST_NOW: Duration = Duration::from_secs(2);
/// How often a pod that is followed by name is read again.
const REFRESH: Duration = Duration::from_secs(60);
/// After so many failures a plan is made without what could not be read.
const PATIENCE: u32 = 3;
/// So often what is awaited and absent is looked for by short pauses: for about two minutes.
const SOON_GIVEN_UP: u32 = 9;
/// And from then on it is looked for this often.
const RARELY: Duration = Duration::from_secs(600);
/// The longest pause before a pod or an address that is absent is read again.
const RAREST: Duration = Duration::from_secs(3600);
/// So many objects are read again each minute at most: where there are more, each is read more rarely. A tenant's executors may
/// name any number of pods.
const A_MINUTE: usize = 600;
/// So many other uids make a pod be read again at once, until it was read anyway: a tenant can name any number.
const MOST_OUTDATED: usize = 4;

/// How a read went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It said what was wanted.
    Answered,
    /// There is no such object, and nobody expects one.
    Absent,
    /// There is no such object yet.
    Awaited,
    /// Nobody could be asked.
    Failed,
}

#[derive(Debug, Default)]
struct Entry {
    askers: BTreeSet<AppKey>,
    failures: u32,
    /// How often it was absent in a row.
    absent: u32,
    answered: bool,
    /// Uids that differed from the one that was read, and made it be read again at once.
    outdated_by: BTreeSet<Arc<str>>,
    /// It is read because of one of those, and not because its time has come.
    is_rechecked: bool,
    /// When it was read last.
    read: Option<Instant>,
}

impl Entry {
    /// Whether a plan may be made: it was read, or could not be.
    fn is_settled(&self) -> bool {
        self.answered || self.failures >= PATIENCE
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    entries: BTreeMap<Read, Entry>,
    queue: WorkQueue<Read>,
    /// What each application wants.
    wanted: BTreeMap<AppKey, Vec<Read>>,
    /// How many reads an application's plan waits for.
    unsettled: BTreeMap<AppKey, usize>,
}

impl Lookups {
    /// Notes what an application wants to know, and forgets what nobody wants any more. Returns the pods of which it is not
    /// followed any more what becomes of them. `is_unknown` tells whether something still has to be read.
    pub(super) fn want(&mut self, app: &AppKey, wanted: Vec<Read>, is_unknown: impl Fn(&Read) -> bool) -> Vec<PodKey> {
        let wanted: Vec<Read> =
            wanted.into_iter().filter(|read| self.entries.contains_key(read) || is_unknown(read)).collect();
        for read in &wanted {
            let entry = self.entries.entry(read.clone()).or_insert_with(|| {
                self.queue.add(read.clone());
                Entry::default()
            });
            if entry.askers.insert(app.clone()) && !entry.is_settled() {
                *self.unsettled.entry(app.clone()).or_default() += 1;
            }
        }
        let before = if wanted.is_empty() { self.wanted.remove(app) } else { self.wanted.insert(app.clone(), wanted) };
        let now = self.wanted.get(app).map(Vec::as_slice).unwrap_or_default();
        let left: Vec<Read> = before.into_iter().flatten().filter(|read| now.binary_search(read).is_err()).collect();
        left.into_iter().filter_map(|read| self.leave(app, &read)).collect()
    }

    /// An application does not want something any more. Returns the pod that nobody follows now.
    fn leave(&mut self, app: &AppKey, read: &Read) -> Option<PodKey> {
        let entry = self.entries.get_mut(read)?;
        if entry.askers.remove(app) && !entry.is_settled() {
            settle(&mut self.unsettled, app);
        }
        if !entry.askers.is_empty() {
            return None;
        }
        self.entries.remove(read);
        self.queue.remove(read);
        match read {
            Read::Pod(pod) => Some(pod.clone()),
            _ => None,
        }
    }

    /// Something is known without a read, by this uid: it is read again like everything else.
    pub(super) fn know(&mut self, read: Read, uid: Arc<str>, apps: &[AppKey], now: Instant) {
        let entry = self.entries.entry(read.clone()).or_default();
        if !entry.is_settled() {
            for app in &entry.askers {
                settle(&mut self.unsettled, app);
            }
        }
        entry.answered = true;
        entry.outdated_by.insert(uid);
        for app in apps {
            entry.askers.insert(app.clone());
            let wanted = self.wanted.entry(app.clone()).or_default();
            if let Err(at) = wanted.binary_search(&read) {
                wanted.insert(at, read.clone());
            }
        }
        self.queue.add_after(read, now + REFRESH);
    }

    /// A followed pod is known to somebody under another uid than the one that was read: it may have been made anew since.
    pub(super) fn outdated(&mut self, pod: PodKey, uid: Arc<str>) {
        let read = Read::Pod(pod);
        let Some(entry) = self.entries.get_mut(&read) else { return };
        if entry.outdated_by.len() >= MOST_OUTDATED || !entry.outdated_by.insert(uid) {
            return;
        }
        if entry.is_settled() {
            for app in &entry.askers {
                *self.unsettled.entry(app.clone()).or_default() += 1;
            }
        }
        (entry.answered, entry.failures, entry.is_rechecked) = (false, 0, true);
        self.queue.add(read);
    }

    /// Something may have changed since it was read: it is read again at once, unless that was just now.
    pub(super) fn refresh(&mut self, read: Read, now: Instant) {
        let Some(entry) = self.entries.get(&read) else { return };
        if entry.read.is_none_or(|read| now.saturating_duration_since(read) >= JUST_NOW) {
            self.queue.add(read);
        }
    }

    /// Whether an application's plan waits for a read.
    pub(super) fn is_unsettled(&self, app: &AppKey) -> bool {
        self.unsettled.contains_key(app)
    }

    /// What is to be read now, the longest due first.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Read> {
        let mut due = Vec::new();
        while self.queue.in_flight() < AT_ONCE
            && let Some(read) = self.queue.get(now)
        {
            due.push(read);
        }
        due
    }

    /// A read has ended. Returns for whom it is to be planned again: everybody who asked, where that is the first answer, or
    /// where no plan waits for one any more.
    pub(super) fn ended(&mut self, read: &Read, outcome: Outcome, now: Instant) -> Vec<AppKey> {
        self.queue.done(read);
        let many = self.entries.len();
        let Some(entry) = self.entries.get_mut(read) else { return Vec::new() };
        let was_settled = entry.is_settled();
        let first = !entry.answered;
        entry.read = Some(now);
        let due = match outcome {
            Outcome::Answered | Outcome::Absent => {
                entry.failures = 0;
                entry.answered = true;
                // The same uid is no news until the read's time comes.
                if !std::mem::take(&mut entry.is_rechecked) {
                    entry.outdated_by.clear();
                }
                entry.absent = if outcome == Outcome::Absent { entry.absent.saturating_add(1) } else { 0 };
                // Most likely the driver is no pod of this namespace, or was one, and never will be again; an executor that knows
                // another uid makes it be read at once.
                let rests = match read {
                    Read::Address(..) => !plant::is(Bug::AddressesNeverRest),
                    _ => true,
                };
                let refresh = REFRESH.saturating_mul(1 + u32::try_from(many / A_MINUTE).unwrap_or(u32::MAX));
                let absent = if rests { entry.absent.saturating_sub(1).min(8) } else { 0 };
                refresh.saturating_mul(1 << absent).min(RAREST.max(refresh))
            }
            Outcome::Awaited | Outcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                let long = outcome == Outcome::Awaited && entry.failures > SOON_GIVEN_UP;
                if long { RARELY } else { pause(entry.failures) }
            }
        };
        self.queue.add_after(read.clone(), now + due);
        let settled = !was_settled && entry.is_settled();
        let answered = first && entry.answered;
        if settled {
            for app in &entry.askers {
                settle(&mut self.unsettled, app);
            }
        }
        if settled || answered { entry.askers.iter().cloned().collect() } else { Vec::new() }
    }

    /// Whether anybody wants this.
    pub(super) fn is_wanted(&self, read: &Read) -> bool {
        self.entries.contains_key(read)
    }

    /// Those who asked for something.
    pub(super) fn askers(&self, read: &Read) -> Vec<AppKey> {
        self.entries.get(read).into_iter().flat_map(|entry| entry.askers.iter().cloned()).collect()
    }

    /// Forgets something that was read once and for all.
    pub(super) fn forget(&mut self, read: &Read) {
        for app in self.askers(read) {
            self.leave(&app, read);
            if let Some(wanted) = self.wanted.get_mut(&app)
                && let Ok(at) = wanted.binary_search(read)
            {
                wanted.remove(at);
            }
        }
        self.queue.done(read);
        self.queue.remove(read);
    }

    /// Forgets all addresses: only the leader looks for them.
    pub(super) fn forget_addresses(&mut self) {
        let from = Read::Address("".into(), "".into());
        let addresses = self.entries.range(from..).map(|(read, _)| read);
        let addresses: Vec<Read> = addresses.take_while(|read| matches!(read, Read::Address(..))).cloned().collect();
        addresses.iter().for_each(|read| self.forget(read));
    }

    /// When something is due next.
    pub(super) fn next(&self, now: Instant) -> Option<Instant> {
        self.queue.next(now).filter(|_| self.queue.in_flight() < AT_ONCE)
    }
}

/// One read less for an application to wait for.
fn settle(unsettled: &mut BTreeMap<AppKey, usize>, app: &AppKey) {
    if let Some(count) = unsettled.get_mut(app) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            unsettled.remove(app);
        }
    }
}
