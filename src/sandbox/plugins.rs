//! In-tree admission plugins for pods: NamespaceLifecycle, ServiceAccount, DefaultTolerationSeconds, Priority. They run
//! before the webhooks, and again after a webhook changed the pod.

use serde_json::{Value, json};

use super::attributes::AccessAttributes;
use super::error::{ApiError, Result};
use super::rbac;
use super::request::Request;
use super::resource::{Collection, Resource};
use super::state::Api;
use usher_spark::json::{at, list, list_mut, set, text};

fn collection(group: &str, plural: &str) -> Collection {
    Collection { group: group.to_owned(), plural: plural.to_owned() }
}

/// Refuses creations in a namespace that does not exist or is being deleted.
pub(super) fn namespace_lifecycle(api: &Api, resource: &Resource, object: &Value) -> Result<()> {
    if !resource.namespaced {
        return Ok(());
    }
    let namespace = text(object, &["metadata", "namespace"]);
    let Some(found) = api.store.get(&collection("", "namespaces"), &(String::new(), namespace.to_owned())) else {
        return Err(ApiError::not_found("namespaces", namespace));
    };
    if at(&found.value(), &["metadata", "deletionTimestamp"]).is_some() {
        let why = format!("unable to create new content in namespace {namespace} because it is being terminated");
        return Err(ApiError::forbidden(&resource.qualified(), text(object, &["metadata", "name"]), &why));
    }
    Ok(())
}

/// `OwnerReferencesPermissionEnforcement` (`plugin/pkg/admission/gc`): changing an object's owners requires permission
/// to delete the object.
pub(super) fn owners(api: &Api, request: &Request, name: &str, old: Option<&Value>, object: &Value) -> Result<()> {
    const OWNERS: &[&str] = &["metadata", "ownerReferences"];
    let before = old.map(|old| list(old, OWNERS)).unwrap_or_default();
    if !api.enforce_owners || before == list(object, OWNERS) {
        return Ok(());
    }
    let attributes = AccessAttributes { verb: "delete", sub: None, name: Some(name), ..request.attributes() };
    if api.authorize && !rbac::allows(api, &request.user, &attributes) {
        let why = "cannot set an ownerRef on a resource you can't delete: , <nil>";
        return Err(ApiError::forbidden(&request.resource.qualified(), name, why));
    }
    Ok(())
}

/// An apply that creates the object requires permission to create it, by its name (`handlers/patch.go`, `withAuthorization`).
pub(super) fn may_create(api: &Api, request: &Request) -> Result<()> {
    let attributes = AccessAttributes { verb: "create", ..request.attributes() };
    if api.authorize && !rbac::allows(api, &request.user, &attributes) {
        let why = attributes.refusal(&request.user);
        return Err(ApiError::forbidden(&request.resource.qualified(), attributes.name.unwrap_or_default(), &why));
    }
    api.used.note(&request.user, &attributes);
    Ok(())
}

/// Runs the mutating plugins on a new pod. A second run changes nothing.
pub(super) fn mutate_pod(api: &Api, pod: &mut Value) -> Result<()> {
    service_account(api, pod)?;
    default_tolerations(pod);
    priority(api, pod)
}

/// ServiceAccount: the account must exist, and its token is mounted unless the pod mounts another volume at that path.
fn service_account(api: &Api, pod: &mut Value) -> Result<()> {
    const PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
    let (namespace, name) =
        (text(pod, &["metadata", "namespace"]).to_owned(), text(pod, &["metadata", "name"]).to_owned());
    if text(pod, &["spec", "serviceAccountName"]).is_empty() {
        set(pod, &["spec", "serviceAccountName"], "default");
    }
    let account = text(pod, &["spec", "serviceAccountName"]).to_owned();
    set(pod, &["spec", "serviceAccount"], account.clone());
    let Some(found) = api.store.get(&collection("", "serviceaccounts"), &(namespace.clone(), account.clone())) else {
        let why =
            format!("error looking up service account {namespace}/{account}: serviceaccount {account:?} not found");
        return Err(ApiError::forbidden("pods", &name, &why));
    };
    let wants = |value: &Value| at(value, &["automountServiceAccountToken"]).and_then(Value::as_bool);
    let mounts = at(pod, &["spec"]).and_then(wants).or_else(|| wants(&found.value())).unwrap_or(true);
    let is_token = |volume: &&Value| text(volume, &["name"]).starts_with("kube-api-access-");
    if !mounts || list(pod, &["spec", "volumes"]).iter().any(|volume| is_token(&volume)) {
        return Ok(());
    }
    let volume = format!("kube-api-access-{}", super::auth::random_suffix());
    list_mut(pod, &["spec", "volumes"]).push(json!({"name": volume, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]}}));
    for containers in ["containers", "initContainers"] {
        if at(pod, &["spec", containers]).is_none() {
            continue;
        }
        for container in list_mut(pod, &["spec", containers]) {
            if !list(container, &["volumeMounts"]).iter().any(|mount| text(mount, &["mountPath"]) == PATH) {
                let mount = json!({"name": volume, "readOnly": true, "mountPath": PATH});
                list_mut(container, &["volumeMounts"]).push(mount);
            }
        }
    }
    Ok(())
}

fn default_tolerations(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerates = |toleration: &Value| {
            let (wanted, effect) = (text(toleration, &["key"]), text(toleration, &["effect"]));
            (wanted == key || wanted.is_empty()) && (effect == "NoExecute" || effect.is_empty())
        };
        if !list(pod, &["spec", "tolerations"]).iter().any(tolerates) {
            let toleration = json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
            list_mut(pod, &["spec", "tolerations"]).push(toleration);
        }
    }
}

/// Priority (`plugin/pkg/admission/priority/admission.go`): the class determines the priority, and a number that
/// contradicts it is refused. Therefore a webhook that sets a class must remove the number.
fn priority(api: &Api, pod: &mut Value) -> Result<()> {
    let name = text(pod, &["metadata", "name"]).to_owned();
    let refuse = |why: String| ApiError::forbidden("pods", &name, &why);
    let classes = collection("scheduling.k8s.io", "priorityclasses");
    let class = text(pod, &["spec", "priorityClassName"]).to_owned();
    let found = if class.is_empty() {
        let (all, _) = api.store.list(&classes, None, None);
        let global = all.iter().map(|class| class.value());
        let global =
            global.into_iter().find(|class| at(class, &["globalDefault"]).and_then(Value::as_bool) == Some(true));
        if let Some(global) = &global {
            set(pod, &["spec", "priorityClassName"], text(global, &["metadata", "name"]));
        }
        global
    } else {
        let Some(found) = api.store.get(&classes, &(String::new(), class.clone())) else {
            return Err(refuse(format!("no PriorityClass with name {class} was found")));
        };
        Some(found.value())
    };
    let computed = found.as_ref().and_then(|class| at(class, &["value"])).and_then(Value::as_i64).unwrap_or(0);
    if let Some(given) = at(pod, &["spec", "priority"]).and_then(Value::as_i64).filter(|given| *given != computed) {
        return Err(refuse(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; priority admission controller computed {computed} from the given PriorityClass name"
        )));
    }
    set(pod, &["spec", "priority"], computed);
    let policy = found.as_ref().map(|class| text(class, &["preemptionPolicy"])).filter(|policy| !policy.is_empty());
    let policy = policy.unwrap_or("PreemptLowerPriority").to_owned();
    let given = text(pod, &["spec", "preemptionPolicy"]);
    if !given.is_empty() && given != policy {
        return Err(refuse(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    set(pod, &["spec", "preemptionPolicy"], policy);
    Ok(())
}
