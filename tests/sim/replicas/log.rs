//! The exits that replicas report, read from their logs.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

/// A reported exit: one line of the log.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub at: Option<Instant>,
    pub uid: String,
    pub cause: String,
    pub possibly_reported: bool,
}

/// A tracing layer that collects the reported exits.
#[derive(Clone, Debug)]
pub struct ExitLog {
    pub reports: Arc<Mutex<Vec<Report>>>,
    /// The complete log, if `LOGS` is set.
    pub text: Option<Arc<Mutex<Vec<String>>>>,
    began: Instant,
}

impl ExitLog {
    pub fn new() -> ExitLog {
        let text = std::env::var_os("LOGS").map(|_| Arc::default());
        ExitLog { reports: Arc::default(), text, began: Instant::now() }
    }
}

#[derive(Default)]
struct Fields {
    is_exit: bool,
    is_whole: bool,
    all: String,
    report: Report,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        if self.is_whole {
            let _ = write!(self.all, "{}={value:?} ", field.name());
        }
        match field.name() {
            "message" => self.is_exit = format!("{value:?}") == "executor exited",
            "uid" => self.report.uid = format!("{value:?}").trim_matches('"').to_owned(),
            "cause" => self.report.cause = format!("{value:?}"),
            "possibly_reported" => self.report.possibly_reported = true,
            _ => {}
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for ExitLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_own = event.metadata().target().starts_with("usher_");
        if !is_own || (self.text.is_none() && event.metadata().level() > &tracing::Level::INFO) {
            return;
        }
        let mut fields = Fields { is_whole: self.text.is_some(), ..Fields::default() };
        event.record(&mut fields);
        if let Some(text) = &self.text {
            let at = self.began.elapsed().as_secs_f64();
            text.lock().unwrap().push(format!("{at:8.2} log {}", fields.all));
        }
        if fields.is_exit {
            self.reports.lock().unwrap().push(Report { at: Some(Instant::now()), ..fields.report });
        }
    }
}
