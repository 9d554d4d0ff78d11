//! Reports about applications and executors: `/debug/apps`, `/debug/why`, `spark-usher apps` and `why`.
//!
//! The server and the CLI use the same types; times are RFC 3339.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use usher_core::drivers::{self, Registration};
use usher_core::lifecycle::exit::Exit;
use usher_core::lifecycle::remembered::RememberedExits;
use usher_core::nodes::NodeLedger;
use usher_core::ownership::elsewhere::CreatorElsewhere;
use usher_core::ownership::liveness::{self, DriverLiveness};
use usher_core::ownership::workload::{self, OwningPod};
use usher_core::recovery::RecoveryFindings;
use usher_core::recovery::cost::CostLedger;
use usher_core::recovery::report::DeletedPod;
use usher_core::recovery::waiting;
use usher_core::signature::{StatedCreator, namespace_of_account};
use usher_core::snapshot::{Application, DriverPhase, DriverPod, Executor, Snapshot, TemplateCounts};
use usher_spark::diagnostics::PodDiagnostics;
use usher_spark::ids::{AppKey, PodIdentity};
use usher_spark::lifecycle_conf::LifecycleConf;
use usher_spark::names::app_name_of_pod;
use usher_spark::state::ExecutorPodState;
use usher_spark::time::in_seconds;

mod costs;
mod groups;
mod namespaces;
mod need;
mod nodes;
mod pod_history;
mod recovery_reports;
mod reports;
mod status;
mod timeline;

pub use costs::{CostReport, CostRow, core_hours, costs, gib_hours};
pub use groups::GroupReport;
pub use namespaces::{NamespaceNeeds, largest, namespace_needs};
use need::{Need, need};
pub use nodes::{FaultReport, NodeReport, NodesReport, SuspicionReport, nodes};
pub use pod_history::HistoryBuilder;
pub use recovery_reports::{DeletionReport, FindingReport, ShortageCauseReport, ShortageReport, TargetReport};
use recovery_reports::{deletion, finding};
pub use reports::{
    AppReport, DriverReport, DriverRowReport, DriverViewReport, ExecutorReport, ExitReport, HistoryEntry,
    HistoryReport, Lacking, Of, SparkReport, WhyReport,
};
pub use status::AppStatus;
pub use timeline::{Lifetime, LifetimeSpan, Scale, Timeline, cause_groups};

/// What happened, beside the snapshot.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub exits: RememberedExits,
    /// What the recovery rules found, and which pods they deleted.
    pub recovery: RecoveryFindings,
    /// What executors cost that did no work.
    pub costs: CostLedger,
    /// The nodes on which executors failed.
    pub nodes: NodeLedger,
}

/// At most this many deletions by recovery rules are listed per application.
const MAX_DELETIONS: usize = 10;
/// At most this many exits are listed per application.
const MAX_EXITS: usize = 10;
/// At most this many executors in trouble are listed per application.
const MAX_TROUBLED: usize = 20;

/// Every application, or those of one namespace.
pub fn apps(snapshot: &Snapshot, history: &History, namespace: Option<&str>, now: Timestamp) -> Vec<AppReport> {
    reports(snapshot, history, now, |key, _, _| namespace.is_none_or(|namespace| key.namespace() == namespace))
}

