//! Submitted applications by their drivers: submission ids, the state of a driver's pod and how it changes, and what spark-submit prints
//! about them (`K8sSubmitOps`, `LoggingPodStatusWatcher`).

mod driver;
mod id;
mod log;
mod preview;
mod spark_text;
mod tracker;

pub use driver::DriverStatus;
pub use id::{Names, SubmissionId};
pub use log::{LogLine, LogPosition, LogStage};
pub use preview::{Preview, preview};
pub use spark_text::{finished, long_status, pod_block, short_status, waiting};
pub use tracker::{Change, Tracker, WatchOutcome};
