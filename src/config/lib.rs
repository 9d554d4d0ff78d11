//! The policy file: parsed, rejected as a whole if any part is invalid, and converted into the core's policies.

mod duration;
mod entry;
mod file;
mod label_text;
mod load;
mod located;
mod nodes;
mod parse;
mod recovery;
mod wrong;

pub use file::schema;
pub use load::{Config, Settings, every_error, from_text};
pub use wrong::{BadConfig, Wrong};