/// What a name refers to: a pod, an application, or a driver.
pub fn why(snapshot: &Snapshot, history: &History, name: &str, namespace: Option<&str>, now: Timestamp) -> WhyReport {
    let wanted = |key: &AppKey| namespace.is_none_or(|namespace| key.namespace() == namespace);
    let names = &Names::of(snapshot, history);
    let executors = snapshot.apps.iter().filter(|(key, _)| wanted(key)).flat_map(|(key, app)| {
        let named = app.executors().values().filter(|executor| &*executor.name == name);
        named.map(move |executor| {
            let liveness = liveness::of(&liveness::shown_sets(key, app, snapshot));
            names.of_app(key, executor_report(snapshot, history, key, executor, &liveness, now))
        })
    });
    let mut executors: Vec<Of<ExecutorReport>> = executors.collect();
    executors.sort_by(|a, b| a.app.cmp(&b.app));
    let mut ended: Vec<&Exit> =
        history.exits.iter().filter(|exit| wanted(&exit.app) && &*exit.executor.name == name).collect();
    ended.sort_by_key(|exit| std::cmp::Reverse(exit.ended_at()));
    let is_app = |key: &AppKey, app: &Application, exits: &[&Exit]| {
        let is_called = || app_name(snapshot, key, app, exits) == name;
        let drives = || driver_names(snapshot, key, app, exits).any(|driver| driver == name);
        wanted(key) && (key.selector() == name || is_called() || drives())
    };
    let mut apps = reports(snapshot, history, now, is_app);
    // The last run first.
    apps.sort_by(|one, other| other.started.cmp(&one.started));
    WhyReport {
        executors,
        exits: ended.into_iter().map(|exit| names.of_app(&exit.app, exit_report(snapshot, history, exit))).collect(),
        apps,
        timelines: timelines(snapshot, history, is_app),
        histories: Vec::new(),
    }
}

/// One application, with the lives of its executors.
pub fn application(snapshot: &Snapshot, history: &History, namespace: &str, name: &str, now: Timestamp) -> WhyReport {
    let is_it = |key: &AppKey, _: &Application, _: &[&Exit]| key.namespace() == namespace && key.selector() == name;
    WhyReport {
        apps: reports(snapshot, history, now, is_it),
        timelines: timelines(snapshot, history, is_it),
        ..WhyReport::default()
    }
}

/// The lives of the executors of the selected applications.
fn timelines(
    snapshot: &Snapshot,
    history: &History,
    wanted: impl Fn(&AppKey, &Application, &[&Exit]) -> bool,
) -> Vec<Timeline> {
    let lifetimes = |key: &AppKey, app: &Application, exits: &[&Exit]| {
        timeline::timeline(key.namespace(), key.selector(), app, exits)
    };
    selected(snapshot, history, wanted, lifetimes)
}

/// Reports of the selected applications, including those of which only exits are left.
fn reports(
    snapshot: &Snapshot,
    history: &History,
    now: Timestamp,
    wanted: impl Fn(&AppKey, &Application, &[&Exit]) -> bool,
) -> Vec<AppReport> {
    selected(snapshot, history, wanted, |key, app, exits| report(snapshot, history, key, app, exits, now))
}

/// The exits that are remembered, by application.
fn exits_by_app(history: &History) -> BTreeMap<&AppKey, Vec<&Exit>> {
    let mut exits: BTreeMap<&AppKey, Vec<&Exit>> = BTreeMap::new();
    for exit in history.exits.iter() {
        exits.entry(&exit.app).or_default().push(exit);
    }
    exits
}

/// What people call applications.
struct Names<'a> {
    snapshot: &'a Snapshot,
    history: &'a History,
    exits: BTreeMap<&'a AppKey, Vec<&'a Exit>>,
    nothing: Application,
}

impl<'a> Names<'a> {
    fn of(snapshot: &'a Snapshot, history: &'a History) -> Names<'a> {
        Names { snapshot, history, exits: exits_by_app(history), nothing: Application::default() }
    }

    /// An item of an application.
    fn of_app<T>(&self, key: &AppKey, what: T) -> Of<T> {
        Of { app: key.to_string(), name: self.name(key).to_owned(), what }
    }

    /// The name of an application, also of one of which only exits are remembered; its selector, if nothing is known.
    fn name<'n>(&'n self, key: &'n AppKey) -> &'n str {
        let app = self.snapshot.apps.get(key).map_or(&self.nothing, |app| app);
        app_name(self.snapshot, key, app, self.exits.get(key).map_or(&[], Vec::as_slice))
    }
}

