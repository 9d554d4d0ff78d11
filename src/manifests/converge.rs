//! The next writes that make the cluster's admission policies those of the policy file.
//!
//! A policy that judges requests is never replaced by one that was not tried. A new validating set is written into the free
//! [slot](Slot): its policies first, its bindings once the API server's type check has found no fault, and the old set is deleted
//! only when every API server enforces the new one. So every request is judged by at least one whole set. The fallback policies
//! are single objects, which change at once; they cannot stand twice, because each would add the owner.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use semver::Version;
use serde_json::Value;

use super::compare::{called, differences, is_called_as, is_same};
use super::fallback_policy;
use super::object::{MUTATING_BINDING, VALIDATING_BINDING};
use super::validating_policy::Slot;
use crate::annotations;
use crate::json::{at, list, text};

/// By then every API server enforces a new or changed policy: once its watch has shown it, and it looks at what changed once a second.
pub const SETTLE: Duration = Duration::from_secs(10);
/// How long a binding waits for the type check, which kube-controller-manager makes; some clusters run without it.
const TYPE_CHECK_LIMIT: Duration = Duration::from_secs(30);
/// The pause before an object is restored again. It doubles.
const RESTORE_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const MAX_RESTORE_PAUSE: Duration = Duration::from_secs(300);

/// The objects of one installation as they should be.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The first part of their names.
    pub name: String,
    /// The validating policies and bindings of both slots. `None`: those that exist are left as they are.
    pub validating: Option<[Vec<Value>; 2]>,
    /// The fallback policies and bindings; empty if none agrees with the webhook. `None`: those that exist are left as they are.
    pub fallback: Option<Vec<Value>>,
}

/// What earlier rounds saw.
#[derive(Debug)]
pub struct Memory {
    settle: Duration,
    /// The validating set that was complete last, and since when.
    complete: Option<(String, Instant)>,
    /// The fallback that was complete last.
    fallback: Option<String>,
    /// The set that waits for its type check, and since when.
    unchecked: Option<(String, Instant)>,
    restored: Restored,
}

/// How often objects were restored in a row.
#[derive(Debug, Default)]
struct Restored {
    count: u32,
    last: Option<Instant>,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Apply this object.
    Apply {
        /// The object.
        object: Value,
        /// Another client deleted or changed it.
        restored: bool,
    },
    /// Delete the object of this kind and name.
    Delete {
        /// Its kind.
        kind: String,
        /// Its name.
        name: String,
        /// Its uid and resourceVersion: another object of the name is not deleted.
        seen: [String; 2],
    },
}

/// What to do now.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes in their order. One that fails ends the round.
    pub writes: Vec<Write>,
    /// What differs from the policy file, a sentence each; none if everything is as it should be.
    pub differences: Vec<String>,
    /// What prevents that, a sentence each.
    pub problems: Vec<String>,
    /// Objects that are to be deleted, now or when the new ones are in force.
    pub surplus: Vec<Value>,
    /// When to plan again although nothing changed.
    pub next: Option<Instant>,
}

impl Write {
    /// The kind and the name of the object.
    pub fn subject(&self) -> (&str, &str) {
        match self {
            Write::Apply { object, .. } => (text(object, &["kind"]), text(object, &["metadata", "name"])),
            Write::Delete { kind, name, .. } => (kind, name),
        }
    }
}

impl Memory {
    /// Nothing was seen yet. `settle`: after this time API servers enforce a policy ([`SETTLE`]).
    pub fn new(settle: Duration) -> Memory {
        Memory { settle, complete: None, fallback: None, unchecked: None, restored: Restored::default() }
    }

