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

    struct Scene {
        now: Instant,
        holders: Vec<Holder>,
    }

    impl Scene {
        #[expect(clippy::disallowed_methods, reason = "an instant to count from")]
        fn new() -> Scene {
            Scene { now: Instant::now() + Duration::from_secs(100), holders: Vec::new() }
        }

        fn add(&mut self, of: u8, proven: bool, age_ms: u64, bytes: usize) -> u64 {
            let id = self.holders.len() as u64;
            self.holders.push(self.body(id, of, proven, age_ms, bytes));
            id
        }

        fn body(&self, id: u64, of: u8, proven: bool, age_ms: u64, bytes: usize) -> Holder {
            Holder { id, peer: peer(of), proven, since: self.now - Duration::from_millis(age_ms), bytes }
        }

        fn gone(&self, of: u8, proven: bool, need: usize) -> Option<Vec<u64>> {
            victims(&self.holders, &self.body(999, of, proven, 0, 0), need, 0, self.now)
        }
    }

    #[test]
    fn stalled_bodies_of_connections_that_completed_nothing_go_first() {
        let mut scene = Scene::new();
        let proven = scene.add(1, true, 3000, 100);
        let stalled = scene.add(1, false, 600, 100);
        assert_eq!(scene.gone(1, true, 50), Some(vec![stalled]));
        assert_eq!(scene.gone(1, true, 150), Some(vec![stalled, proven]));
        assert_eq!(scene.gone(2, false, 150), Some(vec![stalled, proven]));
    }

    #[test]
    fn a_proven_connection_takes_room_even_from_what_came_just_now() {
        let mut scene = Scene::new();
        let fresh = scene.add(1, false, 10, 100);
        assert_eq!(scene.gone(1, true, 50), Some(vec![fresh]), "also of the same peer");
        assert_eq!(scene.gone(1, false, 50), None, "an equal body is not evicted");
    }

    #[test]
    fn the_peer_that_holds_most_gives_way_to_one_with_less() {
        let mut scene = Scene::new();
        let first = scene.add(1, false, 20, 100);
        for _ in 0..9 {
            scene.add(1, false, 10, 100);
        }
        scene.add(2, false, 400, 100);
        assert_eq!(scene.gone(3, false, 100), Some(vec![first]));
        assert_eq!(scene.gone(1, false, 100), None, "not for another body of the same peer");
    }

    #[test]
    fn honest_overload_cuts_nobody() {
        let mut scene = Scene::new();
        for of in 0..10 {
            scene.add(of, true, 100, 100);
        }
        assert_eq!(scene.gone(10, true, 100), None);
        assert_eq!(scene.gone(10, false, 100), None);
    }

    #[test]
    fn nothing_is_cut_when_it_would_not_suffice() {
        let mut scene = Scene::new();
        scene.add(1, false, 3000, 100);
        assert_eq!(scene.gone(2, true, 101), None);
    }
}
