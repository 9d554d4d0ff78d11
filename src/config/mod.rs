//! The policy file: read, refused whole when something is wrong with it, turned into what the core reads.

pub mod file;
mod load;
mod located;
mod reload;
mod span;

pub use load::{BadConfig, Config, Settings, from_path, from_text};
pub use reload::Reloader;
pub use span::Span;

/// The JSON Schema of the file, for editors and CI.
pub fn schema() -> serde_json::Value {
    schemars::schema_for!(file::ConfigFile).to_value()
}