/// Something of each of the selected applications, by namespace and name.
fn selected<T>(
    snapshot: &Snapshot,
    history: &History,
    wanted: impl Fn(&AppKey, &Application, &[&Exit]) -> bool,
    report: impl Fn(&AppKey, &Application, &[&Exit]) -> T,
) -> Vec<T> {
    let exits = exits_by_app(history);
    let nothing = Application::default();
    let present = snapshot.apps.iter().map(|(key, app)| (key, &**app));
    let left = exits.keys().filter(|key| !snapshot.apps.contains_key(**key)).map(|key| (*key, &nothing));
    let all = present.chain(left).map(|(key, app)| (key, app, exits.get(key).map_or(&[][..], Vec::as_slice)));
    let mut all: Vec<_> = all.filter(|(key, app, exits)| wanted(key, app, exits)).collect();
    all.sort_by_key(|(key, ..)| (key.namespace(), key.selector()));
    all.into_iter().map(|(key, app, exits)| report(key, app, exits)).collect()
}

fn report(
    snapshot: &Snapshot,
    history: &History,
    key: &AppKey,
    app: &Application,
    exits: &[&Exit],
    now: Timestamp,
) -> AppReport {
    let mut executors = BTreeMap::new();
    for executor in app.executors().values() {
        *executors.entry(executor.shown_state().as_str().to_owned()).or_default() += 1;
    }
    let mut ended = BTreeMap::new();
    for exit in exits {
        *ended.entry(exit.cause.as_str().to_owned()).or_default() += 1;
    }
    let sets = liveness::shown_sets(key, app, snapshot);
    let liveness = liveness::of(&sets);
    let gone = liveness == DriverLiveness::Gone;
    let in_trouble = |executor: &&Arc<Executor>| {
        let is_odd = || {
            let orphaned = gone && executor.is_live();
            let is_trouble = |diagnostics: &Arc<PodDiagnostics>| diagnostics.is_trouble();
            executor.diagnostics.as_ref().is_some_and(is_trouble)
                || orphaned
                || executor.state == ExecutorPodState::Unknown
        };
        executor.lingers
            || !executor.state.is_final() && (is_odd() || not_with_driver(snapshot, key, executor).is_some())
    };
    let troubled = app.executors().values().filter(in_trouble).take(MAX_TROUBLED);
    let mut last = exits.to_vec();
    last.sort_by_key(|exit| std::cmp::Reverse((exit.cause.is_abnormal(), exit.ended_at())));
    last.truncate(MAX_EXITS);
    last.sort_by_key(|exit| std::cmp::Reverse(exit.ended_at()));
    let Need { target, shortage } = need(snapshot, &history.exits, key, &sets, exits, now);
    let driver = driver(snapshot, key, app, exits, &liveness);
    let is_unowned = |executor: &&Arc<Executor>| executor.is_live() && executor.template.owner.is_none();
    AppReport {
        namespace: key.namespace().to_owned(),
        app: key.selector().to_owned(),
        name: app_name(snapshot, key, app, exits).to_owned(),
        started: driver.created.clone().or_else(|| first_executor(app, exits)),
        driver,
        driver_view: liveness.pod().and_then(|driver| driver_view(snapshot, key, app, exits, driver)),
        executors,
        target: target.map(recovery_reports::target),
        shortage: shortage.map(recovery_reports::shortage),
        unowned: match liveness {
            DriverLiveness::Unknown => app.executors().values().filter(is_unowned).count(),
            DriverLiveness::Alive(_) | DriverLiveness::Gone => 0,
        },
        groups: groups::groups(snapshot, key, app),
        findings: history.recovery.of(key).into_iter().flat_map(|report| &report.findings).map(finding).collect(),
        deletions: history.recovery.deleted_of(key).rev().take(MAX_DELETIONS).map(deletion).collect(),
        troubled: troubled.map(|executor| executor_report(snapshot, history, key, executor, &liveness, now)).collect(),
        ended,
        forgotten: history.exits.forgotten(key),
        exits: last.into_iter().map(|exit| exit_report(snapshot, history, exit)).collect(),
    }
}

/// Names of driver pods, by their label or as executors name them, including deleted ones; the likeliest first.
fn driver_names<'a>(
    snapshot: &'a Snapshot,
    key: &'a AppKey,
    app: &'a Application,
    exits: &'a [&'a Exit],
) -> impl Iterator<Item = &'a str> {
    let owner = |executor: &'a Executor| match workload::owning_pod(
        snapshot,
        key.namespace(),
        executor.template.owner.as_ref()?,
    ) {
        OwningPod::Pod(owner) => Some(&*owner.name),
        OwningPod::Unread | OwningPod::None => None,
    };
    let labelled = app.live_driver().into_iter().chain(&app.drivers).map(|driver| &*driver.name);
    let named = app.executors().values().filter_map(move |executor| owner(executor));
    labelled.chain(named).chain(exits.iter().rev().filter_map(move |exit| owner(&exit.executor)))
}

