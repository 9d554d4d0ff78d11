//! Shared by all commands: output formats, exit codes, and printing of errors.

use std::fmt;
use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use usher_spark::text::steers;

/// Output format; the same for all commands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Output {
    /// For people.
    #[default]
    Text,
    /// For people, with all columns of a table.
    Wide,
    /// JSON.
    Json,
    /// YAML.
    Yaml,
    /// Names only, a line each, as other commands accept them.
    Name,
}

impl Output {
    /// Whether it is text for people.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Output::Text | Output::Wide)
    }

    /// How many columns a line of text has at most: those of the terminal, or any number.
    pub(super) fn columns(self) -> usize {
        if self == Output::Text && is_screen() { size().0.into() } else { usize::MAX }
    }

    /// Writes an answer: as JSON, as YAML, as its names, or as `text` does.
    pub(super) fn write<T: Serialize>(
        self,
        answer: &T,
        names: impl IntoIterator<Item = String>,
        out: &mut dyn Write,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> io::Result<()> {
        match self {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(answer)?),
            Output::Yaml => write!(out, "{}", serde_saphyr::to_string(answer).map_err(io::Error::other)?),
            Output::Name => names.into_iter().try_for_each(|name| writeln!(out, "{}", plain(&name))),
            Output::Text if is_screen() => {
                let mut whole = Vec::new();
                text(&mut whole)?;
                out.write_all(wrapped(&String::from_utf8_lossy(&whole), size().0.into()).as_bytes())
            }
            Output::Text | Output::Wide => text(out),
        }
    }
}

/// Width and height of the terminal.
pub(super) fn size() -> (u16, u16) {
    terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0, height.0))
}

/// The text with lines that fit a screen of this width, but for words that are longer. A line continues under its value, or indented more
/// than it is. Colors have no width.
fn wrapped(text: &str, width: usize) -> String {
    let wrap = |line: &str| {
        if textwrap::core::display_width(line) <= width {
            return line.to_owned();
        }
        let indent = line.len() - line.trim_start().len();
        let column = value_of(line).filter(|_| indent == 2).unwrap_or(indent + 4);
        // A word that fits nowhere moves nothing.
        let max = width.saturating_sub(indent + 4);
        let words = line.split(' ').map(textwrap::core::display_width).filter(|word| *word <= max);
        let hanging = " ".repeat(column.min(width / 2).min(width - words.max().unwrap_or_default()));
        // Names, ids and times stay whole: they are copied.
        let words =
            textwrap::Options::new(width).break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation);
        textwrap::fill(line, words.subsequent_indent(&hanging))
    };
    let mut lines: String = text.lines().map(wrap).collect::<Vec<_>>().join("\n");
    if text.ends_with('\n') {
        lines.push('\n');
    }
    lines
}

/// Where the value begins in `  key       value`.
fn value_of(line: &str) -> Option<usize> {
    const LONGEST_KEY: &str = "executors";
    let key = line.trim_start();
    let blank = key.find("  ").or_else(|| key.starts_with(LONGEST_KEY).then_some(LONGEST_KEY.len()))?;
    Some(line.len() - key.get(blank..)?.trim_start().len())
}

/// Prints that a command has no names to print.
pub(super) fn no_names(err: &mut dyn Write) -> io::Result<u8> {
    wrong(err, "-o text, wide, json or yaml: this command's answer has no names")
}

/// Text from pods is controlled by tenants: removes everything that could control a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if steers(c) && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect()
}

/// Writes one line of a report. Where a tenant's text has several lines, those after the first are indented more than any line of
/// a report: no text can look like a line of its own.
pub(super) fn write_line(out: &mut dyn Write, text: fmt::Arguments<'_>) -> io::Result<()> {
    let text = plain(&text.to_string());
    let mut lines = text.lines().map(str::trim_end);
    writeln!(out, "{}", lines.next().unwrap_or_default())?;
    for line in lines.filter(|line| !line.is_empty()) {
        writeln!(out, "              {line}")?;
    }
    Ok(())
}

/// [`write_line`], with the arguments of `writeln!`.
macro_rules! report_line {
    ($out:expr, $($text:tt)*) => {
        $crate::cli::output::write_line($out, format_args!($($text)*))
    };
}
pub(super) use report_line;

/// The rows with as few as possible of these columns left out, in this order, so that a table of them fits.
pub(super) fn narrowed(rows: Vec<Vec<String>>, columns: usize, mut order: &[usize]) -> Vec<Vec<String>> {
    let mut left_out: Vec<usize> = Vec::new();
    loop {
        let kept = |row: &Vec<String>| {
            let cells = row.iter().enumerate().filter(|(at, _)| !left_out.contains(at));
            cells.map(|(_, cell)| cell.clone()).collect::<Vec<_>>()
        };
        let narrow: Vec<Vec<String>> = rows.iter().map(kept).collect();
        let fits = aligned(&narrow, 0).iter().all(|line| line.chars().count() <= columns);
        match order.split_first().filter(|_| !fits) {
            Some((next, rest)) => (order, _) = (rest, left_out.push(*next)),
            None => return narrow,
        }
    }
}

