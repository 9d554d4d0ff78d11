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
        Memory { settle, complete: None, fallback: None, unchecked: None, restored: Restored::default() }
    }

    /// Plans a round, given the admission policies and bindings of the cluster.
    pub fn plan(&mut self, live: &[Value], wanted: &Wanted, now: Instant) -> Plan {
        let mut plan = Plan::default();
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

    fn plan_fallback(&mut self, live: &[Value], wanted: &[Value], now: Instant, plan: &mut Plan) {
        let fingerprint = fingerprint(wanted);
        let known = self.fallback.as_ref() == Some(&fingerprint);
        plan.differences.extend(differences(live, wanted));
        let surplus: Vec<&Value> =
            live.iter().filter(|found| !wanted.iter().any(|object| is_called_as(found, object))).collect();
        let changed = changed(live, wanted);
        if surplus.is_empty() && changed.is_empty() {
            self.fallback = Some(fingerprint);
            return;
        }
        self.write(deletions(surplus.into_iter()), changed, known, now, plan);
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
        // Objects of an earlier file are deleted first: no binding may enforce policies that are not checked yet.
        let is_of_file = live.iter().any(|object| hash_of(object) == hash);
        let (kept, surplus): (Vec<Value>, Vec<Value>) = live
            .iter()
            .cloned()
            .partition(|found| is_of_file && wanted.iter().any(|object| is_called_as(found, object)));
        let changed = changed(&kept, wanted);
        let (bindings, policies): (Vec<&Value>, Vec<&Value>) =
            changed.iter().copied().partition(|object| is_binding(object));
        plan.problems.extend(warning(live));
        if known && !changed.is_empty() {
            // Restored objects were checked before. API servers see them later than the rest of the set.
            self.complete = Some((fingerprint, now));
            self.write(deletions(surplus.iter()), changed, true, now, plan);
            return;
        }
        if !surplus.is_empty() || !policies.is_empty() {
            self.write(deletions(surplus.iter()), policies, known, now, plan);
            return;
        }
        if !bindings.is_empty() {
            match self.type_check(live, &fingerprint, now) {
                Some(time) => plan.wake_at(time),
                None if plan.problems.is_empty() => self.write(Vec::new(), bindings, false, now, plan),
                None => {}
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

    /// Adds writes to the plan. Restorations may have to wait: then the plan gets the time of the next round.
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

    /// How long to wait for the type check; `None` if it is done, or the cluster makes none.
    fn type_check(&mut self, live: &[Value], fingerprint: &str, now: Instant) -> Option<Instant> {
        if live.iter().filter(|object| !is_binding(object)).all(is_checked) {
            return None;
        }
        let since = match &self.unchecked {
            Some((unchecked, since)) if unchecked == fingerprint => *since,
            _ => now,
        };
        self.unchecked = Some((fingerprint.to_owned(), since));
        Some(since + TYPE_CHECK_LIMIT).filter(|limit| now < *limit)
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
        Some(format!("the type check warns of {}, so the set is not bound: {field}: {what}", called(policy)))
    })
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
            // After a long time without a restoration the pauses begin anew.
            Some(last) if now >= last + 2 * MAX_RESTORE_PAUSE => self.count = 0,
            _ => {}
        }
        (self.count, self.last) = (self.count + 1, Some(now));
        Ok(())
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
mod tests;
