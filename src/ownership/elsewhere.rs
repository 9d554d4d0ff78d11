//! Executors that a pod of another namespace created. No pod can own one of another namespace, so nothing deletes them when it ends.
//!
//! Such a pod need not be their driver: a controller that copies the pods of another cluster creates executors, too, and restarts
//! while their drivers run. So its end counts as the driver's only if the address that its executors have (`SPARK_DRIVER_URL`) is
//! its own: an address that the pod itself had when it was read, or a name in its namespace. It is never alive, only gone or
//! unknown: a driver that is alive adopts executors and is polled, and both take the namespace of the application.

use crate::snapshot::{Executor, Template};
use crate::spark::ids::PodIdentity;

/// The pod of another namespace that created executors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CreatorElsewhere<'s> {
    /// The pod.
    pub(super) pod: PodIdentity,
    /// The driver's address on which its executors agree.
    pub(super) host: Option<&'s str>,
}

impl<'s> CreatorElsewhere<'s> {
    /// The creator of executors with these templates and proven signatures, if that is such a pod.
    pub(super) fn of(mut templates: impl Iterator<Item = &'s Template>) -> Option<CreatorElsewhere<'s>> {
        let first = templates.next()?;
        let pod = first.pod_elsewhere(true)?;
        let host = first.driver_host.as_deref();
        Some(CreatorElsewhere {
            pod,
            host: host.filter(|_| templates.all(|other| other.driver_host.as_deref() == host)),
        })
    }

    /// Whether it is the driver of its executors, and not only their creator. `address` is the one that the pod had when it was read.
    pub(super) fn is_driver(&self, address: Option<&str>) -> bool {
        let is_its = |host| address == Some(host) || namespace_of_host(host) == Some(self.pod.key.namespace());
        self.host.is_some_and(is_its)
    }
}

/// The driver of an executor, for people: the subject of a clause.
pub(crate) fn shown_driver(executor: &Executor) -> String {
    executor
        .pod_elsewhere()
        .map_or_else(|| "its driver".to_owned(), |pod| format!("pod {}, which created it,", pod.key))
}

/// The namespace of a Service's or a pod's name in the cluster's DNS: `NAME.NAMESPACE`, `NAME.NAMESPACE.svc…`,
/// `HOSTNAME.SUBDOMAIN.NAMESPACE.svc…` or `ADDRESS.NAMESPACE.pod…`.
fn namespace_of_host(host: &str) -> Option<&str> {
    if host.parse::<std::net::IpAddr>().is_ok() {
        return None;
    }
    let parts: Vec<&str> = host.split('.').collect();
    match parts.iter().skip(2).position(|part| matches!(*part, "svc" | "pod")) {
        Some(at) => parts.get(at + 1).copied(),
        None => parts.get(1).copied().filter(|_| parts.len() == 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespace_of_name_in_cluster_dns() {
        for (host, expected) in [
            ("nb.hub", Some("hub")),
            ("nb.hub.svc", Some("hub")),
            ("nb.hub.svc.cluster.local", Some("hub")),
            ("nb-0.nb.hub.svc.k8s.example.org", Some("hub")),
            ("10-0-0-7.hub.pod.cluster.local", Some("hub")),
            ("nb.svc.svc", Some("svc")),
            ("nb", None),
            ("", None),
            ("nb.hub.example.org", None),
            ("10.0.0.7", None),
            ("fd00::7", None),
        ] {
            assert_eq!(namespace_of_host(host), expected, "{host}");
        }
    }
}
