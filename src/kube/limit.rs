//! A client-side rate limit with priorities: a token bucket for the controller's lookups, polls and writes. An action that needs
//! more than one request, such as a create that finds an existing object, counts once.
//!
//! API servers have their own priority and fairness, and share their capacity among their clients; a controller that finds fifty
//! thousand leftovers must not depend on that. The Lease and the watches do not count: they are few, and all depends on them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use usher_runtime::clock;

/// Requests per second, and the burst after an idle time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second.
    pub qps: f64,
    /// Requests that may be sent without a pause.
    pub burst: u32,
}

impl Default for Rate {
    /// Fifty thousand leftovers, one request each, take about 17 minutes.
    fn default() -> Self {
        Rate { qps: 50.0, burst: 100 }
    }
}

/// The priority of a request, the highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Whether an executor exists: polls, and GETs.
    Confirmation,
    /// PodGroups, and what their size depends on: gangs wait for them.
    Group,
    /// Owners, labels, deletions of executors and PodGroups, Events.
    Cleanup,
    /// Polls of drivers through the API server's proxy. Nothing is reserved for them: a driver that is not polled loses a view.
    DriverView,
}

const PRIORITIES: usize = 4;

#[derive(Debug)]
struct State {
    tokens: f64,
    at: Instant,
    /// How many requests wait, by priority.
    waiting: [usize; PRIORITIES],
    /// How many requests were made.
    served: u32,
}

/// Of this many requests, one is reserved for cleanup and two for PodGroups: endless requests of higher priorities starve
/// neither.
const RESERVED: u32 = 8;

/// The priority that this request is reserved for, if any.
fn reserved_for(served: u32) -> Option<usize> {
    match served % RESERVED {
        0 => Some(Priority::Cleanup as usize),
        3 | 6 => Some(Priority::Group as usize),
        _ => None,
    }
}

/// See the module's documentation. Clones share the bucket.
#[derive(Clone, Debug)]
pub struct Limiter {
    rate: Rate,
    state: Arc<Mutex<State>>,
}

impl Limiter {
    /// A full bucket.
    pub fn new(rate: Rate) -> Limiter {
        let state = State { tokens: rate.burst.into(), at: clock::instant(), waiting: [0; PRIORITIES], served: 1 };
        Limiter { rate, state: Arc::new(Mutex::new(state)) }
    }

    /// Waits until a request may be made.
    pub async fn acquire(&self, priority: Priority) {
        let mut turn = Waiter { limiter: self, at: priority as usize, waits: false };
        while let Err(wait) = turn.take(clock::instant()) {
            tokio::time::sleep(wait).await;
        }
    }
}

/// A request that counts as waiting until it is made or cancelled.
struct Waiter<'l> {
    limiter: &'l Limiter,
    at: usize,
    waits: bool,
}

impl Waiter<'_> {
    /// Takes a token, or returns how long to wait.
    fn take(&mut self, now: Instant) -> Result<(), Duration> {
        let Rate { qps, burst } = self.limiter.rate;
        let mut state = self.limiter.state.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(state.at).as_secs_f64();
        state.tokens = (state.tokens + since * qps).min(burst.into());
        state.at = now;
        let waits = |at: usize| state.waiting.get(at).is_some_and(|waiting| *waiting > 0);
        let reserved = reserved_for(state.served).filter(|at| *at == self.at || waits(*at));
        let is_next = reserved.map_or_else(|| !(0..self.at).any(waits), |at| at == self.at);
        if state.tokens >= 1.0 && is_next {
            state.tokens -= 1.0;
            state.served = state.served.wrapping_add(1);
            return Ok(());
        }
        if !std::mem::replace(&mut self.waits, true)
            && let Some(waiting) = state.waiting.get_mut(self.at)
        {
            *waiting += 1;
        }
        let wait = (1.0 - state.tokens).max(0.1) / qps;
        Err(Duration::from_secs_f64(wait.clamp(0.001, 0.1)))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        if self.waits {
            let mut state = self.limiter.state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(waiting) = state.waiting.get_mut(self.at) {
                *waiting -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rate_applies_after_burst() {
        let limiter = Limiter::new(Rate { qps: 10.0, burst: 5 });
        let start = clock::instant();
        for _ in 0..25 {
            limiter.acquire(Priority::Cleanup).await;
        }
        let took = (clock::instant() - start).as_secs_f64();
        assert!((1.95..2.3).contains(&took), "a burst of five, and twenty at ten per second: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn confirmations_precede_podgroups_and_podgroups_precede_cleanup() {
        let limiter = Limiter::new(Rate { qps: 10.0, burst: 1 });
        limiter.acquire(Priority::Cleanup).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        for priority in
            [Priority::DriverView, Priority::Cleanup, Priority::Cleanup, Priority::Group, Priority::Confirmation]
        {
            let (limiter, order) = (limiter.clone(), order.clone());
            tasks.spawn(async move {
                limiter.acquire(priority).await;
                order.lock().unwrap().push(priority);
            });
            tokio::task::yield_now().await;
        }
        tasks.join_all().await;
        let order = order.lock().unwrap().clone();
        assert!(order.is_sorted() && order.len() == 5, "{order:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn cleanup_gets_every_eighth_request_under_load() {
        let limiter = Limiter::new(Rate { qps: 10.0, burst: 1 });
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                loop {
                    limiter.acquire(Priority::Group).await;
                }
            });
        }
        let begin = clock::instant();
        for _ in 0..10 {
            limiter.acquire(Priority::Cleanup).await;
        }
        let took = (clock::instant() - begin).as_secs_f64();
        assert!((7.0..10.0).contains(&took), "ten of eighty requests at ten per second: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn podgroups_get_a_quarter_of_requests_under_confirmation_load() {
        let limiter = Limiter::new(Rate { qps: 50.0, burst: 1 });
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let limiter = limiter.clone();
            tasks.spawn(async move {
                loop {
                    limiter.acquire(Priority::Confirmation).await;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            });
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let start = clock::instant();
        for _ in 0..100 {
            limiter.acquire(Priority::Group).await;
        }
        let took = (clock::instant() - start).as_secs_f64();
        assert!((6.0..16.0).contains(&took), "100 at about 12 per second: {took}");
    }

    #[tokio::test(start_paused = true)]
    async fn cancelled_waiter_does_not_block_others() {
        let limiter = Limiter::new(Rate { qps: 1.0, burst: 1 });
        limiter.acquire(Priority::Group).await;
        let cancelled = tokio::time::timeout(Duration::from_millis(10), limiter.acquire(Priority::Confirmation)).await;
        assert!(cancelled.is_err());
        assert_eq!(limiter.state.lock().unwrap().waiting, [0; PRIORITIES]);
        limiter.acquire(Priority::Cleanup).await;
    }
}
