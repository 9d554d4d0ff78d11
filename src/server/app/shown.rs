//! What the debug listener and the web page show about this replica.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_util::sync::CancellationToken;

use crate::cluster::lease::Election;
use crate::cluster::metrics::Metrics;
use crate::cluster::replica::Replica;
use crate::http::debug::DebugState;
use crate::http::ui::UiState;
use usher_core::policy::{Policies, deletions};
use usher_net::tls::serving::Serving;
use usher_report::ui::{Links, ReplicaReport};
use usher_runtime::clock;
use usher_spark::time::whole_second;

/// The parts of this replica that are shown.
pub(super) struct Shown<'a> {
    pub(super) replica: &'a Replica,
    pub(super) election: &'a Election,
    pub(super) policies: &'a Arc<ArcSwap<Policies>>,
    pub(super) serving: &'a Arc<Serving>,
    pub(super) metrics: &'a Arc<Metrics>,
}

impl Shown<'_> {
    /// What the debug listener shows.
    pub(super) fn state(&self) -> DebugState {
        let metrics = self.metrics.clone();
        DebugState {
            snapshot: self.replica.snapshot(),
            history: self.replica.history(),
            leader_state: self.replica.leader_state(),
            unseen: Arc::new(move || metrics.unseen.text(clock::now())),
            since: clock::now(),
        }
    }

    /// What the web page shows. At most `max_live` pages may be open with live updates, which end with `stop`.
    pub(super) fn page(&self, links: Links, port: u16, stop: CancellationToken, max_live: usize) -> UiState {
        let (state, leader, complete) = (self.replica.leader_state(), self.replica.leader(), self.replica.complete());
        let (election, serving) = (self.election.clone(), self.serving.clone());
        let (policies, metrics) = (self.policies.clone(), self.metrics.clone());
        let since = whole_second(clock::now()).to_string();
        let report = move || ReplicaReport {
            identity: election.identity.clone(),
            namespace: election.namespace.clone(),
            state: state().as_str(),
            leader: leader().map(|leader| leader.to_string()),
            is_complete: *complete.borrow(),
            unseen: metrics.unseen.text(clock::now()),
            withheld: metrics.withheld_text(),
            policies_differ: Some(metrics.policies_that_differ()).filter(|count| *count > 0),
            deletions: deletions(&policies.load()),
            certificate_until: serving.not_after().map(|time| time.to_string()),
            port,
            links: links.clone(),
            since: since.clone(),
        };
        let (snapshot, history) = (self.replica.snapshot(), self.replica.history());
        UiState { snapshot, history, replica: Arc::new(report), stop, max_live }
    }
}
