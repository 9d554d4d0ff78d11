//! Plans on a cluster that does what they say.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::super::installation::{Installation, Kind};
use super::*;
use crate::annotations::Override;
use crate::manifests::object::{MUTATING, VALIDATING};
use crate::policy::{Match, Pattern, Policies, Policy, Validate};
use crate::test_time::instant;

mod histories;

const ACCOUNT: &str = "system:serviceaccount:spark-usher:spark-usher";

/// The policies of a file: the name, the namespaces if it names any, and the mode of each.
type File = [(&'static str, &'static [&'static str], Validate)];

const ENFORCE: &File = &[("a", &[], Validate::Enforce)];
const WARNED: &File = &[("a", &[], Validate::Warn)];
const WARN: &File = &[("a", &["a"], Validate::Warn), ("b", &[], Validate::Enforce)];
const NONE: &File = &[];

fn policy(name: &str, namespaces: &[&str], validate: Validate) -> Policy {
    let namespaces = namespaces.iter().map(|name| Pattern::new(name)).collect();
    Policy { name: name.into(), matches: Match { namespaces, ..Match::everything() }, validate, ..Policy::fallback() }
}

fn wanted(file: &File) -> Wanted {
    with_policies(file.iter().map(|(name, namespaces, validate)| policy(name, namespaces, *validate)).collect())
}

fn with_policies(list: Vec<Policy>) -> Wanted {
    let policies = Policies::new(list, Vec::new());
    let kinds = vec![Kind::Validating, Kind::Fallback];
    let installation = Installation { name: "u".into(), namespaces: Vec::new(), kinds };
    let owner = json!({"uid": "owner-1"});
    installation.wanted(&policies, ACCOUNT).0.owned_by(&owner)
}

/// A cluster that does what a plan says, and what an API server adds to it.
struct Cluster {
    objects: BTreeMap<(String, String), Value>,
    memory: Memory,
    began: Instant,
    now: Instant,
    /// Whether a controller checks types.
    checks: bool,
    writes: u64,
    /// What was deleted, as it was.
    deleted: BTreeMap<(String, String), Value>,
    /// When what an object decides was written last: an API server may see the old one for [`SETTLE`].
    written: BTreeMap<(String, String), Instant>,
}

impl Cluster {
    fn new() -> Cluster {
        let (memory, began) = (Memory::new(SETTLE), instant());
        Cluster {
            objects: BTreeMap::new(),
            memory,
            began,
            now: began,
            checks: true,
            writes: 0,
            deleted: BTreeMap::new(),
            written: BTreeMap::new(),
        }
    }

    fn live(&self) -> Vec<Value> {
        self.objects.values().cloned().collect()
    }

    fn names(&self) -> Vec<String> {
        let names = self.objects.iter().map(|((kind, name), _)| {
            let name = name.trim_start_matches("u.").trim_end_matches(".spark-usher.io");
            format!("{}{name}", if kind.ends_with("Binding") { "=" } else { "" })
        });
        let mut names: Vec<String> = names.collect();
        names.sort_unstable();
        names
    }

    fn plan(&mut self, wanted: &Wanted) -> Plan {
        let live = self.live();
        self.memory.plan(&live, wanted, self.now)
    }

    fn write(&mut self, write: &Write) {
        self.memory.wrote(write, self.now);
        let (kind, name) = write.subject();
        let key = (kind.to_owned(), name.to_owned());
        match write {
            Write::Delete { .. } => {
                let object = self.objects.remove(&key).unwrap_or_else(|| panic!("{key:?} does not exist"));
                self.deleted.insert(key, object);
            }
            Write::Apply { object, .. } => self.store(key, object.clone()),
        }
    }

    /// Writes an object, with what an API server and kube-controller-manager add.
    fn store(&mut self, key: (String, String), mut object: Value) {
        self.writes += 1;
        let old = self.objects.get(&key);
        let next = old.map_or(0, |old| old["metadata"]["generation"].as_i64().unwrap_or_default()) + 1;
        let age = (self.now - self.began).as_secs().try_into().unwrap();
        let created = jiff::Timestamp::UNIX_EPOCH + jiff::SignedDuration::from_secs(age);
        let created = old.map_or_else(|| json!(created), |old| old["metadata"]["creationTimestamp"].clone());
        let metadata =
            json!({"generation": next, "creationTimestamp": created, "resourceVersion": self.writes.to_string()});
        object["metadata"].as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let checked = if self.checks { next } else { 0 };
        if key.0 == VALIDATING {
            object["status"] = json!({"observedGeneration": checked, "typeChecking": {}});
        }
        let old = self.objects.insert(key.clone(), object);
        if old.is_none_or(|old| old["spec"] != self.objects[&key]["spec"]) {
            self.written.insert(key, self.now);
        }
    }

    /// Another client creates again what was deleted from the slots that enforce nothing now.
    fn create_again(&mut self) {
        for slot in Slot::ALL.map(|slot| slot.names("u")) {
            if self.objects.keys().any(|(kind, name)| kind == VALIDATING_BINDING && slot.contains(name)) {
                continue;
            }
            for (key, object) in self.deleted.clone().into_iter().filter(|((_, name), _)| slot.contains(name)) {
                if !self.objects.contains_key(&key) {
                    self.store(key, object);
                }
            }
        }
    }

    /// Rounds until nothing is written. At every moment the cluster judges by a whole set, once it did.
    fn settle(&mut self, wanted: &Wanted) -> Plan {
        for _ in 0..20 {
            let plan = self.plan(wanted);
            if plan.writes.is_empty() {
                return plan;
            }
            for write in &plan.writes {
                let judged = self.judges();
                self.write(write);
                assert!(!judged || self.judges(), "{write:?} leaves requests unjudged: {:?}", self.names());
            }
        }
        panic!("rounds without an end: {:?}", self.names());
    }

    /// Whether a slot has a policy with a binding for each of its objects.
    fn judges(&self) -> bool {
        Slot::ALL.into_iter().any(|slot| {
            let names = slot.names("u");
            let hashes = |kind: &str| -> Vec<(&String, &str)> {
                let found = self.objects.iter().filter(|((is, name), _)| is == kind && names.contains(name));
                found.map(|((_, name), object)| (name, hash_of(object))).collect()
            };
            let bindings = hashes(VALIDATING_BINDING);
            let mut policies = hashes(VALIDATING);
            // Another client's policy without a binding judges nothing.
            policies.retain(|(_, hash)| bindings.iter().any(|(_, of_binding)| hash == of_binding));
            !bindings.is_empty() && policies == bindings
        })
    }

    /// Whether every API server judges by a whole set of one file.
    fn judges_everywhere(&self, files: &[Wanted]) -> bool {
        Slot::ALL.into_iter().any(|slot| {
            let names = slot.names("u");
            files.iter().filter_map(|file| file.validating.as_ref()).any(|[wanted, _]| {
                let is_of_file =
                    |name: &String, object: &Value| names.contains(name) && hash_of(object) == hash_of(&wanted[0]);
                let set: Vec<_> = self.objects.iter().filter(|((_, name), object)| is_of_file(name, object)).collect();
                set.len() == wanted.len() && set.iter().all(|(key, _)| self.now >= self.written[*key] + SETTLE)
            })
        })
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

/// A cluster with the set of one file, and then that of another.
fn cluster_with(first: &File, second: &File) -> Cluster {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(first));
    cluster.settle(&wanted(second));
    cluster
}

#[test]
fn first_set_is_written_policies_first_and_then_stays() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    let plan = cluster.plan(&wanted);
    let kinds: Vec<&str> = plan.writes.iter().map(|write| write.subject().0).collect();
    assert_eq!(kinds, [MUTATING, MUTATING_BINDING, VALIDATING], "no binding before the type check");
    assert!(plan.writes.iter().all(|write| matches!(write, Write::Apply { restored: false, .. })));
    assert_eq!(plan.differences.len(), 4, "{:?}", plan.differences);
    let plan = cluster.settle(&wanted);
    assert_eq!((plan.differences, plan.problems, plan.next), (vec![], vec![], None));
    assert_eq!(cluster.names(), ["=enforce-a", "=fallback-owner", "enforce-a", "fallback-owner"]);
}

#[test]
fn new_file_is_in_force_before_the_old_set_is_deleted() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    let plan = cluster.settle(&wanted(WARN));
    let slots = |cluster: &Cluster| -> Vec<String> {
        cluster.names().into_iter().filter(|name| !name.contains("fallback") && !name.starts_with('=')).collect()
    };
    assert_eq!(slots(&cluster), ["enforce-a", "enforce-b", "warn-b"]);
    assert_eq!(plan.next, Some(cluster.now + SETTLE));
    assert!(
        plan.differences.iter().all(|text| text.contains("is of an earlier policy file")),
        "{:?}",
        plan.differences
    );
    cluster.wait(9);
    assert!(cluster.plan(&wanted(WARN)).writes.is_empty(), "an API server may not enforce it yet");
    // Another change meanwhile: the younger set gives way, and the older one judges.
    cluster.settle(&wanted(NONE));
    assert_eq!(slots(&cluster), ["audit-b", "enforce-a"]);
    cluster.wait(10);
    assert!(cluster.settle(&wanted(NONE)).differences.is_empty());
    assert_eq!(slots(&cluster), ["audit-b"]);
    // And back to a file that was in force before.
    cluster.settle(&wanted(ENFORCE));
    cluster.wait(10);
    assert!(cluster.settle(&wanted(ENFORCE)).differences.is_empty());
    assert_eq!(slots(&cluster), ["enforce-a"]);
}

#[test]
fn file_that_differs_in_a_mode_only_is_another_set() {
    let mut cluster = Cluster::new();
    for file in [ENFORCE, WARNED, ENFORCE, WARNED] {
        let plan = cluster.settle(&wanted(file));
        assert!(plan.problems.is_empty(), "{:?}", plan.problems);
        cluster.wait(10);
        assert!(cluster.settle(&wanted(file)).differences.is_empty());
    }
    assert_eq!(cluster.names(), ["=fallback-owner", "=warn-b", "fallback-owner", "warn-b"]);
}

#[test]
fn slot_that_is_not_whole_gives_way_to_the_next_file() {
    let mut cluster = cluster_with(WARN, ENFORCE);
    cluster.wait(10);
    // The old set is half deleted when the leader ends, and the file changes.
    let plan = cluster.plan(&wanted(ENFORCE));
    assert_eq!(plan.writes.len(), 4);
    cluster.write(&plan.writes[0]);
    cluster.memory = Memory::new(SETTLE);
    cluster.settle(&wanted(NONE));
    assert!(
        cluster.names().contains(&"=enforce-b".to_owned()) && cluster.names().contains(&"=audit-a".to_owned()),
        "{:?}",
        cluster.names()
    );
}

#[test]
fn restored_part_of_a_set_settles_before_the_old_set_goes() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    cluster.wait(9);
    let key = (VALIDATING_BINDING.to_owned(), "u.enforce-b.spark-usher.io".to_owned());
    cluster.objects.remove(&key);
    let plan = cluster.plan(&wanted(WARN));
    assert!(matches!(plan.writes.as_slice(), [Write::Apply { restored: true, .. }]), "{:?}", plan.writes);
    cluster.write(&plan.writes[0]);
    cluster.settle(&wanted(WARN));
    cluster.wait(9);
    assert!(cluster.plan(&wanted(WARN)).writes.is_empty(), "an API server may not see the binding yet");
    cluster.wait(1);
    assert!(cluster.settle(&wanted(WARN)).differences.is_empty());
}

#[test]
fn reader_compares_whatever_version_wrote_and_the_slot_that_an_administrator_applies() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    for object in cluster.objects.values_mut() {
        object["metadata"]["annotations"][annotations::VERSION] = json!("99.0.0");
    }
    assert_eq!(compare(&cluster.live(), &wanted(ENFORCE), None), (Vec::new(), Vec::new()));
    // Another file: the leader would use the other slot, an administrator the same.
    let (differences, surplus) = compare(&cluster.live(), &wanted(WARN), None);
    assert!(
        differences[0].contains("u.enforce-b.spark-usher.io is missing") || differences[0].contains("warn-b"),
        "{differences:?}"
    );
    assert_eq!(surplus.len(), 2);
    let (differences, surplus) = compare(&cluster.live(), &wanted(WARN), Some(Slot::A));
    assert!(differences.iter().all(|text| text.contains("-a.")) && surplus.is_empty(), "{differences:?} {surplus:?}");
    let (_, surplus) = compare(&cluster.live(), &wanted(WARNED), Some(Slot::A));
    assert_eq!(surplus.len(), 2, "no policy has this mode any more");
}

