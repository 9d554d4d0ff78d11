//! Histories of whole replicas: the product's own watches, election, loop and writes, on a paused clock, against the
//! sandbox's API over ways that fail.
//!
//! `SEED=7 cargo test --test edge_simulation one_history -- --nocapture` prints one history; `SEEDS=1000` tries so many.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    dead_code,
    unreachable_pub,
    reason = "a test fails by panicking"
)]

mod edge;
mod support;

use std::time::Duration;

use edge::told::Told;
use edge::world::World;
use jiff::Timestamp;
use spark_usher::plant::{Bug, plant};
use spark_usher::policy::Finished;
use spark_usher::runtime::{clock, random};
use tokio::time::Instant;
use tracing_subscriber::layer::SubscriberExt;

/// How long a driver has of which no configuration is known: twice what it may need to notice an end by itself.
const GRACE: Duration = Duration::from_secs(120);

/// Plays one history; what is wrong with it, if anything is, and the history.
fn play(seed: u64) -> (Vec<String>, Vec<String>) {
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
            let pause = world.dice.below(1200);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            world.step().await;
            world.tick().await;
        }
        world.calm();
        for _ in 0..42 {
            tokio::time::sleep(Duration::from_secs(10)).await;
            world.tick().await;
        }
        let wrong = judge(&world).await;
        let mut history = std::mem::take(&mut world.history);
        if let Some(log) = &world.told.log {
            history.extend(log.lock().unwrap().iter().cloned());
            for write in world.writes.lock().unwrap().iter() {
                let at = (write.at - world.began).as_secs_f64();
                let what = if write.path.contains("/leases") { &write.body } else { &write.before["metadata"] };
                history.push(format!(
                    "{at:8.2} write {} {} {} {} {what}",
                    write.replica, write.status, write.method, write.path
                ));
            }
        }
        world.stop().await;
        (wrong, history)
    });
    drop(guard);
    outcome
}

async fn judge(world: &World) -> Vec<String> {
    let mut wrong = Vec::new();
    let told = world.told.lines.lock().unwrap().clone();
    for write in world.writes.lock().unwrap().iter().filter(|write| write.status < 300) {
        let is_pod = write.path.starts_with("/api/v1/namespaces/default/pods/");
        let labels = write.body["metadata"]["labels"]["spark-exec-inactive"] == "true";
        if !is_pod || !(write.method == "DELETE" || labels) || write.before.is_null() {
            continue;
        }
        let phase = write.before["status"]["phase"].as_str().unwrap_or_default();
        let uid = write.before["metadata"]["uid"].as_str().unwrap();
        let at = (write.at - world.began).as_secs_f64();
        let Some(life) = world.lives.get(uid) else {
            wrong.push(format!("{at:.2} {} {} which is no executor", write.method, write.path));
            continue;
        };
        if phase != "Failed" && phase != "Succeeded" {
            wrong.push(format!("{at:.2} {} of {}, which is {phase}", write.method, life.name));
        }
        let (Some(ended), driver) = (life.ended, &world.drivers[life.app]) else { continue };
        if driver.ended.is_none_or(|gone| gone > write.at) && write.at - ended < GRACE {
            wrong.push(format!("{at:.2} {} of {} while its driver has its time", write.method, life.name));
        }
        if !told.iter().any(|line| line.uid == uid && line.at.unwrap() <= write.at) {
            wrong.push(format!("{at:.2} {} of {} before its end is told", write.method, life.name));
        }
    }
    for (uid, life) in &world.lives {
        let lines: Vec<_> = told.iter().filter(|line| line.uid == *uid).collect();
        let sure = lines.iter().filter(|line| !line.perhaps).count();
        if sure > 1 {
            wrong.push(format!("{} is told {sure} times: {lines:?}", life.name));
        }
        if life.ended.is_none() && life.gone.is_none() && !lines.is_empty() {
            wrong.push(format!("{} lives and is told: {lines:?}", life.name));
        }
        // What only others knew it cannot tell.
        let leader = world.replicas.iter().find(|(_, replica)| replica.leads()).map(|(number, _)| *number);
        let survivor = leader.is_some_and(|leader| life.known_by.contains(&leader));
        let stays = life.ended.is_some() && life.gone.is_none();
        if (stays || (life.gone.is_some() && survivor)) && lines.is_empty() {
            wrong.push(format!("{} is never told: {life:?}", life.name));
        }
        // What failed by itself is kept for an hour, so that people can look.
        let is_cleared = match world.policies.lifecycle.finished {
            Finished::Report => false,
            Finished::Label => true,
            Finished::Delete => life.code != 1,
        };
        if stays && life.owned && is_cleared {
            let path = format!("/api/v1/namespaces/default/pods/{}", life.name);
            let pod = edge::line::get(&world.routes, &path).await;
            if pod["metadata"]["labels"]["spark-exec-inactive"] != "true" {
                wrong.push(format!("{} is left: {life:?}", life.name));
            }
        }
    }
    let seconds = world.began.elapsed().as_secs() as usize;
    for line in &world.lines {
        for (what, count) in line.requests.lock().unwrap().iter() {
            let most = match what.as_str() {
                "LIST pods" => seconds / 4,
                "WATCH pods" => seconds,
                _ => seconds * 50 + 100,
            };
            if *count > most {
                wrong.push(format!("{count} × {what}, where {most} are many"));
            }
        }
    }
    if !world.replicas.values().any(edge::world::Replica::leads) {
        wrong.push("nobody leads".to_owned());
    }
    wrong
}

#[test]
fn histories_of_whole_replicas_hold() {
    let seeds: u64 = std::env::var("SEEDS").map_or(8, |seeds| seeds.parse().unwrap());
    let from: u64 = std::env::var("FROM").map_or(1, |from| from.parse().unwrap());
    for seed in from..from + seeds {
        let (wrong, history) = play(seed);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:#?}\n{}", history.join("\n"));
    }
}

#[test]
fn a_history_replays() {
    let (first, second) = (play(5).1, play(5).1);
    assert!(first.len() > 50, "{first:#?}");
    assert_eq!(first, second);
}

/// So many histories are tried for each bug.
const ENOUGH: u64 = 40;

#[test]
fn every_bug_that_is_planted_at_the_edge_is_found() {
    if !cfg!(debug_assertions) {
        println!("SKIPPED: a release build has no planted bugs");
        return;
    }
    let mut missed = Vec::new();
    for bug in Bug::EDGE {
        plant(Some(*bug));
        let found = (1..=ENOUGH).find_map(|seed| Some((seed, play(seed).0.into_iter().next()?)));
        plant(None);
        match found {
            Some((seed, wrong)) => println!("{bug:?}: seed {seed}: {}", wrong.chars().take(200).collect::<String>()),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found in {ENOUGH} histories: {missed:?}");
}

#[test]
fn one_history() {
    let Ok(seed) = std::env::var("SEED") else { return };
    let (wrong, history) = play(seed.parse().unwrap());
    println!("{}\n{wrong:#?}", history.join("\n"));
    assert!(wrong.is_empty());
}