fn driver(
    snapshot: &Snapshot,
    key: &AppKey,
    app: &Application,
    exits: &[&Exit],
    liveness: &DriverLiveness,
) -> DriverReport {
    let namespace = key.namespace();
    let elsewhere = || {
        let creator_of = |counts: &TemplateCounts| CreatorElsewhere::of(&counts.template, counts.is_proven, snapshot);
        app.by_template().into_iter().filter_map(creator_of).find(CreatorElsewhere::is_driver)
    };
    let found = match liveness {
        DriverLiveness::Alive(pod) => Some(pod.name.to_string()),
        DriverLiveness::Gone | DriverLiveness::Unknown => {
            driver_names(snapshot, key, app, exits).next().map(str::to_owned)
        }
    };
    let (pod, name) = match found {
        Some(name) => (snapshot.driver_pod(namespace, &name), Some(name)),
        None => match elsewhere() {
            Some(CreatorElsewhere { pod: PodIdentity { key, uid }, .. }) => {
                let pod = snapshot.driver_pod(key.namespace(), key.name()).filter(|pod| pod.uid == uid);
                (pod, Some(key.to_string()))
            }
            None => (None, None),
        },
    };
    // Nothing but exits is left, and the driver of the last one was over.
    let was_over = || exits.last().is_some_and(|exit| exit.driver.is_over()) && app.executors().is_empty();
    let liveness = match liveness {
        DriverLiveness::Unknown if pod.is_none() && was_over() => "gone",
        DriverLiveness::Alive(_) => "alive",
        DriverLiveness::Gone => "gone",
        DriverLiveness::Unknown => "unknown",
    };
    DriverReport {
        liveness: liveness.to_owned(),
        state: pod.map(|pod| pod.state().to_owned()),
        node: pod.and_then(|pod| pod.node.as_deref()).map(str::to_owned),
        why: pod.and_then(|pod| pod.why(waiting::not_scheduled(snapshot, key, (&**pod).into()))),
        created: pod.and_then(|pod| pod.created).and_then(seconds),
        ended: pod
            .filter(|pod| pod.phase == DriverPhase::Ended)
            .and_then(|pod| pod.diagnostics.as_ref()?.ended_at())
            .map(in_seconds),
        pod: name,
    }
}

fn seconds(seconds: NonZeroU32) -> Option<String> {
    Timestamp::from_second(seconds.get().into()).ok().map(in_seconds)
}

/// When the first of its executors that are known was created.
fn first_executor(app: &Application, exits: &[&Exit]) -> Option<String> {
    let present = app.executors().values().map(|executor| &**executor);
    let all = present.chain(exits.iter().map(|exit| &*exit.executor));
    all.filter_map(|executor| executor.created).min().and_then(seconds)
}

/// What a person calls an application; see [`AppReport::name`].
fn app_name<'a>(snapshot: &'a Snapshot, key: &'a AppKey, app: &'a Application, exits: &'a [&'a Exit]) -> &'a str {
    let of_exit = || exits.iter().rev().find_map(|exit| exit.executor.template.app_name.as_ref());
    let executors = || app.executors().values().chain(exits.iter().rev().map(|exit| &exit.executor));
    let of_pod = || {
        let driver = driver_names(snapshot, key, app, exits).next();
        driver.or_else(|| executors().next().map(|executor| &*executor.name)).map(app_name_of_pod)
    };
    let stated = app.name().or_else(of_exit).map(|name| &**name);
    stated.or_else(of_pod).filter(|name| !name.is_empty()).unwrap_or_else(|| key.selector())
}

/// At most this many exec ids are listed.
const MAX_VANISHED: usize = 20;

