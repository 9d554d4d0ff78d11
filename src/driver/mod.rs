//! Whose executor is this?

pub mod resolve;
