//! Which driver owns an executor. Each step of the resolution has a name (`docs/decisions.md#who-is-the-driver`).
//!
//! The source is the API server, not the pod: a driver in the cluster creates its executors with its bound service-account token,
//! so the review states which pod that was. Only that evidence sets an owner at admission. A tenant can write labels and
//! addresses, and a wrong uid is fatal: the garbage collector deletes the executor.
//!
//! Other pods' own data decides nothing about an executor, least of all their labels, by which any tenant can claim to be its
//! driver or its sibling. What counts is the review, the creator's own pod, the executor's own claims, and pods for which our
//! signature proves the same creator.

use std::fmt;

use super::workload::{self, OwningPod};
use crate::policy::Policies;
use crate::reason::Reason;
use crate::signature::{Creator, StatedCreator, namespace_of_account};
use crate::snapshot::{DriverPod, Owner, Snapshot, Template};
use usher_spark::pod::Pod;
use usher_spark::text::{is_dns_subdomain, vocabulary};
use usher_spark::wire_text::Text;

vocabulary! {
    /// How a driver was found, the strongest evidence first.
    DriverSource
    /// The authenticated creator of the pod.
    Creator = "creator";
    /// A controller owner that is already on the pod.
    OwnerReference = "owner-reference";
    /// The labelled driver of the same application.
    AppSelector = "app-selector";
    /// `SPARK_DRIVER_URL`: the driver's Service, or its address.
    DriverUrl = "driver-url";
}

impl fmt::Display for DriverSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A driver's pod, and how it was found. It is always in the executor's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundDriver<'a> {
    /// The evidence.
    pub source: DriverSource,
    /// Pod name.
    pub name: Text<'a>,
    /// Pod uid.
    pub uid: Text<'a>,
}

/// The requester: the review's `userInfo`.
#[derive(Clone, Debug, Default)]
pub struct Requester<'a> {
    /// `userInfo.username`.
    pub username: Text<'a>,
    /// `userInfo.groups`, in a review that is to be validated.
    pub groups: Vec<Text<'a>>,
    /// `userInfo.extra["authentication.kubernetes.io/pod-name"]`.
    pub pod_names: Vec<Text<'a>>,
    /// `userInfo.extra["authentication.kubernetes.io/pod-uid"]`.
    pub pod_uids: Vec<Text<'a>>,
}

/// The decision about the executor's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// It has a controlling owner, which is kept.
    AsSent,
    /// The creator becomes the owner.
    Creator,
    /// No owner is written, for this reason.
    Denied(Reason),
}

/// The result of the resolution.
#[derive(Clone, Debug)]
pub struct Resolution<'a> {
    /// The driver by the strongest available evidence.
    pub driver: Option<FoundDriver<'a>>,
    /// The decision about the owner.
    pub ownership: Ownership,
    /// The executor names as its owner a driver that is unrelated to the requester.
    pub foreign: bool,
    /// For the gang's name: the driver from the review alone, the same on every replica.
    pub name_from_review: Option<Text<'a>>,
    /// Who created the executor, for the signature: only later executors of the same creator get what its first executor got.
    pub creator: StatedCreator,
}

/// Resolves the driver and the owner of an executor under review.
pub fn resolve<'a>(
    requester: &Requester<'a>,
    namespace: &str,
    pod: &Pod<'a>,
    snapshot: &Snapshot,
    policies: &Policies,
) -> Resolution<'a> {
    let app = pod.app_selector().and_then(|selector| snapshot.app(namespace, selector));
    let creator = creator(requester, namespace, policies);
    let signs = signing_creator(requester, &creator, pod);
    let vetoed = creator.as_ref().map_err(|reason| *reason).and_then(|creator| veto(creator, namespace, pod, snapshot));
    let owner = from_owner_reference(pod);
    let name_from_review =
        creator.as_ref().ok().map(|creator| creator.name.clone()).or_else(|| owner.as_ref().map(|o| o.name.clone()));
    let ownership = match (pod.controller(), vetoed) {
        (Some(_), _) => Ownership::AsSent,
        (None, Ok(())) => Ownership::Creator,
        (None, Err(reason)) => Ownership::Denied(reason),
    };
    let mut foreign_driver = false;
    let driver = match (creator, vetoed) {
        (Ok(creator), Ok(())) => Some(creator),
        (creator, _) => {
            let foreign = owner.as_ref().filter(|_| creator.is_err());
            foreign_driver =
                foreign.is_some_and(|owner| is_foreign(&owner.name, requester, namespace, snapshot, policies));
            let owner = owner.or_else(|| from_workload(pod, namespace, snapshot));
            owner.or_else(|| from_driver_url(pod, namespace, snapshot)).or_else(|| {
                app.and_then(|app| app.driver_made_by(signs.key()))
                    .map(|driver| found(DriverSource::AppSelector, driver))
            })
        }
    };
    Resolution { driver, ownership, foreign: foreign_driver, name_from_review, creator: signs }
}

