//! Histories of complete replicas: the product's own watches, election, controller and writes, on a paused clock, against the
//! sandbox's API over connections that fail.
//!
//! `SEED=7 cargo test --test sim replicas::run::one_history -- --nocapture` prints one history; `SEEDS=1000` runs a thousand.

use std::sync::Arc;
use std::time::Duration;

use super::apps::Kind;
use super::judge::{judge, line_of};
use super::line::Flow;
use super::told::{Line, Told};
use super::world::World;
use crate::support::{only, policy};
use jiff::Timestamp;
use serde_json::json;
use spark_usher::fault_injection::{Bug, inject};
use spark_usher::policy::Lifecycle;
use spark_usher::runtime::{clock, random};
use tokio::time::Instant;
use tracing_subscriber::layer::SubscriberExt;

/// Runs one history; returns its violations and the history.
fn play(seed: u64) -> (Vec<String>, Vec<String>) {
    play_and_trace(seed, false)
}

/// The same; with `is_traced` the history contains writes and reported exits, too.
fn play_and_trace(seed: u64, is_traced: bool) -> (Vec<String>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let told = runtime.block_on(async { Told::new() });
    let subscriber = tracing_subscriber::registry().with(told.clone());
    let guard = tracing::subscriber::set_default(subscriber);
    let outcome = runtime.block_on(async {
        clock::simulate(Timestamp::from_second(1_800_000_000).unwrap());
        random::simulate(seed);
        let mut world = World::new(seed, told);
        world.furnish().await;
        world.start_replica();
        world.start_replica();
        tokio::time::sleep(Duration::from_secs(20)).await;
        let until = Instant::now() + Duration::from_secs(240);
        while Instant::now() < until {
            let pause = world.rng.below(1200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.step().await;
            world.tick().await;
        }
        world.calm().await;
        world.wait(Duration::from_secs(100)).await;
        world.begin_to_count().await;
        let until = Instant::now() + Duration::from_secs(100);
        while Instant::now() < until {
            let pause = world.rng.below(4000);
            world.wait(Duration::from_millis(pause)).await;
            world.peaceful_step().await;
        }
        world.fill_gangs().await;
        // Longer than the grace period of a driver whose configuration is unknown.
        world.wait(Duration::from_secs(160)).await;
        let wrong = judge(&world).await;
        let mut history = std::mem::take(&mut world.history);
        if let Some(log) = &world.told.log {
            history.extend(log.lock().unwrap().iter().cloned());
        }
        if world.told.log.is_some() || is_traced {
            history.extend(world.writes.lock().unwrap().iter().map(|write| line_of(write, world.began)));
            let told = world.told.lines.lock().unwrap();
            history.extend(told.iter().map(|line| {
                let Line { at, uid, cause, perhaps } = line;
                format!("{:?} reported {uid} {cause} {perhaps}", at.unwrap() - world.began)
            }));
        }
        world.stop().await;
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
        let (wrong, history) = play(seed);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}\n{}", history.join("\n"));
    }
}

#[test]
fn a_history_replays() {
    let (first, second) = (play_and_trace(4, true).1, play_and_trace(4, true).1);
    assert!(first.len() > 500, "{first:#?}");
    assert_eq!(first, second);
}

/// Otherwise no poll would ever be complete if a list takes longer than a replica leads.
#[test]
fn a_poll_survives_the_loss_of_the_lease() {
    let slow = Duration::from_secs(40);
    let (during, after, read) = alone(async |world| {
        let line = world.lines[0].clone();
        // The watch shows a labelled driver, so no lookup reads it by name.
        while world.apps.last().is_none_or(|app| app.kind != Kind::Labelled) {
            world.new_app().await;
        }
        until("a poll begins", || line.count_of("LIST pods") > 0).await;
        // The watch shows nothing from now on, and the next poll is slow.
        line.set_slow("LIST pods", slow);
        line.set_flow(Flow::Late(Duration::from_secs(3600)));
        line.cut();
        let polls = line.count_of("LIST pods");
        until("a slow poll begins", || line.count_of("LIST pods") > polls).await;
        world.new_executor_of(world.apps.len() - 1).await;
        let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/spark-usher";
        let other = json!({"spec": {"holderIdentity": "another", "renewTime": format!("{:.6}", clock::now())}});
        world.request("PATCH", lease, other).await;
        until("the lease is lost", || !world.replicas[&0].leads()).await;
        until("the other holder's lease has expired", || world.replicas[&0].leads()).await;
        let during = line.count_of("LIST pods") - polls;
        tokio::time::sleep(slow).await;
        // A pod that is in the poll and that the watch does not show is read by name.
        let after = line.count_of("LIST pods") - polls;
        (during, after, line.count_of("GET pods"))
    });
    assert_eq!((during, after, read), (1, 2, 1));
}

/// Runs a scenario with one replica that polls every 5 s.
fn alone<T>(play: impl AsyncFnOnce(&mut World) -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        clock::simulate(Timestamp::from_second(1_800_000_000).unwrap());
        random::simulate(1);
        let mut world = World::new(1, Told::new());
        let lifecycle = Lifecycle { poll: Duration::from_secs(5), ..Lifecycle::default() };
        world.policies.store(Arc::new(only(policy("none")).with_lifecycle(lifecycle)));
        world.furnish().await;
        world.start_replica();
        let outcome = play(&mut world).await;
        world.stop().await;
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

/// The number of histories to run for a bug, after the one that is known to find it.
const ENOUGH: u64 = 40;

/// The history that finds a bug; the first histories find the others. After a change of the code, earlier ones may find it:
/// `BUG=WatchNotBackedOff SEEDS=200 cargo test --test sim replicas::run::every_bug -- --nocapture` searches for them.
const FOUND: &[(Bug, u64)] = &[
    (Bug::ActsBeforeReporting, 29),
    (Bug::FinalMarkNotWritten, 3),
    (Bug::ErrorIsAbsent, 14),
    (Bug::LeaseUnguarded, 17),
    (Bug::DryRunIgnored, 2),
    (Bug::GangOfOneMore, 12),
    (Bug::AdoptedByMissingOwner, 2),
    (Bug::NeverAdopted, 23),
    (Bug::GangOfOneLess, 2),
    (Bug::GroupsNeverDeleted, 7),
    (Bug::DeletedCountsAsVanished, 3),
    (Bug::ReportIgnored, 2),
];

/// Two tests, which run in parallel, search for the bugs.
#[test]
fn every_bug_that_is_planted_at_the_edge_is_found() {
    find(0);
}

#[test]
fn every_other_bug_that_is_planted_at_the_edge_is_found() {
    find(1);
}

/// Searches for every second bug, beginning with this one.
fn find(first: usize) {
    if !cfg!(debug_assertions) {
        println!("SKIPPED: a release build has no injected faults");
        return;
    }
    let (only, enough) = (std::env::var("BUG").ok(), std::env::var("SEEDS").ok());
    let enough = enough.map_or(ENOUGH, |seeds| seeds.parse().unwrap());
    let mut missed = Vec::new();
    for bug in Bug::EDGE
        .iter()
        .skip(first)
        .step_by(2)
        .filter(|bug| only.as_ref().is_none_or(|only| format!("{bug:?}") == *only))
    {
        inject(Some(*bug));
        let known = FOUND.iter().find(|(found, _)| found == bug).map(|(_, seed)| *seed);
        let found = known.into_iter().chain(1..=enough).find_map(|seed| Some((seed, play(seed).0.into_iter().next()?)));
        inject(None);
        match found {
            Some((seed, wrong)) => println!("{bug:?}: seed {seed}: {}", wrong.chars().take(200).collect::<String>()),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {enough} histories: {missed:?}");
}

#[test]
fn one_history() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let (wrong, history) = play(seed.parse().unwrap());
    println!("{}\n{wrong:#?}", history.join("\n"));
    assert!(wrong.is_empty());
}
