//! Polls, relists and interrupted watches: which differences the controller believes, which ones it confirms with a GET, and when
//! it restarts the watch.

use crate::support::office::*;
use crate::support::*;
use spark_usher::controller::{Controller, Lookup, LookupResult, PollResult, Settings};
use spark_usher::leader::LeaderState;
use spark_usher::lifecycle::cause::Cause;
use spark_usher::policy::Finished;
use spark_usher::reason::Reason;
use spark_usher::snapshot::{Change, PodChange, RelatedChange, Replaced};
use spark_usher::spark::ids::PodKey;

/// A poll as of version 40 with the driver and with executor 2 in version 7, without executor 1.
fn polled(office: &mut Office) {
    office.see(&driver());
    office.see(&running(1));
    office.see(&running(2));
    office.after(60);
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(office.controller.snapshot(), "default", "nb-exec-2", "e2", "7");
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
}

fn labelled(name: &str) -> Lookup {
    Lookup::Labelled(PodKey::new("default", name))
}

/// The next GET of an executor.
fn next_read(office: &mut Office) -> Lookup {
    let read = (0..60).find_map(|_| office.after(1).lookups.into_iter().next());
    read.expect("a GET within a minute")
}

/// Answers a GET with 404.
fn is_absent(office: &mut Office, read: &Lookup) {
    let now = office.now();
    office.controller.lookup_answered(read, LookupResult::Absent, now);
}

/// A poll as of version 40 with the driver only.
fn polled_without_executors(office: &mut Office) {
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
}

/// Lets time pass in which polls fail. Returns whether no exit is reported.
fn quietly(office: &mut Office, seconds: u64) -> bool {
    let effects = office.after(seconds);
    let now = office.now();
    if effects.poll {
        office.controller.poll_finished(None, now, &office.policies.clone());
    }
    effects.exits.is_empty()
}

#[test]
fn a_poll_finds_what_is_missing_and_what_the_watch_has_not_shown() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    assert!(office.after(5).lookups.is_empty(), "the watch may still show it");
    assert_eq!(office.after(5).lookups, [labelled("nb-exec-1"), labelled("nb-exec-2")]);
    let now = office.now();
    office.controller.lookup_answered(
        &labelled("nb-exec-2"),
        LookupResult::Labelled(version(failed(2, 137), 7).sighting()),
        now,
    );
    office.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Failed, now);
    let effects = office.after(1);
    assert!(!effects.restart_watch, "a watch that is late has lost nothing");
    assert_eq!(effects.exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Killed]);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")], "tried again");
    let now = office.now();
    office.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Absent, now);
    let exits = office.after(1).exits;
    assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Vanished]);
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_none());
    assert!(exits[0].spark().message.contains("(30000 ms)"), "{}", exits[0].spark().message);
    // The watch shows it at last: the exit is already reported.
    let now = office.now();
    office.controller.bookmark("41", now);
    let effects = office.after(20);
    assert!(!effects.restart_watch && effects.exits.is_empty() && effects.lookups.is_empty());
}

/// The watch hangs for minutes, meanwhile GETs confirm the absence of an executor, and then the watch shows all its events.
#[test]
fn what_a_look_found_gone_comes_back_with_no_watch_however_late() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    office.see(&version(running(1), 9).spec("restartPolicy", "Always"));
    office.after(60);
    polled_without_executors(&mut office);
    let read = next_read(&mut office);
    is_absent(&mut office, &read);
    assert_eq!(office.after(10).exits.len(), 1);
    assert!((0..10).all(|_| quietly(&mut office, 30)));
    office.see(&crashed(1, 10));
    office.see(&version(running(1), 11).spec("restartPolicy", "Always"));
    office.see(&crashed(1, 12));
    office.apply(Change::Pods(PodChange::Deleted(crashed(1, 13).deleting().sighting())));
    assert_eq!(office.after(10).exits.len(), 0);
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_none());
}

/// The executor exits, then its container restarts, and then it is deleted.
#[test]
fn what_a_look_found_gone_was_last_as_the_watch_has_shown_it() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    office.see(&crashed(1, 10));
    assert_eq!(office.after(60).exits.len(), 1);
    polled_without_executors(&mut office);
    let read = next_read(&mut office);
    office.see(&version(running(1), 11).spec("restartPolicy", "Always"));
    is_absent(&mut office, &read);
    let told: usize = (0..10).map(|_| office.after(1).exits.len()).sum();
    assert_eq!(told, 1);
}