#[test]
fn object_that_waits_for_a_finalizer_is_not_deleted_again() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    cluster.wait(10);
    for object in cluster.objects.values_mut().filter(|object| text(object, &["metadata", "name"]).contains("-a.")) {
        object["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
    }
    let plan = cluster.plan(&wanted(WARN));
    assert!(plan.writes.is_empty() && plan.differences.len() == 2, "{plan:?}");
    assert_eq!(plan.problems.len(), 2, "{plan:?}");
    // It is no set that judges: the other one stays in force, whatever file comes next.
    cluster.settle(&wanted(NONE));
    let names = cluster.names();
    assert!(["=enforce-b", "=warn-b"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
}

#[test]
fn object_that_waits_for_a_finalizer_delays_no_other() {
    let mut both = wanted(ENFORCE);
    let mut scheduler = both.fallback.clone().unwrap();
    scheduler.iter_mut().for_each(|object| object["metadata"]["name"] = json!("u.fallback-scheduler.spark-usher.io"));
    both.fallback.as_mut().unwrap().extend(scheduler);
    let mut cluster = Cluster::new();
    cluster.settle(&both);
    let waits = |object: &mut Value| object["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
    let scheduler = (MUTATING.to_owned(), "u.fallback-scheduler.spark-usher.io".to_owned());
    waits(cluster.objects.get_mut(&scheduler).unwrap());
    // No fallback agrees with the next file.
    cluster.settle(&Wanted { fallback: Some(Vec::new()), ..wanted(ENFORCE) });
    assert_eq!(cluster.names(), ["=enforce-a", "enforce-a", "fallback-scheduler"]);
    // And what another client deletes beside such an object is restored.
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(WARN));
    waits(cluster.objects.get_mut(&(VALIDATING.to_owned(), "u.warn-a.spark-usher.io".to_owned())).unwrap());
    cluster.objects.remove(&(VALIDATING_BINDING.to_owned(), "u.enforce-a.spark-usher.io".to_owned()));
    cluster.settle(&wanted(WARN));
    assert!(cluster.names().contains(&"=enforce-a".to_owned()), "{:?}", cluster.names());
}

#[test]
fn binding_of_another_file_is_gone_before_a_policy_is_written() {
    // Another client writes the old set again and again, and the file changes.
    let mut cluster = cluster_with(ENFORCE, WARN);
    cluster.wait(10);
    for _ in 0..2 {
        cluster.settle(&wanted(WARN));
        cluster.create_again();
    }
    let plan = cluster.plan(&wanted(WARNED));
    assert!(matches!(plan.writes.as_slice(), [Write::Delete { kind, .. }] if kind == VALIDATING_BINDING), "{plan:?}");
    cluster.settle(&wanted(WARNED));
    let names = cluster.names();
    assert!(names.contains(&"=warn-a".to_owned()), "the pause is that of another set: {names:?}");
}

#[test]
fn set_judges_also_beside_a_policy_that_another_client_wrote() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    cluster.wait(10);
    let plan = cluster.plan(&wanted(WARN));
    // Half of the old set is deleted, and another client creates it again.
    cluster.write(&plan.writes[0]);
    cluster.create_again();
    let foreign = wanted(NONE).validating.unwrap()[1][0].clone();
    cluster.store((VALIDATING.to_owned(), "u.audit-b.spark-usher.io".to_owned()), foreign);
    cluster.settle(&wanted(WARNED));
    let names = cluster.names();
    assert!(["=enforce-b", "=warn-b"].iter().all(|name| names.contains(&(*name).to_owned())), "{names:?}");
}

#[test]
fn what_others_delete_after_it_was_replaced_is_no_restoration_later() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    cluster.objects.retain(|(_, name), _| !name.contains("enforce-a"));
    cluster.settle(&wanted(WARN));
    let plan = cluster.plan(&wanted(ENFORCE));
    assert!(plan.writes.iter().all(|write| matches!(write, Write::Apply { restored: false, .. })), "{plan:?}");
    assert!(!plan.writes.is_empty());
}

