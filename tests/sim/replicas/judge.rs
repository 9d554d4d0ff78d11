//! The checks that every history must pass.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::Router;
use axum::http::Method;
use serde_json::Value;
use spark_usher::lifecycle::cause::Cause;
use spark_usher::policy::{Finished, Lifecycle};
use tokio::time::Instant;

use super::apps::{App, Kind, Life};
use super::line::{Write, get};
use super::told::Line;
use super::world::World;

/// How long after an executor's exit with code 1 its driver may exit and still be the cause.
const WITH_DRIVER: Duration = Duration::from_secs(70);
/// A fault up to this long before an exit may prevent its detection.
const BEFORE: Duration = Duration::from_secs(70);
/// A fault up to this long after an exit may prevent its report.
const AFTER: Duration = Duration::from_secs(10);
/// How long a request in flight may take.
const ON_THE_WAY: Duration = Duration::from_secs(7);
/// Without faults, an exit is reported within this time: the controller waits 5 s for the exit of the driver, which may explain
/// it, and for a moment there may be no leader.
const SOON: Duration = Duration::from_secs(12);
/// The longest pause before a watch that is cut repeatedly is restarted.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long after the last fault all work is finished.
const SETTLED: Duration = Duration::from_secs(150);
/// Causes of failed executors that are retained for `keepFailed`; a later exit of the driver may explain an `error`.
const KEPT: [&str; 3] = ["error", "jvm-oom", "deadline-exceeded"];

/// The violations of a history.
pub async fn judge(world: &World) -> Vec<String> {
    let mut wrong = world.wrong.clone();
    let pods: BTreeMap<String, Value> = world.pods().await.into_iter().map(|pod| (uid(&pod), pod)).collect();
    writes(world, &mut wrong);
    leaders(world, &mut wrong);
    ends(world, &pods, &mut wrong);
    let told = world.told.lines.lock().unwrap().clone();
    events(world, &told, &mut wrong).await;
    owners(world, &pods, &mut wrong);
    adopted(world, &pods, &mut wrong);
    gangs(world, &pods, &mut wrong).await;
    requests(world, &mut wrong);
    quiet(world, &mut wrong);
    if !world.replicas.values().any(super::replica::Replica::leads) {
        wrong.push("no replica leads".to_owned());
    }
    wrong
}

