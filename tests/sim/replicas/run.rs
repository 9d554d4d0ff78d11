//! Histories of complete replicas: the product's own watches, election, controller and writes, on a paused clock, against the
//! sandbox's API over connections that fail.
//!
//! `SEED=7 cargo test --test sim replicas::run::one_history -- --nocapture` prints one history; `SEEDS=1000` runs a thousand.

use std::sync::Arc;
use std::time::Duration;

use super::apps::Kind;
use super::cluster::SimCluster;
use super::connection::Flow;
use super::invariants::{check, trace_line};
use super::log::{ExitLog, Report};
use crate::support::{only, policy};
use jiff::Timestamp;
use serde_json::json;
use tokio::time::Instant;
use tracing_subscriber::layer::SubscriberExt;
use usher_core::policy::Lifecycle;
use usher_runtime::{clock, random};

/// Runs one history; returns its violations and the history.
pub fn run_history(seed: u64) -> (Vec<String>, Vec<String>) {
    trace_history(seed, false)
}

/// The same; with `is_traced` the history contains writes and reported exits, too.
fn trace_history(seed: u64, is_traced: bool) -> (Vec<String>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let log = runtime.block_on(async { ExitLog::new() });
    let subscriber = tracing_subscriber::registry().with(log.clone());
    let guard = tracing::subscriber::set_default(subscriber);
    let outcome = runtime.block_on(async {
        clock::simulate(Timestamp::from_second(1_800_000_000).unwrap());
        random::simulate(seed);
        let mut cluster = SimCluster::new(seed, log);
        cluster.create_objects().await;
        cluster.start_replica();
        cluster.start_replica();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let until = Instant::now() + Duration::from_secs(240);
        while Instant::now() < until {
            let pause = cluster.rng.below(1200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            cluster.step().await;
            cluster.tick().await;
        }
        cluster.remove_faults().await;
        cluster.wait(Duration::from_secs(100)).await;
        cluster.begin_fault_free_phase().await;
        let until = Instant::now() + Duration::from_secs(100);
        while Instant::now() < until {
            let pause = cluster.rng.below(4000);
            cluster.wait(Duration::from_millis(pause)).await;
            cluster.fault_free_step().await;
        }
        cluster.fill_gangs().await;
        // Longer than the grace period of a driver whose configuration is unknown.
        cluster.wait(Duration::from_secs(160)).await;
        let wrong = check(&cluster).await;
        let mut history = std::mem::take(&mut cluster.history);
        if let Some(text) = &cluster.log.text {
            history.extend(text.lock().unwrap().iter().cloned());
        }
        if cluster.log.text.is_some() || is_traced {
            history.extend(cluster.writes.lock().unwrap().iter().map(|write| trace_line(write, cluster.began)));
            let reports = cluster.log.reports.lock().unwrap();
            history.extend(reports.iter().map(|report| {
                let Report { at, uid, cause, possibly_reported } = report;
                format!("{:?} reported {uid} {cause} {possibly_reported}", at.unwrap() - cluster.began)
            }));
        }
        cluster.stop().await;
        (wrong, history)
    });
    drop(guard);
    outcome
}

#[test]
fn histories_of_whole_replicas_hold() {
    let seeds: u64 = std::env::var("SEEDS").map_or(6, |seeds| seeds.parse().unwrap());
    let from: u64 = std::env::var("FROM").map_or(4, |from| from.parse().unwrap());
    for seed in from..from + seeds {
        let (wrong, history) = run_history(seed);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}\n{}", history.join("\n"));
    }
}

#[test]
fn same_seed_replays_same_history() {
    let (first, second) = (trace_history(4, true).1, trace_history(4, true).1);
    assert!(first.len() > 500, "{first:#?}");
    assert_eq!(first, second);
}

