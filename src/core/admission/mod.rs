//! Admission: from the bytes of a review to the bytes of its response. Pure: the response depends on the review, the
//! policy and the snapshot only, so it is the same under reinvocation and dry run, and needs no API call.
//!
//! [`request`] parses the review, [`mutate`](mod@mutate) decides on [`mutation`]s, [`patch`] writes them as RFC 6902,
//! [`response`] writes the response. [`validate`](mod@validate) validates the final state of a pod, and updates;
//! [`admit`](mod@admit) does both in one call.

pub mod admit;
mod application;
mod avoid;
mod context;
pub mod decision;
mod draft;
pub mod head;
pub mod mutate;
pub mod mutation;
pub mod patch;
pub mod request;
pub mod response;
mod scheduling;
mod sign;
pub mod validate;

pub use admit::{admit, admit_head};
pub use decision::{Decision, Denial, Verdict};
pub use mutate::mutate;
pub use mutation::Mutation;
pub use request::{BadReview, Operation, Review, prune, prune_for_validation};
pub use validate::{ValidationContext, validate};

use crate::policy::Policies;
use crate::snapshot::Snapshot;
use usher_spark::json::Pruned;

/// Parses a review. One of another kind than pods, whose spec may be unlike a pod's, is read as far as its head: nothing is decided
/// about it.
pub fn parse<'a>(pruned: &'a Pruned<'a>) -> Result<Review<'a>, BadReview> {
    match request::parse(pruned) {
        Err(BadReview::Json(error)) => match head::parse(pruned.text()) {
            Ok(other) if !other.is_pod => Ok(other),
            _ => Err(error.into()),
        },
        parsed => parsed,
    }
}

/// From the [`prune`]d bytes of a review to its decision and response bytes, for tests and benchmarks: `usher_server::http` takes the same
/// steps, and may wait for a namespace between them.
pub fn answer<'a>(
    pruned: &'a Pruned<'a>,
    snapshot: &Snapshot,
    policies: &'a Policies,
) -> Result<(Decision<'a>, Vec<u8>), BadReview> {
    let review = parse(pruned)?;
    let decision = mutate(&review, snapshot, policies);
    let bytes = response::write(&review, &decision);
    Ok((decision, bytes))
}
