//! How many executors an application lacks, and why: each executor that does not run, and each that does not exist, has a cause.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::{SignedDuration, Timestamp};

use super::shortage_cause::ShortageCause;
use super::waiting;
use crate::drivers::target::Target;
use crate::lifecycle::cause::Cause;
use crate::lifecycle::cause_group::CauseGroup;
use crate::lifecycle::exit::Exit;
use crate::snapshot::{DriverPhase, DriverPod, Exceeded, Executor, Snapshot, Stage};
use usher_spark::ids::AppKey;
use usher_spark::state::ExecutorPodState;
use usher_spark::time::whole_second;

/// Exits within this time explain executors that do not exist.
const RECENT: SignedDuration = SignedDuration::from_secs(600);
/// At least this many exits of an application's own making are a crash loop.
const CRASH_LOOP: usize = 3;
/// How long a driver has to request executors after its start, and to end after its executors have exited as expected.
const SETTLES_WITHIN: SignedDuration = SignedDuration::from_secs(60);

/// How many executors an application has, wants and lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// How many it wants.
    pub target: Target,
    /// How many run.
    pub running: usize,
    /// How many are pending.
    pub pending: usize,
    /// Since when fewer run than the application wants now; at least since then, if earlier exits are forgotten. `None` if that is not
    /// known.
    pub since: Option<Timestamp>,
    /// The causes, the most frequent first.
    pub causes: Vec<CountedCause>,
    /// How many executors exited abnormally within ten minutes, by cause: `2 failed with an error, 1 evicted`. Empty if none did, or if
    /// a cause above says it.
    pub exits: String,
}

/// A cause, and how many executors it concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedCause {
    pub kind: ShortageCause,
    /// How many executors.
    pub count: usize,
    /// What is known, for people; of one of them.
    pub message: String,
}

/// A driver that wants executors, and what is known of those that exited.
#[derive(Clone, Copy, Debug)]
pub struct Demand<'v> {
    pub snapshot: &'v Snapshot,
    /// The application's key.
    pub key: &'v AppKey,
    pub driver: &'v DriverPod,
    /// How many executors it wants.
    pub target: Target,
    /// The exits of the application that are remembered.
    pub exits: &'v [&'v Exit],
    /// Whether others are forgotten.
    pub forgotten: bool,
    /// The time.
    pub now: Timestamp,
}

/// What an application lacks; `None` if it lacks none.
pub fn shortage(demand: Demand<'_>) -> Option<Shortage> {
    let Demand { snapshot, key, target, exits, now, .. } = demand;
    let mut causes: BTreeMap<ShortageCause, (usize, String)> = BTreeMap::new();
    let mut add = |kind: ShortageCause, count: usize, message: String| {
        let (known, said) = causes.entry(kind).or_default();
        if *known == 0 || waiting::says_more(&message, said) {
            *said = message;
        }
        *known += count;
    };
    let mut running: Vec<&Executor> = Vec::new();
    let (mut pending, mut terminating, mut member) = (0, Vec::new(), None);
    let mut succeeded: Vec<&str> = Vec::new();
    for executor in snapshot.apps.get(key)?.executors().values() {
        match executor.stage() {
            _ if executor.state == ExecutorPodState::Succeeded => succeeded.push(&executor.uid),
            _ if !executor.is_live() => {}
            _ if executor.deleting => terminating.push(executor),
            Stage::Unscheduled | Stage::Initializing | Stage::Starting => {
                pending += 1;
                let (kind, message) = waiting::cause(snapshot, key, (&**executor).into());
                add(kind, 1, message);
                if kind == ShortageCause::Gang {
                    member.get_or_insert(&**executor);
                }
            }
            _ => running.push(&**executor),
        }
    }
    let wanted = usize::try_from(target.count).unwrap_or(usize::MAX);
    let mut missing = wanted.saturating_sub(running.len() + pending);
    if let Some(one) = terminating.first().filter(|_| missing > 0) {
        let count = missing.min(terminating.len());
        missing -= count;
        add(ShortageCause::Terminating, count, format!("{} is being deleted", one.name));
    }
    if missing > 0 {
        let is_expected =
            |exit: &&&Exit| exit.cause.group() == CauseGroup::Expected && now.duration_since(exit.at) <= SETTLES_WITHIN;
        // Exits that are not remembered yet: it may take until their driver's is known.
        let known: BTreeSet<&str> = exits.iter().map(|exit| &*exit.executor.uid).collect();
        let new = succeeded.iter().filter(|uid| !known.contains(**uid)).count();
        // The application ends, or has just ended.
        if pending == 0 && terminating.is_empty() && exits.iter().filter(is_expected).count() + new >= missing {
            return None;
        }
        for (kind, count, message) in of_missing(demand, missing) {
            add(kind, count, message);
        }
    }
    if running.len() >= wanted {
        return None;
    }
    let says_exits = |kind| matches!(kind, ShortageCause::CrashLoop | ShortageCause::NodeFault | ShortageCause::Exited);
    let recent = if causes.keys().copied().any(says_exits) { String::new() } else { recent(exits, now, |_| true).1 };
    if let Some(((_, message), member)) = causes.get_mut(&ShortageCause::Gang).zip(member) {
        *message = waiting::of_gang(snapshot, key, member.into(), std::mem::take(message));
    }
    let mut causes: Vec<CountedCause> =
        causes.into_iter().map(|(kind, (count, message))| CountedCause { kind, count, message }).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.count));
    let since = lacks_since(demand, &running, wanted);
    Some(Shortage { target, running: running.len(), pending, since, causes, exits: recent })
}

