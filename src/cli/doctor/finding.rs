//! One line of the report.

use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::output::{has_colors, is_screen, one_line};

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

    /// The same for a terminal.
    fn mark(self) -> &'static str {
        match self {
            Grade::Ok => "✓",
            Grade::Warning => "!",
            Grade::Unchecked => "?",
            Grade::Failed => "✗",
        }
    }

    /// The color of the mark, as a parameter of SGR.
    fn color(self) -> Option<u8> {
        match self {
            Grade::Ok => Some(32),
            Grade::Warning => Some(33),
            Grade::Unchecked => None,
            Grade::Failed => Some(31),
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

/// Prints findings, what does not work first: it is often the cause of the others. On a terminal each has a mark instead of a word.
pub(super) fn print(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    lines(findings, is_screen(), has_colors()).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    out.flush()
}

/// Prints how many checks had which result, and the first one that failed: later ones often follow from it.
pub(super) fn summary(findings: &[Finding], out: &mut dyn Write) -> io::Result<()> {
    let counts = [Grade::Failed, Grade::Unchecked, Grade::Warning, Grade::Ok].map(|grade| {
        let count = findings.iter().filter(|finding| finding.grade == grade).count();
        (count > 0).then(|| format!("{count} {}", grade.as_str()))
    });
    writeln!(out, "\n{}", counts.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
    if let Some(first) = findings.iter().find(|finding| finding.grade == Grade::Failed) {
        writeln!(out, "begin with: {}", one_line(&first.what))?;
    }
    Ok(())
}

fn lines(findings: &[Finding], has_marks: bool, has_colors: bool) -> Vec<String> {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.grade != Grade::Failed);
    let width = if has_marks { 1 } else { 8 };
    let mut all = Vec::new();
    for finding in sorted {
        let word = if has_marks { finding.grade.mark() } else { finding.grade.as_str() };
        let word = format!("{word:<width$}");
        let word = match finding.grade.color().filter(|_| has_colors) {
            Some(color) => format!("\x1b[{color}m{word}\x1b[0m"),
            None => word,
        };
        all.push(format!("{word} {}", one_line(&finding.what)));
        if !finding.fix.is_empty() {
            all.push(format!("{:<width$} → {}", "", one_line(&finding.fix)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_work_comes_first_with_a_mark_on_a_terminal() {
        let findings = [
            Finding::ok("webhook"),
            Finding::warning("old", "renew it"),
            Finding::unchecked("hidden", ""),
            Finding::failed("no\u{1b}[2J\nleader", "start it"),
        ];
        assert_eq!(
            lines(&findings, false, false),
            [
                "failed   no\u{fffd}[2J leader",
                "         → start it",
                "ok       webhook",
                "warning  old",
                "         → renew it",
                "unknown  hidden"
            ]
        );
        let marked = lines(&findings, true, false);
        assert_eq!(marked[..3], ["✗ no\u{fffd}[2J leader", "  → start it", "✓ webhook"]);
        let mut end = Vec::new();
        summary(&findings, &mut end).unwrap();
        let end = String::from_utf8(end).unwrap();
        assert_eq!(end, "\n1 failed, 1 unknown, 1 warning, 1 ok\nbegin with: no\u{fffd}[2J leader\n");
        let colored = lines(&findings, true, true);
        assert!(
            colored[0].starts_with("\x1b[31m✗\x1b[0m no") && colored[2].starts_with("\x1b[32m✓\x1b[0m "),
            "{colored:?}"
        );
    }
}
