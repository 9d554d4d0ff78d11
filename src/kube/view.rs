//! Lean views: of each object only the facts that the snapshot keeps, extracted during deserialization.
//!
//! A pod on the wire is 10 kB; the facts are a few hundred bytes, and nothing else is ever allocated. An object that cannot be
//! read becomes a [`Viewed`] without a view: it is counted and skipped, and never stops a watch.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::ApiResource;
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use usher_core::annotations::{self, Overrides};
use usher_core::gang::{self, messages};
use usher_core::snapshot::{Group, Namespace, Node, ObservedPod, Owner, Quota, ServiceOwner};
use usher_spark::labels;
use usher_spark::pod::{OwnerReference, Pod};
use usher_spark::wire_text::first_of;

/// Builds an [`ApiResource`] from its parts.
pub fn resource(group: &str, version: &str, kind: &str, plural: &str) -> ApiResource {
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version,
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

/// Pods, read as something else than `k8s_openapi`'s type: each deserializer of that adds half a megabyte to the program.
pub fn pods() -> ApiResource {
    resource("", "v1", "Pod", "pods")
}

/// The facts that the snapshot keeps of one kind of object.
pub trait View: Sized + Clone + std::fmt::Debug + Send + Sync + 'static {
    /// Reads them from the object's JSON; `None` if it cannot be read.
    fn read(json: &str) -> Option<Self>;
}

/// A received object: its identity and its view.
#[derive(Clone, Debug)]
pub struct Viewed<V> {
    meta: ObjectMeta,
    /// `None` if the object cannot be read.
    pub view: Option<V>,
}

impl<V> Viewed<V> {
    /// Its namespace; empty for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.meta.namespace.as_deref().unwrap_or_default()
    }

    pub fn name(&self) -> &str {
        self.meta.name.as_deref().unwrap_or_default()
    }

    pub fn uid(&self) -> &str {
        self.meta.uid.as_deref().unwrap_or_default()
    }
}

/// The identity of an object, however malformed the rest is.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Head {
    metadata: HeadMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct HeadMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl<'de, V: View> Deserialize<'de> for Viewed<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let HeadMeta { name, namespace, uid, resource_version } =
            serde_json::from_str::<Head>(raw).unwrap_or_default().metadata;
        let meta = ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() };
        Ok(Viewed { view: V::read(raw), meta })
    }
}

impl<V: View> kube::Resource for Viewed<V> {
    type DynamicType = ApiResource;
    type Scope = kube::core::DynamicResourceScope;

    fn kind(dt: &ApiResource) -> Cow<'_, str> {
        dt.kind.as_str().into()
    }

    fn group(dt: &ApiResource) -> Cow<'_, str> {
        dt.group.as_str().into()
    }

    fn version(dt: &ApiResource) -> Cow<'_, str> {
        dt.version.as_str().into()
    }

    fn api_version(dt: &ApiResource) -> Cow<'_, str> {
        dt.api_version.as_str().into()
    }

    fn plural(dt: &ApiResource) -> Cow<'_, str> {
        dt.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl View for ObservedPod {
    fn read(json: &str) -> Option<Self> {
        ObservedPod::of(&Pod::read_whole(json.as_bytes()).ok()?, gang::scheduling_keys())
    }
}

/// The `metadata` of any object.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<jiff::Timestamp>,
    deletion_timestamp: Option<serde::de::IgnoredAny>,
    labels: Option<BTreeMap<String, String>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(default)]
    metadata: Meta,
    #[serde(borrow, default)]
    spec: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<GroupStatus>,
}

#[derive(Deserialize)]
struct GroupStatus {
    #[serde(default)]
    phase: Option<String>,
    #[serde(default, deserialize_with = "first_of")]
    conditions: Option<Vec<Value>>,
}

/// The longest phase that is kept: the longest of any scheduler has 13 characters.
const MAX_PHASE: usize = 32;

fn whole(json: &str) -> Option<Whole<'_>> {
    serde_json::from_str(json).ok()
}

/// The controlling owner, if it is a pod. Read separately, so that the common part stays simple.
fn owner_pod(json: &str) -> Option<(Arc<str>, Arc<str>)> {
    #[derive(Deserialize)]
    struct Owned<'a> {
        #[serde(borrow)]
        metadata: Owners<'a>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Owners<'a> {
        #[serde(borrow, default)]
        owner_references: Option<Vec<OwnerReference<'a>>>,
    }
    let owners = serde_json::from_str::<Owned<'_>>(json).ok()?.metadata.owner_references?;
    let owner = owners.iter().find(|owner| owner.controller == Some(true) && owner.is_pod())?;
    Some((owner.name.as_str().into(), owner.uid.as_str().into()))
}

