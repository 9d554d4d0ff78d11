//! Watch events and lists that the controller has not processed yet, in order. A list is processed in parts, and what follows
//! it waits: a hundred thousand pods in one step would block all other work.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use crate::snapshot::{Change, Cursor, Group, GroupKey, Listed, ObservedPod};
use usher_spark::time::Now;

/// One step processes at most this many pods of a list or a poll.
pub(super) const MAX_OBJECTS_PER_STEP: usize = 1024;
/// While more events than this wait, no more should be received.
const MAX_WAITING: usize = 64;

/// What waits to be processed.
#[derive(Debug)]
pub(super) enum Incoming {
    Change(Change),
    /// The uid of a pod that cannot be parsed.
    Unreadable(String),
    /// The watch of pods has shown everything up to this resourceVersion.
    Bookmark(String),
    /// The watch of pods is interrupted, since this time.
    Interrupted(Instant),
    /// A list of all labelled pods begins.
    ListStarted(Now),
    /// A part of the list.
    ListPage(std::vec::IntoIter<ObservedPod>),
    /// The list is complete: pods that it lacks are removed from the snapshot.
    ListFinished(Cursor),
    Groups(GroupList),
}

/// A list of all labelled pods, as far as it was received.
#[derive(Debug)]
pub(super) struct PodList {
    pub(super) listed: Listed,
    /// When the list began: its pods count as observed at this time.
    pub(super) started: Now,
}

/// A list of all our PodGroups of one scheduler type.
#[derive(Debug)]
pub(super) struct GroupList {
    pub(super) scheduler: &'static str,
    pub(super) rest: std::vec::IntoIter<(GroupKey, Group)>,
    pub(super) listed: HashSet<GroupKey>,
    pub(super) last: Option<GroupKey>,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Inbox {
    waiting: VecDeque<Incoming>,
    /// At most this many more objects of lists are processed in this step.
    left: usize,
}

impl Default for Inbox {
    fn default() -> Self {
        Inbox { waiting: VecDeque::new(), left: MAX_OBJECTS_PER_STEP }
    }
}

impl Inbox {
    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether too many events wait to receive more.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.len() > MAX_WAITING
    }

    pub(super) fn begin_step(&mut self) {
        self.left = MAX_OBJECTS_PER_STEP;
    }

    /// Appends what was received.
    pub(super) fn push(&mut self, incoming: Incoming) {
        self.waiting.push_back(incoming);
    }

    /// Takes the oldest entry, if this step may process more, and the number of list objects that it may process.
    pub(super) fn pop(&mut self) -> Option<(Incoming, usize)> {
        if self.left == 0 { None } else { self.waiting.pop_front().map(|incoming| (incoming, self.left)) }
    }

    /// Sets how many list objects this step may still process, and puts the rest of a list back at the front.
    pub(super) fn put_back(&mut self, left: usize, rest: Option<Incoming>) {
        self.left = left;
        if let Some(rest) = rest {
            self.waiting.push_front(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn put_back_item_precedes_later_items() {
        let mut inbox = Inbox::default();
        inbox.push(Incoming::Bookmark("1".into()));
        inbox.push(Incoming::Bookmark("2".into()));
        let Some((Incoming::Bookmark(first), MAX_OBJECTS_PER_STEP)) = inbox.pop() else { panic!() };
        inbox.put_back(0, Some(Incoming::Bookmark(first)));
        assert!(inbox.pop().is_none(), "this step processes no more");
        inbox.begin_step();
        let versions: Vec<String> = std::iter::from_fn(|| match inbox.pop() {
            Some((Incoming::Bookmark(version), _)) => Some(version),
            _ => None,
        })
        .collect();
        assert_eq!(versions, ["1", "2"]);
    }

    #[test]
    fn inbox_with_too_many_items_is_behind() {
        let mut inbox = Inbox::default();
        (0..=MAX_WAITING).for_each(|_| inbox.push(Incoming::Bookmark("1".into())));
        assert!(inbox.is_behind() && !inbox.is_empty());
        inbox.pop();
        assert!(!inbox.is_behind());
    }
}
