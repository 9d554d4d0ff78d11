//! Reads the doctor's facts from the API server. A forbidden read is stored as an error and does not stop the doctor.

use futures::{StreamExt, TryStreamExt};
use http_body_util::BodyExt;
use hyper::Request;
use jiff::Timestamp;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::{Api, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use super::finding::Found;
use usher_core::annotations;
use usher_core::manifests::creator_policy;
use usher_core::manifests::installation::{Installation, Kind, except};
use usher_core::manifests::object::GROUP;
use usher_core::manifests::rbac::{self, Named, Permission, Scope, When};
use usher_core::reason::Reason;
use usher_kube::client::Brief;
use usher_kube::view::{pods, resource};
use usher_server::cluster::leader_forward::serve_arguments;
use usher_server::cluster::policies::Live;
use usher_server::cluster::vouching::{self, Vouching};
use usher_spark::json::{at, entries, list, text};
use usher_spark::labels;

/// At most this many Spark pods are examined.
const MAX_PODS: u32 = 500;
/// How many questions about permissions are asked at the same time.
const REVIEWS_AT_ONCE: usize = 8;

/// A part of an examination. The parts follow each other as in a diagnosis by hand: what is wrong in one explains the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The webhook configurations, the Deployment and its leader.
    Installation,
    /// The policy file, the certificate, endpoints and selectors.
    Configuration,
    /// What happens to a new pod.
    Admission,
    /// The account's permissions.
    Permissions,
    /// Schedulers, other webhooks, and other creators of executors.
    Surroundings,
}

impl Part {
    /// All, in their order.
    pub(super) const ALL: [Part; 5] =
        [Part::Installation, Part::Configuration, Part::Admission, Part::Permissions, Part::Surroundings];
}

/// All facts that the doctor examines. What is not read yet is an error.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) now: Timestamp,
    pub(super) namespace: String,
    pub(super) dry_run_namespace: String,
    /// The API server's version.
    pub(super) version: (u32, u32),
    pub(super) mutating: Found<Vec<Value>>,
    pub(super) validating: Found<Vec<Value>>,
    pub(super) deployments: Found<Vec<Value>>,
    pub(super) pods: Found<Vec<Value>>,
    pub(super) lease: Found<Option<Value>>,
    /// The policy file from its ConfigMap.
    pub(super) policy: Found<Policy>,
    pub(super) secret: Found<Option<Value>>,
    pub(super) slices: Found<Vec<Value>>,
    pub(super) namespaces: Found<Vec<Value>>,
    pub(super) spark_pods: Found<Vec<Value>>,
    /// What may vouch for signatures; `None` if the installation signs nothing.
    pub(super) vouching: Option<Vouching>,
    /// The admission policies that the replicas manage.
    pub(super) admission: Vec<Admission>,
    /// The objects of the creator policy that exist.
    pub(super) creator_objects: Found<Vec<Value>>,
    /// The user name of spark-usher's account.
    pub(super) account: String,
    /// spark-usher's ValidatingAdmissionPolicies and their bindings.
    pub(super) policy_objects: Found<Live>,
    pub(super) trial: Found<Trial>,
    /// `group/version` of every served API.
    pub(super) served: Found<Vec<String>>,
    /// Permissions and verbs, and whether they are granted.
    pub(super) permissions: Found<Vec<(Permission, &'static str, bool)>>,
    /// The API server's message when it last forbade an adoption, as long as its Event exists.
    pub(super) adoptions_refused: Found<Option<String>>,
    /// Images in the namespace of Volcano's validating webhook for pods; empty if there is none.
    pub(super) volcano_images: Found<Vec<String>>,
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

fn not_read<T>() -> Found<T> {
    Err("not read yet".to_owned())
}

fn brief(error: impl std::error::Error + 'static) -> String {
    Brief(&error).to_string()
}

fn deployments() -> ApiResource {
    resource("apps", "v1", "Deployment", "deployments")
}

/// Lists objects: of Spark pods a part, which is enough, and others completely.
async fn list_of(client: &Client, kind: ApiResource, within: Option<&str>, selector: &str) -> Found<Vec<Value>> {
    let api: Api<DynamicObject> = match within {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind),
        None => Api::all_with(client.clone(), &kind),
    };
    let params = ListParams::default().labels(selector);
    let params = if selector == labels::ROLE { params.limit(MAX_PODS) } else { params };
    let found = api.list(&params).await.map_err(brief)?;
    Ok(found.items.into_iter().filter_map(|object| serde_json::to_value(object).ok()).collect())
}

async fn one(client: &Client, kind: ApiResource, namespace: &str, name: Option<String>) -> Found<Option<Value>> {
    let Some(name) = name else { return Ok(None) };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let found = api.get_opt(&name).await.map_err(brief)?;
    Ok(found.and_then(|object| serde_json::to_value(object).ok()))
}