/// A GET was answered by another API server, or with the state before a restore.
#[test]
fn what_was_found_gone_and_is_there_comes_back_after_a_while() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    let read = next_read(&mut office);
    is_absent(&mut office, &read);
    office.after(1);
    (0..50).for_each(|_| _ = quietly(&mut office, 16));
    office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting(), running(1).sighting()])));
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

/// The same if the watch begins again with a list, from a stale cache.
#[test]
fn what_a_look_found_gone_comes_back_with_no_list_either() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    let read = next_read(&mut office);
    is_absent(&mut office, &read);
    office.after(1);
    for round in 0..3 {
        office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting(), running(1).sighting()])));
        let now = office.now();
        office.controller.bookmark("39", now);
        assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_none(), "{round}");
        assert!((0..4).all(|_| quietly(&mut office, 40)));
    }
    // After a list without it, another pod may have its name.
    office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting()])));
    office.see(&version(executor(1).stored("another"), 41));
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

/// A poll cannot find again what the snapshot has lost: the confirmation stays open until a GET answers it.
#[test]
fn what_a_poll_has_missed_and_the_watch_shows_no_more_is_looked_at_until_that_is_answered() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    // It leaves the watch: its label may have been removed, so a GET must confirm its absence.
    office.apply(Change::Pods(PodChange::Deleted(version(running(1), 39).spec("nodeName", "n").sighting())));
    let now = office.now();
    office.controller.bookmark("40", now); // As far as the poll, which needs no further confirmation.
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(office.controller.snapshot(), "default", "nb-exec-2", "e2", "1");
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("41")), now, &office.policies.clone());
    let effects = office.after(1);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")]);
    let now = office.now();
    office.controller.lookup_answered(&effects.lookups[0], LookupResult::Absent, now);
    office.after(1);
    let exits = office.after(5).exits; // Its driver's exit might explain it.
    assert_eq!(exits.iter().map(|exit| exit.cause).collect::<Vec<_>>(), [Cause::Deleted]);
}

/// A confirmed absence is no longer an open confirmation, and its exit is tracked in the next step. If a leader dies between the
/// two, its mark must not cover that exit.
#[test]
fn the_mark_does_not_cover_an_end_between_its_confirmation_and_its_note() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    // Many others exit at the same time, so that the batch takes several steps.
    for id in 1..=400 {
        office.see(&running(id));
    }
    office.after(10);
    office.apply(Change::Pods(PodChange::Deleted(version(running(1).spec("nodeName", "n"), 8).sighting())));
    assert_eq!(office.after(1).lookups, [labelled("nb-exec-1")]);
    let covers = |office: &Office| office.controller.mark(office.now()).unwrap().covers(8);
    assert_ne!(covers(&office), Some(true), "the confirmation is open");
    let now = office.now();
    office.controller.lookup_answered(&labelled("nb-exec-1"), LookupResult::Absent, now);
    assert_ne!(covers(&office), Some(true), "the exit is not tracked yet");
    for id in 2..=400 {
        office.see(&version(failed(id, 137), 9 + id));
    }
    let mut told: Vec<u64> = Vec::new();
    while !told.contains(&1) {
        assert_ne!(covers(&office), Some(true), "{} others are reported, executor 1 is not", told.len());
        told.extend(office.after(1).exits.iter().filter_map(|exit| exit.executor.exec_id));
    }
    office.after(6);
    assert_eq!((told.len(), covers(&office)), (400, Some(true)));
}

/// A poll that was in flight during a relist is ignored.
#[test]
fn a_poll_that_is_older_than_the_last_list_is_not_compared() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting()])));
    let now = office.now();
    office.controller.bookmark("50", now);
    office.after(1);
    // The executor was created after the watch broke off, and deleted before the new list.
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    polled.add(office.controller.snapshot(), "default", "nb-exec-1", "e1", "30");
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
    for _ in 0..20 {
        let effects = office.after(1);
        assert!(!effects.restart_watch && effects.lookups.is_empty(), "{effects:?}");
    }
}

/// Confirmations are stored by pod name, which a second pod may have meanwhile.
#[test]
fn two_pods_of_one_name_that_leave_the_watch_are_two_ends() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    for (uid, at) in [("first", 5), ("second", 9)] {
        let pod = running(1).stored(uid).phase("Running").spec("nodeName", "n");
        office.see(&version(pod.clone(), at));
        office.apply(Change::Pods(PodChange::Deleted(version(pod, at + 1).sighting())));
    }
    let reads = office.after(1).lookups;
    assert_eq!(reads, [labelled("nb-exec-1")]);
    let now = office.now();
    office.controller.lookup_answered(&reads[0], LookupResult::Absent, now);
    let mut uids: Vec<String> = Vec::new();
    for _ in 0..8 {
        uids.extend(office.after(1).exits.iter().map(|exit| exit.executor.uid.to_string()));
    }
    assert_eq!(uids, ["first", "second"]);
}