    /// The next writes, given all admission policies and bindings that exist with our label.
    pub fn plan(&mut self, live: &[Value], wanted: &Wanted, now: Instant) -> Plan {
        let mut plan = Plan::default();
        let fallback_names = fallback_policy::names(&wanted.name);
        let of_fallback: Vec<Value> = named(live, &fallback_names);
        let of_slots = Slot::ALL.map(|slot| named(live, &slot.names(&wanted.name)));
        if let Some(newer) = newer(of_fallback.iter().chain(of_slots.iter().flatten())) {
            plan.problems.push(format!(
                "spark-usher {newer} wrote the admission policies, and this older version ({}) does not change them",
                env!("CARGO_PKG_VERSION")
            ));
            return plan;
        }
        if let Some(wanted) = &wanted.fallback {
            self.plan_fallback(&of_fallback, wanted, now, &mut plan);
        }
        if let Some(wanted) = &wanted.validating {
            self.plan_validating(&of_slots, wanted, now, &mut plan);
        }
        plan
    }

    fn plan_fallback(&mut self, live: &[Value], wanted: &[Value], now: Instant, plan: &mut Plan) {
        let fingerprint = fingerprint(wanted);
        let known = self.fallback.as_ref() == Some(&fingerprint);
        plan.differences.extend(differences(live, wanted));
        plan.surplus =
            live.iter().filter(|found| !wanted.iter().any(|object| is_called_as(found, object))).cloned().collect();
        let changed = changed(live, wanted);
        if plan.surplus.is_empty() && changed.is_empty() {
            self.fallback = Some(fingerprint);
            return;
        }
        self.write(deletions(plan.surplus.iter()), changed, known, now, plan);
    }

    fn plan_validating(&mut self, slots: &[Vec<Value>; 2], wanted: &[Vec<Value>; 2], now: Instant, plan: &mut Plan) {
        let [first, second] = wanted;
        let hash = first.first().map(hash_of).unwrap_or_default();
        let slot = choose(slots, hash);
        let (live, other, wanted) = match (slot, slots) {
            (Slot::A, [a, b]) => (a, b, first),
            (Slot::B, [a, b]) => (b, a, second),
        };
        plan.differences.extend(differences(live, wanted));
        let fingerprint = format!("{} {}", slot.as_str(), fingerprint(wanted));
        let known = self.complete.as_ref().is_some_and(|(complete, _)| *complete == fingerprint);
        // What is left of an earlier file goes first: no binding may judge by policies that are not checked yet, and an apply would
        // leave the old order of their variables.
        let is_of_file = live.iter().any(|object| hash_of(object) == hash);
        let (kept, surplus): (Vec<Value>, Vec<Value>) = live
            .iter()
            .cloned()
            .partition(|found| is_of_file && wanted.iter().any(|object| is_called_as(found, object)));
        let changed = changed(&kept, wanted);
        let (bindings, policies): (Vec<&Value>, Vec<&Value>) =
            changed.iter().copied().partition(|object| is_binding(object));
        if !surplus.is_empty() || !policies.is_empty() {
            // What is restored was checked before.
            let first = if known { changed } else { policies };
            self.write(deletions(surplus.iter()), first, known, now, plan);
            plan.surplus = [surplus, other.clone()].concat();
            return;
        }
        plan.surplus = other.clone();
        if !bindings.is_empty() {
            match self.type_check(live, &fingerprint, now) {
                TypeCheck::Passed => self.write(Vec::new(), bindings, known, now, plan),
                TypeCheck::Failed(warning) => plan.problems.push(warning),
                TypeCheck::Until(time) => plan.wake_at(time),
            }
            return;
        }
        let since = match &self.complete {
            Some((complete, since)) if *complete == fingerprint => *since,
            _ => now,
        };
        self.complete = Some((fingerprint, since));
        self.unchecked = None;
        if other.is_empty() {
            return;
        }
        plan.differences.extend(other.iter().map(|object| format!("{} is of an earlier policy file", called(object))));
        match since + self.settle {
            settled if now < settled => plan.wake_at(settled),
            _ => plan.writes.extend(deletions(other.iter())),
        }
    }

