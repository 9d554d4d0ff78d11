//! When the leader polls each running driver for its view of its executors: once in an interval, soon again while the driver
//! starts, and less and less often if it does not answer.
//!
//! Pure: the edge sends the requests. A step costs what is due.

mod slots;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use slots::{Slots, ViewMemory};

use super::queue::WorkQueue;
use crate::drivers::DriverPoll;
use crate::signature::Creator;
use crate::snapshot::DriverViewKey;
use usher_spark::hash::hash_of;
use usher_spark::ids::{AppKey, PodKey};

/// At most this many polls begin in a second. With more drivers than that for one interval, each is polled less often.
const MAX_PER_SECOND: u32 = 400;
/// A driver that answers without its configuration is asked for it this many times.
const MAX_CONF_READS: u32 = 3;
/// A driver that is not ready yet is polled again after this time.
const STARTING_INTERVAL: Duration = Duration::from_secs(2);
/// So is one that has not answered yet, this many times: its web server starts seconds after it created executors, and a gang may
/// wait for its configuration.
const MAX_EARLY: u32 = 5;
/// And from then on after twice as long each time, but at most this long, for about six minutes: its application may first prepare
/// its data.
const UNANSWERED_INTERVAL: Duration = Duration::from_secs(15);
const MAX_UNANSWERED: u32 = 30;
/// After this many polls that found it starting, it is polled at the usual interval.
const MAX_STARTING: u32 = 30;
/// A driver's web server returns that it is starting within milliseconds: with a later answer, the poll has failed.
const STARTING_WITHIN: Duration = Duration::from_secs(1);
/// The longest interval between two polls of a driver that does not answer.
const MAX_INTERVAL: Duration = Duration::from_secs(600);

/// After this many failed polls in a row, an earlier view no longer counts: the driver may be gone, and its executors others.
const FAILURES_VOID: u32 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PollOutcome {
    /// The driver returned its view, on this port.
    Answered(u16),
    /// The driver is not ready yet.
    Starting,
    /// The driver did not answer, or not with a view.
    Failed,
}

/// A poll of a driver that is still polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FinishedPoll {
    /// When it began.
    pub(super) began: Instant,
    /// Whether an earlier view still counts if this poll returned none.
    pub(super) view_counts: bool,
    /// How many removed executors the driver shows.
    pub(super) retained_dead: u32,
    /// The driver's pod.
    pub(super) pod: PodKey,
    pub(super) uid: Arc<str>,
}

#[derive(Debug)]
struct Entry {
    poll: DriverPoll,
    /// Failures in a row.
    failures: u32,
    /// Answers that it is starting, and whether the last one was.
    starting: u32,
    is_starting: bool,
    /// How many answers were to contain the configuration.
    conf_reads: u32,
    began: Option<Instant>,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct DriverPolls {
    entries: BTreeMap<DriverViewKey, Entry>,
    queue: WorkQueue<DriverViewKey>,
    slots: Slots,
    /// Whether the next poll is one of a driver that has waited, if there is one.
    prefers_waiting: bool,
    memory: ViewMemory,
    /// The drivers of each application.
    required: BTreeMap<AppKey, BTreeSet<Creator>>,
    /// The second of which polls are counted, and their number.
    second: Option<(Instant, u32)>,
}

impl DriverPolls {
    /// Registers the drivers of an application. Returns those that are no longer polled.
    pub(super) fn require(&mut self, app: &AppKey, wanted: Vec<DriverPoll>, now: Instant) -> Vec<DriverViewKey> {
        let drivers: BTreeSet<Creator> = wanted.iter().map(|poll| poll.key.driver).collect();
        for poll in wanted {
            match self.entries.get_mut(&poll.key) {
                Some(entry) => {
                    let DriverPoll { port, max_rows, .. } = entry.poll;
                    // The driver may still list pods that have just vanished together.
                    let max_rows = max_rows.max(poll.max_rows);
                    entry.poll = DriverPoll { port, max_rows, ..poll };
                }
                None => {
                    self.queue.add_after(poll.key.clone(), now + spread(&poll.key, STARTING_INTERVAL));
                    let key = poll.key.clone();
                    let entry =
                        Entry { poll, failures: 0, starting: 0, is_starting: false, conf_reads: 0, began: None };
                    self.entries.insert(key, entry);
                }
            }
        }
        let before =
            if drivers.is_empty() { self.required.remove(app) } else { self.required.insert(app.clone(), drivers) };
        let now = self.required.get(app);
        let left = before.into_iter().flatten().filter(|driver| now.is_none_or(|now| !now.contains(driver)));
        let left: Vec<DriverViewKey> = left.map(|driver| DriverViewKey { app: app.clone(), driver }).collect();
        for key in &left {
            self.entries.remove(key);
            self.queue.remove(key);
            self.memory.release(key);
        }
        left
    }

