//! Limits what request bodies take. API servers retry a review that got 429 with Retry-After within their deadline
//! (`docs/webhooks.md#retries`), so shedding load means an answer, not a cut connection.
//!
//! A review of an executor arrives in one or two round trips. A body of that size that arrives later takes one of a few slots, and
//! the oldest gives way to a new one: a client would have to send thousands of bodies within a round trip to displace an API
//! server's. Larger bodies wait unread at the `http::gate`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::gate::{Gate, MEDIUM};

/// Maximum size of a review that is read whole. etcd stores objects of 1.5 MiB (`--max-request-bytes`), Go writes one
/// byte as six in JSON (`<` as `\u003c`), and an update carries the object twice: 18 MiB plus an envelope.
pub const MAX_BODY: usize = 20 << 20;

/// What request bodies may take.
#[derive(Clone, Debug)]
pub struct Limits {
    arriving: Arriving,
    gate: Gate,
    /// For bodies above [`MEDIUM`].
    largest: Gate,
}

impl Default for Limits {
    /// 24 MiB of small bodies, and large ones on all cores but one.
    fn default() -> Limits {
        Limits { arriving: Arriving::new(768), gate: Gate::default(), largest: Gate::default() }
    }
}

impl Limits {
    /// At most this many small bodies that did not arrive with their head, and this many large ones.
    pub fn new(small: usize, large: usize) -> Limits {
        Limits { arriving: Arriving::new(small), gate: Gate::new(large), largest: Gate::new(large) }
    }

    pub(super) fn arriving(&self) -> &Arriving {
        &self.arriving
    }

    /// The gate of a body that announces this many bytes.
    pub(super) fn gate(&self, announced: u64) -> &Gate {
        if announced <= MEDIUM as u64 { &self.gate } else { &self.largest }
    }
}

/// The slots of small bodies that did not arrive with their head.
#[derive(Clone, Debug)]
pub(super) struct Arriving {
    slots: Arc<Mutex<Slots>>,
    max: usize,
}

#[derive(Debug, Default)]
struct Slots {
    next: u64,
    /// The oldest first.
    taken: BTreeMap<u64, Arc<Notify>>,
}

/// A slot, freed on drop.
#[derive(Debug)]
pub(super) struct Slot {
    arriving: Arriving,
    id: u64,
    evicted: Arc<Notify>,
}

impl Arriving {
    fn new(max: usize) -> Arriving {
        Arriving { slots: Arc::default(), max }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot, if necessary that of the oldest body.
    pub(super) fn enter(&self) -> Slot {
        let mut slots = self.slots();
        while slots.taken.len() >= self.max
            && let Some((_, evicted)) = slots.taken.pop_first()
        {
            evicted.notify_one();
        }
        let (id, evicted) = (slots.next, Arc::new(Notify::new()));
        slots.next += 1;
        slots.taken.insert(id, evicted.clone());
        drop(slots);
        Slot { arriving: self.clone(), id, evicted }
    }
}

impl Slot {
    /// Waits until the slot is taken for another body.
    pub(super) async fn evicted(&self) {
        self.evicted.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.arriving.slots().taken.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn oldest_body_gives_way_and_slots_are_freed_on_drop() {
        let arriving = Arriving::new(3);
        let mut slots: Vec<Slot> = (0..5).map(|_| arriving.enter()).collect();
        let evicted: Vec<bool> = slots.iter().map(|slot| slot.evicted().now_or_never().is_some()).collect();
        assert_eq!(evicted, [true, true, false, false, false]);
        slots.truncate(4);
        let _new = arriving.enter();
        assert!(slots[2].evicted().now_or_never().is_none(), "the slot of the last one was free");
        slots.clear();
        assert_eq!(arriving.slots().taken.len(), 1);
    }
}
