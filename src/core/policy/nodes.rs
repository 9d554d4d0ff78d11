//! Settings of the nodes that refuse or break executors.

use std::time::Duration;

/// When a node is suspect, and what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSettings {
    /// Whether faults of nodes are recorded at all.
    pub enabled: bool,
    /// The time within which failures count.
    pub window: Duration,
    /// How many different executors must fail on a node,
    pub executors: usize,
    /// of how many applications,
    pub applications: usize,
    /// in how many namespaces.
    pub namespaces: usize,
    /// How long a node stays suspect after the last failure that made it suspect.
    pub expires: Duration,
    /// Whether new executors avoid suspect nodes.
    pub avoid: bool,
    /// At most this share of the cluster's nodes is avoided, in percent.
    pub max_share: u8,
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            enabled: true,
            window: Duration::from_secs(1800),
            executors: 3,
            applications: 2,
            namespaces: 1,
            expires: Duration::from_secs(3600),
            avoid: false,
            max_share: 5,
        }
    }
}

impl NodeSettings {
    /// How many of this number of nodes may be avoided at the same time: at least one, unless the share is zero; never all.
    pub fn max_avoided(&self, nodes: usize) -> usize {
        if self.max_share == 0 || nodes < 2 {
            return 0;
        }
        let share = nodes.saturating_mul(usize::from(self.max_share)) / 100;
        share.clamp(1, nodes - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_avoids_at_least_one_node_and_never_all() {
        let max = |max_share, nodes| NodeSettings { max_share, ..NodeSettings::default() }.max_avoided(nodes);
        assert_eq!((max(5, 0), max(5, 1), max(5, 2), max(5, 50), max(5, 100)), (0, 0, 1, 2, 5));
        assert_eq!((max(0, 100), max(100, 100)), (0, 99));
    }
}
