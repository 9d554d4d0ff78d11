//! What is wrong with a policy file, and where.

use std::fmt;

use serde_saphyr::Location;

/// Why a file is rejected.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    /// It cannot be read.
    #[error("cannot read the policy file {path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// Its content is invalid: every error that was found, in the order of their lines.
    #[error("{}", joined(.0))]
    Wrong(Vec<Wrong>),
}

fn joined(all: &[Wrong]) -> String {
    all.iter().map(Wrong::to_string).collect::<Vec<_>>().join("\n")
}

/// An error and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Line, from 1; 0 when unknown.
    pub line: u64,
    /// Column, from 1.
    pub column: u64,
    /// The key's path, such as `policies[0].gang.name`.
    pub path: String,
    /// The error, and what was expected.
    pub message: String,
    /// The text of the line.
    pub source: String,
}

impl Wrong {
    pub(super) fn new(text: &str, at: Location, path: &str, message: String) -> Wrong {
        let source = usize::try_from(at.line()).ok().and_then(|line| text.lines().nth(line.checked_sub(1)?));
        Wrong {
            line: at.line(),
            column: at.column().max(1),
            path: path.to_owned(),
            message,
            source: source.unwrap_or_default().to_owned(),
        }
    }
}

impl Wrong {
    /// Whether it is about this key, or a part of it.
    pub(super) fn concerns(&self, path: &str) -> bool {
        self.path.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { line, column, path, message, source } = self;
        if *line > 0 {
            write!(f, "line {line}, column {column}: ")?;
        }
        if !path.is_empty() && path != "." {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)?;
        if !source.trim().is_empty() {
            write!(
                f,
                "\n  {line} | {source}\n  {:width$} | {:>column$}",
                "",
                "^",
                width = line.to_string().len(),
                column = *column as usize
            )?;
        }
        Ok(())
    }
}

/// The errors of a text that were found so far.
#[derive(Debug)]
pub(super) struct Errors<'t> {
    pub text: &'t str,
    pub found: Vec<Wrong>,
}

impl Errors<'_> {
    pub(super) fn add(&mut self, at: Location, path: &str, message: String) {
        self.found.push(Wrong::new(self.text, at, path, message));
    }

    /// Whether an error concerns this key, or a part of it.
    pub(super) fn concern(&self, path: &str) -> bool {
        self.found.iter().any(|wrong| wrong.concerns(path))
    }

    /// All of them, in the order of their lines.
    pub(super) fn sorted(mut self) -> Vec<Wrong> {
        self.found.sort_by_key(|wrong| (wrong.line == 0, wrong.line, wrong.column));
        self.found
    }
}