#[test]
fn rewritten_policy_is_checked_anew() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.checks = false;
    cluster.settle(&wanted);
    cluster.wait(25);
    cluster.objects.remove(&(VALIDATING.to_owned(), "u.enforce-a.spark-usher.io".to_owned()));
    let plan = cluster.settle(&wanted);
    assert_eq!(plan.next, Some(cluster.now + TYPE_CHECK_LIMIT));
}

#[test]
fn next_leader_goes_on_where_the_last_one_stopped() {
    // Whatever it wrote last, and whatever file comes next.
    for stopped in 0..16 {
        for next in [WARN, NONE, ENFORCE, WARNED] {
            let mut cluster = Cluster::new();
            cluster.settle(&wanted(ENFORCE));
            let mut left = stopped;
            while left > 0 {
                let plan = cluster.plan(&wanted(WARN));
                if plan.writes.is_empty() {
                    cluster.wait(10);
                }
                for write in plan.writes.iter().take(left) {
                    cluster.write(write);
                }
                left -= plan.writes.len().clamp(1, left);
            }
            cluster.memory = Memory::new(SETTLE);
            cluster.settle(&wanted(next));
            cluster.wait(10);
            let plan = cluster.settle(&wanted(next));
            assert!(plan.differences.is_empty() && plan.next.is_none(), "{stopped} {next:?}: {:?}", plan.differences);
        }
    }
}

