//! Which connections close when there is no room for another one. Pure: a table and an instant go in, a choice comes out.
//!
//! Go keeps idle connections to a webhook for 90 s and never sends a POST again whose connection broke. So a connection
//! that answered a review lately is never closed for room: it ends by agreement, after an answer that says so.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long an answered connection is kept whatever comes: the 90 s of Go's pool, and the way there.
pub const PROTECTED: Duration = Duration::from_secs(95);
/// How much longer while a request is read on it: one may come at the very end.
const READING: Duration = Duration::from_secs(10);
/// By then a client that means it has finished its handshake and has had an answer.
const YOUNG: Duration = Duration::from_secs(2);

/// How many connections a listener holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// At most so many at once.
    pub most: usize,
    /// How long a connection is kept after an answer, whatever comes.
    pub protect: Duration,
}

impl Capacity {
    /// No bound.
    pub const UNLIMITED: Capacity = Capacity { most: usize::MAX, protect: PROTECTED };

    /// For API servers, which send a POST only once.
    pub fn of_reviews(most: usize) -> Capacity {
        Capacity { most, protect: PROTECTED }
    }

    /// For clients that ask again when a connection was closed.
    pub fn of_questions(most: usize) -> Capacity {
        Capacity { most, protect: Duration::ZERO }
    }

    /// How many connections make room at once, so that a flood does not search the table for each of its own.
    pub(super) fn batch(self) -> usize {
        (self.most / 100).max(1)
    }

    /// So many connections may be on their way out before the next one is taken: their descriptors are still open.
    pub(super) fn closing(self) -> usize {
        (self.most / 32).min(16)
    }
}

/// How many connections each listener holds, so that no listener can starve another one, nor our own connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Of the webhook.
    pub webhook: Capacity,
    /// Of probes and metrics.
    pub metrics: Capacity,
    /// Of the debug listener.
    pub debug: Capacity,
}

impl Capacities {
    /// The webhook's default. One on which nothing was asked takes 9 kB, so all of them 90 MiB.
    pub const WEBHOOK: usize = 10_240;

    /// What fits into so many file descriptors, and no more than `most` for the webhook. A part is kept back for files,
    /// for the listeners themselves and for our own connections to the API server.
    pub fn within(descriptors: u64, most: usize) -> Capacities {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let own = (descriptors / 3).clamp(32, 256);
        let metrics = (descriptors / 16).clamp(8, 64);
        let debug = (descriptors / 32).clamp(4, 16);
        let left = descriptors.saturating_sub(own + metrics + debug).max(8);
        Capacities {
            webhook: Capacity::of_reviews(most.min(left)),
            metrics: Capacity::of_questions(metrics),
            debug: Capacity::of_questions(debug),
        }
    }
}

impl Default for Capacities {
    fn default() -> Self {
        Capacities::within(u64::MAX, Capacities::WEBHOOK)
    }
}

/// A connection, as far as room is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Which it is.
    pub id: u64,
    /// Who is at the other end.
    pub peer: IpAddr,
    /// When it came.
    pub accepted: Instant,
    /// When a review was last answered on it.
    pub answered: Option<Instant>,
    /// Whether a request is being read or answered.
    pub busy: bool,
}

/// The order in which connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// It has been there for a while and completed no review.
    Idler,
    /// Its last answer was so long ago that Go has given it up.
    Stale,
    /// It came just now.
    Young,
}

impl Standing {
    /// `None`: it stays.
    fn class(&self, now: Instant, protect: Duration) -> Option<Class> {
        let Some(answered) = self.answered else {
            let young = now.saturating_duration_since(self.accepted) < YOUNG;
            return Some(if young { Class::Young } else { Class::Idler });
        };
        let kept = if self.busy { protect + READING } else { protect };
        (now.saturating_duration_since(answered) >= kept).then_some(Class::Stale)
    }
}

/// The connections that go, at most `wanted`: first those that completed no review, and among those of one class the
/// oldest of the peer that has most of them. Empty when all are protected.
pub fn victims(
    connections: impl Iterator<Item = Standing>,
    now: Instant,
    protect: Duration,
    wanted: usize,
) -> Vec<u64> {
    let mut classes: [HashMap<IpAddr, Vec<(Instant, u64)>>; 3] = Default::default();
    for connection in connections {
        let class = connection.class(now, protect).and_then(|class| classes.get_mut(class as usize));
        if let Some(peers) = class {
            peers.entry(connection.peer).or_default().push((connection.accepted, connection.id));
        }
    }
    let mut gone = Vec::new();
    for peers in classes {
        // The largest first, and among equals the one with the oldest.
        let ranked = |of_peer: VecDeque<(Instant, u64)>| (of_peer.len(), Reverse(of_peer.front().copied()), of_peer);
        let mut largest: BinaryHeap<_> = peers
            .into_values()
            .map(|mut of_peer| {
                of_peer.sort_unstable();
                ranked(of_peer.into())
            })
            .collect();
        while gone.len() < wanted
            && let Some((_, _, mut of_peer)) = largest.pop()
        {
            gone.extend(of_peer.pop_front().map(|(_, id)| id));
            if !of_peer.is_empty() {
                largest.push(ranked(of_peer));
            }
        }
    }
    gone
}

/// What is there when a review has been answered.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// Connections in all.
    pub open: usize,
    /// Of those, how many answered a review.
    pub answered: usize,
    /// Of those, how many of the peer in question.
    pub of_peer: usize,
    /// How many peers have one.
    pub peers: usize,
}

/// So many connections that have answered are kept at most: one takes 30 kB. API servers keep 25 idle ones each, for each
/// path.
const MOST_ANSWERED: usize = 3_072;

