//! Chooses the connections to close when the listener is at capacity. Pure: maps a table and an instant to a choice.
//!
//! Go keeps idle connections to a webhook for 90 s and never resends a POST whose connection broke. Therefore a connection
//! that answered a review recently is never closed to free capacity: it closes after an answer with `Connection: close`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a connection is protected after an answer: the 90 s of Go's pool plus network latency.
pub const PROTECTED: Duration = Duration::from_secs(95);
/// Additional protection while a request is read on the connection: one can arrive at the very end.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// By then a legitimate client has finished its handshake and received an answer.
const YOUNG: Duration = Duration::from_secs(2);

/// Maximum number of connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of concurrent connections.
    pub most: usize,
    /// How long a connection is protected after an answer.
    pub protect: Duration,
}

impl Capacity {
    /// No limit.
    pub const UNLIMITED: Capacity = Capacity { most: usize::MAX, protect: PROTECTED };

    /// For API servers, which send a POST only once.
    pub fn of_reviews(most: usize) -> Capacity {
        Capacity { most, protect: PROTECTED }
    }

    /// For clients that retry when a connection was closed.
    pub fn of_queries(most: usize) -> Capacity {
        Capacity { most, protect: Duration::ZERO }
    }

    /// How many connections are closed in one pass, so that a flood of connections does not search the table once per connection.
    pub(super) fn batch(self) -> usize {
        (self.most / 100).max(1)
    }

    /// At most this many connections may be closing before the next one is accepted: their descriptors are still open.
    pub(super) fn closing(self) -> usize {
        (self.most / 32).min(16)
    }
}

/// Maximum number of connections of each listener, so that no listener can starve another one or our own connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacities {
    /// Webhook listener.
    pub webhook: Capacity,
    /// Listener of probes and metrics.
    pub metrics: Capacity,
    /// Debug listener.
    pub debug: Capacity,
}

impl Capacities {
    /// Default of the webhook. A connection without a request takes 9 kB, so all of them take 90 MiB.
    pub const WEBHOOK: usize = 10_240;

    /// Limits that fit into this many file descriptors, with at most `most` for the webhook. Some descriptors are
    /// reserved for files, for the listeners and for our own connections to the API server.
    pub fn within(descriptors: u64, most: usize) -> Capacities {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let own = (descriptors / 3).clamp(32, 256);
        let metrics = (descriptors / 16).clamp(8, 64);
        let debug = (descriptors / 32).clamp(4, 16);
        let left = descriptors.saturating_sub(own + metrics + debug).max(8);
        Capacities {
            webhook: Capacity::of_reviews(most.min(left)),
            metrics: Capacity::of_queries(metrics),
            debug: Capacity::of_queries(debug),
        }
    }
}

impl Default for Capacities {
    fn default() -> Self {
        Capacities::within(u64::MAX, Capacities::WEBHOOK)
    }
}

/// State of a connection that decides whether it can be closed.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionState {
    /// Id of the connection.
    pub id: u64,
    /// Address of the peer.
    pub peer: IpAddr,
    /// When the connection was accepted.
    pub accepted: Instant,
    /// When a review was last answered on the connection.
    pub answered: Option<Instant>,
    /// Whether a request is being read or answered.
    pub busy: bool,
}

/// The order in which connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// Open for a while without a completed review.
    Idler,
    /// The last answer is older than the time for which Go keeps the connection.
    Stale,
    /// Accepted just now.
    Young,
}

impl ConnectionState {
    /// `None` if the connection is protected.
    fn class(&self, now: Instant, protect: Duration) -> Option<Class> {
        let Some(answered) = self.answered else {
            let young = now.saturating_duration_since(self.accepted) < YOUNG;
            return Some(if young { Class::Young } else { Class::Idler });
        };
        let kept = if self.busy { protect + REQUEST_TIME } else { protect };
        (now.saturating_duration_since(answered) >= kept).then_some(Class::Stale)
    }
}

