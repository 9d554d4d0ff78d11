//! The reports on applications behind `/debug/apps`, `/debug/why`, `apps` and `why`.

use std::time::{Duration, Instant};

use crate::support::controller_harness::{ControllerHarness, version};
use crate::support::*;
use jiff::Timestamp;
use serde_json::json;
use usher_core::leader::LeaderState;
use usher_core::lifecycle::Exits;
use usher_core::lifecycle::cause_group::CauseGroup;
use usher_core::policy::Finished;
use usher_core::snapshot::{Change, Notify, PodChange, Store, SubscriberId};
use usher_report::views::{self, AppReport, History, WhyReport};
use usher_spark::time::Now;

/// A store, and the exits of its batches.
struct ReportHarness {
    store: Store,
    id: SubscriberId,
    exits: Exits,
    now: Now,
}

impl ReportHarness {
    fn new() -> ReportHarness {
        let now = Now { at: Instant::now(), wall: "2026-11-21T12:00:00Z".parse().unwrap() };
        let mut store = Store::default();
        let id = store.subscribe(Duration::ZERO, Notify::Always, now.at);
        ReportHarness { store, id, exits: Exits::default(), now }
    }

    fn apply(&mut self, change: impl Into<Change>) -> &mut ReportHarness {
        self.store.apply(change);
        self.now.at += Duration::from_secs(1);
        self.now.wall += Duration::from_secs(1);
        let batch = self.store.take(self.id, self.now.at).unwrap();
        self.exits.record(batch, self.now);
        self.store.done(self.id, self.now.at);
        self
    }

    fn observe(&mut self, pod: &PodBuilder) -> &mut ReportHarness {
        self.apply(PodChange::Observed(pod.observation()))
    }

    fn delete(&mut self, pod: &PodBuilder) -> &mut ReportHarness {
        self.apply(PodChange::Deleted(pod.observation()))
    }

    fn history(&self) -> History {
        History { exits: self.exits.history().clone(), ..History::default() }
    }

    fn app(&self) -> AppReport {
        views::apps(self.store.snapshot(), &self.history(), None, self.now.wall).remove(0)
    }

    fn why(&self, name: &str) -> WhyReport {
        views::why(self.store.snapshot(), &self.history(), name, None, self.now.wall)
    }
}

fn running(id: u32) -> PodBuilder {
    executor(id).stored(&format!("e{id}")).phase("Running").owned_by("Pod", "nb-driver", DRIVER_UID)
}

fn exited(mut pod: PodBuilder, code: i32, finished: &str) -> PodBuilder {
    pod.0["status"] = json!({"phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": finished}}}]});
    pod
}

#[test]
fn exit_time_comes_from_pod_status_unless_in_future() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&exited(running(1), 137, "2026-11-21T09:00:00Z"));
    harness.observe(&exited(running(2), 1, "2026-11-21T08:00:00Z"));
    let exits = harness.app().exits;
    let times: Vec<(&str, &str)> = exits.iter().map(|exit| (&*exit.pod, &*exit.at)).collect();
    assert_eq!(times, [("nb-exec-1", "2026-11-21T09:00:00Z"), ("nb-exec-2", "2026-11-21T08:00:00Z")]);
    assert_eq!(exits[0].noticed, "2026-11-21T12:00:02Z");
    // A time in the future, from a node whose clock is ahead, is replaced by the time of detection.
    harness.observe(&exited(running(3), 1, "2026-11-21T23:00:00Z"));
    assert_eq!(harness.app().exits[0].at, "2026-11-21T12:00:04Z");
}

