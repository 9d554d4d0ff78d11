//! Gangs: what each scheduler wants on the wire, how large a gang is, and what it is called.
//!
//! Every scheduler is one file with one row, and [`TABLE`] lists the rows; nothing else in the crate knows a
//! scheduler's keys. To add one: write the file, add the line.
//!
//! ## Why executors only
//! All PodGroup schedulers but YuniKorn place nothing until `minMember` pods exist. The driver creates the executors,
//! so a group of driver + N with minMember N+1 never starts (GANG.md, design law).

mod coscheduling;
pub mod early_pods;
pub mod group;
mod kai;
mod koordinator;
mod kube_batch;
mod kueue;
pub mod name;
mod native;
mod none;
pub mod size;
mod volcano;
mod yunikorn;

use std::sync::LazyLock;

use serde_json::Value;

use early_pods::CURE;
pub use group::GroupSpec;
pub use name::NameTemplate;
pub use none::NONE;
pub use size::Numbers;

use crate::snapshot::{GroupApi, MarkPlace, Seat, SeatKeys};
use crate::spark::pod::Pod;
use crate::spark::resources::ResourceList;

/// Every scheduler, one line each.
pub static TABLE: &[&GangScheduler] = &[
    &none::NONE,
    &kube_batch::KUBE_BATCH,
    &volcano::VOLCANO,
    &yunikorn::YUNIKORN,
    &coscheduling::COSCHEDULING,
    &koordinator::KOORDINATOR,
    &kueue::KUEUE,
    &kai::KAI,
    &native::NATIVE,
];

/// One scheduler's wire format.
#[derive(Debug)]
pub struct GangScheduler {
    /// Value of `scheduler.type`.
    pub kind: &'static str,
    /// `schedulerName` unless the policy names another; `None` leaves the pod's.
    pub default_name: Option<&'static str>,
    /// Shapes that can start, the default first.
    pub shapes: &'static [Shape],
    /// Where a pod names its gang.
    pub group_key: GroupKeyPlace,
    /// Where a pod names its queue.
    pub queue_key: Option<(MarkPlace, &'static str)>,
    /// Where else its scheduler looks for the queue.
    pub more_queue_keys: &'static [(MarkPlace, &'static str)],
    /// Whether a queue has to be given.
    pub queue_required: bool,
    /// What else we may write on a pod.
    pub more_keys: &'static [(MarkPlace, &'static str)],
    /// Beside the group key, what makes a pod a member of a gang, or says how large that is. A pod that carries one of them
    /// with another value than ours is in a gang of its owner's.
    pub gang_keys: &'static [(MarkPlace, &'static str)],
    /// Whether an executor of another resource profile may carry the gang key although the gang does not count it.
    pub extra_member_harmless: bool,
    /// How the names begin of groups that the scheduler makes by itself and writes onto pods; a uid follows.
    pub auto_group_prefix: Option<&'static str>,
    /// Accounts of its controllers, with * and ?, where its own installation puts them.
    pub accounts: &'static [&'static str],
    /// Whether it groups a pod by its topmost owner, so that an owner may change the group.
    pub groups_by_top_owner: bool,
    /// Whether an owner without a gang key would put an executor into its driver's group.
    pub groups_by_owner: bool,
    /// PodGroup APIs, the preferred first; empty when the scheduler has none or makes its own.
    pub apis: &'static [GroupApi],
    /// What else an executor gets.
    pub executor: fn(&Ask<'_>, &mut Marks),
    /// What else a driver gets.
    pub driver: fn(&Ask<'_>, &mut Marks),
    /// A PodGroup's `spec`.
    pub spec: fn(&GroupSpec, &GroupApi) -> Value,
}

/// What a gang consists of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// No gang: each pod for itself.
    Pods,
    /// The executors wait for each other; the driver is outside.
    Executors,
    /// One group with the driver, minMember 1 and room for all: a gate at the queue, not all-or-nothing.
    App,
}

impl Shape {
    /// All shapes.
    pub const ALL: [Shape; 3] = [Shape::Pods, Shape::Executors, Shape::App];

    /// Value of `gang.shape`.
    pub fn as_str(self) -> &'static str {
        match self {
            Shape::Pods => "pods",
            Shape::Executors => "executors",
            Shape::App => "app",
        }
    }
}

