//! The checks that every history must pass.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use serde_json::Value;
use tokio::time::Instant;
use usher_core::lifecycle::cause::Cause;
use usher_core::policy::{Finished, Lifecycle};

use super::apps::{App, ExecutorHistory, Kind};
use super::cluster::SimCluster;
use super::connection::{Write, get};
use super::log::Report;

/// How long after an executor's exit with code 1 its driver may exit and still be the cause.
const WITH_DRIVER: Duration = Duration::from_secs(70);
/// A fault up to this long before an exit may prevent its detection.
const BEFORE: Duration = Duration::from_secs(70);
/// A fault up to this long after an exit may prevent its report.
const AFTER: Duration = Duration::from_secs(10);
/// How long a request in flight may take.
const IN_FLIGHT: Duration = Duration::from_secs(7);
/// Without faults, an exit is reported within this time: the controller waits 5 s for the exit of the driver, which may explain
/// it, and for a moment there may be no leader.
const REPORT_LIMIT: Duration = Duration::from_secs(12);
/// The longest pause before a watch that is cut repeatedly is restarted.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long after the last fault all work is finished.
const SETTLED: Duration = Duration::from_secs(150);
/// Causes of failed executors that are retained for `keepFailed`; a later exit of the driver may explain an `error`.
const RETAINED: [&str; 3] = ["error", "jvm-oom", "deadline-exceeded"];

