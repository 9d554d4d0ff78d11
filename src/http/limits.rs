//! How much may be in memory. API servers retry a review that got 429 with Retry-After within their deadline
//! (WEBHOOKS.md, finding 5), so shedding load is an answer, and cutting a connection is not.
//!
//! Bytes are charged as they arrive: whoever announces a large body and sends nothing takes no room from others.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest review: an update carries the object twice, 3 MiB each, and an envelope. controller-runtime takes 7 MiB.
pub const MAX_BODY: usize = 7 << 20;

const KIB: usize = 1024;

/// A bound on the bytes of bodies in memory.
#[derive(Clone, Debug)]
pub struct Limits(Arc<Semaphore>);

/// Room for the bytes of one body, growing as they arrive.
#[derive(Debug)]
pub struct Room {
    all: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
    bytes: usize,
    charged: usize,
}

impl Default for Limits {
    /// 64 MiB: six thousand reviews of 10 kB, or nine of the largest.
    fn default() -> Self {
        Limits::new(64 << 20)
    }
}

impl Limits {
    /// At most so many bytes.
    pub fn new(bytes: usize) -> Limits {
        Limits(Arc::new(Semaphore::new(bytes / KIB)))
    }

    /// Room for a body of which nothing has come yet.
    pub fn enter(&self) -> Room {
        Room { all: self.0.clone(), held: None, bytes: 0, charged: 0 }
    }
}

impl Room {
    /// Room for so many bytes more. `false` is overload.
    pub fn grow(&mut self, bytes: usize) -> bool {
        self.bytes = self.bytes.saturating_add(bytes);
        let more = self.bytes.div_ceil(KIB).saturating_sub(self.charged);
        let permit = u32::try_from(more).ok().and_then(|more| self.all.clone().try_acquire_many_owned(more).ok());
        let Some(permit) = permit else { return false };
        self.charged += more;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_bind_as_they_arrive_and_are_given_back() {
        let limits = Limits::new(64 * KIB);
        let (mut one, mut two) = (limits.enter(), limits.enter());
        assert!(one.grow(100) && one.grow(900) && one.grow(24), "one kibibyte");
        assert!(two.grow(63 * KIB) && !two.grow(1));
        drop(one);
        assert!(two.grow(1), "the first has left");
        let mut three = limits.enter();
        assert!(!three.grow(1));
        drop(two);
        assert!(limits.enter().grow(64 * KIB));
    }
}
