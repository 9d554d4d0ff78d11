//! The id by which a pod under review names its application to a scheduler that reads one from it (YuniKorn).

use super::request::Review;
use crate::gang;
use crate::ownership::resolve;
use crate::policy::Policies;
use usher_spark::pod::Pod;
use usher_spark::role::Role;

/// The id of the application that a pod is in: of its namespace, its driver's name and its app selector. A driver without a name, and
/// executors whose driver's name the review does not state, are applications of their requester. `None` for an executor that
/// names no application.
pub(super) fn id(review: &Review<'_>, pod: &Pod<'_>, driver: Option<&str>) -> Option<String> {
    let selector = match pod.role() {
        Role::Driver => pod.app_selector().unwrap_or_default(),
        _ => pod.app_selector().filter(|selector| !selector.is_empty())?,
    };
    match driver {
        Some(driver) => Some(gang::application_id(&review.namespace, driver, selector)),
        None => {
            let owner = pod.controller().map_or("", |owner| &*owner.uid);
            // No pod's name contains a line break.
            let requester = [&review.requester.username, "\n", owner].concat();
            Some(gang::application_id(&review.namespace, &requester, selector))
        }
    }
}

/// The id of a pod, from the review and the policies alone.
pub(super) fn id_of_review(review: &Review<'_>, pod: &Pod<'_>, policies: &Policies) -> Option<String> {
    if pod.role() == Role::Driver {
        return id(review, pod, driver_name(review, pod));
    }
    let driver = resolve::creator(&review.requester, &review.namespace, policies).ok();
    let driver = driver.or_else(|| resolve::from_owner_reference(pod));
    id(review, pod, driver.as_ref().map(|driver| &*driver.name))
}

/// A driver's name. With generateName it has none when it is mutated, but has one when it is validated: that is not used.
pub(super) fn driver_name<'p>(review: &'p Review<'_>, pod: &'p Pod<'_>) -> Option<&'p str> {
    let named = pod.metadata.generate_name.is_none();
    pod.metadata.name.as_deref().or(review.name.as_deref()).filter(|_| named)
}
