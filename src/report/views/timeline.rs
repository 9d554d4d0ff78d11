//! The lives of an application's executors: requested, running, exited; for `why APP`.

use std::collections::{BTreeSet, HashSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use usher_core::lifecycle::cause::Cause;
use usher_core::lifecycle::cause_group::CauseGroup;
use usher_core::lifecycle::exit::Exit;
use usher_core::snapshot::{Application, Executor, Stage};
use usher_spark::state::ExecutorPodState;
use usher_spark::time::in_seconds;

/// At most this many executors are listed per application:
const MAX_LIVES: usize = 200;
/// the last that exited abnormally, at most this many,
const MAX_ABNORMAL: usize = 100;
/// the last that have not started, at most this many, and of the others those that were created last.
const MAX_WAITING: usize = 50;

/// The lives of an application's executors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    pub namespace: String,
    /// The application.
    pub app: String,
    /// Its executors that exist, or whose exits are remembered, by the time of their creation; at most 200: those that exited
    /// abnormally or have not started are preferred.
    pub executors: Vec<Lifetime>,
    /// How many more there are.
    pub omitted: usize,
}

/// The life of an executor. Times are those that its pod states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lifetime {
    pub pod: String,
    /// Its exec id.
    pub id: Option<u64>,
    /// When its pod was created.
    pub created: String,
    /// When its container started; `None` if it has not, or if that is not known.
    pub started: Option<String>,
    /// When it exited; `None` if it has not.
    pub ended: Option<String>,
    /// Its state, as in `apps`.
    pub state: String,
    /// Why it exited.
    pub cause: Option<String>,
    /// Whether its exit was abnormal.
    pub abnormal: bool,
}

/// The times of a life, in seconds since 1970: created ≤ started ≤ end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LifetimeSpan {
    /// When its pod was created.
    pub created: i64,
    /// When its container started.
    pub started: Option<i64>,
    /// When it exited, or now.
    pub end: i64,
}

/// Lives on one scale of time, which has a length of at least a second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale<'t> {
    /// Those that state when they were created.
    pub lifetimes: Vec<(&'t Lifetime, LifetimeSpan)>,
    /// When the first of them was created, in seconds since 1970.
    pub begin: i64,
    /// When the last of them ended, or now.
    pub end: i64,
}

impl Timeline {
    /// The scale on which the lives are drawn: all of them, or those of the last `within` seconds, which end now. `None` if there are
    /// none.
    pub fn scale(&self, now: Timestamp, within: Option<i64>) -> Option<Scale<'_>> {
        let first = within.map_or(i64::MIN, |within| now.as_second().saturating_sub(within));
        let lifetimes = self.executors.iter().filter_map(|lifetime| Some((lifetime, lifetime.span(now)?)));
        let lifetimes: Vec<_> = lifetimes
            .filter(|(_, span)| span.end >= first)
            .map(|(lifetime, span)| (lifetime, span.from(first)))
            .collect();
        let begin = lifetimes.iter().map(|(_, span)| span.created).min()?;
        let end = lifetimes.iter().map(|(_, span)| span.end).max()?;
        let (begin, end) = if within.is_some() { (first, now.as_second().max(end)) } else { (begin, end) };
        Some(Scale { lifetimes, begin, end: end.max(begin + 1) })
    }
}

impl LifetimeSpan {
    /// The part from this time on.
    fn from(self, first: i64) -> LifetimeSpan {
        LifetimeSpan {
            created: self.created.max(first),
            started: self.started.map(|started| started.max(first)),
            ..self
        }
    }
}

/// The groups of these lives' causes.
pub fn cause_groups<'l>(lifetimes: impl Iterator<Item = &'l Lifetime>) -> BTreeSet<CauseGroup> {
    lifetimes.filter_map(Lifetime::cause_group).collect()
}

impl Lifetime {
    /// Where to look for the remedy of its exit; `None` if it has not exited. A server of another version may state other causes.
    /// Between the end of its container and the report of its exit, only its state says that it has exited.
    pub fn cause_group(&self) -> Option<CauseGroup> {
        if self.ended.is_none() {
            return match self.state.as_str() {
                "failed" => Some(CauseGroup::Unexplained),
                "succeeded" => Some(CauseGroup::Expected),
                _ => None,
            };
        }
        let known = Cause::ALL.iter().find(|cause| self.cause.as_deref() == Some(cause.as_str()));
        let unknown = if self.abnormal { CauseGroup::Unexplained } else { CauseGroup::Expected };
        Some(known.map_or(unknown, |cause| cause.group()))
    }