/// Since when fewer than `wanted` executors have run: goes back through the times at which those that run, and those that exited,
/// started and exited. If as many never ran, since the driver's start; but if exits are forgotten, since the first that is known.
fn lacks_since(demand: Demand<'_>, running: &[&Executor], wanted: usize) -> Option<Timestamp> {
    let started = |executor: &Executor| executor.started.or(executor.created).map(|seconds| i64::from(seconds.get()));
    let starts = running.iter().filter_map(|executor| Some((started(executor)?, true)));
    // One that was rejected or never started has not run.
    let ran = demand.exits.iter().filter(|exit| exit.executor.started.is_some() || exit.exit_code().is_some());
    let lives = ran.filter_map(|exit| {
        let started = started(&exit.executor)?;
        Some([(started, true), (exit.ended_at().as_second().max(started), false)])
    });
    let mut events: Vec<(i64, bool)> = starts.chain(lives.flatten()).collect();
    // The latest first. Within a second, an exit precedes the start of its replacement.
    events.sort_unstable_by_key(|event| std::cmp::Reverse(*event));
    let mut count = running.len();
    let first = events.last().and_then(|(at, _)| Timestamp::from_second(*at).ok());
    for (at, is_start) in events {
        if is_start {
            count = count.saturating_sub(1);
        } else {
            count += 1;
            if count >= wanted {
                return Timestamp::from_second(at).ok();
            }
        }
    }
    began(demand.driver).filter(|_| !demand.forgotten).or(first)
}

fn began(driver: &DriverPod) -> Option<Timestamp> {
    driver.began.and_then(|began| Timestamp::from_second(began.get().into()).ok())
}

/// How many of an application's executors exited abnormally within ten minutes, of those with a cause that is `wanted`; and in
/// words, by cause.
fn recent(exits: &[&Exit], now: Timestamp, wanted: impl Fn(Cause) -> bool) -> (usize, String) {
    let is_recent = |exit: &&&Exit| now.duration_since(exit.ended_at()) <= RECENT;
    counted(exits.iter().filter(|exit| exit.cause.is_abnormal() && wanted(exit.cause)).filter(is_recent).copied())
}

/// How many exits there are, and in words, by cause.
fn counted<'e>(exits: impl Iterator<Item = &'e Exit>) -> (usize, String) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for exit in exits {
        *counts.entry(exit.cause.phrase()).or_default() += 1;
    }
    let words: Vec<String> = counts.iter().map(|(cause, count)| format!("{count} {cause}")).collect();
    (counts.values().sum(), words.join(", "))
}

/// The abnormal exits after which no other executor was created in place of the one that exited, the oldest first. Each executor
/// replaces the one that exited first.
fn not_replaced(demand: Demand<'_>) -> VecDeque<&Exit> {
    let Demand { snapshot, key, exits, .. } = demand;
    let created = |executor: &Executor| executor.created.map(|seconds| (i64::from(seconds.get()), None));
    let present = || snapshot.apps.get(key).into_iter().flat_map(|app| app.executors().values());
    let exited: BTreeSet<&str> = exits.iter().map(|exit| &*exit.executor.uid).collect();
    let others = present().filter(|executor| !exited.contains(&*executor.uid));
    let all = others.map(|executor| &**executor).chain(exits.iter().map(|exit| &*exit.executor));
    let mut events: Vec<(i64, Option<&Exit>)> = all.filter_map(created).collect();
    let abnormal = exits.iter().filter(|exit| exit.cause.is_abnormal());
    events.extend(abnormal.map(|exit| (exit.ended_at().as_second(), Some(*exit))));
    // Within a second, an exit precedes the creation of its replacement.
    events.sort_by_key(|(at, exit)| (*at, exit.is_none()));
    let mut open = VecDeque::new();
    for (_, exit) in events {
        match exit {
            Some(exit) => open.push_back(exit),
            None => drop(open.pop_front()),
        }
    }
    open
}

