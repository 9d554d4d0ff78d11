//! The next writes that make the cluster's admission policies those of the policy file.
//!
//! A policy that judges requests is never replaced by one that was not tried. A new validating set is written into the free
//! [slot](Slot): its policies first, its bindings once the API server's type check has found no fault, and the old set is deleted
//! only when every API server enforces the new one. So every request is judged by at least one whole set. The fallback policies
//! are single objects, which change in one step; they cannot stand twice, because each would add the owner.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use semver::Version;
use serde_json::Value;

use super::compare::{called, differences, is_called_as, is_same};
use super::fallback_policy;
use super::object::{MUTATING, MUTATING_BINDING, VALIDATING, VALIDATING_BINDING};
use super::validating_policy::Slot;
use crate::annotations;
use usher_spark::json::{at, list, text};

/// By then every API server enforces a new or changed policy: once its watch has shown it; it compiles what changed once a second.
pub const SETTLE: Duration = Duration::from_secs(10);
/// How long a binding waits for the type check, which kube-controller-manager makes; some clusters run without it.
const TYPE_CHECK_LIMIT: Duration = Duration::from_secs(30);
/// The pause after the first restoration is twice this, and doubles with each.
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

/// The state of earlier rounds.
#[derive(Debug)]
pub struct Memory {
    settle: Duration,
    /// The validating set that is complete, and since when.
    complete: Option<(String, Instant)>,
    /// The set that was checked last: its bindings are written again without another check.
    checked: Option<String>,
    /// The set that waits for its type check, and since when.
    unchecked: Option<(String, Instant)>,
    /// Each object as this leader saw or wrote it last, as a [`fingerprint`]; `None` if it deleted the object.
    known: BTreeMap<String, Option<String>>,
    restored: Restored,
}

/// How often what other clients changed was undone in a row.
#[derive(Debug, Default)]
struct Restored {
    count: u32,
    last: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Apply this object.
    Apply {
        object: Value,
        /// The resourceVersion of the object that it changes: a later one is not overwritten. `None`: there is none of that name.
        seen: Option<String>,
        /// Another client deleted or changed it.
        restored: bool,
    },
    /// Delete the object of this kind and name.
    Delete {
        kind: String,
        name: String,
        /// Its uid and resourceVersion: another object of the name is not deleted.
        seen: [String; 2],
        /// Another client created it again.
        restored: bool,
    },
}

/// The result of a round.
#[derive(Debug, Default)]
pub struct Plan {
    /// Writes, in order. A write that fails ends the round.
    pub writes: Vec<Write>,
    /// The differences from the policy file, a sentence each.
    pub differences: Vec<String>,
    /// What prevents the leader from applying the policy file, a sentence each.
    pub problems: Vec<String>,
    /// When to plan again although nothing changed.
    pub next: Option<Instant>,
}

impl Write {
    /// The kind and the name of the object, as one text.
    fn called(&self) -> String {
        let (kind, name) = self.subject();
        format!("{kind} {name}")
    }

    /// The kind and the name of the object.
    pub fn subject(&self) -> (&str, &str) {
        match self {
            Write::Apply { object, .. } => (text(object, &["kind"]), text(object, &["metadata", "name"])),
            Write::Delete { kind, name, .. } => (kind, name),
        }
    }
}

impl Memory {
    /// The state before the first round. After `settle`, API servers enforce a policy ([`SETTLE`]).
    pub fn new(settle: Duration) -> Memory {
        let (known, restored) = (BTreeMap::new(), Restored::default());
        Memory { settle, complete: None, checked: None, unchecked: None, known, restored }
    }

