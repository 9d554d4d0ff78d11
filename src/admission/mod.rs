//! Road A: the bytes of a review in, the bytes of an answer out. Pure: the answer comes from the review, the policy and
//! the snapshot, so it is the same under reinvocation and dry run, and no API call is on the way.
//!
//! [`request`] reads, [`decide`](mod@decide) decides, [`mutation`] is what is to change, [`patch`] says it as RFC 6902,
//! [`response`] writes the answer. [`validate`] judges what became of a pod, and changes of it;
//! [`admit`](mod@admit) does both in one call.

pub mod admit;
mod cel;
pub mod decide;
pub mod decision;
pub mod fallback;
pub mod head;
pub mod mutation;
pub mod patch;
pub mod request;
pub mod response;
mod seat;
mod sign;
pub mod validate;
pub mod validating_policy;

pub use admit::{admit, admit_head, admit_in_part};
pub use decide::decide;
pub use decision::Decision;
pub use mutation::Mutation;
pub use request::{BadReview, Operation, Review, lean, lean_for_judging};
pub use validate::{Bench, judge};

use crate::json::Lean;
use crate::policy::Policies;
use crate::snapshot::Snapshot;

/// The whole road: review bytes, made [`lean`], to decision and response bytes.
pub fn answer<'a>(
    lean: &'a Lean<'a>,
    snapshot: &Snapshot,
    policies: &'a Policies,
) -> Result<(Decision<'a>, Vec<u8>), BadReview> {
    let review = request::parse(lean)?;
    let decision = decide(&review, snapshot, policies);
    let bytes = response::write(&review, &decision);
    Ok((decision, bytes))
}