#[test]
fn binding_waits_for_the_type_check_and_not_forever() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.checks = false;
    let plan = cluster.settle(&wanted);
    assert_eq!(plan.next, Some(cluster.now + TYPE_CHECK_LIMIT));
    assert!(!cluster.names().contains(&"=enforce-a".to_owned()));
    cluster.wait(30);
    assert!(cluster.settle(&wanted).differences.is_empty(), "the cluster has no controller that checks");
}

#[test]
fn set_with_a_type_error_is_not_bound_and_the_old_one_judges() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    let wanted = wanted(WARN);
    let plan = cluster.plan(&wanted);
    plan.writes.iter().for_each(|write| cluster.write(write));
    let key = (VALIDATING.to_owned(), "u.warn-b.spark-usher.io".to_owned());
    let status = &mut cluster.objects.get_mut(&key).unwrap()["status"];
    status["typeChecking"] =
        json!({"expressionWarnings": [{"fieldRef": "spec.validations[3].expression", "warning": "undefined field"}]});
    let plan = cluster.plan(&wanted);
    assert!(plan.writes.is_empty(), "{:?}", plan.writes);
    assert!(
        plan.problems[0].contains("u.warn-b.spark-usher.io: spec.validations[3].expression: undefined field"),
        "{:?}",
        plan.problems
    );
    // A warning about an earlier generation says nothing.
    cluster.objects.get_mut(&key).unwrap()["metadata"]["generation"] = json!(2);
    let plan = cluster.plan(&wanted);
    assert!(plan.problems.is_empty() && plan.next.is_some(), "{:?}", plan.problems);
}

