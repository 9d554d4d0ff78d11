//! Limits how many reviews above [`SMALL`] are read and decided at a time; the others wait with their bodies unread. The same limits
//! the requests for namespaces.
//!
//! The next is of the peer that held permits for the shortest time lately: a client that sends many large bodies, or none of a body that
//! it announced, delays the reviews of others by one of its own at most. Bodies above [`MEDIUM`] take turns among themselves.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use usher_runtime::clock;

/// Bodies up to this size are decided immediately on the thread that read them: the worst takes 0.1 ms (`benches/admission.rs`). A
/// review of an executor is 10 to 25 kB.
pub(super) const SMALL: usize = 32 << 10;
/// Bodies up to this size are decided with the usual priority, in at most 3 ms (`benches/attack.rs`; with 4 MiB, small reviews took more
/// than twice their time). Larger ones are decided only when no other thread wants to run. While the cores are occupied, that may take
/// seconds, so they have a gate of their own.
pub(super) const MEDIUM: usize = 1 << 20;

/// At most this many reviews of either kind are held at a time, on any number of cores: each takes up to three times its size.
const MAX: usize = 4;
/// At most this many wait: the buffers of a connection with an unread body take 66 kB.
const MAX_WAITING: usize = 256;
/// For how long it counts that a peer held a permit, and of how many peers.
const REMEMBERED: Duration = Duration::from_secs(60);
const MAX_REMEMBERED: usize = 4096;

/// Permits for large reviews.
#[derive(Clone, Debug)]
pub(crate) struct Gate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    /// Whether a review waits.
    contended: watch::Sender<bool>,
}

#[derive(Debug)]
struct Queues {
    free: usize,
    /// The reviews that wait, by peer; the peer that had its turn last is last. No queue is empty.
    waiting: VecDeque<(IpAddr, VecDeque<oneshot::Sender<Permit>>)>,
    /// How long each peer has held permits, and when it returned the last one.
    held: HashMap<IpAddr, (Duration, Instant)>,
}

/// The right to hold one large review, passed on when it is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    gate: Gate,
    peer: IpAddr,
    since: Instant,
}

impl Default for Gate {
    /// One core is left to everything else.
    fn default() -> Gate {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Gate::new(cores.saturating_sub(1).clamp(1, MAX))
    }
}

impl Gate {
    pub(crate) fn new(permits: usize) -> Gate {
        let queues = Mutex::new(Queues { free: permits, waiting: VecDeque::new(), held: HashMap::new() });
        Gate(Arc::new(Shared { queues, contended: watch::Sender::new(false) }))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(&self, peer: IpAddr) -> Permit {
        Permit { gate: self.clone(), peer, since: clock::instant() }
    }

    /// Waits for the turn of this peer. A caller that gives up before its turn takes none. `None` if too many wait, of this peer more
    /// than of others.
    pub(crate) async fn enter(&self, peer: IpAddr) -> Option<Permit> {
        let turn = {
            let mut queues = self.queues();
            if queues.free > 0 {
                queues.free -= 1;
                return Some(self.permit(peer));
            }
            let (turn, given) = oneshot::channel();
            queues.wait(peer, turn);
            self.0.contended.send_replace(true);
            given
        };
        turn.await.ok()
    }

    /// Passes a permit on to the next review that still waits.
    fn pass_on(&self, peer: IpAddr, held: Duration) {
        let next = {
            let mut queues = self.queues();
            queues.count(peer, held, clock::instant());
            let next = queues.next();
            if next.is_none() {
                queues.free += 1;
            }
            self.0.contended.send_replace(!queues.waiting.is_empty());
            next
        };
        if let Some((peer, turn)) = next {
            // If it gave up in this moment, the returned permit is dropped, and passed on.
            let _ = turn.send(self.permit(peer));
        }
    }
}

impl Queues {
    fn wait(&mut self, peer: IpAddr, turn: oneshot::Sender<Permit>) {
        match self.waiting.iter_mut().find(|(waiting_peer, _)| *waiting_peer == peer) {
            Some((_, queue)) => queue.push_back(turn),
            None => self.waiting.push_back((peer, VecDeque::from([turn]))),
        }
        let count = |queues: &Queues| queues.waiting.iter().map(|(_, queue)| queue.len()).sum::<usize>();
        if count(self) > MAX_WAITING {
            self.remove_gone();
        }
        if count(self) > MAX_WAITING
            && let Some((_, longest)) = self.waiting.iter_mut().max_by_key(|(_, queue)| queue.len())
        {
            longest.pop_back();
        }
        self.waiting.retain(|(_, queue)| !queue.is_empty());
    }