    /// Plans a round, given the admission policies and bindings of the cluster.
    pub fn plan(&mut self, live: &[Value], wanted: &Wanted, now: Instant) -> Plan {
        let mut plan = Plan::default();
        let of_fallback = named(live, &fallback_policy::names(&wanted.name));
        let of_slots = Slot::ALL.map(|slot| named(live, &slot.names(&wanted.name)));
        let all: Vec<&Value> = of_fallback.iter().chain(of_slots.iter().flatten()).copied().collect();
        if let Some(newer) = newer(&all) {
            let names: Vec<String> = all.into_iter().map(called).collect();
            plan.problems.push(format!(
                "spark-usher {newer} wrote the admission policies, and this older version ({}) does not change them: {}",
                env!("CARGO_PKG_VERSION"),
                names.join(", ")
            ));
            return plan;
        }
        plan.problems.extend(all.iter().filter(|object| !is_there(object)).map(|object| {
            let finalizers = list(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str);
            let finalizers = finalizers.collect::<Vec<_>>().join(", ");
            format!("{} is being deleted and waits for its finalizers: {finalizers}", called(object))
        }));
        if let Some(wanted) = &wanted.fallback {
            self.plan_fallback(&of_fallback, wanted, now, &mut plan);
        }
        if let Some(wanted) = &wanted.validating {
            self.plan_validating(&of_slots, wanted, now, &mut plan);
        }
        plan
    }

    /// Takes note of a write of the round of this time that succeeded.
    pub fn wrote(&mut self, write: &Write, round: Instant) {
        let (restored, state) = match write {
            Write::Apply { object, restored, .. } => (*restored, Some(fingerprint([object]))),
            Write::Delete { restored, .. } => (*restored, None),
        };
        self.known.insert(write.called(), state);
        if restored {
            self.restored.count(round);
        }
    }

    fn plan_fallback(&mut self, live: &[&Value], wanted: &[Value], now: Instant, plan: &mut Plan) {
        plan.differences.extend(differences(live, wanted));
        let surplus = live.iter().copied().filter(|found| !wanted.iter().any(|object| is_called_as(found, object)));
        let changed = self.changed(live, wanted);
        self.forget(&[MUTATING, MUTATING_BINDING], live.iter().copied().chain(wanted));
        self.delete(surplus, now, plan);
        self.apply(changed, live, now, plan);
    }

    fn plan_validating(&mut self, slots: &[Vec<&Value>; 2], wanted: &[Vec<Value>; 2], now: Instant, plan: &mut Plan) {
        let [first, second] = wanted;
        let hash = first.first().map(hash_of).unwrap_or_default();
        let slot = choose(slots, hash);
        let (live, other, wanted) = match (slot, slots) {
            (Slot::A, [a, b]) => (a, b, first),
            (Slot::B, [a, b]) => (b, a, second),
        };
        plan.differences.extend(differences(live, wanted));
        self.forget(&[VALIDATING, VALIDATING_BINDING], live.iter().chain(other).copied().chain(wanted));
        let warning = warning(live);
        plan.problems.extend(warning.clone());
        let fingerprint = format!("{} {}", slot.as_str(), fingerprint(wanted));
        let complete = self.complete.take().filter(|(complete, _)| *complete == fingerprint);
        let is_wanted = |found: &Value| wanted.iter().any(|object| is_called_as(found, object));
        // Bindings of an earlier file go first: none may enforce policies that are not checked yet.
        let is_of_file = live.iter().any(|object| hash_of(object) == hash);
        let mut old =
            live.iter().copied().filter(|found| is_binding(found) && !(is_of_file && is_wanted(found))).peekable();
        if old.peek().is_some() {
            plan.writes.extend(old.filter(|object| is_there(object)).map(|object| deletion(object, false)));
            return;
        }
        let (bindings, policies): (Vec<&Value>, Vec<&Value>) =
            self.changed(live, wanted).into_iter().partition(|object| is_binding(object));
        self.delete(live.iter().copied().filter(|found| !is_wanted(found)), now, plan);
        if !policies.is_empty() {
            self.unchecked = None;
            self.apply(policies, live, now, plan);
            return;
        }
        if !bindings.is_empty() {
            match self.type_check(live, &fingerprint, now) {
                Some(time) => plan.wake_at(time),
                None if warning.is_none() => self.apply(bindings, live, now, plan),
                None => {}
            }
            return;
        }
        if !live.iter().all(|object| is_there(object)) {
            return;
        }
        let since = complete.map_or(now, |(_, since)| since);
        (self.complete, self.checked) = (Some((fingerprint.clone(), since)), Some(fingerprint));
        if other.is_empty() {
            return;
        }
        plan.differences.extend(other.iter().map(|object| format!("{} is of an earlier policy file", called(object))));
        match since + self.settle {
            settled if now < settled => plan.wake_at(settled),
            _ if warning.is_none() => self.delete(other.iter().copied(), now, plan),
            // A fault that was found late: the old set stays in force.
            _ => {}
        }
    }

