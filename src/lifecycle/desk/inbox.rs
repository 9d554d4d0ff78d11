//! What the watches have brought, in its order. A list is taken in in parts, and what comes after it waits: a hundred
//! thousand pods at once would keep everything else from being done.

use std::collections::{HashSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Instant;

use super::super::Now;
use super::{Desk, PART, PODS};
use crate::snapshot::{Change, Cursor, Group, GroupKey, Listed, Replaced, Sighting};
use crate::spark::ids::{PodKey, is_newer};

/// What waits to be taken in.
#[derive(Debug)]
enum Incoming {
    Change(Change),
    /// A pod, by its uid, that cannot be read.
    Unreadable(String),
    /// The watch of pods has shown everything up to this resourceVersion.
    UpTo(String),
    /// The watch of pods is interrupted, since this time.
    Interrupted(Instant),
    /// A list of all labelled pods begins.
    Begins(Now),
    /// A part of it.
    Pods(std::vec::IntoIter<Sighting>),
    /// It is complete: what it does not have leaves the picture.
    Ends(Cursor),
    Groups(Groups),
}

/// A list of all labelled pods, as far as it came.
#[derive(Debug)]
pub(super) struct PodList {
    listed: Listed,
    /// When it began: all of it is as old as that.
    began: Now,
}

/// A list of all PodGroups of ours of one scheduler type.
#[derive(Debug)]
struct Groups {
    scheduler: &'static str,
    rest: std::vec::IntoIter<(GroupKey, Group)>,
    listed: HashSet<GroupKey>,
    last: Option<GroupKey>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Inbox {
    waiting: VecDeque<Incoming>,
    /// So many objects of lists are taken in before the next turn.
    left: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Inbox { waiting: VecDeque::new(), left: PART }
    }
}

impl Inbox {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// A turn begins.
    pub(super) fn renew(&mut self) {
        self.left = PART;
    }
}

/// While more news than this waits, no more should be received.
const BEHIND: usize = 64;

impl Desk {
    /// Takes a change in that a watch brought.
    pub fn apply(&mut self, change: Change, now: Now) {
        let incoming = match change {
            Change::Replaced(Replaced::Pods(all)) => {
                self.list_begins(now);
                self.listed(all, now);
                return self.list_ends(now);
            }
            Change::Replaced(Replaced::Groups(scheduler, all)) => {
                Incoming::Groups(Groups { scheduler, rest: all.into_iter(), listed: HashSet::new(), last: None })
            }
            other => Incoming::Change(other),
        };
        self.comes(incoming, now);
    }

    /// The watch, or a list, has shown a pod that cannot be read.
    pub fn unreadable(&mut self, uid: &str, now: Now) {
        self.comes(Incoming::Unreadable(uid.into()), now);
    }

    /// A list of all labelled pods begins. It replaces one that was cut off.
    pub fn list_begins(&mut self, now: Now) {
        self.comes(Incoming::Begins(now), now);
    }

    /// Takes a part of the list in.
    pub fn listed(&mut self, pods: Vec<Sighting>, now: Now) {
        self.comes(Incoming::Pods(pods.into_iter()), now);
    }

    /// The list is complete; [`Desk::passed`] tells as of which resourceVersion.
    pub fn list_ends(&mut self, now: Now) {
        self.comes(Incoming::Ends(Cursor::default()), now);
    }

    /// The watch of pods has shown everything up to this resourceVersion: a list is complete, or a bookmark has come.
    pub fn passed(&mut self, version: &str, now: Now) {
        self.comes(Incoming::UpTo(version.to_owned()), now);
    }

    /// The watch of pods is interrupted.
    pub fn interrupted(&mut self, now: Instant) {
        self.exits.outages.interrupted(now);
        // News that arrived before the interruption, and is not taken in yet, must not end it.
        if !self.inbox.is_empty() {
            self.inbox.waiting.push_back(Incoming::Interrupted(now));
        }
    }

    /// Whether so much news waits to be taken in that no more should be received.
    pub fn is_behind(&self) -> bool {
        self.inbox.waiting.len() > BEHIND
    }

    fn comes(&mut self, incoming: Incoming, now: Now) {
        self.inbox.waiting.push_back(incoming);
        self.take_in(now);
    }

    /// Takes in what came, as much as is done at once.
    pub(super) fn take_in(&mut self, now: Now) {
        let mut left = self.inbox.left;
        while left > 0
            && let Some(incoming) = self.inbox.waiting.pop_front()
        {
            let rest = match incoming {
                Incoming::Change(change) => {
                    self.changed(change, now);
                    None
                }
                Incoming::Unreadable(uid) => {
                    self.gone.is_strange(&uid);
                    None
                }
                Incoming::UpTo(version) => {
                    self.up_to(&version, now);
                    None
                }
                Incoming::Interrupted(at) => {
                    self.exits.outages.interrupted(at);
                    None
                }
                Incoming::Begins(at) => {
                    self.begins(at);
                    None
                }
                Incoming::Pods(pods) => self.pods(pods, &mut left).map(Incoming::Pods),
                Incoming::Ends(cursor) => self.ends(cursor, &mut left, now).map(Incoming::Ends),
                Incoming::Groups(groups) => self.groups(groups, &mut left, now).map(Incoming::Groups),
            };
            if let Some(rest) = rest {
                self.inbox.waiting.push_front(rest);
                break;
            }
        }
        self.inbox.left = left;
    }

    /// The watch, or a list, has shown a pod.
    fn shown(&mut self, seen: &Sighting) {
        match seen {
            Sighting::Other(..) => self.gone.is_strange(seen.uid()),
            Sighting::Driver(..) | Sighting::Executor(..) => self.gone.is_known(seen.uid()),
        }
    }

    fn changed(&mut self, change: Change, now: Now) {
        let version = match &change {
            Change::Pod(seen) | Change::PodDeleted(seen) => {
                self.shown(seen);
                Some(seen.version().clone())
            }
            _ => None,
        };
        self.take(change, now);
        if let Some(version) = version {
            // Events come in the order of their versions; what comes late is no progress.
            if self.position.as_ref().is_none_or(|position| is_newer(&version, position)) {
                self.store.shown(&version);
                self.position = Some(version.clone());
            }
            self.checks.passed(self.store.snapshot(), &self.gone, &version, now.at);
            self.alive(now.at);
        }
    }

    fn up_to(&mut self, version: &str, now: Now) {
        self.store.shown(version);
        let before = self.position.replace(version.into());
        if before.is_none() {
            self.exits.first_listed(version);
        }
        if std::mem::take(&mut self.list_came) {
            self.exits.list_as_of(version);
            if let Some(before) = before {
                self.exits.relisted(&before, version, now.at);
            }
            self.checks.listed(version, now.at);
            self.conclude(now);
        } else {
            self.checks.passed(self.store.snapshot(), &self.gone, version, now.at);
        }
        self.alive(now.at);
    }

    /// Draws a part of the conclusions from the last list.
    pub(super) fn conclude(&mut self, now: Now) {
        for found in self.checks.proven(self.store.snapshot(), PART) {
            self.found(found, now);
        }
    }

    fn begins(&mut self, now: Now) {
        // What has ended in the first list had ended before we came.
        self.exits.listed(now.at);
        // After a restore of etcd versions begin anew.
        self.newest = None;
        self.gone.list_begins();
        self.list = Some(PodList { listed: Listed::default(), began: now });
    }

    /// Takes pods of a list in; the rest is returned.
    fn pods(
        &mut self,
        mut rest: std::vec::IntoIter<Sighting>,
        left: &mut usize,
    ) -> Option<std::vec::IntoIter<Sighting>> {
        while *left > 0
            && let Some(seen) = rest.next()
        {
            *left -= 1;
            self.shown(&seen);
            self.gone.is_listed(seen.uid());
            // A list from the past brings nobody back.
            if matches!(seen, Sighting::Other(..)) || self.gone.has_overtaken(seen.uid(), seen.version()) {
                continue;
            }
            let Some(list) = &mut self.list else { continue };
            list.listed.add(&seen);
            let began = list.began;
            self.take(Change::Pod(seen), began);
        }
        (rest.len() > 0).then_some(rest)
    }

    /// What a list does not have leaves the picture. Where there is more to look for the rest of the walk is returned.
    fn ends(&mut self, mut cursor: Cursor, left: &mut usize, now: Now) -> Option<Cursor> {
        let list = self.list.as_mut()?;
        list.listed.seal();
        let mut missing = Vec::new();
        let is_walked = self.store.snapshot().walk(&mut cursor, *left, |app, pod| {
            *left = left.saturating_sub(1);
            if !list.listed.has(app, &pod) {
                missing.push((PodKey::new(app.namespace(), pod.name()), pod.uid().clone()));
            }
        });
        for (pod, uid) in missing {
            self.take(Change::NotListed(pod, uid), now);
        }
        if !is_walked {
            return Some(cursor);
        }
        self.list = None;
        self.list_came = true;
        self.gone.list_ends();
        self.store.refreshed(now.wall);
        if self.listed.insert(PODS) {
            self.replan();
        }
        None
    }

    /// Takes a part of a list of PodGroups in; the rest is returned.
    fn groups(&mut self, mut groups: Groups, left: &mut usize, now: Now) -> Option<Groups> {
        while *left > 0
            && let Some((key, group)) = groups.rest.next()
        {
            *left -= 1;
            groups.listed.insert(key.clone());
            self.take(Change::Group(key, group), now);
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
            self.take(Change::GroupGone(key), now);
        }
        if *left == 0 {
            return Some(groups);
        }
        self.take(Change::GroupsListed(groups.scheduler), now);
        None
    }
}
