//! The search for every injected bug (`bugs.toml`). `python3 tests/bugs.py` makes it a module of `main.rs` in a copy of the sources, and
//! runs it there.
//!
//! ```text
//! python3 tests/bugs.py                                  the simulation without bugs, and the search for every one
//! python3 tests/bugs.py WatchNotBackedOff --seeds 200    the search for one, in the first 200 histories
//! ```

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::Range;
use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use usher_spark::injected_bugs::{Bug, inject};

use crate::{controller, nodes, recovery, replicas};

/// A search for bugs.
struct Search {
    /// The bugs.
    bugs: &'static [Bug],
    /// The seeds of the histories to run for each of them, after the one that is known to find it.
    seeds: Range<u64>,
    /// Whether a seed is a history, and no number of a check.
    has_histories: bool,
    /// Runs a history; returns a violation.
    run: fn(u64) -> Option<String>,
}

/// All searches, the longest first.
const SEARCHES: [Search; 5] = [
    Search {
        bugs: Bug::EDGE,
        seeds: 1..41,
        has_histories: true,
        run: |seed| replicas::run::run_history(seed).0.into_iter().next(),
    },
    Search { bugs: Bug::CORE, seeds: 0..1000, has_histories: true, run: controller::run::violation },
    Search { bugs: Bug::NODES, seeds: 0..2, has_histories: false, run: |seed| checked(|| nodes::check(seed)) },
    Search { bugs: Bug::SCENARIOS, seeds: 0..1, has_histories: false, run: |_| checked(replicas::run::check_race) },
    Search {
        bugs: Bug::RULES,
        seeds: 0..CHECKS.len() as u64,
        has_histories: false,
        run: |seed| checked(CHECKS[seed as usize]),
    },
];

/// Histories that find bugs which the first ones do not find. The test prints those that a change of the code has made stale: the
/// search costs many times as much then.
const FOUND_BY_SEED: &[(Bug, u64)] = &[
    (Bug::ActsBeforeReporting, 5),
    (Bug::AdoptedByMissingOwner, 2),
    (Bug::BudgetIgnored, 48),
    (Bug::CheckpointIgnored, 2),
    (Bug::ConfirmationNotRetried, 13),
    (Bug::ContradictionIgnored, 10),
    (Bug::DeletedCountsAsVanished, 3),
    (Bug::DeletionGraceIgnored, 25),
    (Bug::DriverLostIsError, 4),
    (Bug::DryRunIgnored, 2),
    (Bug::FailedNotKept, 24),
    (Bug::FailuresNotKept, 121),
    (Bug::FinalCheckpointNotWritten, 5),
    (Bug::FinalizersIgnored, 14),
    (Bug::FollowerDropsExits, 8),
    (Bug::GangOfOneLess, 4),
    (Bug::GangOfOneMore, 12),
    (Bug::GivenUpAtOnce, 1000),
    (Bug::GraceCountsOutages, 8),
    (Bug::GroupsNeverDeleted, 1),
    (Bug::HopelessInClientMode, 140),
    (Bug::InactiveIgnored, 3),
    (Bug::IncompleteViewCounts, 49),
    (Bug::LateWatchRestarted, 49),
    (Bug::NeverAdopted, 23),
    (Bug::NoBackOff, 25),
    (Bug::OrphansAtOnce, 220),
    (Bug::OrphansNotKept, 42),
    (Bug::PendingIsNothing, 29),
    (Bug::PollComparesPresenceOnly, 24),
    (Bug::RefusedAtOnce, 40),
    (Bug::ReportIgnored, 3),
    (Bug::RunningIsFinished, 37),
    (Bug::SkipIgnored, 4),
    (Bug::StuckSinceCreation, 27),
    (Bug::UnknownDriverIsDeleted, 5),
    (Bug::UnregisteredSinceCreation, 25),
    (Bug::UnscheduledIsStuck, 73),
    (Bug::VanishedAtOnce, 100),
    (Bug::VanishedNever, 148),
    (Bug::WarnActs, 4),
    (Bug::ZombieAtOnce, 133),
];

/// The tests of the recovery rules that find bugs.
const CHECKS: [fn(); 8] = [
    recovery::check_attempts,
    recovery::check_live_kept,
    recovery::check_stopped,
    recovery::check_groups,
    recovery::cost::check_counted_once,
    recovery::drivers::check_owner_keeps,
    recovery::drivers::check_lingering,
    recovery::drivers::check_workloads_driver,
];

/// A check that panics if it finds a violation.
fn checked(check: impl FnOnce()) -> Option<String> {
    check();
    None
}

/// What a history shows. A panic shows a bug, too.
fn violation(search: &Search, seed: u64) -> Option<String> {
    catch_unwind(|| (search.run)(seed)).unwrap_or_else(|panic| {
        Some(panic.downcast_ref::<String>().map_or_else(|| "a check failed".to_owned(), Clone::clone))
    })
}

/// Whether a history holds without any bug. Each is run once.
fn holds(search: &Search, bug: Bug, seed: u64) -> bool {
    static HOLD: Mutex<BTreeMap<(usize, u64), bool>> = Mutex::new(BTreeMap::new());
    let key = (search.bugs.as_ptr().addr(), seed);
    if let Some(known) = HOLD.lock().unwrap().get(&key) {
        return *known;
    }
    inject(None);
    let holds = violation(search, seed).is_none();
    inject(Some(bug));
    if !holds {
        println!("seed {seed} finds {bug:?}, and a violation without it");
    }
    HOLD.lock().unwrap().insert(key, holds);
    holds
}

/// Searches for a bug, in histories that hold without it. Returns the seed that finds it, and what showed it.
fn find(search: &Search, bug: Bug) -> Option<(u64, String)> {
    let known = FOUND_BY_SEED.iter().find(|(found, _)| *found == bug).map(|(_, seed)| *seed);
    let histories = std::env::var("SEARCHED_SEEDS").ok().filter(|_| search.has_histories);
    let end = histories.map_or(search.seeds.end, |count| search.seeds.start + count.parse::<u64>().unwrap());
    inject(Some(bug));
    let mut seeds = known.into_iter().chain(search.seeds.start..end);
    let found = seeds.find_map(|seed| {
        let shown = violation(search, seed)?;
        holds(search, bug, seed).then_some((seed, shown))
    });
    inject(None);
    if let (Some(known), Some((seed, _))) = (known, &found)
        && known != *seed
    {
        // Not captured: the test passes.
        writeln!(std::io::stderr(), "FOUND_BY_SEED is stale: (Bug::{bug:?}, {seed})").unwrap();
    }
    found
}

#[test]
fn every_injected_bug_is_found() {
    let names = std::env::var("BUGS").unwrap_or_default();
    let names: Vec<&str> = names.split_whitespace().collect();
    let all = SEARCHES.iter().flat_map(|search| search.bugs.iter().map(move |bug| (search, *bug)));
    let chosen: Vec<(&Search, Bug)> =
        all.filter(|(_, bug)| names.is_empty() || names.contains(&&*format!("{bug:?}"))).collect();
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some((search, bug)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match find(search, *bug) {
                        Some((seed, shown)) => {
                            println!("{bug:?}: seed {seed}: {}", shown.chars().take(200).collect::<String>());
                        }
                        None => missed.lock().unwrap().push(*bug),
                    }
                }
            });
        }
    });
    let missed = missed.into_inner().unwrap();
    assert!(missed.is_empty(), "not found: {missed:?}");
    // Not captured: `tests/bugs.py` reads it.
    writeln!(std::io::stderr(), "{} injected bugs are found", chosen.len()).unwrap();
}
