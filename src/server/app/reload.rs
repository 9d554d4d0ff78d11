//! Hot reload of the policy file. An invalid file is rejected as a whole and the old one stays in effect.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use usher_config::{BadConfig, Config, from_text};
use usher_core::policy::{Policies, Policy, Validate};
use usher_runtime::files::Watched;

/// How far apart the two reads are that must agree.
const AT_REST: Duration = Duration::from_secs(1);

/// Reads the policy file every few seconds.
#[derive(Debug)]
pub(super) struct Reloader {
    watched: Watched,
    every: Duration,
}

impl Reloader {
    /// A reloader for this file.
    pub(super) fn new(path: PathBuf, every: Duration) -> Self {
        Reloader { watched: Watched::new(vec![path]), every }
    }

    /// The file's path, for messages.
    pub(super) fn path(&self) -> String {
        self.watched.paths().iter().map(|path| path.display().to_string()).collect()
    }

    /// Reads the file for the first time. An error of this read prevents the start.
    pub(super) async fn first(&mut self) -> Result<Config, BadConfig> {
        let read = self.watched.read_if_changed().await;
        self.parsed(read).unwrap_or_else(|| Ok(Config::default()))
    }

    /// Calls `changed` with each new version of the file, valid or not, until `stop` is cancelled.
    pub(super) async fn run(
        mut self,
        stop: CancellationToken,
        mut changed: impl FnMut(Result<Config, BadConfig>) + Send,
    ) {
        // A file that stays unreadable is reported once.
        let mut unreadable = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            let reading = self.watched.read_if_changed_and_at_rest(self.every.min(AT_REST));
            let Some(read) = stop.run_until_cancelled(reading).await else { return };
            match self.parsed(read) {
                Some(Err(BadConfig::Unreadable { .. })) if unreadable => {}
                Some(outcome) => {
                    unreadable = matches!(outcome, Err(BadConfig::Unreadable { .. }));
                    changed(outcome);
                }
                None => unreadable = false,
            }
        }
    }

    fn parsed(&self, read: io::Result<Option<Vec<Vec<u8>>>>) -> Option<Result<Config, BadConfig>> {
        let unreadable = |source| Err(BadConfig::Unreadable { path: self.path(), source });
        match read.transpose()? {
            Ok(contents) => Some(match String::from_utf8(contents.into_iter().next().unwrap_or_default()) {
                Ok(text) => from_text(&text),
                Err(error) => unreadable(io::Error::new(io::ErrorKind::InvalidData, error)),
            }),
            Err(source) => Some(unreadable(source)),
        }
    }
}

/// What a new version of the file no longer has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Removed<'p> {
    /// Names of policies.
    pub policies: Vec<&'p str>,
    /// Names of policies that had `validate: Enforce`.
    pub enforce: Vec<&'p str>,
}

impl<'p> Removed<'p> {
    /// Compares policies by their names.
    pub(super) fn between(old: &'p Policies, new: &Policies) -> Removed<'p> {
        let enforces = |policy: &Policy| policy.validate == Validate::Enforce;
        let named = |name: &str| new.listed().iter().find(|policy| &*policy.name == name);
        let lost = |is_lost: &dyn Fn(&Policy) -> bool| {
            old.listed().iter().filter(|policy| is_lost(policy)).map(|policy| &*policy.name).collect()
        };
        Removed {
            policies: lost(&|policy| named(&policy.name).is_none()),
            enforce: lost(&|policy| enforces(policy) && !named(&policy.name).is_some_and(enforces)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_policies_and_modes_are_named() {
        let policies = |text: &str| {
            let text = format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: {text}");
            from_text(&text).unwrap().policies
        };
        let old = policies("[{name: a, validate: Enforce}, {name: b, validate: Enforce}, {name: c}]");
        let new = policies("[{name: c, validate: Enforce}, {name: a, validate: Warn}]");
        let removed = Removed::between(&old, &new);
        assert_eq!((&*removed.policies, &*removed.enforce), (&["b"][..], &["a", "b"][..]));
        let removed = Removed::between(&new, &old);
        assert_eq!((&*removed.policies, &*removed.enforce), (&[""; 0][..], &["c"][..]));
        assert_eq!(Removed::between(&old, &Policies::default()).policies, ["a", "b", "c"]);
    }
}
