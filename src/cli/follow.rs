//! Shows what happens to drivers until they have ended: for `watch`, and for `submit` while it waits.

use std::io::{self, Write};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::driver_table::rows;
use super::live::frame;
use super::output::{self, DRIVER_DELETED, DRIVER_FAILED, INTERRUPTED, OK, plain};
use crate::cluster::driver_log::{self, LogItem};
use crate::cluster::drivers::{Seen, Selection};
use crate::runtime::clock;
use crate::runtime::shutdown::Signals;
use crate::submission::{self, Change, DriverStatus, Outcome, Tracker};

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
    /// The same as JSON.
    Json,
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
    Outcome(Outcome),
    /// A signal arrived; how many of the drivers had not ended.
    Interrupted(usize),
}

impl Ended {
    /// The exit code. spark-submit's is 0 in any case.
    pub(super) fn code(self, as_spark: bool) -> u8 {
        match self {
            Ended::Interrupted(_) => INTERRUPTED,
            Ended::Outcome(_) if as_spark => OK,
            Ended::Outcome(Outcome::Succeeded) => OK,
            Ended::Outcome(Outcome::Failed) => DRIVER_FAILED,
            Ended::Outcome(Outcome::Deleted) => DRIVER_DELETED,
        }
    }
}

/// Shows it until it ends. Fails if the API server forbids to watch.
pub(super) async fn follow(
    follow: Follow<'_>,
    mut signals: Signals,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> anyhow::Result<Ended> {
    let mut view = View::new(&follow);
    let uids: Vec<String> = follow.until.iter().flatten().map(|driver| driver.uid.clone()).collect();
    let mut log: Option<BoxStream<'static, LogItem>> = match (&follow.until, follow.log) {
        (Some(drivers), true) => drivers.first().map(|driver| driver_log::lines(follow.client, driver).boxed()),
        _ => None,
    };
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
        let ended = follow.until.as_ref().and_then(|_| view.tracker.outcome(uids.iter().map(String::as_str)));
        if let Some(outcome) = ended.filter(|_| log.is_none()) {
            view.end(out, err)?;
            return Ok(Ended::Outcome(outcome));
        }
        let line = async {
            match &mut log {
                Some(log) => log.next().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = seen.next() => match event {
                Some(event) => view.see(event, out, err)?,
                // A watch has no end.
                None => anyhow::bail!("nothing to watch"),
            },
            item = line => match item {
                Some(item) => view.log(item, out, err)?,
                None => log = None,
            },
            _ = ticks.tick() => view.tick(out, err)?,
            _ = signals.next() => {
                let left = view.tracker.drivers().filter(|(_, outcome)| outcome.is_none()).count();
                return Ok(Ended::Interrupted(left));
            }
        }
    }
}

struct View {
    tracker: Tracker,
    form: Form,
    /// Whether standard output has the log.
    log: bool,
    is_old: bool,
}

impl View {
    fn new(follow: &Follow<'_>) -> View {
        View { tracker: Tracker::default(), form: follow.form, log: follow.log, is_old: false }
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
        match event {
            Seen::Listing(namespace) => self.tracker.begin_list(namespace.as_deref()),
            Seen::Listed(namespace) => {
                self.is_old = false;
                for change in self.tracker.end_list(namespace.as_deref()) {
                    self.change(&change, out, err)?;
                }
            }
            Seen::Driver(driver) => {
                self.is_old = false;
                self.driver(*driver, out, err)?;
            }
            Seen::Deleted(uid) => {
                if let Some(change) = self.tracker.delete(&uid) {
                    self.change(&change, out, err)?;
                }
            }
            Seen::Interrupted { message, is_forbidden: true } => anyhow::bail!("{message}"),
            Seen::Interrupted { message, .. } => {
                if !std::mem::replace(&mut self.is_old, true) && self.form != Form::Table {
                    writeln!(err, "warning: not up to date, trying again: {}", plain(&message))?;
                }
            }
        }
        Ok(())
    }

    fn driver(&mut self, driver: DriverStatus, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        if let Form::Spark { .. } = self.form {
            let is_over = self.tracker.drivers().any(|(known, outcome)| known.uid == driver.uid && outcome.is_some());
            if !is_over {
                writeln!(err, "{}", plain(&submission::long_status(&driver)))?;
            }
        }
        match self.tracker.observe(driver) {
            Some(change) => self.change(&change, out, err),
            None => Ok(()),
        }
    }