    /// Removes the reviews that gave up.
    fn remove_gone(&mut self) {
        self.waiting.iter_mut().for_each(|(_, queue)| queue.retain(|turn| !turn.is_closed()));
        self.waiting.retain(|(_, queue)| !queue.is_empty());
    }

    /// Counts that a peer held a permit.
    fn count(&mut self, peer: IpAddr, held: Duration, now: Instant) {
        self.held.retain(|_, (_, last)| now.saturating_duration_since(*last) < REMEMBERED);
        if self.held.len() >= MAX_REMEMBERED {
            self.held.clear();
        }
        let (total, last) = self.held.entry(peer).or_insert((Duration::ZERO, now));
        (*total, *last) = (*total + held, now);
    }

    fn next(&mut self) -> Option<(IpAddr, oneshot::Sender<Permit>)> {
        self.remove_gone();
        let held = |peer: &IpAddr| self.held.get(peer).map_or(Duration::ZERO, |(held, _)| *held);
        let (at, _) = self.waiting.iter().enumerate().min_by_key(|(_, (peer, _))| held(peer))?;
        let (peer, mut queue) = self.waiting.remove(at)?;
        let turn = queue.pop_front()?;
        if !queue.is_empty() {
            self.waiting.push_back((peer, queue));
        }
        Some((peer, turn))
    }
}

impl Permit {
    /// Waits until other reviews wait for a permit.
    pub(super) async fn wanted(&self) {
        let mut contended = self.gate.0.contended.subscribe();
        // The sender lives in the gate.
        while contended.wait_for(|contended| *contended).await.is_ok() && self.contenders() == 0 {}
    }