fn uid(pod: &Value) -> String {
    pod["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
}

/// When a leader first wrote a progress mark: earlier exits are history, and no replica reports them.
fn first_mark(world: &World) -> Instant {
    let writes = world.writes.lock().unwrap();
    let marks = |write: &&Write| {
        write.status < 300 && write.body["metadata"]["annotations"]["spark-usher.io/reported"].is_string()
    };
    writes.iter().find(marks).map_or(world.began, |write| write.at)
}

/// Whether the watch of an earlier leader may have passed an exit without showing it: that leader's mark then covers the exit.
fn may_be_lost(world: &World, at: Instant) -> bool {
    let leads = |number: &usize| world.replicas.get(number).is_some_and(super::replica::Replica::leads);
    let writes = world.writes.lock().unwrap();
    let has_led = |number: usize, from: Instant| {
        let holder = format!("replica-{number}");
        let is_its = |write: &&Write| write.replica == number && write.body["spec"]["holderIdentity"] == *holder;
        writes.iter().filter(is_its).any(|write| write.path.contains("/leases") && write.at > from)
    };
    let is_lossy = |(_, from, until): &&(usize, Instant, Instant)| *from < at && at < *until + BEFORE;
    world.lossy.iter().filter(is_lossy).any(|(number, from, _)| !leads(number) && has_led(*number, *from))
}

/// Only finished executors are labelled or deleted, after their driver's grace period and after their exit was reported; and a dry
/// run writes nothing.
fn writes(world: &World, wrong: &mut Vec<String>) {
    let (told, first_mark) = (world.told.lines.lock().unwrap(), first_mark(world));
    let all = world.writes.lock().unwrap().clone();
    for write in all.iter().filter(|write| write.status < 300) {
        let at = (write.at - world.began).as_secs_f64();
        let is_own = write.path.contains("/leases") || write.path.contains("/secrets");
        let is_dry = |(begin, end): &(Instant, Option<Instant>)| {
            *begin + ON_THE_WAY < write.at && end.is_none_or(|end| write.at < end)
        };
        if !is_own && world.dry_runs.iter().any(is_dry) {
            wrong.push(format!("{at:.2} {} {} in a dry run", write.method, write.path));
        }
        if !is_own && !write.path.contains("/events") && !write.before.is_null() && !is_guarded(write) {
            wrong.push(format!("{at:.2} {} {} without preconditions: {}", write.method, write.path, write.body));
        }
        if !write.path.contains("/pods/") || write.before.is_null() {
            continue;
        }
        for owner in write.body["metadata"]["ownerReferences"].as_array().into_iter().flatten() {
            let app = world.lives.get(&uid(&write.before)).map(|life| &world.apps[life.app]);
            let is_its_driver =
                |app: &&App| owner["uid"] == *app.uid && app.ended.is_none_or(|ended| write.at < ended + ON_THE_WAY);
            if app.filter(is_its_driver).is_none() {
                wrong.push(format!("{at:.2} {} gets the owner {owner}: {app:?}", write.path));
            }
        }
        let labels = write.body["metadata"]["labels"]["spark-exec-inactive"] == "true";
        if write.method != Method::DELETE && !labels {
            continue;
        }
        let uid = uid(&write.before);
        let Some(life) = world.lives.get(&uid) else {
            wrong.push(format!("{at:.2} {} {}, which is not an executor", write.method, write.path));
            continue;
        };
        let phase = write.before["status"]["phase"].as_str().unwrap_or_default();
        if phase != "Failed" && phase != "Succeeded" {
            wrong.push(format!("{at:.2} {} of {}, which is {phase}", write.method, life.name));
        }
        let app = &world.apps[life.app];
        if app.kind == Kind::Elsewhere {
            wrong.push(format!("{at:.2} {} of {}, whose driver is unknown", write.method, life.name));
        }
        if life.skip {
            wrong.push(format!("{at:.2} {} of {}, which has the annotation skip", write.method, life.name));
        }
        let is_deleted = write.method == Method::DELETE;
        let valid: Vec<&Lifecycle> = valid(world, write.at).collect();
        let fits = |lifecycle: &&&Lifecycle| match lifecycle.finished {
            Finished::Report => false,
            Finished::Label => !is_deleted,
            Finished::Delete => true,
        };
        if valid.iter().filter(fits).count() == 0 {
            wrong.push(format!("{at:.2} {} of {}, which no policy allows", write.method, life.name));
        }
        if is_deleted && app.keeps {
            wrong.push(format!("{at:.2} DELETE of {}, which its driver retains", life.name));
        }
        let Some(ended) = life.ended else { continue };
        let shortest = valid.iter().map(|lifecycle| lifecycle.keep_failed).min().unwrap();
        let is_failure =
            causes(world, life).iter().all(|cause| KEPT.contains(cause) || *cause == "deleted" || *cause == "vanished");
        if is_deleted && is_failure && write.at - ended < shortest {
            wrong.push(format!("{at:.2} DELETE of {} {:?} after its exit", life.name, write.at - ended));
        }
        if app.ended.is_none_or(|gone| gone > write.at) && write.at - ended < app.grace() {
            wrong.push(format!("{at:.2} {} of {} in its driver's grace period", write.method, life.name));
        }
        if ended > first_mark
            && !may_be_lost(world, ended)
            && !told.iter().any(|line| line.uid == uid && line.at.unwrap() <= write.at)
        {
            wrong.push(format!("{at:.2} {} of {} before its exit is reported", write.method, life.name));
        }
    }
}

/// The policies at the time of a write, and those of a moment before.
fn valid(world: &World, at: Instant) -> impl Iterator<Item = &Lifecycle> {
    let until = |index: usize| world.valid.get(index + 1).map(|(next, _)| *next);
    let all = world.valid.iter().enumerate();
    let then =
        all.filter(move |(index, (from, _))| *from <= at && until(*index).is_none_or(|until| at < until + ON_THE_WAY));
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
fn leaders(world: &World, wrong: &mut Vec<String>) {
    let mut leader: Option<(usize, Instant)> = None;
    for write in world.writes.lock().unwrap().iter().filter(|write| write.status < 300) {
        if write.path.contains("/leases") {
            let holder = write.body["spec"]["holderIdentity"].as_str().unwrap_or_default();
            if holder == format!("replica-{}", write.replica) && leader.is_none_or(|(is, _)| is != write.replica) {
                leader = Some((write.replica, write.at));
            }
        } else if !write.path.contains("/secrets")
            && let Some((is, since)) = leader
            && is != write.replica
            && write.at - since > ON_THE_WAY
        {
            let at = (write.at - world.began).as_secs_f64();
            wrong.push(format!("{at:.2} {} {} by {}, while {is} leads", write.method, write.path, write.replica));
        }
    }
}

/// Each exit is reported once, or as possibly reported, with its cause; and remaining executors are cleaned up.
fn ends(world: &World, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    let (told, first_mark) = (world.told.lines.lock().unwrap(), first_mark(world));
    let Lifecycle { finished, keep_failed, .. } = world.policies.load().lifecycle;
    let leader = world.replicas.iter().find(|(_, replica)| replica.leads()).map(|(number, _)| *number);
    for (uid, life) in &world.lives {
        let lines: Vec<_> = told.iter().filter(|line| line.uid == *uid).collect();
        let sure = lines.iter().filter(|line| !line.perhaps).count();
        if sure > life.ends() {
            wrong.push(format!("{} is reported {sure} times: {lines:?}", life.name));
        }
        if life.ends() == 0 && !lines.is_empty() {
            wrong.push(format!("{} is running and reported: {lines:?}", life.name));
        }
        for line in &lines {
            if !causes(world, life).contains(&line.cause.as_str()) {
                wrong.push(format!("{} is reported as {}: {life:?}", life.name, line.cause));
            }
        }
        if life.unlabelled {
            continue; // No watch shows it any longer.
        }
        // The leader cannot report executors that only other replicas knew.
        let is_history = life.ended.is_some_and(|ended| ended <= first_mark);
        let survivor = leader.is_some_and(|leader| life.known_by.contains(&leader));
        // For Spark 3.0, an executor runs as long as its pod's phase is Running.
        let runs_on = world.apps[life.app].old && life.comes_again();
        let stays = life.ended.is_some() && life.gone.is_none() && !runs_on;
        restarts(world, life, &lines, wrong);
        let is_excused = is_history || life.ended.or(life.gone).is_some_and(|at| may_be_lost(world, at));
        if ((stays && !life.by_driver) || (life.gone.is_some() && survivor)) && lines.is_empty() && !is_excused {
            let known = leader.is_some_and(|leader| world.replicas[&leader].knows(uid));
            wrong.push(format!("{} is never reported (the leader knows it: {known}): {life:?}", life.name));
        }
        let is_inactive =
            || pods.get(uid).is_some_and(|pod| pod["metadata"]["labels"]["spark-exec-inactive"] == "true");
        let is_left = match finished {
            Finished::Report => false,
            Finished::Label => !is_inactive(),
            Finished::Delete => {
                // More time, for the driver's grace period and for outages.
                let kept = life.ended.is_some_and(|ended| ended.elapsed() < keep_failed + Duration::from_secs(250));
                let kept = kept && life.cause.is_some_and(|cause| KEPT.contains(&cause));
                !is_inactive() && !kept
            }
        };
        // An executor without a known driver is not cleaned up.
        let is_owned = pods.get(uid).is_some_and(|pod| pod["metadata"]["ownerReferences"].is_array());
        if stays && is_left && is_owned && !life.comes_again() && !life.skip {
            wrong.push(format!("{} is not cleaned up: {life:?} {}", life.name, pods[uid]));
        }
    }
}

/// Each exit that is followed by a restart is reported before the next one, too, if no fault happened meanwhile.
fn restarts(world: &World, life: &Life, lines: &[&Line], wrong: &mut Vec<String>) {
    if world.apps[life.app].old {
        return; // See above.
    }
    for (at, former) in life.former.iter().enumerate() {
        let (begin, end) = (former.ended - BEFORE, former.ended + AFTER);
        let is_disturbed = world.disturbed.iter().any(|(from, until)| *from < end && begin < *until);
        let next = life.former.get(at + 1).map(|next| next.ended).or(life.ended);
        let of_it = |line: &&&Line| line.at.unwrap() >= former.ended && next.is_none_or(|next| line.at.unwrap() < next);
        let count = lines.iter().filter(of_it).count();
        if count == 0 && !is_disturbed {
            wrong.push(format!("an exit of {} is never reported: {former:?} of {life:?}", life.name));
        }
    }
}

/// The causes that are true for an executor's exits.
fn causes(world: &World, life: &Life) -> Vec<&'static str> {
    let mut causes: Vec<&'static str> = life.former.iter().map(|former| former.cause).chain(life.cause).collect();
    if life.gone.is_some() {
        causes.extend(["deleted", "vanished"]);
    }
    let driver = world.apps[life.app].ended;
    let ended = life.former.iter().map(|former| former.ended).chain(life.ended).max();
    let with_driver = ended.zip(driver).is_some_and(|(ended, driver)| driver <= ended + WITH_DRIVER);
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

/// Events count at most as many exits of a cause as were reported, and in the time without faults at least as many as require one.
async fn events(world: &World, told: &[Line], wrong: &mut Vec<String>) {
    let counted = counted(&world.routes).await;
    for (cause, count) in &counted {
        let ends = told.iter().filter(|line| line.cause == *cause).count() as u64;
        if *count > ends {
            wrong.push(format!("Events count {count} exits as {cause}, and {ends} were reported"));
        }
    }
    let quiet = world.quiet.unwrap();
    let events = counted.values().sum::<u64>() - quiet.events;
    let is_worth_one =
        |line: &&Line| Cause::ALL.iter().any(|cause| cause.as_str() == line.cause && cause.is_abnormal());
    let ends = told[quiet.told..].iter().filter(is_worth_one).count();
    if events < ends as u64 {
        wrong.push(format!("{ends} exits were reported in the time without faults, and Events count {events}"));
    }
}

/// Only its driver owns an executor.
fn owners(world: &World, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    for (uid, life) in &world.lives {
        let app = &world.apps[life.app];
        let owners = pods.get(uid).and_then(|pod| pod["metadata"]["ownerReferences"].as_array());
        for owner in owners.into_iter().flatten() {
            if app.kind == Kind::Elsewhere || owner["uid"] != *app.uid {
                wrong.push(format!("{} of {app:?} is owned by {owner}", life.name));
            }
        }
    }
}

/// A running executor gets its driver as owner, if that is known.
fn adopted(world: &World, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    for (uid, life) in world.lives.iter().filter(|(_, life)| life.is_live()) {
        let app = &world.apps[life.app];
        let is_owned = || pods.get(uid).is_none_or(|pod| pod["metadata"]["ownerReferences"].is_array());
        if app.kind != Kind::Elsewhere && app.ended.is_none() && !life.skip && !is_owned() {
            wrong.push(format!("{} of {app:?} has no owner: {}", life.name, pods[uid]));
        }
    }
}

/// No executor waits for its gang forever, a new PodGroup has the size of its gang, and no PodGroup outlives its application.
async fn gangs(world: &World, pods: &BTreeMap<String, Value>, wrong: &mut Vec<String>) {
    let of_app = |app: usize| world.lives.values().filter(move |life| life.app == app);
    for (number, app) in world.apps.iter().enumerate() {
        let is_its = |write: &&Write| {
            let owner = &write.body["metadata"]["ownerReferences"][0]["uid"];
            write.method == Method::POST
                && write.path.ends_with("/podgroups")
                && write.status < 300
                && *owner == *app.uid
        };
        let first = world.writes.lock().unwrap().iter().find(is_its).cloned();
        let Some((gang, first)) = app.gang.zip(first) else { continue };
        let count = &first.body["spec"]["schedulingPolicy"]["gang"]["minCount"];
        let began = of_app(number).filter(|life| life.began < first.at).count();
        // An annotation comes with the driver; a configuration must have been read.
        let conf = format!("/api/v1/namespaces/{}/configmaps/conf-{number}", app.namespace);
        let read = world.lines[first.replica].read.lock().unwrap().get(&conf).copied();
        let is_known = app.notices.is_none() || read.is_some_and(|read| read < first.at);
        if began == 1 && is_known && *count != gang {
            wrong.push(format!("the PodGroup of {app:?} has size {}", count));
        }
    }
    let groups = get(&world.routes, "/apis/scheduling.k8s.io/v1beta1/podgroups").await;
    for group in groups["items"].as_array().into_iter().flatten() {
        let owner = &group["metadata"]["ownerReferences"][0]["uid"];
        let number = world.apps.iter().position(|app| *owner == *app.uid && !app.uid.is_empty());
        let is_over = number.is_some_and(|number| {
            let app = &world.apps[number];
            // If no watch shows the driver, the PodGroup stays for ten minutes.
            let has_ended = app.kind == Kind::Labelled && app.ended.is_some_and(|ended| ended.elapsed() > SETTLED);
            has_ended && !of_app(number).any(|life| life.ended.or(life.gone).is_none())
        });
        if is_over {
            wrong.push(format!("a PodGroup outlives its application: {group}"));
        }
    }
    for (uid, life) in world.lives.iter().filter(|(_, life)| life.is_live()) {
        if pods.get(uid).is_some_and(|pod| pod["status"]["phase"] != "Running") {
            wrong.push(format!("{} waits forever: {life:?} {}", life.name, pods[uid]));
        }
    }
}

/// The maximum number of times in any window of this length.
fn most(times: &[Instant], window: Duration) -> usize {
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
const A_MINUTE: &[(&str, usize)] = &[
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
const READS: usize = 600 + 50 * 60;

/// The number of requests is limited at any time, and low without faults.
fn requests(world: &World, wrong: &mut Vec<String>) {
    let minutes = (world.began.elapsed().as_secs() / 60) as usize;
    // Three addresses of an application at a time, of eight, after pauses that double from one minute on. A driver that is found is
    // read again every minute.
    let of = |kind: Kind| world.apps.iter().filter(|app| app.kind == kind).count();
    let by_address = of(Kind::Elsewhere) * 8 * minutes.ilog2() as usize + of(Kind::Notebook) * minutes + 10;
    let since = world.quiet.unwrap().since;
    let new = world.lives.values().filter(|life| life.began > since).count();
    let ended = |life: &Life| {
        let former = life.former.iter().filter(|former| former.ended > since).count();
        former + usize::from(life.ended.or(life.gone).is_some_and(|at| at > since))
    };
    let changes = new + world.lives.values().map(ended).sum::<usize>() + world.apps.len();
    for line in &world.lines {
        let requests = line.requests.lock().unwrap();
        for (what, times) in requests.iter() {
            let known = A_MINUTE.iter().find(|(prefix, _)| what.starts_with(prefix)).map_or(READS, |(_, most)| *most);
            let busiest = most(times, Duration::from_secs(60));
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
        let quiet = |what: &String| requests[what].iter().filter(|at| **at > since).count();
        let count: usize = requests.keys().filter(is_for_them).filter(|what| *what != "LIST pods").map(quiet).sum();
        if std::env::var("FIGURES").is_ok() && count > 0 {
            println!("QUIET {} {count} for {changes}", world.is_gentle);
        }
        if count > 8 * changes {
            wrong.push(format!("{count} requests for {changes} changes, in the time without faults"));
        }
    }
}

/// Without faults, each exit is reported exactly once, not as possibly reported, soon, and with its true cause.
fn quiet(world: &World, wrong: &mut Vec<String>) {
    let told = world.told.lines.lock().unwrap();
    let since = if world.is_gentle { first_mark(world) } else { world.quiet.unwrap().since };
    for (uid, life) in world.lives.iter().filter(|(_, life)| life.began > since && !life.unlabelled) {
        let lines: Vec<_> = told.iter().filter(|line| line.uid == *uid).collect();
        // For Spark 3.0, an executor runs as long as its pod's phase is Running.
        let by_phase = world.apps[life.app].old && life.restarts;
        // If all replicas that knew it stop, none can report its exit.
        let stays = |number: &usize| {
            let goes = world.stopped.get(number);
            goes.is_none_or(|goes| life.gone.is_none_or(|gone| *goes > gone + SOON))
        };
        let is_known = life.known_by.iter().any(stays);
        let (most, least) = (life.ends(), if by_phase || !is_known { 0 } else { life.ends() });
        if !(least..=most).contains(&lines.len()) || lines.iter().any(|line| line.perhaps) {
            wrong.push(format!("{} exited {most} times without faults, reported: {lines:?}", life.name));
        }
        if by_phase {
            continue;
        }
        let mut truths: Vec<_> = life.former.iter().map(|former| (former.ended, former.cause)).collect();
        truths.extend(life.ended.or(life.gone).map(|at| (at, life.cause.unwrap_or("deleted"))));
        for (line, (at, cause)) in lines.iter().zip(truths) {
            let is_cut = world.cuts.iter().any(|cut| *cut < at + SOON && at < *cut + LONGEST_PAUSE);
            let is_true = match line.cause.as_str() {
                "driver-lost" => cause == "error",
                "deleted" if life.was_dying => true,
                // Found by a poll.
                "vanished" => is_cut && cause == "deleted",
                told => told == cause,
            };
            let soon = if is_cut { SOON + LONGEST_PAUSE } else { SOON };
            if !is_true || line.at.unwrap() > at + soon {
                wrong.push(format!("{} exited as {cause} without faults, reported: {line:?}", life.name));
            }
        }
    }
}

/// A write as one line of the trace.
pub fn line_of(write: &Write, began: Instant) -> String {
    let at = (write.at - began).as_secs_f64();
    let what = if write.path.contains("/leases") { &write.body } else { &write.before["metadata"] };
    format!("{at:8.2} write {} {} {} {} {what}", write.replica, write.status, write.method, write.path)
}