#[test]
fn deleted_or_changed_object_is_restored_with_growing_pauses() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.settle(&wanted);
    let key = |kind: &str| (kind.to_owned(), "u.enforce-a.spark-usher.io".to_owned());
    let mut pauses = Vec::new();
    for round in 0..12 {
        match round % 3 {
            0 => drop(cluster.objects.remove(&key(VALIDATING_BINDING))),
            1 => cluster.objects.get_mut(&key(VALIDATING)).unwrap()["spec"]["matchConditions"] = json!([]),
            _ => cluster.objects.get_mut(&key(VALIDATING)).unwrap()["spec"]["paramKind"] = json!({"kind": "ConfigMap"}),
        }
        let begun = cluster.now;
        let plan = loop {
            let plan = cluster.plan(&wanted);
            match plan.next {
                Some(next) if plan.writes.is_empty() => cluster.now = next,
                _ => break plan,
            }
        };
        assert!(matches!(plan.writes.as_slice(), [Write::Apply { restored: true, .. }]), "{:?}", plan.writes);
        plan.writes.iter().for_each(|write| cluster.write(write));
        pauses.push((cluster.now - begun).as_secs());
    }
    assert_eq!(pauses, [0, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
    // Long after, a new beginning.
    cluster.wait(600);
    cluster.objects.clear();
    // Everything in one step; the binding follows its policy.
    let plan = Memory::plan(&mut cluster.memory, &[], &wanted, cluster.now);
    assert_eq!(plan.writes.len(), 3, "{:?}", plan.writes);
    plan.writes.iter().for_each(|write| cluster.write(write));
    let plan = cluster.plan(&wanted);
    assert!(plan.writes.is_empty() && plan.next == Some(cluster.now + 2 * RESTORE_PAUSE), "{plan:?}");
}

#[test]
fn what_others_delete_before_the_set_is_complete_is_restored_with_pauses() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.checks = false;
    cluster.settle(&wanted);
    let key = (VALIDATING.to_owned(), "u.enforce-a.spark-usher.io".to_owned());
    for pause in [0, 2, 4] {
        cluster.wait(pause);
        cluster.objects.remove(&key);
        let plan = cluster.plan(&wanted);
        assert!(
            matches!(plan.writes.as_slice(), [Write::Apply { restored: true, seen: None, .. }]),
            "{pause}: {plan:?}"
        );
        cluster.write(&plan.writes[0]);
        cluster.objects.remove(&key);
        let plan = cluster.plan(&wanted);
        assert!(plan.writes.is_empty() && plan.next > Some(cluster.now), "{pause}: {plan:?}");
    }
}