/// Otherwise no poll would ever be complete if a list takes longer than a replica leads.
#[test]
fn slow_poll_continues_when_lease_is_lost_and_regained() {
    let slow = Duration::from_secs(40);
    let (during, after, read) = with_one_replica(async |cluster| {
        let connection = cluster.connections[0].clone();
        // The watch shows a labelled driver, so no lookup reads it by name.
        while cluster.apps.last().is_none_or(|app| app.kind != Kind::Labelled) {
            cluster.new_app().await;
        }
        until("a poll begins", || connection.count_of("LIST pods") > 0).await;
        // The watch shows nothing from now on, and the next poll is slow.
        connection.set_slow("LIST pods", slow);
        connection.set_flow(Flow::Late(Duration::from_secs(3600)));
        connection.cut();
        let polls = connection.count_of("LIST pods");
        until("a slow poll begins", || connection.count_of("LIST pods") > polls).await;
        cluster.new_executor_of(cluster.apps.len() - 1).await;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/spark-usher";
        let other = json!({"spec": {"holderIdentity": "another", "renewTime": format!("{:.6}", clock::now())}});
        cluster.request("PATCH", lease, other).await;
        until("the lease is lost", || !cluster.replicas[&0].leads()).await;
        until("the other holder's lease has expired", || cluster.replicas[&0].leads()).await;
        let during = connection.count_of("LIST pods") - polls;
        tokio::time::sleep(slow).await;
        // A pod that is in the poll and that the watch does not show is read by name.
        let after = connection.count_of("LIST pods") - polls;
        (during, after, connection.count_of("GET pods"))
    });
    assert_eq!((during, after, read), (1, 2, 1));
}

/// A replica that has only just listed pods may not know the exits that the last leader has not reported.
#[test]
fn follower_that_has_observed_every_exit_leads_before_a_younger_one() {
    let (first, younger) = with_one_replica(async |cluster| {
        until("a replica leads", || cluster.replicas[&0].leads()).await;
        cluster.start_replica();
        until("the second one has listed pods", || cluster.replicas[&1].is_complete()).await;
        cluster.new_app().await;
        // The checkpoint covers the pod; the renewals of the Lease raise the versions of lists after it.
        tokio::time::sleep(Duration::from_secs(20)).await;
        cluster.start_replica();
        until("the third one has listed pods", || cluster.replicas[&2].is_complete()).await;
        cluster.replicas[&0].begin_shutdown();
        until("the Lease is released", || !cluster.replicas[&0].leads()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let first = [1, 2].map(|number| cluster.replicas[&number].leads());
        // After replica 1 has stopped, replica 2 leads, although another client changes the Lease every 100 ms.
        cluster.replicas[&1].begin_shutdown();
        until("the Lease is released again", || !cluster.replicas[&1].leads()).await;
        for number in 0..50 {
            let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/spark-usher";
            let note = json!({"metadata": {"annotations": {"example.com/note": number.to_string()}}});
            cluster.request("PATCH", lease, note).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        (first, cluster.replicas[&2].leads())
    });
    assert_eq!((first, younger), ([true, false], true));
}

#[test]
fn of_two_replicas_that_write_an_expired_lease_one_leads() {
    check_race();
}

/// Two replicas find the Lease of a dead leader expired, and write it at the same time.
pub fn check_race() {
    let (max, last) = with_one_replica(async |cluster| {
        cluster.start_replica();
        cluster.start_replica();
        until("a replica leads", || cluster.replicas[&0].leads()).await;
        until("the others have listed pods", || [1, 2].iter().all(|at| cluster.replicas[at].is_complete())).await;
        for connection in &cluster.connections[1..] {
            connection.set_slow("PUT leases", Duration::from_millis(500));
        }
        drop(cluster.replicas.remove(&0)); // It is killed.
        let (mut max, mut last) = (0, 0);
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            last = cluster.replicas.values().filter(|replica| replica.leads()).count();
            max = max.max(last);
        }
        (max, last)
    });
    assert_eq!((max, last), (1, 1));
}

/// Runs a scenario with one replica that polls every 5 s.
fn with_one_replica<T>(scenario: impl AsyncFnOnce(&mut SimCluster) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        clock::simulate(Timestamp::from_second(1_800_000_000).unwrap());
        random::simulate(1);
        let mut cluster = SimCluster::new(1, ExitLog::new());
        let lifecycle = Lifecycle { poll: Duration::from_secs(5), ..Lifecycle::default() };
        cluster.policies.store(Arc::new(only(policy("none")).with_lifecycle(lifecycle)));
        cluster.create_objects().await;
        cluster.start_replica();
        let outcome = scenario(&mut cluster).await;
        cluster.stop().await;
        outcome
    })
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("timed out after five minutes, waiting until {what}");
}

#[test]
fn one_history() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let (wrong, history) = run_history(seed.parse().unwrap());
    println!("{}\n{wrong:#?}", history.join("\n"));
    assert!(wrong.is_empty());
}
