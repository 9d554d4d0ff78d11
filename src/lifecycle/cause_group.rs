//! Causes of exits by where to look for the remedy, for pictures: there are more causes than colours that people tell apart.

use super::cause::Cause;

/// Where to look for the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CauseGroup {
    /// The executor exited as its driver asked, or with its driver.
    Expected,
    /// The application: its code, its image or its configuration.
    Application,
    /// The executor's memory.
    Memory,
    /// The node, or what the cluster did to the pod.
    Cluster,
    /// Nothing shows why.
    Unexplained,
}

impl CauseGroup {
    /// Every group.
    pub const ALL: [CauseGroup; 5] = [
        CauseGroup::Expected,
        CauseGroup::Application,
        CauseGroup::Memory,
        CauseGroup::Cluster,
        CauseGroup::Unexplained,
    ];

    /// The group of a cause.
    pub fn of(cause: Cause) -> CauseGroup {
        match cause {
            Cause::Completed | Cause::DriverLost | Cause::Deleted => CauseGroup::Expected,
            Cause::Error
            | Cause::CompanionFailed
            | Cause::NeverStarted
            | Cause::ImageNeverPulled
            | Cause::DeadlineExceeded => CauseGroup::Application,
            Cause::JvmOom | Cause::OomKilled => CauseGroup::Memory,
            Cause::Evicted | Cause::Preempted | Cause::NodeLost | Cause::NodeShutdown | Cause::AdmissionRefused => {
                CauseGroup::Cluster
            }
            Cause::Killed | Cause::Vanished | Cause::Unexplained => CauseGroup::Unexplained,
        }
    }

    /// One word, in lower case.
    pub fn as_str(self) -> &'static str {
        match self {
            CauseGroup::Expected => "expected",
            CauseGroup::Application => "application",
            CauseGroup::Memory => "memory",
            CauseGroup::Cluster => "cluster",
            CauseGroup::Unexplained => "unexplained",
        }
    }

    /// What exited so, in a legend.
    pub fn text(self) -> &'static str {
        match self {
            CauseGroup::Expected => "exited as expected",
            CauseGroup::Application => "failed by its application",
            CauseGroup::Memory => "ran out of memory",
            CauseGroup::Cluster => "ended by its node or the cluster",
            CauseGroup::Unexplained => "ended, and nothing shows why",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_that_are_not_abnormal_are_expected_and_every_group_has_a_cause() {
        for cause in Cause::ALL {
            assert_eq!(CauseGroup::of(*cause) == CauseGroup::Expected, !cause.is_abnormal(), "{cause}");
        }
        for group in CauseGroup::ALL {
            assert!(Cause::ALL.iter().any(|cause| CauseGroup::of(*cause) == group), "{group:?}");
        }
    }
}
