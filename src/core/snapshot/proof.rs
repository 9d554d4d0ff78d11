//! The fields of a pod that a signature covers: listed once for the pod under review, which is signed, and once for the stored
//! pod, which is verified. Both lists must agree field by field.

use super::facts::{DriverPod, Executor, MAX_ENTRY, SchedulingFields, SchedulingKeys};
use super::generated::is_automatic;
use crate::annotations::MetadataField;
use crate::signature::{Key, Signature, Signer};
use usher_spark::ids::AppKey;
use usher_spark::labels;
use usher_spark::pod::Pod;

/// Executors of other profiles have other scheduling fields, and must not pass for executors of the default one.
fn profile(is_default: bool) -> &'static str {
    if is_default { "default" } else { "other" }
}

fn cover_entry(signer: &mut Signer<'_>, place: MetadataField, key: &str, value: &str) {
    signer.optional((place == MetadataField::Label).then_some(key));
    signer.optional((place == MetadataField::Annotation).then_some(key));
    signer.field(value);
}

/// Whether an executor's signature is ours.
pub(super) fn proves_executor(key: &Key, app: &AppKey, executor: &Executor) -> bool {
    let template = &executor.template;
    let (Some(signature), Some(creator)) = (&executor.signature, &template.creator) else { return false };
    let mut signer = Signer::new(key, app.namespace(), app.selector(), creator);
    signer.field(labels::ROLE_EXECUTOR);
    signer.field(executor.signed_name.as_deref().unwrap_or(&executor.name));
    signer.field(profile(template.default_profile));
    signer.optional(template.note.as_deref());
    template.scheduling.cover(&mut signer);
    signature.verifies(&signer.sign())
}

/// Whether a driver's signature is ours.
pub(super) fn proves_driver(key: &Key, app: &AppKey, driver: &DriverPod) -> bool {
    let (Some(signature), Some(creator)) = (&driver.signature, &driver.stated_creator) else { return false };
    let name = driver.signed_name.as_deref().unwrap_or(&driver.name);
    signature.verifies(&sign_driver(Signer::new(key, app.namespace(), app.selector(), creator), name))
}

/// The signature of a driver. It covers no scheduling fields, because schedulers write their own values onto drivers.
pub fn sign_driver(mut signer: Signer<'_>, name: &str) -> Signature {
    signer.field(labels::ROLE_DRIVER);
    signer.field(name);
    signer.sign()
}

/// The scheduling fields that an executor under review has once it is patched.
#[derive(Debug)]
pub struct SignedExecutor<'p> {
    /// Its name, or its `generateName`.
    pub name: &'p str,
    /// Whether it runs the default resource profile.
    pub default_profile: bool,
    /// Our annotation with weaker evidence of the driver.
    pub note: Option<&'p str>,
    /// Our annotation `policy/scheduler-type`.
    pub by: Option<&'p str>,
    /// `spec.schedulerName`.
    pub scheduler_name: &'p str,
    /// `spec.priorityClassName`.
    pub priority_class: Option<&'p str>,
    /// `spec.schedulingGroup.podGroupName`.
    pub scheduling_group: Option<&'p str>,
    /// The uid of the controller that it will have, after which a scheduler may name its group: such a name is not signed.
    pub owner: Option<&'p str>,
}

impl SchedulingFields {
    /// Covers the scheduling fields with a signature: [`SchedulingKeys::sign_executor`] does the same for a pod under review.
    fn cover(&self, signer: &mut Signer<'_>) {
        signer.optional(self.by.as_deref());
        signer.field(&self.scheduler_name);
        signer.optional(self.priority_class.as_deref());
        signer.optional(self.scheduling_group.as_deref());
        for entry in &self.entries {
            cover_entry(signer, entry.place, entry.key, &entry.value);
        }
    }
}

impl SchedulingKeys {
    /// The signature of an executor as it will be: `placed`, and the value that `value_of` returns for each key that schedulers
    /// read.
    pub fn sign_executor<'p>(
        &self,
        mut signer: Signer<'_>,
        pod: &Pod<'_>,
        placed: &SignedExecutor<'p>,
        value_of: impl Fn(MetadataField, &'static str) -> Option<&'p str>,
    ) -> Signature {
        signer.field(labels::ROLE_EXECUTOR);
        signer.field(placed.name);
        signer.field(profile(placed.default_profile));
        signer.optional(placed.note);
        signer.optional(placed.by);
        signer.field(placed.scheduler_name);
        signer.optional(placed.priority_class);
        signer.optional(placed.scheduling_group);
        for (place, key, automatic) in &self.0 {
            let value = value_of(*place, key).filter(|value| value.len() <= MAX_ENTRY);
            if let Some(value) = value.filter(|value| !is_automatic(pod, placed.owner, *automatic, value)) {
                cover_entry(&mut signer, *place, key, value);
            }
        }
        signer.sign()
    }
}
