//! The exits that replicas report, read from their logs.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

/// A reported exit: one line of the log.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub at: Option<Instant>,
    pub uid: String,
    pub cause: String,
    pub perhaps: bool,
}

/// A tracing layer that collects the reported exits.
#[derive(Clone, Debug)]
pub struct Told {
    pub lines: Arc<Mutex<Vec<Line>>>,
    /// The complete log, if `LOGS` is set.
    pub log: Option<Arc<Mutex<Vec<String>>>>,
    began: Instant,
}

impl Told {
    pub fn new() -> Told {
        let log = std::env::var_os("LOGS").map(|_| Arc::default());
        Told { lines: Arc::default(), log, began: Instant::now() }
    }
}

#[derive(Default)]
struct Fields {
    is_end: bool,
    is_whole: bool,
    all: String,
    line: Line,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        if self.is_whole {
            let _ = write!(self.all, "{}={value:?} ", field.name());
        }
        match field.name() {
            "message" => self.is_end = format!("{value:?}") == "executor exited",
            "uid" => self.line.uid = format!("{value:?}").trim_matches('"').to_owned(),
            "cause" => self.line.cause = format!("{value:?}"),
            "possibly_reported" => self.line.perhaps = true,
            _ => {}
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let is_ours = event.metadata().target().starts_with("spark_usher");
        if !is_ours || (self.log.is_none() && event.metadata().level() > &tracing::Level::INFO) {
            return;
        }
        let mut fields = Fields { is_whole: self.log.is_some(), ..Fields::default() };
        event.record(&mut fields);
        if let Some(log) = &self.log {
            let at = self.began.elapsed().as_secs_f64();
            log.lock().unwrap().push(format!("{at:8.2} log {}", fields.all));
        }
        if fields.is_end {
            self.lines.lock().unwrap().push(Line { at: Some(Instant::now()), ..fields.line });
        }
    }
}