#[test]
fn labelled_executor_has_exit_cause_and_is_not_reported() {
    let mut harness = ReportHarness::new();
    harness
        .observe(&driver())
        .observe(&exited(running(1), 52, "2026-11-21T09:00:00Z").label("spark-exec-inactive", "true"));
    let found = harness.why("nb-exec-1");
    assert_eq!(found.exits[0].what.cause, "jvm-oom");
    let executor = &found.executors[0].what;
    assert_eq!(executor.done.as_deref(), Some("was labelled inactive by its driver"));
    assert!(executor.why.as_ref().unwrap().contains("exited with code 52"), "{executor:?}");
    assert_eq!(harness.app().ended["jvm-oom"], 1);
    assert!(harness.exits.due_reports(LeaderState::Leader, Duration::ZERO, harness.now.at, usize::MAX).is_empty());
}

#[test]
fn driver_report_shows_liveness_state_and_cause() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver());
    let shown = |harness: &ReportHarness| {
        let driver = harness.app().driver;
        (driver.liveness, driver.state, driver.why.unwrap_or_default())
    };
    assert_eq!(shown(&harness), ("alive".into(), Some("running".into()), String::new()));
    let mut waiting = driver().phase("Pending");
    waiting.0["status"]["containerStatuses"] = json!([{"name": "spark-kubernetes-driver", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}]);
    harness.observe(&waiting);
    let (liveness, state, why) = shown(&harness);
    assert_eq!((&*liveness, state.as_deref()), ("alive", Some("pending")));
    assert_eq!(why, "container spark-kubernetes-driver waits: ImagePullBackOff m");
    let mut failed = driver().phase("Failed");
    failed.0["status"]["containerStatuses"] = json!([{"name": "spark-kubernetes-driver",
        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T11:00:00Z"}}}]);
    harness.observe(&failed);
    let (liveness, state, why) = shown(&harness);
    assert_eq!((&*liveness, state.as_deref()), ("gone", Some("failed")));
    assert!(why.contains("exited with code 137") && why.contains("OOMKilled; at 2026-11-21T11:00:00Z"), "{why}");
    harness.observe(&driver().phase("Succeeded"));
    assert_eq!(shown(&harness), ("gone".into(), Some("succeeded".into()), String::new()));
}

#[test]
fn executors_without_running_driver_are_troubled() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&running(1));
    assert!(harness.app().troubled.is_empty());
    harness.observe(&driver().phase("Failed"));
    let troubled = harness.app().troubled;
    assert_eq!(troubled[0].why.as_deref(), Some("has no driver: its driver exited or was deleted"));
    // The exit of an executor that was deleted with its driver says so.
    harness.delete(&driver().deleting()).delete(&running(1).deleting());
    let found = harness.why("nb-exec-1");
    assert_eq!(found.exits[0].what.cause, "deleted");
    let detail = &found.exits[0].what.detail;
    assert!(detail.contains("with its driver nb-driver, which no longer existed"), "{detail}");
    assert!(harness.why("another").is_empty());
    // Only its exits remain, and `why` still finds it by its driver's name.
    assert_eq!(harness.why("nb-driver").apps[0].driver.pod.as_deref(), Some("nb-driver"));
}

#[test]
fn deletion_text_distinguishes_running_and_expired_grace_period() {
    let mut harness = ReportHarness::new();
    let mut deleting = running(1).label("spark-version", "4.3.0");
    deleting.0["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:30Z".into();
    deleting.0["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    deleting.0["metadata"]["finalizers"] = json!(["a/b"]);
    harness.observe(&driver()).observe(&deleting);
    let why = |harness: &ReportHarness| harness.why("nb-exec-1").executors[0].what.done.clone().unwrap();
    assert!(why(&harness).starts_with(
        "is being deleted (its grace period ends at 2026-11-21T12:00:30Z); its deletion is blocked by finalizers: a/b"
    ));
    harness.now.wall = "2026-11-21T12:05:00Z".parse::<Timestamp>().unwrap();
    assert!(why(&harness).contains("(its grace period ended at "));
}

#[test]
fn normal_exits_do_not_evict_abnormal_exits_and_all_are_counted() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&exited(running(1), 137, "2026-11-21T09:00:00Z"));
    for id in 2..=30 {
        harness.observe(&exited(running(id), 0, "2026-11-21T10:00:00Z"));
    }
    let app = harness.app();
    assert_eq!((app.ended["killed"], app.ended["completed"]), (1, 29));
    assert_eq!(app.exits.len(), 10);
    assert_eq!(app.exits.last().unwrap().cause, "killed", "the newest exit first");
}