    /// Its times; `None` if it does not state when it was created.
    pub fn span(&self, now: Timestamp) -> Option<LifetimeSpan> {
        let seconds = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_second);
        let created = seconds(&self.created)?;
        // The clocks of nodes may differ.
        let end = self.ended.as_deref().and_then(seconds).unwrap_or_else(|| now.as_second()).max(created);
        let started = self.started.as_deref().and_then(seconds).map(|started| started.clamp(created, end));
        Some(LifetimeSpan { created, started, end })
    }
}

/// The lives of an application's executors; `exits` are those of the application that are remembered.
pub(super) fn timeline(namespace: &str, app: &str, present: &Application, exits: &[&Exit]) -> Timeline {
    let exited: HashSet<&str> = exits.iter().map(|exit| &*exit.executor.uid).collect();
    let live = present.executors().values().filter(|executor| !exited.contains(&*executor.uid));
    let mut all: Vec<(i64, Lifetime)> = live.filter_map(|executor| lifetime(executor, None)).collect();
    all.extend(exits.iter().filter_map(|exit| lifetime(&exit.executor, Some(exit))));
    all.sort_by(|(one, a), (other, b)| (one, a.id, &a.pod).cmp(&(other, b.id, &b.pod)));
    let omitted = all.len().saturating_sub(MAX_LIVES);
    if omitted > 0 {
        keep_remarkable(&mut all);
    }
    let executors = all.into_iter().map(|(_, lifetime)| lifetime).collect();
    Timeline { namespace: namespace.to_owned(), app: app.to_owned(), executors, omitted }
}

/// Keeps those that are listed, in their order.
fn keep_remarkable(all: &mut Vec<(i64, Lifetime)>) {
    let mut abnormal: Vec<usize> =
        (0..all.len()).filter(|at| all.get(*at).is_some_and(|(_, lifetime)| lifetime.abnormal)).collect();
    abnormal.sort_by_key(|at| std::cmp::Reverse(all.get(*at).and_then(|(_, lifetime)| lifetime.ended.clone())));
    let is_waiting = |lifetime: &Lifetime| lifetime.ended.is_none() && lifetime.started.is_none();
    let waiting = (0..all.len()).rev().filter(|at| all.get(*at).is_some_and(|(_, lifetime)| is_waiting(lifetime)));
    let mut kept: BTreeSet<usize> = abnormal.into_iter().take(MAX_ABNORMAL).chain(waiting.take(MAX_WAITING)).collect();
    for at in (0..all.len()).rev() {
        if kept.len() >= MAX_LIVES {
            break;
        }
        kept.insert(at);
    }
    let mut at = 0..;
    all.retain(|_| at.next().is_some_and(|at| kept.contains(&at)));
}

fn lifetime(executor: &Executor, exit: Option<&Exit>) -> Option<(i64, Lifetime)> {
    let created = executor.created?.get().into();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok().map(in_seconds);
    // Its exit is forgotten, or not recorded yet.
    let own_end = || executor.diagnostics.as_deref().filter(|_| executor.state.is_final())?.ended_at();
    let lifetime = Lifetime {
        pod: executor.name.to_string(),
        id: executor.exec_id.map(u64::from),
        created: time(created)?,
        started: executor.started.and_then(|started| time(started.get().into())),
        ended: exit.map(|exit| exit.ended_at()).or_else(own_end).map(in_seconds),
        state: match executor.stage() {
            Stage::Unscheduled => "unscheduled".to_owned(),
            _ => executor.shown_state().as_str().to_owned(),
        },
        cause: exit.map(|exit| exit.cause.as_str().to_owned()),
        abnormal: exit.map_or(executor.state == ExecutorPodState::Failed, |exit| exit.cause.is_abnormal()),
    };
    Some((created, lifetime))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_is_unexplained_if_the_cause_is_unknown_and_the_exit_abnormal() {
        let lifetime = |ended: Option<&str>, state: &str, cause: &str, abnormal| Lifetime {
            pod: "e-1".to_owned(),
            id: Some(1),
            created: "2026-11-24T09:00:00Z".to_owned(),
            started: None,
            ended: ended.map(str::to_owned),
            state: state.to_owned(),
            cause: Some(cause.to_owned()),
            abnormal,
        };
        let ended = Some("2026-11-24T09:30:00Z");
        assert_eq!(lifetime(ended, "failed", "evicted", true).cause_group(), Some(CauseGroup::Cluster));
        assert_eq!(lifetime(ended, "failed", "of-the-future", true).cause_group(), Some(CauseGroup::Unexplained));
        assert_eq!(lifetime(ended, "failed", "of-the-future", false).cause_group(), Some(CauseGroup::Expected));
        // Its exit is not reported yet.
        assert_eq!(lifetime(None, "failed", "", false).cause_group(), Some(CauseGroup::Unexplained));
        assert_eq!(lifetime(None, "succeeded", "", false).cause_group(), Some(CauseGroup::Expected));
        assert_eq!(lifetime(None, "running", "", false).cause_group(), None);
    }
}