#[test]
fn write_that_fails_is_tried_again_without_growing_pauses() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.settle(&wanted);
    cluster.objects.remove(&(VALIDATING_BINDING.to_owned(), "u.enforce-a.spark-usher.io".to_owned()));
    for _ in 0..9 {
        let plan = cluster.plan(&wanted);
        assert!(matches!(plan.writes.as_slice(), [Write::Apply { restored: true, .. }]), "{plan:?}");
        cluster.wait(1);
    }
}

#[test]
fn what_others_create_again_is_deleted_with_pauses() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    let old: Vec<_> = cluster.objects.clone().into_iter().filter(|((_, name), _)| name.contains("enforce-a")).collect();
    cluster.wait(10);
    cluster.settle(&wanted(WARN));
    cluster.objects.extend(old.clone());
    let plan = cluster.plan(&wanted(WARN));
    assert!(matches!(plan.writes[0], Write::Delete { restored: true, .. }) && plan.writes.len() == 2, "{plan:?}");
    plan.writes.iter().for_each(|write| cluster.write(write));
    cluster.objects.extend(old);
    let plan = cluster.plan(&wanted(WARN));
    assert!(plan.writes.is_empty() && plan.next == Some(cluster.now + 2 * RESTORE_PAUSE), "{plan:?}");
}

