//! Up to where a log was read, so that reading continues there after an interruption without losing or repeating a line.

use std::collections::VecDeque;

use jiff::Timestamp;

use super::driver::DriverStatus;
use usher_spark::hash::hash_of;
use usher_spark::time::whole_second;

/// How far the log of a driver's container can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogStage {
    /// The container has not started.
    Waiting,
    /// The container with this name runs.
    Started(Option<String>),
    /// It has exited: its log is complete.
    Over(Option<String>),
    /// It never started, and never will: its pod was rejected, or its container could not start.
    Never,
    /// The pod was deleted.
    Gone,
}

impl LogStage {
    /// Whether more may be written to the log.
    pub fn is_live(&self) -> bool {
        matches!(self, LogStage::Waiting | LogStage::Started(_))
    }

    /// The stage of a pod that exists.
    pub fn of(driver: &DriverStatus) -> LogStage {
        match (driver.started.is_some(), driver.is_over) {
            (false, false) => LogStage::Waiting,
            // An exit without a start: the kubelet lost sight of the container.
            (false, true) if driver.exit_code.is_some() => LogStage::Over(driver.container.clone()),
            (false, true) => LogStage::Never,
            (true, false) => LogStage::Started(driver.container.clone()),
            (true, true) => LogStage::Over(driver.container.clone()),
        }
    }
}

/// A line that was read: its time, and a hash of its text.
type Key = (Timestamp, u64);

/// So many lines are remembered however old they are: the clock of a node may be set back.
const REMEMBERED: usize = 10_000;
/// At most so many are remembered of one second.
const MAX: usize = 1 << 20;

/// The position in a log whose lines begin with their times (`timestamps=true`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The lines read last, in the order of the log.
    recent: VecDeque<Key>,
    /// After reading began again: the lines that come a second time, in the order of the log.
    expected: VecDeque<Key>,
    /// The last line without a time.
    untimed: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLine<'l> {
    /// It is new.
    New(&'l [u8]),
    /// It is new, but has no time: an error of the kubelet, and not of the driver.
    Untimed(&'l [u8]),
    /// It was read before.
    Known,
}

impl LogPosition {
    /// The time from which the log has to be read again; `None` from its beginning. It is the whole second before the last line: the API
    /// takes whole seconds only, and a kubelet leaves out each line that is older.
    pub fn since(&self) -> Option<Timestamp> {
        self.recent.back().map(|(time, _)| whole_second(*time))
    }

    /// Reading begins again at [`LogPosition::since`]: lines that were read come again.
    pub fn resume(&mut self) {
        let since = self.since();
        self.expected = self.recent.iter().filter(|(time, _)| Some(*time) >= since).copied().collect();
    }

    /// The last line was only read in part: it counts as unread.
    pub fn forget_last(&mut self) {
        self.recent.pop_back();
    }

    /// Reads a line. One without a time is known if the last such line was equal.
    pub fn read<'l>(&mut self, line: &'l [u8]) -> LogLine<'l> {
        let end = line.iter().position(|byte| matches!(byte, b' ' | b'\n' | b'\r')).unwrap_or(line.len());
        let (stamp, rest) = line.split_at(end);
        let Some(time) = time(stamp) else {
            let is_known = self.untimed.as_deref() == Some(line);
            self.untimed = Some(line.to_vec());
            return if is_known { LogLine::Known } else { LogLine::Untimed(line) };
        };
        // The kubelet writes a space after the time even if the line is empty; some runtimes do not.
        let text = rest.strip_prefix(b" ").unwrap_or(rest);
        let key = (time, hash_of(text));
        if let Some(at) = self.expected.iter().position(|expected| *expected == key) {
            self.expected.drain(..=at);
            return LogLine::Known;
        }
        self.recent.push_back(key);
        let since = whole_second(time);
        let is_old = |key: &Key| key.0 < since;
        while self.recent.len() > MAX || (self.recent.len() > REMEMBERED && self.recent.front().is_some_and(is_old)) {
            self.recent.pop_front();
        }
        LogLine::New(text)
    }
}

