//! Reads the doctor's facts from the API server. A forbidden read is stored as an error and does not stop the doctor.

use http_body_util::BodyExt;
use hyper::Request;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::finding::Found;
use crate::annotations;
use crate::cluster::client::Brief;
use crate::cluster::view::resource;
use crate::cluster::vouching::{self, Vouching};
use crate::json::{at, entries, list, text};
use crate::manifests::creator_policy;
use crate::manifests::rbac::{self, Named, Permission, Scope};
use crate::reason::Reason;
use crate::spark::labels;

/// At most this many Spark pods are examined.
const MOST_PODS: u32 = 500;

/// All facts that the doctor examines.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) namespace: String,
    pub(super) dry_run_namespace: String,
    /// The API server's version.
    pub(super) version: (u32, u32),
    pub(super) mutating: Found<Vec<Value>>,
    pub(super) validating: Found<Vec<Value>>,
    /// Images in the namespace of Volcano's validating webhook for pods; empty if there is none.
    pub(super) volcano_images: Found<Vec<String>>,
    /// spark-usher's ValidatingAdmissionPolicies and their bindings.
    pub(super) policy_objects: Found<Vec<Value>>,
    /// The objects of the creator policy that exist.
    pub(super) creator_objects: Found<Vec<Value>>,
    /// What may vouch for signatures; `None` if the installation signs nothing.
    pub(super) vouching: Option<Vouching>,
    /// The user name of spark-usher's account.
    pub(super) account: String,
    pub(super) namespaces: Found<Vec<Value>>,
    pub(super) deployments: Found<Vec<Value>>,
    pub(super) pods: Found<Vec<Value>>,
    pub(super) slices: Found<Vec<Value>>,
    pub(super) lease: Found<Option<Value>>,
    pub(super) secret: Found<Option<Value>>,
    /// The policy file from its ConfigMap.
    pub(super) policy: Found<Policy>,
    /// `group/version` of every served API.
    pub(super) served: Found<Vec<String>>,
    /// Permissions and verbs, and whether they are granted.
    pub(super) permissions: Found<Vec<(Permission, &'static str, bool)>>,
    /// The API server's message when it last forbade an adoption, as long as its Event exists.
    pub(super) adoptions_refused: Found<Option<String>>,
    pub(super) spark_pods: Found<Vec<Value>>,
    pub(super) trial: Found<Trial>,
}

/// The policy file of an installation.
#[derive(Clone, Debug)]
pub(super) enum Policy {
    /// The installation has none.
    None,
    /// The installation has this one.
    Text(String),
    /// The installation refers to a file that does not exist.
    Missing(String),
}

/// Result of the dry-run creation of an executor.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    pub(super) warnings: Vec<String>,
    pub(super) pod: Value,
}

