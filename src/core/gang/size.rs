//! The number of executors that must be placed together (`docs/decisions.md#gang-size`).
//!
//! The count is recomputed from the current state, never stored: it stays reachable for a replacement, for a dynamic
//! application that shrank to zero, and for executors that were created while the webhook was down.

use usher_spark::conf::{Allocation, AppConf};
use usher_spark::resources::ResourceList;

/// Default size of a wave of executors, in versions that wait for a wave to run before the next (up to Spark 3.0).
const OLD_BATCH_SIZE: u32 = 5;

/// Numbers that some schedulers need on the pod itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Number of executors.
    pub members: u32,
    /// How many the application never has fewer of: under dynamic allocation its minimum, at least 1.
    pub least: u32,
    /// The requests of one executor, if known.
    pub resources: Option<ResourceList>,
    /// Whether that number is fixed for the application's whole life.
    pub fixed: bool,
}

/// What is known about an application's size.
#[derive(Clone, Copy, Debug, Default)]
pub struct SizeFacts<'a> {
    /// Its Spark configuration.
    pub conf: Option<&'a AppConf>,
    /// A count that a policy or an annotation requests.
    pub requested: Option<u32>,
    /// `spec.replicas` of the StatefulSet or Deployment that creates the executors.
    pub replicas: Option<u32>,
    /// Whether the number of executors that it starts with has run once.
    pub started: bool,
    /// Whether a wave of executors must run before the next is created: Spark 3.0 and older.
    pub waves_must_run: bool,
    /// How many executors it has created so far: the highest executor id.
    pub created: u32,
    /// Number of executors that are pending or running.
    pub live: u32,
}

/// The desired size of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Number of executors that it requests now.
    pub target: u32,
    /// The maximum number of executors that wait for each other.
    pub wanted: u32,
    /// Whether the requested count was above the target.
    pub clamped: bool,
}

/// Why the size of an application is unknown: the driver's setting of this key cannot be read. `annotation` says it instead.
pub fn unreadable(key: &str, annotation: &str) -> String {
    format!(
        "{key} in the driver's configuration cannot be read, so the gang's size is unknown: correct it, or set {annotation} on the driver"
    )
}

impl SizeFacts<'_> {
    /// The sizes, or `None` if the number of executors is unknown.
    pub fn sizes(&self) -> Option<Sizes> {
        let target = match self.conf.and_then(|conf| conf.allocation.ok()) {
            Some(Allocation::Static { instances }) => instances,
            // It may shrink before it starts; once all initial executors were created, no more are expected.
            Some(Allocation::Dynamic { initial, min }) if !self.started && self.created >= initial => {
                self.live.clamp(min.max(1).min(initial.max(1)), initial.max(1))
            }
            Some(Allocation::Dynamic { initial, .. }) if !self.started => initial,
            Some(Allocation::Dynamic { min, .. }) => min.max(1),
            // A requested count, or that of a workload, without a configuration: once started, the application may be dynamic.
            None if self.started => self.requested.or(self.replicas).map(|_| 1)?,
            None => self.requested.or(self.replicas)?,
        };
        let wanted = self.requested.unwrap_or(target).min(target);
        let clamped = self.conf.is_some_and(|conf| conf.allocation.is_ok())
            && !self.started
            && self.requested.is_some_and(|n| n > target);
        let wanted = self.caps().fold(wanted, u32::min).max(1);
        let target = match self.conf.and_then(|conf| conf.maximum) {
            Some(maximum) => target.min(self.live.saturating_add(maximum.saturating_sub(self.created))),
            None => target,
        };
        Some(Sizes { target, wanted, clamped })
    }

    /// Limits on the number of executors that are pending at the same time.
    fn caps(&self) -> impl Iterator<Item = u32> {
        let batch = self.conf.and_then(|conf| conf.batch_size).unwrap_or(OLD_BATCH_SIZE);
        let wave = self.waves_must_run.then_some(batch);
        let pending = self.conf.and_then(|conf| conf.max_pending);
        let maximum = self.conf.and_then(|conf| conf.maximum);
        [wave, pending, maximum].into_iter().flatten()
    }

    /// The numbers for schedulers that need them on the pod: those that the application starts with.
    pub fn numbers(&self, resources: Option<ResourceList>) -> Option<Numbers> {
        let sizes = SizeFacts { started: false, created: 0, ..*self }.sizes()?;
        let fixed = matches!(self.conf.map(|conf| conf.allocation), Some(Ok(Allocation::Static { .. })));
        let least = match self.conf.map(|conf| conf.allocation) {
            Some(Ok(Allocation::Dynamic { min, .. })) if self.requested.is_none() => min.max(1).min(sizes.wanted),
            _ => sizes.wanted,
        };
        Some(Numbers { members: sizes.wanted, least, resources, fixed })
    }
}