/// Whether room is short: for connections, or for those that have answered.
pub fn is_short(most: usize, open: usize, answered: usize) -> bool {
    let kept = most.min(MOST_ANSWERED);
    open >= most - most / 4 || answered >= kept - kept / 4
}

/// Whether a connection is kept after an answer, or ends with it. Shares by peer bind only when room is short: API servers
/// may share an address. Without them whoever sends a review on each of his connections would keep all others out.
pub fn keeps(most: usize, crowd: Crowd) -> bool {
    let kept = most.min(MOST_ANSWERED);
    let (half, share) = (kept / 2, kept / 2 / crowd.peers.max(1));
    !is_short(most, crowd.open, crowd.answered)
        || crowd.answered <= half
        || (crowd.of_peer <= share.max(1) && crowd.answered <= kept - kept / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    struct Table {
        start: Instant,
        rows: Vec<Standing>,
    }

    impl Table {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        fn new() -> Table {
            Table { start: Instant::now(), rows: Vec::new() }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn add(&mut self, of: u8, accepted: u64, answered: Option<u64>) -> u64 {
            let id = self.rows.len() as u64;
            let (accepted, answered) = (self.at(accepted), answered.map(|at| self.at(at)));
            self.rows.push(Standing { id, peer: peer(of), accepted, answered, busy: false });
            id
        }

        fn gone(&self, now: u64, wanted: usize) -> Vec<u64> {
            victims(self.rows.iter().copied(), self.at(now), PROTECTED, wanted)
        }
    }

    #[test]
    fn the_oldest_that_completed_nothing_goes_first() {
        let mut table = Table::new();
        let (answered, old, older) = (table.add(1, 0, Some(1)), table.add(2, 9, None), table.add(2, 8, None));
        let young = table.add(3, 199, None);
        assert_eq!(table.gone(200, 9), [older, old, answered, young]);
        assert_eq!(table.gone(200, 1), [older]);
    }

    #[test]
    fn one_that_answered_a_review_within_ninety_seconds_never_goes() {
        let mut table = Table::new();
        let answered = table.add(1, 0, Some(100));
        for now in 100..=190 {
            assert!(table.gone(now, 9).is_empty(), "{now}");
        }
        assert_eq!(table.gone(196, 9), [answered]);
        table.rows[0].busy = true;
        assert!(table.gone(196, 9).is_empty(), "a request came at the last moment");
        assert_eq!(table.gone(206, 9), [answered], "and nobody keeps it by never ending one");
    }

    #[test]
    fn the_peer_with_most_gives_way() {
        let mut table = Table::new();
        let real = table.add(1, 0, None);
        let flood: Vec<u64> = (0..5).map(|n| table.add(2, 10 + n, None)).collect();
        assert_eq!(table.gone(100, 4), flood[..4], "although the other one is older");
        assert_eq!(table.gone(100, 6).len(), 6);
        assert!(table.gone(100, 6).contains(&real));
    }

    #[test]
    fn a_burst_of_a_real_client_does_not_go_before_many_peers_that_idle() {
        let mut table = Table::new();
        for n in 0..100 {
            table.add(n, 0, None);
        }
        let burst: Vec<u64> = (0..25).map(|_| table.add(200, 60, None)).collect();
        assert!(table.gone(61, 100).iter().all(|id| !burst.contains(id)));
    }

    #[test]
    fn who_asks_again_is_not_protected() {
        let mut table = Table::new();
        let answered = table.add(1, 0, Some(100));
        assert_eq!(victims(table.rows.iter().copied(), table.at(100), Duration::ZERO, 1), [answered]);
    }

    #[test]
    fn shares_bind_only_when_room_is_short() {
        let crowd = Crowd { open: 100, answered: 100, of_peer: 100, peers: 1 };
        assert!(keeps(1000, crowd), "there is room");
        assert!(keeps(120, Crowd { answered: 60, of_peer: 60, ..crowd }), "half of it is for answered ones");
        assert!(!keeps(120, crowd));
        let two = Crowd { answered: 61, peers: 2, ..crowd };
        assert!(!keeps(120, Crowd { of_peer: 60, ..two }) && keeps(120, Crowd { of_peer: 1, ..two }));
        assert!(!keeps(120, Crowd { answered: 106, of_peer: 1, ..two }), "there is always room for somebody new");
        // Those that have answered take more memory, and their number has a bound of its own.
        let many = Crowd { open: 4000, answered: 3072, of_peer: 3072, peers: 1 };
        assert!(!keeps(10_240, many) && !keeps(usize::MAX, many));
        assert!(keeps(10_240, Crowd { answered: 2300, of_peer: 2300, ..many }), "there is room");
        assert!(keeps(10_240, Crowd { answered: 2600, of_peer: 25, peers: 2, ..many }), "somebody else's");
    }

    #[test]
    fn every_listener_has_its_part_of_the_descriptors() {
        for descriptors in [64, 200, 1024, 20_000, 1 << 20, u64::MAX] {
            let all = Capacities::within(descriptors, Capacities::WEBHOOK);
            let sum = all.webhook.most + all.metrics.most + all.debug.most;
            assert!(sum as u64 <= descriptors - 32, "{descriptors}: {all:?}");
            assert!(all.webhook.most >= 8 && all.metrics.most >= 8 && all.debug.most >= 4);
        }
        assert_eq!(Capacities::within(200, 10_240).webhook.most, 116);
        assert_eq!(Capacities::within(1 << 20, 10_240).webhook.most, 10_240);
        assert_eq!(Capacities::within(1 << 20, 3).webhook.most, 3);
    }
}
