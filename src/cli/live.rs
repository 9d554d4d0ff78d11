//! A view that is shown until Ctrl-C: on a terminal it is drawn in place, in a pipe it is printed whenever it has changed.

use std::io::{self, Write};
use std::time::Duration;

use super::output::{OK, failed, is_screen, plain, size};
use usher_runtime::clock;
use usher_runtime::shutdown::Signals;
use usher_spark::text::first_line;

/// What is shown.
pub(super) struct LiveView {
    /// Differs if something other than the time has changed.
    pub(super) content: String,
    /// For people; a line has no line breaks.
    pub(super) lines: Vec<String>,
}

/// Reads the view again and again. With `in_place`, a terminal shows the latest view only; otherwise each view is printed after the
/// one before, as in a pipe. Returns when a signal arrives, or if the first read fails; after a later failure it reads again.
pub(super) async fn show(
    period: Duration,
    in_place: bool,
    mut read: impl AsyncFnMut() -> anyhow::Result<LiveView>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> io::Result<u8> {
    let mut signals = Signals::listen().map_err(io::Error::other)?;
    let in_place = in_place && is_screen();
    let mut last: Option<LiveView> = None;
    let mut warned = false;
    loop {
        let read = tokio::select! {
            read = read() => read,
            _ = signals.next() => return Ok(OK),
        };
        let error = match read {
            Ok(view) => {
                let is_new = last.as_ref().is_none_or(|last| last.content != view.content);
                if !in_place && is_new {
                    view.lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
                }
                last = Some(view);
                warned = false;
                None
            }
            Err(error) if last.is_none() => return failed(err, &error),
            Err(error) => Some(plain(&format!("{error:#}"))),
        };
        if let Some(error) = error.as_ref().filter(|_| !in_place && !warned) {
            writeln!(err, "warning: not up to date, trying again: {error}")?;
            warned = true;
        }
        if let Some(view) = last.as_ref().filter(|_| in_place) {
            let status = match &error {
                None => format!("{}  every {} s; Ctrl-C ends", time_of_day(), period.as_secs()),
                Some(error) => format!("{}  not up to date, trying again: {error}", time_of_day()),
            };
            out.write_all(frame(&status, &view.lines, 0, size()).as_bytes())?;
        }
        out.flush()?;
        tokio::select! {
            () = tokio::time::sleep(period) => {}
            _ = signals.next() => return Ok(OK),
        }
    }
}

fn time_of_day() -> String {
    clock::now().to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S").to_string()
}

/// The characters that draw the view over the last one, on a terminal of this width and height. `left_out` is the number of lines that are
/// not in `lines`, because the terminal has no room for them.
pub(super) fn frame(status: &str, lines: &[String], left_out: usize, (width, height): (u16, u16)) -> String {
    let (width, room) = (usize::from(width), room(height));
    let all = lines.len() + left_out;
    let shown = if all > room { room.saturating_sub(1).min(lines.len()) } else { lines.len() };
    let more = (all > shown).then(|| format!("… and {} more", all - shown));
    let all = std::iter::once(status).chain(lines.iter().take(shown).map(String::as_str)).chain(more.as_deref());
    // To the top left; each line is erased to its end, and then everything below.
    let mut text = "\x1b[H".to_owned();
    for line in all {
        // A line with colors is cut before it gets them.
        text.push_str(&if line.contains('\x1b') { line.to_owned() } else { first_line(line, width) });
        text.push_str("\x1b[K\r\n");
    }
    text.push_str("\x1b[J");
    text
}

/// How many lines a view has room for on a terminal of this height.
pub(super) fn room(height: u16) -> usize {
    usize::from(height).saturating_sub(2).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|number| format!("line {number} of many")).collect()
    }

    #[test]
    fn frame_is_never_larger_than_the_terminal() {
        for (count, size) in [(0, (80, 24)), (22, (80, 24)), (23, (80, 24)), (1000, (10, 5)), (3, (1, 1))] {
            let frame = frame("status", &lines(count), 0, size);
            let drawn: Vec<&str> =
                frame.trim_start_matches("\x1b[H").trim_end_matches("\x1b[J").split_terminator("\r\n").collect();
            let height = usize::from(size.1).max(3);
            assert!(drawn.len() < height, "{count} {size:?}: {}", drawn.len());
            let width = |line: &&str| line.trim_end_matches("\x1b[K").chars().count();
            assert!(drawn.iter().map(width).max() <= Some(size.0.into()), "{frame:?}");
        }
    }

    #[test]
    fn frame_says_how_many_lines_are_left_out() {
        assert!(
            frame("s", &lines(22), 0, (80, 24)).contains("line 21 ")
                && !frame("s", &lines(22), 0, (80, 24)).contains("more")
        );
        assert!(frame("s", &lines(23), 0, (80, 24)).contains("… and 2 more"));
        assert!(frame("s", &lines(22), 78, (80, 24)).contains("… and 79 more"));
        assert!(frame("s", &lines(3), 0, (8, 24)).contains("line 0 …"));
    }
}
