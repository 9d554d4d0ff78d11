//! `none`: ownership only. The pod keeps its scheduler.

use super::scheduler::{BASE, GangScheduler, Shape};

/// The row of `none`.
pub static NONE: GangScheduler = GangScheduler { kind: "none", shapes: &[Shape::Pods], ..BASE };