fn time(text: &[u8]) -> Option<Timestamp> {
    std::str::from_utf8(text).ok().filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LOG: [&str; 8] = [
        "2026-11-25T00:00:00.1Z one\n",
        "2026-11-25T00:00:00.623456789Z two\n",
        "2026-11-25T00:00:00.623456789Z three\n",
        "2026-11-25T00:00:00.623456789Z \n",
        "2026-11-25T00:00:00.7Z  indented\n",
        "2026-11-25T00:00:00.2Z the clock was set back\n",
        "2026-11-25T00:00:01Z\n",
        "2026-11-25T00:00:01.5Z last\n",
    ];
    const TEXTS: [&str; 8] =
        ["one\n", "two\n", "three\n", "\n", " indented\n", "the clock was set back\n", "\n", "last\n"];

    fn read(position: &mut LogPosition, line: &str) -> Option<String> {
        match position.read(line.as_bytes()) {
            LogLine::New(text) | LogLine::Untimed(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
            LogLine::Known => None,
        }
    }

    /// What a kubelet sends after an interruption.
    fn again<'l>(position: &mut LogPosition, log: &'l [String]) -> impl Iterator<Item = &'l String> + use<'l> {
        position.resume();
        let since = position.since();
        log.iter().filter(move |line| time(line.split([' ', '\n']).next().unwrap().as_bytes()) >= since)
    }

    #[test]
    fn every_line_is_read_once_wherever_the_log_is_interrupted() {
        let log = LOG.map(str::to_owned);
        for cut in 0..=LOG.len() {
            let mut position = LogPosition::default();
            let mut all: Vec<String> = log.iter().take(cut).filter_map(|line| read(&mut position, line)).collect();
            let rest: Vec<&String> = again(&mut position, &log).collect();
            all.extend(rest.into_iter().filter_map(|line| read(&mut position, line)));
            assert_eq!(all, TEXTS, "cut after {cut}");
        }
    }

    proptest! {
        /// Whatever the times are, as long as no lines of a whole second lie behind one of a later second.
        #[test]
        fn several_interruptions_lose_and_repeat_no_line(
            millis in prop::collection::vec(0_u32..3000, 0..40), cuts in prop::collection::vec(0_usize..40, 0..4),
        ) {
            let mut millis = millis;
            millis.sort_by_key(|millis| millis / 1000);
            let log: Vec<String> = millis
                .iter()
                .map(|millis| format!("2026-11-25T00:00:0{}.{:03}Z same\n", millis / 1000, millis % 1000))
                .collect();
            let mut position = LogPosition::default();
            let mut lines = 0;
            for cut in cuts.into_iter().chain([log.len()]) {
                let sent: Vec<&String> = again(&mut position, &log).take(cut).collect();
                lines += sent.into_iter().filter_map(|line| read(&mut position, line)).count();
            }
            prop_assert_eq!(lines, log.len());
        }
    }

    #[test]
    fn time_to_read_again_from_is_never_after_the_last_line() {
        let mut position = LogPosition::default();
        read(&mut position, "2026-11-25T00:00:00.999999999Z x\n");
        assert_eq!(position.since(), Some("2026-11-25T00:00:00Z".parse().unwrap()));
    }

    #[test]
    fn line_without_a_time_is_shown_as_it_is() {
        let mut position = LogPosition::default();
        assert_eq!(read(&mut position, "failed to watch file\n").as_deref(), Some("failed to watch file\n"));
        assert_eq!((read(&mut position, "").as_deref(), position.since()), (Some(""), None));
        assert_eq!(position.read(b"\xff\xfe"), LogLine::Untimed(b"\xff\xfe"));
        assert_eq!(position.read(b"\xff\xfe"), LogLine::Known, "the same error again");
    }

    #[test]
    fn line_that_was_cut_is_read_again() {
        let mut position = LogPosition::default();
        assert_eq!(read(&mut position, "2026-11-25T00:00:00Z long").as_deref(), Some("long"));
        position.forget_last();
        position.resume();
        assert_eq!(read(&mut position, "2026-11-25T00:00:00Z long").as_deref(), Some("long"));
    }
}
