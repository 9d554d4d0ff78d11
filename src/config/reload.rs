//! Hot reload of the policy file. An invalid file is rejected as a whole and the old one stays in effect.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::load::{BadConfig, Config, from_text};
use crate::runtime::files::Watched;

/// Reads the policy file every few seconds.
#[derive(Debug)]
pub struct Reloader {
    watched: Watched,
    every: Duration,
}

impl Reloader {
    /// A reloader for this file.
    pub fn new(path: PathBuf, every: Duration) -> Self {
        Reloader { watched: Watched::new(vec![path]), every }
    }

    /// The file's path, for messages.
    pub fn path(&self) -> String {
        self.watched.paths().iter().map(|path| path.display().to_string()).collect()
    }

    /// Reads the file for the first time. An error of this read prevents the start.
    pub async fn first(&mut self) -> Result<Config, BadConfig> {
        match self.read_if_changed().await {
            Some(outcome) => outcome,
            None => Ok(Config::default()),
        }
    }

    /// Calls `changed` with each new version of the file, valid or not, until `stop` is cancelled.
    pub async fn run(mut self, stop: CancellationToken, mut changed: impl FnMut(Result<Config, BadConfig>) + Send) {
        // A file that stays unreadable is reported once.
        let mut unreadable = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            match self.read_if_changed().await {
                Some(Err(BadConfig::Unreadable { .. })) if unreadable => {}
                Some(outcome) => {
                    unreadable = matches!(outcome, Err(BadConfig::Unreadable { .. }));
                    changed(outcome);
                }
                None => unreadable = false,
            }
        }
    }

    async fn read_if_changed(&mut self) -> Option<Result<Config, BadConfig>> {
        let unreadable = |paths: &[PathBuf], source| BadConfig::Unreadable {
            path: paths.iter().map(|path| path.display().to_string()).collect(),
            source,
        };
        match self.watched.read_if_changed().await {
            Ok(None) => None,
            Ok(Some(contents)) => {
                let bytes = contents.into_iter().next().unwrap_or_default();
                Some(match String::from_utf8(bytes) {
                    Ok(text) => from_text(&text),
                    Err(error) => Err(unreadable(
                        self.watched.paths(),
                        std::io::Error::new(std::io::ErrorKind::InvalidData, error),
                    )),
                })
            }
            Err(source) => Some(Err(unreadable(self.watched.paths(), source))),
        }
    }
}
