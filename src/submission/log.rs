//! Where a log was read up to, so that reading goes on there after an interruption without losing or repeating a line.

/// The position in a log whose lines begin with their times (`timestamps=true`), in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogPosition {
    /// The time of the last line, as it was written.
    last: String,
    /// How many lines of that time were read.
    lines: usize,
    /// How many of them are still to be skipped after reading began again.
    skip: usize,
}

impl LogPosition {
    /// The time from which the log has to be read again; `None` from its beginning.
    pub fn since(&self) -> Option<&str> {
        Some(self.last.as_str()).filter(|last| !last.is_empty())
    }

    /// Reading begins again at [`LogPosition::since`]: the API takes whole seconds, so lines that were read come again.
    pub fn resume(&mut self) {
        self.skip = self.lines;
    }

    /// The text of a line, unless it was read before. A line without a time, such as an error of the kubelet, is always new.
    pub fn read<'l>(&mut self, line: &'l str) -> Option<&'l str> {
        let Some((time, text)) = line.split_once(' ').filter(|(time, _)| is_time(time)) else {
            // The kubelet writes a space after the time even if the line is empty; some runtimes do not.
            return if is_time(line) { self.read_at(line, "") } else { Some(line) };
        };
        self.read_at(time, text)
    }

    fn read_at<'l>(&mut self, time: &str, text: &'l str) -> Option<&'l str> {
        // Not as text: the fraction has as many digits as it needs.
        match order(time, &self.last) {
            std::cmp::Ordering::Less => return None,
            std::cmp::Ordering::Equal if self.skip > 0 => {
                self.skip -= 1;
                return None;
            }
            std::cmp::Ordering::Equal => self.lines += 1,
            std::cmp::Ordering::Greater => {
                time.clone_into(&mut self.last);
                (self.lines, self.skip) = (1, 0);
            }
        }
        Some(text)
    }
}

fn is_time(text: &str) -> bool {
    text.as_bytes().first().is_some_and(u8::is_ascii_digit) && text.parse::<jiff::Timestamp>().is_ok()
}

fn order(left: &str, right: &str) -> std::cmp::Ordering {
    left.parse::<jiff::Timestamp>().ok().cmp(&right.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: [&str; 6] = [
        "2026-11-25T00:00:00.1Z one",
        "2026-11-25T00:00:00.123456789Z two",
        "2026-11-25T00:00:00.123456789Z three",
        "2026-11-25T00:00:00.123456789Z ",
        "2026-11-25T00:00:00.2Z  indented",
        "2026-11-25T00:00:01Z last",
    ];

    #[test]
    fn every_line_is_read_once_wherever_the_log_is_interrupted() {
        let expected = ["one", "two", "three", "", " indented", "last"];
        for cut in 0..=LOG.len() {
            let mut position = LogPosition::default();
            let mut read: Vec<&str> = LOG.iter().take(cut).filter_map(|line| position.read(line)).collect();
            position.resume();
            // The API server sends everything of that second again.
            read.extend(LOG.iter().filter_map(|line| position.read(line)));
            assert_eq!(read, expected, "cut after {cut}");
        }
    }

    #[test]
    fn line_without_a_time_is_shown_as_it_is() {
        let mut position = LogPosition::default();
        assert_eq!(position.read("failed to watch file"), Some("failed to watch file"));
        assert_eq!((position.read(""), position.since()), (Some(""), None));
        assert_eq!(position.read("2026-11-25T00:00:00Z"), Some(""));
        assert_eq!(position.since(), Some("2026-11-25T00:00:00Z"));
    }
}