/// The connections to close, at most `wanted`: first those without a completed review, and within a class the oldest of
/// the peer that has most of them. Empty when all are protected.
pub fn victims(
    connections: impl Iterator<Item = ConnectionState>,
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
        // The peer with most connections first; among equals the one with the oldest connection.
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

/// Counts of connections when a review has been answered.
#[derive(Clone, Copy, Debug)]
pub struct Occupancy {
    /// All connections.
    pub open: usize,
    /// Connections that answered a review.
    pub answered: usize,
    /// Of those, connections of this peer.
    pub of_peer: usize,
    /// Peers with such a connection.
    pub peers: usize,
}

/// At most this many connections that have answered are kept: each takes 30 kB. API servers keep 25 idle connections
/// each per path.
const MAX_ANSWERED: usize = 3_072;

/// Reports whether capacity is short: for connections, or for connections that have answered.
pub fn is_short(most: usize, open: usize, answered: usize) -> bool {
    let kept = most.min(MAX_ANSWERED);
    open >= most - most / 4 || answered >= kept - kept / 4
}

/// Reports whether a connection is kept after an answer. Shares per peer apply only when capacity is short, because API servers
/// may share an address. Without shares, a peer that sends a review on each of its connections would lock out all others.
pub fn keeps(most: usize, occupancy: Occupancy) -> bool {
    let kept = most.min(MAX_ANSWERED);
    let (half, share) = (kept / 2, kept / 2 / occupancy.peers.max(1));
    !is_short(most, occupancy.open, occupancy.answered)
        || occupancy.answered <= half
        || (occupancy.of_peer <= share.max(1) && occupancy.answered <= kept - kept / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    struct Table {
        start: Instant,
        rows: Vec<ConnectionState>,
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
            self.rows.push(ConnectionState { id, peer: peer(of), accepted, answered, busy: false });
            id
        }

        fn evicted(&self, now: u64, wanted: usize) -> Vec<u64> {
            victims(self.rows.iter().copied(), self.at(now), PROTECTED, wanted)
        }
    }

    #[test]
    fn oldest_connection_without_request_is_evicted_first() {
        let mut table = Table::new();
        let (answered, old, older) = (table.add(1, 0, Some(1)), table.add(2, 9, None), table.add(2, 8, None));
        let young = table.add(3, 199, None);
        assert_eq!(table.evicted(200, 9), [older, old, answered, young]);
        assert_eq!(table.evicted(200, 1), [older]);
    }

    #[test]
    fn connection_that_answered_within_90_seconds_is_not_evicted() {
        let mut table = Table::new();
        let answered = table.add(1, 0, Some(100));
        for now in 100..=190 {
            assert!(table.evicted(now, 9).is_empty(), "{now}");
        }
        assert_eq!(table.evicted(196, 9), [answered]);
        table.rows[0].busy = true;
        assert!(table.evicted(196, 9).is_empty(), "a request is in progress");
        assert_eq!(table.evicted(206, 9), [answered], "a request that never ends does not protect it");
    }

    #[test]
    fn connections_of_peer_with_most_are_evicted_first() {
        let mut table = Table::new();
        let real = table.add(1, 0, None);
        let flood: Vec<u64> = (0..5).map(|n| table.add(2, 10 + n, None)).collect();
        assert_eq!(table.evicted(100, 4), flood[..4], "although the other connection is older");
        assert_eq!(table.evicted(100, 6).len(), 6);
        assert!(table.evicted(100, 6).contains(&real));
    }

    #[test]
    fn burst_of_one_client_is_not_evicted_before_idle_peers() {
        let mut table = Table::new();
        for n in 0..100 {
            table.add(n, 0, None);
        }
        let burst: Vec<u64> = (0..25).map(|_| table.add(200, 60, None)).collect();
        assert!(table.evicted(61, 100).iter().all(|id| !burst.contains(id)));
    }

    #[test]
    fn zero_protection_time_protects_no_connection() {
        let mut table = Table::new();
        let answered = table.add(1, 0, Some(100));
        assert_eq!(victims(table.rows.iter().copied(), table.at(100), Duration::ZERO, 1), [answered]);
    }

    #[test]
    fn peer_shares_apply_only_if_capacity_is_short() {
        let occupancy = Occupancy { open: 100, answered: 100, of_peer: 100, peers: 1 };
        assert!(keeps(1000, occupancy), "capacity is not short");
        assert!(
            keeps(120, Occupancy { answered: 60, of_peer: 60, ..occupancy }),
            "half of the capacity is for connections that have answered"
        );
        assert!(!keeps(120, occupancy));
        let two = Occupancy { answered: 61, peers: 2, ..occupancy };
        assert!(!keeps(120, Occupancy { of_peer: 60, ..two }) && keeps(120, Occupancy { of_peer: 1, ..two }));
        assert!(
            !keeps(120, Occupancy { answered: 106, of_peer: 1, ..two }),
            "an eighth of the capacity remains for new peers"
        );
        // Connections that have answered take more memory and have a limit of their own.
        let many = Occupancy { open: 4000, answered: 3072, of_peer: 3072, peers: 1 };
        assert!(!keeps(10_240, many) && !keeps(usize::MAX, many));
        assert!(keeps(10_240, Occupancy { answered: 2300, of_peer: 2300, ..many }), "capacity is not short");
        assert!(
            keeps(10_240, Occupancy { answered: 2600, of_peer: 25, peers: 2, ..many }),
            "the connections of another peer"
        );
    }

    #[test]
    fn listener_capacities_fit_within_descriptor_limit() {
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
