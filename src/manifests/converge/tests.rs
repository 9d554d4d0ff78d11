//! Plans on a cluster that does what they say.

use std::collections::BTreeMap;

use serde_json::json;

use super::super::installation::{Installation, Kind};
use super::*;
use crate::manifests::object::{MUTATING, VALIDATING};
use crate::runtime::clock;

const ACCOUNT: &str = "system:serviceaccount:spark-usher:spark-usher";
const ENFORCE: &str = "[{name: a, validate: Enforce}]";
const WARNED: &str = "[{name: a, validate: Warn}]";
const WARN: &str = "[{name: a, match: {namespaces: [a]}, validate: Warn}, {name: b, validate: Enforce}]";

fn wanted(policies: &str) -> Wanted {
    let text = format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: {policies}");
    let policies = crate::config::from_text(&text).unwrap().policies;
    let kinds = vec![Kind::Validating, Kind::Fallback];
    let installation = Installation { name: "u".into(), namespaces: Vec::new(), kinds };
    let owner = json!({"uid": "owner-1"});
    installation.wanted(&policies, ACCOUNT).0.owned_by(&owner)
}

/// A cluster that does what a plan says, and what an API server adds to it.
struct Cluster {
    objects: BTreeMap<(String, String), Value>,
    memory: Memory,
    now: Instant,
    /// Whether a controller checks types.
    checks: bool,
    writes: u64,
}

impl Cluster {
    fn new() -> Cluster {
        let memory = Memory::new(SETTLE);
        Cluster { objects: BTreeMap::new(), memory, now: clock::instant(), checks: true, writes: 0 }
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
        self.writes += 1;
        let (kind, name) = write.subject();
        let key = (kind.to_owned(), name.to_owned());
        match write {
            Write::Delete { .. } => assert!(self.objects.remove(&key).is_some(), "{key:?} does not exist"),
            Write::Apply { object, .. } => {
                let mut object = object.clone();
                let generation = |object: &Value| object["metadata"]["generation"].as_i64().unwrap_or_default();
                let next = self.objects.get(&key).map_or(0, generation) + 1;
                object["metadata"]["generation"] = json!(next);
                object["metadata"]["creationTimestamp"] = json!(format!("2026-11-29T10:{:02}:00Z", self.writes));
                let checked = if self.checks { next } else { 0 };
                if kind == VALIDATING {
                    object["status"] = json!({"observedGeneration": checked, "typeChecking": {}});
                }
                drop(self.objects.insert(key, object));
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
            let of = |kind: &str| -> Vec<&String> {
                let keys = self.objects.keys().filter(|(is, name)| is == kind && names.contains(name));
                keys.map(|(_, name)| name).collect()
            };
            !of(VALIDATING).is_empty() && of(VALIDATING) == of(VALIDATING_BINDING)
        })
    }

    fn wait(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

/// A cluster with the set of one file, and then that of another.
fn cluster_with(first: &str, second: &str) -> Cluster {
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
    cluster.settle(&wanted("[]"));
    assert_eq!(slots(&cluster), ["audit-b", "enforce-a"]);
    cluster.wait(10);
    assert!(cluster.settle(&wanted("[]")).differences.is_empty());
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
    cluster.settle(&wanted("[]"));
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
}

#[test]
fn next_leader_goes_on_where_the_last_one_stopped() {
    // Whatever it wrote last, and whatever file comes next.
    for stopped in 0..16 {
        for next in [WARN, "[]", ENFORCE, WARNED] {
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
            assert!(plan.differences.is_empty() && plan.next.is_none(), "{stopped} {next}: {:?}", plan.differences);
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
        plan.problems[0].contains(
            "u.warn-b.spark-usher.io, so the set is not bound: spec.validations[3].expression: undefined field"
        ),
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
    // Everything at once.
    let plan = Memory::plan(&mut cluster.memory, &[], &wanted, cluster.now);
    assert_eq!(plan.writes.len(), 2, "{:?}", plan.writes);
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
    cluster.write(&Write::Apply { object: other, restored: false });
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
            crate::json::set(object, path, value.clone());
        }
        assert_eq!(Memory::new(SETTLE).plan(&cluster.live(), &wanted, cluster.now).differences.len(), 4);
        cluster.memory = Memory::new(SETTLE);
        assert!(cluster.settle(&wanted).differences.is_empty());
    }
}