    /// Forgets every driver: this replica does not lead, or nothing is polled. Returns them.
    pub(super) fn clear(&mut self) -> Vec<DriverViewKey> {
        self.required.clear();
        let all: Vec<DriverViewKey> = std::mem::take(&mut self.entries).into_keys().collect();
        for key in &all {
            self.queue.remove(key);
            self.memory.release(key);
        }
        all
    }

    /// Whether a view of this many bytes can be kept. If not, an earlier one of the driver is not kept either.
    pub(super) fn keep_view(&mut self, key: &DriverViewKey, bytes: usize) -> bool {
        !self.entries.contains_key(key) || self.memory.keep(key, bytes)
    }

    /// The view of a driver is no longer kept.
    pub(super) fn release_view(&mut self, key: &DriverViewKey) {
        self.memory.release(key);
    }

    /// Polls that begin now.
    pub(super) fn due(&mut self, now: Instant) -> Vec<DriverPoll> {
        let mut due = Vec::new();
        while self.slots.has_free() && self.left_in_second(now) > 0 {
            // Drivers that waited for others of their namespace, and those that did not, take turns.
            self.prefers_waiting = !self.prefers_waiting;
            let waited = if self.prefers_waiting { self.slots.begin_waiting() } else { None };
            let key = match waited.or_else(|| self.begin_due(now)) {
                Some(key) => key,
                None => match self.slots.begin_waiting() {
                    Some(key) => key,
                    None => break,
                },
            };
            match self.entries.get_mut(&key) {
                Some(entry) => {
                    entry.began = Some(now);
                    let reads_conf = entry.poll.reads_conf && entry.conf_reads < MAX_CONF_READS;
                    let is_first = entry.poll.port.is_none();
                    due.push(DriverPoll { reads_conf, is_first, ..entry.poll.clone() });
                    if let Some((_, count)) = &mut self.second {
                        *count += 1;
                    }
                }
                None => {
                    self.slots.finished(&key);
                    self.queue.done(&key);
                }
            }
        }
        due
    }

    /// The next driver of the queue of whose namespace there is room for another poll.
    fn begin_due(&mut self, now: Instant) -> Option<DriverViewKey> {
        while let Some(key) = self.queue.get(now) {
            if let Some(key) = self.slots.begin(key) {
                return Some(key);
            }
        }
        None
    }

    /// How many polls may still begin in this second.
    fn left_in_second(&mut self, now: Instant) -> u32 {
        match self.second {
            Some((begin, count)) if now.saturating_duration_since(begin) < Duration::from_secs(1) => {
                MAX_PER_SECOND.saturating_sub(count)
            }
            _ => {
                self.second = Some((now, 0));
                MAX_PER_SECOND
            }
        }
    }

