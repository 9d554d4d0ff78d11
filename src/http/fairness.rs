//! Chooses which bodies are evicted when the memory budget is exhausted. Pure, as `capacity`.
//!
//! A review of 10 kB arrives in one round trip. A body that is incomplete after half a second rarely comes from an API
//! server, and one on a connection that never completed a review is evicted first.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bodies that take longer can be evicted.
const SLOW_AFTER: Duration = Duration::from_millis(500);
/// The same for a body whose connection has completed a review, when the requester's connection has not.
const SLOW_AFTER_IF_PROVEN: Duration = Duration::from_secs(2);

/// A body in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    /// Id of the body.
    pub(super) id: u64,
    /// Peer that sends it.
    pub(super) peer: IpAddr,
    /// Whether its connection has completed a review.
    pub(super) proven: bool,
    /// When reading started.
    pub(super) since: Instant,
    /// Bytes received so far.
    pub(super) bytes: usize,
}

/// The bodies to evict for `peer`, so that at least `need` bytes become free; `None` when no choice is fair, and the client
/// of `peer` must retry. Frees slightly more than needed, so that a burst does not search the table for each new body.
pub(super) fn victims(holders: &[Holder], peer: &Holder, need: usize, spare: usize, now: Instant) -> Option<Vec<u64>> {
    let mut by_peer: HashMap<IpAddr, usize> = HashMap::new();
    for holder in holders {
        *by_peer.entry(holder.peer).or_default() += holder.bytes;
    }
    let of_asker = by_peer.get(&peer.peer).copied().unwrap_or_default().max(peer.bytes);
    let age = |holder: &Holder| now.saturating_duration_since(holder.since);
    let mut weaker: Vec<&Holder> = holders
        .iter()
        .filter(|holder| {
            let of_holder = by_peer.get(&holder.peer).copied().unwrap_or_default();
            let slow = if holder.proven && !peer.proven { SLOW_AFTER_IF_PROVEN } else { SLOW_AFTER };
            let is_slow = age(holder) >= slow && age(peer) < slow;
            let is_less = peer.proven && !holder.proven;
            let has_more = peer.proven == holder.proven && of_holder.saturating_sub(holder.bytes) > of_asker + need;
            holder.id != peer.id && holder.bytes > 0 && (is_slow || is_less || has_more)
        })
        .collect();
    weaker.sort_by_key(|holder| {
        let of_peer = by_peer.get(&holder.peer).copied().unwrap_or_default();
        (holder.proven, std::cmp::Reverse(of_peer), holder.since, holder.id)
    });
    let (mut freed, mut gone) = (0, Vec::new());
    for holder in weaker {
        if freed >= need.max(spare) {
            break;
        }
        freed += holder.bytes;
        gone.push(holder.id);
    }
    (freed >= need).then_some(gone)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(n: u8) -> IpAddr {
        [10, 0, 0, n].into()
    }

    struct Table {
        now: Instant,
        holders: Vec<Holder>,
    }

    impl Table {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        fn new() -> Table {
            Table { now: Instant::now() + Duration::from_secs(100), holders: Vec::new() }
        }

        fn add(&mut self, of: u8, proven: bool, age_ms: u64, bytes: usize) -> u64 {
            let id = self.holders.len() as u64;
            self.holders.push(self.body(id, of, proven, age_ms, bytes));
            id
        }

        fn body(&self, id: u64, of: u8, proven: bool, age_ms: u64, bytes: usize) -> Holder {
            Holder { id, peer: peer(of), proven, since: self.now - Duration::from_millis(age_ms), bytes }
        }

        fn evicted(&self, of: u8, proven: bool, need: usize) -> Option<Vec<u64>> {
            victims(&self.holders, &self.body(999, of, proven, 0, 0), need, 0, self.now)
        }
    }

    #[test]
    fn stalled_bodies_of_unproven_connections_are_evicted_first() {
        let mut table = Table::new();
        let proven = table.add(1, true, 3000, 100);
        let stalled = table.add(1, false, 600, 100);
        assert_eq!(table.evicted(1, true, 50), Some(vec![stalled]));
        assert_eq!(table.evicted(1, true, 150), Some(vec![stalled, proven]));
        assert_eq!(table.evicted(2, false, 150), Some(vec![stalled, proven]));
    }

    #[test]
    fn proven_connection_evicts_even_new_bodies_of_unproven_ones() {
        let mut table = Table::new();
        let fresh = table.add(1, false, 10, 100);
        assert_eq!(table.evicted(1, true, 50), Some(vec![fresh]), "also of the same peer");
        assert_eq!(table.evicted(1, false, 50), None, "an equal body is not evicted");
    }

    #[test]
    fn peer_with_most_bytes_is_evicted_for_peer_with_less() {
        let mut table = Table::new();
        let first = table.add(1, false, 20, 100);
        for _ in 0..9 {
            table.add(1, false, 10, 100);
        }
        table.add(2, false, 400, 100);
        assert_eq!(table.evicted(3, false, 100), Some(vec![first]));
        assert_eq!(table.evicted(1, false, 100), None, "not for another body of the same peer");
    }

    #[test]
    fn equal_proven_peers_are_not_evicted_under_overload() {
        let mut table = Table::new();
        for of in 0..10 {
            table.add(of, true, 100, 100);
        }
        assert_eq!(table.evicted(10, true, 100), None);
        assert_eq!(table.evicted(10, false, 100), None);
    }

    #[test]
    fn nothing_is_evicted_if_it_does_not_free_enough() {
        let mut table = Table::new();
        table.add(1, false, 3000, 100);
        assert_eq!(table.evicted(2, true, 101), None);
    }
}