#[test]
fn executor_with_unknown_phase_is_troubled() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&running(1).phase("Unknown"));
    let app = harness.app();
    assert_eq!(app.executors["unknown"], 1);
    assert!(app.troubled[0].why.as_ref().unwrap().contains("its node does not respond"));
}

#[test]
fn lives_of_executors_are_in_the_order_of_their_creation_and_each_is_shown_once() {
    let mut harness = ReportHarness::new();
    let lived = |id: u32, created: &str, status: serde_json::Value| {
        let mut pod = executor(id).stored(&format!("e{id}"));
        pod.0["metadata"]["creationTimestamp"] = created.into();
        pod.0["status"] = status;
        pod
    };
    let started = json!({"startedAt": "2026-11-21T11:00:30Z"});
    let running = json!({"phase": "Running", "containerStatuses": [{"name": "main", "state": {"running": started}}]});
    let failed = json!({"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": {
        "exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-21T11:00:30Z", "finishedAt": "2026-11-21T11:40:00Z"}}}]});
    harness.observe(&lived(2, "2026-11-21T11:30:00Z", json!({"phase": "Pending"})));
    harness.observe(&lived(1, "2026-11-21T11:00:00Z", running.clone()));
    harness.observe(&lived(1, "2026-11-21T11:00:00Z", failed));
    harness.observe(&lived(3, "2026-11-21T11:31:00Z", running));
    harness.delete(&lived(3, "2026-11-21T11:31:00Z", json!({"phase": "Running"})).deleting());
    let timeline = harness.why(APP).timelines.remove(0);
    let shown: Vec<_> = timeline
        .executors
        .iter()
        .map(|life| {
            (life.id, life.started.as_deref(), life.ended.as_deref(), life.state.as_str(), life.cause.as_deref())
        })
        .collect();
    assert_eq!(
        shown[0],
        (Some(1), Some("2026-11-21T11:00:30Z"), Some("2026-11-21T11:40:00Z"), "failed", Some("oom-killed"))
    );
    assert_eq!(shown[1], (Some(2), None, None, "unscheduled", None));
    assert_eq!((shown.len(), shown[2].0, shown[2].4, timeline.omitted), (3, Some(3), Some("deleted"), 0));
    assert!(timeline.executors[0].abnormal && !timeline.executors[2].abnormal);
    assert!(harness.why("nb-exec-1").timelines.is_empty(), "only of applications");
}

