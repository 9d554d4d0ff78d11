//! What becomes of finished executors: nothing, a label, or their end (SPARK.md §4.2, DESIGN "The driver goes first").
//!
//! * While the driver lives it goes first: nothing is written before the grace is over. If we were quicker, it would
//!   never count the failure, and an application that should stop would go on for ever.
//! * When it is gone nobody else will do it, and it is done at once.
//! * When nothing is known of it, nothing is done.
//! * Only pods in a final state are ever touched, by uid and resourceVersion.

use std::time::{Duration, Instant};

use imbl::OrdMap;
use jiff::SignedDuration;

use super::Now;
use super::action::{Action, DriverRef, Finish, Told};
use super::cause::Cause;
use super::exits::Exits;
use super::memory::Memory;
use super::part::{self, Last, Progress};
use super::plan::{self, Plan};
use crate::driver::life::{Crew, DriverLife};
use crate::driver::resolve;
use crate::plant::{self, Bug};
use crate::policy::{Finished, Lifecycle};
use crate::reason::Reason;
use crate::snapshot::{App, DriverPod, Executor, Snapshot, Template};
use crate::spark::habits::Habits;
use crate::spark::ids::{AppKey, PodKey};
use crate::spark::state::ExecutorPodState;

/// When an executor is looked at again whose end is still to be told.
const SOON: Duration = Duration::from_secs(1);
/// A pod that is still there so long after it was to be gone hangs.
const HANGS: SignedDuration = SignedDuration::from_secs(60);

/// What is to be done about the finished executors of one creator.
pub(super) fn plan(
    whole: &plan::View<'_>,
    crew: &Crew<'_>,
    now: Now,
    progress: &mut Progress,
    memory: &Memory,
    exits: &Exits,
    plan: &mut Plan,
) {
    let (snapshot, key, app) = (whole.snapshot, whole.key, whole.app);
    let nothing = OrdMap::new();
    // A few name the trouble: a node that is lost leaves hundreds behind, and `why` shows them all.
    let mut hanging = Vec::new();
    let leaving = crew.roster.map_or(&nothing, |roster| &roster.leaving);
    let mut is_whole = part::go_through(leaving, &mut progress.leaving, |executor| {
        let hangs = if hanging.len() < MOST_HANGING { hangs(key, executor, now) } else { None };
        let is_told = hangs.is_some();
        hanging.extend(hangs);
        is_told
    });
    plan.add(crew.creator, hanging);
    let learned = memory.learned(crew.creator).map(|learned| DriverRef { name: learned.name, uid: learned.uid });
    let last_driver = learned.or_else(|| last_driver(crew));
    let last_driver = last_driver.as_ref();
    let lifecycle = &whole.policies.lifecycle;
    let view = View { snapshot, key, app, crew, last_driver, exits, lifecycle, now };
    let due = of_crew(&view, &mut progress.uncleared);
    is_whole &= due.is_whole;
    due.later.into_iter().for_each(|at| plan.at(at));
    plan.add(crew.creator, due.actions);
    plan.add(crew.creator, too_many_failures(&view, whole));
    if !is_whole {
        plan.is_part(crew.creator, now.at);
    }
}

/// The pod that owns executors.
fn own_driver(executors: &Template) -> Option<DriverRef> {
    // A tenant writes owners; what is no name must not become part of a URL.
    let owner = executors.owner.as_ref().filter(|owner| owner.is_pod && resolve::is_pod_name(&owner.name))?;
    Some(DriverRef { name: owner.name.clone(), uid: owner.uid.clone() })
}

/// A driver's pod of which a uid is known, although nothing was learned before.
fn last_driver(crew: &Crew<'_>) -> Option<DriverRef> {
    let labelled = crew.labelled.first().map(|driver| DriverRef { name: driver.name.clone(), uid: driver.uid.clone() });
    labelled.or_else(|| crew.cohorts.iter().find_map(|cohort| own_driver(&cohort.template)))
}

/// Says when more executors failed than Spark allows (`ExecutorFailureTracker`, exit code 11).
fn too_many_failures(view: &View<'_>, whole: &plan::View<'_>) -> Option<Action> {
    let driver = view.crew.driver.pod()?;
    let habits = view.snapshot.conf(&driver.uid)?.habits;
    // Those of others are not its driver's to count.
    let unclaimed = whole.with_driver_of(view.crew).filter(|other| other.creator.is_none());
    let own = std::iter::once(view.crew).chain(unclaimed);
    let failed = own.map(|crew| view.exits.failures(view.key, crew.creator, habits.failures_expire, view.now.at)).sum();
    let limit = habits.failure_limit();
    if limit >= failed {
        return None;
    }
    Some(Action::Tell(Told {
        pod: PodKey::new(view.key.namespace(), &driver.name),
        uid: driver.uid.clone(),
        reason: Reason::ExecutorFailuresExceeded,
        message: format!(
            "more than {limit} executors failed; Spark 3.5 and newer give the application up (exit code 11)"
        ),
    }))
}