/// Reads all facts. Only an API server that does not answer is an error.
pub(super) async fn gather(
    client: &Client,
    namespace: &str,
    dry_run_namespace: &str,
    now: Timestamp,
) -> kube::Result<Facts> {
    let info = client.apiserver_version().await?;
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
    let admission = |kind, plural| resource("admissionregistration.k8s.io", "v1", kind, plural);
    let all = async |api: kube::core::ApiResource, within: Option<&str>, selector: &str| -> Found<Vec<Value>> {
        let api: Api<DynamicObject> = match within {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &api),
            None => Api::all_with(client.clone(), &api),
        };
        // Of Spark pods a part is enough; other objects are listed completely.
        let params = ListParams::default().labels(selector);
        let params = if selector == labels::ROLE { params.limit(MOST_PODS) } else { params };
        let found = api.list(&params).await.map_err(|error| Brief(&error).to_string())?;
        Ok(found.items.into_iter().filter_map(|object| serde_json::to_value(object).ok()).collect())
    };
    let deployments = all(resource("apps", "v1", "Deployment", "deployments"), Some(namespace), "").await;
    let deployments = deployments.map(|all| all.into_iter().filter(serves).collect::<Vec<_>>());
    // Nothing is derived from what could not be read.
    let unread = deployments.as_ref().err().cloned();
    let deployment = deployments.as_ref().ok().and_then(|all| all.first()).cloned().unwrap_or_default();
    let pod = deployment.pointer("/spec/template/spec").cloned().unwrap_or_default();
    let arg = |name: &str| argument(&pod, name);
    let validating = admission("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
    let validating = all(validating, None, "").await;
    let one = async |api: kube::core::ApiResource, name: Option<String>| -> Found<Option<Value>> {
        let Some(name) = name else { return Ok(None) };
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &api);
        let found = api.get_opt(&name).await.map_err(|error| Brief(&error).to_string())?;
        Ok(found.and_then(|object| serde_json::to_value(object).ok()))
    };
    let secret = arg("--tls-secret").or_else(|| volume(&pod, "secret", "secretName"));
    let policy = match unread {
        Some(error) => Err(format!("the Deployment that names it: {error}")),
        None => policy_file(client, namespace, &pod).await,
    };
    let own = entries(&deployment, &["spec", "selector", "matchLabels"]).map(|(key, value)| format!("{key}={value}"));
    let own = own.collect::<Vec<_>>().join(",");
    let account = text(&pod, &["serviceAccountName"]);
    let lease = arg("--lease").unwrap_or_else(|| annotations::USHER.to_owned());
    let creator = arg("--creator-policy").unwrap_or_else(|| creator_policy::NAME.to_owned());
    Ok(Facts {
        now,
        namespace: namespace.to_owned(),
        dry_run_namespace: dry_run_namespace.to_owned(),
        version: (number(&info.major), number(&info.minor)),
        mutating: all(admission("MutatingWebhookConfiguration", "mutatingwebhookconfigurations"), None, "").await,
        volcano_images: volcano_images(client, &validating).await,
        validating,
        policy_objects: crate::cluster::policies::live(client).await.map_err(|error| Brief(&error).to_string()),
        creator_objects: vouching::live(client, &creator).await.map_err(|error| Brief(&error).to_string()),
        vouching: arg("--signing-secret").map(|_| Vouching {
            policy: creator.clone(),
            settle: vouching::SETTLE,
            client_certificates: arg("--client-ca").is_some(),
        }),
        account: format!("system:serviceaccount:{namespace}:{}", if account.is_empty() { "default" } else { account }),
        namespaces: all(resource("", "v1", "Namespace", "namespaces"), None, "").await,
        pods: all(resource("", "v1", "Pod", "pods"), Some(namespace), &own).await,
        slices: all(resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"), Some(namespace), "").await,
        lease: one(resource("coordination.k8s.io", "v1", "Lease", "leases"), Some(lease.clone())).await,
        served: served(client).await.map_err(|error| Brief(&error).to_string()),
        permissions: may(
            client,
            namespace,
            account,
            &lease,
            (secret.as_deref(), arg("--signing-secret").as_deref()),
            (arg("--mutating-configuration").as_deref(), arg("--validating-configuration").as_deref(), &creator),
        )
        .await
        .map_err(|error| Brief(&error).to_string()),
        secret: one(resource("", "v1", "Secret", "secrets"), secret).await,
        policy,
        adoptions_refused: adoptions_refused(client).await,
        spark_pods: all(resource("", "v1", "Pod", "pods"), None, labels::ROLE).await,
        trial: trial(client, dry_run_namespace).await,
        deployments,
    })
}

/// The API server's message when it forbids a change of owners (`OwnerReferencesPermissionEnforcement`).
const OWNERS_ENFORCED: &str = "cannot set an ownerRef on a resource you can't delete";

/// The message of the last Event about an adoption that the API server has forbidden.
async fn adoptions_refused(client: &Client) -> Found<Option<String>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource("", "v1", "Event", "events"));
    let params = ListParams::default().fields(&format!("reason={}", Reason::AdoptionRefused)).limit(MOST_PODS);
    let found = api.list(&params).await.map_err(|error| Brief(&error).to_string())?;
    let mut messages = found.items.iter().map(|event| text(&event.data, &["message"]));
    Ok(messages.rfind(|message| message.contains(OWNERS_ENFORCED)).map(str::to_owned))
}

