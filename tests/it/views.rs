//! The reports on applications behind `/debug/apps`, `/debug/why`, `apps` and `why`.

use std::time::{Duration, Instant};

use crate::support::*;
use jiff::Timestamp;
use serde_json::json;
use spark_usher::leader::LeaderState;
use spark_usher::lifecycle::Exits;
use spark_usher::snapshot::{Change, Notify, PodChange, Store, SubscriberId};
use spark_usher::time::Now;
use spark_usher::views::{self, AppReport, WhyReport};

/// A store, and the exits of its batches.
struct Archive {
    store: Store,
    id: SubscriberId,
    exits: Exits,
    now: Now,
}

impl Archive {
    fn open() -> Archive {
        let now = Now { at: Instant::now(), wall: "2026-11-21T12:00:00Z".parse().unwrap() };
        let mut store = Store::default();
        let id = store.subscribe(Duration::ZERO, Notify::Always, now.at);
        Archive { store, id, exits: Exits::default(), now }
    }

    fn apply(&mut self, change: Change) -> &mut Archive {
        self.store.apply(change, self.now.wall);
        self.now.at += Duration::from_secs(1);
        self.now.wall += Duration::from_secs(1);
        let batch = self.store.take(self.id, self.now.at).unwrap();
        self.exits.note(batch, self.now);
        self.store.done(self.id, self.now.at);
        self
    }

    fn observe(&mut self, pod: &PodBuilder) -> &mut Archive {
        self.apply(Change::Pods(PodChange::Observed(pod.observation())))
    }

    fn delete(&mut self, pod: &PodBuilder) -> &mut Archive {
        self.apply(Change::Pods(PodChange::Deleted(pod.observation())))
    }

    fn app(&self) -> AppReport {
        views::apps(self.store.snapshot(), self.exits.history(), None, self.now.wall).remove(0)
    }

    fn why(&self, name: &str) -> WhyReport {
        views::why(self.store.snapshot(), self.exits.history(), name, None, self.now.wall)
    }
}

fn running(id: u32) -> PodBuilder {
    executor(id).stored(&format!("e{id}")).phase("Running").owned_by("Pod", "nb-driver", DRIVER_UID)
}

