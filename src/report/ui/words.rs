//! Sentences for people in place of the words of JSON and metrics. A word that is not known, as of a replica of a later version, is
//! shown as it is.

use usher_core::lifecycle::cause::Cause;
use usher_core::nodes::FaultKind;
use usher_core::policy::RecoveryRule;
use usher_core::recovery::cost::WasteCause;

/// What happened to an executor that exited.
pub(super) fn cause(word: &str) -> &str {
    Cause::of(word).map_or(word, |cause| cause.phrase())
}

/// Why an executor did no work, or the rule that ended that.
pub(super) fn waste(word: &str) -> &str {
    let rule = || RecoveryRule::of(word).map(RecoveryRule::text);
    WasteCause::of(word).map(WasteCause::text).or_else(rule).unwrap_or(word)
}

/// What a node did to an executor.
pub(super) fn fault(word: &str) -> &str {
    FaultKind::of(word).map_or(word, |kind| kind.text())
}