/// How a pod says that it belongs to a gang, where a scheduler knows two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Membership {
    /// By naming a PodGroup.
    #[default]
    PodGroup,
    /// By annotations that carry the numbers too.
    Annotations,
}

/// Where a pod names its gang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupKeyPlace {
    /// Nowhere.
    None,
    /// In a label or an annotation.
    Mark(MarkPlace, &'static str),
    /// In `spec.schedulingGroup.podGroupName`.
    SchedulingGroup,
}

impl GroupKeyPlace {
    /// The gang that a pod under review names.
    pub fn of_pod<'p>(&self, pod: &'p Pod<'_>) -> Option<&'p str> {
        let value = match self {
            GroupKeyPlace::None => None,
            GroupKeyPlace::Mark(place, key) => place.value(pod, key),
            GroupKeyPlace::SchedulingGroup => pod.spec.scheduling_group.as_deref(),
        };
        value.filter(|name| !name.is_empty())
    }

    /// The gang that a pod of the snapshot names.
    pub fn of_seat<'s>(&self, seat: &'s Seat) -> Option<&'s str> {
        let value = match self {
            GroupKeyPlace::None => None,
            GroupKeyPlace::Mark(place, key) => seat.mark(*place, key),
            GroupKeyPlace::SchedulingGroup => seat.scheduling_group.as_deref(),
        };
        value.filter(|name| !name.is_empty())
    }
}

/// What is asked of a scheduler's row for one pod.
#[derive(Debug)]
pub struct Ask<'a> {
    /// What the gang consists of; [`Shape::Pods`] when gangs are off.
    pub shape: Shape,
    /// How members say so.
    pub membership: Membership,
    /// The gang's name.
    pub group: &'a str,
    /// How many, and how large; `None` when unknown.
    pub numbers: Option<&'a Numbers>,
    /// Whether the gang counts this pod: an executor of the default resource profile.
    pub counted: bool,
    /// Whether the driver is scheduled by the same scheduler, in the same application.
    pub with_driver: bool,
    /// What the driver requests, when the pod is the driver.
    pub driver_requests: Option<&'a ResourceList>,
}

/// Labels and annotations for one pod, and what was missing.
#[derive(Debug, Default)]
pub struct Marks {
    /// Key and value by place.
    pub set: Vec<(MarkPlace, &'static str, String)>,
    /// Whether the gang key itself has to be left out.
    pub no_group_key: bool,
    /// A number was needed and is not known.
    pub size_unknown: bool,
    /// A fixed number was needed and the application's changes.
    pub not_fixed: bool,
}

impl Marks {
    fn label(&mut self, key: &'static str, value: impl Into<String>) {
        self.set.push((MarkPlace::Label, key, value.into()));
    }

    fn annotation(&mut self, key: &'static str, value: impl Into<String>) {
        self.set.push((MarkPlace::Annotation, key, value.into()));
    }
}

impl GangScheduler {
    /// What to say of the installed version of this scheduler where its webhook refuses pods that come before their PodGroup.
    pub fn refuses_early_pods(&self, refusing: Option<&str>) -> Option<String> {
        let version = refusing.filter(|_| self.kind == volcano::VOLCANO.kind)?;
        Some(format!("Volcano {version} refuses executors whose PodGroup does not exist yet, so none can come: {CURE}"))
    }

    /// The row of a type.
    pub fn of_kind(kind: &str) -> Option<&'static GangScheduler> {
        TABLE.iter().copied().find(|row| row.kind == kind)
    }

    /// The default shape.
    pub fn default_shape(&self) -> Shape {
        self.shapes.first().copied().unwrap_or(Shape::Pods)
    }

    /// Every label and annotation that this scheduler reads from a pod.
    fn keys(&self) -> impl Iterator<Item = (MarkPlace, &'static str)> {
        self.own_keys().chain(self.more_queue_keys.iter().copied())
    }

    /// Every label and annotation that we may write for this scheduler.
    fn own_keys(&self) -> impl Iterator<Item = (MarkPlace, &'static str)> {
        let group = match self.group_key {
            GroupKeyPlace::Mark(place, key) => Some((place, key)),
            GroupKeyPlace::None | GroupKeyPlace::SchedulingGroup => None,
        };
        group.into_iter().chain(self.queue_key).chain(self.more_keys.iter().copied())
    }

