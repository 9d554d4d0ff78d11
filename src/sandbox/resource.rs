//! The served resources: the built-in ones, and those of CustomResourceDefinitions as soon as they are created.

use std::sync::{Arc, RwLock};

use serde_json::Value;

/// A served resource in one version.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) short_names: Vec<String>,
    pub(super) categories: Vec<String>,
    pub(super) namespaced: bool,
    /// Whether `/status` is a subresource.
    pub(super) status: bool,
    /// For custom resources: the version's schema and its printer columns.
    pub(super) custom: Option<Arc<Custom>>,
}

/// What a CustomResourceDefinition adds to a resource.
#[derive(Debug)]
pub(super) struct Custom {
    /// Name of the definition.
    pub(super) definition: String,
    /// `openAPIV3Schema` of this version.
    pub(super) schema: Value,
    /// `schema` as JSON Schema, compiled.
    pub(super) validator: Option<jsonschema::Validator>,
    /// `additionalPrinterColumns`.
    pub(super) columns: Vec<Value>,
}

/// Identifies the objects of a resource in the store; the versions of one resource share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Collection {
    pub(super) group: String,
    pub(super) plural: String,
}

impl Collection {
    /// A resource of the core group.
    pub(super) fn core(plural: &str) -> Collection {
        Collection { group: String::new(), plural: plural.to_owned() }
    }
}

impl Resource {
    pub(super) fn collection(&self) -> Collection {
        // Events of both groups are the same objects.
        let group = if self.group == "events.k8s.io" { "" } else { &self.group };
        Collection { group: group.to_owned(), plural: self.plural.clone() }
    }

    pub(super) fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// `pods`, or `podgroups.scheduling.volcano.sh`: the resource's name in messages.
    pub(super) fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.clone() } else { format!("{}.{}", self.plural, self.group) }
    }

    pub(super) fn is(&self, group: &str, plural: &str) -> bool {
        self.group == group && self.plural == plural
    }

    pub(super) fn is_pods(&self) -> bool {
        self.is("", "pods")
    }

    /// Reviews and similar kinds: answered and never stored.
    pub(super) fn is_ephemeral(&self) -> bool {
        matches!(self.group.as_str(), "authentication.k8s.io" | "authorization.k8s.io")
    }
}

/// Group, version, plural, kind, scope (namespaced or not), `/status`, short names.
type Builtin = (&'static str, &'static str, &'static str, &'static str, bool, bool, &'static [&'static str]);

