//! Which submissions are watched, and what has changed about them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::driver::DriverStatus;

/// A change that people want to see.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The driver is in another state, on another node, or there for another reason.
    State(Box<DriverStatus>),
    /// Its pod was deleted before it was seen to have ended.
    Deleted(Box<DriverStatus>),
}

/// How a submission ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchOutcome {
    /// Its driver exited with code 0.
    Succeeded,
    /// Its driver failed.
    Failed,
    /// Its driver's pod was deleted before it was seen to have ended.
    Deleted,
}

/// The drivers that a watch has shown.
#[derive(Debug, Default)]
pub struct Tracker {
    /// By uid: a pod that was created anew under its name is another submission.
    drivers: BTreeMap<String, (DriverStatus, Option<WatchOutcome>)>,
    /// The uids of those whose pods do not exist any more, the first that was deleted first.
    gone: VecDeque<String>,
    /// The same, to find one.
    is_gone: BTreeSet<String>,
    /// While a list of a namespace, or of all, is read: the uids that it has.
    listed: BTreeMap<Option<String>, BTreeSet<String>>,
}

impl Tracker {
    /// A driver was added, changed, or is in a list.
    pub fn observe(&mut self, status: DriverStatus) -> Option<Change> {
        for (_, listed) in self.listed.iter_mut().filter(|(namespace, _)| is_in(&status, namespace.as_deref())) {
            listed.insert(status.uid.clone());
        }
        let outcome =
            status.has_succeeded().map(|has| if has { WatchOutcome::Succeeded } else { WatchOutcome::Failed });
        match self.drivers.get_mut(&status.uid) {
            Some((_, Some(_))) => None,
            Some((known, known_outcome)) => {
                let is_new = shown(known) != shown(&status);
                *known = status;
                *known_outcome = outcome;
                is_new.then(|| Change::State(Box::new(known.clone())))
            }
            None => {
                self.drivers.insert(status.uid.clone(), (status.clone(), outcome));
                Some(Change::State(Box::new(status)))
            }
        }
    }

    /// A pod was deleted.
    pub fn delete(&mut self, uid: &str) -> Option<Change> {
        let (status, outcome) = self.drivers.get_mut(uid)?;
        if self.is_gone.insert(uid.to_owned()) {
            self.gone.push_back(uid.to_owned());
        }
        if outcome.is_some() {
            return None;
        }
        *outcome = Some(WatchOutcome::Deleted);
        Some(Change::Deleted(Box::new(status.clone())))
    }

    /// A list of a namespace, or of all, begins: the first, or one after an interruption of the watch.
    pub fn begin_list(&mut self, namespace: Option<&str>) {
        self.listed.insert(namespace.map(str::to_owned), BTreeSet::new());
    }

    /// The list is complete: drivers of the namespace that it does not have were deleted meanwhile.
    pub fn end_list(&mut self, namespace: Option<&str>) -> Vec<Change> {
        let Some(listed) = self.listed.remove(&namespace.map(str::to_owned)) else { return Vec::new() };
        let of_list = self.drivers.iter().filter(|(_, (status, _))| is_in(status, namespace));
        let gone: Vec<String> = of_list.map(|(uid, _)| uid).filter(|uid| !listed.contains(*uid)).cloned().collect();
        gone.iter().filter_map(|uid| self.delete(uid)).collect()
    }

    /// The drivers, and how those that ended did.
    pub fn drivers(&self) -> impl Iterator<Item = (&DriverStatus, Option<WatchOutcome>)> {
        self.drivers.values().map(|(status, outcome)| (status, *outcome))
    }

    /// Whether the pod of a driver that was seen does not exist any more.
    pub fn is_gone(&self, uid: &str) -> bool {
        self.is_gone.contains(uid)
    }

    /// Whether a driver was seen to have ended.
    pub fn has_ended(&self, uid: &str) -> bool {
        self.drivers.get(uid).is_some_and(|(_, outcome)| outcome.is_some())
    }

    /// Keeps at most so many drivers whose pods do not exist any more: those that were deleted last.
    pub fn forget_gone(&mut self, max: usize) {
        while self.gone.len() > max {
            let Some(uid) = self.gone.pop_front() else { return };
            self.is_gone.remove(&uid);
            self.drivers.remove(&uid);
        }
    }

