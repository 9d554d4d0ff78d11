//! The report about an application's PodGroups.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use usher_core::gang::group_of;
use usher_core::snapshot::{Application, Group, GroupKey, Snapshot};
use usher_spark::ids::AppKey;
use usher_spark::time::in_seconds;

/// At most this many PodGroups are listed per application: one for each resource profile.
const MAX_GROUPS: usize = 20;

/// A PodGroup of an application.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupReport {
    pub name: String,
    /// The scheduler type that reads it.
    pub scheduler: String,
    /// How many pods start together; `None` if the PodGroup does not say.
    pub size: Option<u64>,
    /// Whether the whole gang has run once.
    pub started: bool,
    /// The phase that its scheduler reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// When it was created.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// How many live executors that name it are on a node.
    pub bound: usize,
}

impl GroupReport {
    /// How it is, in a word: it has `started`, all its pods are `scheduled`, or it `waits`.
    pub fn state(&self) -> &'static str {
        match self.size {
            _ if self.started => "started",
            Some(size) if self.bound as u64 >= size => "scheduled",
            _ => "waits",
        }
    }
}

pub(super) fn groups(snapshot: &Snapshot, key: &AppKey, app: &Application) -> Vec<GroupReport> {
    let mut groups = snapshot.groups_of(key).take(MAX_GROUPS).peekable();
    let mut bound: BTreeMap<GroupKey, usize> = BTreeMap::new();
    if groups.peek().is_some() {
        for executor in app.executors().values().filter(|executor| executor.is_live() && executor.node.is_some()) {
            if let Some(group) = group_of(key, &executor.template.scheduling) {
                *bound.entry(group).or_default() += 1;
            }
        }
    }
    groups.map(|(key, group)| report(key, group, bound.get(key).copied().unwrap_or_default())).collect()
}

fn report(key: &GroupKey, group: &Group, bound: usize) -> GroupReport {
    let created = group.created.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    GroupReport {
        name: key.name.to_string(),
        scheduler: key.scheduler.to_owned(),
        size: group.size(),
        started: group.started,
        phase: group.phase.as_deref().map(str::to_owned),
        since: created.map(in_seconds),
        bound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gang_waits_until_all_of_it_is_on_nodes() {
        let state_of = |size: Option<u64>, bound: usize, started: bool| {
            let (name, scheduler) = (String::new(), String::new());
            GroupReport { name, scheduler, size, started, phase: None, since: None, bound }.state()
        };
        assert_eq!(
            [state_of(Some(3), 2, false), state_of(Some(3), 3, false), state_of(Some(3), 0, true)],
            ["waits", "scheduled", "started"]
        );
        assert_eq!([state_of(None, 5, false), state_of(None, 0, true)], ["waits", "started"]);
    }
}
