//! `none`: ownership only. The pod keeps its scheduler.

use super::scheduler::{BASE, GangScheduler};

/// The row of `none`.
pub static NONE: GangScheduler = GangScheduler { kind: "none", ..BASE };