/// The list contains the first pod of a name, the snapshot the second one, and the watch continues from the list.
#[test]
fn a_list_from_the_past_ends_no_pod_that_has_the_name_since() {
    let mut office = Office::open(Finished::Report);
    office.see(&version(driver(), 1));
    let first = running(1).stored("first").phase("Running").spec("nodeName", "n");
    let second = version(running(1).stored("second").phase("Running").spec("nodeName", "n"), 9);
    office.see(&version(first.clone(), 3));
    office.after(1);
    office.see(&second);
    office.after(20);
    office.apply(Change::Pods(PodChange::Listed(vec![
        version(driver(), 1).sighting(),
        version(first.clone(), 3).sighting(),
    ])));
    let now = office.now();
    office.controller.bookmark("5", now);
    office.apply(Change::Pods(PodChange::Deleted(version(first, 7).sighting())));
    office.see(&second);
    let mut told = Vec::new();
    for _ in 0..30 {
        let effects = office.after(1);
        told.extend(effects.exits.iter().map(|exit| exit.executor.uid.to_string()));
        for read in effects.lookups {
            let now = office.now();
            office.controller.lookup_answered(&read, LookupResult::Labelled(second.sighting()), now);
        }
    }
    assert_eq!(told, ["first"], "the second pod is running");
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

#[test]
fn a_watch_that_is_late_shows_what_a_poll_had_and_nobody_looks() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    office.after(6);
    office.see(&version(failed(2, 137), 7));
    office.apply(Change::Pods(PodChange::Deleted(version(failed(1, 143), 39).sighting())));
    let now = office.now();
    office.controller.bookmark("40", now);
    let effects = office.after(1);
    assert!(!effects.restart_watch && effects.lookups.is_empty());
    let causes: Vec<_> = effects.exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Killed), (1, Cause::Killed)], "with their causes");
    assert!(office.after(300).lookups.iter().all(|read| !matches!(read, Lookup::Labelled(_))));
}

#[test]
fn a_watch_that_has_passed_the_poll_without_showing_it_has_lost_it_and_is_started_again_once() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    let now = office.now();
    office.controller.bookmark("39", now);
    assert!(!office.after(1).restart_watch, "not yet");
    // An event of another pod has the effect of a bookmark.
    office.see(&version(running(9), 41));
    assert!(office.after(1).restart_watch);
    office.see(&version(running(9), 42));
    assert!(!office.after(1).restart_watch, "once per poll");
    // The new list closes all confirmations but one: a GET decides whether the missing executor or only its label is gone.
    let pods = [driver(), version(failed(2, 137), 7), version(running(9), 42)];
    office.apply(Change::Pods(PodChange::Listed(pods.iter().map(PodBuilder::sighting).collect())));
    let now = office.now();
    office.controller.bookmark("50", now);
    let effects = office.after(1);
    let causes: Vec<_> = effects.exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Killed)]);
    assert_eq!(effects.lookups, [labelled("nb-exec-1")]);
    let now = office.now();
    office.controller.lookup_answered(&effects.lookups[0], LookupResult::Absent, now);
    let effects = office.after(1);
    assert_eq!(effects.exits[0].cause, Cause::Vanished);
    assert!(effects.exits[0].spark().message.contains("(30000 ms)"), "a poll did not contain it");
    assert!(office.after(15).lookups.is_empty());
}

#[test]
fn a_watch_that_is_silent_for_two_bookmarks_is_started_again() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    let now = office.now();
    office.controller.bookmark("8", now);
    let rewatched: Vec<u64> = (1..=140).filter(|_| office.after(1).restart_watch).collect();
    assert_eq!(rewatched, [130]);
}

