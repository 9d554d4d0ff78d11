//! Our annotations: the pod's take precedence over the driver's, the namespace's and the policy, where the policy allows it.

use std::sync::Arc;

use super::{Policy, SchedulerChoice};
use crate::annotations::{Override, Overrides};
use crate::gang::{GangScheduler, Shape};
use crate::reason::Reason;
use usher_spark::resources::ResourceList;

/// The object that has an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// On the pod under review.
    Pod,
    /// On its driver's pod.
    Driver,
    Namespace,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Source::Pod => "the pod",
            Source::Driver => "the driver's pod",
            Source::Namespace => "the namespace",
        }
    }
}

/// The settings for one pod, with annotations applied.
#[derive(Clone, Debug)]
pub struct Effective {
    /// Whether to leave the pod alone.
    pub skip: bool,
    pub scheduler: SchedulerChoice,
    /// The gang's shape, one that the scheduler can start.
    pub shape: Shape,
    pub queue: Option<Arc<str>>,
    /// The requested number of members.
    pub min_member: Option<u32>,
    /// The requests of one executor, as an annotation states them.
    pub executor_resources: Option<ResourceList>,
    /// The annotations that were not applied, and why: a reason and a sentence.
    pub notes: Vec<(Reason, String)>,
}

/// Applies the annotations of a pod, its driver and its namespace. Sources are in order of precedence.
pub fn resolve(policy: &Policy, sources: [(Source, &Overrides); 3]) -> Effective {
    let mut effective = Effective {
        skip: false,
        scheduler: policy.scheduler.clone(),
        shape: policy.gang.shape,
        queue: policy.queue.clone(),
        min_member: policy.gang.min_member,
        executor_resources: None,
        notes: Vec::new(),
    };
    for which in Override::ALL {
        let Some((source, value)) = sources.iter().find_map(|(source, all)| Some((*source, all.get(which)?))) else {
            continue;
        };
        if !policy.overrides.contains(&which) {
            let note = format!(
                "{} on {} is ignored: policy {} does not list {} in overrides",
                which.key(),
                source.as_str(),
                policy.name,
                which.name()
            );
            effective.notes.push((Reason::OverrideNotAllowed, note));
        } else if let Err(expected) = effective.set(which, value, policy) {
            let note = format!("{} on {} is invalid and ignored: expected {expected}", which.key(), source.as_str());
            effective.notes.push((Reason::OverrideInvalid, note));
        }
    }
    effective
}

