//! Causes of exits by where to look for the remedy.

use usher_spark::text::vocabulary;

vocabulary! {
    /// Where to look for the remedy of an exit.
    CauseGroup {
        /// What happened to the executor, for a legend.
        legend: &'static str,
    }
    /// Nowhere: the executor exited as its driver requested, or with its driver.
    Expected = "expected" { legend: "exited as expected" };
    /// The pod: its code, its image, its configuration or another of its containers.
    Application = "application" { legend: "failed: code, image or configuration" };
    /// The executor's memory.
    Memory = "memory" { legend: "out of memory" };
    /// The node or the control plane, which ended the executor.
    Cluster = "cluster" { legend: "ended by its node or the cluster" };
    /// Not known.
    Unexplained = "unexplained" { legend: "ended for an unknown reason" };
}