#[test]
fn pod_that_a_kubelet_rejected_exited_when_its_status_says() {
    let mut harness = ReportHarness::new();
    let mut rejected = running(1);
    rejected.0["status"] = json!({"phase": "Failed", "reason": "OutOfcpu", "startTime": "2026-11-17T09:00:00Z", "conditions": [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-17T08:59:59Z"},
        {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-17T09:00:01Z"}]});
    harness.observe(&driver()).observe(&rejected);
    let exit = harness.app().exits.remove(0);
    assert_eq!((&*exit.cause, &*exit.at), ("admission-refused", "2026-11-17T09:00:01Z"));
}

#[test]
fn no_application_crowds_out_the_exits_of_others() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&exited(running(1), 52, "2026-11-21T09:00:00Z"));
    // A tenant with many applications, and one application with many exits.
    for number in 0..2500_u32 {
        let app = format!("spark-evil-{}", number % 10);
        let mut pod = pod(&format!("evil-{number}")).executor_of(&app, number).stored(&format!("evil-{number}"));
        pod.0["metadata"]["namespace"] = "evil".into();
        pod.0["metadata"]["creationTimestamp"] = "2026-11-21T08:00:00Z".into();
        harness.observe(&exited(pod, 1, "2026-11-21T09:00:00Z"));
    }
    let history = harness.history();
    assert_eq!(history.exits.len(), 2048);
    let apps = views::apps(harness.store.snapshot(), &history, None, harness.now.wall);
    let of = |app: &str| apps.iter().find(|report| report.app == app).unwrap();
    assert_eq!((of(APP).ended["jvm-oom"], of(APP).forgotten), (1, 0));
    let evil: Vec<(usize, u64)> = (0..10)
        .map(|number| of(&format!("spark-evil-{number}")))
        .map(|app| (app.ended["error"], app.forgotten))
        .collect();
    assert!(evil.iter().all(|(kept, forgotten)| *kept as u64 + forgotten == 250 && *kept >= 204), "{evil:?}");
    // The newest of each are kept.
    assert!(history.exits.iter().any(|exit| &*exit.executor.name == "evil-2499"));
    // What is forgotten is still drawn by what the pods say.
    let shown = views::application(harness.store.snapshot(), &history, "evil", "spark-evil-0", harness.now.wall);
    let lives = &shown.timelines[0].executors;
    assert!(lives.len() == 200 && lives.iter().all(|life| life.ended.is_some() && life.abnormal), "{lives:?}");
}

#[test]
fn timeline_prefers_executors_that_exited_abnormally_or_have_not_started() {
    let mut harness = ReportHarness::new();
    let created = |mut pod: PodBuilder| {
        pod.0["metadata"]["creationTimestamp"] = "2026-11-21T08:00:00Z".into();
        pod
    };
    harness.observe(&driver()).observe(&created(exited(running(1), 52, "2026-11-21T09:00:00Z")));
    for id in 2..400 {
        let mut pod = created(running(id));
        pod.0["status"]["containerStatuses"] =
            json!([{"name": "main", "state": {"running": {"startedAt": "2026-11-21T08:01:00Z"}}}]);
        harness.observe(&pod);
    }
    harness.observe(&created(running(400).phase("Pending")));
    let shown = views::application(harness.store.snapshot(), &harness.history(), "default", APP, harness.now.wall);
    let timeline = &shown.timelines[0];
    assert_eq!((timeline.executors.len(), timeline.omitted), (200, 200));
    let ids: Vec<u64> = timeline.executors.iter().filter_map(|life| life.id).collect();
    assert!(ids.contains(&1) && ids.contains(&400) && ids.contains(&399) && ids.is_sorted(), "{ids:?}");
}

#[test]
fn driver_that_was_gone_when_its_executors_exited_is_not_unknown() {
    let mut harness = ReportHarness::new();
    harness.observe(&driver()).observe(&running(1));
    harness.delete(&driver().deleting()).delete(&running(1).deleting());
    let app = harness.app();
    assert_eq!((&*app.driver.liveness, app.driver_state()), ("gone", "gone"));
    assert!(!app.is_driver_in_trouble(), "nothing is left of it");
}

#[test]
fn live_executors_that_nothing_deletes_are_shown() {
    let mut harness = ReportHarness::new();
    harness.observe(&executor(7).stored("e7").phase("Running"));
    let app = harness.app();
    assert_eq!((app.unowned, &*app.driver.liveness, app.troubled.len()), (1, "unknown", 0));
    assert!(app.trouble().contains("1 without an ownerReference"), "{}", app.trouble());
    let why = harness.why("nb-exec-7").executors.remove(0).what.why.unwrap();
    assert!(
        why.contains(
            "nothing deletes it when its driver ends (its driver is not known; if that runs in a pod of this namespace"
        ),
        "{why}"
    );
}

/// The names of all applications, and the ids of those that `why NAME` finds.
fn named(harness: &ControllerHarness, name: &str) -> (Vec<String>, Vec<String>) {
    let (snapshot, now) = (harness.controller.snapshot(), harness.now().wall);
    let names = views::apps(snapshot, &harness.history(), None, now).into_iter().map(|app| app.name).collect();
    let found = views::why(snapshot, &harness.history(), name, None, now).apps;
    (names, found.into_iter().map(|app| app.app).collect())
}

#[test]
fn application_is_found_and_shown_by_the_name_that_its_pods_state() {
    let runs = |harness: &mut ControllerHarness| {
        for (driver, selector) in [("pi-1", "spark-1"), ("pi-2", "spark-2")] {
            harness.observe(&pod(driver).driver_of(selector).stored(driver).label("spark-app-name", "nightly-pi"));
        }
    };
    let mut harness = ControllerHarness::new(Finished::Report);
    runs(&mut harness);
    let both = vec!["spark-1".to_owned(), "spark-2".to_owned()];
    assert_eq!(named(&harness, "nightly-pi"), (vec!["nightly-pi".to_owned(); 2], both.clone()), "two runs of one job");
    assert_eq!(named(&harness, "pi-2").1, ["spark-2"], "by its driver");
    // Executors state it, too, and after them their exits.
    let mut harness = ControllerHarness::new(Finished::Report);
    let executor = running(1).label("spark-app-name", "nightly-pi");
    harness.observe(&executor);
    assert_eq!(named(&harness, "nightly-pi"), (vec!["nightly-pi".to_owned()], vec![APP.to_owned()]));
    harness.observe(&version(exited(executor, 1, "2026-11-21T00:00:00Z"), 9));
    harness.actions_within(3);
    harness.delete_pod("nb-exec-1", "e1");
    harness.actions_within(3);
    assert_eq!(named(&harness, "nightly-pi"), (vec!["nightly-pi".to_owned()], vec![APP.to_owned()]));
}

#[test]
fn application_without_the_label_is_named_by_its_pods() {
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&pod("spark-pi-0a0b0ca2100c0c00-driver").driver_of(APP).stored("d1"));
    assert_eq!(named(&harness, "spark-pi"), (vec!["spark-pi".to_owned()], vec![APP.to_owned()]), "and is found by it");
    let mut harness = ControllerHarness::new(Finished::Report);
    harness.observe(&pod("etl-0a0b0ca2100c0c00-exec-7").executor_of(APP, 7).stored("e7"));
    assert_eq!(named(&harness, "").0, ["etl"]);
}

#[test]
fn style_names_classes_of_the_pages_alone() {
    let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/report/ui"));
    let read = |path: &std::path::Path| std::fs::read_to_string(path).unwrap();
    let mut sources = read(&folder.join("assets/live.js"));
    // The group of a cause is a class.
    sources += &format!("\n\"{}\"\n", CauseGroup::ALL.map(CauseGroup::as_str).join(" "));
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
            sources += &read(&path);
        }
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    // A class is written behind a dot, or in a text.
    let mut used = std::collections::BTreeSet::new();
    for line in sources.lines().filter(|line| !line.trim_start().starts_with("//")) {
        for (at, part) in line.split('"').enumerate() {
            let words = part.split(|c| !is_name(c) && (at % 2 == 1 || c != '.'));
            let words = words
                .filter_map(|word| if at % 2 == 1 { Some(word) } else { word.split_once('.').map(|(_, name)| name) });
            used.extend(words.flat_map(|word| word.split('.')));
        }
    }
    let style = read(&folder.join("assets/style.css"));
    let rules = style.split('}').filter_map(|rule| rule.rsplit_once('{')).map(|(selector, _)| selector);
    let classes = rules.flat_map(|selector| selector.split('.').skip(1));
    let classes: Vec<&str> = classes.map(|text| text.split(|c| !is_name(c)).next().unwrap()).collect();
    assert!(classes.len() > 50, "{classes:?}");
    // `col-` and the name of a column is put together by the pages.
    let is_used = |class: &str| class.is_empty() || used.contains(class) || class.starts_with("col-");
    let unused: Vec<&str> = classes.into_iter().filter(|class| !is_used(class)).collect();
    assert!(unused.is_empty(), "{unused:?}");
}
