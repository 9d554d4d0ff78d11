//! The loop: watches and reads go in, the snapshot is published, and what the leader's plans ask for is done.
//!
//! One task owns the [`Desk`] and with it the snapshot; reads and writes run beside each other within that task. When
//! the lease is lost, writes that are on the way are dropped.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use imbl::Vector;
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use super::apply::{Applied, Writer};
use super::lease::{Leadership, Reported};
use super::limit::{Limiter, Priority, Rate};
use super::signing::{self, SigningSecret};
use super::watch::{self, Groups, News, Sink};
use super::{discovery, poll, reads, report};
use crate::gang;
use crate::lifecycle::mark::Mark;
use crate::lifecycle::tally::{Notice, Tally};
use crate::lifecycle::{Answer, CrewKey, Desk, Exit, Now, Polled, Read, Settings, Standing};
use crate::plant::{self, Bug};
use crate::policy::Policies;
use crate::runtime::clock;
use crate::runtime::ready::Latch;
use crate::runtime::supervise::Supervisor;
use crate::snapshot::{Change, ServedApis, Sighting, Snapshot};
use crate::spark::state::ExecutorPodState;
use crate::telemetry::metrics::Metrics;

/// How many changes may wait for the writer: a watch that is faster waits, and the API server's buffer with it.
const QUEUE: usize = 4096;
/// And how many are taken in before others have their turn.
const AT_ONCE: usize = 256;

/// What the loop works with.
#[derive(Clone)]
pub struct Inputs {
    /// To the API server.
    pub client: kube::Client,
    /// To the API server, for large lists.
    pub lists: kube::Client,
    /// Our instance, for Events.
    pub instance: String,
    /// Where the snapshot is published.
    pub snapshot: Arc<ArcSwap<Snapshot>>,
    /// The policies; `policies_changed` tells when.
    pub policies: Arc<ArcSwap<Policies>>,
    /// A new value whenever the policies changed; the value is whether nothing may be written.
    pub dry_run: channel::Receiver<bool>,
    /// Whether we lead.
    pub leading: channel::Receiver<Option<Arc<Leadership>>>,
    /// Whether another replica leads.
    pub led: channel::Receiver<bool>,
    /// When the API server last answered the election.
    pub contact: channel::Receiver<Option<Instant>>,
    /// What we have reported, for the Lease.
    pub reported: channel::Sender<Reported>,
    /// Cancelled when we are about to stop: what is to be said is said before the Lease is released.
    pub leaving: CancellationToken,
    /// How many requests we may make.
    pub rate: Rate,
    /// Set once the first full picture is there.
    pub complete: channel::Sender<bool>,
    /// Where the last ends are published.
    pub exits: Arc<ArcSwap<Vector<Exit>>>,
    /// Where the key of our signatures is kept, and what waits for it; nothing is signed without.
    pub signing: Option<(SigningSecret, Latch)>,
    /// How the desk works.
    pub settings: Settings,
    /// Counters.
    pub metrics: Arc<Metrics>,
}

/// Starts the watches and the loop.
pub fn spawn(inputs: Inputs, supervisor: &mut Supervisor) {
    let (changes, received) = mpsc::channel(QUEUE);
    let sink = Sink { changes, metrics: inputs.metrics.clone() };
    let client = &inputs.client;
    let stop = supervisor.token().clone();
    macro_rules! watch {
        ($name:literal, $source:expr) => {
            let watching = watch::run(client.clone(), $source, false, sink.clone(), stop.clone());
            supervisor.spawn($name, async move {
                watching.await;
                Ok(())
            });
        };
    }
    if let Some((secret, ready)) = inputs.signing.clone() {
        let (leading, changes) = (inputs.leading.clone(), sink.changes.clone());
        let keeping = signing::run(client.clone(), secret, leading, changes, ready, stop.clone());
        supervisor.spawn("signing key", async move {
            keeping.await;
            Ok(())
        });
    }
    let (rewatch, again) = channel::channel(0);
    let watching = watch::run_pods(client.clone(), again, sink.clone(), stop.clone());
    supervisor.spawn("watch pods", async move {
        watching.await;
        Ok(())
    });
    watch!("watch namespaces", watch::Namespaces);
    watch!("watch services", watch::Services);
    watch!("watch priority classes", watch::PriorityClasses);
    let (apis, served) = channel::channel(None);
    for row in gang::TABLE.iter().filter(|row| !row.apis.is_empty()) {
        let watching = watch_groups(client.clone(), row.kind, served.clone(), sink.clone(), stop.clone());
        supervisor.spawn("watch podgroups", async move {
            watching.await;
            Ok(())
        });
    }
    let asking = discovery::run(client.clone(), sink.changes, apis, stop.clone());
    supervisor.spawn("discovery", async move {
        asking.await;
        Ok(())
    });
    supervisor.spawn("reconcile", async move {
        Loop::new(inputs, rewatch).run(received, stop).await;
        Ok(())
    });
}

