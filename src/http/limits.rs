//! How much may be in memory. API servers retry a review that got 429 with Retry-After within their deadline
//! (WEBHOOKS.md, finding 5), so shedding load is an answer, and cutting a connection is not.
//!
//! Bytes are charged as they arrive: whoever announces a large body and sends nothing takes no room from others.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The largest review that is read whole. etcd stores objects of 1.5 MiB (`--max-request-bytes`), Go writes one byte as six
/// in JSON (`<` as `\u003c`), and an update carries the object twice: 18 MiB and an envelope.
pub const MAX_BODY: usize = 20 << 20;

/// A bound on the bytes of bodies in memory.
#[derive(Clone, Debug)]
pub struct Limits {
    held: Arc<AtomicUsize>,
    most: usize,
}

/// Room for the bytes of one body, growing as they arrive; given back when dropped.
#[derive(Debug)]
pub struct Room {
    limits: Limits,
    bytes: usize,
}

impl Default for Limits {
    /// 64 MiB: six thousand reviews of 10 kB, or three of the largest.
    fn default() -> Self {
        Limits::new(64 << 20)
    }
}

impl Limits {
    /// At most so many bytes.
    pub fn new(most: usize) -> Limits {
        Limits { held: Arc::default(), most }
    }

    /// Room for a body of which nothing has come yet.
    pub fn enter(&self) -> Room {
        Room { limits: self.clone(), bytes: 0 }
    }
}

impl Room {
    /// Gives back what is above so many bytes.
    pub fn shrink(&mut self, bytes: usize) {
        let freed = self.bytes.saturating_sub(bytes);
        self.limits.held.fetch_sub(freed, Ordering::Relaxed);
        self.bytes -= freed;
    }

    /// Room for so many bytes more. `false` is overload.
    pub fn grow(&mut self, bytes: usize) -> bool {
        let held = self.limits.held.fetch_add(bytes, Ordering::Relaxed);
        let fits = held.saturating_add(bytes) <= self.limits.most;
        if fits {
            self.bytes += bytes;
        } else {
            self.limits.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.limits.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_bind_as_they_arrive_and_are_given_back() {
        let limits = Limits::new(1000);
        let (mut one, mut two) = (limits.enter(), limits.enter());
        assert!(one.grow(10) && one.grow(90));
        assert!(two.grow(900) && !two.grow(1));
        drop(one);
        assert!(two.grow(100), "the first has left");
        assert!(!limits.enter().grow(1) && !two.grow(usize::MAX - 2000));
        drop(two);
        assert!(limits.enter().grow(1000), "all of it is back");
    }
}
