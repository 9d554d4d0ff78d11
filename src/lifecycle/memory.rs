//! What the loop remembers between two plans of one application. All of it can be lost: a restart costs a delay, never
//! a wrong action.

use std::collections::HashMap;

use jiff::Timestamp;

use super::action::DriverRef;
use crate::snapshot::GroupKey;

/// Memory of one application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The driver as it was last known: a uid that was learned once.
    pub driver: Option<DriverRef>,
    /// As many executors as it started with have run once. Also kept on the group, which survives us.
    pub started: bool,
    /// Since when a group has had no member while nothing is known of its driver.
    pub idle_since: HashMap<GroupKey, Timestamp>,
    /// It was said that too many executors failed.
    pub over_limit: bool,
}

impl Memory {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.driver.is_none() && !self.started && self.idle_since.is_empty() && !self.over_limit
    }
}