impl Facts {
    /// Reads the API server's version, and nothing else. Only an API server that does not answer is an error.
    pub(super) async fn begin(
        client: &Client,
        namespace: &str,
        dry_run_namespace: &str,
        now: Timestamp,
    ) -> kube::Result<Facts> {
        let info = client.apiserver_version().await?;
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or_default();
        Ok(Facts {
            now,
            namespace: namespace.to_owned(),
            dry_run_namespace: dry_run_namespace.to_owned(),
            version: (number(&info.major), number(&info.minor)),
            mutating: not_read(),
            validating: not_read(),
            deployments: not_read(),
            pods: not_read(),
            lease: not_read(),
            policy: not_read(),
            secret: not_read(),
            slices: not_read(),
            namespaces: not_read(),
            spark_pods: not_read(),
            vouching: None,
            admission: Vec::new(),
            account: String::new(),
            creator_objects: not_read(),
            policy_objects: not_read(),
            trial: not_read(),
            served: not_read(),
            permissions: not_read(),
            adoptions_refused: not_read(),
            volcano_images: not_read(),
        })
    }

    /// Reads what a part of the examination needs, all of it at the same time. Each part is read after the ones before it: they name
    /// what to read.
    pub(super) async fn read(&mut self, part: Part, client: &Client) {
        let namespace = self.namespace.clone();
        let in_namespace = Some(&*namespace);
        let list = |kind, within, selector| list_of(client, kind, within, selector);
        match part {
            Part::Installation => {
                let admission = |kind, plural| resource("admissionregistration.k8s.io", "v1", kind, plural);
                let mutating = admission("MutatingWebhookConfiguration", "mutatingwebhookconfigurations");
                let validating = admission("ValidatingWebhookConfiguration", "validatingwebhookconfigurations");
                (self.mutating, self.validating, self.deployments) = tokio::join!(
                    list(mutating, None, ""),
                    list(validating, None, ""),
                    list(deployments(), in_namespace, "")
                );
                if let Ok(all) = &mut self.deployments {
                    all.retain(serves);
                }
                let labels = entries(&self.deployment(), &["spec", "selector", "matchLabels"])
                    .map(|(key, value)| format!("{key}={value}"))
                    .collect::<Vec<_>>()
                    .join(",");
                let lease = resource("coordination.k8s.io", "v1", "Lease", "leases");
                (self.pods, self.lease) = tokio::join!(
                    list(pods(), in_namespace, &labels),
                    one(client, lease, &namespace, Some(self.lease_name()))
                );
            }
            Part::Configuration => {
                let pod = self.pod();
                let secret = self.tls_secret();
                let named = self.named();
                (self.policy, self.secret, self.slices, self.namespaces, self.spark_pods) = tokio::join!(
                    async {
                        named.clone()?;
                        policy_file(client, &namespace, &pod).await
                    },
                    async {
                        named.clone()?;
                        one(client, resource("", "v1", "Secret", "secrets"), &namespace, secret).await
                    },
                    list(resource("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices"), in_namespace, ""),
                    list(resource("", "v1", "Namespace", "namespaces"), None, ""),
                    list(pods(), None, labels::ROLE)
                );
            }
            Part::Admission => {
                let pod = self.pod();
                let creator = self.creator_policy();
                self.vouching = argument(&pod, "--signing-secret").map(|_| Vouching {
                    policy: creator.clone(),
                    settle: vouching::SETTLE,
                    client_certificates: argument(&pod, "--client-ca").is_some(),
                });
                self.admission = admission(&pod);
                self.account = format!("system:serviceaccount:{namespace}:{}", account_of(&pod));
                let (creator_objects, policy_objects, trial) = tokio::join!(
                    vouching::live(client, &creator),
                    usher_server::cluster::policies::live(client),
                    trial(client, &self.dry_run_namespace)
                );
                self.creator_objects = creator_objects.map_err(brief);
                (self.policy_objects, self.trial) = (policy_objects.map_err(brief), trial);
            }
            Part::Permissions => {
                let permissions = async {
                    self.named()?;
                    self.may(client).await.map_err(brief)
                };
                let (served, permissions, refused) =
                    tokio::join!(served(client), permissions, adoptions_refused(client));
                (self.served, self.permissions, self.adoptions_refused) = (served.map_err(brief), permissions, refused);
            }
            Part::Surroundings => self.volcano_images = volcano_images(client, &self.validating).await,
        }
    }

    /// Whether the Deployment could be read: nothing is derived from one that could not.
    fn named(&self) -> Found<()> {
        match &self.deployments {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the Deployment that names it: {error}")),
        }
    }