    /// The wanted objects that are missing or differ, without those that wait for their finalizers.
    fn changed<'w>(&mut self, live: &[&Value], wanted: &'w [Value]) -> Vec<&'w Value> {
        let mut changed = Vec::new();
        for object in wanted {
            match live.iter().find(|found| is_called_as(found, object)) {
                Some(found) if is_same(found, object) => {
                    self.known.insert(called(object), Some(fingerprint([object])));
                }
                Some(found) if !is_there(found) => {}
                _ => changed.push(object),
            }
        }
        changed
    }

    /// Forgets objects of these kinds that are neither there nor wanted: that others deleted them is no change of what is wanted later.
    fn forget<'v>(&mut self, kinds: &[&str], relevant: impl Iterator<Item = &'v Value>) {
        let relevant: BTreeSet<String> = relevant.map(called).collect();
        let is_of_kinds = |name: &str| name.split(' ').next().is_some_and(|kind| kinds.contains(&kind));
        self.known.retain(|name, state| state.is_none() || relevant.contains(name) || !is_of_kinds(name));
    }

    /// Plans deletions, bindings first: a policy without a binding judges nothing, and a binding without a policy is a
    /// misconfiguration.
    fn delete<'v>(&self, objects: impl Iterator<Item = &'v Value>, now: Instant, plan: &mut Plan) {
        let (bindings, policies): (Vec<_>, Vec<_>) =
            objects.filter(|object| is_there(object)).partition(|object| is_binding(object));
        for object in bindings.into_iter().chain(policies) {
            let restored = self.known.get(&called(object)) == Some(&None);
            self.add(deletion(object, restored), restored, now, plan);
        }
    }

    /// Plans writes of objects.
    fn apply(&self, objects: Vec<&Value>, live: &[&Value], now: Instant, plan: &mut Plan) {
        for object in objects {
            let found = live.iter().find(|found| is_called_as(found, object));
            // This leader saw or wrote it as it should be, or an earlier leader of this version wrote it.
            let restored = self.known.get(&called(object)) == Some(&Some(fingerprint([object])))
                || found.is_some_and(|found| claims(found, object));
            let seen = found.map(|found| text(found, &["metadata", "resourceVersion"]).to_owned());
            self.add(Write::Apply { object: object.clone(), seen, restored }, restored, now, plan);
        }
    }

    /// Adds a write to the plan, or the time from which it may undo what another client did.
    fn add(&self, write: Write, restored: bool, now: Instant, plan: &mut Plan) {
        match self.restored.pause(now).filter(|_| restored) {
            Some(time) => plan.wake_at(time),
            None => plan.writes.push(write),
        }
    }

    /// Until when the bindings of a set wait for its type check; `None` if it is done, or the cluster makes none.
    fn type_check(&mut self, live: &[&Value], fingerprint: &str, now: Instant) -> Option<Instant> {
        let unchecked = self.unchecked.take().filter(|(unchecked, _)| unchecked == fingerprint);
        let was_complete = self.checked.as_deref() == Some(fingerprint);
        if was_complete || live.iter().filter(|object| !is_binding(object)).all(|policy| is_checked(policy)) {
            return None;
        }
        let (_, since) = self.unchecked.insert(unchecked.unwrap_or_else(|| (fingerprint.to_owned(), now)));
        Some(*since + TYPE_CHECK_LIMIT).filter(|limit| now < *limit)
    }
}

