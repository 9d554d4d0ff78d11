//! Processes the events and lists of the watches.

use std::ops::Bound::{Excluded, Unbounded};

use super::inbox::{GroupList, Incoming, MAX_OBJECTS_PER_STEP, PodList};
use super::observation::{Observation, PODS};
use crate::lifecycle::exits::Exits;
use crate::snapshot::{Change, Cursor, GroupKey, Listed, ObservedPod, PodChange, RelatedChange, Watched};
use usher_spark::ids::PodKey;
use usher_spark::time::Now;

impl Observation {
    /// Receives what a watch delivers, and processes as much as this step may.
    pub(super) fn receive(&mut self, incoming: Incoming, exits: &mut Exits, now: Now) {
        self.inbox.push(incoming);
        self.process_inbox(exits, now);
    }

    /// Processes what was received, as much as one step may.
    pub(super) fn process_inbox(&mut self, exits: &mut Exits, now: Now) {
        while let Some((incoming, mut left)) = self.inbox.pop() {
            let rest = match incoming {
                Incoming::Change(change) => {
                    self.process_change(change, exits, now);
                    None
                }
                Incoming::Unreadable(uid) => {
                    self.tombstones.add_unclassified(&uid);
                    None
                }
                Incoming::Bookmark(version) => {
                    self.process_bookmark(&version, exits, now);
                    None
                }
                Incoming::Interrupted(at) => {
                    exits.outages.interrupted(at);
                    None
                }
                Incoming::ListStarted(at) => {
                    self.begin_list(exits, at);
                    None
                }
                Incoming::ListPage(pods) => self.process_list_page(pods, &mut left).map(Incoming::ListPage),
                Incoming::ListFinished(cursor) => self.finish_list(cursor, &mut left, now).map(Incoming::ListFinished),
                Incoming::Groups(groups) => self.process_group_list(groups, &mut left, now).map(Incoming::Groups),
            };
            let is_part = rest.is_some();
            self.inbox.put_back(left, rest);
            if is_part {
                break;
            }
        }
    }

    /// The watch, or a list, has shown a pod.
    fn observe(&mut self, seen: &ObservedPod) {
        match seen {
            ObservedPod::Other(..) => self.tombstones.add_unclassified(seen.uid()),
            ObservedPod::Driver(..) | ObservedPod::Executor(..) => self.tombstones.remove_unclassified(seen.uid()),
        }
    }

    fn process_change(&mut self, change: Change, exits: &mut Exits, now: Now) {
        let version = match &change {
            Change::Pods(PodChange::Observed(seen)) | Change::Pods(PodChange::Deleted(seen)) => {
                self.observe(seen);
                Some(seen.version().clone())
            }
            _ => None,
        };
        self.apply_change(change, now);
        if let Some(version) = version {
            // Events come in the order of their versions; a late event is no progress.
            if self.progress.event(&version) {
                self.store.shown(&version);
            }
            self.confirmations.watch_passed(self.store.snapshot(), &self.tombstones, &version, now.at);
            // An outage defers what was due during it.
            self.news.requeue |= exits.outages.watch_alive(now.at);
        }
    }

    fn process_bookmark(&mut self, version: &str, exits: &mut Exits, now: Now) {
        self.store.shown(version);
        let before = self.progress.up_to(version);
        if before.is_none() {
            exits.first_listed(version);
        }
        if std::mem::take(&mut self.list_completed) {
            exits.list_at(version);
            if let Some(before) = before {
                exits.relisted(&before, version, now.at);
            }
            self.confirmations.list_completed(version, now.at);
            self.apply_proven(now);
        } else {
            self.confirmations.watch_passed(self.store.snapshot(), &self.tombstones, version, now.at);
        }
        self.news.requeue |= exits.outages.watch_alive(now.at);
    }

    /// Applies a part of what the last list proves.
    pub(super) fn apply_proven(&mut self, now: Now) {
        for found in self.confirmations.take_proven(self.store.snapshot(), MAX_OBJECTS_PER_STEP) {
            self.apply_confirmed(found, now);
        }
    }

    fn begin_list(&mut self, exits: &mut Exits, now: Now) {
        // Executors that are final in the first list exited before this replica started.
        exits.list_started(now.at);
        // After a restore of etcd, versions start again.
        self.newest_version = None;
        self.tombstones.list_started();
        self.incoming_list = Some(PodList { listed: Listed::default(), started: now });
    }

    /// Processes pods of a list, and returns the rest.
    fn process_list_page(
        &mut self,
        mut rest: std::vec::IntoIter<ObservedPod>,
        left: &mut usize,
    ) -> Option<std::vec::IntoIter<ObservedPod>> {
        while *left > 0
            && let Some(seen) = rest.next()
        {
            *left -= 1;
            self.observe(&seen);
            self.tombstones.remove_listed(seen.uid());
            // A stale list does not bring deleted pods back.
            if matches!(seen, ObservedPod::Other(..)) || self.tombstones.is_stale(seen.uid(), seen.version()) {
                continue;
            }
            let Some(list) = &mut self.incoming_list else { continue };
            list.listed.add(&seen);
            let began = list.started;
            self.apply_change(PodChange::Observed(seen), began);
        }
        (rest.len() > 0).then_some(rest)
    }

    /// Removes pods that the list lacks from the snapshot. Returns the cursor if pods are left to check.
    fn finish_list(&mut self, mut cursor: Cursor, left: &mut usize, now: Now) -> Option<Cursor> {
        let list = self.incoming_list.as_mut()?;
        list.listed.seal();
        let mut missing = Vec::new();
        let is_walked = self.store.snapshot().walk(&mut cursor, *left, |app, pod| {
            *left = left.saturating_sub(1);
            if !list.listed.has(app, &pod) {
                missing.push((PodKey::new(app.namespace(), pod.name()), pod.uid().clone()));
            }
        });
        for (pod, uid) in missing {
            self.apply_change(PodChange::NotListed(pod, uid), now);
        }
        if !is_walked {
            return Some(cursor);
        }
        self.incoming_list = None;
        self.list_completed = true;
        self.tombstones.list_finished();
        if self.synced.insert(PODS) {
            self.news.requeue = true;
        }
        None
    }

    /// Processes a part of a list of PodGroups, and returns the rest.
    fn process_group_list(&mut self, mut groups: GroupList, left: &mut usize, now: Now) -> Option<GroupList> {
        while *left > 0
            && let Some((key, group)) = groups.rest.next()
        {
            *left -= 1;
            groups.listed.insert(key.clone());
            self.apply_change(RelatedChange::Groups(key.scheduler, Watched::Upserted(key, group)), now);
        }
        if *left == 0 {
            return Some(groups);
        }
        let from = groups.last.take().map_or(Unbounded, Excluded);
        let known = self.store.snapshot().groups.range((from, Unbounded)).map(|(key, _)| key);
        let known: Vec<GroupKey> = known.take(*left).cloned().collect();
        *left -= known.len();
        groups.last = known.last().cloned();
        for key in known.into_iter().filter(|key| key.scheduler == groups.scheduler && !groups.listed.contains(key)) {
            self.apply_change(RelatedChange::Groups(key.scheduler, Watched::Removed(key)), now);
        }
        if *left == 0 {
            return Some(groups);
        }
        self.apply_change(RelatedChange::GroupsListed(groups.scheduler), now);
        None
    }
}