/// The creator that a signature names: the authenticated pod, of the pod's namespace or another one; the workload for which a
/// controller of the control plane creates the pod, because such a controller creates pods of all tenants under one name; else the
/// account. `creator` is what [`creator`] returns.
pub(crate) fn signing_creator(
    requester: &Requester<'_>,
    creator: &Result<FoundDriver<'_>, Reason>,
    object: &Pod<'_>,
) -> StatedCreator {
    let username = &requester.username;
    let workload = || object.controller().filter(|_| is_workload_controller(username));
    let is_elsewhere =
        |reason: &Reason| *reason == Reason::CreatorElsewhere && namespace_of_account(username).is_some();
    let elsewhere = |reason: &Reason| single_pod(requester).filter(|_| is_elsewhere(reason));
    match creator {
        Ok(pod) => StatedCreator::of_pod(&pod.name, &pod.uid),
        Err(reason) => match (workload(), elsewhere(reason)) {
            (Some(owner), _) => StatedCreator::of_workload(&owner.name, &owner.uid),
            (None, Some((name, uid))) => StatedCreator::of_pod_elsewhere(name, uid, username),
            (None, None) => StatedCreator::of_account(username),
        },
    }
}

/// Name and uid of the pod that the requester's token names, if that is exactly one.
fn single_pod<'r, 'a>(requester: &'r Requester<'a>) -> Option<(&'r Text<'a>, &'r Text<'a>)> {
    match (requester.pod_names.as_slice(), requester.pod_uids.as_slice()) {
        ([name], [uid]) if is_dns_subdomain(name) && is_uid(uid) => Some((name, uid)),
        _ => None,
    }
}

/// The authenticated creator, from the review and the policy alone: the same on every replica.
pub fn creator<'a>(requester: &Requester<'a>, namespace: &str, policies: &Policies) -> Result<FoundDriver<'a>, Reason> {
    let Requester { username, pod_names, pod_uids, .. } = requester;
    if pod_names.is_empty() && pod_uids.is_empty() {
        return Err(Reason::NoCreator);
    }
    // First: such an account may be of any namespace, and its pods are drivers of no application.
    if policies.never_owns(username) {
        return Err(Reason::CreatorNever);
    }
    if namespace_of_account(username) != Some(namespace) {
        return Err(Reason::CreatorElsewhere);
    }
    let (name, uid) = single_pod(requester).ok_or(Reason::CreatorAmbiguous)?;
    Ok(FoundDriver { source: DriverSource::Creator, name: name.clone(), uid: uid.clone() })
}

/// The snapshot's objections to a creator. The API server authenticated it, so only what the API server authenticated too, and our
/// signature proves, counts against it: no label, which any account may write that may change the pod. A cold replica has no data, and so
/// no objection.
fn veto(creator: &FoundDriver<'_>, namespace: &str, pod: &Pod<'_>, snapshot: &Snapshot) -> Result<(), Reason> {
    let executor = snapshot.executor(namespace, &creator.name).map(|(_, executor)| executor);
    if executor.is_some_and(|executor| executor.is_proven && *executor.uid == *creator.uid) {
        return Err(Reason::CreatorIsExecutor);
    }
    let driver = snapshot.driver_pod(namespace, &creator.name).filter(|known| *known.uid == *creator.uid);
    if driver.is_some_and(|known| known.is_proven && known.selector.as_deref() != pod.app_selector()) {
        return Err(Reason::CreatorOfOtherApplication);
    }
    // A pod that creates drivers and their executors for others (a syncer, an operator) exits without ending those.
    let app = pod.app_selector().and_then(|selector| snapshot.app(namespace, selector));
    match app.and_then(|app| app.driver_made_by(Creator::of_pod(&creator.name, &creator.uid))) {
        Some(_) => Err(Reason::CreatorNotDriver),
        None => Ok(()),
    }
}