/// The violations of a history.
pub async fn check(cluster: &SimCluster) -> Vec<String> {
    let mut wrong = cluster.wrong.clone();
    let pods: BTreeMap<String, Value> = cluster.pods().await.into_iter().map(|pod| (uid(&pod), pod)).collect();
    check_writes(cluster, &mut wrong);
    check_leaders(cluster, &mut wrong);
    check_exits(cluster, &pods, &mut wrong);
    let reports = cluster.log.reports.lock().unwrap().clone();
    check_events(cluster, &reports, &mut wrong).await;
    check_owners(cluster, &pods, &mut wrong);
    check_adopted(cluster, &pods, &mut wrong);
    check_gangs(cluster, &pods, &mut wrong).await;
    check_requests(cluster, &mut wrong);
    check_fault_free_phase(cluster, &mut wrong);
    if !cluster.replicas.values().any(super::replica::Replica::leads) {
        wrong.push("no replica leads".to_owned());
    }
    wrong
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// When a leader first wrote a checkpoint: earlier exits are history, and no replica reports them.
fn first_checkpoint(cluster: &SimCluster) -> Instant {
    let writes = cluster.writes.lock().unwrap();
    let checkpoints = |write: &&Write| {
        write.status < 300 && write.body["metadata"]["annotations"]["spark-usher.io/reported"].is_string()
    };
    writes.iter().find(checkpoints).map_or(cluster.began, |write| write.at)
}

/// Whether watches were cut a short time before, and may not be open again.
fn was_cut(cluster: &SimCluster, at: Instant) -> bool {
    cluster.cuts.iter().any(|cut| *cut <= at && at < *cut + LONGEST_PAUSE)
}

/// Whether the watch of an earlier leader may have passed an exit without showing it: that leader's checkpoint then covers the
/// exit.
fn may_be_lost(cluster: &SimCluster, at: Instant) -> bool {
    let leads = |number: &usize| cluster.replicas.get(number).is_some_and(super::replica::Replica::leads);
    let writes = cluster.writes.lock().unwrap();
    let has_led = |number: usize, from: Instant| {
        let holder = format!("replica-{number}");
        let is_its = |write: &&Write| write.replica == number && write.body["spec"]["holderIdentity"] == *holder;
        writes.iter().filter(is_its).any(|write| write.path.contains("/leases") && write.at > from)
    };
    // A watch that was cut shows the exit when it is open again.
    let shown = if was_cut(cluster, at) { at + LONGEST_PAUSE } else { at };
    let is_lossy = |(_, from, until): &&(usize, Instant, Instant)| *from < shown && at < *until + BEFORE;
    cluster.lossy.iter().filter(is_lossy).any(|(number, from, _)| !leads(number) && has_led(*number, *from))
}

/// Only finished executors are labelled or deleted, after their driver's grace period and after their exit was reported; and a
/// dry run writes nothing.
fn check_writes(cluster: &SimCluster, wrong: &mut Vec<String>) {
    let (log, first_checkpoint) = (cluster.log.reports.lock().unwrap(), first_checkpoint(cluster));
    let all = cluster.writes.lock().unwrap().clone();
    for write in all.iter().filter(|write| write.status < 300) {
        let at = (write.at - cluster.began).as_secs_f64();
        let is_own = write.path.contains("/leases") || write.path.contains("/secrets");
        let is_dry = |(begin, end): &(Instant, Option<Instant>)| {
            *begin + IN_FLIGHT < write.at && end.is_none_or(|end| write.at < end)
        };
        if !is_own && cluster.dry_runs.iter().any(is_dry) {
            wrong.push(format!("{at:.2} {} {} in a dry run", write.method, write.path));
        }
        if !is_own && !write.path.contains("/events") && !write.before.is_null() && !is_guarded(write) {
            wrong.push(format!("{at:.2} {} {} without preconditions: {}", write.method, write.path, write.body));
        }
        if !write.path.contains("/pods/") || write.before.is_null() {
            continue;
        }
        for owner in write.body["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let app = cluster.executors.get(&uid(&write.before)).map(|executor| &cluster.apps[executor.app]);
            let is_its_driver =
                |app: &&App| owner["uid"] == *app.uid && app.exited.is_none_or(|exited| write.at < exited + IN_FLIGHT);
            if app.filter(is_its_driver).is_none() {
                wrong.push(format!("{at:.2} {} gets the owner {owner}: {app:?}", write.path));
            }
        }
        let labels = write.body["metadata"]["labels"]["spark-exec-inactive"] == "true";
        if write.method != Method::DELETE && !labels {
            continue;
        }
        let uid = uid(&write.before);
        let Some(executor) = cluster.executors.get(&uid) else {
            wrong.push(format!("{at:.2} {} {}, which is not an executor", write.method, write.path));
            continue;
        };
        let phase = write.before["status"]["phase"].as_str().unwrap_or_default();
        if phase != "Failed" && phase != "Succeeded" {
            wrong.push(format!("{at:.2} {} of {}, which is {phase}", write.method, executor.name));
        }
        let app = &cluster.apps[executor.app];
        if app.kind == Kind::Elsewhere {
            wrong.push(format!("{at:.2} {} of {}, whose driver is unknown", write.method, executor.name));
        }
        if executor.skip {
            wrong.push(format!("{at:.2} {} of {}, which has the annotation skip", write.method, executor.name));
        }
        let is_deleted = write.method == Method::DELETE;
        let valid: Vec<&Lifecycle> = valid(cluster, write.at).collect();
        let fits = |lifecycle: &&&Lifecycle| match lifecycle.finished {
            Finished::Report => false,
            Finished::Label => !is_deleted,
            Finished::Delete => true,
        };
        if valid.iter().filter(fits).count() == 0 {
            wrong.push(format!("{at:.2} {} of {}, which no policy allows", write.method, executor.name));
        }
        if is_deleted && app.retains {
            wrong.push(format!("{at:.2} DELETE of {}, which its driver retains", executor.name));
        }
        let Some(exited) = executor.exited else { continue };
        let shortest = valid.iter().map(|lifecycle| lifecycle.keep_failed).min().unwrap();
        let is_failure = causes(cluster, executor)
            .iter()
            .all(|cause| RETAINED.contains(cause) || *cause == "deleted" || *cause == "vanished");
        if is_deleted && is_failure && write.at - exited < shortest {
            wrong.push(format!("{at:.2} DELETE of {} {:?} after its exit", executor.name, write.at - exited));
        }
        if app.exited.is_none_or(|exited| exited > write.at) && write.at - exited < app.grace() {
            wrong.push(format!("{at:.2} {} of {} in its driver's grace period", write.method, executor.name));
        }
        if exited > first_checkpoint
            && !may_be_lost(cluster, exited)
            && !log.iter().any(|report| report.uid == uid && report.at.unwrap() <= write.at)
        {
            wrong.push(format!("{at:.2} {} of {} before its exit is reported", write.method, executor.name));
        }
    }
}

/// The policies at the time of a write, and those of a moment before.
fn valid(cluster: &SimCluster, at: Instant) -> impl Iterator<Item = &Lifecycle> {
    let until = |index: usize| cluster.valid.get(index + 1).map(|(next, _)| *next);
    let all = cluster.valid.iter().enumerate();
    let then =
        all.filter(move |(index, (from, _))| *from <= at && until(*index).is_none_or(|until| at < until + IN_FLIGHT));
    then.map(|(_, (_, lifecycle))| lifecycle)
}

/// Whether a write names the previous object by uid and resourceVersion.
fn is_guarded(write: &Write) -> bool {
    let (is, was) = match write.method {
        Method::DELETE => (&write.body["preconditions"], &write.before["metadata"]),
        _ => (&write.body["metadata"], &write.before["metadata"]),
    };
    ["uid", "resourceVersion"].iter().all(|key| is[*key].is_string() && is[*key] == was[*key])
}

/// An earlier leader writes nothing once another replica leads, except requests in flight.
fn check_leaders(cluster: &SimCluster, wrong: &mut Vec<String>) {
    let mut leader: Option<(usize, Instant)> = None;
    for write in cluster.writes.lock().unwrap().iter().filter(|write| write.status < 300) {
        if write.path.contains("/leases") {
            let holder = write.body["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if holder == format!("replica-{}", write.replica) && leader.is_none_or(|(is, _)| is != write.replica) {
                leader = Some((write.replica, write.at));
            }
        } else if !write.path.contains("/secrets")
            && let Some((is, since)) = leader
            && is != write.replica
            && write.at - since > IN_FLIGHT
        {
            let at = (write.at - cluster.began).as_secs_f64();
            wrong.push(format!("{at:.2} {} {} by {}, while {is} leads", write.method, write.path, write.replica));
        }
    }
}

/// Each exit is reported once, or as possibly reported, with its cause; and remaining executors are cleaned up.
fn check_exits(cluster: &SimCluster, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    let (log, first_checkpoint) = (cluster.log.reports.lock().unwrap(), first_checkpoint(cluster));
    let Lifecycle { finished, keep_failed, .. } = cluster.policies.load().lifecycle;
    let leader = cluster.replicas.iter().find(|(_, replica)| replica.leads()).map(|(number, _)| *number);
    for (uid, executor) in &cluster.executors {
        let reports: Vec<_> = log.iter().filter(|report| report.uid == *uid).collect();
        let sure = reports.iter().filter(|report| !report.possibly_reported).count();
        if sure > executor.exit_count() {
            wrong.push(format!("{} is reported {sure} times: {reports:?}", executor.name));
        }
        if executor.exit_count() == 0 && !reports.is_empty() {
            wrong.push(format!("{} is running and reported: {reports:?}", executor.name));
        }
        for report in &reports {
            if !causes(cluster, executor).contains(&report.cause.as_str()) {
                wrong.push(format!("{} is reported as {}: {executor:?}", executor.name, report.cause));
            }
        }
        if executor.unlabelled {
            continue; // No watch shows it any longer.
        }
        // The leader cannot report executors that only other replicas knew.
        let is_history = executor.exited.is_some_and(|exited| exited <= first_checkpoint);
        let survivor = leader.is_some_and(|leader| executor.known_by.contains(&leader));
        // For Spark 3.0, an executor runs as long as its pod's phase is Running.
        let runs_on = cluster.apps[executor.app].old && executor.will_restart();
        let stays = executor.exited.is_some() && executor.removed.is_none() && !runs_on;
        check_restarts(cluster, executor, &reports, wrong);
        let is_excused = is_history || executor.exited.or(executor.removed).is_some_and(|at| may_be_lost(cluster, at));
        if ((stays && !executor.by_driver) || (executor.removed.is_some() && survivor))
            && reports.is_empty()
            && !is_excused
        {
            let known = leader.is_some_and(|leader| cluster.replicas[&leader].knows(uid));
            wrong.push(format!("{} is never reported (the leader knows it: {known}): {executor:?}", executor.name));
        }
        let is_inactive =
            || pods.get(uid).is_some_and(|pod| pod["metadata"]["labels"]["spark-exec-inactive"] == "true");
        let needs_cleanup = match finished {
            Finished::Report => false,
            Finished::Label => !is_inactive(),
            Finished::Delete => {
                // More time, for the driver's grace period and for outages.
                let retained =
                    executor.exited.is_some_and(|exited| exited.elapsed() < keep_failed + Duration::from_secs(250));
                let retained = retained && executor.cause.is_some_and(|cause| RETAINED.contains(&cause));
                !is_inactive() && !retained
            }
        };
        // An executor without a known driver is not cleaned up.
        let is_owned = pods.get(uid).is_some_and(|pod| pod["metadata"]["ownerReferences"].is_array());
        // Without a signature, another driver of its application that runs may be its driver.
        let another = |own: &Value| pods.values().any(|pod| is_running_driver(pod, own));
        let is_contradicted = !executor.admitted && pods.get(uid).is_some_and(another);
        if stays && needs_cleanup && is_owned && !is_contradicted && !executor.will_restart() && !executor.skip {
            wrong.push(format!("{} is not cleaned up: {executor:?} {}", executor.name, pods[uid]));
        }
    }
}

/// Whether a pod is labelled as the driver of an executor's application, and runs.
fn is_running_driver(pod: &Value, executor: &Value) -> bool {
    let (labels, of) = (&pod["metadata"]["labels"], &executor["metadata"]["labels"]);
    labels["spark-role"] == "driver"
        && labels["spark-app-selector"] == of["spark-app-selector"]
        && pod["metadata"]["namespace"] == executor["metadata"]["namespace"]
        && pod["status"]["phase"] == "Running"
}

/// Each exit that is followed by a restart is reported before the next one, too, if no fault happened meanwhile.
fn check_restarts(cluster: &SimCluster, executor: &ExecutorHistory, reports: &[&Report], wrong: &mut Vec<String>) {
    if cluster.apps[executor.app].old {
        return; // See above.
    }
    for (at, former) in executor.former.iter().enumerate() {
        let (begin, end) = (former.exited - BEFORE, former.exited + AFTER);
        let is_disturbed = cluster.disturbed.iter().any(|(from, until)| *from < end && begin < *until);
        let next = executor.former.get(at + 1).map(|next| next.exited).or(executor.exited);
        let of_it = |report: &&&Report| {
            report.at.unwrap() >= former.exited && next.is_none_or(|next| report.at.unwrap() < next)
        };
        let count = reports.iter().filter(of_it).count();
        if count == 0 && !is_disturbed {
            wrong.push(format!("an exit of {} is never reported: {former:?} of {executor:?}", executor.name));
        }
    }
}

/// The causes that are true for an executor's exits.
fn causes(cluster: &SimCluster, executor: &ExecutorHistory) -> Vec<&'static str> {
    let mut causes: Vec<&'static str> =
        executor.former.iter().map(|former| former.cause).chain(executor.cause).collect();
    if executor.removed.is_some() {
        causes.extend(["deleted", "vanished"]);
    }
    let driver = cluster.apps[executor.app].exited;
    let exited = executor.former.iter().map(|former| former.exited).chain(executor.exited).max();
    let with_driver = exited.zip(driver).is_some_and(|(exited, driver)| driver <= exited + WITH_DRIVER);
    if causes.contains(&"error") && with_driver {
        causes.push("driver-lost");
    }
    causes
}