    /// spark-usher's Deployment; null if it could not be read.
    fn deployment(&self) -> Value {
        self.deployments.as_ref().ok().and_then(|all| all.first()).cloned().unwrap_or_default()
    }

    /// The pod spec of its Deployment.
    fn pod(&self) -> Value {
        self.deployment().pointer("/spec/template/spec").cloned().unwrap_or_default()
    }

    fn lease_name(&self) -> String {
        argument(&self.pod(), "--lease").unwrap_or_else(|| annotations::USHER.to_owned())
    }

    fn tls_secret(&self) -> Option<String> {
        let pod = self.pod();
        argument(&pod, "--tls-secret").or_else(|| volume(&pod, "secret", "secretName"))
    }

    pub(super) fn creator_policy(&self) -> String {
        argument(&self.pod(), "--creator-policy").unwrap_or_else(|| creator_policy::NAME.to_owned())
    }

    /// Checks which of the required permissions the account has.
    async fn may(&self, client: &Client) -> kube::Result<Vec<(Permission, &'static str, bool)>> {
        let api: Api<SubjectAccessReview> = Api::all(client.clone());
        let reviews = self.questions().into_iter().map(|(permission, verb, names)| {
            let api = &api;
            async move {
                let mut is_allowed = true;
                for name in names {
                    let answer = api.create(&PostParams::default(), &self.review(&permission, verb, name)).await?;
                    is_allowed &= answer.status.is_some_and(|status| status.allowed);
                }
                Ok((permission, verb, is_allowed))
            }
        });
        futures::stream::iter(reviews).buffered(REVIEWS_AT_ONCE).try_collect().await
    }

    /// The permissions that spark-usher needs, each verb with the names for which it is needed; `None` for any.
    fn questions(&self) -> Vec<(Permission, &'static str, Vec<Option<String>>)> {
        let pod = self.pod();
        let named = |name: &str| vec![argument(&pod, name)];
        let of_part = |validates: bool| -> Vec<Option<String>> {
            let parts = self.admission.iter().map(|admission| &admission.installation);
            parts.filter(|part| part.validates() == validates).flat_map(Installation::names).map(Some).collect()
        };
        let mut all = Vec::new();
        for mut permission in rbac::all() {
            let names = match permission.named {
                Named::Lease => vec![Some(self.lease_name())],
                Named::Secret => vec![self.tls_secret()],
                Named::SigningSecret => named("--signing-secret"),
                Named::Configuration if permission.resource.starts_with("mutating") => {
                    named("--mutating-configuration")
                }
                Named::Configuration => named("--validating-configuration"),
                Named::CreatorPolicy => creator_policy::names(&self.creator_policy()).map(Some).to_vec(),
                Named::ValidatingPolicies => of_part(true),
                Named::FallbackPolicies => of_part(false),
                Named::PolicyOwner => {
                    let flag = match permission.when {
                        When::ApplyingValidating => "--validating-policy-owner",
                        _ => "--fallback-policy-owner",
                    };
                    let owner = argument(&pod, flag);
                    let (kind, name) = owner.as_deref().and_then(|owner| owner.split_once('/')).unzip();
                    (permission.group, permission.resource) = match kind {
                        Some("MutatingWebhookConfiguration") => (GROUP, "mutatingwebhookconfigurations"),
                        Some("ValidatingWebhookConfiguration") => (GROUP, "validatingwebhookconfigurations"),
                        _ => (permission.group, permission.resource),
                    };
                    vec![name.map(str::to_owned)]
                }
                Named::Any => vec![None],
            };
            let is_optional = matches!(permission.named, Named::Configuration | Named::PolicyOwner);
            if names.is_empty() || is_optional && names == [None] {
                continue; // There is no such object.
            }
            all.extend(permission.verbs.iter().map(|verb| (permission, *verb, names.clone())));
        }
        all
    }

    fn review(&self, permission: &Permission, verb: &str, name: Option<String>) -> SubjectAccessReview {
        let (resource, subresource) = match permission.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (permission.resource, None),
        };
        SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(self.account.clone()),
                groups: Some(vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{}", self.namespace),
                    "system:authenticated".to_owned(),
                ]),
                resource_attributes: Some(ResourceAttributes {
                    group: Some(permission.group.to_owned()),
                    resource: Some(resource.to_owned()),
                    subresource: subresource.map(str::to_owned),
                    verb: Some(verb.to_owned()),
                    namespace: (permission.scope == Scope::Own).then(|| self.namespace.clone()),
                    name,
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        }
    }
}

/// The name of the ServiceAccount of a pod spec.
fn account_of(pod: &Value) -> &str {
    Some(text(pod, &["serviceAccountName"])).filter(|name| !name.is_empty()).unwrap_or("default")
}

