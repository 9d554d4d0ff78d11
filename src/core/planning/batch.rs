//! Bounds the cost of a plan: each plan visits a part of the executors, and the next plan continues after it.

use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use imbl::OrdMap;

use crate::snapshot::{Executor, ExecutorKey};

/// A plan visits at most this many executors,
const MAX_EXECUTORS_PER_PLAN: usize = 4096;
/// and stops once it has this many actions for them.
const MAX_ACTIONS: usize = 512;

/// The last executor that a plan visited, if more follow it.
pub type Position = Option<ExecutorKey>;

/// Visits the executors after `last`; after the last executor the next call begins with the first. `each` returns whether it
/// planned an action. Returns whether this call visited all executors.
pub fn visit<'v>(
    all: &'v OrdMap<ExecutorKey, Arc<Executor>>,
    last: &mut Position,
    mut each: impl FnMut(&'v Arc<Executor>) -> bool,
) -> bool {
    let from = last.take();
    let is_whole = from.is_none();
    let (mut executors, mut actions) = (0, 0);
    let mut before: Option<&ExecutorKey> = None;
    for (key, executor) in all.range((from.map_or(Unbounded, Excluded), Unbounded)) {
        if executors == MAX_EXECUTORS_PER_PLAN || actions == MAX_ACTIONS {
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
    use crate::snapshot::ObservedPod;
    use usher_spark::pod::Pod;

    fn executors(count: u64) -> OrdMap<ExecutorKey, Arc<Executor>> {
        let json = r#"{"metadata":{"name":"e","namespace":"n","uid":"u","resourceVersion":"1","labels":
            {"spark-role":"executor","spark-app-selector":"a","spark-exec-id":"1"}},"spec":{"containers":[]}}"#;
        let pod = Pod::read_whole(json.as_bytes()).unwrap();
        let Some(ObservedPod::Executor(_, executor)) = ObservedPod::of(&pod, crate::gang::scheduling_keys()) else {
            panic!()
        };
        let executor = Arc::new(executor);
        (1..=count).map(|id| (ExecutorKey { id, name: id.to_string().into() }, executor.clone())).collect()
    }

    /// How many executors each call visits, and whether these were all, until the next call begins with the first.
    fn calls(all: &OrdMap<ExecutorKey, Arc<Executor>>, has_action: bool) -> Vec<(usize, bool)> {
        let (mut last, mut calls) = (None, Vec::new());
        loop {
            let mut count = 0;
            let is_whole = visit(all, &mut last, |_| {
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
    fn visit_resumes_after_last_executor_of_previous_call() {
        assert_eq!(calls(&executors(3), true), [(3, true)]);
        assert_eq!(calls(&executors(4096), false), [(4096, true)]);
        assert_eq!(calls(&executors(10_000), false), [(4096, false), (4096, false), (1808, false)]);
        assert_eq!(calls(&executors(1100), true), [(512, false), (512, false), (76, false)]);
        assert_eq!(calls(&executors(0), true), [(0, true)]);
    }
}
