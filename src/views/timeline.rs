//! The lives of an application's executors: requested, running, exited; for `why APP`.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::times::shown;
use crate::lifecycle::cause::Cause;
use crate::lifecycle::cause_group::CauseGroup;
use crate::lifecycle::exit::Exit;
use crate::snapshot::{Application, Executor, Stage};

/// At most this many executors are listed per application, the latest.
const MAX_LIVES: usize = 200;

/// The lives of an application's executors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// The namespace.
    pub namespace: String,
    /// The application.
    pub app: String,
    /// Its executors by the time of their creation; the latest 200 that exist, or whose exits are remembered.
    pub executors: Vec<Life>,
    /// How many more there are.
    pub omitted: usize,
}

/// The life of an executor. Times are those that its pod states.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Life {
    /// Its pod.
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
pub struct LifeSpan {
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
    pub lives: Vec<(&'t Life, LifeSpan)>,
    /// When the first of them was created, in seconds since 1970.
    pub begin: i64,
    /// When the last of them ended, or now.
    pub end: i64,
}

impl Timeline {
    /// The scale on which the lives are drawn; `None` if there are none.
    pub fn scale(&self, now: Timestamp) -> Option<Scale<'_>> {
        let lives: Vec<_> = self.executors.iter().filter_map(|life| Some((life, life.span(now)?))).collect();
        let begin = lives.iter().map(|(_, span)| span.created).min()?;
        let end = lives.iter().map(|(_, span)| span.end).max()?.max(begin + 1);
        Some(Scale { lives, begin, end })
    }
}

/// The groups of these lives' causes.
pub fn cause_groups<'l>(lives: impl Iterator<Item = &'l Life>) -> BTreeSet<CauseGroup> {
    lives.filter_map(Life::cause_group).collect()
}

impl Life {
    /// Where to look for the remedy of its exit; `None` if it has not exited. A server of another version may state other causes.
    pub fn cause_group(&self) -> Option<CauseGroup> {
        self.ended.as_ref()?;
        let known = Cause::ALL.iter().find(|cause| self.cause.as_deref() == Some(cause.as_str()));
        let unknown = if self.abnormal { CauseGroup::Unexplained } else { CauseGroup::Expected };
        Some(known.map_or(unknown, |cause| cause.group()))
    }

    /// Its times; `None` if it does not state when it was created.
    pub fn span(&self, now: Timestamp) -> Option<LifeSpan> {
        let seconds = |text: &str| text.parse::<Timestamp>().ok().map(Timestamp::as_second);
        let created = seconds(&self.created)?;
        // The clocks of nodes may differ.
        let end = self.ended.as_deref().and_then(seconds).unwrap_or_else(|| now.as_second()).max(created);
        let started = self.started.as_deref().and_then(seconds).map(|started| started.clamp(created, end));
        Some(LifeSpan { created, started, end })
    }
}

/// The lives of an application's executors; `exits` are those of the application that are remembered.
pub(super) fn timeline(namespace: &str, app: &str, present: &Application, exits: &[&Exit]) -> Timeline {
    let has_exited = |executor: &Executor| exits.iter().any(|exit| exit.executor.uid == executor.uid);
    let live = present.executors().values().filter(|executor| !has_exited(executor));
    let mut all: Vec<(i64, Life)> = live.filter_map(|executor| life(executor, None)).collect();
    all.extend(exits.iter().filter_map(|exit| life(&exit.executor, Some(exit))));
    all.sort_by(|(one, a), (other, b)| (one, a.id, &a.pod).cmp(&(other, b.id, &b.pod)));
    let omitted = all.len().saturating_sub(MAX_LIVES);
    let executors = all.split_off(omitted).into_iter().map(|(_, life)| life).collect();
    Timeline { namespace: namespace.to_owned(), app: app.to_owned(), executors, omitted }
}

fn life(executor: &Executor, exit: Option<&Exit>) -> Option<(i64, Life)> {
    let created = executor.created?.get();
    let time = |seconds: i64| Timestamp::from_second(seconds).ok().map(shown);
    let life = Life {
        pod: executor.name.to_string(),
        id: executor.exec_id,
        created: time(created)?,
        started: executor.started.and_then(|started| time(started.get())),
        ended: exit.map(|exit| shown(exit.ended_at())),
        state: match executor.stage() {
            Stage::Unscheduled => "unscheduled".to_owned(),
            _ => executor.shown_state().as_str().to_owned(),
        },
        cause: exit.map(|exit| exit.cause.as_str().to_owned()),
        abnormal: exit.is_some_and(|exit| exit.cause.is_abnormal()),
    };
    Some((created, life))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_cause_of_another_version_is_unexplained_if_abnormal() {
        let life = |ended: Option<&str>, cause: &str, abnormal| Life {
            pod: "e-1".to_owned(),
            id: Some(1),
            created: "2026-11-24T09:00:00Z".to_owned(),
            started: None,
            ended: ended.map(str::to_owned),
            state: "failed".to_owned(),
            cause: Some(cause.to_owned()),
            abnormal,
        };
        let ended = Some("2026-11-24T09:30:00Z");
        assert_eq!(life(ended, "evicted", true).cause_group(), Some(CauseGroup::Cluster));
        assert_eq!(life(ended, "of-the-future", true).cause_group(), Some(CauseGroup::Unexplained));
        assert_eq!(life(ended, "of-the-future", false).cause_group(), Some(CauseGroup::Expected));
        assert_eq!(life(None, "evicted", true).cause_group(), None);
    }
}
