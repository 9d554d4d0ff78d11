//! The lives of an application's executors as bars of text.

use std::io::{self, Write};

use jiff::Timestamp;

use super::output::plain;
use usher_core::lifecycle::cause_group::CauseGroup;
use usher_report::views::{Lifetime, LifetimeSpan, Scale, Timeline, cause_groups};
use usher_spark::time::age;

/// At most this many executors are drawn: those that exited abnormally and those that do not run, then the latest.
const MAX_BARS: usize = 24;
/// The columns of a bar in a terminal that is wide enough.
const WIDTH: usize = 60;
/// The columns of a bar in any terminal.
const LEAST_WIDTH: usize = 10;

/// What a report is drawn on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Screen {
    /// Its width; the greatest number where lines may be of any length.
    pub(super) columns: usize,
    /// Whether it has colors.
    pub(super) color: bool,
}

/// What is drawn of a life at one place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cell {
    Nothing,
    Pending,
    Running,
}

/// Draws the lives, each in a line: requested or starting `·`, running `█`, then how it ended ([`mark`]), `>` if it has not, and the
/// cause. A line fits the screen, and with colors has that of its mark.
pub(super) fn draw(timeline: &Timeline, now: Timestamp, screen: Screen, out: &mut dyn Write) -> io::Result<()> {
    let Some(Scale { lifetimes, begin, end }) = timeline.scale(now, None) else { return Ok(()) };
    let drawn = chosen(&lifetimes);
    let name = |lifetime: &Lifetime| lifetime.id.map_or_else(|| lifetime.pod.clone(), |id| format!("exec {id}"));
    let width = drawn.iter().map(|(lifetime, _)| name(lifetime).chars().count()).max().unwrap_or_default();
    let why = |lifetime: &Lifetime| plain(lifetime.cause.as_deref().unwrap_or(&lifetime.state));
    let longest = drawn.iter().map(|(lifetime, _)| why(lifetime).chars().count()).max().unwrap_or_default();
    // The indent, two blanks, the mark and the blank after it.
    let bars = screen.columns.saturating_sub(width + longest + 8).clamp(LEAST_WIDTH, WIDTH);
    let column = |at: i64| usize::try_from((at - begin) * (bars as i64 - 1) / (end - begin)).unwrap_or_default();
    writeln!(
        out,
        "  executors of {}/{}, from {} to {} ago",
        plain(&timeline.namespace),
        plain(&timeline.app),
        age(now.as_second() - begin),
        age(now.as_second() - end)
    )?;
    for (lifetime, span) in &drawn {
        let mut cells = vec![Cell::Nothing; bars];
        let (from, to) = (column(span.created), column(span.end));
        let runs_from = span.started.map(column);
        for (at, cell) in cells.iter_mut().enumerate().take(to + 1).skip(from) {
            *cell = if runs_from.is_some_and(|from| at >= from) { Cell::Running } else { Cell::Pending };
        }
        let bar: String = cells
            .iter()
            .take(to + 1)
            .map(|cell| match cell {
                Cell::Nothing => ' ',
                Cell::Pending => '·',
                Cell::Running => '█',
            })
            .collect();
        let living = ('>', if span.started.is_some() { GREEN } else { YELLOW });
        let (mark, paint) = lifetime.cause_group().map_or(living, mark);
        let bar = if screen.color { format!("{paint}{bar}{mark}{RESET}") } else { format!("{bar}{mark}") };
        let pad = " ".repeat(bars - to);
        writeln!(out, "    {:width$}  {bar}{pad}{}", plain(&name(lifetime)), why(lifetime))?;
    }
    let groups = cause_groups(drawn.iter().map(|(lifetime, _)| *lifetime));
    let legend = groups.into_iter().map(|group| format!("{} {}", mark(group).0, group.legend()));
    let legend: Vec<String> = ["· pending", "█ ran", "> lives"].map(str::to_owned).into_iter().chain(legend).collect();
    writeln!(out, "    ({})", legend.join(", "))?;
    let left = timeline.omitted + lifetimes.len() - drawn.len();
    if left > 0 {
        writeln!(out, "    and {left} more")?;
    }
    Ok(())
}

/// How a bar ends for a group of causes, and its color.
fn mark(group: CauseGroup) -> (char, &'static str) {
    match group {
        CauseGroup::Expected => ('|', GREY),
        CauseGroup::Application => ('x', RED),
        CauseGroup::Memory => ('m', MAGENTA),
        CauseGroup::Cluster => ('c', BLUE),
        CauseGroup::Unexplained => ('?', CYAN),
    }
}

const BLUE: &str = "\x1b[34m";
const CYAN: &str = "\x1b[36m";
const MAGENTA: &str = "\x1b[35m";
const RED: &str = "\x1b[31m";
const GREEN: &str = "\x1b[32m";
const YELLOW: &str = "\x1b[33m";
const GREY: &str = "\x1b[90m";
const RESET: &str = "\x1b[0m";