const BUILTIN: &[Builtin] = &[
    ("", "v1", "configmaps", "ConfigMap", true, false, &["cm"]),
    ("", "v1", "endpoints", "Endpoints", true, false, &["ep"]),
    ("", "v1", "events", "Event", true, false, &["ev"]),
    ("", "v1", "limitranges", "LimitRange", true, false, &["limits"]),
    ("", "v1", "namespaces", "Namespace", false, true, &["ns"]),
    ("", "v1", "nodes", "Node", false, true, &["no"]),
    ("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", true, true, &["pvc"]),
    ("", "v1", "persistentvolumes", "PersistentVolume", false, true, &["pv"]),
    ("", "v1", "pods", "Pod", true, true, &["po"]),
    ("", "v1", "replicationcontrollers", "ReplicationController", true, true, &["rc"]),
    ("", "v1", "resourcequotas", "ResourceQuota", true, true, &["quota"]),
    ("", "v1", "secrets", "Secret", true, false, &[]),
    ("", "v1", "serviceaccounts", "ServiceAccount", true, false, &["sa"]),
    ("", "v1", "services", "Service", true, true, &["svc"]),
    ("admissionregistration.k8s.io", "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", false, false, &[]),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingadmissionpolicybindings",
        "MutatingAdmissionPolicyBinding",
        false,
        false,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "mutatingwebhookconfigurations",
        "MutatingWebhookConfiguration",
        false,
        false,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicies",
        "ValidatingAdmissionPolicy",
        false,
        true,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingadmissionpolicybindings",
        "ValidatingAdmissionPolicyBinding",
        false,
        false,
        &[],
    ),
    (
        "admissionregistration.k8s.io",
        "v1",
        "validatingwebhookconfigurations",
        "ValidatingWebhookConfiguration",
        false,
        false,
        &[],
    ),
    (
        "apiextensions.k8s.io",
        "v1",
        "customresourcedefinitions",
        "CustomResourceDefinition",
        false,
        true,
        &["crd", "crds"],
    ),
    ("apps", "v1", "controllerrevisions", "ControllerRevision", true, false, &[]),
    ("apps", "v1", "daemonsets", "DaemonSet", true, true, &["ds"]),
    ("apps", "v1", "deployments", "Deployment", true, true, &["deploy"]),
    ("apps", "v1", "replicasets", "ReplicaSet", true, true, &["rs"]),
    ("apps", "v1", "statefulsets", "StatefulSet", true, true, &["sts"]),
    ("authentication.k8s.io", "v1", "selfsubjectreviews", "SelfSubjectReview", false, false, &[]),
    ("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", false, false, &[]),
    ("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", false, false, &[]),
    ("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", false, false, &[]),
    ("batch", "v1", "cronjobs", "CronJob", true, true, &["cj"]),
    ("batch", "v1", "jobs", "Job", true, true, &[]),
    ("coordination.k8s.io", "v1", "leases", "Lease", true, false, &[]),
    ("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", true, false, &[]),
    ("events.k8s.io", "v1", "events", "Event", true, false, &["ev"]),
    ("networking.k8s.io", "v1", "ingresses", "Ingress", true, true, &["ing"]),
    ("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy", true, false, &["netpol"]),
    ("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", true, true, &["pdb"]),
    ("rbac.authorization.k8s.io", "v1", "clusterrolebindings", "ClusterRoleBinding", false, false, &[]),
    ("rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", false, false, &[]),
    ("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", true, false, &[]),
    ("rbac.authorization.k8s.io", "v1", "roles", "Role", true, false, &[]),
    ("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", false, false, &["pc"]),
];

/// All served resources; definitions can be added and removed.
#[derive(Debug)]
pub(super) struct Registry(RwLock<Vec<Arc<Resource>>>);

impl Registry {
    /// The built-in resources; native PodGroups have the version of the simulated release.
    pub(super) fn new(native_groups: &str) -> Registry {
        let native: [Builtin; 1] = [("scheduling.k8s.io", "", "podgroups", "PodGroup", true, true, &[])];
        let all = BUILTIN.iter().chain(&native).map(|(group, version, plural, kind, namespaced, status, short)| {
            Arc::new(Resource {
                group: (*group).to_owned(),
                version: if version.is_empty() { native_groups } else { version }.to_owned(),
                kind: (*kind).to_owned(),
                plural: (*plural).to_owned(),
                singular: kind.to_lowercase(),
                short_names: short.iter().map(|name| (*name).to_owned()).collect(),
                categories: if *plural == "pods" || *plural == "services" {
                    vec!["all".to_owned()]
                } else {
                    Vec::new()
                },
                namespaced: *namespaced,
                status: *status,
                custom: None,
            })
        });
        Registry(RwLock::new(all.collect()))
    }

    pub(super) fn all(&self) -> Vec<Arc<Resource>> {
        self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub(super) fn find(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let all = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.iter().find(|r| r.group == group && r.version == version && r.plural == plural).cloned()
    }

    /// The resource of a kind, whatever its version.
    pub(super) fn of_kind(&self, api_version: &str, kind: &str) -> Option<Arc<Resource>> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let all = self.0.read().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.iter().find(|r| r.group == group && r.kind == kind).cloned()
    }

    /// Replaces the resources that are served for a definition.
    pub(super) fn define(&self, definition: &str, resources: Vec<Resource>) {
        let mut all = self.0.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        all.retain(|r| r.custom.as_ref().is_none_or(|custom| custom.definition != definition));
        all.extend(resources.into_iter().map(Arc::new));
    }
}