/// The images of the Deployments in the namespace of Volcano's webhook: their tags contain its version.
async fn volcano_images(client: &Client, validating: &Found<Vec<Value>>) -> Found<Vec<String>> {
    let found = validating.as_ref().ok().and_then(|all| self::volcano_validates(all));
    let namespace = found.and_then(|(_, webhook)| at(webhook, &["clientConfig", "service", "namespace"])?.as_str());
    let Some(namespace) = namespace else { return Ok(Vec::new()) };
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource("apps", "v1", "Deployment", "deployments"));
    let all = api.list(&ListParams::default()).await.map_err(|error| Brief(&error).to_string())?;
    let containers = all.items.iter().flat_map(|one| list(&one.data, &["spec", "template", "spec", "containers"]));
    Ok(containers.map(|container| text(container, &["image"]).to_owned()).collect())
}

/// Reports whether a Deployment is one of spark-usher, whatever its name: a container has the argument `serve`.
fn serves(deployment: &Value) -> bool {
    let pod = at(deployment, &["spec", "template", "spec"]).unwrap_or(&Value::Null);
    list(pod, &["containers"]).iter().any(|container| {
        let args = list(container, &["args"]);
        args.first().and_then(Value::as_str) == Some("serve") && argument(pod, "--webhook-listen").is_some()
    })
}

/// The name to which the first volume of this kind refers.
fn volume(pod: &Value, kind: &str, key: &str) -> Option<String> {
    let found = list(pod, &["volumes"]).iter().find_map(|volume| volume.get(kind))?;
    Some(text(found, &[key]).to_owned()).filter(|name| !name.is_empty())
}

/// The policy file of an installation with this pod spec.
async fn policy_file(client: &Client, namespace: &str, pod: &Value) -> Found<Policy> {
    let file = argument(pod, "--config").and_then(|path| path.rsplit('/').next().map(str::to_owned));
    let (Some(map), Some(file)) = (volume(pod, "configMap", "name"), file) else { return Ok(Policy::None) };
    let maps: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource("", "v1", "ConfigMap", "configmaps"));
    let Some(found) = maps.get_opt(&map).await.map_err(|error| Brief(&error).to_string())? else {
        return Ok(Policy::Missing(format!("ConfigMap {map}")));
    };
    Ok(match at(&found.data, &["data", &file]).and_then(Value::as_str) {
        Some(text) => Policy::Text(text.to_owned()),
        None => Policy::Missing(format!("the key {file} of ConfigMap {map}")),
    })
}

/// The policy file of the installation in this namespace; `None` when spark-usher is not installed there.
pub(super) async fn installed_policy(client: &Client, namespace: &str) -> Found<Option<Policy>> {
    let api: Api<DynamicObject> =
        Api::namespaced_with(client.clone(), namespace, &resource("apps", "v1", "Deployment", "deployments"));
    let all = api.list(&ListParams::default()).await.map_err(|error| Brief(&error).to_string())?;
    let mut all = all.items.into_iter().filter_map(|object| serde_json::to_value(object).ok());
    let Some(deployment) = all.find(serves) else { return Ok(None) };
    let pod = deployment.pointer("/spec/template/spec").cloned().unwrap_or_default();
    policy_file(client, namespace, &pod).await.map(Some)
}

/// The value of `--name=value` among the arguments of a pod's containers; the last one wins, as in `serve`.
pub(super) fn argument(pod: &Value, name: &str) -> Option<String> {
    let args = list(pod, &["containers"]).iter().flat_map(|container| list(container, &["args"]));
    let mut found = args.filter_map(Value::as_str).filter_map(|arg| arg.strip_prefix(name)?.strip_prefix('='));
    found.next_back().map(str::to_owned)
}

pub(super) async fn served(client: &Client) -> kube::Result<Vec<String>> {
    let groups = client.list_api_groups().await?;
    let versions = groups.groups.into_iter().flat_map(|group| group.versions);
    Ok(versions.map(|version| version.group_version).collect())
}