#[test]
fn own_write_for_another_file_is_no_restoration() {
    let (mut cluster, other) = (Cluster::new(), wanted(&[("a", &["a"], Validate::Audit)]));
    let overrides = BTreeSet::from([Override::Skip]);
    let skips = with_policies(vec![Policy { overrides, ..policy("a", &[], Validate::Enforce) }]);
    cluster.settle(&skips);
    // The fallback, and a slot, of a file that is replaced before all of it is written.
    let plan = cluster.plan(&other);
    plan.writes.iter().take(1).for_each(|write| cluster.write(write));
    let plan = cluster.plan(&skips);
    let restored =
        |write: &Write| matches!(write, Write::Apply { restored: true, .. } | Write::Delete { restored: true, .. });
    assert!(!plan.writes.is_empty() && !plan.writes.iter().any(restored), "{plan:?}");
}

#[test]
fn change_while_no_replica_led_is_restored_as_a_change_of_another_client() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    cluster.settle(&wanted);
    let key = (VALIDATING.to_owned(), "u.enforce-a.spark-usher.io".to_owned());
    cluster.objects.get_mut(&key).unwrap()["spec"]["matchConditions"] = json!([]);
    cluster.memory = Memory::new(SETTLE);
    let plan = cluster.plan(&wanted);
    assert!(matches!(plan.writes.as_slice(), [Write::Apply { restored: true, .. }]), "{plan:?}");
    // Another owner is no such change.
    cluster.settle(&wanted);
    cluster.memory = Memory::new(SETTLE);
    let plan = cluster.plan(&wanted.clone().owned_by(&json!({"uid": "owner-2"})));
    assert!(plan.writes.iter().all(|write| matches!(write, Write::Apply { restored: false, .. })), "{plan:?}");
    assert!(!plan.writes.is_empty());
    // Nor is an older version.
    for object in cluster.objects.values_mut() {
        object["metadata"]["annotations"][annotations::VERSION] = json!("0.0.1");
    }
    cluster.memory = Memory::new(SETTLE);
    let plan = cluster.plan(&wanted);
    assert!(plan.writes.iter().all(|write| matches!(write, Write::Apply { restored: false, .. })), "{plan:?}");
    assert_eq!(plan.writes.len(), 3, "the binding follows");
}

#[test]
fn type_fault_that_is_found_late_keeps_the_old_set() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    cluster.checks = false;
    cluster.settle(&wanted(WARN));
    cluster.wait(30);
    cluster.settle(&wanted(WARN));
    let key = (VALIDATING.to_owned(), "u.warn-b.spark-usher.io".to_owned());
    cluster.objects.get_mut(&key).unwrap()["status"] = json!({"observedGeneration": 1,
        "typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0].expression", "warning": "undefined"}]}});
    cluster.wait(10);
    let plan = cluster.plan(&wanted(WARN));
    assert!(plan.writes.is_empty() && plan.problems.len() == 1, "{plan:?}");
}

#[test]
fn wait_for_the_type_check_begins_anew_with_each_set() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    cluster.checks = false;
    cluster.settle(&wanted(WARN));
    cluster.wait(20);
    cluster.settle(&wanted(NONE));
    cluster.wait(20);
    let plan = cluster.settle(&wanted(WARN));
    assert_eq!(plan.next, Some(cluster.now + TYPE_CHECK_LIMIT));
}