/// Whether kube-controller-manager has checked the types of a policy as it is now.
fn is_checked(policy: &Value) -> bool {
    let number = |path: &[&str]| at(policy, path).and_then(Value::as_i64).unwrap_or_default();
    number(&["status", "observedGeneration"]) >= number(&["metadata", "generation"]).max(1)
}

/// The first fault that the type check found in a set. It checks the expressions of validations and of their messages.
fn warning(live: &[&Value]) -> Option<String> {
    live.iter().filter(|policy| is_checked(policy)).find_map(|policy| {
        let warning = list(policy, &["status", "typeChecking", "expressionWarnings"]).first()?;
        let (field, what) = (text(warning, &["fieldRef"]), text(warning, &["warning"]));
        Some(format!("the type check warns of {}: {field}: {what}", called(policy)))
    })
}

impl Plan {
    fn wake_at(&mut self, time: Instant) {
        self.next = Some(self.next.map_or(time, |next| next.min(time)));
    }
}

impl Restored {
    /// Until when nothing may be undone.
    fn pause(&self, now: Instant) -> Option<Instant> {
        let pause = RESTORE_PAUSE.saturating_mul(1 << self.count.min(9)).min(MAX_RESTORE_PAUSE);
        self.last.map(|last| last + pause).filter(|time| now < *time)
    }

    /// Counts a round in which something was undone, once.
    fn count(&mut self, round: Instant) {
        let pause = self.last.map(|last| round.saturating_duration_since(last));
        match pause {
            Some(Duration::ZERO) => return,
            // After a long time the pauses begin anew.
            Some(pause) if pause >= 2 * MAX_RESTORE_PAUSE => self.count = 1,
            _ => self.count += 1,
        }
        self.last = Some(round);
    }
}

/// The differences from the policy file, a sentence each, and the surplus objects, for a reader that does not write. `slot` is the slot
/// that an administrator applies; `None` means the one that the leader uses. The version that generated the objects is ignored.
pub fn compare(live: &[Value], wanted: &Wanted, slot: Option<Slot>) -> (Vec<String>, Vec<Value>) {
    let any_version = |objects: &[Value]| -> Vec<Value> {
        let mut objects = objects.to_vec();
        for object in &mut objects {
            usher_spark::json::remove(object, &["metadata", "annotations", annotations::VERSION]);
        }
        objects
    };
    let (mut found, mut surplus) = (Vec::new(), Vec::new());
    let mut examine = |live: &[&Value], wanted: &[Value]| {
        found.extend(differences(live, &any_version(wanted)));
        let unwanted = live.iter().filter(|object| !wanted.iter().any(|wanted| is_called_as(object, wanted)));
        surplus.extend(unwanted.map(|object| (*object).clone()));
    };
    if let Some(fallback) = &wanted.fallback {
        examine(&named(live, &fallback_policy::names(&wanted.name)), fallback);
    }
    if let Some([first, second]) = &wanted.validating {
        let slots = Slot::ALL.map(|slot| named(live, &slot.names(&wanted.name)));
        let hash = first.first().map(hash_of).unwrap_or_default();
        let (wanted, live, old) = match (slot.unwrap_or_else(|| choose(&slots, hash)), &slots) {
            (Slot::A, [a, b]) => (first, a, b),
            (Slot::B, [a, b]) => (second, b, a),
        };
        examine(live, wanted);
        examine(old, &[]);
    }
    (found, surplus)
}

