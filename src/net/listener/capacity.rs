//! Chooses the connections to close when the listener is at capacity. Pure: maps a table and an instant to a choice.
//!
//! Go keeps idle connections to a webhook for 90 s and never resends a POST whose connection broke. Therefore a connection
//! that answered a review recently is closed only if its peer has more than its share of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How long a connection is protected after an answer: the 90 s of Go's pool plus network latency.
pub const PROTECTED: Duration = Duration::from_secs(95);
/// By then a legitimate client has finished its handshake and received an answer.
const YOUNG: Duration = Duration::from_secs(2);

/// At most this many connections that have answered are kept: each takes 30 kB.
const MAX_ANSWERED: usize = 3_072;

/// Maximum number of connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Maximum number of concurrent connections.
    pub max: usize,
    /// How long a connection is protected after an answer.
    pub protect: Duration,
}

impl Capacity {
    /// No limit.
    pub const UNLIMITED: Capacity = Capacity { max: usize::MAX, protect: PROTECTED };

    /// For API servers, which send a POST only once.
    pub fn of_reviews(max: usize) -> Capacity {
        Capacity { max, protect: PROTECTED }
    }

    /// For clients that retry when a connection was closed.
    pub(crate) fn of_queries(max: usize) -> Capacity {
        Capacity { max, protect: Duration::ZERO }
    }

    /// The capacity for connections that have answered a review. API servers keep 25 idle connections each per path.
    pub(super) fn of_answered(self) -> Capacity {
        Capacity { max: self.max.min(MAX_ANSWERED), ..self }
    }

    /// How many connections are closed in one pass, so that a flood of connections does not search the table once per connection.
    pub(super) fn batch(self) -> usize {
        (self.max / 100).max(1)
    }

