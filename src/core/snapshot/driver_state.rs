//! The state of a driver's pod, for people.

use super::facts::{DriverPhase, DriverPod};
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::time::in_seconds;

impl DriverPod {
    /// The state, in a word.
    pub fn state(&self) -> &'static str {
        match self.phase {
            DriverPhase::Ended if self.has_failed => "failed",
            DriverPhase::Ended => "succeeded",
            _ if self.deleting => "terminating",
            DriverPhase::Pending => "pending",
            DriverPhase::Running => "running",
        }
    }

    /// Why the pod is in this state; `None` if there is nothing to say. `not_scheduled` is why it has no node, if that is so.
    pub fn why(&self, not_scheduled: Option<String>) -> Option<String> {
        let nothing = PodDiagnostics::default();
        let diagnostics = self.diagnostics.as_deref().unwrap_or(&nothing);
        let mut parts = if self.phase == DriverPhase::Ended { diagnostics.exit_message() } else { Vec::new() };
        if self.phase != DriverPhase::Ended {
            parts.extend(diagnostics.starting_message());
            parts.extend(not_scheduled);
            parts.extend(diagnostics.restarts());
        }
        parts.extend(diagnostics.disruption.as_ref().map(|words| format!("{}: {}", words.reason, words.message)));
        let at = diagnostics.ended_at().filter(|_| self.phase == DriverPhase::Ended && !parts.is_empty());
        parts.extend(at.map(|at| format!("at {}", in_seconds(at))));
        (!parts.is_empty()).then(|| parts.join("; "))
    }
}