/// The slot for the set of this hash: the slot that has it, else a slot without a whole set, else that of the younger set, because API
/// servers enforce the older set for sure.
fn choose(slots: &[Vec<&Value>; 2], hash: &str) -> Slot {
    let [a, b] = slots;
    let [of_a, of_b] = [whole_sets(a), whole_sets(b)];
    let has_it = |objects: &[&Value], sets: &BTreeMap<&str, &str>| {
        (sets.is_empty() || sets.contains_key(hash)) && objects.iter().any(|object| hash_of(object) == hash)
    };
    match (has_it(a, &of_a), has_it(b, &of_b), of_a.values().min(), of_b.values().min()) {
        (true, ..) => Slot::A,
        (_, true, ..) => Slot::B,
        (.., None, Some(_)) => Slot::A,
        (.., Some(_), None) => Slot::B,
        // A slot without bindings enforces nothing.
        (.., None, None) if a.iter().any(|object| is_binding(object)) => Slot::B,
        (.., Some(of_a), Some(of_b)) if of_a <= of_b => Slot::B,
        _ => Slot::A,
    }
}

/// The hash of each whole set in a slot, and when its last binding was created. The bindings of a whole set have the policies of their file,
/// and none of it is being deleted. Objects of other files, which another client may have written, have no part in it.
fn whole_sets<'v>(slot: &[&'v Value]) -> BTreeMap<&'v str, &'v str> {
    let mut sets: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for object in slot {
        sets.entry(hash_of(object)).or_default().push(object);
    }
    let names = |objects: &[&'v Value]| -> BTreeSet<&str> {
        objects.iter().map(|object| text(object, &["metadata", "name"])).collect()
    };
    let whole = sets.into_iter().filter_map(|(hash, objects)| {
        let is_there = objects.iter().all(|object| is_there(object));
        let (bindings, policies): (Vec<&Value>, Vec<&Value>) =
            objects.into_iter().partition(|object| is_binding(object));
        let bound = bindings.iter().map(|binding| text(binding, &["metadata", "creationTimestamp"])).max()?;
        (is_there && names(&bindings) == names(&policies)).then_some((hash, bound))
    });
    whole.collect()
}

/// The newest version that wrote one of these objects, if it is newer than this one.
fn newer(objects: &[&Value]) -> Option<Version> {
    let version = |object: &&Value| text(object, &["metadata", "annotations", annotations::VERSION]).parse().ok();
    let versions = objects.iter().filter_map(version);
    let current = env!("CARGO_PKG_VERSION").parse::<Version>().ok()?;
    versions.max().filter(|newest| *newest > current)
}

fn named<'v>(live: &'v [Value], names: &[String]) -> Vec<&'v Value> {
    live.iter().filter(|object| names.iter().any(|name| name == text(object, &["metadata", "name"]))).collect()
}

fn deletion(object: &Value, restored: bool) -> Write {
    let field = |path: &[&str]| text(object, path).to_owned();
    let seen = [field(&["metadata", "uid"]), field(&["metadata", "resourceVersion"])];
    Write::Delete { kind: field(&["kind"]), name: field(&["metadata", "name"]), seen, restored }
}

/// Whether an object is not being deleted.
fn is_there(object: &Value) -> bool {
    text(object, &["metadata", "deletionTimestamp"]).is_empty()
}

/// Whether an object claims the content, the owner and the version of another.
fn claims(found: &Value, object: &Value) -> bool {
    let version = |object| text(object, &["metadata", "annotations", annotations::VERSION]);
    fingerprint([found]) == fingerprint([object]) && version(found) == version(object)
}

fn is_binding(object: &Value) -> bool {
    [VALIDATING_BINDING, MUTATING_BINDING].contains(&text(object, &["kind"]))
}

fn hash_of(object: &Value) -> &str {
    text(object, &["metadata", "annotations", annotations::POLICY_HASH])
}

/// The content and the owners of objects.
fn fingerprint<'v>(wanted: impl IntoIterator<Item = &'v Value>) -> String {
    let (mut hashes, mut owners) = (BTreeSet::new(), BTreeSet::new());
    for object in wanted {
        hashes.insert(hash_of(object));
        owners.extend(list(object, &["metadata", "ownerReferences"]).iter().map(|owner| text(owner, &["uid"])));
    }
    hashes.into_iter().chain(owners).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
