//! The loop: watches and reads go in, the snapshot is published, and what the leader's plans ask for is done.
//!
//! One task owns the [`Desk`] and with it the snapshot; reads and writes run beside each other within that task. When
//! the lease is lost, writes that are on the way are dropped.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use super::apply::{Applied, Writer};
use super::lease::Leadership;
use super::watch::{self, Groups, Sink};
use super::{discovery, reads};
use crate::gang;
use crate::lifecycle::{Answer, Desk, Read, Turn};
use crate::policy::Policies;
use crate::runtime::clock;
use crate::runtime::supervise::Supervisor;
use crate::snapshot::{Change, ServedApis, Snapshot};
use crate::spark::ids::AppKey;
use crate::telemetry::metrics::Metrics;

/// How many changes may wait for the writer: a watch that is faster waits, and the API server's buffer with it.
const QUEUE: usize = 4096;

/// What the loop works with.
#[derive(Clone)]
pub struct Inputs {
    /// To the API server.
    pub client: kube::Client,
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
    /// Set once the first full picture is there.
    pub complete: channel::Sender<bool>,
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
            let watching = watch::run(client.clone(), $source, sink.clone(), stop.clone());
            supervisor.spawn($name, async move {
                watching.await;
                Ok(())
            });
        };
    }
    watch!("watch pods", watch::Pods);
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
        Loop::new(inputs).run(received, stop).await;
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
                    watch::run(client.clone(), source, sink.clone(), stop.clone()).await;
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
type Acting = Pin<Box<dyn Future<Output = (AppKey, Applied)> + Send>>;

struct Loop {
    inputs: Inputs,
    writer: Writer,
    desk: Desk,
    reading: FuturesUnordered<Reading>,
    acting: FuturesUnordered<Acting>,
    /// Applications whose actions are on the way.
    busy: Vec<AppKey>,
}

impl Loop {
    fn new(inputs: Inputs) -> Loop {
        let writer = Writer::new(inputs.client.clone(), &inputs.instance, inputs.metrics.clone());
        let desk = Desk::new(clock::instant());
        Loop {
            inputs,
            writer,
            desk,
            reading: FuturesUnordered::new(),
            acting: FuturesUnordered::new(),
            busy: Vec::new(),
        }
    }

    async fn run(mut self, mut changes: mpsc::Receiver<Change>, stop: CancellationToken) {
        let mut batch = Vec::new();
        let mut wake = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                count = changes.recv_many(&mut batch, QUEUE) => {
                    if count == 0 {
                        return stop.cancelled().await;
                    }
                    for change in batch.drain(..) {
                        self.desk.apply(change);
                    }
                }
                Some((read, answer)) = self.reading.next() => self.desk.answered(&read, answer, clock::instant()),
                Some((app, applied)) = self.acting.next() => self.applied(&app, applied),
                Ok(()) = self.inputs.leading.changed() => self.leadership_changed(),
                Ok(()) = self.inputs.dry_run.changed() => self.desk.replan(),
                () = until(wake) => {}
            }
            wake = self.turn();
        }
    }

    fn applied(&mut self, app: &AppKey, applied: Applied) {
        for change in applied.changes {
            self.desk.written(change);
        }
        self.busy.retain(|busy| busy != app);
        self.desk.done(app, applied.failed, applied.wrote, clock::instant());
    }

    fn leadership_changed(&mut self) {
        if self.inputs.leading.borrow_and_update().is_none() {
            self.acting.clear();
            for app in std::mem::take(&mut self.busy) {
                self.desk.done(&app, false, false, clock::instant());
            }
        }
    }

    /// Publishes the picture and starts what is due.
    fn turn(&mut self) -> Option<Instant> {
        let leadership = self.inputs.leading.borrow().clone();
        let policies = self.inputs.policies.load_full();
        let Turn { reads, actions, wake } =
            self.desk.turn(clock::instant(), clock::now(), &policies, leadership.is_some());
        self.inputs.snapshot.store(Arc::new(self.desk.snapshot().clone()));
        self.inputs
            .complete
            .send_if_modified(|complete| !std::mem::replace(complete, self.desk.is_complete()) && *complete);
        for read in reads {
            let client = self.inputs.client.clone();
            self.reading.push(Box::pin(async move {
                let answer = reads::read(client, &read).await;
                (read, answer)
            }));
        }
        let dry_run = *self.inputs.dry_run.borrow();
        if let Some(leadership) = leadership {
            for (app, actions) in actions {
                let (writer, leadership) = (self.writer.clone(), leadership.clone());
                self.busy.push(app.clone());
                self.acting.push(Box::pin(async move {
                    let applied = writer.apply(&leadership, &app, actions, dry_run).await;
                    (app, applied)
                }));
            }
        }
        wake
    }
}

async fn until(wake: Option<Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake.into()).await,
        None => pending().await,
    }
}