    /// Adds writes to the plan, or when they may be made if they restore what was complete.
    fn write(&mut self, deleted: Vec<Write>, applied: Vec<&Value>, restored: bool, now: Instant, plan: &mut Plan) {
        if deleted.is_empty() && applied.is_empty() {
            return;
        }
        if let Some(Err(time)) = restored.then(|| self.restored.may_restore(now)) {
            plan.wake_at(time);
            return;
        }
        plan.writes.extend(deleted);
        plan.writes.extend(applied.into_iter().map(|object| Write::Apply { object: object.clone(), restored }));
    }

    /// Whether the API server's type check, which is one of the validations and their messages, found no fault in a set.
    fn type_check(&mut self, live: &[Value], fingerprint: &str, now: Instant) -> TypeCheck {
        let policies = || live.iter().filter(|object| !is_binding(object));
        let number = |policy: &Value, path: &[&str]| at(policy, path).and_then(Value::as_i64).unwrap_or_default();
        let is_checked = |policy: &&Value| {
            number(policy, &["status", "observedGeneration"]) >= number(policy, &["metadata", "generation"]).max(1)
        };
        let warned = policies().filter(is_checked).find_map(|policy| {
            let warnings = list(policy, &["status", "typeChecking", "expressionWarnings"]);
            warnings.first().map(|warning| (policy, warning))
        });
        if let Some((policy, warning)) = warned {
            return TypeCheck::Failed(format!(
                "the API server's type check warns of {}, so it is not bound: {}: {}",
                called(policy),
                text(warning, &["fieldRef"]),
                text(warning, &["warning"])
            ));
        }
        if policies().all(|policy| is_checked(&policy)) {
            return TypeCheck::Passed;
        }
        let since = match &self.unchecked {
            Some((unchecked, since)) if unchecked == fingerprint => *since,
            _ => now,
        };
        self.unchecked = Some((fingerprint.to_owned(), since));
        let limit = since + TYPE_CHECK_LIMIT;
        if now < limit { TypeCheck::Until(limit) } else { TypeCheck::Passed }
    }
}

enum TypeCheck {
    Passed,
    Failed(String),
    Until(Instant),
}

impl Plan {
    fn wake_at(&mut self, time: Instant) {
        self.next = Some(self.next.map_or(time, |next| next.min(time)));
    }
}

impl Restored {
    /// Counts a restoration, or returns when one may begin.
    fn may_restore(&mut self, now: Instant) -> Result<(), Instant> {
        let pause = RESTORE_PAUSE.saturating_mul(1 << self.count.min(9)).min(MAX_RESTORE_PAUSE);
        match self.last {
            Some(last) if now < last + pause => return Err(last + pause),
            // Peace for so long: the next one is a new beginning.
            Some(last) if now >= last + 2 * MAX_RESTORE_PAUSE => self.count = 0,
            _ => {}
        }
        (self.count, self.last) = (self.count + 1, Some(now));
        Ok(())
    }
}

/// The slot for the set of this hash: the one that has it already, or one that is free or not whole, or that of the younger set, beside
/// which the older one judges requests.
fn choose(slots: &[Vec<Value>; 2], hash: &str) -> Slot {
    let [a, b] = slots;
    let has_it = |objects: &[Value]| objects.iter().any(|object| hash_of(object) == hash);
    let names = |objects: &[Value], bindings: bool| -> BTreeSet<String> {
        let of_kind = objects.iter().filter(|object| is_binding(object) == bindings);
        of_kind.map(|object| text(object, &["metadata", "name"]).to_owned()).collect()
    };
    let is_whole = |objects: &[Value]| !objects.is_empty() && names(objects, true) == names(objects, false);
    let bound = |objects: &[Value]| {
        let bindings = objects.iter().filter(|object| is_binding(object));
        bindings.map(|object| text(object, &["metadata", "creationTimestamp"]).to_owned()).max()
    };
    match (has_it(a), has_it(b), is_whole(a), is_whole(b)) {
        (true, ..) | (false, false, false, true) => Slot::A,
        (false, true, ..) | (false, false, true, false) => Slot::B,
        // Free is younger than any: `None` is less than any time.
        (false, false, false, false) if bound(a).is_none() => Slot::A,
        (false, false, false, false) if bound(b).is_none() => Slot::B,
        _ if bound(a) > bound(b) => Slot::A,
        _ => Slot::B,
    }
}

