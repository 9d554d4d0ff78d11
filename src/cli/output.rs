//! Shared by all commands: output formats, exit codes, and printing of errors.

use std::io::{self, Write};

use crate::text::steers;

/// Output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// Human-readable text.
    Text,
    /// JSON.
    Json,
}

/// Text from pods is controlled by tenants: removes everything that could control a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Prints rows as a table. The last `numbers` columns end at the same place, all others begin there.
pub(super) fn table(rows: &[Vec<String>], numbers: usize, out: &mut dyn Write) -> io::Result<()> {
    let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max();
    for row in rows {
        let cells = row.iter().enumerate().map(|(at, cell)| {
            let width = width(at).unwrap_or_default();
            if at + numbers >= row.len() { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        writeln!(out, "{}", plain(cells.collect::<Vec<_>>().join("  ").trim_end()))?;
    }
    Ok(())
}

/// The command succeeded.
pub(crate) const OK: u8 = 0;

/// The answer is no, or an operation failed.
pub(crate) const FAILED: u8 = 1;

/// The input cannot be read.
pub(crate) const UNREADABLE: u8 = 2;

/// Creates a runtime for commands that use the network; `work` runs until it is done.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Prints an error with its causes.
pub(super) fn failed(err: &mut dyn Write, error: &anyhow::Error) -> io::Result<u8> {
    writeln!(err, "error: {error:#}")?;
    Ok(FAILED)
}