/// The counts of Events by cause.
pub async fn counted(routes: &Router) -> BTreeMap<String, u64> {
    let events = get(routes, "/apis/events.k8s.io/v1/events").await;
    let mut counted = BTreeMap::new();
    for event in events["items"].as_array().unwrap() {
        if event["reason"] == "ExecutorEnded" {
            let count = event["series"]["count"].as_u64().unwrap_or(1);
            *counted.entry(event["action"].as_str().unwrap().to_owned()).or_default() += count;
        }
    }
    counted
}

/// Events count at most as many exits of a cause as were reported, and in the time without faults at least as many as require
/// one.
async fn check_events(cluster: &SimCluster, reports: &[Report], wrong: &mut Vec<String>) {
    let counted = counted(&cluster.routes).await;
    for (cause, count) in &counted {
        let reported = reports.iter().filter(|report| report.cause == *cause).count() as u64;
        if *count > reported {
            wrong.push(format!("Events count {count} exits as {cause}, and {reported} were reported"));
        }
    }
    let phase = cluster.fault_free_phase.unwrap();
    let events = counted.values().sum::<u64>() - phase.events;
    let is_worth_one =
        |report: &&Report| Cause::ALL.iter().any(|cause| cause.as_str() == report.cause && cause.is_abnormal());
    let reported = reports[phase.reports..].iter().filter(is_worth_one).count();
    if events < reported as u64 {
        wrong.push(format!("{reported} exits were reported in the time without faults, and Events count {events}"));
    }
}

