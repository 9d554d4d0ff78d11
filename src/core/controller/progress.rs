//! The resourceVersions up to which the watch has shown pods, and exits are recorded.

use smol_str::SmolStr;

use usher_spark::ids::is_newer;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Up to here the watch of pods has shown everything.
    position: Option<SmolStr>,
    /// Up to here exits are recorded once the current batch is,
    recording: Option<u64>,
    /// and up to here they are recorded.
    recorded: Option<u64>,
    /// The oldest version of executors whose absence was confirmed since the last batch began: their confirmations are closed,
    /// and their exits are not recorded yet.
    confirmed: Option<u64>,
    /// The same for the current batch.
    confirmed_in_batch: Option<u64>,
}

impl Progress {
    /// The version up to which the watch of pods has shown everything.
    pub(super) fn position(&self) -> Option<&str> {
        self.position.as_deref()
    }

    /// The watch has shown an event of this version. Returns whether that is progress: an event may come late.
    pub(super) fn event(&mut self, version: &SmolStr) -> bool {
        let is_progress = self.position.as_ref().is_none_or(|position| is_newer(version, position));
        if is_progress {
            self.position = Some(version.clone());
        }
        is_progress
    }

    /// A list or a bookmark states that everything up to this version was shown. Returns the position before.
    pub(super) fn up_to(&mut self, version: &str) -> Option<SmolStr> {
        self.position.replace(version.into())
    }

    /// The absence of an executor was confirmed that was last observed at this version.
    pub(super) fn confirmed(&mut self, version: &str) {
        self.confirmed = self.confirmed.into_iter().chain(version.parse().ok()).min();
    }

    /// A batch of exits begins. Returns the version up to which exits are recorded once it is.
    pub(super) fn begin(&mut self) -> Option<u64> {
        self.recording = self.position.as_ref().and_then(|position| position.parse().ok()).or(self.recorded);
        self.confirmed_in_batch = self.confirmed.take();
        self.recording
    }

    /// The batch is recorded.
    pub(super) fn end(&mut self) {
        self.recorded = self.recording;
        self.confirmed_in_batch = None;
    }

    /// The version up to which exits are recorded.
    pub(super) fn recorded(&self) -> Option<u64> {
        self.recorded
    }

    /// The oldest version of an executor whose absence is confirmed and whose exit is not recorded yet.
    pub(super) fn oldest_confirmed(&self) -> Option<u64> {
        self.confirmed.into_iter().chain(self.confirmed_in_batch).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_event_does_not_advance_position() {
        let mut progress = Progress::default();
        assert!(progress.event(&"9".into()) && !progress.event(&"8".into()) && progress.event(&"10".into()));
        assert_eq!(progress.position(), Some("10"));
        assert_eq!(progress.up_to("12").as_deref(), Some("10"));
        assert_eq!(progress.position(), Some("12"));
    }

    #[test]
    fn recorded_version_is_position_at_begin_of_batch() {
        let mut progress = Progress::default();
        assert_eq!(progress.begin(), None, "the watch has shown nothing");
        progress.end();
        progress.up_to("5");
        assert_eq!(progress.begin(), Some(5));
        progress.up_to("7");
        assert_eq!(progress.recorded(), None);
        progress.end();
        assert_eq!(progress.recorded(), Some(5));
    }

    #[test]
    fn confirmed_absence_is_pending_until_its_batch_ends() {
        let mut progress = Progress::default();
        progress.confirmed("4");
        progress.confirmed("3");
        progress.begin();
        progress.confirmed("6");
        assert_eq!(progress.oldest_confirmed(), Some(3));
        progress.end();
        assert_eq!(progress.oldest_confirmed(), Some(6), "it was confirmed after the batch began");
        progress.begin();
        progress.end();
        assert_eq!(progress.oldest_confirmed(), None);
    }
}
