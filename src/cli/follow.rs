//! Shows what happens to drivers until they have ended: for `watch`, and for `submit` while it waits.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::driver_table::{lines, painted};
use super::live::{frame, room};
use super::output::{self, DRIVER_DELETED, DRIVER_FAILED, INTERRUPTED, OK, Output, one_line, plain, size};
use usher_runtime::clock;
use usher_runtime::shutdown::Interrupt;
use usher_spark::role::Role;
use usher_spark::time::whole_second;
use usher_submit::api::driver_log::{self, LogItem};
use usher_submit::api::drivers::{Seen, Selection};
use usher_submit::submission::{self, Change, DriverStatus, LogStage, Tracker, WatchOutcome};

/// What is shown, and how.
pub(super) struct Follow<'f> {
    pub(super) client: &'f Client,
    pub(super) selection: Selection,
    /// The drivers with whose end it ends; `None`: only Ctrl-C ends it.
    pub(super) until: Option<Vec<DriverStatus>>,
    pub(super) form: Form,
    /// Whether the log of the first of them is printed, too.
    pub(super) log: bool,
}

/// How it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A line for each change.
    Lines,
    /// The same as data: JSON, a line for each; YAML, a document for each; or the submission id.
    Data(Output),
    /// A table that is drawn in place.
    Table,
    /// What spark-submit logs, to standard error.
    Spark {
        /// Of the short form.
        interval: Duration,
    },
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The drivers have ended, and how.
    WatchOutcome(WatchOutcome),
    /// A signal arrived.
    Interrupted,
}

impl Ended {
    /// The exit code. spark-submit's is 0 in any case.
    pub(super) fn code(self, as_spark: bool) -> u8 {
        match self {
            Ended::Interrupted => INTERRUPTED,
            Ended::WatchOutcome(_) if as_spark => OK,
            Ended::WatchOutcome(WatchOutcome::Succeeded) => OK,
            Ended::WatchOutcome(WatchOutcome::Failed) => DRIVER_FAILED,
            Ended::WatchOutcome(WatchOutcome::Deleted) => DRIVER_DELETED,
        }
    }
}

