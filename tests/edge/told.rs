//! The ends that replicas tell, as their logs have them.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer};

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    pub at: Option<Instant>,
    pub uid: String,
    pub cause: String,
    pub perhaps: bool,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Told(pub Arc<Mutex<Vec<Line>>>, pub Arc<Mutex<Vec<String>>>, Instant);

impl Told {
    pub fn new() -> Told {
        Told(Arc::default(), Arc::default(), Instant::now())
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    all: String,
    line: Line,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        use std::fmt::Write;
        let text = format!("{value:?}");
        let _ = write!(self.all, "{}={text} ", field.name());
        match field.name() {
            "message" => self.message = text,
            "uid" => self.line.uid = text.trim_matches('"').to_owned(),
            "cause" => self.line.cause = text,
            "perhaps_told" => self.line.perhaps = true,
            _ => {}
        }
    }
}

impl<S: tracing::Subscriber> Layer<S> for Told {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if fields.message == "executor ended" {
            fields.line.at = Some(Instant::now());
            self.0.lock().unwrap().push(fields.line.clone());
        }
        if event.metadata().target().starts_with("spark_usher") {
            let at = Instant::now().duration_since(self.2).as_secs_f64();
            self.1.lock().unwrap().push(format!("{at:8.2} log {}", fields.all));
        }
    }
}