#[test]
fn object_that_waits_for_a_finalizer_is_a_problem_and_neither_written_nor_complete() {
    let mut cluster = cluster_with(ENFORCE, WARN);
    let key = (VALIDATING_BINDING.to_owned(), "u.enforce-b.spark-usher.io".to_owned());
    let metadata = &mut cluster.objects.get_mut(&key).unwrap()["metadata"];
    metadata["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
    metadata["finalizers"] = json!(["a.example/b"]);
    cluster.wait(10);
    let plan = cluster.plan(&wanted(WARN));
    assert!(plan.writes.is_empty(), "{plan:?}");
    let problem = "ValidatingAdmissionPolicyBinding u.enforce-b.spark-usher.io is being deleted and waits for its finalizers: a.example/b";
    assert_eq!(plan.problems, [problem]);
    cluster.objects.remove(&key);
    let plan = cluster.plan(&wanted(WARN));
    assert!(matches!(plan.writes.as_slice(), [Write::Apply { restored: true, .. }]), "{plan:?}");
    cluster.write(&plan.writes[0]);
    cluster.settle(&wanted(WARN));
    cluster.wait(9);
    assert!(cluster.plan(&wanted(WARN)).writes.is_empty(), "the set settles anew");
}

#[test]
fn older_version_leaves_objects_of_a_newer_one() {
    let mut cluster = Cluster::new();
    cluster.settle(&wanted(ENFORCE));
    for (version, is_newer) in [("99.0.0", true), ("99.0.0-rc.1", true), ("0.0.1", false), ("none", false)] {
        for object in cluster.objects.values_mut() {
            object["metadata"]["annotations"][annotations::VERSION] = json!(version);
        }
        let plan = Memory::new(SETTLE).plan(&cluster.live(), &wanted(WARN), cluster.now);
        assert_eq!(plan.writes.is_empty(), is_newer, "{version}");
        assert_eq!(
            plan.problems.iter().any(|text| text.contains("99.0.0") && text.contains("older version")),
            is_newer
        );
    }
}

#[test]
fn objects_of_others_and_what_is_not_managed_stay() {
    let mut cluster = Cluster::new();
    let mut other = wanted(ENFORCE).validating.unwrap()[0][0].clone();
    other["metadata"]["name"] = json!("u-2.enforce-a.spark-usher.io");
    cluster.write(&Write::Apply { object: other, seen: None, restored: false });
    cluster.settle(&wanted(ENFORCE));
    let all = cluster.names();
    assert!(all.iter().any(|name| name.contains("u-2")), "{all:?}");
    let nothing = Wanted { name: "u".into(), validating: None, fallback: None };
    assert!(cluster.plan(&nothing).writes.is_empty());
    // No fallback agrees with this file: that of the earlier one would decide otherwise.
    let none = Wanted { fallback: Some(Vec::new()), ..wanted(ENFORCE) };
    cluster.settle(&none);
    assert!(!cluster.names().iter().any(|name| name.contains("fallback")), "{:?}", cluster.names());
}

#[test]
fn object_without_its_owner_or_of_an_older_version_is_written_again() {
    let (mut cluster, wanted) = (Cluster::new(), wanted(ENFORCE));
    for (path, value) in [
        (&["metadata", "ownerReferences"][..], json!([{"uid": "gone"}])),
        (&["metadata", "annotations", annotations::VERSION], json!("0.0.1")),
    ] {
        cluster.settle(&wanted);
        for object in cluster.objects.values_mut() {
            usher_spark::json::set(object, path, value.clone());
        }
        assert_eq!(Memory::new(SETTLE).plan(&cluster.live(), &wanted, cluster.now).differences.len(), 4);
        cluster.memory = Memory::new(SETTLE);
        assert!(cluster.settle(&wanted).differences.is_empty());
    }
}
