//! Limits the memory for request bodies. API servers retry a review that got 429 with Retry-After within their deadline
//! (`docs/webhooks.md#retries`), so shedding load means an answer, not a cut connection.
//!
//! Bytes are charged as they arrive: a client that announces a large body and sends nothing uses no budget.
//!
//! When the budget is exhausted, `fairness` chooses a body to evict for the new one; the evicted body's sender gets the 429.

use std::collections::HashMap;
use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Instant;

use axum::http::Extensions;
use futures::poll;
use tokio::sync::Notify;

use super::connections::{Origin, now};
use super::fairness::{self, Holder};

/// Maximum size of a review that is read whole. etcd stores objects of 1.5 MiB (`--max-request-bytes`), Go writes one
/// byte as six in JSON (`<` as `\u003c`), and an update carries the object twice: 18 MiB plus an envelope.
pub const MAX_BODY: usize = 20 << 20;

/// Limit on the bytes of bodies in memory.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    held: AtomicUsize,
    most: usize,
    waiting: Mutex<Waiting>,
}

/// The bodies that are still being received. A body that arrived with its head is not among them.
#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    bodies: HashMap<u64, Body>,
}

#[derive(Debug)]
struct Body {
    holder: Holder,
    gave_way: Arc<Notify>,
}

/// Budget for the bytes of one body. It grows as they arrive and is released on drop.
#[derive(Debug)]
pub struct BodyBudget {
    limits: Limits,
    peer: IpAddr,
    proven: bool,
    since: Instant,
    bytes: usize,
    /// Id among the bodies that are being received.
    id: Option<u64>,
}

impl Default for Limits {
    /// 64 MiB: six thousand reviews of 10 kB, or three of the largest.
    fn default() -> Self {
        Limits::new(64 << 20)
    }
}

impl Limits {
    /// Allows at most this many bytes.
    pub fn new(most: usize) -> Limits {
        Limits(Arc::new(Shared { held: AtomicUsize::new(0), most, waiting: Mutex::default() }))
    }

    /// Creates the budget for a body of which no byte was received yet. The request's extensions name its connection.
    pub fn enter(&self, from: &Extensions) -> BodyBudget {
        let (peer, proven) = Origin::of(from);
        BodyBudget { limits: self.clone(), peer, proven, since: now(), bytes: 0, id: None }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, bytes: usize) -> bool {
        let held = self.0.held.fetch_add(bytes, Ordering::Relaxed);
        let fits = held.saturating_add(bytes) <= self.0.most;
        if !fits {
            self.give(bytes);
        }
        fits
    }

    fn give(&self, bytes: usize) {
        self.0.held.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Evicts other bodies in favor of this one, if that is fair.
    fn evict(&self, waiting: &mut Waiting, peer: &Holder, bytes: usize) {
        let need = self.0.held.load(Ordering::Relaxed).saturating_add(bytes).saturating_sub(self.0.most);
        let holders: Vec<Holder> = waiting.bodies.values().map(|body| body.holder).collect();
        let gone = fairness::victims(&holders, peer, need, self.0.most / 32, now());
        for id in gone.unwrap_or_default() {
            if let Some(body) = waiting.bodies.remove(&id) {
                // Its reader drops the bytes as soon as it runs.
                self.give(body.holder.bytes);
                body.gave_way.notify_one();
            }
        }
    }
}

impl BodyBudget {
    /// Releases the bytes above this number.
    pub fn shrink(&mut self, bytes: usize) {
        let limits = self.limits.clone();
        let mut waiting = limits.waiting();
        match self.id.map(|id| waiting.bodies.get_mut(&id)) {
            Some(None) => return, // Evicted, and all of its bytes were released.
            Some(Some(body)) => body.holder.bytes = body.holder.bytes.min(bytes),
            None => {}
        }
        let freed = self.bytes.saturating_sub(bytes);
        limits.give(freed);
        self.bytes -= freed;
    }

    /// Charges this many more bytes. `false` means overload.
    pub fn charge(&mut self, bytes: usize) -> bool {
        if self.id.is_none() && self.limits.take(bytes) {
            self.bytes += bytes;
            return true;
        }
        let limits = self.limits.clone();
        let mut waiting = limits.waiting();
        if self.id.is_some_and(|id| !waiting.bodies.contains_key(&id)) {
            return false;
        }
        if !limits.take(bytes) {
            limits.evict(&mut waiting, &self.holder(), bytes);
            if !limits.take(bytes) {
                return false;
            }
        }
        self.bytes += bytes;
        if let Some(body) = self.id.and_then(|id| waiting.bodies.get_mut(&id)) {
            body.holder.bytes = self.bytes;
        }
        true
    }