/// A pod that already owns the executor.
pub fn from_owner_reference<'a>(pod: &Pod<'a>) -> Option<FoundDriver<'a>> {
    let owner = pod.controller().filter(|owner| owner.is_pod())?;
    Some(FoundDriver { source: DriverSource::OwnerReference, name: owner.name.clone(), uid: owner.uid.clone() })
}

/// A pod that owns the StatefulSet or Deployment which creates the executor, if that was read for an earlier one.
fn from_workload<'a>(pod: &Pod<'_>, namespace: &str, snapshot: &Snapshot) -> Option<FoundDriver<'a>> {
    let owner = Owner::of(pod.controller().filter(|owner| !owner.is_pod())?);
    match workload::owning_pod(snapshot, namespace, &owner) {
        OwningPod::Pod(driver) => Some(FoundDriver {
            source: DriverSource::OwnerReference,
            name: driver.name.to_string().into(),
            uid: driver.uid.to_string().into(),
        }),
        OwningPod::Unread | OwningPod::None => None,
    }
}

/// The driver behind `SPARK_DRIVER_URL`.
pub(crate) fn from_driver_url<'a>(pod: &Pod<'_>, namespace: &str, snapshot: &Snapshot) -> Option<FoundDriver<'a>> {
    let workload = pod.body.read()?;
    let url = workload.containers.iter().find_map(|container| container.driver_url.as_deref())?;
    from_driver_host(crate::snapshot::driver_host(url)?, namespace, snapshot)
}

/// The driver that answers at this host: the owner of a Service `NAME.NAMESPACE.svc`, else the pod with this address. A pod with
/// hostNetwork shares its address with others and never matches.
pub fn from_driver_host<'a>(host: &str, namespace: &str, snapshot: &Snapshot) -> Option<FoundDriver<'a>> {
    let mut parts = host.split('.');
    if let (Some(service), Some(there)) = (parts.next(), parts.next())
        && there == namespace
        && let Some(owner) = snapshot.services.get([namespace, "/", service].concat().as_str())
    {
        return Some(FoundDriver {
            source: DriverSource::DriverUrl,
            name: owner.name.to_string().into(),
            uid: owner.uid.to_string().into(),
        });
    }
    snapshot.driver_at(namespace, host).map(|driver| found(DriverSource::DriverUrl, driver))
}

fn found<'a>(source: DriverSource, driver: &DriverPod) -> FoundDriver<'a> {
    FoundDriver { source, name: driver.name.to_string().into(), uid: driver.uid.to_string().into() }
}

/// Whether the driver of this name, which an executor names as its owner, runs under another account than the requester's.
/// Workload controllers, and accounts that create pods for others, name the owner that they create for. Only for a requester that is not an
/// authenticated pod: such a pod is validated by its own identity.
pub fn is_foreign(
    driver: &str,
    requester: &Requester<'_>,
    namespace: &str,
    snapshot: &Snapshot,
    policies: &Policies,
) -> bool {
    // By its name: a gang is named after it, and another uid under it is either false or a recreated driver.
    snapshot.driver_pod(namespace, driver).is_some_and(|driver| {
        !is_account(driver, requester, namespace)
            && !is_workload_controller(&requester.username)
            && !policies.never_owns(&requester.username)
    })
}

fn is_account(driver: &DriverPod, requester: &Requester<'_>, namespace: &str) -> bool {
    let account = driver.service_account.as_deref().unwrap_or("default");
    requester.username.as_str() == ["system:serviceaccount:", namespace, ":", account].concat()
}

/// The accounts of the controllers that create pods for StatefulSets, Deployments and Jobs; some clusters run them under one
/// identity.
pub const WORKLOAD_CONTROLLERS: [&str; 7] = [
    "system:kube-controller-manager",
    "system:serviceaccount:kube-system:daemon-set-controller",
    "system:serviceaccount:kube-system:deployment-controller",
    "system:serviceaccount:kube-system:job-controller",
    "system:serviceaccount:kube-system:replicaset-controller",
    "system:serviceaccount:kube-system:replication-controller",
    "system:serviceaccount:kube-system:statefulset-controller",
];

/// Whether a requester creates pods from the templates of workloads.
pub fn is_workload_controller(username: &str) -> bool {
    WORKLOAD_CONTROLLERS.contains(&username)
}

/// Evidence for executors that are already in the cluster, for the controller: weaker than a creator, so the driver's pod is read
/// live before anything is written. A label is not evidence: a tenant that claims to drive an application could have its
/// executors deleted with its own pod.
pub fn resolve_later<'a>(executors: &Template, namespace: &str, snapshot: &Snapshot) -> Option<FoundDriver<'a>> {
    let by_host = executors.driver_host.as_deref().and_then(|host| from_driver_host(host, namespace, snapshot));
    by_host.or_else(|| executors.note.as_deref().and_then(read_evidence))
}

