//! The permissions that our account needs, and why. The chart's roles contain the same (`tests/chart.py` compares), and
//! `doctor` checks that they are granted.

use crate::gang;

/// Where a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In every namespace.
    Cluster,
    /// In our own namespace.
    Own,
}

/// The objects that a permission may be restricted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Any object.
    Any,
    /// Our Lease.
    Lease,
    /// The Secret with our certificates.
    Secret,
    /// The Secret with the key of our signatures.
    SigningSecret,
    /// Our webhook configurations.
    Configuration,
    CreatorPolicy,
    /// The validating policies of the policy file.
    ValidatingPolicies,
    /// The fallback policies of the policy file.
    FallbackPolicies,
    /// The owner of these policies, with which they are deleted: the ClusterRole that allows to apply them, or a webhook configuration.
    PolicyOwner,
}

impl Named {
    /// The objects, for people.
    pub fn text(self) -> &'static str {
        match self {
            Named::Any => "all",
            Named::Lease => "its Lease",
            Named::Secret => "the Secret with its certificates",
            Named::SigningSecret => "the Secret with its signing key",
            Named::Configuration => "its webhook configurations",
            Named::CreatorPolicy => "the creator policy",
            Named::ValidatingPolicies => "the validating policies of the policy file",
            Named::FallbackPolicies => "the fallback policies of the policy file",
            Named::PolicyOwner => "the owner of the admission policies",
        }
    }
}

/// When a permission is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    Always,
    /// With `lifecycle.finished: delete`, with `recovery.act: true` and a recovery rule in mode `act`, and if `OwnerReferencesPermissionEnforcement` is
    /// enabled.
    Deleting,
    /// With `recovery.terminating.mode: act`.
    DeletingByForce,
    /// With certificates that we manage.
    Managed,
    /// Unless `nodes.enabled` is false.
    RecordingNodes,
    /// Unless every policy has `gang.readSparkConf: false`.
    ReadingConf,
    /// With `recovery.driverView.access: proxy`.
    Proxying,
    /// With `--admission-policies=validating`.
    Validating,
    /// The same, if `--validating-policy-owner` is given.
    ApplyingValidating,
    /// With `--admission-policies=fallback` or `fallback-scheduler`.
    FallingBack,
    /// The same, if `--fallback-policy-owner` is given.
    ApplyingFallback,
}

/// One permission (RBAC rule).
#[derive(Clone, Copy, Debug)]
pub struct Permission {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The resource's plural name, and after a slash its subresource.
    pub resource: &'static str,
    pub verbs: &'static [&'static str],
    /// Where it is needed.
    pub scope: Scope,
    /// The objects that it may be restricted to.
    pub named: Named,
    /// When it is needed.
    pub when: When,
    /// Why it is needed.
    pub why: &'static str,
}

const fn permission(
    (group, resource): (&'static str, &'static str),
    verbs: &'static [&'static str],
    (scope, named, when): (Scope, Named, When),
    why: &'static str,
) -> Permission {
    Permission { group, resource, verbs, scope, named, when, why }
}

const ANYWHERE: (Scope, Named, When) = (Scope::Cluster, Named::Any, When::Always);
const OWNERS: &str = "find the driver of executors that a StatefulSet or Deployment creates";
const WAITING: &str = "tell why pods wait, as Volcano and Kueue state it";
const VOUCHING: &str = "believe signatures only while the creator policy is installed";
const WATCH: &[&str] = &["list", "watch"];

