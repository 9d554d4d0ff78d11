//! The time of unit tests.

use std::sync::LazyLock;
use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "no other Instant can be made; every test of the process has the same")]
static INSTANT: LazyLock<Instant> = LazyLock::new(Instant::now);

/// An instant, always the same.
pub(crate) fn instant() -> Instant {
    *INSTANT
}