impl View for Namespace {
    fn read(json: &str) -> Option<Self> {
        let Meta { labels, annotations, .. } = whole(json)?.metadata;
        let annotations = annotations.unwrap_or_default();
        Some(Namespace {
            labels: labels.unwrap_or_default(),
            overrides: Overrides::read(|key| annotations.get(key).map(String::as_str)),
        })
    }
}

impl View for Node {
    fn read(json: &str) -> Option<Self> {
        Node::read(json)
    }
}

/// A Service: the driver's pod that owns it, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView(pub Option<ServiceOwner>);

impl View for ServiceView {
    fn read(json: &str) -> Option<Self> {
        whole(json)?;
        Some(ServiceView(owner_pod(json).map(|(name, uid)| ServiceOwner { name, uid })))
    }
}

/// A priority class, of which only the name is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PriorityClassView;

impl View for PriorityClassView {
    fn read(json: &str) -> Option<Self> {
        whole(json).map(|_| PriorityClassView)
    }
}

impl View for Quota {
    fn read(json: &str) -> Option<Self> {
        Quota::read(json)
    }
}

impl View for Group {
    fn read(json: &str) -> Option<Self> {
        let Whole { metadata, spec, status } = whole(json)?;
        let entry = |map: &Option<BTreeMap<String, String>>, key: &str| map.as_ref()?.get(key).cloned();
        let (phase, conditions) = status.map(|status| (status.phase, status.conditions)).unwrap_or_default();
        Some(Group {
            uid: metadata.uid?.into(),
            version: metadata.resource_version?.into(),
            selector: entry(&metadata.labels, labels::APP_SELECTOR).map(Arc::from),
            owner: owner_pod(json).map(|(name, uid)| Owner::of_pod(name, uid)),
            started: entry(&metadata.annotations, annotations::STARTED).as_deref() == Some("true"),
            created: metadata.creation_timestamp.map(jiff::Timestamp::as_second),
            deleting: metadata.deletion_timestamp.is_some(),
            phase: phase.filter(|phase| phase.len() <= MAX_PHASE).map(Arc::from),
            waits: messages::of_group(&conditions.unwrap_or_default()),
            spec: spec.map_or(Some(Value::Null), |raw| serde_json::from_str(raw.get()).ok())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::WatchEvent;

    #[test]
    fn malformed_object_keeps_metadata_and_has_no_view() {
        let line = r#"{"type":"ADDED","object":{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":[1]}}}"#;
        let event: WatchEvent<Viewed<ObservedPod>> = serde_json::from_str(line).unwrap();
        let WatchEvent::Added(seen) = event else { panic!("{event:?}") };
        assert_eq!((seen.name(), seen.namespace(), seen.uid()), ("a", "n", "u"));
        assert_eq!(seen.meta.resource_version.as_deref(), Some("7"));
        assert!(seen.view.is_none());
        for odd in ["[]", "1", r#"{"metadata":3}"#, r#"{"metadata":{"name":{}}}"#] {
            let seen: Viewed<ObservedPod> = serde_json::from_str(odd).unwrap();
            assert!(seen.view.is_none() && seen.name().is_empty(), "{odd}");
        }
    }

    #[test]
    fn podgroup_view_contains_owner_and_spec() {
        let json = r#"{"metadata":{"name":"g","uid":"u","resourceVersion":"7","labels":{"spark-app-selector":"a"},
            "annotations":{"spark-usher.io/started":"true"},
            "ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"d","uid":"du","controller":true}]},
            "spec":{"minMember":3}}"#;
        let group = Group::read(json).unwrap();
        let owner = group.owner.as_ref().map(|owner| (&*owner.name, &*owner.uid));
        assert_eq!((group.selector.as_deref(), owner), (Some("a"), Some(("d", "du"))));
        assert!(group.started && !group.deleting);
        assert_eq!(group.spec, serde_json::json!({"minMember": 3}));
        assert!(Group::read(r#"{"metadata":{"name":"g"}}"#).is_none(), "no uid");
    }

    #[test]
    fn service_view_contains_only_its_owner() {
        let owned = r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"d","uid":"u","controller":true}]}}"#;
        let owner = ServiceOwner { name: "d".into(), uid: "u".into() };
        assert_eq!(ServiceView::read(owned), Some(ServiceView(Some(owner))));
        assert_eq!(ServiceView::read(r#"{"metadata":{}}"#), Some(ServiceView(None)));
        assert_eq!(ServiceView::read("1"), None);
    }
}
