//! The open connections of a listener: their state, and how they are closed. `capacity` chooses which ones are closed
//! to free capacity.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::capacity::{self, Capacity, ConnectionState, Occupancy};
use super::conn::Busy;
use super::metrics::ListenerMetrics;

/// A connection, shared by its task, its requests and the table.
#[derive(Debug)]
pub(super) struct Link {
    id: u64,
    peer: IpAddr,
    accepted: Instant,
    /// Milliseconds from `accepted` to the last answer, plus one; 0 if there was none.
    answered: AtomicU64,
    pub(super) busy: Busy,
    /// Closes the connection now.
    pub(super) evicted: Notify,
    /// Closes the connection after the answer in progress.
    pub(super) last: Notify,
}

impl Link {
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// When a review was last answered on the connection.
    pub(super) fn answered(&self) -> Option<Instant> {
        let millis = self.answered.load(Ordering::Acquire).checked_sub(1)?;
        Some(self.accepted + Duration::from_millis(millis))
    }

    fn state(&self) -> ConnectionState {
        let Link { id, peer, accepted, .. } = *self;
        ConnectionState { id, peer, accepted, answered: self.answered(), busy: self.busy.is_busy() }
    }
}

/// The connections of one listener.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    capacity: Capacity,
    metrics: Option<ListenerMetrics>,
    /// Number of connections in the table, readable without its lock.
    open: AtomicUsize,
    /// Number of those that have answered a review.
    answered: AtomicUsize,
    table: Mutex<Table>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    links: HashMap<u64, Arc<Link>>,
    /// Number of connections that have answered a review, by peer.
    answered: HashMap<IpAddr, usize>,
    answered_in_all: usize,
    /// Number of connections that were evicted and are not closed yet.
    closing: usize,
}

impl Table {
    fn remove(&mut self, id: u64) -> bool {
        let Some(link) = self.links.remove(&id) else { return false };
        if link.answered().is_some() {
            self.answered_in_all = self.answered_in_all.saturating_sub(1);
            if let Some(count) = self.answered.get_mut(&link.peer) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.answered.remove(&link.peer);
                }
            }
        }
        true
    }
}

/// A slot in the table, freed on drop.
#[derive(Debug)]
pub(super) struct Ticket {
    connections: Connections,
    link: Arc<Link>,
}

impl Ticket {
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let shared = &self.connections.0;
        let mut table = self.connections.table();
        if !table.remove(self.link.id) {
            table.closing = table.closing.saturating_sub(1);
            shared.closed.notify_one();
        }
        self.connections.note(&table);
    }
}

