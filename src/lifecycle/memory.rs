//! What the loop remembers between two plans of one application. All of it can be lost: a restart costs a delay, never
//! a wrong action.

use std::collections::{BTreeMap, HashMap};

use jiff::Timestamp;

use super::part::Progress;
use crate::driver::life::{Crew, Learned};
use crate::signature::Creator;
use crate::snapshot::GroupKey;

/// Memory of one application.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// What is remembered of each creator of its executors.
    pub crews: BTreeMap<Option<Creator>, CrewMemory>,
    /// Since when a group has had no member while nothing is known of its driver.
    pub idle_since: HashMap<GroupKey, Timestamp>,
}

/// Memory of one creator's executors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CrewMemory {
    /// The driver as it was last known: a uid that was learned once.
    pub driver: Option<Learned>,
    /// As many executors as it started with have run once. Also kept on the group, which survives us.
    pub started: bool,
    /// Where the next plan goes on, of executors that are too many for one.
    pub(super) progress: Progress,
}

impl Memory {
    /// Whether there is nothing to remember.
    pub fn is_empty(&self) -> bool {
        self.crews.is_empty() && self.idle_since.is_empty()
    }

    /// The driver of a creator's executors as it was last known.
    pub fn learned(&self, creator: Option<Creator>) -> Option<Learned> {
        self.crews.get(&creator)?.driver.clone()
    }

    /// Where the plan for a creator's executors goes on.
    pub(super) fn progress(&self, creator: Option<Creator>) -> Progress {
        self.crews.get(&creator).map(|crew| crew.progress.clone()).unwrap_or_default()
    }

    /// Notes where the next plan for a creator's executors goes on.
    pub(super) fn go_on(&mut self, creator: Option<Creator>, progress: Progress) {
        match self.crews.get_mut(&creator) {
            Some(crew) => crew.progress = progress,
            None if progress == Progress::default() => {}
            None => self.crews.entry(creator).or_default().progress = progress,
        }
    }

    /// Notes the drivers that live, and forgets creators of whom nothing is left.
    pub(super) fn learn(&mut self, crews: &[Crew<'_>]) {
        // Crews are sorted by their creator.
        self.crews.retain(|creator, _| crews.binary_search_by_key(creator, |crew| crew.creator).is_ok());
        for crew in crews {
            if let Some(pod) = crew.driver.pod() {
                let driver = Learned { name: pod.name.clone(), uid: pod.uid.clone(), host: crew.host().cloned() };
                if crew.is_certain {
                    self.crews.entry(crew.creator).or_default().driver = Some(driver);
                }
            }
        }
    }
}