fn ended(mut pod: PodBuilder, code: i32, finished: &str) -> PodBuilder {
    pod.0["status"] = json!({"phase": if code == 0 { "Succeeded" } else { "Failed" }, "containerStatuses": [
        {"name": "main", "state": {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": finished}}}]});
    pod
}

#[test]
fn exit_time_comes_from_pod_status_unless_in_future() {
    let mut archive = Archive::open();
    archive.observe(&driver()).observe(&ended(running(1), 137, "2026-11-21T09:00:00Z"));
    archive.observe(&ended(running(2), 1, "2026-11-21T08:00:00Z"));
    let exits = archive.app().exits;
    let times: Vec<(&str, &str)> = exits.iter().map(|exit| (&*exit.pod, &*exit.at)).collect();
    assert_eq!(times, [("nb-exec-1", "2026-11-21T09:00:00Z"), ("nb-exec-2", "2026-11-21T08:00:00Z")]);
    assert_eq!(exits[0].noticed, "2026-11-21T12:00:02Z");
    // A time in the future, from a node whose clock is ahead, is replaced by the time of detection.
    archive.observe(&ended(running(3), 1, "2026-11-21T23:00:00Z"));
    assert_eq!(archive.app().exits[0].at, "2026-11-21T12:00:04Z");
}

#[test]
fn labelled_executor_has_exit_cause_and_is_not_reported() {
    let mut archive = Archive::open();
    archive
        .observe(&driver())
        .observe(&ended(running(1), 52, "2026-11-21T09:00:00Z").label("spark-exec-inactive", "true"));
    let found = archive.why("nb-exec-1");
    assert_eq!(found.exits[0].what.cause, "jvm-oom");
    assert!(found.executors[0].what.why.as_ref().unwrap().contains("labelled inactive by its driver"));
    assert_eq!(archive.app().ended["jvm-oom"], 1);
    assert!(archive.exits.due_reports(LeaderState::Leader, Duration::ZERO, archive.now.at, usize::MAX).is_empty());
}

#[test]
fn driver_report_shows_liveness_state_and_cause() {
    let mut archive = Archive::open();
    archive.observe(&driver());
    let shown = |archive: &Archive| {
        let driver = archive.app().driver;
        (driver.liveness, driver.state, driver.why.unwrap_or_default())
    };
    assert_eq!(shown(&archive), ("alive".into(), Some("running".into()), String::new()));
    let mut waiting = driver().phase("Pending");
    waiting.0["status"]["containerStatuses"] = json!([{"name": "spark-kubernetes-driver", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}]);
    archive.observe(&waiting);
    let (liveness, state, why) = shown(&archive);
    assert_eq!((&*liveness, state.as_deref()), ("alive", Some("pending")));
    assert_eq!(why, "container spark-kubernetes-driver waits: ImagePullBackOff m");
    let mut failed = driver().phase("Failed");
    failed.0["status"]["containerStatuses"] = json!([{"name": "spark-kubernetes-driver",
        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-11-21T11:00:00Z"}}}]);
    archive.observe(&failed);
    let (liveness, state, why) = shown(&archive);
    assert_eq!((&*liveness, state.as_deref()), ("gone", Some("failed")));
    assert!(why.contains("exited with code 137") && why.contains("OOMKilled; at 2026-11-21T11:00:00Z"), "{why}");
    archive.observe(&driver().phase("Succeeded"));
    assert_eq!(shown(&archive), ("gone".into(), Some("succeeded".into()), String::new()));
}

#[test]
fn executors_without_running_driver_are_troubled() {
    let mut archive = Archive::open();
    archive.observe(&driver()).observe(&running(1));
    assert!(archive.app().troubled.is_empty());
    archive.observe(&driver().phase("Failed"));
    let troubled = archive.app().troubled;
    assert_eq!(troubled[0].why.as_deref(), Some("has no driver: its driver exited or was deleted"));
    // The exit of an executor that was deleted with its driver says so.
    archive.delete(&driver()).delete(&running(1).deleting());
    let found = archive.why("nb-exec-1");
    assert_eq!(found.exits[0].what.cause, "deleted");
    let detail = &found.exits[0].what.detail;
    assert!(detail.contains("with its driver nb-driver, which no longer existed"), "{detail}");
    assert!(archive.why("another").is_empty());
    // Only its exits remain, and `why` still finds it by its driver's name.
    assert_eq!(archive.why("nb-driver").apps[0].driver.pod.as_deref(), Some("nb-driver"));
}

#[test]
fn deletion_text_distinguishes_running_and_expired_grace_period() {
    let mut archive = Archive::open();
    let mut going = running(1).label("spark-version", "4.3.0");
    going.0["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:30Z".into();
    going.0["metadata"]["deletionGracePeriodSeconds"] = 30.into();
    going.0["metadata"]["finalizers"] = json!(["a/b"]);
    archive.observe(&driver()).observe(&going);
    let why = |archive: &Archive| archive.why("nb-exec-1").executors[0].what.why.clone().unwrap();
    assert!(
        why(&archive).starts_with(
            "is being deleted (its grace period ends at 2026-11-21T12:00:30Z); blocked by finalizers: a/b"
        )
    );
    archive.now.wall = "2026-11-21T12:05:00Z".parse::<Timestamp>().unwrap();
    assert!(why(&archive).contains("(its grace period ended at "));
}

#[test]
fn normal_exits_do_not_evict_abnormal_exits_and_all_are_counted() {
    let mut archive = Archive::open();
    archive.observe(&driver()).observe(&ended(running(1), 137, "2026-11-21T09:00:00Z"));
    for id in 2..=30 {
        archive.observe(&ended(running(id), 0, "2026-11-21T10:00:00Z"));
    }
    let app = archive.app();
    assert_eq!((app.ended["killed"], app.ended["completed"]), (1, 29));
    assert_eq!(app.exits.len(), 10);
    assert_eq!(app.exits.last().unwrap().cause, "killed", "the newest exit first");
}

#[test]
fn executor_with_unknown_phase_is_troubled() {
    let mut archive = Archive::open();
    archive.observe(&driver()).observe(&running(1).phase("Unknown"));
    let app = archive.app();
    assert_eq!(app.executors["unknown"], 1);
    assert!(app.troubled[0].why.as_ref().unwrap().contains("its node does not respond"));
}