/// Only its driver owns an executor.
fn check_owners(cluster: &SimCluster, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    for (uid, executor) in &cluster.executors {
        let app = &cluster.apps[executor.app];
        let owners = pods.get(uid).and_then(|pod| pod["metadata"]["ownerReferences"].as_array());
        for owner in owners.into_iter().flatten() {
            if app.kind == Kind::Elsewhere || owner["uid"] != *app.uid {
                wrong.push(format!("{} of {app:?} is owned by {owner}", executor.name));
            }
        }
    }
}

/// A running executor gets its driver as owner, if that is known.
fn check_adopted(cluster: &SimCluster, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    for (uid, executor) in cluster.executors.iter().filter(|(_, executor)| executor.is_active()) {
        let app = &cluster.apps[executor.app];
        let is_owned = || pods.get(uid).is_none_or(|pod| pod["metadata"]["ownerReferences"].is_array());
        if app.kind != Kind::Elsewhere && app.exited.is_none() && !executor.skip && !is_owned() {
            wrong.push(format!("{} of {app:?} has no owner: {}", executor.name, pods[uid]));
        }
    }
}

/// No executor waits for its gang forever, a new PodGroup has the size of its gang, and no PodGroup outlives its application.
async fn check_gangs(cluster: &SimCluster, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    let of_app = |app: usize| cluster.executors.values().filter(move |executor| executor.app == app);
    for (number, app) in cluster.apps.iter().enumerate() {
        let is_its = |write: &&Write| {
            let owner = &write.body["metadata"]["ownerReferences"][0]["uid"];
            write.method == Method::POST
                && write.path.ends_with("/podgroups")
                && write.status < 300
                && *owner == *app.uid
        };
        let first = cluster.writes.lock().unwrap().iter().find(is_its).cloned();
        let Some((gang, first)) = app.gang.zip(first) else { continue };
        let count = &first.body["spec"]["schedulingPolicy"]["gang"]["minCount"];
        let began = of_app(number).filter(|executor| executor.began < first.at).count();
        // An annotation comes with the driver; a configuration must have been read.
        let conf = format!("/api/v1/namespaces/{}/configmaps/conf-{number}", app.namespace);
        let read = cluster.connections[first.replica].read.lock().unwrap().get(&conf).copied();
        let is_known = app.detection_seconds.is_none() || read.is_some_and(|read| read < first.at);
        if began == 1 && is_known && *count != gang {
            wrong.push(format!("the PodGroup of {app:?} has size {}", count));
        }
    }
    let groups = get(&cluster.routes, "/apis/scheduling.k8s.io/v1beta1/podgroups").await;
    for group in groups["items"].as_array().into_iter().flatten() {
        let owner = &group["metadata"]["ownerReferences"][0]["uid"];
        let number = cluster.apps.iter().position(|app| *owner == *app.uid && !app.uid.is_empty());
        let is_over = number.is_some_and(|number| {
            let app = &cluster.apps[number];
            // If no watch shows the driver, the PodGroup stays for ten minutes.
            let has_ended = app.kind == Kind::Labelled && app.exited.is_some_and(|exited| exited.elapsed() > SETTLED);
            has_ended && !of_app(number).any(|executor| executor.exited.or(executor.removed).is_none())
        });
        if is_over {
            wrong.push(format!("a PodGroup outlives its application: {group}"));
        }
    }
    for (uid, executor) in cluster.executors.iter().filter(|(_, executor)| executor.is_active()) {
        if pods.get(uid).is_some_and(|pod| pod["status"]["phase"] != "Running") {
            wrong.push(format!("{} waits forever: {executor:?} {}", executor.name, pods[uid]));
        }
    }
}