    /// How many peers take turns: those that wait, or have held a permit lately. 0 if no review waits that did not give up.
    pub(super) fn contenders(&self) -> usize {
        let mut queues = self.gate.queues();
        queues.remove_gone();
        self.gate.0.contended.send_replace(!queues.waiting.is_empty());
        match queues.waiting.len() {
            0 => 0,
            waiting => waiting.max(queues.held.len()),
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let held = clock::instant().saturating_duration_since(self.since);
        self.gate.pass_on(self.peer, held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test(start_paused = true)]
    async fn peers_take_turns_and_reviews_of_a_peer_keep_their_order() {
        let gate = Gate::new(1);
        let mut held = Some(gate.enter(peer(1)).await.unwrap());
        let peers = [1, 1, 1, 2, 1, 3, 2];
        let mut waiting: Vec<_> = peers.iter().map(|n| Box::pin(gate.enter(peer(*n)))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let mut order = Vec::new();
        while order.len() < peers.len() {
            held.take();
            for (n, turn) in waiting.iter_mut().enumerate().filter(|(n, _)| !order.contains(n)).collect::<Vec<_>>() {
                if let Some(permit) = turn.now_or_never() {
                    assert!(held.replace(permit.unwrap()).is_none(), "one permit at a time");
                    order.push(n);
                }
            }
        }
        assert_eq!(order, [0, 3, 5, 1, 6, 2, 4]);
        drop(held);
        assert_eq!(gate.queues().free, 1);
    }

    #[tokio::test]
    async fn permit_of_review_that_gave_up_is_passed_on() {
        let gate = Gate::new(1);
        let held = gate.enter(peer(1)).await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|n| Box::pin(gate.enter(peer(n)))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        drop(waiting.remove(0));
        drop(held);
        // The second has its permit and gives up without having looked.
        drop(waiting.remove(0));
        assert!(waiting.remove(0).now_or_never().unwrap().is_some());
        assert!(gate.enter(peer(1)).now_or_never().unwrap().is_some());
        assert!(gate.queues().waiting.is_empty());
    }

    #[tokio::test]
    async fn peer_with_most_waiting_reviews_loses_its_newest_if_too_many_wait() {
        let gate = Gate::new(1);
        let held = gate.enter(peer(1)).await.unwrap();
        let wait = |client: u8| {
            let mut turn = Box::pin(gate.enter(peer(client)));
            assert!((&mut turn).now_or_never().is_none());
            turn
        };
        let mut flood: Vec<_> = (0..MAX_WAITING).map(|_| wait(1)).collect();
        assert!(gate.enter(peer(1)).now_or_never().unwrap().is_none(), "one more of the same peer");
        let other = wait(2);
        assert!(flood.pop().unwrap().now_or_never().unwrap().is_none());
        assert!(flood.iter_mut().all(|turn| turn.now_or_never().is_none()));
        // Those that gave up take no place.
        flood.truncate(10);
        let more: Vec<_> = (0..MAX_WAITING - 11).map(|_| wait(3)).collect();
        drop((held, flood));
        assert!(other.now_or_never().unwrap().is_some());
        drop(more);
        assert_eq!(gate.queues().free, 1);
    }

    /// Peers that hold permits for long, because their bodies do not arrive, come after one that does not.
    #[tokio::test(start_paused = true)]
    async fn next_permit_is_for_the_peer_that_held_permits_for_the_shortest_time() {
        let gate = Gate::new(1);
        let mut waits = Vec::new();
        for _ in 0..4 {
            let held = gate.enter(peer(0)).await.unwrap();
            let mut slow = tokio::task::JoinSet::new();
            for n in 1..20 {
                let gate = gate.clone();
                slow.spawn(async move {
                    let _permit = gate.enter(peer(n)).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(25)).await;
                });
            }
            tokio::task::yield_now().await;
            let begin = clock::instant();
            let (quick, ()) = tokio::join!(gate.enter(peer(99)), async { drop(held) });
            waits.push(clock::instant().saturating_duration_since(begin).as_millis());
            drop(quick);
            slow.join_all().await;
        }
        assert!(waits[0] >= 19 * 25 && waits[1..].iter().all(|wait| *wait == 0), "{waits:?}");
        tokio::time::sleep(REMEMBERED).await;
        drop(gate.enter(peer(1)).await.unwrap());
        assert_eq!(gate.queues().held.len(), 1, "it is remembered for a minute");
    }

    #[tokio::test]
    async fn review_that_gave_up_does_not_press_the_holder() {
        let gate = Gate::new(1);
        let held = gate.enter(peer(1)).await.unwrap();
        let mut other = Box::pin(gate.enter(peer(2)));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(held.contenders(), 1);
        drop(other);
        assert!(held.contenders() == 0 && held.wanted().now_or_never().is_none());
        let mut other = Box::pin(gate.enter(peer(2)));
        assert!((&mut other).now_or_never().is_none());
        assert!(held.wanted().now_or_never().is_some());
    }

    #[tokio::test]
    async fn holder_learns_when_another_review_waits() {
        let gate = Gate::new(1);
        let held = gate.enter(peer(1)).await.unwrap();
        assert!(held.wanted().now_or_never().is_none());
        let mut other = Box::pin(gate.enter(peer(1)));
        assert!((&mut other).now_or_never().is_none());
        assert!(held.wanted().now_or_never().is_some());
        drop(held);
        let next = other.await.unwrap();
        assert!(next.wanted().now_or_never().is_none(), "no third one waits");
    }

    #[tokio::test(start_paused = true)]
    async fn peers_that_held_a_permit_lately_contend_while_another_waits() {
        let gate = Gate::new(1);
        for n in 2..5 {
            drop(gate.enter(peer(n)).await.unwrap());
        }
        let held = gate.enter(peer(1)).await.unwrap();
        assert_eq!(held.contenders(), 0, "nobody waits");
        let mut other = Box::pin(gate.enter(peer(2)));
        assert!((&mut other).now_or_never().is_none());
        assert_eq!(held.contenders(), 3);
    }
}