    fn holder(&self) -> Holder {
        // No other body has this id.
        let id = self.id.unwrap_or(u64::MAX);
        Holder { id, peer: self.peer, proven: self.proven, since: self.since, bytes: self.bytes }
    }

    /// Waits for the next part of the body; `None` if this body was evicted meanwhile.
    pub async fn wait<F: Future>(&mut self, part: F) -> Option<F::Output> {
        let mut part = pin!(part);
        if self.id.is_none()
            && let Poll::Ready(part) = poll!(&mut part)
        {
            return Some(part);
        }
        let gave_way = self.register()?;
        tokio::select! {
            biased;
            () = gave_way.notified() => None,
            part = part => Some(part),
        }
    }

    fn register(&mut self) -> Option<Arc<Notify>> {
        let mut waiting = self.limits.waiting();
        if let Some(id) = self.id {
            return waiting.bodies.get(&id).map(|body| body.gave_way.clone());
        }
        let id = waiting.next;
        waiting.next += 1;
        let gave_way = Arc::new(Notify::new());
        let holder = Holder { id, ..self.holder() };
        waiting.bodies.insert(id, Body { holder, gave_way: gave_way.clone() });
        drop(waiting);
        self.id = Some(id);
        Some(gave_way)
    }
}

impl Drop for BodyBudget {
    fn drop(&mut self) {
        // An evicted body's bytes were already released.
        if self.id.is_none_or(|id| self.limits.waiting().bodies.remove(&id).is_some()) {
            self.limits.give(self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::time::Duration;

    fn enter(limits: &Limits) -> BodyBudget {
        limits.enter(&Extensions::new())
    }

    fn from(limits: &Limits, of: u8, proven: bool) -> BodyBudget {
        let mut budget = enter(limits);
        (budget.peer, budget.proven) = ([10, 0, 0, of].into(), proven);
        budget
    }

    #[test]
    fn budget_counts_bytes_as_they_arrive_and_releases_them_on_drop() {
        let limits = Limits::new(1000);
        let (mut one, mut two) = (enter(&limits), enter(&limits));
        assert!(one.charge(10) && one.charge(90));
        assert!(two.charge(900) && !two.charge(1));
        drop(one);
        assert!(two.charge(100), "the bytes of the first are free");
        assert!(!enter(&limits).charge(1) && !two.charge(usize::MAX - 2000));
        drop(two);
        assert!(enter(&limits).charge(1000), "all bytes are free");
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_and_slow_bodies_are_evicted_for_other_reviews() {
        let limits = Limits::new(1000);
        let mut stalled: Vec<BodyBudget> = (0..10).map(|_| from(&limits, 1, false)).collect();
        for budget in &mut stalled {
            assert!(budget.charge(100));
            assert!(budget.wait(std::future::pending::<()>()).now_or_never().is_none(), "the body is incomplete");
        }
        let mut equal = from(&limits, 1, false);
        assert!(!equal.charge(100), "equally new bodies of the same peer are not evicted");
        let mut proven = from(&limits, 1, true);
        assert!(proven.charge(100));
        assert_eq!(stalled[0].wait(std::future::pending::<()>()).await, None);
        assert!(!stalled[0].charge(1), "an evicted body cannot grow");
        assert!(stalled[2].wait(std::future::pending::<()>()).now_or_never().is_none(), "the others are not evicted");
        drop(proven);
        tokio::time::advance(Duration::from_millis(500)).await;
        let mut again = from(&limits, 1, false);
        assert!(again.charge(100) && again.charge(900), "slow bodies are evicted");
        drop((again, stalled, equal));
        assert!(enter(&limits).charge(1000), "all bytes are free, and none twice");
        assert_eq!(limits.0.held.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn available_data_is_returned_without_registering_as_waiting() {
        let limits = Limits::new(1000);
        let mut budget = enter(&limits);
        assert_eq!(budget.wait(async { 7 }).await, Some(7));
        assert!(budget.id.is_none());
        assert!(budget.charge(10));
        let slow = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            8
        };
        assert_eq!(budget.wait(slow).await, Some(8));
        assert!(budget.charge(10) && budget.bytes == 20);
        drop(budget);
        assert!(limits.waiting().bodies.is_empty() && enter(&limits).charge(1000));
    }
}