    /// A poll finished. `None` if the driver is no longer polled, and its answer is void.
    pub(super) fn finished(
        &mut self,
        key: &DriverViewKey,
        outcome: PollOutcome,
        interval: Duration,
        now: Instant,
    ) -> Option<FinishedPoll> {
        self.slots.finished(key);
        self.queue.done(key);
        let interval = self.interval(interval);
        let entry = self.entries.get_mut(key)?;
        let is_late = entry.began.is_some_and(|began| now.saturating_duration_since(began) > STARTING_WITHIN);
        let outcome = if outcome == PollOutcome::Starting && is_late { PollOutcome::Failed } else { outcome };
        entry.is_starting = outcome == PollOutcome::Starting;
        let wait = match outcome {
            PollOutcome::Answered(port) => {
                entry.conf_reads += u32::from(entry.poll.reads_conf);
                (entry.failures, entry.poll.port) = (0, Some(port));
                interval
            }
            PollOutcome::Starting if entry.starting < MAX_STARTING => {
                (entry.failures, entry.starting) = (0, entry.starting + 1);
                STARTING_INTERVAL
            }
            PollOutcome::Starting => interval,
            PollOutcome::Failed if entry.poll.port.is_none() && entry.failures < MAX_EARLY => {
                entry.failures += 1;
                STARTING_INTERVAL
            }
            PollOutcome::Failed if entry.poll.port.is_none() && entry.failures < MAX_UNANSWERED => {
                entry.failures += 1;
                let doubled = STARTING_INTERVAL.saturating_mul(1 << (entry.failures - MAX_EARLY).min(9));
                doubled.min(UNANSWERED_INTERVAL)
            }
            PollOutcome::Failed if entry.poll.port.is_none() => {
                entry.failures = entry.failures.saturating_add(1);
                let doubled = UNANSWERED_INTERVAL.saturating_mul(1 << (entry.failures - MAX_UNANSWERED).min(9));
                doubled.min(MAX_INTERVAL.max(interval))
            }
            PollOutcome::Failed => {
                entry.failures = entry.failures.saturating_add(1);
                STARTING_INTERVAL.saturating_mul(1 << entry.failures.min(9)).min(MAX_INTERVAL.max(interval))
            }
        };
        // Drivers that began together do not stay together.
        self.queue.add_after(key.clone(), now + wait - wait / 10 + spread(key, wait / 5));
        Some(FinishedPoll {
            began: entry.began.take()?,
            view_counts: !entry.is_starting && entry.failures < FAILURES_VOID,
            retained_dead: entry.poll.ui.retained_dead,
            pod: entry.poll.pod.clone(),
            uid: entry.poll.uid.clone(),
        })
    }

    /// The interval, longer if there are more drivers than it has time for.
    fn interval(&self, interval: Duration) -> Duration {
        let drivers = u32::try_from(self.entries.len()).unwrap_or(u32::MAX);
        interval.max(Duration::from_secs(1).saturating_mul(drivers / MAX_PER_SECOND))
    }