#[test]
fn a_list_that_lacks_many_is_compared_with_all_pods_of_their_namespace() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    for id in 1..=100 {
        office.see(&running(id));
    }
    office.after(60);
    // Three have lost their labels.
    office.unlabelled = (1..=3).map(|id| (format!("nb-exec-{id}"), format!("e{id}"))).collect();
    office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting()])));
    let now = office.now();
    office.controller.bookmark("50", now);
    let (mut reads, mut exits) = (Vec::new(), Vec::new());
    for _ in 0..30 {
        let effects = office.after(1);
        reads.extend(effects.lookups);
        exits.extend(effects.exits.iter().map(|exit| (exit.executor.exec_id, exit.cause)));
    }
    assert_eq!((office.lists, reads), (1, Vec::new()), "one LIST instead of a hundred GETs");
    let gone: Vec<_> = (4..=100).map(|id| (Some(id), Cause::Vanished)).collect();
    exits.sort_unstable();
    assert_eq!(exits, gone, "running executors are not reported");
    // An old list proves nothing about newer pods.
    office.see(&version(running(200), 90));
    office.after(60);
    office.apply(Change::Pods(PodChange::Listed(vec![driver().sighting()])));
    let now = office.now();
    office.controller.bookmark("60", now);
    assert!(office.after(1).exits.is_empty());
    assert_eq!(office.after(10).lookups, [labelled("nb-exec-200")]);
}

#[test]
fn restarts_that_do_not_help_become_rare() {
    let mut office = Office::open(Finished::Report);
    let mut restarts = Vec::new();
    office.see(&driver());
    office.see(&running(1));
    office.after(60);
    for poll in 0..100u32 {
        let mut polled = PollResult::default();
        // The lists and watches of this API server never agree.
        polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
        polled.add(office.controller.snapshot(), "default", "nb-exec-1", "e1", "7");
        let now = office.now();
        office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
        office.controller.bookmark(&(41 + poll).to_string(), now);
        if office.after(1).restart_watch {
            restarts.push(poll);
        }
    }
    assert_eq!(restarts, [0, 1, 3, 7, 15, 31, 63, 95]);
}

#[test]
fn four_thousand_pods_behind_are_no_four_thousand_requests() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    for id in 1..=4000 {
        office.see(&running(id));
    }
    office.after(60);
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
    for id in 1..=4000 {
        polled.add(office.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), "7");
    }
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
    let (mut reads, mut restarts) = (0, 0);
    for _ in 0..200 {
        let effects = office.after(1);
        restarts += u32::from(effects.restart_watch);
        for read in effects.lookups {
            reads += 1;
            let now = office.now();
            office.controller.lookup_answered(&read, LookupResult::Failed, now);
        }
    }
    // Sixty-four pods, retried after growing pauses, and a watch that is silent for two bookmark intervals.
    assert!(reads <= 64 * 9, "{reads}");
    assert_eq!(restarts, 1);
}

#[test]
fn polls_are_the_leaders_and_follow_the_policy() {
    let mut office = Office::open(Finished::Report);
    let polls = |office: &mut Office, seconds: u64| {
        let mut at = Vec::new();
        for _ in 0..seconds {
            if office.after(1).poll {
                at.push(office.since.as_secs());
                let now = office.now();
                office.controller.poll_finished(Some(PollResult::default()), now, &office.policies.clone());
            }
        }
        at
    };
    let at = polls(&mut office, 1000);
    assert!(at[0] <= 34 && (at[1] - at[0]).abs_diff(300) <= 31 && (at[2] - at[1]).abs_diff(300) <= 31, "{at:?}");
    office.leader_state = LeaderState::Follower;
    assert!(polls(&mut office, 1000).is_empty());
}

#[test]
fn a_driver_whose_deletion_nobody_told_is_missed_by_the_poll_and_waited_for_no_longer() {
    let mut office = Office::open(Finished::Delete);
    office.see(&driver());
    office.see(&failed(1, 137));
    office.after(1);
    let mut polled = PollResult::default();
    polled.add(office.controller.snapshot(), "default", "nb-exec-1", "e1", "5");
    let now = office.now();
    office.controller.poll_finished(Some(polled.finish("40")), now, &office.policies.clone());
    let look = Lookup::Labelled(PodKey::new("default", "nb-driver"));
    assert_eq!(office.after(10).lookups, std::slice::from_ref(&look));
    let now = office.now();
    office.controller.lookup_answered(&look, LookupResult::Absent, now);
    assert!(
        office.controller.snapshot().driver_pod("default", "nb-driver").is_none_or(|pod| pod.uid != DRIVER_UID.into())
    );
    // The executor's owner no longer exists: there is no driver to wait for.
    assert!(first_of(&office.within(5), Reason::ExecutorDeleted).is_some());
}

