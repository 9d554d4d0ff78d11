//! One policy of the file: its keys are checked, alone and with each other, and become a policy of the core.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_core::Selector;
use serde_saphyr::Location;

use super::file::{MinMemberFile, Operator, PolicyEntry, SelectorFile};
use super::label_text::texts;
use super::located::Located;
use super::wrong::Errors;
use usher_core::annotations::MetadataField;
use usher_core::gang::{GangScheduler, Membership, Shape};
use usher_core::policy::{self, Gang, Match, Pattern, Policy, SchedulerChoice, default_overrides};
use usher_spark::text::{is_dns_byte, is_dns_subdomain, is_label_key, is_label_value};

/// Keys whose meaning depends on the scheduler's type.
const BY_TYPE: [&str; 4] = ["scheduler.queueKey", "queue", "gang.shape", "gang.membership"];

/// Validates one policy, including errors that involve several keys.
pub(super) fn check(errors: &mut Errors<'_>, at: &str, entry: &PolicyEntry) -> Policy {
    let scheduler = entry.scheduler.kind.unwrap_or_default().0;
    let mut check = Check { errors, at, entry, scheduler };
    check.names();
    let queue_key = check.queue_key();
    check.node_pool();
    check.queues(queue_key);
    let gang = Gang {
        shape: check.shape(),
        membership: check.membership(),
        min_member: match entry.gang.min_member {
            MinMemberFile::Auto => None,
            MinMemberFile::Count(count) => Some(count),
        },
        name: entry.gang.name.0.clone(),
        read_spark_conf: entry.gang.read_spark_conf,
    };
    let matches = Match {
        namespaces: entry.matches.namespaces.iter().map(|text| Pattern::new(text)).collect(),
        namespace_selector: check.selector(entry.matches.namespace_selector.as_ref(), "match.namespaceSelector"),
        pod_selector: check.selector(entry.matches.pod_selector.as_ref(), "match.podSelector").map(Into::into),
    };
    let named = |text: &Option<Located<String>>| text.as_ref().map(|text| text.as_str().into());
    Policy {
        name: entry.name.as_str().into(),
        matches,
        scheduler: SchedulerChoice {
            gang_scheduler: scheduler,
            name: named(&entry.scheduler.name).or(scheduler.default_name.map(Into::into)),
            replace: entry.scheduler.replace,
            queue_key,
        },
        queue: named(&entry.queue),
        driver_class: named(&entry.priority_class.driver),
        executor_class: named(&entry.priority_class.executor),
        gang,
        overrides: entry.overrides.as_ref().map_or_else(default_overrides, |list| list.iter().copied().collect()),
        strict: entry.strict,
        validate: entry.validate,
        queues: entry.queues.as_ref().map(|queues| queues.iter().map(|text| Pattern::new(text)).collect()),
        node_pool: texts(&entry.node_pool),
    }
}

/// The check of one policy of the file.
struct Check<'c, 't> {
    errors: &'c mut Errors<'t>,
    /// `policies[N]`.
    at: &'c str,
    entry: &'c PolicyEntry,
    scheduler: &'static GangScheduler,
}

impl Check<'_, '_> {
    fn refuse(&mut self, location: Location, key: &str, message: String) {
        let scheduler = &self.entry.scheduler;
        // With a name of a scheduler and no type, the type is missing: what depends on it is not known.
        let has_type = scheduler.kind.is_some() || scheduler.name.is_none();
        if has_type || !BY_TYPE.contains(&key) {
            self.errors.add(location, &format!("{}.{key}", self.at), message);
        }
    }

    /// The policy's own name, and the names of schedulers and priority classes.
    fn names(&mut self) {
        let PolicyEntry { name, scheduler, priority_class, .. } = self.entry;
        if **name == policy::CATCH_ALL {
            let why =
                format!("{:?} is the name of the catch-all policy that comes last: expected another name", **name);
            self.refuse(name.at(), "name", why);
        }
        if name.is_empty() || name.len() > 40 || !name.bytes().all(is_dns_byte) {
            self.refuse(name.at(), "name", format!("{:?}: expected 1 to 40 characters of a-z, 0-9 and -", **name));
        }
        if let (Some(name), None) = (&scheduler.name, &scheduler.kind) {
            let why = "no effect without scheduler.type: expected both".to_owned();
            self.refuse(name.at(), "scheduler.name", why);
        }
        let names = [
            ("scheduler.name", &scheduler.name),
            ("priorityClass.driver", &priority_class.driver),
            ("priorityClass.executor", &priority_class.executor),
        ];
        for (key, name) in names.into_iter().filter_map(|(key, name)| Some((key, name.as_ref()?))) {
            if let Err(why) = subdomain(name) {
                self.refuse(name.at(), key, why);
            }
        }
    }

    /// The key by which pods name their queue.
    fn queue_key(&mut self) -> Option<(MetadataField, &'static str)> {
        let scheduler = self.scheduler;
        let Some(wanted) = &self.entry.scheduler.queue_key else { return scheduler.queue_key };
        let key = scheduler.own_queue_keys().find(|(_, key)| *key == wanted.as_str());
        if key.is_none() {
            let mut known: Vec<&str> = scheduler.own_queue_keys().map(|(_, key)| key).collect();
            known.dedup();
            let why = if known.is_empty() {
                format!("{} reads no queue from pods: expected no key", scheduler.kind)
            } else {
                format!("{:?}: {} does not read it: expected {}", **wanted, scheduler.kind, known.join(" or "))
            };
            self.refuse(wanted.at(), "scheduler.queueKey", why);
        }
        key
    }

