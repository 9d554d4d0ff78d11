//! Limits how many reviews above [`SMALL`] are read and decided at a time. The others wait with their bodies unread, and the peers
//! take turns: a client that sends many large bodies delays the large reviews of others by one of its own at a time.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

/// Bodies up to this size are decided at once on the thread that read them: the worst takes 0.1 ms (`benches/admission.rs`). A
/// review of an executor is 10 to 25 kB.
pub(super) const SMALL: usize = 32 << 10;

/// At most this many large reviews are held at a time, on any number of cores: each takes up to 60 MiB.
const MOST: usize = 4;
/// At most this many wait: the buffers of a connection with an unread body take 66 kB.
const MOST_WAITING: usize = 256;

/// Permits for large reviews.
#[derive(Clone, Debug)]
pub(super) struct Gate(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queues: Mutex<Queues>,
    /// Whether a review waits.
    contended: watch::Sender<bool>,
}

#[derive(Debug)]
struct Queues {
    free: usize,
    /// The reviews that wait, of the peer whose turn is next first. No queue is empty.
    waiting: VecDeque<(IpAddr, VecDeque<oneshot::Sender<Permit>>)>,
}

/// The right to hold one large review, passed on when it is dropped.
#[derive(Debug)]
pub(super) struct Permit(Gate);

impl Default for Gate {
    /// One core is left to everything else.
    fn default() -> Gate {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Gate::new(cores.saturating_sub(1).clamp(1, MOST))
    }
}

impl Gate {
    pub(super) fn new(permits: usize) -> Gate {
        let queues = Mutex::new(Queues { free: permits, waiting: VecDeque::new() });
        Gate(Arc::new(Shared { queues, contended: watch::Sender::new(false) }))
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of this peer. A caller that gives up before its turn takes none. `None` if too many wait, of this peer more
    /// than of others.
    pub(super) async fn enter(&self, peer: IpAddr) -> Option<Permit> {
        let turn = {
            let mut queues = self.queues();
            if queues.free > 0 {
                queues.free -= 1;
                return Some(Permit(self.clone()));
            }
            let (turn, given) = oneshot::channel();
            queues.wait(peer, turn);
            self.0.contended.send_replace(true);
            given
        };
        turn.await.ok()
    }

    /// Passes a permit on to the next review that still waits.
    fn pass_on(&self) {
        let next = {
            let mut queues = self.queues();
            let next = queues.next();
            if next.is_none() {
                queues.free += 1;
            }
            self.0.contended.send_replace(!queues.waiting.is_empty());
            next
        };
        if let Some(turn) = next {
            // If it gave up in this moment, the returned permit is dropped, and passed on.
            let _ = turn.send(Permit(self.clone()));
        }
    }
}

impl Queues {
    fn wait(&mut self, peer: IpAddr, turn: oneshot::Sender<Permit>) {
        match self.waiting.iter_mut().find(|(of, _)| *of == peer) {
            Some((_, queue)) => queue.push_back(turn),
            None => self.waiting.push_back((peer, VecDeque::from([turn]))),
        }
        let count = |queues: &Queues| queues.waiting.iter().map(|(_, queue)| queue.len()).sum::<usize>();
        if count(self) > MOST_WAITING {
            // Those that gave up are still in the queues.
            self.waiting.iter_mut().for_each(|(_, queue)| queue.retain(|turn| !turn.is_closed()));
        }
        if count(self) > MOST_WAITING
            && let Some((_, longest)) = self.waiting.iter_mut().max_by_key(|(_, queue)| queue.len())
        {
            longest.pop_back();
        }
        self.waiting.retain(|(_, queue)| !queue.is_empty());
    }

    fn next(&mut self) -> Option<oneshot::Sender<Permit>> {
        while let Some((peer, mut queue)) = self.waiting.pop_front() {
            while let Some(turn) = queue.pop_front() {
                if !turn.is_closed() {
                    if !queue.is_empty() {
                        self.waiting.push_back((peer, queue));
                    }
                    return Some(turn);
                }
            }
        }
        None
    }
}

impl Permit {
    /// Waits until other reviews wait for a permit.
    pub(super) async fn wanted(&self) {
        // The sender lives in the gate.
        let _ = self.0.0.contended.subscribe().wait_for(|contended| *contended).await;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    #[tokio::test]
    async fn peers_take_turns_and_reviews_of_a_peer_keep_their_order() {
        let gate = Gate::new(1);
        let mut held = Some(gate.enter(peer(1)).await.unwrap());
        let of = [1, 1, 1, 2, 1, 3, 2];
        let mut waiting: Vec<_> = of.iter().map(|n| Box::pin(gate.enter(peer(*n)))).collect();
        assert!(waiting.iter_mut().all(|turn| turn.now_or_never().is_none()));
        let mut order = Vec::new();
        while order.len() < of.len() {
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
        let wait = |of: u8| {
            let mut turn = Box::pin(gate.enter(peer(of)));
            assert!((&mut turn).now_or_never().is_none());
            turn
        };
        let mut flood: Vec<_> = (0..MOST_WAITING).map(|_| wait(1)).collect();
        assert!(gate.enter(peer(1)).now_or_never().unwrap().is_none(), "one more of the same peer");
        let other = wait(2);
        assert!(flood.pop().unwrap().now_or_never().unwrap().is_none());
        assert!(flood.iter_mut().all(|turn| turn.now_or_never().is_none()));
        // Those that gave up take no place.
        flood.truncate(10);
        let more: Vec<_> = (0..MOST_WAITING - 11).map(|_| wait(3)).collect();
        drop((held, flood));
        assert!(other.now_or_never().unwrap().is_some());
        drop(more);
        assert_eq!(gate.queues().free, 1);
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
}