    /// How these submissions ended, the worst of it, once all of them have. One that was never seen was deleted.
    pub fn outcome<'u>(&self, uids: impl IntoIterator<Item = &'u str>) -> Option<WatchOutcome> {
        let mut worst = WatchOutcome::Succeeded;
        for uid in uids {
            worst = worst.max(self.drivers.get(uid).map_or(Some(WatchOutcome::Deleted), |(_, outcome)| *outcome)?);
        }
        Some(worst)
    }
}

fn is_in(status: &DriverStatus, namespace: Option<&str>) -> bool {
    namespace.is_none_or(|namespace| status.namespace == namespace)
}

/// What people want to see of a driver.
fn shown(status: &DriverStatus) -> (&str, Option<&str>, Option<i32>, Option<&str>) {
    (status.state, status.node.as_deref(), status.exit_code, status.why.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn driver(uid: &str, phase: &str) -> DriverStatus {
        let pod = json!({"metadata": {"namespace": "n", "name": "d", "uid": uid, "labels": {"spark-role": "driver"}},
            "spec": {"containers": [{"name": "spark-kubernetes-driver"}]}, "status": {"phase": phase}});
        DriverStatus::read(&pod.to_string()).unwrap()
    }

    fn state(change: Option<Change>) -> Option<&'static str> {
        change.map(|change| match change {
            Change::State(status) => status.state,
            Change::Deleted(_) => "deleted",
        })
    }

    #[test]
    fn only_what_people_see_is_a_change() {
        let mut tracker = Tracker::default();
        let states: Vec<_> = ["Pending", "Pending", "Running", "Running", "Failed", "Failed"]
            .iter()
            .map(|phase| state(tracker.observe(driver("1", phase))))
            .collect();
        assert_eq!(states, [Some("pending"), None, Some("running"), None, Some("failed"), None]);
        assert_eq!((tracker.outcome(["1"]), tracker.is_gone("1")), (Some(WatchOutcome::Failed), false));
        assert_eq!(tracker.delete("1"), None, "it had ended");
        assert!(tracker.is_gone("1") && tracker.has_ended("1"));
        assert_eq!(tracker.outcome(["1"]), Some(WatchOutcome::Failed));
    }

    #[test]
    fn driver_that_a_list_lacks_was_deleted_meanwhile() {
        let mut tracker = Tracker::default();
        for uid in ["1", "2"] {
            tracker.observe(driver(uid, "Running"));
        }
        tracker.begin_list(Some("n"));
        tracker.begin_list(Some("other"));
        tracker.observe(driver("2", "Running"));
        // The same name, another pod.
        tracker.observe(driver("3", "Pending"));
        assert_eq!(tracker.end_list(Some("other")), []);
        let gone: Vec<_> = tracker.end_list(Some("n")).into_iter().map(|change| state(Some(change))).collect();
        assert_eq!(gone, [Some("deleted")]);
        assert_eq!((tracker.outcome(["1"]), tracker.outcome(["1", "2"])), (Some(WatchOutcome::Deleted), None));
        assert_eq!(tracker.end_list(Some("n")), []);
    }

    #[test]
    fn drivers_that_were_deleted_are_forgotten_in_the_end() {
        let mut tracker = Tracker::default();
        for number in 0..5 {
            tracker.observe(driver(&number.to_string(), "Running"));
            tracker.delete(&number.to_string());
            tracker.forget_gone(2);
        }
        let left: Vec<&str> = tracker.drivers().map(|(driver, _)| driver.uid.as_str()).collect();
        assert_eq!((left, tracker.is_gone("0"), tracker.is_gone("4")), (vec!["3", "4"], false, true));
    }

    #[test]
    fn outcome_of_several_is_the_worst() {
        let mut tracker = Tracker::default();
        tracker.observe(driver("1", "Succeeded"));
        assert_eq!(tracker.outcome(["1"]), Some(WatchOutcome::Succeeded));
        tracker.observe(driver("2", "Failed"));
        assert_eq!(tracker.outcome(["1", "2"]), Some(WatchOutcome::Failed));
        assert_eq!(tracker.outcome(["1", "2", "never seen"]), Some(WatchOutcome::Deleted));
    }
}