/// Why that many executors do not exist.
fn of_missing(demand: Demand<'_>, missing: usize) -> Vec<(ShortageCause, usize, String)> {
    let Demand { driver, now, .. } = demand;
    let all = |(kind, message)| vec![(kind, missing, message)];
    if let Some(cause) = of_all_missing(demand) {
        return all(cause);
    }
    let age = began(driver).map(|began| now.duration_since(began)).filter(|age| *age <= SETTLES_WITHIN);
    let unrequested = if let Some(age) = age {
        let age = age.as_secs().max(0);
        (
            ShortageCause::Starting,
            format!("its driver {} started {age} s ago and has not requested it yet", driver.name),
        )
    } else {
        let message = "the API server may have refused it (a permission, or a webhook): see the driver's log";
        (ShortageCause::NotRequested, message.to_owned())
    };
    // They exited long ago, but nothing has changed since.
    let since = began(driver).unwrap_or(Timestamp::MIN);
    let mut lost = not_replaced(demand);
    lost.retain(|exit| exit.ended_at() >= since);
    lost.drain(..lost.len().saturating_sub(missing));
    let Some(last) = lost.back() else { return all(unrequested) };
    let is_by_cluster = lost.iter().all(|exit| is_by_cluster(exit.cause));
    let kind = if is_by_cluster { ShortageCause::NodeFault } else { ShortageCause::Exited };
    let at = whole_second(last.ended_at());
    let (count, words) = counted(lost.into_iter());
    let them = if count == 1 { "it" } else { "them" };
    let message = format!("{words}, the last at {at}, and its driver has not replaced {them}: see the driver's log");
    let (other, why) = unrequested;
    let others = (other, missing.saturating_sub(count), why);
    std::iter::once((kind, count, message)).chain(Some(others).filter(|(_, count, _)| *count > 0)).collect()
}

/// Whether the node or the control plane ended the executor, and no recovery rule.
fn is_by_cluster(cause: Cause) -> bool {
    cause.group() == CauseGroup::Cluster && cause != Cause::DeletedByRule
}

/// The one cause for which an application has no more executors than it has, if one is known now.
fn of_all_missing(demand: Demand<'_>) -> Option<(ShortageCause, String)> {
    let Demand { snapshot, key, driver, exits, now, .. } = demand;
    let within = |words: String| format!("{words} within {} minutes", RECENT.as_secs() / 60);
    let diagnostics = driver.diagnostics.as_deref();
    // The phase is Pending until every container has started, a companion too.
    let container = diagnostics.and_then(|diagnostics| diagnostics.spark());
    let has_started = container.is_some_and(|container| container.is_running());
    if driver.phase == DriverPhase::Pending && !has_started {
        if let Some((kind, why)) = diagnostics.and_then(|diagnostics| diagnostics.stuck()).map(waiting::of_stuck) {
            return Some((kind, format!("its driver {}: {why}", driver.name)));
        }
        let (kind, why) = waiting::cause(snapshot, key, driver.into());
        if driver.node.is_none() && kind != ShortageCause::Unscheduled {
            let why = if why.is_empty() { " waits for its gang".to_owned() } else { format!(": {why}") };
            return Some((kind, format!("its driver {}{why}", driver.name)));
        }
        return Some((ShortageCause::Starting, format!("its driver {} has not started", driver.name)));
    }
    let (by_app, words) = recent(exits, now, Cause::by_app);
    if by_app >= CRASH_LOOP {
        return Some((ShortageCause::CrashLoop, within(words)));
    }
    if let Some(message) = exceeded_quota(snapshot, key, driver) {
        return Some((ShortageCause::Quota, message));
    }
    let (by_node, words) = recent(exits, now, is_by_cluster);
    if by_node > 0 {
        return Some((ShortageCause::NodeFault, within(words)));
    }
    let (all, words) = recent(exits, now, |_| true);
    (all > 0).then(|| (ShortageCause::Exited, within(words)))
}

/// The ResourceQuota that leaves no room for another executor.
fn exceeded_quota(snapshot: &Snapshot, key: &AppKey, driver: &DriverPod) -> Option<String> {
    let quotas = snapshot.quotas.get(key.namespace()).filter(|quotas| !quotas.is_empty())?;
    // As the newest executors, or as Spark's own arithmetic states.
    let templates = snapshot.apps.get(key).map(|app| app.by_template());
    let newest = templates.as_ref().and_then(|all| all.iter().max_by_key(|counts| counts.highest_id));
    let by_conf = || snapshot.conf(key, driver).and_then(|conf| conf.executor.clone().ok());
    let requests = newest.map(|counts| counts.template.requests.clone()).or_else(by_conf).unwrap_or_default();
    quotas.iter().find_map(|quota| {
        let Exceeded { resource, hard, used, requested } = quota.exceeded_by(&requests)?;
        let requested = requested.filter(|_| !resource.ends_with("pods"));
        let requested = requested.map(|amount| format!("; an executor requests {amount}")).unwrap_or_default();
        Some(format!("ResourceQuota {}: {used} of {hard} {resource} in use{requested}", quota.name))
    })
}
