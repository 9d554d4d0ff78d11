//! Readiness: a set of latches, each opened once by the component that it stands for.
//!
//! Readiness depends on the listener and the certificate, and for a short time on the signing key, never on the API server or
//! the Lease: a webhook that cannot reach the API server still answers from the review alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The conditions of readiness.
#[derive(Clone, Debug, Default)]
pub struct Readiness {
    conditions: Vec<(&'static str, Latch)>,
    draining: Latch,
}

/// A condition. Clones are the same latch.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<AtomicBool>);

impl Latch {
    /// Opens the latch: the condition holds from now on.
    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the condition holds.
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Readiness {
    /// Adds a condition and returns its latch.
    pub fn needs(&mut self, name: &'static str) -> Latch {
        let latch = Latch::default();
        self.conditions.push((name, latch.clone()));
        latch
    }

    /// Makes the process not ready, because it is about to stop.
    pub fn drain(&self) {
        self.draining.open();
    }

    /// The conditions that do not hold yet; empty if ready.
    pub fn missing(&self) -> Vec<&'static str> {
        let open = self.conditions.iter().filter(|(_, latch)| !latch.is_open()).map(|(name, _)| *name);
        open.chain(self.draining.is_open().then_some("shutting down")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_every_latch_is_open_and_not_draining() {
        let mut ready = Readiness::default();
        let (a, b) = (ready.needs("listener"), ready.needs("certificate"));
        assert_eq!(ready.missing(), ["listener", "certificate"]);
        a.open();
        assert_eq!(ready.missing(), ["certificate"]);
        b.open();
        assert!(ready.missing().is_empty());
        ready.clone().drain();
        assert_eq!(ready.missing(), ["shutting down"]);
    }
}
