//! The next writes that make the cluster's admission policies those of the policy file.
//!
//! A policy that judges requests is never replaced by one that was not tried. A new validating set is written into the free
//! [slot](Slot): its policies first, its bindings once the API server's type check has found no fault, and the old set is deleted
//! only when every API server enforces the new one. So every request is judged by at least one whole set. The fallback policies
//! are single objects, which change at once; they cannot stand twice, because each would add the owner.

use std::collections::{BTreeMap, BTreeSet};
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
    /// The time of the current round.
    round: Option<Instant>,
}

/// One write.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Apply this object.
    Apply {
        /// The object.
        object: Value,
        /// The resourceVersion of the object that it changes: a later one is not overwritten. `None`: there is none of that name.
        seen: Option<String>,
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
        self.restored.round = Some(now);
        let fallback_names = fallback_policy::names(&wanted.name);
        let of_fallback: Vec<Value> = named(live, &fallback_names);
        let of_slots = Slot::ALL.map(|slot| named(live, &slot.names(&wanted.name)));
        if let Some(newer) = newer(of_fallback.iter().chain(of_slots.iter().flatten())) {
            let names: Vec<String> = of_fallback.iter().chain(of_slots.iter().flatten()).map(called).collect();
            plan.problems.push(format!(
                "spark-usher {newer} wrote the admission policies, and this older version ({}) does not change them: {}",
                env!("CARGO_PKG_VERSION"),
                names.join(", ")
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

    /// Takes note of a write that succeeded.
    pub fn wrote(&mut self, write: &Write) {
        let (is_restored, object, now) = match write {
            Write::Apply { object, restored, .. } => (*restored, called(object), Some(fingerprint([object]))),
            Write::Delete { kind, name, restored, .. } => (*restored, format!("{kind} {name}"), None),
        };
        self.known.insert(object, now);
        if is_restored {
            self.restored.count();
        }
    }

    fn plan_fallback(&mut self, live: &[Value], wanted: &[Value], now: Instant, plan: &mut Plan) {
        plan.differences.extend(differences(live, wanted));
        let surplus = live.iter().filter(|found| !wanted.iter().any(|object| is_called_as(found, object)));
        if !plan.waits_for_finalizers(live) {
            let changed = self.changed(live, wanted);
            self.write(deletions(surplus), changed, live, now, plan);
        }
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
        plan.problems.extend(warning(live));
        let fingerprint = format!("{} {}", slot.as_str(), fingerprint(wanted));
        let complete = self.complete.take().filter(|(complete, _)| *complete == fingerprint);
        if plan.waits_for_finalizers(live) {
            return;
        }
        // Objects of an earlier file are deleted first: no binding may enforce policies that are not checked yet.
        let is_of_file = live.iter().any(|object| hash_of(object) == hash);
        let (kept, surplus): (Vec<Value>, Vec<Value>) = live
            .iter()
            .cloned()
            .partition(|found| is_of_file && wanted.iter().any(|object| is_called_as(found, object)));
        let changed = self.changed(&kept, wanted);
        let (bindings, policies): (Vec<&Value>, Vec<&Value>) =
            changed.into_iter().partition(|object| is_binding(object));
        if !surplus.is_empty() || !policies.is_empty() {
            self.write(deletions(surplus.iter()), policies, live, now, plan);
            return;
        }
        if !bindings.is_empty() {
            match self.type_check(live, &fingerprint, now) {
                Some(time) => plan.wake_at(time),
                None if plan.problems.is_empty() => self.write(Vec::new(), bindings, live, now, plan),
                None => {}
            }
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
            // A fault that was found late: the old set goes on.
            _ if !plan.problems.is_empty() => {}
            _ => self.write(deletions(other.iter()), Vec::new(), live, now, plan),
        }
    }

    /// The wanted objects that are missing or differ.
    fn changed<'w>(&mut self, live: &[Value], wanted: &'w [Value]) -> Vec<&'w Value> {
        let is_there = |object: &&Value| live.iter().any(|found| is_called_as(found, object) && is_same(found, object));
        let (same, changed): (Vec<&Value>, Vec<&Value>) = wanted.iter().partition(is_there);
        self.known.extend(same.into_iter().map(|object| (called(object), Some(fingerprint([object])))));
        changed
    }

    /// Adds writes to the plan. What undoes a change of another client may have to wait: then the plan gets the time of the next round.
    fn write(
        &mut self,
        deleted: Vec<(&Value, [String; 2])>,
        applied: Vec<&Value>,
        live: &[Value],
        now: Instant,
        plan: &mut Plan,
    ) {
        let pause = self.restored.pause(now);
        let mut add = |write: Write, restored: bool| match pause.filter(|_| restored) {
            Some(time) => plan.wake_at(time),
            None => plan.writes.push(write),
        };
        for (object, seen) in deleted {
            let restored = self.known.get(&called(object)) == Some(&None);
            let [kind, name] = [&["kind"][..], &["metadata", "name"]].map(|path| text(object, path).to_owned());
            add(Write::Delete { kind, name, seen, restored }, restored);
        }
        for object in applied {
            let found = live.iter().find(|found| is_called_as(found, object));
            // This leader saw or wrote it as it should be, or an earlier one of this version did.
            let was_right = self.known.get(&called(object)) == Some(&Some(fingerprint([object])))
                || found.is_some_and(|found| claims(found, object));
            let seen = found.map(|found| text(found, &["metadata", "resourceVersion"]).to_owned());
            add(Write::Apply { object: object.clone(), seen, restored: was_right }, was_right);
        }
    }

    /// How long to wait for the type check; `None` if it is done, or the cluster makes none.
    fn type_check(&mut self, live: &[Value], fingerprint: &str, now: Instant) -> Option<Instant> {
        let unchecked = self.unchecked.take().filter(|(unchecked, _)| unchecked == fingerprint);
        let is_checked = self.checked.as_deref() == Some(fingerprint)
            || live.iter().filter(|object| !is_binding(object)).all(is_checked);
        if is_checked {
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
fn warning(live: &[Value]) -> Option<String> {
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

    /// Whether an object is being deleted, and another controller's finalizer keeps it: until then it cannot be written anew.
    fn waits_for_finalizers(&mut self, live: &[Value]) -> bool {
        let waiting = live.iter().filter(|object| !is_there(object)).map(|object| {
            let finalizers: Vec<&str> =
                list(object, &["metadata", "finalizers"]).iter().filter_map(Value::as_str).collect();
            format!("{} is being deleted and waits for its finalizers: {}", called(object), finalizers.join(", "))
        });
        let before = self.problems.len();
        self.problems.extend(waiting);
        self.problems.len() > before
    }
}

impl Restored {
    /// Until when nothing may be undone.
    fn pause(&self, now: Instant) -> Option<Instant> {
        let pause = RESTORE_PAUSE.saturating_mul(1 << self.count.min(9)).min(MAX_RESTORE_PAUSE);
        self.last.map(|last| last + pause).filter(|time| now < *time)
    }

    /// Counts the round in which something was undone, once.
    fn count(&mut self) {
        let (last, round) = (self.last, self.round);
        if last == round {
            return;
        }
        // After a long time the pauses begin anew.
        let is_long = last.zip(round).is_some_and(|(last, round)| round >= last + 2 * MAX_RESTORE_PAUSE);
        (self.count, self.last) = (if is_long { 1 } else { self.count + 1 }, round);
    }
}

/// The differences from the policy file, a sentence each, and the surplus objects, for a reader that does not write. `slot` is the slot
/// that an administrator applies; `None` means the one that the leader uses. The version that generated the objects is ignored.
pub fn compare(live: &[Value], wanted: &Wanted, slot: Option<Slot>) -> (Vec<String>, Vec<Value>) {
    let any_version = |objects: &[Value]| -> Vec<Value> {
        let mut objects = objects.to_vec();
        for object in &mut objects {
            crate::json::remove(object, &["metadata", "annotations", annotations::VERSION]);
        }
        objects
    };
    let (mut found, mut surplus) = (Vec::new(), Vec::new());
    let mut examine = |live: Vec<Value>, wanted: &[Value]| {
        found.extend(differences(&live, &any_version(wanted)));
        surplus.extend(live.into_iter().filter(|object| !wanted.iter().any(|wanted| is_called_as(object, wanted))));
    };
    if let Some(fallback) = &wanted.fallback {
        examine(named(live, &fallback_policy::names(&wanted.name)), fallback);
    }
    if let Some([first, second]) = &wanted.validating {
        let slots = Slot::ALL.map(|slot| named(live, &slot.names(&wanted.name)));
        let hash = first.first().map(hash_of).unwrap_or_default();
        let (wanted, other) = match slot.unwrap_or_else(|| choose(&slots, hash)) {
            Slot::A => (first, Slot::B),
            Slot::B => (second, Slot::A),
        };
        let [a, b] = slots;
        let (live, old) = if other == Slot::B { (a, b) } else { (b, a) };
        examine(live, wanted);
        examine(old, &[]);
    }
    (found, surplus)
}

/// The slot for the set of this hash: the slot that already has it, else a slot that is empty or incomplete, else that of the younger
/// set, because API servers enforce the older set for sure.
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
        // Both are incomplete: a slot without bindings enforces nothing.
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

/// What to delete, with uid and resourceVersion: bindings before policies. A policy without a binding judges nothing, and a binding
/// without a policy is a misconfiguration.
fn deletions<'v>(objects: impl Iterator<Item = &'v Value>) -> Vec<(&'v Value, [String; 2])> {
    let (bindings, policies): (Vec<_>, Vec<_>) =
        objects.filter(|object| is_there(object)).partition(|object| is_binding(object));
    let seen = |object: &Value| ["uid", "resourceVersion"].map(|key| text(object, &["metadata", key]).to_owned());
    bindings.into_iter().chain(policies).map(|object| (object, seen(object))).collect()
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