#[test]
fn an_executor_whose_label_is_taken_off_has_not_ended() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    office.see(&running(1).spec("nodeName", "n"));
    office.see(&running(2).spec("nodeName", "n"));
    office.after(1);
    // One leaves the watch by its label, the other by a forced deletion.
    for id in [1, 2] {
        office.apply(Change::Pods(PodChange::Deleted(version(running(id), 8).spec("nodeName", "n").sighting())));
    }
    let effects = office.after(0);
    assert_eq!(effects.lookups, [labelled("nb-exec-1"), labelled("nb-exec-2")], "a GET distinguishes the two");
    let unlabelled = version(pod("nb-exec-1").stored("e1").phase("Running"), 8);
    let now = office.now();
    office.controller.lookup_answered(&effects.lookups[0], LookupResult::Labelled(unlabelled.sighting()), now);
    office.controller.lookup_answered(&effects.lookups[1], LookupResult::Absent, now);
    office.after(1);
    let exits = office.after(5).exits;
    let causes: Vec<_> = exits.iter().map(|exit| (exit.executor.exec_id.unwrap(), exit.cause)).collect();
    assert_eq!(causes, [(2, Cause::Deleted)]);
    assert!(office.controller.snapshot().app("default", APP).unwrap().executors().is_empty());
    // It gets its label back.
    office.see(&version(running(1), 9).spec("nodeName", "n"));
    assert_eq!(office.controller.snapshot().app("default", APP).unwrap().executors().len(), 1);
}

/// A thousand executors leave the watch at the same time. Returns how many are read by name, and how many are reported.
fn leave(change: impl Fn(PodBuilder) -> PodBuilder, answer: impl Fn(&PodKey) -> LookupResult) -> (usize, usize) {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    for id in 1..=1000 {
        office.see(&running(id).phase("Pending"));
    }
    office.after(60);
    for id in 1..=1000 {
        office.apply(Change::Pods(PodChange::Deleted(change(version(running(id).phase("Pending"), 100)).sighting())));
    }
    let (mut looks, mut ends) = (0, 0);
    for _ in 0..60 {
        let effects = office.after(1);
        ends += effects.exits.len();
        let now = office.now();
        for read in &effects.lookups {
            let Lookup::Labelled(pod) = read else { continue };
            looks += 1;
            office.controller.lookup_answered(read, answer(pod), now);
        }
    }
    (looks, ends)
}

/// A deleted pod has a deletionTimestamp, also one without a node, which is removed immediately.
#[test]
fn executors_that_wait_for_a_node_and_are_deleted_are_told_without_a_look() {
    assert_eq!(leave(PodBuilder::deleting, |_| LookupResult::Absent), (0, 1000));
}

/// A pod that loses its label has none. A limited number is read by name, and the others are taken as running.
#[test]
fn executors_whose_labels_are_taken_off_are_not_told_however_many_they_are() {
    let unlabelled = |name: &PodKey| {
        let uid = name.name().replace("nb-exec-", "e");
        LookupResult::Labelled(version(pod(name.name()).stored(&uid).phase("Pending"), 101).sighting())
    };
    assert_eq!(leave(|pod| pod, unlabelled), (64, 0));
    assert_eq!(leave(|pod| pod, |_| LookupResult::Absent), (64, 64), "the GET decides");
}

/// A pod that matches the watch's selector and is not an executor: its `spark-app-selector` is empty, or it is malformed.
#[test]
fn pods_that_are_nothing_for_the_picture_do_not_make_the_watch_start_again() {
    for unreadable in [false, true] {
        let mut office = Office::open(Finished::Report);
        office.see(&driver());
        let strange = |n: u32| {
            version(pod(&format!("aa-{n:03}")).executor_of("", n).stored(&format!("x{n}")).phase("Pending"), 3)
        };
        let show = |office: &mut Office, n: u32| {
            let now = office.now();
            if unreadable {
                office.controller.unreadable_pod(&format!("x{n}"), now);
            } else {
                office.see(&strange(n));
            }
        };
        (0..200).for_each(|n| show(&mut office, n));
        let mut position = 40;
        for poll in 0..50 {
            let mut polled = PollResult::default();
            polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
            (0..200).for_each(|n| {
                polled.add(office.controller.snapshot(), "default", &format!("aa-{n:03}"), &format!("x{n}"), "3");
            });
            let now = office.now();
            office.controller.poll_finished(Some(polled.finish(&position.to_string())), now, &office.policies.clone());
            position += 10;
            office.controller.bookmark(&position.to_string(), now);
            for _ in 0..300 {
                let effects = office.after(1);
                assert!(!effects.restart_watch && effects.lookups.is_empty(), "poll {poll}: {effects:?}");
            }
            let now = office.now();
            assert!(office.controller.mark(now).unwrap().gap.is_none() || poll > 25, "a relist is a gap");
            if poll == 25 {
                // A relist shows them again.
                office.controller.list_started(now);
                office.controller.list_page(vec![driver().sighting()], now);
                (0..200).for_each(|n| {
                    if unreadable {
                        office.controller.unreadable_pod(&format!("x{n}"), now);
                    } else {
                        office.controller.list_page(vec![strange(n).sighting()], now);
                    }
                });
                office.controller.list_finished(now);
                position += 10;
                office.controller.bookmark(&position.to_string(), now);
            }
        }
    }
}