    /// At most this many connections may be closing before the next one is accepted: their descriptors are still open.
    pub(super) fn closing(self) -> usize {
        (self.max / 32).min(16)
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

    /// Limits that fit into this many file descriptors, with at most `max` for the webhook. Some descriptors are
    /// reserved for files, for the listeners and for our own connections to the API server.
    pub fn within(descriptors: u64, max: usize) -> Capacities {
        let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
        let reserved = (descriptors / 3).clamp(32, 256);
        let metrics = (descriptors / 16).clamp(8, 64);
        let debug = (descriptors / 32).clamp(4, 16);
        let left = descriptors.saturating_sub(reserved + metrics + debug).max(8);
        Capacities {
            webhook: Capacity::of_reviews(max.min(left)),
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
    /// Answered recently: closed only beyond the share of its peer.
    Recent,
    /// Accepted just now.
    Young,
}

impl ConnectionState {
    fn class(&self, now: Instant, protect: Duration) -> Class {
        match self.answered {
            None if now.saturating_duration_since(self.accepted) < YOUNG => Class::Young,
            None => Class::Idler,
            Some(answered) if now.saturating_duration_since(answered) < protect => Class::Recent,
            Some(_) => Class::Stale,
        }
    }

    /// Within a class, the smallest is closed first. A connection that never answered is not protected by what it sends.
    fn rank(&self) -> Rank {
        match self.answered {
            Some(answered) => (self.busy, answered, self.id),
            None => (false, self.accepted, self.id),
        }
    }
}

type Rank = (bool, Instant, u64);

/// The connections to close, at most `wanted`: first those without a completed review, and within a class those of the peer that
/// has most of them. Of the connections that answered a review recently, each peer keeps its share of `max`, which leaves one
/// share for a new peer. Never empty if there are `max` connections.
pub fn victims(
    connections: impl Iterator<Item = ConnectionState>,
    now: Instant,
    Capacity { max, protect }: Capacity,
    wanted: usize,
) -> Vec<u64> {
    let mut classes: [HashMap<IpAddr, Vec<Rank>>; 4] = Default::default();
    for connection in connections {
        let class = connection.class(now, protect);
        if let Some(peers) = classes.get_mut(class as usize) {
            peers.entry(connection.peer).or_default().push(connection.rank());
        }
    }
    let mut gone = Vec::new();
    for (class, peers) in classes.into_iter().enumerate() {
        let share = if class == Class::Recent as usize { max / (peers.len() + 1) } else { 0 };
        // The peer with most connections first; among equals the one with the oldest connection.
        let ranked = |of_peer: VecDeque<Rank>| (of_peer.len(), Reverse(of_peer.front().copied()), of_peer);
        let mut largest: BinaryHeap<_> = peers
            .into_values()
            .map(|mut of_peer| {
                of_peer.sort_unstable();
                ranked(of_peer.into())
            })
            .collect();
        while gone.len() < wanted
            && let Some((count, _, mut of_peer)) = largest.pop()
            && count > share
        {
            gone.extend(of_peer.pop_front().map(|(.., id)| id));
            largest.push(ranked(of_peer));
        }
    }
    gone
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
        max: usize,
    }

    impl Table {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        fn new() -> Table {
            Table { start: Instant::now(), rows: Vec::new(), max: 1000 }
        }

        fn at(&self, seconds: u64) -> Instant {
            self.start + Duration::from_secs(seconds)
        }

        fn add(&mut self, client: u8, accepted: u64, answered: Option<u64>) -> u64 {
            let id = self.rows.len() as u64;
            let (accepted, answered) = (self.at(accepted), answered.map(|at| self.at(at)));
            self.rows.push(ConnectionState { id, peer: peer(client), accepted, answered, busy: false });
            id
        }

        fn evicted(&self, now: u64, wanted: usize) -> Vec<u64> {
            victims(self.rows.iter().copied(), self.at(now), Capacity::of_reviews(self.max), wanted)
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
        // Among those that answered before, one with a request in progress comes last.
        table.rows[0].busy = true;
        let idle = table.add(1, 0, Some(101));
        assert_eq!(table.evicted(197, 1), [idle]);
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
        assert_eq!(victims(table.rows.iter().copied(), table.at(100), Capacity::of_queries(1000), 1), [answered]);
    }

    #[test]
    fn peer_keeps_its_share_of_connections_that_answered() {
        let mut table = Table::new();
        table.max = 12;
        let flood: Vec<u64> = (0..12).map(|n| table.add(1, 0, Some(100 + n))).collect();
        assert_eq!(table.evicted(120, 99), flood[..6], "one peer leaves half to others");
        let other: Vec<u64> = (0..4).map(|n| table.add(2, 0, Some(90 + n))).collect();
        assert_eq!(table.evicted(120, 99), flood[..8], "two leave a third, and no peer below its share gives way");
        table.rows[0].busy = true;
        assert_eq!(table.evicted(120, 1), [flood[1]], "those with a request in progress come last");
        let young = table.add(3, 119, None);
        assert_eq!(table.evicted(120, 99), [&flood[1..9], &[young]].concat());
        table.rows.iter_mut().for_each(|row| row.busy = true);
        assert_eq!(table.evicted(120, 1), [flood[0]], "a request that never ends does not protect a connection");
        table.rows.retain(|row| other.contains(&row.id));
        assert!(table.evicted(120, 99).is_empty());
    }

    #[test]
    fn full_table_has_a_victim_always() {
        for peers in 1..=9u8 {
            let mut table = Table::new();
            table.max = 9;
            for n in 0..9 {
                table.add(n % peers, 0, Some(100));
            }
            assert_eq!(table.evicted(101, 1).len(), 1, "{peers} peers");
        }
    }

    #[test]
    fn listener_capacities_fit_within_descriptor_limit() {
        for descriptors in [64, 200, 1024, 20_000, 1 << 20, u64::MAX] {
            let all = Capacities::within(descriptors, Capacities::WEBHOOK);
            let sum = all.webhook.max + all.metrics.max + all.debug.max;
            assert!(sum as u64 <= descriptors - 32, "{descriptors}: {all:?}");
            assert!(all.webhook.max >= 8 && all.metrics.max >= 8 && all.debug.max >= 4);
        }
        assert_eq!(Capacities::within(200, 10_240).webhook.max, 116);
        assert_eq!(Capacities::within(1 << 20, 10_240).webhook.max, 10_240);
        assert_eq!(Capacities::within(1 << 20, 3).webhook.max, 3);
    }
}