/// The newest version that wrote one of these objects, if it is newer than this one.
fn newer<'v>(objects: impl Iterator<Item = &'v Value>) -> Option<Version> {
    let versions =
        objects.filter_map(|object| text(object, &["metadata", "annotations", annotations::VERSION]).parse().ok());
    let own = env!("CARGO_PKG_VERSION").parse::<Version>().ok()?;
    versions.max().filter(|newest| *newest > own)
}

fn named(live: &[Value], names: &[String]) -> Vec<Value> {
    live.iter().filter(|object| names.iter().any(|name| name == text(object, &["metadata", "name"]))).cloned().collect()
}

/// The wanted objects that are missing or differ.
fn changed<'w>(live: &[Value], wanted: &'w [Value]) -> Vec<&'w Value> {
    let is_there = |object: &&Value| live.iter().any(|found| is_called_as(found, object) && is_same(found, object));
    wanted.iter().filter(|object| !is_there(object)).collect()
}

/// Deletes bindings before policies: a policy without a binding judges nothing, and a binding without a policy is a misconfiguration.
fn deletions<'v>(objects: impl Iterator<Item = &'v Value>) -> Vec<Write> {
    let (bindings, policies): (Vec<_>, Vec<_>) = objects.partition(|object| is_binding(object));
    let delete = |object: &Value| Write::Delete {
        kind: text(object, &["kind"]).to_owned(),
        name: text(object, &["metadata", "name"]).to_owned(),
        seen: ["uid", "resourceVersion"].map(|key| text(object, &["metadata", key]).to_owned()),
    };
    // One with a finalizer waits for its controller.
    let is_there = |object: &&Value| text(object, &["metadata", "deletionTimestamp"]).is_empty();
    bindings.into_iter().chain(policies).filter(is_there).map(delete).collect()
}

fn is_binding(object: &Value) -> bool {
    [VALIDATING_BINDING, MUTATING_BINDING].contains(&text(object, &["kind"]))
}

fn hash_of(object: &Value) -> &str {
    text(object, &["metadata", "annotations", annotations::POLICY_HASH])
}

/// The content and the owners of a set.
fn fingerprint(wanted: &[Value]) -> String {
    let owners = wanted.iter().flat_map(|object| list(object, &["metadata", "ownerReferences"]));
    let owners: BTreeSet<&str> = owners.map(|owner| text(owner, &["uid"])).collect();
    let hashes: BTreeSet<&str> = wanted.iter().map(hash_of).collect();
    hashes.into_iter().chain(owners).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
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
        let mut cluster = Cluster::new();
        cluster.settle(&wanted(WARN));
        cluster.settle(&wanted(ENFORCE));
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
    fn object_that_waits_for_a_finalizer_is_not_deleted_again() {
        let mut cluster = Cluster::new();
        cluster.settle(&wanted(ENFORCE));
        cluster.settle(&wanted(WARN));
        cluster.wait(10);
        for object in cluster.objects.values_mut().filter(|object| text(object, &["metadata", "name"]).contains("-a."))
        {
            object["metadata"]["deletionTimestamp"] = json!("2026-11-29T10:00:00Z");
        }
        let plan = cluster.plan(&wanted(WARN));
        assert!(plan.writes.is_empty() && plan.surplus.len() == 2, "{plan:?}");
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
        status["typeChecking"] = json!({"expressionWarnings": [{"fieldRef": "spec.validations[3].expression", "warning": "undefined field"}]});
        let plan = cluster.plan(&wanted);
        assert!(plan.writes.is_empty(), "{:?}", plan.writes);
        assert!(
            plan.problems[0].contains(
                "u.warn-b.spark-usher.io, so it is not bound: spec.validations[3].expression: undefined field"
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
                _ => {
                    cluster.objects.get_mut(&key(VALIDATING)).unwrap()["spec"]["paramKind"] =
                        json!({"kind": "ConfigMap"})
                }
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
}