/// Watches the PodGroups of one scheduler type by whichever version is served now.
async fn watch_groups(
    client: kube::Client,
    kind: &'static str,
    mut served: channel::Receiver<Option<ServedApis>>,
    sink: Sink,
    stop: CancellationToken,
) {
    loop {
        let api = served.borrow_and_update().as_ref().and_then(|apis| apis.get(kind));
        let watching = async {
            match api {
                Some(api) => {
                    let source = Groups { scheduler: kind, api };
                    watch::run(client.clone(), source, false, sink.clone(), stop.clone()).await;
                }
                None => pending().await,
            }
        };
        let changed = async {
            while served.changed().await.is_ok() {
                if served.borrow().as_ref().and_then(|apis| apis.get(kind)) != api {
                    return;
                }
            }
            pending::<()>().await;
        };
        tokio::select! {
            biased;
            () = watching => {}
            () = changed => {}
            () = stop.cancelled() => return,
        }
        if stop.is_cancelled() {
            return;
        }
    }
}

type Reading = Pin<Box<dyn Future<Output = (Read, Answer)> + Send>>;
type Acting = Pin<Box<dyn Future<Output = (CrewKey, Applied)> + Send>>;
type Telling = Pin<Box<dyn Future<Output = (Notice, bool)> + Send>>;
type Polling = Pin<Box<dyn Future<Output = Option<Polled>> + Send>>;

struct Loop {
    inputs: Inputs,
    writer: Writer,
    limiter: Limiter,
    desk: Desk,
    reading: FuturesUnordered<Reading>,
    acting: FuturesUnordered<Acting>,
    telling: FuturesUnordered<Telling>,
    polling: FuturesUnordered<Polling>,
    /// Polls that failed in a row.
    failed_polls: u32,
    tally: Tally,
    rewatch: channel::Sender<u64>,
    leadership: Option<Arc<Leadership>>,
    /// Whose actions are on the way.
    busy: Vec<CrewKey>,
    /// Until when the last Events are written, once we are about to stop.
    closing: Option<Instant>,
}

/// How long the last Events may take, and how many of them are written.
const LAST_EVENTS: Duration = Duration::from_millis(800);
const MOST_LAST_EVENTS: usize = 50;

impl Loop {
    fn new(inputs: Inputs, rewatch: channel::Sender<u64>) -> Loop {
        let limiter = Limiter::new(inputs.rate);
        let writer = Writer::new(inputs.client.clone(), &inputs.instance, inputs.metrics.clone(), limiter.clone());
        let desk = Desk::new(clock::instant(), inputs.settings);
        Loop {
            inputs,
            writer,
            limiter,
            desk,
            reading: FuturesUnordered::new(),
            acting: FuturesUnordered::new(),
            telling: FuturesUnordered::new(),
            polling: FuturesUnordered::new(),
            failed_polls: 0,
            tally: Tally::default(),
            rewatch,
            leadership: None,
            busy: Vec::new(),
            closing: None,
        }
    }