/// The executors that name a PodGroup.
#[derive(Clone, Copy, Debug, Default)]
pub struct Members {
    /// How many are pending or running.
    pub live: u32,
    /// How many run, and are not being deleted.
    pub running: u32,
    /// Whether those that the application will create will name it, too.
    pub expects_more: bool,
    /// Whether the gang has started: as many as wait for each other have run once.
    pub has_started: bool,
}

/// Before the start `clamp(1, live members + max(0, target − live), wanted)`: the group's live executors and those still expected,
/// at most as many as can be pending together. `live` are all of the application's.
///
/// All-or-nothing is a condition of the start: from then on it is the number of members that run, so that a replacement waits for
/// room only, never for others. With unknown sizes no executor waits.
pub fn min_member(sizes: Option<Sizes>, live: u32, members: Members) -> u32 {
    let Some(sizes) = sizes else { return 1 };
    let together = match members.has_started {
        true => members.running,
        false if members.expects_more => members.live.saturating_add(sizes.target.saturating_sub(live)),
        false => members.live,
    };
    together.clamp(1, sizes.wanted.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fixed(instances: u32) -> AppConf {
        AppConf { allocation: Ok(Allocation::Static { instances }), ..AppConf::default() }
    }

    fn dynamic(min: u32, initial: u32) -> AppConf {
        AppConf { allocation: Ok(Allocation::Dynamic { min, initial }), ..AppConf::default() }
    }

    fn count(facts: SizeFacts<'_>, live_members: u32) -> u32 {
        let members =
            Members { live: live_members, running: live_members, expects_more: true, has_started: facts.started };
        min_member(facts.sizes(), facts.live, members)
    }

    #[test]
    fn static_application_keeps_min_member_until_it_has_started() {
        let conf = fixed(3);
        let at = |live, live_members| count(SizeFacts { conf: Some(&conf), live, ..Default::default() }, live_members);
        assert_eq!(at(1, 1), 3, "the first of three");
        assert_eq!(at(3, 3), 3, "all exist");
        assert_eq!(at(2, 2), 3, "one exited, and its replacement is expected");
    }

    #[test]
    fn started_gang_has_as_many_members_as_run() {
        let conf = fixed(4);
        let sizes = SizeFacts { conf: Some(&conf), started: true, live: 4, ..Default::default() }.sizes();
        let at = |live, running| min_member(sizes, 4, Members { live, running, expects_more: true, has_started: true });
        assert_eq!(at(4, 4), 4);
        assert_eq!(at(4, 2), 2, "two are lost, and their replacements wait for room only");
        assert_eq!(at(4, 0), 1, "all are lost");
        assert_eq!(at(5, 5), 4, "never more than were asked to start together");
    }

    #[test]
    fn started_dynamic_application_lowers_min_member_to_its_minimum() {
        let conf = dynamic(0, 4);
        let facts = |started, live| SizeFacts { conf: Some(&conf), started, live, ..Default::default() };
        assert_eq!(count(facts(false, 1), 1), 4, "it starts with four");
        assert_eq!(count(facts(true, 0), 0), 1);
        assert_eq!(count(facts(true, 1), 1), 1, "a single new executor starts alone");
        let min = dynamic(2, 4);
        assert_eq!(count(SizeFacts { conf: Some(&min), started: true, live: 3, ..Default::default() }, 3), 2);
    }

    #[test]
    fn dynamic_application_that_shrinks_before_start_lowers_min_member() {
        let conf = dynamic(1, 4);
        let facts = |created, live| SizeFacts { conf: Some(&conf), created, live, ..Default::default() };
        assert_eq!(count(facts(2, 2), 2), 4, "two more are expected");
        assert_eq!(count(facts(4, 4), 4), 4, "all exist");
        assert_eq!(count(facts(4, 1), 1), 1, "three were released before any ran");
        assert_eq!(count(facts(5, 2), 2), 2);
    }

    #[test]
    fn unmutated_executors_lower_min_member() {
        let conf = fixed(5);
        assert_eq!(count(SizeFacts { conf: Some(&conf), live: 5, ..Default::default() }, 2), 2);
        assert_eq!(count(SizeFacts { conf: Some(&conf), live: 4, ..Default::default() }, 1), 2, "one more is expected");
    }

    #[test]
    fn old_spark_limits_min_member_to_allocation_batch() {
        let conf = fixed(20);
        let facts = SizeFacts { conf: Some(&conf), waves_must_run: true, live: 5, ..Default::default() };
        assert_eq!(count(facts, 5), 5);
        let batched = AppConf { batch_size: Some(8), ..fixed(20) };
        assert_eq!(count(SizeFacts { conf: Some(&batched), ..facts }, 8), 8);
        let new = SizeFacts { conf: Some(&batched), live: 5, ..Default::default() };
        assert_eq!(count(new, 5), 20, "newer versions create the next wave while the first is pending");
    }

    #[test]
    fn max_pending_and_maximum_cap_min_member() {
        let pending = AppConf { max_pending: Some(4), ..fixed(10) };
        assert_eq!(count(SizeFacts { conf: Some(&pending), live: 4, ..Default::default() }, 4), 4);
        let maximum = AppConf { maximum: Some(3), ..fixed(10) };
        assert_eq!(count(SizeFacts { conf: Some(&maximum), live: 1, created: 1, ..Default::default() }, 1), 3);
        let spent = SizeFacts { conf: Some(&maximum), live: 2, created: 3, ..Default::default() };
        assert_eq!(count(spent, 2), 2, "a third would be the fourth created, which the maximum excludes");
    }

    #[test]
    fn requested_size_is_clamped_to_target() {
        let conf = fixed(3);
        let facts = |requested| SizeFacts { conf: Some(&conf), requested: Some(requested), ..Default::default() };
        assert_eq!(facts(9).sizes(), Some(Sizes { target: 3, wanted: 3, clamped: true }));
        assert_eq!(facts(3).sizes(), Some(Sizes { target: 3, wanted: 3, clamped: false }));
        assert_eq!(facts(2).sizes(), Some(Sizes { target: 3, wanted: 2, clamped: false }));
        assert_eq!(facts(0).sizes(), Some(Sizes { target: 3, wanted: 1, clamped: false }));
    }

    #[test]
    fn unknown_size_is_one_and_requested_size_applies_until_started() {
        assert_eq!(SizeFacts::default().sizes(), None);
        assert_eq!(min_member(None, 7, Members { live: 7, running: 7, ..Members::default() }), 1);
        let facts = SizeFacts { requested: Some(4), live: 1, ..Default::default() };
        assert_eq!(count(facts, 1), 4);
        assert_eq!(count(SizeFacts { started: true, ..facts }, 1), 1);
    }

    #[test]
    fn numbers_require_known_size_and_are_fixed_for_static_allocation() {
        let conf = fixed(3);
        let facts = SizeFacts { conf: Some(&conf), started: true, ..Default::default() };
        assert_eq!(facts.numbers(None), Some(Numbers { members: 3, least: 3, resources: None, fixed: true }));
        let conf = dynamic(1, 4);
        let facts = SizeFacts { conf: Some(&conf), ..Default::default() };
        assert_eq!(facts.numbers(None), Some(Numbers { members: 4, least: 1, resources: None, fixed: false }));
        let running = SizeFacts { started: true, ..facts };
        let created = SizeFacts { created: 4, live: 1, ..facts };
        for later in [running, created] {
            assert_eq!(later.numbers(None).map(|numbers| numbers.members), Some(4), "those with which it started");
        }
        assert_eq!(SizeFacts::default().numbers(None), None);
    }

    proptest! {
        /// In every state, existing and expected executors together can reach the count.
        #[test]
        fn min_member_is_always_reachable(
            instances in 0u32..50, live in 0u32..60, others in 0u32..60, running in 0u32..60, batch in proptest::option::of(1u32..9),
            requested in proptest::option::of(0u32..99), old: bool, started: bool, is_dynamic: bool, min in 0u32..9,
        ) {
            let others = others.min(live);
            let allocation = if is_dynamic { Allocation::Dynamic { min, initial: instances.max(min) } } else { Allocation::Static { instances } };
            let conf = AppConf { allocation: Ok(allocation), batch_size: batch, ..AppConf::default() };
            let facts = SizeFacts { conf: Some(&conf), requested, replicas: None, started, waves_must_run: old, created: live, live };
            let sizes = facts.sizes().unwrap();
            let running = running.min(live - others);
            let members = Members { live: live - others, running, expects_more: true, has_started: started };
            let count = min_member(Some(sizes), live, members);
            prop_assert!(count >= 1);
            let expected = if started { 0 } else { sizes.target.saturating_sub(live) };
            let can_exist = if started { running } else { live - others + expected };
            prop_assert!(count <= can_exist.max(1));
            prop_assert!(count <= requested.unwrap_or(u32::MAX).max(1));
        }
    }
}