/// The API server's message when it forbids a change of owners (`OwnerReferencesPermissionEnforcement`).
const OWNERS_ENFORCED: &str = "cannot set an ownerRef on a resource you can't delete";

/// The message of the last Event about an adoption that the API server has forbidden.
async fn adoptions_refused(client: &Client) -> Found<Option<String>> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource("", "v1", "Event", "events"));
    let params = ListParams::default().fields(&format!("reason={}", Reason::AdoptionRefused)).limit(MAX_PODS);
    let found = api.list(&params).await.map_err(brief)?;
    let mut messages = found.items.iter().map(|event| text(&event.data, &["message"]));
    Ok(messages.rfind(|message| message.contains(OWNERS_ENFORCED)).map(str::to_owned))
}

/// The images of the Deployments in the namespace of Volcano's webhook: their tags contain its version.
async fn volcano_images(client: &Client, validating: &Found<Vec<Value>>) -> Found<Vec<String>> {
    let found = validating.as_ref().ok().and_then(|all| self::volcano_validates(all));
    let namespace = found.and_then(|(_, webhook)| at(webhook, &["clientConfig", "service", "namespace"])?.as_str());
    let Some(namespace) = namespace else { return Ok(Vec::new()) };
    let all = list_of(client, deployments(), Some(namespace), "").await?;
    let containers = all.iter().flat_map(|one| list(one, &["spec", "template", "spec", "containers"]));
    Ok(containers.map(|container| text(container, &["image"]).to_owned()).collect())
}

/// Reports whether a Deployment is one of spark-usher, whatever its name: a container runs `serve`.
fn serves(deployment: &Value) -> bool {
    let pod = at(deployment, &["spec", "template", "spec"]).unwrap_or(&Value::Null);
    argument(pod, "--webhook-listen").is_some()
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
    let kind = resource("", "v1", "ConfigMap", "configmaps");
    let Some(found) = one(client, kind, namespace, Some(map.clone())).await? else {
        return Ok(Policy::Missing(format!("ConfigMap {map}")));
    };
    Ok(match at(&found, &["data", &file]).and_then(Value::as_str) {
        Some(text) => Policy::Text(text.to_owned()),
        None => Policy::Missing(format!("the key {file} of ConfigMap {map}")),
    })
}

/// The policy file of the installation in this namespace; `None` when spark-usher is not installed there.
pub(super) async fn installed_policy(client: &Client, namespace: &str) -> Found<Option<Policy>> {
    let all = list_of(client, deployments(), Some(namespace), "").await?;
    let Some(deployment) = all.into_iter().find(serves) else { return Ok(None) };
    let pod = deployment.pointer("/spec/template/spec").cloned().unwrap_or_default();
    policy_file(client, namespace, &pod).await.map(Some)
}

/// The value of `--name=value` among the arguments of `serve`; the last one wins, as in the program.
pub(super) fn argument(pod: &Value, name: &str) -> Option<String> {
    let arguments = serve_arguments(pod).into_iter();
    arguments.filter_map(|arg| arg.strip_prefix(name)?.strip_prefix('=')).next_back().map(str::to_owned)
}

/// Admission policies that the replicas of an installation manage, by their arguments.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// The validating policies alone, or the fallback alone.
    pub(super) installation: Installation,
    /// The object to which those that the leader applies belong, KIND/NAME. `None`: an administrator applies them.
    pub(super) owner: Option<String>,
}

fn admission(pod: &Value) -> Vec<Admission> {
    let Some(kinds) = argument(pod, "--admission-policies") else { return Vec::new() };
    let namespaces = argument(pod, "--admission-policy-namespaces").and_then(|text| serde_json::from_str(&text).ok());
    let installation = Installation {
        name: argument(pod, "--admission-policy-names").unwrap_or_else(|| creator_policy::NAME.to_owned()),
        namespaces: namespaces.unwrap_or_else(|| except(&["kube-system".to_owned()])),
        kinds: kinds.split(',').filter_map(Kind::of).collect(),
    };
    let parts = installation.parts().into_iter().map(|installation| {
        let owner = if installation.validates() { "--validating-policy-owner" } else { "--fallback-policy-owner" };
        Admission { owner: argument(pod, owner), installation }
    });
    parts.collect()
}

pub(super) async fn served(client: &Client) -> kube::Result<Vec<String>> {
    let groups = client.list_api_groups().await?;
    let versions = groups.groups.into_iter().flat_map(|group| group.versions);
    Ok(versions.map(|version| version.group_version).collect())
}

/// Creates an executor by dry run.
async fn trial(client: &Client, namespace: &str) -> Found<Trial> {
    let name = format!("spark-usher-doctor-{}", usher_runtime::random::hex(4));
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
        let response = client.send(request).await.map_err(brief)?;
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