    async fn run(mut self, mut changes: mpsc::Receiver<News>, stop: CancellationToken) {
        let mut batch = Vec::new();
        let mut wake = None;
        let leaving = self.inputs.leaving.clone();
        loop {
            // In this order, so that a simulation replays: first what decides what may be done at all, then answers, of which
            // there are only as many as were asked for, and last what may come without end.
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.inputs.leading.changed() => self.leadership_changed(),
                () = leaving.cancelled(), if self.closing.is_none() => self.close(),
                Ok(()) = self.inputs.dry_run.changed() => self.desk.replan(),
                Ok(()) = self.inputs.contact.changed() => self.contact(),
                Some(polled) = self.polling.next() => self.polled(polled),
                Some((crew, applied)) = self.acting.next() => self.applied(&crew, applied),
                Some((read, answer)) = self.reading.next() => self.desk.answered(&read, answer, now()),
                Some((notice, ok)) = self.telling.next() => self.tally.written(&notice, ok, clock::instant()),
                count = changes.recv_many(&mut batch, AT_ONCE), if !self.desk.is_behind() => {
                    if count == 0 {
                        return stop.cancelled().await;
                    }
                    let now = now();
                    for news in batch.drain(..) {
                        self.news(news, now);
                    }
                }
                () = until(wake) => {}
            }
            // One turn for all answers that are there.
            while let Some(Some((read, answer))) = self.reading.next().now_or_never() {
                self.desk.answered(&read, answer, now());
            }
            wake = self.turn();
            // What is ready at once, again and again, must not keep others of this thread from running.
            tokio::task::yield_now().await;
        }
    }

    fn news(&mut self, news: News, now: Now) {
        match news {
            News::Change(change) => {
                self.watch_lag(&change, now);
                self.desk.apply(change, now);
            }
            News::PodsListBegins => self.desk.list_begins(now),
            News::PodsListed(pods) => self.desk.listed(pods, now),
            News::PodUnreadable(uid) => self.desk.unreadable(&uid, now),
            News::PodsListEnds => self.desk.list_ends(now),
            News::PodsUpTo(version) => self.desk.passed(&version, now),
            News::PodsInterrupted => self.desk.interrupted(now.at),
        }
    }

    fn contact(&mut self) {
        let at = *self.inputs.contact.borrow_and_update();
        if let Some(at) = at {
            self.desk.contact(at);
        }
    }

    /// The leadership as of the last change that this task has handled, while it holds: what was found when it began decides
    /// what is reported.
    fn leadership(&self) -> Option<Arc<Leadership>> {
        self.leadership.clone().filter(|leadership| leadership.holds())
    }

    /// What follows from a leadership that was read once: it may end, or be renewed, between two readings, and what the desk
    /// hands out as to a leader must be done.
    fn standing(&self, leadership: Option<&Arc<Leadership>>) -> Standing {
        Standing::of(leadership.is_some(), *self.inputs.led.borrow())
    }

    /// Says what is still to be said; [`Loop::turn`] says when that is done.
    fn close(&mut self) {
        // A leadership that has just begun, or ended, decides what is reported.
        if self.inputs.leading.has_changed().unwrap_or(false) {
            self.leadership_changed();
        }
        let (now, leadership) = (now(), self.leadership());
        self.closing = Some(now.at + LAST_EVENTS);
        let exits = self.desk.close(now, self.standing(leadership.as_ref()));
        let Some(leadership) = leadership else { return };
        self.tell(&exits, now);
        for notice in self.tally.flush(MOST_LAST_EVENTS) {
            self.notice(notice, &leadership);
        }
    }

    /// Tells ends: in the log, as a metric, and as Events that count.
    fn tell(&mut self, exits: &[Exit], now: Now) {
        for exit in exits {
            report::tell(exit, &self.inputs.metrics);
            if plant::is(Bug::ToldTwice) {
                report::tell(&Exit { perhaps_told: true, ..exit.clone() }, &self.inputs.metrics);
            }
            self.tally.count(exit, self.desk.snapshot(), now.at);
        }
    }

    fn notice(&mut self, notice: Notice, leadership: &Arc<Leadership>) {
        let (writer, leadership, dry_run) = (self.writer.clone(), leadership.clone(), *self.inputs.dry_run.borrow());
        self.telling.push(Box::pin(async move {
            let ok = writer.notice(&leadership, &notice, dry_run).await;
            (notice, ok)
        }));
    }

    /// How late the watch shows an executor that was created just now.
    fn watch_lag(&self, change: &Change, now: Now) {
        let Change::Pod(Sighting::Executor(app, executor)) = change else { return };
        let age = executor.created.map(|created| now.wall.as_second() - created.get());
        let Some(age) = age.filter(|_| executor.state == ExecutorPodState::Pending) else { return };
        if self.desk.snapshot().executor(app.namespace(), &executor.name).is_none() {
            #[expect(clippy::cast_precision_loss, reason = "an age in seconds fits a float's 53 bits")]
            self.inputs.metrics.watch_lag.observe(age.max(0) as f64);
        }
    }

    fn applied(&mut self, crew: &CrewKey, applied: Applied) {
        for change in applied.changes {
            self.desk.written(change, now());
        }
        self.busy.retain(|busy| busy != crew);
        self.desk.done(crew, applied.failed, applied.wrote, clock::instant());
    }

    fn leadership_changed(&mut self) {
        self.leadership = self.inputs.leading.borrow_and_update().clone();
        match self.leadership.clone() {
            // A poll that is on the way goes on: we may lead again in a moment.
            None => {
                // Another leader may report more than our mark covers.
                self.inputs.reported.send_if_modified(|reported| !reported.is_final && reported.mark.take().is_some());
                self.acting.clear();
                self.telling.clear();
                self.tally.interrupt();
                for crew in std::mem::take(&mut self.busy) {
                    self.desk.done(&crew, false, false, clock::instant());
                }
            }
            Some(leadership) => {
                if let Some(found) = leadership.found() {
                    self.desk.took_over(found, clock::instant());
                }
            }
        }
    }

    fn polled(&mut self, polled: Option<Polled>) {
        self.failed_polls = match polled {
            // Where only pages work they are asked for from now on, and the whole list now and then.
            Some(_) if self.failed_polls >= PAGES_AFTER && self.failed_polls < PAGES_UNTIL => self.failed_polls + 1,
            Some(_) => 0,
            None if self.failed_polls >= PAGES_UNTIL => PAGES_AFTER,
            None => self.failed_polls + 1,
        };
        let policies = self.inputs.policies.load_full();
        self.desk.polled(polled, now(), &policies);
    }

    /// Publishes the picture and starts what is due.
    fn turn(&mut self) -> Option<Instant> {
        let leadership = self.leadership();
        let policies = self.inputs.policies.load_full();
        let now = now();
        let standing = self.standing(leadership.as_ref());
        if standing == Standing::Led {
            self.inputs.metrics.events_lost.inc_by(self.tally.give_up());
        }
        let turn = self.desk.turn(now, &policies, standing);
        self.inputs.snapshot.store(Arc::new(self.desk.snapshot().clone()));
        self.inputs.exits.store(Arc::new(self.desk.exits().history().clone()));
        let is_complete = self.desk.is_complete() && self.desk.snapshot().apis.is_some();
        self.inputs.complete.send_if_modified(|complete| !std::mem::replace(complete, is_complete) && *complete);
        for read in turn.reads {
            // A list of a namespace may be large, and comes compressed.
            let client = if matches!(read, Read::All(_)) { &self.inputs.lists } else { &self.inputs.client };
            let (client, limiter, metrics) = (client.clone(), self.limiter.clone(), self.inputs.metrics.clone());
            self.reading.push(Box::pin(async move {
                limiter.acquire(reads::priority(&read)).await;
                let answer = match &read {
                    Read::All(namespace) => reads::all_of(&client, namespace, &metrics).await,
                    read => reads::read(client, read).await,
                };
                (read, answer)
            }));
        }
        if turn.rewatch {
            self.inputs.metrics.watch_misses.inc();
            self.rewatch.send_modify(|count| *count += 1);
        }
        let Some(leadership) = leadership else { return turn.wake };
        self.tell(&turn.exits, now);
        let dry_run = *self.inputs.dry_run.borrow();
        for (crew, actions) in turn.actions {
            let (writer, leadership) = (self.writer.clone(), leadership.clone());
            self.busy.push(crew.clone());
            self.acting.push(Box::pin(async move {
                let applied = writer.apply(&leadership, &crew.app, actions, dry_run).await;
                (crew, applied)
            }));
        }
        for notice in self.tally.due(now.at) {
            self.notice(notice, &leadership);
        }
        self.say_what_was_reported(now);
        if turn.poll {
            let (client, snapshot) = (self.inputs.lists.clone(), self.inputs.snapshot.clone());
            let (newest, metrics) = (self.desk.newest().map(str::to_owned), self.inputs.metrics.clone());
            let paged = (PAGES_AFTER..PAGES_UNTIL).contains(&self.failed_polls);
            let limiter = self.limiter.clone();
            self.polling.push(Box::pin(async move {
                limiter.acquire(Priority::Confirmation).await;
                poll::poll(&client, &snapshot, newest, paged, &metrics).await
            }));
        }
        let closing = self.closing.filter(|_| !self.inputs.reported.borrow().is_final);
        turn.wake.into_iter().chain(self.tally.next(now.at)).chain(closing).min()
    }

    /// The Lease says what was reported; the last word comes when everything was said, or has taken too long.
    fn say_what_was_reported(&mut self, now: Now) {
        let is_final = self.closing.is_some_and(|until| until <= now.at || self.telling.is_empty());
        let mark = self.desk.mark(now);
        self.inputs.reported.send_if_modified(|reported| {
            let says = |mark: Option<Mark>| mark.map(|mark| (mark.through, mark.gap));
            let is_news = reported.is_final != is_final || says(reported.mark) != says(mark);
            if is_news && !reported.is_final {
                *reported = Reported { mark: mark.or(reported.mark), is_final };
            }
            is_news
        });
    }
}

/// After so many polls that failed the list is read in pages.
const PAGES_AFTER: u32 = 2;
/// And so many polls later the whole list is tried again.
const PAGES_UNTIL: u32 = 14;

fn now() -> Now {
    Now { at: clock::instant(), wall: clock::now() }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => pending().await,
    }
}
