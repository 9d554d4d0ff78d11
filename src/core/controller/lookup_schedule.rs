//! Objects that are read by name, and how often: each once for all applications that require it, again once a minute, or less
//! often if there are very many, and with growing intervals if it is absent or cannot be read.
//!
//! Pure: the edge sends the requests. A step costs what is due.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backoff::backoff_delay;
use super::lookup::Lookup;
use super::queue::WorkQueue;
use usher_spark::ids::{AppKey, PodKey};

/// Number of concurrent reads. Confirmations have their own limit.
const MAX_IN_FLIGHT: usize = 16;
/// Of those for which no plan waits: they may be slow, and must not delay the others.
const MAX_OPTIONAL: usize = 4;
/// An object that was read this recently is not refreshed.
const FRESH_FOR: Duration = Duration::from_secs(2);
/// How often a pod that is followed by name is read again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);
/// After this many failures a plan is made without the object that could not be read.
const MAX_ATTEMPTS: u32 = 3;
/// An awaited object that is absent is read this many times with short pauses: for about two minutes.
const QUICK_ATTEMPTS: u32 = 9;
/// And from then on it is read at this interval.
const SLOW_INTERVAL: Duration = Duration::from_secs(600);
/// The longest interval before an absent pod or address is read again.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// At most this many objects are read again each minute: if there are more, each is read less often. A tenant's executors may
/// name any number of pods.
const MAX_PER_MINUTE: usize = 600;
/// At most this many other uids cause an immediate read of a pod, until its next periodic read: a tenant can name any number.
const MAX_OUTDATED: usize = 4;

/// What schedulers state about pods that wait is read this long after the first of them waits.
const MESSAGES_AFTER: Duration = Duration::from_secs(10);
/// A plan waits at most this long for its lookups.
const MAX_HOLD: Duration = Duration::from_secs(30);

/// The outcome of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupOutcome {
    /// The object was found.
    Answered,
    /// There is no such object, and none is expected.
    Absent,
    /// There is no such object yet.
    Awaited,
    /// The request failed.
    Failed,
}

#[derive(Debug, Default)]
struct LookupState {
    waiters: BTreeSet<AppKey>,
    failures: u32,
    /// How often it was absent in a row.
    absences: u32,
    answered: bool,
    /// Uids that differed from the one that was read, and caused an immediate read.
    outdated_by: BTreeSet<Arc<str>>,
    /// The read is due to one of those uids, and not periodic.
    is_rechecked: bool,
    /// No plan waits for it, nor changes with it.
    is_optional: bool,
    /// When it was read last.
    last_read: Option<Instant>,
}