impl Connections {
    pub(super) fn new(capacity: Capacity, metrics: Option<ListenerMetrics>) -> Connections {
        let (open, answered) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (table, closed) = (Mutex::default(), Notify::new());
        Connections(Arc::new(Shared { capacity, metrics, open, answered, table, closed }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, table: &Table) {
        self.0.open.store(table.links.len(), Ordering::Release);
        self.0.answered.store(table.answered_in_all, Ordering::Release);
        if let Some(metrics) = &self.0.metrics {
            metrics.open.set(i64::try_from(table.links.len()).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn metrics(&self) -> Option<&ListenerMetrics> {
        self.0.metrics.as_ref()
    }

    /// Allocates a slot for a new connection, if necessary by evicting others; `None` when all others are protected.
    pub(super) fn enter(&self, peer: IpAddr) -> Option<Ticket> {
        let accepted = now();
        let Capacity { most, .. } = self.0.capacity;
        let mut table = self.table();
        if table.links.len() >= most {
            self.evict(&mut table, accepted, self.0.capacity.batch());
        }
        if table.links.len() >= most {
            if let Some(metrics) = &self.0.metrics {
                metrics.refused.inc();
            }
            return None;
        }
        let id = table.next;
        table.next += 1;
        let link = Arc::new(Link {
            id,
            peer: peer.to_canonical(),
            accepted,
            answered: AtomicU64::new(0),
            busy: Busy::default(),
            evicted: Notify::new(),
            last: Notify::new(),
        });
        table.links.insert(id, link.clone());
        self.note(&table);
        drop(table);
        Some(Ticket { connections: self.clone(), link })
    }

    /// Evicts connections although the table is not full: the process has no descriptors left.
    pub(super) fn make_room(&self) {
        let mut table = self.table();
        self.evict(&mut table, now(), self.0.capacity.batch());
        self.note(&table);
    }

    fn evict(&self, table: &mut Table, now: Instant, wanted: usize) {
        let standings = table.links.values().map(|link| link.state());
        for id in capacity::victims(standings, now, self.0.capacity.protect, wanted) {
            let Some(link) = table.links.get(&id).cloned() else { continue };
            table.remove(id);
            table.closing += 1;
            link.evicted.notify_one();
            if let Some(metrics) = &self.0.metrics {
                metrics.evicted.inc();
            }
        }
    }

    /// Waits until the evicted connections have closed, except for a few.
    pub(super) async fn settled(&self) {
        loop {
            let closed = self.0.closed.notified();
            if self.table().closing <= self.0.capacity.closing() {
                return;
            }
            closed.await;
        }
    }

    /// Records that a review was answered; `false` when the connection must close after this answer.
    pub(super) fn answered(&self, link: &Link) -> bool {
        let millis = now().saturating_duration_since(link.accepted).as_millis();
        let value = u64::try_from(millis).unwrap_or(u64::MAX - 1) + 1;
        let Capacity { most, protect } = self.0.capacity;
        let (open, answered) = (self.0.open.load(Ordering::Acquire), self.0.answered.load(Ordering::Acquire));
        let may_be_short = capacity::is_short(most, open, answered) && !protect.is_zero();
        if link.answered.load(Ordering::Acquire) != 0 && !may_be_short {
            link.answered.store(value, Ordering::Release);
            return true;
        }
        let mut table = self.table();
        if link.answered.swap(value, Ordering::AcqRel) == 0 && table.links.contains_key(&link.id) {
            *table.answered.entry(link.peer).or_default() += 1;
            table.answered_in_all += 1;
            self.0.answered.store(table.answered_in_all, Ordering::Release);
        }
        let occupancy = Occupancy {
            open: table.links.len(),
            answered: table.answered_in_all,
            of_peer: table.answered.get(&link.peer).copied().unwrap_or_default(),
            peers: table.answered.len(),
        };
        protect.is_zero() || capacity::keeps(most, occupancy)
    }
}

/// The connection of a request, stored in the request's extensions.
#[derive(Clone, Debug)]
pub(super) struct Origin(pub(super) Arc<Link>);

impl Origin {
    /// The peer, and whether its connection has completed a review.
    pub(super) fn of(extensions: &axum::http::Extensions) -> (IpAddr, bool) {
        extensions
            .get::<Origin>()
            .map_or((Ipv4Addr::UNSPECIFIED.into(), false), |Origin(link)| (link.peer(), link.answered().is_some()))
    }
}

#[expect(clippy::disallowed_methods, reason = "ages of connections count on tokio's clock, which tests can pause")]
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    fn of_reviews(most: usize) -> Connections {
        Connections::new(Capacity::of_reviews(most), None)
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_answered_stays_for_90_seconds_and_new_one_is_rejected() {
        let connections = of_reviews(4);
        let all: Vec<Ticket> = (0..4).map(|n| connections.enter(peer(n)).unwrap()).collect();
        for ticket in &all {
            connections.answered(ticket.link());
        }
        for _ in 0..9 {
            pass(10).await;
            assert!(connections.enter(peer(9)).is_none());
        }
        pass(6).await;
        assert!(connections.enter(peer(9)).is_some(), "Go no longer uses it");
        assert!(all[0].link().evicted.notified().now_or_never().is_some());
        assert!(all[1].link().evicted.notified().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn new_peer_is_accepted_and_stays_despite_idle_connections_of_another() {
        let connections = of_reviews(8);
        let mut flood: Vec<Ticket> = (0..8).map(|_| connections.enter(peer(1)).unwrap()).collect();
        let real = connections.enter(peer(2)).unwrap();
        assert!(flood[0].link().evicted.notified().now_or_never().is_some());
        for _ in 0..100 {
            flood.push(connections.enter(peer(1)).unwrap());
        }
        connections.answered(real.link());
        assert!(real.link().evicted.notified().now_or_never().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn peer_with_many_answered_connections_leaves_share_for_others() {
        let connections = of_reviews(16);
        let mut open = Vec::new();
        for _ in 0..100 {
            let ticket = connections.enter(peer(1)).unwrap();
            if connections.answered(ticket.link()) {
                open.push(ticket);
            }
        }
        assert!(open.len() < 14, "{}", open.len());
        let other = connections.enter(peer(2)).unwrap();
        assert!(connections.answered(other.link()), "the connection of a peer below its share stays open");
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_tickets_release_their_slots() {
        let connections = of_reviews(2);
        for _ in 0..10 {
            let ticket = connections.enter(peer(1)).unwrap();
            connections.answered(ticket.link());
        }
        let table = connections.table();
        assert!(
            table.links.is_empty() && table.answered.is_empty() && table.answered_in_all == 0 && table.closing == 0
        );
    }

    #[tokio::test(start_paused = true)]
    async fn settled_waits_until_evicted_connections_are_closed() {
        let connections = of_reviews(2000);
        let mut all: Vec<Ticket> = (0..2000).map(|_| connections.enter(peer(1)).unwrap()).collect();
        assert!(connections.settled().now_or_never().is_some());
        let _more: Vec<Ticket> = (0..40).map(|_| connections.enter(peer(1)).unwrap()).collect();
        assert!(connections.settled().now_or_never().is_none(), "40 evicted connections are still open");
        all.drain(..40);
        connections.settled().await;
    }
}