    fn node_pool(&mut self) {
        for (key, value) in &texts(&self.entry.node_pool) {
            if !is_label_key(key) || !is_label_value(value) {
                let why = format!("{key}={value} is not a valid label: expected a node label such as pool: spark");
                self.refuse(self.entry.name.at(), "nodePool", why);
            }
        }
    }

    /// The queue that pods get by this key, and those that they may name.
    fn queues(&mut self, queue_key: Option<(MetadataField, &'static str)>) {
        let PolicyEntry { name, queue, queues, .. } = self.entry;
        if queues.as_ref().is_some_and(|queues| queues.iter().any(String::is_empty)) {
            let message = "empty name: expected a queue, in which * and ? are wildcards".to_owned();
            self.refuse(name.at(), "queues", message);
        }
        let kind = self.scheduler.kind;
        let is_label = matches!(queue_key, Some((MetadataField::Label, _)));
        match queue {
            Some(queue) if is_label && !is_label_value(queue) => {
                let why = format!(
                    "{:?}: {kind} reads the queue from a label: expected at most 63 characters of a-z, A-Z, 0-9, -, _ and .",
                    **queue
                );
                self.refuse(queue.at(), "queue", why);
            }
            None if self.scheduler.queue_required => {
                let message = format!("missing: expected a queue, which {kind} requires on every pod");
                self.refuse(name.at(), "queue", message);
            }
            _ => {}
        }
    }

    fn shape(&mut self) -> Shape {
        let gang = &self.entry.gang;
        if !gang.enabled {
            return Shape::Pods;
        }
        let Some(wanted) = &gang.shape else { return self.scheduler.default_shape() };
        let GangScheduler { kind, shapes, .. } = self.scheduler;
        if **wanted != Shape::Pods && !shapes.contains(wanted) {
            let can: Vec<&str> = shapes.iter().map(|shape| shape.as_str()).collect();
            let why = format!(
                "{:?}: a gang of this shape never starts on {kind}: expected {}",
                wanted.as_str(),
                can.join(" or ")
            );
            self.refuse(wanted.at(), "gang.shape", why);
        }
        **wanted
    }

    fn membership(&mut self) -> Membership {
        let Some(wanted) = &self.entry.gang.membership else { return Membership::PodGroup };
        let kind = self.scheduler.kind;
        if **wanted == Membership::Annotations && kind != "koordinator" {
            let message = format!("annotations: only koordinator supports them, not {kind}: expected podGroup");
            self.refuse(wanted.at(), "gang.membership", message);
        }
        **wanted
    }

    fn selector(&mut self, wanted: Option<&Located<SelectorFile>>, key: &str) -> Option<Selector> {
        let wanted = wanted?;
        selector(wanted).map_err(|why| self.refuse(wanted.at(), key, why)).ok()
    }
}

/// Names of schedulers and priority classes must be DNS subdomains, or the API server rejects the pod.
fn subdomain(name: &str) -> Result<(), String> {
    if is_dns_subdomain(name) {
        Ok(())
    } else {
        Err(format!(
            "{name:?}: expected a name of a-z, 0-9, - and ., each part between dots with a letter or digit at both ends"
        ))
    }
}

fn selector(file: &SelectorFile) -> Result<Selector, String> {
    for requirement in &file.match_expressions {
        let wants_values = matches!(requirement.operator, Operator::In | Operator::NotIn);
        if wants_values == requirement.values.is_empty() {
            let expected = if wants_values { "expected values" } else { "expected no values" };
            return Err(format!("{} {:?}: {expected}", requirement.key.0, requirement.operator));
        }
    }
    let keys = file.match_labels.keys().chain(file.match_expressions.iter().map(|requirement| &requirement.key));
    if let Some(wrong) = keys.map(|key| &key.0).find(|key| !is_label_key(key)) {
        return Err(format!("{wrong:?} is not the key of a label: expected a name such as team or example.com/team"));
    }
    let values = file.match_expressions.iter().flat_map(|requirement| &requirement.values);
    if let Some(wrong) =
        file.match_labels.values().chain(values).map(|value| &value.0).find(|value| !is_label_value(value))
    {
        return Err(format!(
            "{wrong:?} is not the value of a label: expected at most 63 characters of a-z, A-Z, 0-9, -, _ and ., with a letter or digit at both ends"
        ));
    }
    let expressions = file.match_expressions.iter().map(|requirement| LabelSelectorRequirement {
        key: requirement.key.0.clone(),
        operator: format!("{:?}", requirement.operator),
        values: (!requirement.values.is_empty())
            .then(|| requirement.values.iter().map(|value| value.0.clone()).collect()),
    });
    let selector =
        LabelSelector { match_labels: Some(texts(&file.match_labels)), match_expressions: Some(expressions.collect()) };
    selector.try_into().map_err(|error: kube_core::ParseExpressionError| error.to_string())
}