impl LookupState {
    /// Whether plans need not wait for it: it was read, or could not be.
    fn is_settled(&self) -> bool {
        self.is_optional || self.answered || self.failures >= MAX_ATTEMPTS
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Lookups {
    entries: BTreeMap<Lookup, LookupState>,
    queue: WorkQueue<Lookup>,
    /// The lookups for which no plan waits.
    optional: WorkQueue<Lookup>,
    /// The lookups that each application requires.
    required: BTreeMap<AppKey, Vec<Lookup>>,
    /// How many reads an application's plan waits for.
    unsettled: BTreeMap<AppKey, usize>,
    /// Since when an application's plan waits: executors that name more and more pods must not hold it forever.
    held: BTreeMap<AppKey, Instant>,
}

/// Whether people see the answer, and no plan waits for it, nor changes with it.
fn is_optional(read: &Lookup) -> bool {
    matches!(read, Lookup::Quotas(_) | Lookup::Messages(..))
}

impl Lookups {
    fn queue_of(&mut self, read: &Lookup) -> &mut WorkQueue<Lookup> {
        if is_optional(read) { &mut self.optional } else { &mut self.queue }
    }

    /// Registers the lookups that an application requires, and forgets those that no application requires any more. Returns the
    /// pods and workloads that are no longer followed, the quotas, and the messages. `is_unknown` decides whether an object still has
    /// to be read.
    pub(super) fn require(
        &mut self,
        app: &AppKey,
        wanted: Vec<Lookup>,
        now: Instant,
        is_unknown: impl Fn(&Lookup) -> bool,
    ) -> Vec<Lookup> {
        let wanted: Vec<Lookup> =
            wanted.into_iter().filter(|read| self.entries.contains_key(read) || is_unknown(read)).collect();
        for read in &wanted {
            let entry = self.entries.entry(read.clone()).or_insert_with(|| {
                let is_optional = is_optional(read);
                match read {
                    // Most pods are scheduled by then.
                    Lookup::Messages(..) => self.optional.add_after(read.clone(), now + MESSAGES_AFTER),
                    _ if is_optional => self.optional.add(read.clone()),
                    _ => self.queue.add(read.clone()),
                }
                LookupState { is_optional, ..LookupState::default() }
            });
            if entry.waiters.insert(app.clone()) && !entry.is_settled() {
                *self.unsettled.entry(app.clone()).or_default() += 1;
            }
        }
        let before =
            if wanted.is_empty() { self.required.remove(app) } else { self.required.insert(app.clone(), wanted) };
        let after = self.required.get(app).map(Vec::as_slice).unwrap_or_default();
        let left: Vec<Lookup> =
            before.into_iter().flatten().filter(|read| after.binary_search(read).is_err()).collect();
        left.into_iter().filter_map(|read| self.unsubscribe(app, &read)).collect()
    }

    /// An application no longer requires a lookup. Returns the pod or workload that no application follows now.
    fn unsubscribe(&mut self, app: &AppKey, read: &Lookup) -> Option<Lookup> {
        let entry = self.entries.get_mut(read)?;
        if entry.waiters.remove(app) && !entry.is_settled() {
            settle(&mut self.unsettled, app);
        }
        if !entry.waiters.is_empty() {
            return None;
        }
        self.entries.remove(read);
        self.queue_of(read).remove(read);
        let is_kept = matches!(read, Lookup::Pod(_) | Lookup::Workload(_) | Lookup::Quotas(_) | Lookup::Messages(..));
        is_kept.then(|| read.clone())
    }

    /// An object with this uid is known without a read: it is refreshed like all others.
    pub(super) fn mark_known(&mut self, read: Lookup, uid: Arc<str>, apps: &[AppKey], now: Instant) {
        let entry = self.entries.entry(read.clone()).or_default();
        if !entry.is_settled() {
            for app in &entry.waiters {
                settle(&mut self.unsettled, app);
            }
        }
        entry.answered = true;
        entry.outdated_by.insert(uid);
        for app in apps {
            entry.waiters.insert(app.clone());
            let wanted = self.required.entry(app.clone()).or_default();
            if let Err(at) = wanted.binary_search(&read) {
                wanted.insert(at, read.clone());
            }
        }
        self.queue.add_after(read, now + REFRESH_INTERVAL);
    }

    /// An executor names a followed pod with another uid than the one that was read: the pod may have been recreated since.
    pub(super) fn mark_outdated(&mut self, pod: PodKey, uid: Arc<str>) {
        let read = Lookup::Pod(pod);
        let Some(entry) = self.entries.get_mut(&read) else { return };
        if entry.outdated_by.len() >= MAX_OUTDATED || !entry.outdated_by.insert(uid) {
            return;
        }
        if entry.is_settled() {
            for app in &entry.waiters {
                *self.unsettled.entry(app.clone()).or_default() += 1;
            }
        }
        (entry.answered, entry.failures, entry.is_rechecked) = (false, 0, true);
        self.queue.add(read);
    }

    /// An object may have changed since it was read: it is read again immediately, unless the last read is recent.
    pub(super) fn refresh(&mut self, read: Lookup, now: Instant) {
        let Some(entry) = self.entries.get(&read) else { return };
        if entry.last_read.is_none_or(|read| now.saturating_duration_since(read) >= FRESH_FOR) {
            self.queue.add(read);
        }
    }

    /// Whether an application's plan waits for a read.
    pub(super) fn is_unsettled(&self, app: &AppKey) -> bool {
        self.unsettled.contains_key(app)
    }

    /// Lookups that are due now, the longest due first.
    pub(super) fn due(&mut self, now: Instant) -> Vec<Lookup> {
        let mut due = Vec::new();
        for (queue, max) in [(&mut self.queue, MAX_IN_FLIGHT), (&mut self.optional, MAX_OPTIONAL)] {
            while queue.in_flight() < max
                && let Some(read) = queue.get(now)
            {
                due.push(read);
            }
        }
        due
    }

    /// A read finished. Returns the applications to plan again: all that require it, if this is the first answer, or if plans no
    /// longer wait for one.
    pub(super) fn finished(&mut self, read: &Lookup, outcome: LookupOutcome, now: Instant) -> Vec<AppKey> {
        self.queue_of(read).done(read);
        let many = self.entries.len();
        let Some(entry) = self.entries.get_mut(read) else { return Vec::new() };
        let was_settled = entry.is_settled();
        let first = !entry.answered;
        entry.last_read = Some(now);
        let due = match outcome {
            LookupOutcome::Answered | LookupOutcome::Absent => {
                entry.failures = 0;
                entry.answered = true;
                // The same uid causes no read before the next periodic one.
                if !std::mem::take(&mut entry.is_rechecked) {
                    entry.outdated_by.clear();
                }
                entry.absences = if outcome == LookupOutcome::Absent { entry.absences.saturating_add(1) } else { 0 };
                // Most likely the driver is not a pod of this namespace, or was deleted for good; an executor that names another
                // uid causes an immediate read.
                let refresh =
                    REFRESH_INTERVAL.saturating_mul(1 + u32::try_from(many / MAX_PER_MINUTE).unwrap_or(u32::MAX));
                let absent = entry.absences.saturating_sub(1).min(8);
                refresh.saturating_mul(1 << absent).min(MAX_INTERVAL.max(refresh))
            }
            LookupOutcome::Awaited | LookupOutcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                let long = outcome == LookupOutcome::Awaited && entry.failures > QUICK_ATTEMPTS;
                if long { SLOW_INTERVAL } else { backoff_delay(entry.failures) }
            }
        };
        let queue = if entry.is_optional { &mut self.optional } else { &mut self.queue };
        queue.add_after(read.clone(), now + due);
        let settled = !was_settled && entry.is_settled();
        let answered = first && entry.answered && !entry.is_optional;
        if settled {
            for app in &entry.waiters {
                settle(&mut self.unsettled, app);
            }
        }
        if settled || answered { entry.waiters.iter().cloned().collect() } else { Vec::new() }
    }

    /// Until when an application's plan waits for its lookups, at most; `None` if it need not wait.
    pub(super) fn hold_until(&mut self, app: &AppKey, now: Instant) -> Option<Instant> {
        if self.is_unsettled(app) {
            let since = *self.held.entry(app.clone()).or_insert(now);
            if now.saturating_duration_since(since) < MAX_HOLD {
                return Some(since + MAX_HOLD);
            }
        }
        self.held.remove(app);
        None
    }

    /// No plan waits any more: this replica does not lead.
    pub(super) fn release_all(&mut self) {
        self.held.clear();
    }

    /// Whether any application requires this lookup.
    pub(super) fn is_required(&self, read: &Lookup) -> bool {
        self.entries.contains_key(read)
    }

    /// The applications that require a lookup.
    pub(super) fn waiters(&self, read: &Lookup) -> Vec<AppKey> {
        self.entries.get(read).into_iter().flat_map(|entry| entry.waiters.iter().cloned()).collect()
    }

    /// Forgets a lookup that is read only once.
    pub(super) fn forget(&mut self, read: &Lookup) {
        for app in self.waiters(read) {
            self.unsubscribe(&app, read);
            if let Some(wanted) = self.required.get_mut(&app)
                && let Ok(at) = wanted.binary_search(read)
            {
                wanted.remove(at);
            }
        }
        self.queue_of(read).done(read);
        self.queue_of(read).remove(read);
    }

    /// Forgets all addresses: only the leader looks them up.
    pub(super) fn forget_addresses(&mut self) {
        let from = Lookup::Address("".into(), "".into());
        let addresses = self.entries.range(from..).map(|(read, _)| read);
        let addresses: Vec<Lookup> =
            addresses.take_while(|read| matches!(read, Lookup::Address(..))).cloned().collect();
        addresses.iter().for_each(|read| self.forget(read));
    }

    /// When something is due next.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let next = |queue: &WorkQueue<Lookup>, max| queue.next(now).filter(|_| queue.in_flight() < max);
        let all = [next(&self.queue, MAX_IN_FLIGHT), next(&self.optional, MAX_OPTIONAL)];
        all.into_iter().flatten().min()
    }
}

/// An application's plan waits for one read less.
fn settle(unsettled: &mut BTreeMap<AppKey, usize>, app: &AppKey) {
    if let Some(count) = unsettled.get_mut(app) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            unsettled.remove(app);
        }
    }
}