/// Shows it until it ends. Fails if the API server forbids to watch.
pub(super) async fn follow(
    follow: Follow<'_>,
    mut interrupt: Interrupt,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<Ended> {
    let mut view = DriversView::new(&follow);
    let mut log: Option<BoxStream<'static, LogItem>> = None;
    if let Some(driver) = follow.until.iter().flatten().next().filter(|_| follow.log) {
        let (stage, lines) = driver_log::lines(follow.client, driver);
        view.stage = Some((driver.uid.clone(), stage));
        log = Some(lines.boxed());
    }
    view.begin(follow.until.as_deref().unwrap_or_default(), out, err)?;
    let mut seen = follow.selection.watch(follow.client).boxed();
    let period = match follow.form {
        Form::Spark { interval } => interval,
        _ => Duration::from_secs(1),
    };
    let mut ticks = tokio::time::interval(period);
    ticks.tick().await;
    loop {
        out.flush()?;
        let ended = view.outcome();
        if let Some(outcome) = ended.filter(|_| log.is_none()) {
            view.end(out, err)?;
            return Ok(Ended::WatchOutcome(outcome));
        }
        let line = async {
            match &mut log {
                Some(log) => log.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // How the drivers ended may be known: only the log continues.
            () = interrupt.wait() => return Ok(ended.map_or(Ended::Interrupted, Ended::WatchOutcome)),
            event = seen.next() => match event {
                Some(event) => view.see(event, out, err)?,
                // A watch has no end.
                None => anyhow::bail!("nothing to watch"),
            },
            _ = ticks.tick() => view.tick(out, err)?,
            item = line => match item {
                Some(item) => view.log(&item, out, err)?,
                None => log = None,
            },
        }
    }
}

/// So many drivers that were deleted stay in the view of a pattern.
const MAX_GONE: usize = 100;

struct DriversView {
    tracker: Tracker,
    form: Form,
    /// The uids of the drivers with whose end it ends.
    until: Option<Vec<String>>,
    /// The driver whose log is printed, and how far its log can be read.
    stage: Option<(String, watch::Sender<LogStage>)>,
    /// Why it is not up to date.
    problem: Option<String>,
    /// Whether standard output shows a log to people.
    has_terminal: bool,
    has_colors: bool,
}

impl DriversView {
    fn new(follow: &Follow<'_>) -> DriversView {
        let uids = |until: &Vec<DriverStatus>| until.iter().map(|driver| driver.uid.clone()).collect();
        DriversView {
            tracker: Tracker::default(),
            form: follow.form,
            until: follow.until.as_ref().map(uids),
            stage: None,
            problem: None,
            has_terminal: io::stdout().is_terminal(),
            has_colors: output::has_colors(),
        }
    }

    /// How the awaited drivers ended, once all have.
    fn outcome(&self) -> Option<WatchOutcome> {
        self.tracker.outcome(self.until.as_ref()?.iter().map(String::as_str))
    }

    fn begin(&mut self, drivers: &[DriverStatus], out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
        if let (Form::Spark { .. }, Some(driver)) = (self.form, drivers.first()) {
            let (name, app_id) = names(driver);
            writeln!(err, "{}", plain(&submission::waiting(name, app_id, &driver.submission_id)))?;
        }
        for driver in drivers {
            self.driver(driver.clone(), out, err)?;
        }
        Ok(())
    }

    fn see(&mut self, event: Seen, out: &mut dyn Write, err: &mut dyn Write) -> anyhow::Result<()> {
        if !matches!(event, Seen::Interrupted { .. } | Seen::Listing(_)) {
            self.problem = None;
        }
        match event {
            Seen::UpToDate => {}
            Seen::Listing(namespace) => self.tracker.begin_list(namespace.as_deref()),
            Seen::Listed(namespace) => {
                for change in self.tracker.end_list(namespace.as_deref()) {
                    self.change(&change, out, err)?;
                }
                if self.form == Form::Table {
                    self.draw(out)?;
                }
            }
            Seen::Driver(driver) => self.driver(*driver, out, err)?,
            Seen::Deleted(uid) => {
                if let Some(change) = self.tracker.delete(&uid) {
                    self.change(&change, out, err)?;
                }
            }
            Seen::Interrupted { message, is_denied: true } => anyhow::bail!("{message}"),
            Seen::Interrupted { message, .. } => {
                // The error may change while it retries: an API server that starts again may have other certificates.
                if self.problem.as_ref() != Some(&message) && self.form != Form::Table {
                    writeln!(err, "warning: not up to date, trying again: {}", one_line(&message))?;
                }
                self.problem = Some(message);
            }
        }
        if let Some((_, stage)) = self.stage.as_ref().filter(|(uid, _)| self.tracker.is_gone(uid)) {
            stage.send_if_modified(|stage| std::mem::replace(stage, LogStage::Gone) != LogStage::Gone);
        }
        if self.until.is_none() {
            self.tracker.forget_gone(MAX_GONE);
        }
        Ok(())
    }

    fn driver(&mut self, driver: DriverStatus, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        let is_awaited = self.until.iter().flatten().any(|uid| *uid == driver.uid);
        if driver.role != Role::Driver && !is_awaited {
            return Ok(());
        }
        let is_spark = matches!(self.form, Form::Spark { .. });
        if is_spark && !self.tracker.has_ended(&driver.uid) {
            writeln!(err, "{}", plain(&submission::long_status(&driver)))?;
        }
        if let Some((_, stage)) = self.stage.as_ref().filter(|(uid, _)| *uid == driver.uid) {
            let next = LogStage::of(&driver);
            stage.send_if_modified(|stage| std::mem::replace(stage, next.clone()) != next);
        }
        match self.tracker.observe(if is_spark { driver } else { driver.without_pod() }) {
            Some(change) => self.change(&change, out, err),
            None => Ok(()),
        }
    }

    fn change(&self, change: &Change, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        let now = clock::now();
        match self.form {
            Form::Lines if self.stage.is_some() => writeln!(err, "{}", line(change, now, false)),
            Form::Lines => writeln!(out, "{}", line(change, now, self.has_colors)),
            Form::Data(Output::Name) => writeln!(out, "{}", plain(&subject(change).0.submission_id)),
            Form::Data(output) => data(output, &event(change, now), out),
            // The next tick draws it.
            Form::Table | Form::Spark { .. } => Ok(()),
        }
    }

    fn log(&self, item: &LogItem, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        match item {
            LogItem::Text(text) if let Form::Data(output) = self.form => {
                let line = String::from_utf8_lossy(text);
                let line = line.strip_suffix('\n').unwrap_or(&line);
                data(output, &json!({"time": time(clock::now()), "event": "log", "line": line}), out)
            }
            LogItem::Text(text) if self.has_terminal => {
                let text = String::from_utf8_lossy(text).replace("\r\n", "\n").replace('\r', "\n");
                write!(out, "{}", plain(&text))
            }
            // A file, or another program, gets what the driver wrote.
            LogItem::Text(text) => out.write_all(text),
            LogItem::Interrupted(why) => {
                writeln!(err, "warning: the driver's log is interrupted, trying again: {}", one_line(why))
            }
            LogItem::Problem(why) => {
                writeln!(err, "warning: the driver's log is incomplete: it cannot be read: {}", one_line(why))
            }
        }
    }

    fn tick(&self, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        match self.form {
            Form::Table => self.draw(out),
            Form::Spark { .. } => self.short(err),
            Form::Lines | Form::Data(_) => Ok(()),
        }
    }

    fn short(&self, err: &mut dyn Write) -> io::Result<()> {
        for (driver, _) in self.tracker.drivers() {
            writeln!(err, "{}", plain(&submission::short_status(names(driver).1, driver.phase.as_deref())))?;
        }
        Ok(())
    }

    fn end(&self, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        match self.form {
            Form::Table => self.draw(out),
            Form::Spark { .. } => {
                // It is printed whenever the wait ends.
                self.short(err)?;
                for (driver, _) in self.tracker.drivers() {
                    let (name, app_id) = names(driver);
                    for line in submission::finished(name, app_id, &driver.submission_id, Some(driver)) {
                        writeln!(err, "{}", plain(&line))?;
                    }
                }
                Ok(())
            }
            Form::Lines | Form::Data(_) => Ok(()),
        }
    }

    fn draw(&self, out: &mut dyn Write) -> io::Result<()> {
        let now = clock::now();
        let old = self.problem.as_ref().map(|why| format!("; not up to date, trying again: {}", one_line(why)));
        let status = format!("{}; Ctrl-C ends{}", time(now), old.unwrap_or_default());
        let shown = self.tracker.drivers().map(|(driver, outcome)| match outcome {
            Some(WatchOutcome::Deleted) => (driver, "deleted"),
            _ => (driver, driver.state),
        });
        let mut all: Vec<(&DriverStatus, &str)> = shown.collect();
        let key = |(driver, state): &(&DriverStatus, &str)| {
            (driver.is_over || *state == "deleted", driver.submission_id.clone())
        };
        all.sort_by_cached_key(key);
        let (width, height) = size();
        let room = room(height);
        let lines = lines(all.iter().copied().take(room), width.into(), self.has_colors);
        let left_out = all.len().saturating_sub(room);
        out.write_all(frame(&status, &lines, left_out, (width, height)).as_bytes())
    }
}

/// The names that spark-submit prints: of the application, and its id.
fn names(driver: &DriverStatus) -> (&str, &str) {
    (driver.app_name.as_deref().unwrap_or("spark"), driver.app_id.as_deref().unwrap_or("N/A"))
}

fn time(now: Timestamp) -> String {
    whole_second(now).to_string()
}

fn line(change: &Change, now: Timestamp, has_colors: bool) -> String {
    let (driver, state, detail) = match change {
        Change::State(driver) => (driver, driver.state, driver.detail()),
        Change::Deleted(driver) => (
            driver,
            "deleted",
            driver.phase.as_ref().map_or_else(String::new, |phase| format!("its phase was {phase}")),
        ),
    };
    let before = format!("{}  {}  ", time(now), driver.submission_id);
    let text = one_line(format!("{before}{state:11}  {detail}").trim_end());
    if has_colors { painted(&text, before.chars().count(), state) } else { text }
}

/// The driver, and what happened to it in a word.
fn subject(change: &Change) -> (&DriverStatus, &'static str) {
    match change {
        Change::State(driver) => (driver, "state"),
        Change::Deleted(driver) => (driver, "deleted"),
    }
}

/// Writes an event as a line of JSON, or as a document of YAML.
fn data(output: Output, event: &Value, out: &mut dyn Write) -> io::Result<()> {
    match output {
        Output::Yaml => write!(out, "---\n{}", serde_saphyr::to_string(event).map_err(io::Error::other)?),
        Output::Name => Ok(()),
        Output::Json | Output::Text | Output::Wide => writeln!(out, "{event}"),
    }
}

fn event(change: &Change, now: Timestamp) -> Value {
    let (driver, event) = subject(change);
    let mut value = json!({"time": time(now), "event": event});
    if let (Some(value), Ok(Value::Object(driver))) = (value.as_object_mut(), serde_json::to_value(driver)) {
        value.extend(driver);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> DriverStatus {
        let pod = json!({"metadata": {"namespace": "n", "name": "d", "uid": "u", "labels": {"spark-role": "driver"}},
            "spec": {"containers": [{"name": "spark-kubernetes-driver"}]}, "status": {"phase": "Failed", "reason": "Evicted"}});
        DriverStatus::read(&pod.to_string()).unwrap()
    }

    #[test]
    fn change_is_one_line_or_one_json_object() {
        let now = "2026-11-25T03:00:00.7Z".parse().unwrap();
        let failed = Box::new(failed());
        assert_eq!(line(&Change::State(failed.clone()), now, false), "2026-11-25T03:00:00Z  n:d  failed       Evicted");
        assert_eq!(
            line(&Change::Deleted(failed.clone()), now, false),
            "2026-11-25T03:00:00Z  n:d  deleted      its phase was Failed"
        );
        let event = event(&Change::State(failed), now);
        let written = |output| {
            let mut out = Vec::new();
            data(output, &event, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let yaml = written(Output::Yaml);
        assert!(yaml.starts_with("---\n") && yaml.contains("\nsubmissionId: ") && yaml.ends_with('\n'), "{yaml}");
        assert_eq!(written(Output::Json).lines().count(), 1);
        assert_eq!(
            (&event["event"], &event["submissionId"], &event["state"]),
            (&json!("state"), &json!("n:d"), &json!("failed"))
        );
    }

    #[test]
    fn exit_code_says_how_the_driver_ended() {
        for (ended, code, sparks) in [
            (Ended::WatchOutcome(WatchOutcome::Succeeded), 0, 0),
            (Ended::WatchOutcome(WatchOutcome::Failed), 3, 0),
            (Ended::WatchOutcome(WatchOutcome::Deleted), 4, 0),
            (Ended::Interrupted, 130, 130),
        ] {
            assert_eq!((ended.code(false), ended.code(true)), (code, sparks));
        }
    }
}
