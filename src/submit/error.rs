//! Why an application cannot be submitted.

/// An error in the words of spark-submit, where it has some, so that a user who searches for them finds what Spark's users found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SubmitError(pub(super) String);

impl SubmitError {
    /// An error about what was expected instead.
    pub fn expected(what: &str) -> SubmitError {
        SubmitError(format!("expected {what}"))
    }

    pub(super) fn new(text: impl Into<String>) -> SubmitError {
        SubmitError(text.into())
    }
}

/// What a step of a submission returns.
pub type Result<T> = std::result::Result<T, SubmitError>;

/// Fails with these words unless a condition holds.
pub(super) fn require(condition: bool, text: impl FnOnce() -> String) -> Result<()> {
    if condition { Ok(()) } else { Err(SubmitError(text())) }
}