    /// When something is due next.
    pub(super) fn next_due(&self, now: Instant) -> Option<Instant> {
        let ready = self.slots.is_next_ready().then_some(now);
        let next = ready.or_else(|| self.queue.next(now)).filter(|_| self.slots.has_free())?;
        match self.second {
            Some((begin, count)) if count >= MAX_PER_SECOND => Some(next.max(begin + Duration::from_secs(1))),
            _ => Some(next),
        }
    }
}

/// A time below `max` that differs between drivers.
fn spread(key: &DriverViewKey, max: Duration) -> Duration {
    max.mul_f64((hash_of(key) % 1024) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::DriverAccess;
    use crate::test_time::instant;
    use usher_spark::conf::Ui;
    use usher_spark::ids::PodKey;

    const INTERVAL: Duration = Duration::from_secs(30);

    fn app(number: usize) -> AppKey {
        AppKey::new("default", &format!("spark-{number}"))
    }

    fn poll(number: usize, uid: &str) -> DriverPoll {
        DriverPoll {
            key: DriverViewKey { app: app(number), driver: Creator::of_pod("d", uid) },
            pod: PodKey::new("default", "d"),
            uid: "u".into(),
            max_rows: 1_000_000,
            reads_conf: false,
            address: "10.0.0.5".into(),
            ui: Ui::default(),
            port: None,
            is_first: false,
            access: DriverAccess::Pod,
        }
    }

    /// The next time at which something is due, and what.
    fn next(polls: &mut DriverPolls, now: &mut Instant) -> Vec<DriverPoll> {
        *now = polls.next_due(*now).unwrap().max(*now);
        polls.due(*now)
    }

    #[test]
    fn driver_is_polled_soon_and_then_once_in_about_an_interval_on_the_port_that_answered() {
        let (mut polls, began) = (DriverPolls::default(), instant());
        let mut now = began;
        polls.require(&app(1), vec![poll(1, "u")], now);
        let first = next(&mut polls, &mut now);
        assert_eq!(first, [DriverPoll { is_first: true, ..poll(1, "u") }]);
        assert!(now - began <= STARTING_INTERVAL);
        let answered = now;
        let finished = polls.finished(&first[0].key, PollOutcome::Answered(4041), INTERVAL, now);
        assert_eq!(
            finished,
            Some(FinishedPoll {
                began: answered,
                view_counts: true,
                retained_dead: 100,
                pod: first[0].pod.clone(),
                uid: "u".into(),
            })
        );
        let second = next(&mut polls, &mut now);
        assert_eq!(second[0].port, Some(4041));
        let after = now - answered;
        assert!(after >= INTERVAL * 9 / 10 && after <= INTERVAL * 11 / 10, "{after:?}");
        // A plan meanwhile changes neither port nor time.
        assert_eq!(polls.require(&app(1), vec![poll(1, "u")], now), []);
        assert_eq!(polls.entries.first_key_value().unwrap().1.poll.port, Some(4041));
    }

    #[test]
    fn starting_driver_is_polled_again_soon_and_failing_one_less_and_less_often() {
        let (mut polls, mut now) = (DriverPolls::default(), instant());
        polls.require(&app(1), vec![poll(1, "u")], now);
        let key = next(&mut polls, &mut now)[0].key.clone();
        let mut waits = |outcome: PollOutcome, count: usize| -> Vec<u64> {
            let wait = |_| {
                let finished = now;
                polls.finished(&key, outcome, INTERVAL, now);
                next(&mut polls, &mut now);
                (now - finished).as_secs()
            };
            (0..count).map(wait).collect()
        };
        let starting = waits(PollOutcome::Starting, 31);
        assert!(starting[..30].iter().all(|wait| *wait <= 2) && starting[30] >= 27, "{starting:?}");
        // One that has not answered yet may answer any moment.
        let early = waits(PollOutcome::Failed, 30);
        assert!(early[..5].iter().all(|wait| *wait <= 2) && early.iter().all(|wait| *wait <= 16), "{early:?}");
        assert!((300..=400).contains(&early.iter().sum::<u64>()), "{early:?}");
        let later = waits(PollOutcome::Failed, 12);
        assert!(later[0] <= 33 && later[1] <= 66 && (540..=660).contains(&later[11]), "{later:?}");
        assert!(waits(PollOutcome::Answered(4040), 1)[0] <= 33);
        let failing = waits(PollOutcome::Failed, 12);
        assert!(failing[0] <= 4 && failing[3] <= 35 && failing[11] >= 540 && failing[11] <= 660, "{failing:?}");
    }

    #[test]
    fn driver_that_starts_again_and_again_or_slowly_is_not_polled_often() {
        let (mut polls, mut now) = (DriverPolls::default(), instant());
        polls.require(&app(1), vec![poll(1, "u")], now);
        let key = next(&mut polls, &mut now)[0].key.clone();
        let began = now;
        for _ in 0..50 {
            for outcome in [PollOutcome::Starting, PollOutcome::Answered(4040)] {
                polls.finished(&key, outcome, Duration::from_secs(1), now);
                next(&mut polls, &mut now);
            }
        }
        assert!(polls.entries.first_key_value().unwrap().1.starting >= MAX_STARTING);
        assert!(now - began < Duration::from_secs(200));
        // An answer that arrives letter by letter is none.
        now += Duration::from_millis(1100);
        polls.finished(&key, PollOutcome::Starting, INTERVAL, now);
        assert_eq!(polls.entries.first_key_value().unwrap().1.failures, 1);
    }

    #[test]
    fn driver_may_list_the_pods_that_it_had() {
        let (mut polls, now) = (DriverPolls::default(), instant());
        polls.require(&app(1), vec![DriverPoll { max_rows: 50_000, ..poll(1, "u") }], now);
        polls.require(&app(1), vec![DriverPoll { max_rows: 2_100, ..poll(1, "u") }], now);
        assert_eq!(polls.due(now + STARTING_INTERVAL)[0].max_rows, 50_000);
    }

    #[test]
    fn views_of_drivers_that_are_no_longer_polled_occupy_no_memory() {
        let (mut polls, now) = (DriverPolls::default(), instant());
        let large = 20 << 20;
        for round in 0..10 {
            polls.require(&app(1), vec![poll(1, &format!("u{round}"))], now);
            assert!(polls.keep_view(&poll(1, &format!("u{round}")).key, large));
        }
        polls.require(&app(2), vec![poll(2, "u")], now);
        assert!(!polls.keep_view(&poll(2, "u").key, large));
        polls.release_view(&poll(1, "u9").key);
        assert!(polls.keep_view(&poll(2, "u").key, large));
        polls.clear();
        assert!(polls.keep_view(&poll(3, "u").key, usize::MAX), "nothing is kept of a driver that is not polled");
    }

    #[test]
    fn answer_of_a_driver_that_is_no_longer_required_is_void() {
        let (mut polls, mut now) = (DriverPolls::default(), instant());
        polls.require(&app(1), vec![poll(1, "old"), poll(1, "new")], now);
        polls.require(&app(2), vec![poll(2, "u")], now);
        now += STARTING_INTERVAL;
        assert_eq!(polls.due(now).len(), 3);
        assert_eq!(polls.require(&app(1), vec![poll(1, "new")], now), [poll(1, "old").key]);
        assert_eq!(polls.finished(&poll(1, "old").key, PollOutcome::Answered(4040), INTERVAL, now), None);
        assert!(polls.finished(&poll(1, "new").key, PollOutcome::Answered(4040), INTERVAL, now).is_some());
        let left = polls.clear();
        assert_eq!(left.len(), 2);
        assert_eq!(polls.finished(&poll(2, "u").key, PollOutcome::Answered(4040), INTERVAL, now), None);
        assert_eq!(polls.due(now + INTERVAL * 2), []);
    }

    #[test]
    fn polls_in_flight_and_per_second_are_bounded_and_every_driver_gets_its_turn() {
        let (mut polls, mut now) = (DriverPolls::default(), instant());
        let drivers = 20_000;
        for number in 0..drivers {
            polls.require(&app(number), vec![poll(number, "u")], now);
        }
        let (began, mut seen, mut second) = (now, BTreeSet::new(), (now, 0));
        while seen.len() < drivers {
            let due = next(&mut polls, &mut now);
            assert!(due.len() <= slots::MAX_OF_NAMESPACE);
            if now - second.0 >= Duration::from_secs(1) {
                second = (now, 0);
            }
            second.1 += due.len();
            assert!(second.1 <= 2 * MAX_PER_SECOND as usize, "any second overlaps two that are counted");
            now += Duration::from_millis(20);
            for poll in due {
                polls.finished(&poll.key, PollOutcome::Answered(4040), INTERVAL, now);
                seen.insert(poll.key);
            }
        }
        let round = now - began;
        assert!(round < Duration::from_secs(120), "{round:?}");
        assert_eq!(polls.interval(INTERVAL), Duration::from_secs(50), "longer than 30 s for 20,000 drivers");
    }
}
