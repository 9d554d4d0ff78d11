//! One line of the report.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::output::plain;

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grade {
    /// As expected.
    Ok,
    /// Needs attention.
    Warning,
    /// Could not be checked.
    Unchecked,
    /// Does not work.
    Failed,
}

impl Grade {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warning => "warning",
            Grade::Unchecked => "unknown",
            Grade::Failed => "failed",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) grade: Grade,
    pub(super) what: String,
    /// What to do about it; empty when there is nothing to do.
    pub(super) fix: String,
}

impl Finding {
    pub(super) fn ok(what: impl Into<String>) -> Finding {
        Finding { grade: Grade::Ok, what: what.into(), fix: String::new() }
    }

    pub(super) fn warning(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade: Grade::Warning, what: what.into(), fix: fix.into() }
    }

    pub(super) fn unchecked(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade: Grade::Unchecked, what: what.into(), fix: fix.into() }
    }

    pub(super) fn failed(what: impl Into<String>, fix: impl Into<String>) -> Finding {
        Finding { grade: Grade::Failed, what: what.into(), fix: fix.into() }
    }

    pub(super) fn to_json(&self) -> Value {
        json!({"result": self.grade.as_str(), "what": self.what, "fix": self.fix})
    }
}

/// The value, or why it could not be read.
pub(super) type Found<T> = Result<T, String>;

/// The value; if it could not be read, adds a finding to `out`.
pub(super) fn readable<'f, T>(found: &'f Found<T>, what: &str, out: &mut Vec<Finding>) -> Option<&'f T> {
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            out.push(Finding::unchecked(
                format!("cannot read {what}: {error}"),
                "run doctor as a user with the permission to read it",
            ));
            None
        }
    }
}

pub(super) fn print(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    for finding in findings {
        writeln!(out, "{:<8} {}", finding.grade.as_str(), plain(&finding.what))?;
        if !finding.fix.is_empty() {
            writeln!(out, "{:<8} → {}", "", plain(&finding.fix))?;
        }
    }
    out.flush()
}