fn driver_view(
    snapshot: &Snapshot,
    key: &AppKey,
    app: &Application,
    exits: &[&Exit],
    driver: &DriverPod,
) -> Option<DriverViewReport> {
    let view = drivers::view_of(snapshot, key, driver.creator)?;
    let conf = snapshot.conf(key, driver).map_or_else(LifecycleConf::default, |conf| conf.lifecycle);
    let noticed = view.wall - conf.detection_time();
    let is_recent =
        |id: u64| exits.iter().any(|exit| exit.executor.exec_id.map(u64::from) == Some(id) && exit.at > noticed);
    let vanished = drivers::without_pod(view.executors(), snapshot, key, app, driver)
        .filter_map(|row| row.id)
        .filter(|id| !is_recent(*id));
    Some(DriverViewReport {
        at: in_seconds(view.wall),
        registered: view.executors().iter().filter(|row| row.is_active).count(),
        target: view.metrics.target,
        vanished: vanished.take(MAX_VANISHED).collect(),
        complete: view.is_complete(),
    })
}

/// An executor registers within seconds of its start: until this age, that it has not is no trouble.
const REGISTERS_WITHIN: Duration = Duration::from_secs(120);

/// That a running executor is not registered with its driver, or was removed by it.
fn not_with_driver(snapshot: &Snapshot, key: &AppKey, executor: &Executor) -> Option<String> {
    if executor.state != ExecutorPodState::Running || executor.inactive {
        return None;
    }
    match drivers::registration(snapshot, key, executor, REGISTERS_WITHIN) {
        Registration::Unknown | Registration::Registered(_) => None,
        Registration::NotRegistered => Some("runs, but is not registered with its driver".to_owned()),
        Registration::Removed(row) => {
            let at = row.removed.map_or_else(String::new, |at| format!(" at {}", in_seconds(at)));
            let reason = row.remove_reason.as_deref().map_or_else(String::new, |reason| format!(": {reason}"));
            Some(format!("runs, but its driver removed it{at}{reason}"))
        }
    }
}

fn executor_report(
    snapshot: &Snapshot,
    history: &History,
    key: &AppKey,
    executor: &Executor,
    liveness: &DriverLiveness,
    now: Timestamp,
) -> ExecutorReport {
    ExecutorReport {
        pod: executor.name.to_string(),
        uid: executor.uid.to_string(),
        id: executor.exec_id.map(u64::from),
        state: executor.shown_state().as_str().to_owned(),
        node: executor.node.as_deref().map(str::to_owned),
        why: diagnosis(snapshot, key, executor, liveness),
        done: done(executor, now),
        recovery: history.recovery.of(key).and_then(|report| {
            let finding = report.findings.iter().find(|finding| finding.uid == executor.uid)?;
            Some(format!("{} ({}): {}", finding.outcome.text(), finding.rule.as_str(), finding.message))
        }),
        driver_row: driver_row(snapshot, key, executor),
    }
}

/// Why an executor without an owner has none, and what would give it one.
fn unowned(snapshot: &Snapshot, namespace: &str, executor: &Executor) -> String {
    let creator = executor.template.proven_creator(executor.is_proven);
    let elsewhere = CreatorElsewhere::of(&executor.template, executor.is_proven, snapshot);
    let pod = elsewhere.map(|CreatorElsewhere { pod, is_gone, .. }| {
        format!("pod {}{}", pod.key, if is_gone { ", which exited or was deleted," } else { "" })
    });
    let account = creator.and_then(StatedCreator::account).filter(|account| {
        namespace_of_account(account).is_some_and(|account_namespace| account_namespace != namespace)
    });
    match pod.or_else(|| account.map(str::to_owned)) {
        Some(creator) => format!("{creator} created it, and no pod can own one of another namespace"),
        None => {
            "its driver is not known; if that runs in a pod of this namespace, spark.kubernetes.driver.pod.name names it"
                .to_owned()
        }
    }
}

