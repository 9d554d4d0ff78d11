//! A part of many executors for each plan: what a plan costs is bounded, and the parts begin at another executor each time.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use imbl::OrdMap;

use crate::snapshot::{Executor, ExecutorKey};

/// A plan goes through so many executors,
const EXECUTORS: usize = 4096;
/// and no further once it has so many actions for them.
const ACTIONS: usize = 512;

/// The last executor that a plan went through, where more come after it.
pub(super) type Last = Option<ExecutorKey>;

/// Where the plans for one creator's executors go on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Among those that ended.
    pub(super) uncleared: Last,
    /// Among those that are on their way out.
    pub(super) leaving: Last,
    /// Among those that have no owner.
    pub(super) orphans: Last,
}

/// Goes through the executors that come after `last`, from the first again after the end. `each` returns whether it planned
/// an action. Returns whether these were all.
pub(super) fn go_through<'v>(
    all: &'v OrdMap<ExecutorKey, Arc<Executor>>,
    last: &mut Last,
    mut each: impl FnMut(&'v Arc<Executor>) -> bool,
) -> bool {
    let from = last.take();
    let is_whole = from.is_none();
    let (mut executors, mut actions) = (0, 0);
    let mut before: Option<&ExecutorKey> = None;
    for (key, executor) in all.range((from.map_or(Unbounded, Excluded), Unbounded)) {
        if executors == EXECUTORS || actions == ACTIONS {
            *last = before.cloned();
            return false;
        }
        before = Some(key);
        executors += 1;
        actions += usize::from(each(executor));
    }
    is_whole
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Sighting;
    use crate::spark::pod::Pod;

    fn executors(count: u64) -> OrdMap<ExecutorKey, Arc<Executor>> {
        let json = r#"{"metadata":{"name":"e","namespace":"n","uid":"u","resourceVersion":"1","labels":
            {"spark-role":"executor","spark-app-selector":"a","spark-exec-id":"1"}},"spec":{"containers":[]}}"#;
        let pod = Pod::read_whole(json.as_bytes()).unwrap();
        let Some(Sighting::Executor(_, executor)) = Sighting::of(&pod, crate::gang::seat_keys()) else { panic!() };
        let executor = Arc::new(executor);
        (1..=count).map(|id| (ExecutorKey { id, name: id.to_string().into() }, executor.clone())).collect()
    }

    /// How many executors each call goes through, and whether these were all, until it begins anew.
    fn calls(all: &OrdMap<ExecutorKey, Arc<Executor>>, has_action: bool) -> Vec<(usize, bool)> {
        let (mut last, mut calls) = (None, Vec::new());
        loop {
            let mut count = 0;
            let is_whole = go_through(all, &mut last, |_| {
                count += 1;
                has_action
            });
            calls.push((count, is_whole));
            if last.is_none() {
                return calls;
            }
        }
    }

    #[test]
    fn each_call_goes_on_where_the_last_one_stopped() {
        assert_eq!(calls(&executors(3), true), [(3, true)]);
        assert_eq!(calls(&executors(4096), false), [(4096, true)]);
        assert_eq!(calls(&executors(10_000), false), [(4096, false), (4096, false), (1808, false)]);
        assert_eq!(calls(&executors(1100), true), [(512, false), (512, false), (76, false)]);
        assert_eq!(calls(&executors(0), true), [(0, true)]);
    }
}