    /// Everywhere a queue may be named to this scheduler.
    pub fn queue_keys(&self) -> impl Iterator<Item = (MarkPlace, &'static str)> {
        self.queue_key.into_iter().chain(self.more_queue_keys.iter().copied())
    }

    /// Whether a queue reaches this scheduler from a gang of this shape: by a key on the pods, or in their PodGroup.
    pub fn takes_queue(&self, shape: Shape) -> bool {
        let probe = GroupSpec {
            name: "group".into(),
            min_member: 1,
            min_resources: ResourceList::default(),
            queue: Some("queue".into()),
            priority_class: None,
        };
        let in_group = |api: &GroupApi| (self.spec)(&probe, api).get("queue").is_some();
        self.queue_key.is_some() || (shape != Shape::Pods && self.apis.iter().any(in_group))
    }

    /// Whether this is one of the keys that the scheduler reads.
    pub fn reads(&self, place: MarkPlace, key: &str) -> bool {
        self.keys().any(|(p, k)| p == place && k == key)
    }
}

/// The keys of all schedulers.
pub fn keys() -> impl Iterator<Item = (MarkPlace, &'static str)> {
    TABLE.iter().flat_map(|row| row.keys())
}

/// The keys that we may write for any scheduler: what the snapshot keeps of a pod, and what a signature covers.
pub fn seat_keys() -> &'static SeatKeys {
    static KEYS: LazyLock<SeatKeys> = LazyLock::new(|| {
        let keys = TABLE.iter().flat_map(|row| {
            row.own_keys().map(|(place, key)| {
                let is_group = row.group_key == GroupKeyPlace::Mark(place, key);
                (place, key, row.auto_group_prefix.filter(|_| is_group))
            })
        });
        // Of two schedulers that share a key the one counts that writes it by itself.
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by_key(|(place, key, prefix)| (*place, *key, prefix.is_none()));
        keys.dedup_by_key(|(place, key, _)| (*place, *key));
        SeatKeys::new(keys)
    });
    &KEYS
}

/// Whether a value may stand in a label: at most 63 characters, alphanumeric at both ends, `-_.` between; or empty.
pub fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    value.is_empty()
        || (value.len() <= 63
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b)))
}

/// For rows that add nothing.
fn nothing(_: &Ask<'_>, _: &mut Marks) {}

/// For rows without a group object.
fn no_spec(_: &GroupSpec, _: &GroupApi) -> Value {
    Value::Null
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sound() {
        let mut kinds = std::collections::BTreeSet::new();
        for row in TABLE {
            assert!(kinds.insert(row.kind), "{} twice", row.kind);
            assert!(!row.shapes.is_empty(), "{}", row.kind);
            let gang = row.shapes.iter().any(|shape| *shape != Shape::Pods);
            assert_eq!(gang, row.group_key != GroupKeyPlace::None || row.kind == "yunikorn", "{}", row.kind);
            for (_, key) in row.keys() {
                let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
                assert!(name.len() <= 63 && prefix.len() <= 253, "{key}");
            }
            for api in row.apis {
                let spec = (row.spec)(
                    &GroupSpec {
                        name: "g".into(),
                        min_member: 3,
                        min_resources: Default::default(),
                        queue: None,
                        priority_class: None,
                    },
                    api,
                );
                assert!(spec.is_object(), "{}: {spec}", row.kind);
            }
        }
        assert!(std::ptr::eq(GangScheduler::of_kind("volcano").unwrap(), &volcano::VOLCANO));
        assert!(GangScheduler::of_kind("Volcano").is_none());
    }

    #[test]
    fn queues_reach_schedulers_by_pod_or_by_group() {
        let with = |shape| TABLE.iter().filter(move |row| row.takes_queue(shape)).map(|row| row.kind);
        let executors: Vec<&str> = with(Shape::Executors).collect();
        assert_eq!(executors, ["kube-batch", "volcano", "yunikorn", "koordinator", "kueue", "kai"]);
        assert!(!with(Shape::Pods).any(|kind| kind == "kube-batch"), "without a PodGroup nothing carries it");
    }

    #[test]
    fn label_values() {
        for good in ["", "a", "root.team-a", "A_1", &"x".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-a", "a.", "a/b", "a b", "é", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