/// Why an existing executor is in its state.
fn diagnosis(snapshot: &Snapshot, key: &AppKey, executor: &Executor, liveness: &DriverLiveness) -> Option<String> {
    let nothing = PodDiagnostics::default();
    let diagnostics = executor.diagnostics.as_deref().unwrap_or(&nothing);
    let mut parts = Vec::new();
    match liveness {
        DriverLiveness::Gone if executor.is_live() => {
            parts.push("has no driver: its driver exited or was deleted".to_owned());
        }
        DriverLiveness::Unknown if executor.is_live() && executor.template.owner.is_none() => {
            let why = unowned(snapshot, key.namespace(), executor);
            parts.push(format!("has no ownerReference to a driver: nothing deletes it when its driver ends ({why})"));
        }
        DriverLiveness::Alive(_) | DriverLiveness::Gone | DriverLiveness::Unknown => {}
    }
    parts.extend(not_with_driver(snapshot, key, executor));
    if diagnostics.deletion.is_some() {
        parts.extend(usher_core::lifecycle::cause::by_whom(diagnostics).map(|who| format!("deleted by {who}")));
    }
    if executor.state.is_final() {
        parts.extend(diagnostics.exit_message());
    } else {
        parts.extend(diagnostics.starting_message());
        parts.extend(waiting::not_scheduled(snapshot, key, executor.into()));
        parts.extend(diagnostics.restarts());
    }
    if executor.lingers {
        let running: Vec<&str> = diagnostics.running_on().collect();
        let node = executor.node.as_deref().unwrap_or("its node");
        parts.push(format!("holds what it requests on {node}, because container {} still runs", running.join(", ")));
    }
    if executor.state == ExecutorPodState::Unknown {
        parts.push("its phase is Unknown: its node does not respond".to_owned());
    }
    if parts.is_empty() && executor.state == ExecutorPodState::Pending {
        parts.push(executor.template.scheduling.awaited(executor.node.as_deref()));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What was done with an executor.
fn done(executor: &Executor, now: Timestamp) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(deletion) = executor.diagnostics.as_ref().and_then(|diagnostics| diagnostics.deletion.as_ref()) {
        let until = deletion.until.map_or_else(String::new, |until| {
            let verb = if until < now { "ended" } else { "ends" };
            format!(" (its grace period {verb} at {})", in_seconds(until))
        });
        parts.push(format!("is being deleted{until}"));
        if !deletion.finalizers.is_empty() {
            parts.push(format!("its deletion is blocked by finalizers: {}", deletion.finalizers.join(", ")));
        }
    }
    if executor.inactive {
        let who = if executor.inactive_by_usher { "spark-usher" } else { "its driver" };
        parts.push(format!("was labelled inactive by {who}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn deleted_by(deleted: &DeletedPod) -> String {
    format!("deleted by spark-usher at {} ({}): {}", in_seconds(deleted.at), deleted.rule.as_str(), deleted.message)
}

/// What the driver's REST API says about an executor.
fn driver_row(snapshot: &Snapshot, key: &AppKey, executor: &Executor) -> Option<DriverRowReport> {
    let row = drivers::row_of(snapshot, key, executor)?;
    Some(DriverRowReport {
        registered: row.registered.map(in_seconds),
        removed: row.removed.map(in_seconds),
        reason: row.remove_reason.as_deref().map(str::to_owned),
    })
}

fn exit_report(snapshot: &Snapshot, history: &History, exit: &Exit) -> ExitReport {
    let spark = exit.spark();
    ExitReport {
        pod: exit.executor.name.to_string(),
        uid: exit.executor.uid.to_string(),
        id: exit.executor.exec_id.map(u64::from),
        node: exit.executor.node.as_deref().map(str::to_owned),
        at: in_seconds(exit.ended_at()),
        noticed: in_seconds(exit.at),
        cause: exit.cause.as_str().to_owned(),
        text: exit.cause.text().to_owned(),
        detail: exit.detail(),
        is_abnormal: exit.cause.is_abnormal(),
        blame: exit.cause.blame().as_str().to_owned(),
        exit_code: exit.exit_code(),
        recovery: history.recovery.deletion_of(&exit.app, &exit.executor.uid).map(deleted_by),
        spark: SparkReport { exit_code: spark.exit_code, caused_by_app: spark.caused_by_app, message: spark.message },
        driver_row: driver_row(snapshot, &exit.app, &exit.executor),
    }
}