/// All permissions except those on PodGroups, which depend on the scheduler: see [`all`].
const PERMISSIONS: &[Permission] = &[
    permission(
        ("", "pods"),
        &["get", "list", "watch", "patch"],
        ANYWHERE,
        "watch applications; adopt and label executors",
    ),
    permission(
        ("", "pods"),
        &["delete"],
        (Scope::Cluster, Named::Any, When::Deleting),
        "delete finished executors that their driver leaves behind, and what recovery rules find; adopt executors where OwnerReferencesPermissionEnforcement is enabled",
    ),
    permission(
        ("", "nodes"),
        &["get"],
        (Scope::Cluster, Named::Any, When::DeletingByForce),
        "delete executors by force whose node no longer exists",
    ),
    permission(
        ("", "configmaps"),
        &["get"],
        (Scope::Cluster, Named::Any, When::ReadingConf),
        "read how many executors an application requests",
    ),
    permission(
        ("", "pods/proxy"),
        &["get"],
        (Scope::Cluster, Named::Any, When::Proxying),
        "poll drivers for their view of their executors through the API server",
    ),
    permission(("apps", "statefulsets"), &["get"], ANYWHERE, OWNERS),
    permission(("apps", "deployments"), &["get"], ANYWHERE, OWNERS),
    permission(("apps", "replicasets"), &["get"], ANYWHERE, OWNERS),
    permission(
        ("", "resourcequotas"),
        &["list"],
        ANYWHERE,
        "tell applications that lack executors because a ResourceQuota is used up",
    ),
    permission(("", "events"), &["list"], ANYWHERE, WAITING),
    permission(("kueue.x-k8s.io", "workloads"), &["list"], ANYWHERE, WAITING),
    permission(
        ("", "nodes"),
        WATCH,
        (Scope::Cluster, Named::Any, When::RecordingNodes),
        "report nodes on which executors fail, and let executors avoid them",
    ),
    permission(("", "namespaces"), &["get", "list", "watch"], ANYWHERE, "match policies by namespace labels"),
    permission(("", "services"), WATCH, ANYWHERE, "find the driver behind SPARK_DRIVER_URL"),
    permission(("scheduling.k8s.io", "priorityclasses"), WATCH, ANYWHERE, "set only priority classes that exist"),
    permission(
        ("events.k8s.io", "events"),
        &["create", "get", "patch"],
        ANYWHERE,
        "record actions, and why executors exited",
    ),
    permission(
        ("coordination.k8s.io", "leases"),
        &["create"],
        (Scope::Own, Named::Any, When::Always),
        "elect the leader, the one replica that writes",
    ),
    permission(
        ("coordination.k8s.io", "leases"),
        &["get", "watch", "update"],
        (Scope::Own, Named::Lease, When::Always),
        "elect the leader, the one replica that writes",
    ),
    permission(
        ("", "secrets"),
        &["create"],
        (Scope::Own, Named::Any, When::Always),
        "store the signing key and the certificates",
    ),
    permission(
        ("", "secrets"),
        &["get", "update"],
        (Scope::Own, Named::SigningSecret, When::Always),
        "store the signing key",
    ),
    permission(
        ("", "secrets"),
        &["get", "update"],
        (Scope::Own, Named::Secret, When::Managed),
        "store the certificates",
    ),
    permission(
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
        &["get", "patch"],
        (Scope::Cluster, Named::Configuration, When::Managed),
        "update the caBundle",
    ),
    permission(
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
        &["get", "patch"],
        (Scope::Cluster, Named::Configuration, When::Managed),
        "update the caBundle",
    ),
    permission(
        ("admissionregistration.k8s.io", "validatingadmissionpolicies"),
        &["get"],
        (Scope::Cluster, Named::CreatorPolicy, When::Always),
        VOUCHING,
    ),
    permission(
        ("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
        &["get"],
        (Scope::Cluster, Named::CreatorPolicy, When::Always),
        VOUCHING,
    ),
];

/// The permissions for admission policies that follow the policy file: to compare them, and to apply them.
fn of_policies() -> impl Iterator<Item = Permission> {
    let kinds = [
        ("validatingadmissionpolicies", Named::ValidatingPolicies, When::Validating, When::ApplyingValidating),
        ("validatingadmissionpolicybindings", Named::ValidatingPolicies, When::Validating, When::ApplyingValidating),
        ("mutatingadmissionpolicies", Named::FallbackPolicies, When::FallingBack, When::ApplyingFallback),
        ("mutatingadmissionpolicybindings", Named::FallbackPolicies, When::FallingBack, When::ApplyingFallback),
    ];
    let policies = kinds.into_iter().flat_map(|(resource, named, comparing, applying)| {
        let resource = ("admissionregistration.k8s.io", resource);
        // An apply creates the object, too: API servers authorize that with its name.
        let writes = &["create", "patch", "delete"];
        [
            permission(resource, WATCH, (Scope::Cluster, Named::Any, comparing), "compare them with the policy file"),
            permission(resource, writes, (Scope::Cluster, named, applying), "apply what the policy file asks for"),
        ]
    });
    let owners = [When::ApplyingValidating, When::ApplyingFallback].map(|when| {
        permission(
            ("rbac.authorization.k8s.io", "clusterroles"),
            &["get"],
            (Scope::Cluster, Named::PolicyOwner, when),
            "let the garbage collector delete the admission policies with the installation",
        )
    });
    policies.chain(owners)
}

/// Every permission.
pub fn all() -> Vec<Permission> {
    let mut all = PERMISSIONS.to_vec();
    all.extend(of_policies());
    for api in gang::TABLE.iter().flat_map(|scheduler| scheduler.apis) {
        if all.iter().all(|permission| (permission.group, permission.resource) != (api.group, api.plural)) {
            let verbs = &["get", "list", "watch", "create", "patch", "delete"];
            all.push(permission(
                (api.group, api.plural),
                verbs,
                ANYWHERE,
                "create PodGroups, and adapt their size to the application",
            ));
        }
    }
    all
}
