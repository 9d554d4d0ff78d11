//! Executors that a pod of another namespace created. No pod can own one of another namespace, so nothing deletes them when it ends.
//!
//! Such a pod need not be their driver: a controller that copies the pods of another cluster creates executors, too, and so does a
//! gateway, and both restart while the drivers run. So its end counts as the driver's only if the address that the executors have
//! (`SPARK_DRIVER_URL`) is its own: an address that the pod itself had when it was read, or its own name in its namespace. And it
//! counts only for executors that have never run: others lose their connection and exit, and whether their driver keeps those
//! (`deleteOnTermination`) is not known.

use super::liveness::{self, DriverLiveness};
use crate::snapshot::{Snapshot, Template};
use usher_spark::ids::PodIdentity;

/// The pod of another namespace that created executors, as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreatorElsewhere {
    pub pod: PodIdentity,
    /// Whether it exists and has the address of the driver.
    pub has_address: bool,
    /// Whether the address of the driver is its name.
    pub is_named: bool,
    /// Whether it has exited or does not exist. `false` while it has not been read.
    pub is_gone: bool,
}

impl CreatorElsewhere {
    /// The creator of executors with this template, if our signature proves that it is such a pod.
    pub fn of(template: &Template, is_proven: bool, snapshot: &Snapshot) -> Option<CreatorElsewhere> {
        let pod = template.pod_elsewhere(is_proven)?;
        let host = template.driver_host.as_deref();
        let (namespace, name) = (pod.key.namespace(), pod.key.name());
        let found = snapshot.driver_pod(namespace, name).filter(|found| found.uid == pod.uid);
        let has_address = host.is_some() && found.is_some_and(|found| found.address.as_deref() == host);
        let is_named = host.is_some_and(|host| is_name_of(host, name, namespace));
        let is_gone = liveness::liveness_of(namespace, name, &pod.uid, snapshot) == DriverLiveness::Gone;
        Some(CreatorElsewhere { pod, has_address, is_named, is_gone })
    }

    /// Whether it is the driver, as far as its state now shows.
    pub fn is_driver(&self) -> bool {
        self.has_address || self.is_named
    }
}

/// Whether a host is this pod's name in the DNS of this cluster: `NAME.NAMESPACE.svc…` of a Service that is called as the pod, or
/// `NAME.SUBDOMAIN.NAMESPACE.svc…`. A name of a set of clusters (`clusterset.local`, KEP-1645) may be that of another cluster's.
fn is_name_of(host: &str, name: &str, namespace: &str) -> bool {
    let Some(rest) = host.strip_prefix(name).and_then(|rest| rest.strip_prefix('.')) else { return false };
    let parts: Vec<&str> = rest.split('.').collect();
    let is_here = |domain: &[&str]| domain.first() == Some(&"svc") && domain.get(1) != Some(&"clusterset");
    match parts.as_slice() {
        [there, domain @ ..] if *there == namespace && is_here(domain) => true,
        [_, there, domain @ ..] => *there == namespace && is_here(domain),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_pod_itself_in_this_cluster_is_evidence() {
        for (host, expected) in [
            ("nb-0.hub.svc", true),
            ("nb-0.hub.svc.cluster.local", true),
            ("nb-0.nb.hub.svc.k8s.example.org", true),
            ("nb-0.hub.hub.svc", true),
            ("nb-1.hub.svc", false),
            ("nb-01.hub.svc", false),
            ("nb-0.team.svc", false),
            ("nb-0.hub", false),
            ("nb-0.hub.example.org", false),
            ("nb-0.hub.svc.clusterset.local", false),
            ("nb-0", false),
            ("nb-0.", false),
            ("", false),
            ("10.0.0.7", false),
        ] {
            assert_eq!(is_name_of(host, "nb-0", "hub"), expected, "{host}");
        }
    }
}
