//! Gangs: each scheduler's wire format, a gang's size, and its name.
//!
//! Every scheduler is one file with one row, and [`TABLE`] lists the rows. Admission, plans and signatures know a scheduler's
//! keys by its row only. `docs/architecture.md#where-things-go` lists what a new scheduler needs beside its row.
//!
//! ## Why executors only
//! All PodGroup schedulers but YuniKorn place no pod until `minMember` pods exist. The driver creates the executors, so a
//! group of driver + N with minMember N+1 never starts (`docs/gang.md#executors-only`).

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
mod scheduler;
pub mod size;
mod volcano;
mod yunikorn;

use std::sync::LazyLock;

use early_pods::FIX;
pub use group::GroupSpec;
pub use name::NameTemplate;
pub use none::NONE;
pub use scheduler::{GangScheduler, GroupKeyField, MemberMetadata, MemberRequest, Membership, QueueObject, Shape};
pub use size::Numbers;

use crate::annotations::MetadataField;
use crate::snapshot::SchedulingKeys;

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

impl GangScheduler {
    /// The message if the webhook of the installed version of this scheduler denies pods that are created before their PodGroup.
    pub fn refuses_early_pods(&self, refusing: Option<&str>) -> Option<String> {
        let version = refusing.filter(|_| self.kind == volcano::VOLCANO.kind)?;
        Some(format!(
            "Volcano {version} denies pods whose PodGroup does not exist yet, so the driver cannot create executors: {FIX}"
        ))
    }

    /// The row of a scheduler type.
    pub fn of_kind(kind: &str) -> Option<&'static GangScheduler> {
        TABLE.iter().copied().find(|scheduler| scheduler.kind == kind)
    }
}

/// The keys of all schedulers.
pub fn keys() -> impl Iterator<Item = (MetadataField, &'static str)> {
    TABLE.iter().flat_map(|scheduler| scheduler.keys())
}

/// The keys that we may write for any scheduler: the snapshot keeps them of a pod, and a signature covers them.
pub fn scheduling_keys() -> &'static SchedulingKeys {
    static KEYS: LazyLock<SchedulingKeys> = LazyLock::new(|| {
        let keys = TABLE.iter().flat_map(|scheduler| {
            scheduler.written_keys().map(|(place, key)| {
                let is_group = scheduler.group_key == GroupKeyField::Metadata(place, key);
                (place, key, scheduler.auto_group_prefix.filter(|_| is_group))
            })
        });
        // If two schedulers share a key, the one that writes it itself takes precedence.
        let mut keys: Vec<_> = keys.collect();
        keys.sort_unstable_by_key(|(place, key, prefix)| (*place, *key, prefix.is_none()));
        keys.dedup_by_key(|(place, key, _)| (*place, *key));
        SchedulingKeys::new(keys)
    });
    &KEYS
}

/// Whether a text is a valid label value: at most 63 characters, alphanumeric at both ends, `-_.` between; or empty.
pub fn is_label_value(value: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = value.as_bytes();
    value.is_empty()
        || (value.len() <= 63
            && edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b)))
}

#[cfg(test)]
mod tests {
    use super::size::SizeFacts;
    use super::*;
    use crate::spark::resources::ResourceList;

    #[test]
    fn scheduler_rows_are_unique_and_consistent() {
        let mut kinds = std::collections::BTreeSet::new();
        for scheduler in TABLE {
            assert!(kinds.insert(scheduler.kind), "{} is not unique", scheduler.kind);
            assert!(!scheduler.shapes.is_empty(), "{}", scheduler.kind);
            let gang = scheduler.shapes.iter().any(|shape| *shape != Shape::Pods);
            assert_eq!(
                gang,
                scheduler.group_key != GroupKeyField::None || scheduler.kind == "yunikorn",
                "{}: a gang needs a key by which pods name it, and the key a shape",
                scheduler.kind
            );
            for (_, key) in scheduler.keys() {
                let (prefix, name) = key.rsplit_once('/').unwrap_or(("", key));
                assert!(name.len() <= 63 && prefix.len() <= 253, "{key}");
            }
            for api in scheduler.apis {
                let spec = (scheduler.spec)(
                    &GroupSpec {
                        name: "g".into(),
                        min_member: 3,
                        min_resources: Default::default(),
                        queue: None,
                        priority_class: None,
                    },
                    api,
                );
                assert!(spec.is_object(), "{}: {spec}", scheduler.kind);
            }
        }
        assert!(std::ptr::eq(GangScheduler::of_kind("volcano").unwrap(), &volcano::VOLCANO));
        assert!(GangScheduler::of_kind("Volcano").is_none());
    }

    /// A key that a row sets and does not list would be neither signed, kept nor protected.
    #[test]
    fn rows_set_listed_keys_only() {
        let requests = ResourceList::default();
        let mut executor = ResourceList::default();
        executor.set("cpu", "1".parse().unwrap());
        let facts = SizeFacts { requested: Some(3), ..SizeFacts::default() };
        let numbers = facts.numbers(Some(executor));
        assert!(numbers.is_some());
        let mut count = 0;
        for (scheduler, shape) in TABLE.iter().flat_map(|row| Shape::ALL.map(|shape| (row, shape))) {
            for membership in [Membership::PodGroup, Membership::Annotations] {
                for (numbers, counted) in [(numbers.as_ref(), true), (numbers.as_ref(), false), (None, true)] {
                    let of = |driver_requests| MemberRequest {
                        shape,
                        membership,
                        group: "g",
                        numbers,
                        counted,
                        with_driver: true,
                        driver_requests,
                    };
                    let mut metadata = MemberMetadata::default();
                    (scheduler.executor)(&of(None), &mut metadata);
                    (scheduler.driver)(&of(Some(&requests)), &mut metadata);
                    for (field, key, _) in metadata.set {
                        let is_listed = scheduler.written_keys().any(|listed| listed == (field, key));
                        assert!(is_listed, "{}: {key} is not in more_keys", scheduler.kind);
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn takes_queue_depends_on_scheduler_and_shape() {
        let with =
            |shape| TABLE.iter().filter(move |scheduler| scheduler.takes_queue(shape)).map(|scheduler| scheduler.kind);
        let executors: Vec<&str> = with(Shape::Executors).collect();
        assert_eq!(executors, ["kube-batch", "volcano", "yunikorn", "koordinator", "kueue", "kai"]);
        assert!(
            !with(Shape::Pods).any(|kind| kind == "kube-batch"),
            "kube-batch reads the queue from the PodGroup only"
        );
    }

    #[test]
    fn label_value_is_validated_as_in_kubernetes() {
        for good in ["", "a", "root.team-a", "A_1", &"x".repeat(63)] {
            assert!(is_label_value(good), "{good}");
        }
        for bad in ["-a", "a.", "a/b", "a b", "é", &"x".repeat(64)] {
            assert!(!is_label_value(bad), "{bad}");
        }
    }
}