impl Effective {
    /// Applies one annotation, or returns what was expected.
    fn set(&mut self, which: Override, value: &str, policy: &Policy) -> Result<(), String> {
        match which {
            Override::Skip => match value {
                "true" => self.skip = true,
                "false" | "" => self.skip = false,
                _ => return Err("true or false".into()),
            },
            Override::Scheduler => {
                let Some(scheduler) = GangScheduler::of_kind(value) else {
                    let kinds: Vec<&str> = crate::gang::TABLE.iter().map(|scheduler| scheduler.kind).collect();
                    return Err(format!("one of {}", kinds.join(", ")));
                };
                if scheduler.kind != policy.scheduler.gang_scheduler.kind {
                    self.scheduler =
                        SchedulerChoice { replace: policy.scheduler.replace, ..SchedulerChoice::of(scheduler) };
                    self.shape = if policy.gang.shape == Shape::Pods { Shape::Pods } else { scheduler.default_shape() };
                }
            }
            Override::Queue if value.is_empty() || value.len() > 253 => {
                return Err("the name of a queue, 1 to 253 characters".into());
            }
            Override::Queue => self.queue = Some(value.into()),
            Override::MinMember => match value.parse() {
                Ok(count) if count > 0 => self.min_member = Some(count),
                _ => return Err("a whole number of executors, 1 or more".into()),
            },
            Override::ExecutorResources => match ResourceList::from_json(value) {
                Ok(resources) => self.executor_resources = Some(resources),
                Err(why) => return Err(format!("a JSON object of requests: {why}")),
            },
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotations;

    fn with(pairs: &[(&'static str, &'static str)]) -> Overrides {
        Overrides::read(|key| pairs.iter().find(|(k, _)| *k == key).map(|(_, v)| *v))
    }

    fn policy(overrides: &[Override]) -> Policy {
        let scheduler = GangScheduler::of_kind("volcano").unwrap();
        Policy {
            scheduler: SchedulerChoice::of(scheduler),
            queue: Some("shared".into()),
            overrides: overrides.iter().copied().collect(),
            gang: crate::policy::Gang { shape: Shape::Executors, ..Policy::fallback().gang },
            ..Policy::fallback()
        }
    }

    fn resolve_from(policy: &Policy, pod: &Overrides, driver: &Overrides, namespace: &Overrides) -> Effective {
        resolve(policy, [(Source::Pod, pod), (Source::Driver, driver), (Source::Namespace, namespace)])
    }

    #[test]
    fn override_of_pod_wins_over_driver_namespace_and_policy() {
        let policy = policy(&[Override::Queue]);
        let (none, pod, driver, namespace) = (
            Overrides::default(),
            with(&[(annotations::QUEUE, "p")]),
            with(&[(annotations::QUEUE, "d")]),
            with(&[(annotations::QUEUE, "n")]),
        );
        let queue = |a, b, c| resolve_from(&policy, a, b, c).queue.unwrap();
        assert_eq!(&*queue(&none, &none, &none), "shared");
        assert_eq!(&*queue(&none, &none, &namespace), "n");
        assert_eq!(&*queue(&none, &driver, &namespace), "d");
        assert_eq!(&*queue(&pod, &driver, &namespace), "p");
    }

    #[test]
    fn override_not_allowed_by_policy_is_ignored_with_note() {
        let none = Overrides::default();
        let effective = resolve_from(
            &policy(&[]),
            &with(&[(annotations::QUEUE, "mine"), (annotations::SKIP, "true")]),
            &none,
            &none,
        );
        assert_eq!(effective.queue.as_deref(), Some("shared"));
        assert!(!effective.skip);
        assert_eq!(
            effective.notes.iter().map(|(reason, _)| *reason).collect::<Vec<_>>(),
            [Reason::OverrideNotAllowed; 2]
        );
        assert!(
            effective.notes[1].1.contains("spark-usher.io/queue on the pod is ignored"),
            "{}",
            effective.notes[1].1
        );
    }

    #[test]
    fn every_override_annotation_is_applied() {
        let none = Overrides::default();
        let all = with(&[
            (annotations::SKIP, "true"),
            (annotations::SCHEDULER, "kueue"),
            (annotations::QUEUE, "q"),
            (annotations::MIN_MEMBER, "4"),
            (annotations::EXECUTOR_RESOURCES, r#"{"cpu":"1"}"#),
        ]);
        let effective = resolve_from(&policy(&Override::ALL), &none, &all, &none);
        assert!(effective.skip);
        assert_eq!((effective.scheduler.gang_scheduler.kind, effective.shape), ("kueue", Shape::Pods));
        assert_eq!(effective.min_member, Some(4));
        assert_eq!(effective.executor_resources.unwrap().to_string(), "1 cpu");
        assert!(effective.notes.is_empty());
    }

    #[test]
    fn invalid_override_is_ignored_with_expected_value_in_note() {
        let none = Overrides::default();
        let bad = with(&[
            (annotations::SKIP, "yes"),
            (annotations::SCHEDULER, "slurm"),
            (annotations::QUEUE, ""),
            (annotations::MIN_MEMBER, "0"),
            (annotations::EXECUTOR_RESOURCES, "1 cpu"),
        ]);
        let effective = resolve_from(&policy(&Override::ALL), &bad, &none, &none);
        assert_eq!(effective.notes.len(), 5);
        assert!(
            effective
                .notes
                .iter()
                .all(|(reason, note)| *reason == Reason::OverrideInvalid && note.contains("expected "))
        );
        assert!(effective.notes[1].1.contains("one of none, kube-batch, volcano"), "{}", effective.notes[1].1);
        assert_eq!((effective.scheduler.gang_scheduler.kind, effective.queue.as_deref()), ("volcano", Some("shared")));
    }

    #[test]
    fn override_to_type_of_policy_keeps_scheduler_name() {
        let none = Overrides::default();
        let mut policy = policy(&[Override::Scheduler]);
        policy.scheduler.name = Some("volcano-b".into());
        let effective = resolve_from(&policy, &with(&[(annotations::SCHEDULER, "volcano")]), &none, &none);
        assert_eq!(effective.scheduler.name.as_deref(), Some("volcano-b"));
        let effective = resolve_from(&policy, &with(&[(annotations::SCHEDULER, "yunikorn")]), &none, &none);
        assert_eq!(effective.scheduler.name.as_deref(), Some("yunikorn"));
    }
}
