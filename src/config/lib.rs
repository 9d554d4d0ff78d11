//! The policy file: read, rejected as a whole if any part is invalid, and converted into the core's policies.

mod entry;
pub mod file;
mod label_text;
mod load;
mod located;
pub mod nodes;
mod parse;
pub mod recovery;
mod span;
mod wrong;

pub use load::{Config, Settings, every_error, from_text};
pub use span::Span;
pub use wrong::{BadConfig, Wrong};

/// The JSON Schema of the file, for editors and CI.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(file::PolicyFile).to_value()
}
