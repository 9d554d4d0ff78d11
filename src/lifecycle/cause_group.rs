//! Causes of exits by where to look for the remedy.

/// Where to look for the remedy of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CauseGroup {
    /// Nowhere: the executor exited as its driver requested, or with its driver.
    Expected,
    /// The pod: its code, its image, its configuration or another of its containers.
    Application,
    /// The executor's memory.
    Memory,
    /// The node or the control plane, which ended the executor.
    Cluster,
    /// Not known.
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

    /// What happened to the executor, for a legend.
    pub fn text(self) -> &'static str {
        match self {
            CauseGroup::Expected => "exited as expected",
            CauseGroup::Application => "failed: code, image or configuration",
            CauseGroup::Memory => "out of memory",
            CauseGroup::Cluster => "ended by its node or the cluster",
            CauseGroup::Unexplained => "ended for an unknown reason",
        }
    }
}