/// The maximum number of times in any window of this length.
fn max_in_window(times: &[Instant], window: Duration) -> usize {
    let mut first = 0;
    let count = |(last, at): (usize, &Instant)| {
        while *at - times[first] > window {
            first += 1;
        }
        last + 1 - first
    };
    times.iter().enumerate().map(count).max().unwrap_or_default()
}

/// The maximum number of requests of a replica in any minute by kind, with any faults.
const MAX_PER_MINUTE: &[(&str, usize)] = &[
    ("WATCH leases", 45), // One in each round, about every 2 s.
    ("GET leases", 90),   // One in each round, and after each renewal by another replica.
    ("PUT leases", 45),
    ("WATCH ", 20), // After pauses that double, and when they are cut.
    ("LIST pods of a namespace", 600),
    ("LIST pods", 25), // A poll every 5 s, and lists of watches.
    ("LIST ", 20),
    ("GET secrets", 15),
    ("GET configmaps", 200),
    ("PATCH ", 200),
    ("POST ", 200),
    ("DELETE ", 200),
];
/// The maximum number of GETs of pods in any minute: lookups by name, such as of drivers, and confirmations of executors at the
/// rest of the rate.
const MAX_POD_GETS: usize = 600 + 50 * 60;

/// The number of requests is limited at any time, and low without faults.
fn check_requests(cluster: &SimCluster, wrong: &mut Vec<String>) {
    let minutes = (cluster.began.elapsed().as_secs() / 60) as usize;
    // Three addresses of an application at a time, of eight, after pauses that double from one minute on. A driver that is
    // found is read again every minute.
    let of = |kind: Kind| cluster.apps.iter().filter(|app| app.kind == kind).count();
    let by_address = of(Kind::Elsewhere) * 8 * minutes.ilog2() as usize + of(Kind::Notebook) * minutes + 10;
    let since = cluster.fault_free_phase.unwrap().since;
    let new = cluster.executors.values().filter(|executor| executor.began > since).count();
    let exited = |executor: &ExecutorHistory| {
        let former = executor.former.iter().filter(|former| former.exited > since).count();
        former + usize::from(executor.exited.or(executor.removed).is_some_and(|at| at > since))
    };
    let changes = new + cluster.executors.values().map(exited).sum::<usize>() + cluster.apps.len();
    for connection in &cluster.connections {
        let requests = connection.requests.lock().unwrap();
        for (what, times) in requests.iter() {
            let known = MAX_PER_MINUTE
                .iter()
                .find(|(prefix, _)| what.starts_with(prefix))
                .map_or(MAX_POD_GETS, |(_, max)| *max);
            let busiest = max_in_window(times, Duration::from_secs(60));
            if busiest > known {
                wrong.push(format!("{busiest} × {what} in a minute, expected at most {known}"));
            }
            if what == "LIST pods of a namespace" && times.len() > by_address {
                wrong.push(format!("{} × {what}, expected at most {by_address}", times.len()));
            }
        }
        // Requests for executors and their drivers, without periodic requests and those of a new leader.
        let is_for_them =
            |what: &&String| !what.starts_with("WATCH") && !what.contains("leases") && what.contains("pods");
        let count_since = |what: &String| requests[what].iter().filter(|at| **at > since).count();
        let count: usize =
            requests.keys().filter(is_for_them).filter(|what| *what != "LIST pods").map(count_since).sum();
        if std::env::var("FIGURES").is_ok() && count > 0 {
            println!("QUIET {} {count} for {changes}", cluster.is_fault_free);
        }
        if count > 8 * changes {
            wrong.push(format!("{count} requests for {changes} changes, in the time without faults"));
        }
    }
}