/// Our note of weaker evidence, `how/name/uid`. Any tenant can write the annotation: it is only a hint which pod to read.
pub fn read_evidence<'a>(note: &str) -> Option<FoundDriver<'a>> {
    let mut parts = note.split('/');
    let (how, name, uid) = (DriverSource::of(parts.next()?)?, parts.next()?, parts.next()?);
    let whole = parts.next().is_none() && is_dns_subdomain(name) && is_uid(uid);
    whole.then(|| FoundDriver { source: how, name: name.to_owned().into(), uid: uid.to_owned().into() })
}

/// The text of our note.
pub fn write_evidence(driver: &FoundDriver<'_>) -> String {
    [driver.source.as_str(), "/", &driver.name, "/", &driver.uid].concat()
}

fn is_uid(uid: &str) -> bool {
    (1..=128).contains(&uid.len()) && uid.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Pattern;

    #[test]
    fn source_round_trips_through_its_word() {
        for source in DriverSource::ALL {
            assert_eq!(DriverSource::of(&source.to_string()), Some(source));
        }
        assert_eq!(DriverSource::of("guess"), None);
    }

    #[test]
    fn note_is_read_only_whole() {
        let note = "driver-url/nb-driver/u-1";
        assert_eq!(read_evidence(note).map(|found| write_evidence(&found)).as_deref(), Some(note));
        for bad in
            ["nb-driver/u-1", "/nb-driver", "/nb-driver/u-1/x", "//u-1", "/nb-driver/", "/A B/u-1", "/nb-driver/u 1"]
        {
            assert_eq!(read_evidence(&["driver-url", bad].concat()), None, "{bad}");
        }
        for bad in ["driver-url", "driver-url/nb-driver", "guess/nb-driver/u-1"] {
            assert_eq!(read_evidence(bad), None, "{bad}");
        }
    }

    #[test]
    fn creator_for_signature_is_pod_then_workload_then_account() {
        const SET: &str = r#"{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"StatefulSet","name":"s","uid":"u-9","controller":true}]}}"#;
        let owned: Pod<'_> = serde_json::from_str(SET).unwrap();
        let signs = |username: &'static str, uids: &[&'static str], pod: &Pod<'static>| {
            let pod_uids = uids.iter().map(|uid| Text::from(*uid)).collect::<Vec<_>>();
            let pod_names = uids.iter().map(|_| Text::from("p")).collect();
            let requester = Requester { username: username.into(), pod_uids, pod_names, ..Requester::default() };
            let policies = Policies::new(Vec::new(), vec![Pattern::new("system:serviceaccount:tools:*")]);
            let creator = creator(&requester, "team", &policies);
            signing_creator(&requester, &creator, pod).text().to_owned()
        };
        let (same, other) = ("system:serviceaccount:team:spark", "system:serviceaccount:other:spark");
        let (syncer, controller) = ("system:serviceaccount:tools:s", WORKLOAD_CONTROLLERS[6]);
        for (username, uids, pod, expected) in [
            (same, &["u-1"][..], &Pod::default(), "pod/p/u-1".to_owned()),
            (same, &["u-1"], &owned, "pod/p/u-1".to_owned()),
            (same, &[], &owned, format!("account/{same}")),
            (same, &["u-1", "u-2"], &owned, format!("account/{same}")),
            (other, &["u-1"], &Pod::default(), format!("elsewhere/p/u-1/{other}")),
            (other, &["u-1"], &owned, format!("elsewhere/p/u-1/{other}")),
            (other, &[], &Pod::default(), format!("account/{other}")),
            (other, &["u-1", "u-2"], &Pod::default(), format!("account/{other}")),
            ("eve", &["u-1"], &Pod::default(), "account/eve".to_owned()),
            (syncer, &["u-1"], &Pod::default(), format!("account/{syncer}")),
            (controller, &[], &owned, "workload/s/u-9".to_owned()),
            // A control plane of pods.
            (controller, &["u-1"], &owned, "workload/s/u-9".to_owned()),
            // Whom a controller created a pod for is known only by the owner that it set.
            (controller, &[], &Pod::default(), format!("account/{controller}")),
        ] {
            assert_eq!(signs(username, uids, pod), expected);
        }
    }
}
