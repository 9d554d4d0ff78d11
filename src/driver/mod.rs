//! Whose executor is this, and does that driver still live?

pub mod life;
pub mod resolve;
