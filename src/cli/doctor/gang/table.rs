//! Observations as data: text for people during the run, JSON for programs at the end.

use std::io::{self, Write};
use std::time::Duration;

use serde_json::{Value, json};

use crate::cli::output::plain;

/// Result of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli::doctor) enum CheckVerdict {
    /// The gang behaved as expected.
    Ok,
    /// The gang did not behave as expected.
    Failed,
    /// The scheduler or the policy does not support the scenario.
    NotApplicable,
    /// The scenario cannot run on this cluster.
    Skipped,
}

impl CheckVerdict {
    fn as_str(self) -> &'static str {
        match self {
            CheckVerdict::Ok => "ok",
            CheckVerdict::Failed => "failed",
            CheckVerdict::NotApplicable => "not applicable",
            CheckVerdict::Skipped => "skipped",
        }
    }
}

/// One observation, and how long it took.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli::doctor) struct Seen {
    pub(super) what: String,
    pub(super) took: Option<Duration>,
}

/// One scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli::doctor) struct Row {
    pub(super) scenario: &'static str,
    pub(super) verdict: CheckVerdict,
    pub(super) seen: Vec<Seen>,
    /// Why the scenario failed, does not apply or was skipped; empty on success.
    pub(super) why: String,
    /// What to do about it; empty when there is nothing to do.
    pub(super) fix: String,
}

const FIRST: usize = 16;
const SECOND: usize = 76;

/// Prints the header of the table.
pub(super) fn head(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<FIRST$}{:<SECOND$}{:>8}", "RESULT", "SCENARIO", "SECONDS")?;
    out.flush()
}

impl Row {
    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "{:<FIRST$}{}", self.verdict.as_str(), self.scenario)?;
        for Seen { what, took } in &self.seen {
            let what = plain(what);
            match took {
                Some(took) => {
                    writeln!(out, "{:<FIRST$}  {what:<width$}{:>8.2}", "", took.as_secs_f64(), width = SECOND - 2)?
                }
                None => writeln!(out, "{:<FIRST$}  {what}", "")?,
            }
        }
        if !self.why.is_empty() {
            writeln!(out, "{:<FIRST$}  {}", "", plain(&self.why))?;
        }
        if !self.fix.is_empty() {
            writeln!(out, "{:<FIRST$}  → {}", "", plain(&self.fix))?;
        }
        // Flushed so that each row is visible while the next scenario runs.
        out.flush()
    }

    pub(super) fn to_json(&self) -> Value {
        let seen = self.seen.iter().map(|Seen { what, took }| json!({"what": what, "seconds": took.map(rounded)}));
        json!({
            "scenario": self.scenario, "result": self.verdict.as_str(), "seen": seen.collect::<Vec<_>>(),
            "why": self.why, "fix": self.fix,
        })
    }
}

/// Rounds to milliseconds, the precision of the polls.
fn rounded(took: Duration) -> f64 {
    (took.as_secs_f64() * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            scenario: "driver deleted",
            verdict: CheckVerdict::Failed,
            seen: vec![
                Seen { what: "all 3 executors are bound".into(), took: Some(Duration::from_micros(250_400)) },
                Seen { what: "no kubelet\u{1b}[2J runs".into(), took: None },
            ],
            why: "executors stay".into(),
            fix: "check the garbage collector".into(),
        }
    }

    #[test]
    fn text_aligns_times_and_replaces_control_characters() {
        let mut out = Vec::new();
        head(&mut out).unwrap();
        row().print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].len(), FIRST + SECOND + 8);
        assert_eq!(lines[1], "failed          driver deleted");
        assert!(lines[2].starts_with("                  all 3 executors are bound") && lines[2].ends_with("    0.25"));
        assert_eq!(lines[2].len(), lines[0].len());
        assert_eq!(lines[3].trim(), "no kubelet\u{fffd}[2J runs");
        assert_eq!(lines[4].trim(), "executors stay");
        assert_eq!(lines[5].trim(), "→ check the garbage collector");
    }

    #[test]
    fn json_has_every_key() {
        assert_eq!(
            row().to_json(),
            json!({"scenario": "driver deleted", "result": "failed", "why": "executors stay", "fix": "check the garbage collector",
                "seen": [{"what": "all 3 executors are bound", "seconds": 0.25}, {"what": "no kubelet\u{1b}[2J runs", "seconds": null}]})
        );
    }
}