/// Pods whose names sort first get no more GETs than others.
#[test]
fn of_many_that_differ_all_are_looked_at_in_turn() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    for id in 1..=300 {
        office.see(&running(id));
    }
    office.after(60);
    let mut looked = std::collections::HashSet::new();
    for poll in 0..6 {
        let mut polled = PollResult::default();
        polled.add(office.controller.snapshot(), "default", "nb-driver", DRIVER_UID, "1");
        for id in 1..=300 {
            polled.add(office.controller.snapshot(), "default", &format!("nb-exec-{id}"), &format!("e{id}"), "39");
        }
        let now = office.now();
        office.controller.poll_finished(Some(polled.finish(&(40 + poll).to_string())), now, &office.policies.clone());
        for _ in 0..60 {
            for read in office.after(1).lookups {
                let now = office.now();
                office.controller.lookup_answered(&read, LookupResult::Failed, now);
                looked.insert(read);
            }
        }
    }
    assert_eq!(looked.len(), 300);
}

#[test]
fn an_answer_that_is_older_than_the_watch_takes_no_executor_away() {
    let mut office = Office::open(Finished::Report);
    office.see(&driver());
    office.see(&running(1).spec("nodeName", "n"));
    office.after(1);
    office.apply(Change::Pods(PodChange::Deleted(version(running(1), 8).spec("nodeName", "n").sighting())));
    let reads = office.after(0).lookups;
    // The pod gets its label back while the GET is in flight.
    office.see(&version(running(1), 9).spec("nodeName", "n"));
    let now = office.now();
    office.controller.lookup_answered(
        &reads[0],
        LookupResult::Labelled(version(pod("nb-exec-1").stored("e1"), 8).sighting()),
        now,
    );
    office.after(1);
    assert!(office.controller.snapshot().executor("default", "nb-exec-1").is_some());
}

#[test]
fn an_answer_that_knows_nothing_of_what_happened_since_decides_nothing() {
    let mut office = Office::open(Finished::Report);
    polled(&mut office);
    office.after(5);
    let reads = office.after(5).lookups;
    assert!(reads.contains(&labelled("nb-exec-2")));
    // It is deleted by force while the GET is in flight, whose response still contains it.
    office.apply(Change::Pods(PodChange::Deleted(version(running(2), 11).spec("nodeName", "n").sighting())));
    let now = office.now();
    office.controller.lookup_answered(
        &labelled("nb-exec-2"),
        LookupResult::Labelled(version(running(2), 7).sighting()),
        now,
    );
    assert!(office.after(1).lookups.contains(&labelled("nb-exec-2")), "it is read again");
    let now = office.now();
    office.controller.lookup_answered(&labelled("nb-exec-2"), LookupResult::Absent, now);
    office.after(1);
    let ended: Vec<_> = office.after(6).exits.iter().map(|exit| exit.executor.exec_id.unwrap()).collect();
    assert_eq!(ended, [2]);
}

#[test]
fn whatever_is_listed_last_everything_is_planned_then() {
    for namespaces_last in [true, false] {
        let mut office = Office::open(Finished::Label);
        office.controller = Controller::new(office.at, Settings::default());
        let pods = PodChange::Listed(vec![driver().phase("Failed").sighting(), failed(1, 137).sighting()]);
        let namespaces = RelatedChange::Replaced(Replaced::Namespaces(Vec::new()));
        let mut lists = vec![Change::Pods(pods), Change::Related(namespaces)];
        if !namespaces_last {
            lists.reverse();
        }
        office.apply(lists.remove(0));
        assert!(office.within(10).is_empty());
        office.apply(lists.remove(0));
        assert!(first_of(&office.within(5), Reason::ExecutorLabelled).is_some(), "{namespaces_last}");
    }
}
