//! Hot reload of the policy file. A file that does not validate is refused whole and the old one stays.

use std::path::PathBuf;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::load::{BadConfig, Config, from_text};
use crate::runtime::files::Watched;

/// Looks at the policy file every few seconds.
#[derive(Debug)]
pub struct Reloader {
    watched: Watched,
    every: Duration,
}

impl Reloader {
    /// For this file.
    pub fn new(path: PathBuf, every: Duration) -> Self {
        Reloader { watched: Watched::new(vec![path]), every }
    }

    /// The file's path, for people.
    pub fn path(&self) -> String {
        self.watched.paths().iter().map(|path| path.display().to_string()).collect()
    }

    /// The file as it is now. An error of this first look refuses the start.
    pub async fn first(&mut self) -> Result<Config, BadConfig> {
        match self.look().await {
            Some(outcome) => outcome,
            None => Ok(Config::default()),
        }
    }

    /// Calls `changed` with each new version of the file, good or bad, until told to stop.
    pub async fn run(mut self, stop: CancellationToken, mut changed: impl FnMut(Result<Config, BadConfig>) + Send) {
        // A file that stays unreadable is told once.
        let mut unreadable = false;
        while stop.run_until_cancelled(tokio::time::sleep(self.every)).await.is_some() {
            match self.look().await {
                Some(Err(BadConfig::Unreadable { .. })) if unreadable => {}
                Some(outcome) => {
                    unreadable = matches!(outcome, Err(BadConfig::Unreadable { .. }));
                    changed(outcome);
                }
                None => unreadable = false,
            }
        }
    }

    async fn look(&mut self) -> Option<Result<Config, BadConfig>> {
        let unreadable = |paths: &[PathBuf], source| BadConfig::Unreadable {
            path: paths.iter().map(|path| path.display().to_string()).collect(),
            source,
        };
        match self.watched.look().await {
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