    fn change(&self, change: &Change, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        let now = clock::now();
        match self.form {
            Form::Lines if self.log => writeln!(err, "{}", plain(&line(change, now))),
            Form::Lines => writeln!(out, "{}", plain(&line(change, now))),
            Form::Json => writeln!(out, "{}", event(change, now)),
            Form::Table => self.draw(out),
            Form::Spark { .. } => Ok(()),
        }
    }

    fn log(&self, item: LogItem, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        match item {
            LogItem::Line(line) if self.form == Form::Json => {
                writeln!(out, "{}", json!({"time": time(clock::now()), "event": "log", "line": line}))
            }
            LogItem::Line(line) => writeln!(out, "{}", plain(&line)),
            LogItem::Problem(problem) => writeln!(err, "warning: cannot read the driver's log: {}", plain(&problem)),
        }
    }

    fn tick(&self, out: &mut dyn Write, err: &mut dyn Write) -> io::Result<()> {
        match self.form {
            Form::Table => self.draw(out),
            Form::Spark { .. } => self.short(err),
            Form::Lines | Form::Json => Ok(()),
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
            Form::Lines | Form::Json => Ok(()),
        }
    }

    fn draw(&self, out: &mut dyn Write) -> io::Result<()> {
        let now = clock::now();
        let old = if self.is_old { "; not up to date, trying again" } else { "" };
        let status = format!("{}; Ctrl-C ends{old}", time(now));
        let drivers = self.tracker.drivers();
        let shown = drivers.map(|(driver, outcome)| match outcome {
            Some(Outcome::Deleted) => (driver, "deleted"),
            _ => (driver, driver.state),
        });
        let mut all: Vec<(&DriverStatus, &str)> = shown.collect();
        all.sort_by(|(a, _), (b, _)| (a.is_over, &a.submission_id).cmp(&(b.is_over, &b.submission_id)));
        let mut text = Vec::new();
        output::table(&rows(all.into_iter()), 0, &mut text)?;
        let lines: Vec<String> = String::from_utf8_lossy(&text).lines().map(str::to_owned).collect();
        let size = terminal_size::terminal_size().map_or((80, 24), |(width, height)| (width.0, height.0));
        out.write_all(frame(&status, &lines, size).as_bytes())
    }
}

/// The names that spark-submit prints: of the application, and its id.
fn names(driver: &DriverStatus) -> (&str, &str) {
    (driver.app_name.as_deref().unwrap_or("spark"), driver.app_id.as_deref().unwrap_or("N/A"))
}

fn time(now: Timestamp) -> String {
    now.round(jiff::Unit::Second).unwrap_or(now).to_string()
}

fn line(change: &Change, now: Timestamp) -> String {
    let (driver, state, detail) = match change {
        Change::State(driver) => (driver, driver.state, driver.detail()),
        Change::Deleted(driver) => (
            driver,
            "deleted",
            driver.phase.as_ref().map_or_else(String::new, |phase| format!("its phase was {phase}")),
        ),
    };
    format!("{}  {}  {state:11}  {detail}", time(now), driver.submission_id).trim_end().to_owned()
}

fn event(change: &Change, now: Timestamp) -> Value {
    let (driver, event) = match change {
        Change::State(driver) => (driver, "state"),
        Change::Deleted(driver) => (driver, "deleted"),
    };
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
        assert_eq!(line(&Change::State(failed.clone()), now), "2026-11-25T03:00:01Z  n:d  failed       Evicted");
        assert_eq!(
            line(&Change::Deleted(failed.clone()), now),
            "2026-11-25T03:00:01Z  n:d  deleted      its phase was Failed"
        );
        let event = event(&Change::State(failed), now);
        assert_eq!(
            (&event["event"], &event["submissionId"], &event["state"]),
            (&json!("state"), &json!("n:d"), &json!("failed"))
        );
    }

    #[test]
    fn exit_code_says_how_the_driver_ended() {
        for (ended, own, sparks) in [
            (Ended::Outcome(Outcome::Succeeded), 0, 0),
            (Ended::Outcome(Outcome::Failed), 3, 0),
            (Ended::Outcome(Outcome::Deleted), 4, 0),
            (Ended::Interrupted(1), 130, 130),
        ] {
            assert_eq!((ended.code(false), ended.code(true)), (own, sparks));
        }
    }
}
