//! What the applications of each namespace need: what metrics show to its team.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use jiff::Timestamp;

use super::need::need;
use super::{History, exits_by_app};
use usher_core::ownership::liveness;
use usher_core::recovery::namespaces::{MAX_NAMESPACES, OTHER};
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_core::snapshot::{Application, DriverPhase, Snapshot};
use usher_spark::conf::Allocation;
use usher_spark::ids::AppKey;

/// What the applications of a namespace need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceNeeds {
    /// How many executors they lack, by cause.
    pub lacking: BTreeMap<ShortageCause, usize>,
    /// Seconds since when one of them lacks executors, of the one that has lacked them for longest; `None` if none lacks any, or if it
    /// is not known since when.
    pub lacking_seconds: Option<i64>,
    /// Seconds since the creation of the PodGroup that has waited longest; `None` if none waits.
    pub gang_seconds: Option<i64>,
    /// Running drivers whose known configuration requests executors, but which have no pending or running executors.
    pub idle_drivers: usize,
}

impl NamespaceNeeds {
    /// How many executors they lack; `None` if none.
    pub fn lacks(&self) -> Option<usize> {
        Some(self.lacking.values().sum()).filter(|count| *count > 0)
    }

    fn add(&mut self, other: NamespaceNeeds) {
        for (cause, count) in other.lacking {
            *self.lacking.entry(cause).or_default() += count;
        }
        self.lacking_seconds = self.lacking_seconds.max(other.lacking_seconds);
        self.gang_seconds = self.gang_seconds.max(other.gang_seconds);
        self.idle_drivers += other.idle_drivers;
    }
}

/// The namespaces whose applications need something. What they lack only the leader knows: without `history` it is left out.
pub fn namespace_needs<'s>(
    snapshot: &'s Snapshot,
    history: Option<&History>,
    now: Timestamp,
) -> BTreeMap<&'s str, NamespaceNeeds> {
    let mut all: BTreeMap<&str, NamespaceNeeds> = BTreeMap::new();
    let exits = history.map(exits_by_app).unwrap_or_default();
    let age = |since: i64| now.as_second().saturating_sub(since).max(0);
    for (key, app) in &snapshot.apps {
        let namespace = || key.namespace();
        if is_idle(snapshot, key, app) {
            all.entry(namespace()).or_default().idle_drivers += 1;
        }
        let Some(history) = history else { continue };
        let (sets, exits) = (liveness::shown_sets(key, app, snapshot), exits.get(key).map_or(&[][..], Vec::as_slice));
        if let Some(shortage) = need(snapshot, &history.exits, key, &sets, exits, now).shortage {
            let lacking = shortage.causes.into_iter().map(|cause| (cause.kind, cause.count)).collect();
            let lacking_seconds = shortage.since.map(|since| age(since.as_second()));
            all.entry(namespace()).or_default().add(NamespaceNeeds {
                lacking,
                lacking_seconds,
                ..NamespaceNeeds::default()
            });
        }
    }
    for (key, group) in snapshot.groups.iter().filter(|(_, group)| !group.started && !group.deleting) {
        let gang_seconds = Some(group.created.map_or(0, age));
        all.entry(&key.namespace).or_default().add(NamespaceNeeds { gang_seconds, ..NamespaceNeeds::default() });
    }
    all
}

/// The [`MAX_NAMESPACES`] with the largest `value`, by name, and the others as one; a namespace without a value is left out. Each metric
/// is ranked separately, so that replicas with the same data name the same namespaces.
pub fn largest<'n, V: Ord>(
    all: &BTreeMap<&'n str, NamespaceNeeds>,
    value: impl Fn(&NamespaceNeeds) -> Option<V>,
) -> BTreeMap<&'n str, NamespaceNeeds> {
    let mut rated: Vec<_> =
        all.iter().filter_map(|(name, needs)| Some((Reverse(value(needs)?), *name, needs))).collect();
    rated.sort_by(|(a, ..), (b, ..)| a.cmp(b));
    let mut shown: BTreeMap<&str, NamespaceNeeds> = BTreeMap::new();
    for (position, (_, namespace, needs)) in rated.into_iter().enumerate() {
        shown.entry(if position < MAX_NAMESPACES { namespace } else { OTHER }).or_default().add(needs.clone());
    }
    shown
}

/// Whether its driver runs and should have executors, and has none. A driver that allocates dynamically may have none, and it is
/// unknown for a driver whose configuration is unknown; Spark's own default is static.
fn is_idle(snapshot: &Snapshot, key: &AppKey, app: &Application) -> bool {
    let driver = app.live_driver().filter(|driver| driver.phase == DriverPhase::Running);
    let conf = driver.and_then(|driver| snapshot.conf(key, driver));
    let wants = conf.is_some_and(|conf| match conf.allocation {
        Ok(Allocation::Static { instances }) => instances > 0,
        Ok(Allocation::Dynamic { min, .. }) => min > 0,
        Err(_) => false,
    });
    wants && app.live().next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lacks(count: usize, seconds: i64) -> NamespaceNeeds {
        NamespaceNeeds {
            lacking: [(ShortageCause::Quota, count)].into(),
            lacking_seconds: Some(seconds),
            ..NamespaceNeeds::default()
        }
    }

    #[test]
    fn largest_namespaces_are_named_and_nothing_is_lost() {
        let names: Vec<String> = (0..10_000).map(|number| format!("n{number}")).collect();
        let all = names.iter().enumerate().map(|(count, name)| (&**name, lacks(count, 1)));
        let all: BTreeMap<_, _> = all.collect();
        let shown = largest(&all, NamespaceNeeds::lacks);
        assert!(largest(&all, |needs| needs.gang_seconds).is_empty(), "none has the value");
        assert_eq!(shown.len(), MAX_NAMESPACES + 1);
        assert_eq!(shown["n9999"], lacks(9_999, 1));
        let total: usize = shown.values().flat_map(|needs| needs.lacking.values()).sum();
        assert_eq!(total, (0..10_000).sum::<usize>());
        assert_eq!(shown[OTHER], lacks((0..9_800).sum(), 1));
    }

    #[test]
    fn sums_add_counts_and_keep_the_longest_time() {
        let mut sum = lacks(2, 90);
        sum.add(lacks(3, 30));
        sum.add(NamespaceNeeds { gang_seconds: Some(5), idle_drivers: 1, ..NamespaceNeeds::default() });
        assert_eq!(sum, NamespaceNeeds { gang_seconds: Some(5), idle_drivers: 1, ..lacks(5, 90) });
        let one = largest(&[("a", sum.clone())].into(), NamespaceNeeds::lacks);
        assert_eq!(one, [("a", sum)].into(), "no other namespace, no other row");
    }
}