/// Checks which of the required permissions the account has.
async fn may(
    client: &Client,
    namespace: &str,
    account: &str,
    lease: &str,
    (secret, signing): (Option<&str>, Option<&str>),
    (mutating, validating, creator): (Option<&str>, Option<&str>, &str),
) -> kube::Result<Vec<(Permission, &'static str, bool)>> {
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let mut out = Vec::new();
    for permission in rbac::all() {
        let mut parts = permission.resource.split('/');
        let (resource, subresource) = (parts.next().unwrap_or_default(), parts.next());
        for verb in permission.verbs {
            let named = |name: Option<&str>| vec![name.map(str::to_owned)];
            let names = match permission.named {
                Named::Lease => named(Some(lease)),
                Named::Secret => named(secret),
                Named::SigningSecret => named(signing),
                Named::Configuration if permission.resource.starts_with("mutating") => named(mutating),
                Named::Configuration => named(validating),
                Named::CreatorPolicy => creator_policy::names(creator).map(Some).to_vec(),
                Named::Any => named(None),
            };
            if permission.named == Named::Configuration && names == [None] {
                continue; // No configuration is maintained.
            }
            let mut is_allowed = true;
            for name in names {
                let asked = SubjectAccessReview {
                    spec: SubjectAccessReviewSpec {
                        user: Some(format!("system:serviceaccount:{namespace}:{account}")),
                        groups: Some(vec![
                            "system:serviceaccounts".to_owned(),
                            format!("system:serviceaccounts:{namespace}"),
                            "system:authenticated".to_owned(),
                        ]),
                        resource_attributes: Some(ResourceAttributes {
                            group: Some(permission.group.to_owned()),
                            resource: Some(resource.to_owned()),
                            subresource: subresource.map(str::to_owned),
                            verb: Some((*verb).to_owned()),
                            namespace: (permission.scope == Scope::Own).then(|| namespace.to_owned()),
                            name,
                            ..ResourceAttributes::default()
                        }),
                        ..SubjectAccessReviewSpec::default()
                    },
                    ..SubjectAccessReview::default()
                };
                let answer = api.create(&PostParams::default(), &asked).await?;
                is_allowed &= answer.status.is_some_and(|status| status.allowed);
            }
            out.push((permission, *verb, is_allowed));
        }
    }
    Ok(out)
}

/// Creates an executor by dry run.
async fn trial(client: &Client, namespace: &str) -> Found<Trial> {
    let name = format!("spark-usher-doctor-{}", crate::runtime::random::hex(4));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "labels": {
            labels::ROLE: labels::ROLE_EXECUTOR, labels::APP_SELECTOR: format!("spark-{name}"),
            labels::EXEC_ID: "1", labels::PROFILE_ID: "0",
        }},
        "spec": {
            "restartPolicy": "Never",
            // Required by the restricted Pod Security Standard.
            "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": labels::EXECUTOR_CONTAINER, "image": "spark",
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    let asking = async {
        let request = Request::post(format!("/api/v1/namespaces/{namespace}/pods?dryRun=All"))
            .header("content-type", "application/json")
            .body(kube::client::Body::from(pod.to_string().into_bytes()))
            .map_err(|error| error.to_string())?;
        let response = client.send(request).await.map_err(|error| Brief(&error).to_string())?;
        let (parts, body) = response.into_parts();
        let warnings = parts.headers.get_all("warning").iter().filter_map(|value| value.to_str().ok());
        let warnings = warnings.map(|text| text.trim_start_matches("299 - ").trim_matches('"').to_owned()).collect();
        let body = body.collect().await.map_err(|error| error.to_string())?.to_bytes();
        let pod: Value = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        if !parts.status.is_success() {
            return Err(text(&pod, &["message"]).to_owned());
        }
        Ok(Trial { warnings, pod })
    };
    asking.await
}

/// The name of an object, for a line of the report.
pub(super) fn name_of(object: &Value) -> String {
    serde_json::from_value::<DynamicObject>(object.clone()).map_or_else(|_| String::new(), |object| object.name_any())
}

/// Reports whether a webhook of a configuration is called for new pods.
pub(super) fn touches_pods(webhook: &Value) -> bool {
    let has = |rule: &Value, key: &str, wanted: &str| {
        list(rule, &[key]).iter().filter_map(Value::as_str).any(|value| value == "*" || value == wanted)
    };
    list(webhook, &["rules"])
        .iter()
        .any(|rule| has(rule, "apiGroups", "") && has(rule, "resources", "pods") && has(rule, "operations", "CREATE"))
}

/// Volcano's webhook for new pods: the name of its configuration, and the webhook.
pub(super) fn volcano_validates(validating: &[Value]) -> Option<(String, &Value)> {
    validating.iter().filter(|configuration| name_of(configuration).contains("volcano")).find_map(|configuration| {
        let webhook = list(configuration, &["webhooks"]).iter().find(|webhook| touches_pods(webhook))?;
        Some((name_of(configuration), webhook))
    })
}
