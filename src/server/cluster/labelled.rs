//! Lists of names: only the metadata of objects is read.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::watch;
use usher_kube::request::pages;
use usher_spark::labels;
use usher_spark::names::app_name_of_pod;
use usher_spark::role::Role;

/// Objects per page of a list.
const PAGE: u32 = 500;
/// At most this many pages are read.
const MAX_PAGES: usize = 10;

/// What the labels of a Spark pod say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SparkPod {
    pub name: String,
    /// Driver or executor.
    pub role: Role,
    /// The application's id (label `spark-app-selector`).
    pub app: String,
    /// The application's name (label `spark-app-name`).
    pub label: Option<String>,
}

impl SparkPod {
    fn of(pod: &PartialObjectMeta<Pod>) -> Option<SparkPod> {
        let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).filter(|value| !value.is_empty()).cloned();
        let role = Role::from_label(label(labels::ROLE).as_deref());
        let (name, app) = (pod.metadata.name.clone()?, label(labels::APP_SELECTOR)?);
        Some(SparkPod { name, role, app, label: label(labels::APP_NAME) }).filter(|_| role != Role::Other)
    }

    /// What people call its application.
    pub fn app_name(&self) -> &str {
        self.label.as_deref().unwrap_or_else(|| app_name_of_pod(&self.name))
    }
}

/// The drivers and executors of a namespace, or of all; at most 5,000.
///
/// # Errors
///
/// The API server refuses the request, or does not answer.
pub async fn spark_pods(client: &Client, namespace: Option<&str>) -> kube::Result<Vec<SparkPod>> {
    let api: Api<Pod> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    Ok(metadata(&api, &watch::spark_pods()).await?.iter().filter_map(SparkPod::of).collect())
}

/// The names of cluster-scoped objects; at most 5,000.
///
/// # Errors
///
/// As of [`spark_pods`].
pub async fn names<K: Listed>(client: &Client) -> kube::Result<Vec<String>> {
    let all = metadata(&Api::<K>::all(client.clone()), "").await?;
    Ok(all.into_iter().filter_map(|object| object.metadata.name).collect())
}

/// A kind of object.
pub trait Listed: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug {}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug> Listed for K {}

async fn metadata<K: Listed>(api: &Api<K>, selector: &str) -> kube::Result<Vec<PartialObjectMeta<K>>> {
    let page = ListParams::default().labels(selector).limit(PAGE);
    pages(page, MAX_PAGES, |page| async move { api.list_metadata(&page).await }).await
}