/// What the plan for one creator's executors looks at.
struct View<'v> {
    /// The picture.
    snapshot: &'v Snapshot,
    /// The application's key.
    key: &'v AppKey,
    /// The application.
    app: &'v App,
    /// The executors of one creator, and their driver.
    crew: &'v Crew<'v>,
    /// The driver's pod as it was last known, whose end is looked at again before anything is done because of it.
    last_driver: Option<&'v DriverRef>,
    /// What was noted of its ends.
    exits: &'v Exits,
    /// Settings.
    lifecycle: &'v Lifecycle,
    /// The time.
    now: Now,
}

/// Number of pods of one creator that hang in Terminating and are reported.
const MOST_HANGING: usize = 3;

/// What is to be done now, and when to ask again.
#[derive(Default)]
struct Due {
    /// At most one for each executor.
    actions: Vec<Action>,
    /// When the next grace is over.
    later: Option<Instant>,
    /// Whether these are all.
    is_whole: bool,
}

/// Plans for the executors of one creator.
fn of_crew(view: &View<'_>, last: &mut Last) -> Due {
    let mut due = Due { is_whole: true, ..Due::default() };
    if !view.crew.is_certain && !plant::is(Bug::UnknownIsGone) {
        return due;
    }
    // How long the driver has, and how long after an outage in which it could not act.
    let (wait, after) = match &view.crew.driver {
        DriverLife::Unknown if !plant::is(Bug::UnknownIsGone) => return due,
        DriverLife::Gone | DriverLife::Unknown => (Duration::ZERO, Duration::ZERO),
        DriverLife::Alive(_) if plant::is(Bug::NoGrace) => (Duration::ZERO, Duration::ZERO),
        DriverLife::Alive(_) if plant::is(Bug::GraceIgnoresConf) => (view.lifecycle.grace, Duration::ZERO),
        // It is planned again when the outage is over.
        DriverLife::Alive(_) if view.exits.outages.is_out(view.now.at) && !plant::is(Bug::GraceCountsOutages) => {
            return due;
        }
        DriverLife::Alive(driver) => {
            let conf = view.snapshot.conf(&driver.uid).map_or_else(Habits::default, |conf| conf.habits);
            let notices = conf.notices_within();
            (view.lifecycle.grace.max(notices), notices.min(view.lifecycle.grace))
        }
    };
    let gone = match (&view.crew.driver, view.last_driver) {
        (DriverLife::Gone, None) => return due, // There is nothing to look at before acting.
        (DriverLife::Gone, Some(driver)) => Some(driver.clone()),
        _ => None,
    };
    let keeps = driver_keeps(view);
    let Some(roster) = view.crew.roster.filter(|_| finished_as(view) != Finished::Report) else { return due };
    // These planted bugs act on executors that are none of their business.
    let all = plant::is(Bug::InactiveIgnored) || plant::is(Bug::RunningIsFinished);
    let candidates = if all { view.app.executors() } else { &roster.uncleared };
    let (mut actions, mut later) = (Vec::new(), None);
    due.is_whole = part::go_through(candidates, last, |executor| {
        if all && executor.counts_to() != view.crew.creator {
            return false;
        }
        match of_executor(view, executor, keeps, (wait, after), gone.as_ref()) {
            Next::Now(action) => actions.push(action),
            Next::At(at) => {
                later = Some(later.map_or(at, |later: Instant| later.min(at)));
                return false;
            }
            Next::Never => return false,
        }
        true
    });
    (due.actions, due.later) = (actions, later);
    due
}

/// What becomes of executors that have ended.
fn finished_as(view: &View<'_>) -> Finished {
    match view.lifecycle.finished {
        Finished::Report if plant::is(Bug::ReportIgnored) => Finished::Delete,
        Finished::Label if plant::is(Bug::LabelDeletes) => Finished::Delete,
        finished => finished,
    }
}

/// What is done about one executor, and when.
enum Next {
    /// Now.
    Now(Action),
    /// It is planned again at that time.
    At(Instant),
    /// Nothing, as it is.
    Never,
}

