//! What a signature covers of a pod: said once for the pod under review that is signed, and once for the pod as it is kept
//! that is verified. Both must say the same, field by field.

use std::sync::Arc;

use super::facts::{DriverPod, Executor, MAX_MARK, MarkPlace, Seat, SeatKeys};
use crate::signature::{Key, Signature, Signer};
use crate::spark::ids::AppKey;
use crate::spark::labels;
use crate::spark::pod::Pod;

/// Executors of other profiles are placed otherwise, and must not pass for those of the default one.
fn profile(is_default: bool) -> &'static str {
    if is_default { "default" } else { "other" }
}

fn cover_mark(signer: &mut Signer<'_>, place: MarkPlace, key: &str, value: &str) {
    signer.optional((place == MarkPlace::Label).then_some(key));
    signer.optional((place == MarkPlace::Annotation).then_some(key));
    signer.field(value);
}

/// Whether an executor's signature is ours.
pub(super) fn proves_executor(key: &Key, app: &AppKey, executor: &Executor) -> bool {
    let Some(signature) = &executor.signature else { return false };
    let template = &executor.template;
    let mut signer = Signer::new(key, app.namespace(), app.selector(), signature.creator());
    signer.field(labels::ROLE_EXECUTOR);
    signer.field(executor.signed_name.as_deref().unwrap_or(&executor.name));
    signer.field(profile(template.default_profile));
    signer.optional(template.note.as_deref());
    template.seat.cover(&mut signer);
    signature.verifies(&signer.sign())
}

/// Whether a driver's signature is ours.
pub(super) fn proves_driver(key: &Key, app: &AppKey, driver: &DriverPod) -> bool {
    let Some(signature) = &driver.signature else { return false };
    let name = driver.signed_name.as_deref().unwrap_or(&driver.name);
    signature.verifies(&sign_driver(Signer::new(key, app.namespace(), app.selector(), signature.creator()), name))
}

/// The signature of a driver. It covers no placement: schedulers write their own marks onto drivers.
pub fn sign_driver(mut signer: Signer<'_>, name: &str) -> Signature {
    signer.field(labels::ROLE_DRIVER);
    signer.field(name);
    signer.sign()
}

/// The name that a signature covers, where that is not the pod's: what it was made from (`generateName`), for it may have had
/// no name yet when it was signed. What the pod's name does not begin with was not what it was made from.
pub fn signed_name<'p>(pod: &'p Pod<'_>, name: Option<&str>) -> Option<&'p str> {
    let base = pod.metadata.generate_name.as_deref()?;
    // `k8s.io/apiserver/pkg/storage/names`: room for five random characters.
    let base = base.get(..base.floor_char_boundary(MAX_BASE)).unwrap_or_default();
    (!base.is_empty() && name.is_none_or(|name| name.starts_with(base))).then_some(base)
}

/// Longest base of a generated name.
const MAX_BASE: usize = 58;

/// The same for a pod as it is kept.
pub(super) fn kept_signed_name(pod: &Pod<'_>) -> Option<Arc<str>> {
    signed_name(pod, pod.metadata.name.as_deref()).map(Arc::from)
}

/// What an executor under review will say of its placement once it is patched.
#[derive(Debug)]
pub struct Placed<'p> {
    /// Its name, or what there is of it (`generateName`).
    pub name: &'p str,
    /// Whether it runs the default resource profile.
    pub default_profile: bool,
    /// Our note of weaker evidence.
    pub note: Option<&'p str>,
    /// Our mark.
    pub by: Option<&'p str>,
    /// `spec.schedulerName`.
    pub scheduler_name: &'p str,
    /// `spec.priorityClassName`.
    pub priority_class: Option<&'p str>,
    /// `spec.schedulingGroup.podGroupName`.
    pub scheduling_group: Option<&'p str>,
}

impl Seat {
    /// Covers the placement with a signature: [`SeatKeys::sign_executor`] does the same with a pod under review.
    fn cover(&self, signer: &mut Signer<'_>) {
        signer.optional(self.by.as_deref());
        signer.field(&self.scheduler_name);
        signer.optional(self.priority_class.as_deref());
        signer.optional(self.scheduling_group.as_deref());
        for mark in &self.marks {
            cover_mark(signer, mark.place, mark.key, &mark.value);
        }
    }
}

impl SeatKeys {
    /// The signature of an executor as it will be: `placed`, and what `mark` says of each key that schedulers read.
    pub fn sign_executor<'p>(
        &self,
        mut signer: Signer<'_>,
        pod: &Pod<'_>,
        placed: &Placed<'p>,
        mark: impl Fn(MarkPlace, &'static str) -> Option<&'p str>,
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
            let value = mark(*place, key).filter(|value| value.len() <= MAX_MARK);
            if let Some(value) = value.filter(|value| !is_automatic(pod, *automatic, value)) {
                cover_mark(&mut signer, *place, key, value);
            }
        }
        signer.sign()
    }
}

/// Whether a value is one that a scheduler wrote by itself, after the pod was made: it is no wish of anybody, and no part of
/// what was signed.
pub(super) fn is_automatic(pod: &Pod<'_>, prefix: Option<&str>, value: &str) -> bool {
    let Some(uid) = prefix.and_then(|prefix| value.strip_prefix(prefix)) else { return false };
    let owner = pod.controller().is_some_and(|owner| *owner.uid == *uid);
    owner || pod.metadata.uid.as_deref() == Some(uid)
}