/// The lives that are drawn, in their order.
fn chosen<'l>(lifetimes: &'l [(&'l Lifetime, LifetimeSpan)]) -> Vec<&'l (&'l Lifetime, LifetimeSpan)> {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    let is_dull = |at: &usize| {
        lifetimes
            .get(*at)
            .is_none_or(|(lifetime, span)| !lifetime.abnormal && (lifetime.ended.is_some() || span.started.is_some()))
    };
    order.sort_by_key(|at| (is_dull(at), std::cmp::Reverse(*at)));
    order.truncate(MAX_BARS);
    order.sort_unstable();
    order.into_iter().filter_map(|at| lifetimes.get(at)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(id: u64, times: (i64, Option<i64>, Option<i64>), cause: Option<&str>) -> Lifetime {
        let time = |seconds: i64| Timestamp::from_second(seconds).expect("a time").to_string();
        Lifetime {
            pod: format!("e-{id}"),
            id: Some(id),
            created: time(times.0),
            started: times.1.map(time),
            ended: times.2.map(time),
            state: "running".to_owned(),
            cause: cause.map(str::to_owned),
            abnormal: cause == Some("evicted"),
        }
    }

    fn drawn(executors: Vec<Lifetime>, color: bool) -> String {
        drawn_on(usize::MAX, executors, color)
    }

    fn drawn_on(columns: usize, executors: Vec<Lifetime>, color: bool) -> String {
        let timeline =
            Timeline { namespace: "ns".to_owned(), app: "app-1".to_owned(), executors, ..Timeline::default() };
        let mut out = Vec::new();
        let screen = Screen { columns, color };
        draw(&timeline, Timestamp::from_second(600).expect("a time"), screen, &mut out).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn each_executor_is_a_bar_from_its_creation_to_its_exit() {
        let text = drawn(
            vec![
                lifetime(1, (0, Some(60), Some(300)), Some("evicted")),
                lifetime(2, (300, Some(360), None), None),
                lifetime(3, (540, None, None), None),
            ],
            false,
        );
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "  executors of ns/app-1, from 10m to 0s ago");
        assert_eq!(lines[1], format!("    exec 1  {}{}c{}evicted", "·".repeat(5), "█".repeat(25), " ".repeat(31)));
        assert_eq!(lines[2], format!("    exec 2  {}{}{}> running", " ".repeat(29), "·".repeat(6), "█".repeat(25)));
        assert!(lines[3].ends_with("·······> running") && !lines[3].contains('█'), "{}", lines[3]);
        assert_eq!(lines[4], "    (· pending, █ ran, > lives, c ended by its node or the cluster)");
        let colored = drawn(vec![lifetime(1, (0, Some(60), Some(300)), Some("evicted"))], true);
        assert!(colored.contains(BLUE) && colored.contains(RESET) && !text.contains('\x1b'));
    }

    #[test]
    fn bars_take_the_room_that_a_terminal_has() {
        let lifetimes =
            || vec![lifetime(1, (0, Some(60), Some(300)), Some("evicted")), lifetime(2, (300, None, None), None)];
        let widths = |columns: usize| -> Vec<usize> {
            let text = drawn_on(columns, lifetimes(), false);
            text.lines().skip(1).take(2).map(|line| line.chars().count()).collect()
        };
        assert_eq!((widths(60), widths(70)), (vec![60, 60], vec![70, 70]));
        assert!(
            drawn_on(20, lifetimes(), false).contains("exec 2      ······> running"),
            "{}",
            drawn_on(20, lifetimes(), false)
        );
        assert_eq!(drawn_on(400, lifetimes(), false), drawn(lifetimes(), false));
    }

    #[test]
    fn many_executors_are_cut_to_those_in_trouble_and_the_latest() {
        let mut all: Vec<Lifetime> =
            (0..100).map(|id| lifetime(id, (10, Some(20), Some(30)), Some("completed"))).collect();
        all[5] = lifetime(5, (10, Some(20), Some(30)), Some("evicted"));
        let text = drawn(all, false);
        assert!(text.contains("exec 5 ") && text.contains("exec 99") && !text.contains("exec 6 "), "{text}");
        assert!(text.ends_with("and 76 more\n") && text.lines().count() == 27, "{text}");
    }

    #[test]
    fn odd_times_draw_something() {
        // The node's clock is ahead, or behind; nothing is known.
        let text = drawn(
            vec![
                lifetime(1, (500, Some(5000), Some(100)), None),
                lifetime(2, (9000, None, None), None),
                lifetime(3, (600, None, None), None),
            ],
            false,
        );
        assert_eq!(text.lines().count(), 5, "{text}"); // One has ended, so there is a legend.
        assert_eq!(drawn(Vec::new(), false), "");
    }
}