/// `wait` is how long the driver has, and how long after an outage; `gone` is the driver, where it is gone.
fn of_executor(
    view: &View<'_>,
    executor: &Executor,
    keeps: bool,
    (wait, after): (Duration, Duration),
    gone: Option<&DriverRef>,
) -> Next {
    let left_alone = (executor.inactive && !plant::is(Bug::InactiveIgnored))
        || (executor.template.skip && !plant::is(Bug::SkipIgnored));
    let running = executor.deleting && executor.state == ExecutorPodState::Running && plant::is(Bug::RunningIsFinished);
    if left_alone || !(running || (is_finished(executor) && !executor.deleting)) {
        return Next::Never;
    }
    let (since, cause) = match view.exits.of(view.key, &executor.uid) {
        // What is done to it before that, a next leader would take for dealt with.
        Some(note) if note.is_open && !plant::is(Bug::ActsBeforeTelling) => return Next::At(view.now.at + SOON),
        Some(note) => (note.since, note.cause),
        None if running => (view.now.at, Cause::Deleted),
        None => return Next::Never,
    };
    let (how, wait) = match finished_as(view) {
        Finished::Report => return Next::Never,
        Finished::Delete if !keeps => {
            // So that people can look.
            let kept = cause.by_app() && cause.is_abnormal() && !plant::is(Bug::FailedNotKept);
            (Finish::Delete, if kept { wait.max(view.lifecycle.keep_failed) } else { wait })
        }
        Finished::Label | Finished::Delete => (Finish::Label, wait),
    };
    let since = since_or_wall(view, executor, since, wait);
    match view.exits.outages.due(since, wait, after) {
        Some(at) if at <= view.now.at => Next::Now(Action::Finish {
            executor: PodKey::new(view.key.namespace(), &executor.name),
            uid: executor.uid.clone(),
            version: executor.version.as_str().into(),
            how,
            cause,
            gone: gone.map(|last| own_driver(&executor.template).unwrap_or_else(|| last.clone())),
        }),
        Some(at) => Next::At(at),
        None => Next::Never,
    }
}

/// A pod that was to be gone long ago.
fn hangs(key: &AppKey, executor: &Executor, now: Now) -> Option<Action> {
    let deletion = executor.evidence.as_ref()?.deletion.as_ref()?;
    let until = deletion.until?;
    if now.wall.duration_since(until) < HANGS {
        return None;
    }
    let node = executor.node.as_deref().unwrap_or("no node");
    let held = match &*deletion.finalizers {
        [] => format!("no finalizer holds it, so its node does: {node}"),
        all => format!("held by {} (on {node})", all.join(", ")),
    };
    Some(Action::Tell(Told {
        pod: PodKey::new(key.namespace(), &executor.name),
        uid: executor.uid.clone(),
        reason: Reason::TerminationHangs,
        message: format!("was to be gone at {until}; {held}"),
    }))
}

/// When the grace began: by our own clock, whatever the clocks of others say.
fn since_or_wall(view: &View<'_>, executor: &Executor, since: Instant, wait: Duration) -> Instant {
    if !plant::is(Bug::GraceByWallClock) {
        return since;
    }
    let finished = executor.evidence.as_ref().and_then(|evidence| evidence.ended().next()?.1.finished.clone());
    let finished = finished.and_then(|text| text.parse::<jiff::Timestamp>().ok());
    let over = finished.is_some_and(|at| view.now.wall.duration_since(at).unsigned_abs() >= wait);
    if over { view.now.at.checked_sub(wait).unwrap_or(since) } else { view.now.at }
}

/// Failed or succeeded, and for good. A pod that Spark calls deleted is on its way already.
fn is_finished(executor: &Executor) -> bool {
    executor.is_over && matches!(executor.state, ExecutorPodState::Failed | ExecutorPodState::Succeeded)
}

/// Whether the driver keeps its finished executors (`deleteOnTermination=false`): its configuration says so, or cannot be
/// read although there is one, or it has labelled one.
fn driver_keeps(view: &View<'_>) -> bool {
    if plant::is(Bug::KeepsIgnored) {
        return false;
    }
    let keeps = |driver: &DriverPod| match view.snapshot.conf(&driver.uid) {
        Some(conf) => !conf.habits.deletes,
        None => driver.conf_map.is_some(),
    };
    // The crew of executors without an owner does not contain the labelled driver that their address named before it ended.
    let last = || {
        let last = view.last_driver?;
        let (_, driver) = view.snapshot.labelled_driver(view.key.namespace(), &last.name)?;
        Some(driver).filter(|driver| driver.uid == last.uid)
    };
    view.crew.driver.pod().or_else(last).is_some_and(|driver| keeps(driver))
        || view.crew.labelled.iter().any(|driver| keeps(driver))
        || view.crew.roster.is_some_and(|roster| roster.labelled > 0)
}
