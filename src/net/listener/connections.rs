//! The open connections of a listener: their state, and how they are closed. `capacity` chooses which ones are closed
//! to free capacity.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::capacity::{self, Capacity, ConnectionState};
use super::conn::Busy;
use super::metrics::ListenerMetrics;
use crate::telemetry::registry::to_gauge;

/// A connection, shared by its task, its requests and the table.
#[derive(Debug)]
pub(super) struct Link {
    id: u64,
    peer: IpAddr,
    accepted: Instant,
    /// Milliseconds from `accepted` to the last answer, plus one; 0 if there was none.
    answered: AtomicU64,
    pub(super) busy: Busy,
    /// Closes the connection.
    pub(super) evicted: Notify,
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
    table: Mutex<Table>,
    closed: Notify,
}

#[derive(Debug, Default)]
struct Table {
    next: u64,
    links: HashMap<u64, Arc<Link>>,
    /// Number of connections that have answered a review.
    answered: usize,
    /// Number of connections that were evicted and are not closed yet.
    closing: usize,
}

impl Table {
    fn remove(&mut self, id: u64) -> bool {
        let Some(link) = self.links.remove(&id) else { return false };
        if link.answered().is_some() {
            self.answered = self.answered.saturating_sub(1);
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
        Connections(Arc::new(Shared { capacity, metrics, table: Mutex::default(), closed: Notify::new() }))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, table: &Table) {
        if let Some(metrics) = &self.0.metrics {
            metrics.open.set(to_gauge(table.links.len()));
        }
    }

    pub(super) fn metrics(&self) -> Option<&ListenerMetrics> {
        self.0.metrics.as_ref()
    }

    /// Takes a slot for a new connection, if necessary by evicting others.
    pub(super) fn enter(&self, peer: IpAddr) -> Ticket {
        let accepted = now();
        let mut table = self.table();
        if table.links.len() >= self.0.capacity.max {
            self.evict(&mut table, accepted, self.0.capacity, |_| true);
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
        });
        table.links.insert(id, link.clone());
        self.note(&table);
        drop(table);
        Ticket { connections: self.clone(), link }
    }

    /// Evicts connections although the table is not full: the process has no descriptors left.
    pub(super) fn make_room(&self) {
        let mut table = self.table();
        self.evict(&mut table, now(), self.0.capacity, |_| true);
        self.note(&table);
    }

    fn evict(&self, table: &mut Table, now: Instant, capacity: Capacity, among: fn(&ConnectionState) -> bool) {
        let states = table.links.values().map(|link| link.state()).filter(among);
        for id in capacity::victims(states, now, capacity, capacity.batch()) {
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

    /// Records that a review was answered. If too many connections have answered, some of them are evicted.
    pub(super) fn answered(&self, link: &Link) {
        let now = now();
        let millis = now.saturating_duration_since(link.accepted).as_millis();
        let value = u64::try_from(millis).unwrap_or(u64::MAX - 1) + 1;
        if link.answered.load(Ordering::Acquire) != 0 {
            link.answered.store(value, Ordering::Release);
            return;
        }
        let mut table = self.table();
        if link.answered.swap(value, Ordering::AcqRel) != 0 || !table.links.contains_key(&link.id) {
            return;
        }
        table.answered += 1;
        let capacity = self.0.capacity.of_answered();
        if table.answered > capacity.max {
            self.evict(&mut table, now, capacity, |state| state.answered.is_some());
            self.note(&table);
        }
    }
}

/// The connection of a request, stored in the request's extensions.
#[derive(Clone, Debug)]
pub struct Origin(pub(super) Arc<Link>);

impl Origin {
    /// The peer of a request; a fixed address if the request has no connection.
    pub fn of(extensions: &axum::http::Extensions) -> IpAddr {
        extensions.get::<Origin>().map_or(Ipv4Addr::UNSPECIFIED.into(), |Origin(link)| link.peer())
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

    fn of_reviews(max: usize) -> Connections {
        Connections::new(Capacity::of_reviews(max), None)
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    fn is_evicted(ticket: &Ticket) -> bool {
        ticket.link().evicted.notified().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_answered_stays_for_90_seconds_despite_idle_ones() {
        let connections = of_reviews(4);
        let real = connections.enter(peer(1));
        connections.answered(real.link());
        let mut idle: Vec<Ticket> = (0..4).map(|n| connections.enter(peer(n))).collect();
        for _ in 0..9 {
            pass(10).await;
            idle.push(connections.enter(peer(9)));
            assert!(!is_evicted(&real));
        }
        for ticket in &idle {
            connections.answered(ticket.link());
        }
        pass(6).await;
        idle.push(connections.enter(peer(9)));
        assert!(is_evicted(&real), "Go no longer uses it");
    }

    #[tokio::test(start_paused = true)]
    async fn new_peer_is_accepted_and_stays_despite_idle_connections_of_another() {
        let connections = of_reviews(8);
        let mut flood: Vec<Ticket> = (0..8).map(|_| connections.enter(peer(1))).collect();
        let real = connections.enter(peer(2));
        assert!(is_evicted(&flood[0]));
        for _ in 0..100 {
            flood.push(connections.enter(peer(1)));
        }
        connections.answered(real.link());
        assert!(!is_evicted(&real));
    }

    #[tokio::test(start_paused = true)]
    async fn peer_with_many_answered_connections_leaves_share_for_others() {
        let connections = of_reviews(16);
        let mut flood = Vec::new();
        for _ in 0..100 {
            let ticket = connections.enter(peer(1));
            connections.answered(ticket.link());
            flood.push(ticket);
        }
        let other: Vec<Ticket> = (0..5).map(|_| connections.enter(peer(2))).collect();
        for ticket in &other {
            connections.answered(ticket.link());
        }
        flood.extend((0..50).map(|_| connections.enter(peer(1))));
        assert!(!other.iter().any(is_evicted), "a peer below its share keeps all of its connections");
        assert!(connections.table().links.len() <= 16);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_that_answered_have_a_limit_of_their_own() {
        let connections = of_reviews(10_000);
        let flood: Vec<Ticket> = (0..4000).map(|_| connections.enter(peer(1))).collect();
        let other = connections.enter(peer(2));
        connections.answered(other.link());
        for ticket in &flood {
            connections.answered(ticket.link());
        }
        let table = connections.table();
        assert!(table.answered <= 3072 && table.answered > 2900, "{}", table.answered);
        assert_eq!(table.answered, table.links.values().filter(|link| link.answered().is_some()).count());
        assert!(!is_evicted(&other) && is_evicted(&flood[0]) && !is_evicted(&flood[3999]));
    }

    #[tokio::test(start_paused = true)]
    async fn dropped_tickets_release_their_slots() {
        let connections = of_reviews(2);
        for _ in 0..10 {
            let ticket = connections.enter(peer(1));
            connections.answered(ticket.link());
        }
        let table = connections.table();
        assert!(table.links.is_empty() && table.answered == 0 && table.closing == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn settled_waits_until_evicted_connections_are_closed() {
        let connections = of_reviews(2000);
        let mut all: Vec<Ticket> = (0..2000).map(|_| connections.enter(peer(1))).collect();
        assert!(connections.settled().now_or_never().is_some());
        let _more: Vec<Ticket> = (0..40).map(|_| connections.enter(peer(1))).collect();
        assert!(connections.settled().now_or_never().is_none(), "40 evicted connections are still open");
        all.drain(..40);
        connections.settled().await;
    }
}