/// Prints rows as a table. The last `numbers` columns end at the same place, all others begin there.
pub(super) fn table(rows: &[Vec<String>], numbers: usize, out: &mut dyn Write) -> io::Result<()> {
    for line in aligned(rows, numbers) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// The lines of a table.
pub(super) fn aligned(rows: &[Vec<String>], numbers: usize) -> Vec<String> {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if at + numbers >= row.len() { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        one_line(cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A tenant's text as one line.
pub(super) fn one_line(text: &str) -> String {
    plain(&text.replace(['\n', '\t'], " "))
}

/// Whether standard output is a terminal that can be drawn on.
pub(super) fn is_screen() -> bool {
    io::stdout().is_terminal() && variable("TERM").is_none_or(|term| term != "dumb")
}

#[expect(clippy::disallowed_methods, reason = "variables that describe the terminal, and no settings")]
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name)
}

/// Whether standard output has colors: a terminal does, unless `NO_COLOR` is set (<https://no-color.org>).
pub(super) fn has_colors() -> bool {
    is_screen() && variable("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The command succeeded.
pub(crate) const OK: u8 = 0;

/// The answer is no, or an operation failed.
pub(crate) const FAILED: u8 = 1;

/// The input cannot be read.
pub(crate) const UNREADABLE: u8 = 2;

/// An application failed.
pub(crate) const DRIVER_FAILED: u8 = 3;

/// An application's driver was deleted before it ended.
pub(crate) const DRIVER_DELETED: u8 = 4;

/// An application was submitted, but how it ends is not known: it cannot be watched, or its output cannot be written.
pub(crate) const UNKNOWN_END: u8 = 5;

/// Ctrl-C ended the command: 128 and the number of SIGINT, as shells do.
pub(crate) const INTERRUPTED: u8 = 130;

/// Prints what the arguments should have been.
pub(super) fn wrong(err: &mut dyn Write, expected: &str) -> io::Result<u8> {
    writeln!(err, "error: expected {expected}")?;
    Ok(UNREADABLE)
}

/// Prints why the input cannot be read.
pub(super) fn unreadable(err: &mut dyn Write, error: &dyn fmt::Display) -> io::Result<u8> {
    writeln!(err, "error: {}", plain(&error.to_string()))?;
    Ok(UNREADABLE)
}

/// Creates a runtime for commands that use the network; `work` runs until it is done.
pub(super) fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(work)
}

/// Prints an error with its causes.
pub(super) fn failed(err: &mut dyn Write, error: &anyhow::Error) -> io::Result<u8> {
    writeln!(err, "error: {}", plain(&format!("{error:#}")))?;
    Ok(FAILED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_several_lines_cannot_look_like_a_line_of_a_report() {
        let mut out = Vec::new();
        report_line!(&mut out, "  detail    {}", "exited\n  cause     node: forged\n\n\u{1b}[2Jx\n").unwrap();
        let expected = "  detail    exited\n                cause     node: forged\n              \u{fffd}[2Jx\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn long_lines_continue_under_their_value_and_short_ones_stay() {
        let text = "team-a/etl\n  lacks     2 of 3 executors (spark.executor.instances), since now\n    2 gang: 5 of 8 executors exist, and more\n\n\u{1b}[31m✗\u{1b}[0m the webhook does not answer: connection refused\n";
        let expected = "team-a/etl\n  lacks     2 of 3 executors\n            (spark.executor.instances),\n            since now\n    2 gang: 5 of 8 executors exist, and\n        more\n\n\u{1b}[31m✗\u{1b}[0m the webhook does not answer:\n    connection refused\n";
        assert_eq!(wrapped(text, 40), expected);
        assert_eq!(wrapped(text, 200), text);
        let key = "  at        scheduling.example/queue-name=analytics; no owner";
        let left = "  at\n      scheduling.example/queue-name=analytics;\n      no owner";
        assert_eq!(wrapped(key, 46), left, "as far left as its words require");
        let value = "  detail      https://a-name.example/that/is/longer/than/the/screen and more";
        assert!(wrapped(value, 40).ends_with("\n              and more"), "{}", wrapped(value, 40));
        let name = "a-name-that-is-longer-than-the-whole-screen and more";
        assert_eq!(wrapped(name, 20), "a-name-that-is-longer-than-the-whole-screen\n    and more");
        assert_eq!(wrapped("", 20), "");
    }

    #[test]
    fn table_leaves_out_columns_only_where_it_does_not_fit() {
        let rows = || vec![vec!["node-1".to_owned(), "v1.37.0".to_owned(), "suspect".to_owned(), "3".to_owned()]];
        let shown = |columns: usize| aligned(&narrowed(rows(), columns, &[1, 2]), 1).join("\n");
        assert_eq!(
            [27, 26, 18, 17].map(shown),
            ["node-1  v1.37.0  suspect  3", "node-1  suspect  3", "node-1  suspect  3", "node-1  3"]
        );
        assert_eq!(shown(2), "node-1  3", "what stays has to wrap");
    }

    #[test]
    fn cell_of_a_table_is_one_line() {
        let mut out = Vec::new();
        table(&[vec!["a\nb".to_owned(), "c".to_owned()]], 0, &mut out).unwrap();
        assert_eq!(out, b"a b  c\n");
    }

    #[test]
    fn error_controls_no_terminal() {
        let mut err = Vec::new();
        failed(&mut err, &anyhow::anyhow!("no pod \u{1b}[31mx")).unwrap();
        assert_eq!(String::from_utf8(err).unwrap(), "error: no pod \u{fffd}[31mx\n");
    }
}
