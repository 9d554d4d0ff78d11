//! How much may be in flight. API servers retry a review that got 429 with Retry-After within their deadline
//! (WEBHOOKS.md, finding 5), so shedding load is an answer, and cutting a connection is not.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest review: an update carries the object twice, 3 MiB each, and an envelope. controller-runtime takes 7 MiB.
pub const MAX_BODY: usize = 7 << 20;

const KIB: usize = 1024;

/// Bounds on reviews in flight: by number, and by the bytes of their bodies.
#[derive(Clone, Debug)]
pub struct Limits {
    reviews: Arc<Semaphore>,
    kibibytes: Arc<Semaphore>,
}

/// Leave to read and answer one review.
#[derive(Debug)]
pub struct Permit {
    _review: OwnedSemaphorePermit,
    _kibibytes: OwnedSemaphorePermit,
}

impl Default for Limits {
    /// 1,000 reviews, 64 MiB of bodies: at 10 kB a review the number binds, at megabytes the bytes do.
    fn default() -> Self {
        Limits::new(1000, 64 << 20)
    }
}

impl Limits {
    /// At most so many reviews, and so many bytes of bodies.
    pub fn new(reviews: usize, bytes: usize) -> Limits {
        Limits { reviews: Arc::new(Semaphore::new(reviews)), kibibytes: Arc::new(Semaphore::new(bytes / KIB)) }
    }

    /// Leave for a body of this length, the largest when it is not known. `None` is overload.
    pub fn enter(&self, length: Option<u64>) -> Option<Permit> {
        let bytes = length.and_then(|length| usize::try_from(length).ok()).unwrap_or(MAX_BODY).min(MAX_BODY);
        let kibibytes = u32::try_from(bytes.div_ceil(KIB).max(1)).ok()?;
        Some(Permit {
            _review: self.reviews.clone().try_acquire_owned().ok()?,
            _kibibytes: self.kibibytes.clone().try_acquire_many_owned(kibibytes).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_bind() {
        let limits = Limits::new(2, 64 * KIB);
        let (one, two) = (limits.enter(Some(10)).unwrap(), limits.enter(Some(10)).unwrap());
        assert!(limits.enter(Some(10)).is_none(), "two reviews");
        drop((one, two));
        let large = limits.enter(Some(60 * KIB as u64)).unwrap();
        assert!(limits.enter(Some(10 * KIB as u64)).is_none(), "the bytes");
        assert!(limits.enter(None).is_none(), "an unknown length counts as the largest");
        drop(large);
        assert!(limits.enter(Some(60 * KIB as u64)).is_some());
    }
}