/// Without faults, each exit is reported exactly once, not as possibly reported, soon, and with its true cause.
fn check_fault_free_phase(cluster: &SimCluster, wrong: &mut Vec<String>) {
    let log = cluster.log.reports.lock().unwrap();
    let since = if cluster.is_fault_free { first_checkpoint(cluster) } else { cluster.fault_free_phase.unwrap().since };
    for (uid, executor) in
        cluster.executors.iter().filter(|(_, executor)| executor.began > since && !executor.unlabelled)
    {
        let reports: Vec<_> = log.iter().filter(|report| report.uid == *uid).collect();
        // For Spark 3.0, an executor runs as long as its pod's phase is Running.
        let by_phase = cluster.apps[executor.app].old && executor.restarts;
        // If all replicas that knew it stop, none can report its exit.
        let stays = |number: &usize| {
            let goes = cluster.stopped.get(number);
            goes.is_none_or(|goes| executor.removed.is_none_or(|removed| *goes > removed + REPORT_LIMIT))
        };
        let is_known = executor.known_by.iter().any(stays);
        // A read of the pod may show only the last of several exits during an interruption.
        let may_merge = executor.former.iter().any(|former| was_cut(cluster, former.exited));
        let is_any = by_phase || !is_known || may_merge;
        let (max, least) = (executor.exit_count(), if is_any { 0 } else { executor.exit_count() });
        if !(least..=max).contains(&reports.len()) || reports.iter().any(|report| report.possibly_reported) {
            wrong.push(format!("{} exited {max} times without faults, reported: {reports:?}", executor.name));
        }
        if by_phase || may_merge {
            continue;
        }
        let mut truths: Vec<_> = executor.former.iter().map(|former| (former.exited, former.cause)).collect();
        truths.extend(executor.exited.or(executor.removed).map(|at| (at, executor.cause.unwrap_or("deleted"))));
        for (report, (at, cause)) in reports.iter().zip(truths) {
            let is_cut = cluster.cuts.iter().any(|cut| *cut < at + REPORT_LIMIT && at < *cut + LONGEST_PAUSE);
            let is_true = match report.cause.as_str() {
                "driver-lost" => cause == "error",
                "deleted" if executor.was_terminating => true,
                // Found by a poll.
                "vanished" => is_cut && cause == "deleted",
                reported => reported == cause,
            };
            let limit = if is_cut { REPORT_LIMIT + LONGEST_PAUSE } else { REPORT_LIMIT };
            if !is_true || report.at.unwrap() > at + limit {
                wrong.push(format!("{} exited as {cause} without faults, reported: {report:?}", executor.name));
            }
        }
    }
}

/// A write as one line of the trace.
pub fn trace_line(write: &Write, began: Instant) -> String {
    let at = (write.at - began).as_secs_f64();
    let what = if write.path.contains("/leases") { &write.body } else { &write.before["metadata"] };
    format!("{at:8.2} write {} {} {} {} {what}", write.replica, write.status, write.method, write.path)
}
