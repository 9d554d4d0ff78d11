//! Reads by name: drivers without labels, and the configuration of drivers.

use std::time::Duration;

use kube::api::{Api, ListParams};
use serde::Deserialize;

use super::limit::Priority;
use super::poll;
use super::view::{Seen, View, resource};
use crate::lifecycle::{Answer, Read};
use crate::plant::{self, Bug};
use crate::snapshot::{Conf, DriverPod, Sighting};
use crate::spark::conf::AppConf;
use crate::spark::labels;
use crate::telemetry::metrics::Metrics;

/// How long a read may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Any pod that may drive an application, labelled or not.
#[derive(Clone, Debug)]
pub(super) struct AnyPod(pub(super) DriverPod);

impl View for AnyPod {
    fn read(json: &str) -> Option<Self> {
        use crate::spark::pod::Pod;
        let pod = Pod::read_whole(json.as_bytes()).ok()?;
        Sighting::read(json)?; // Only what has a name, a namespace and a uid.
        Some(AnyPod(DriverPod::of(&pod, crate::gang::seat_keys())))
    }
}

/// The configuration in a driver's ConfigMap. Of its text only the keys of [`AppConf`] are kept: credentials live there.
#[derive(Clone, Debug)]
struct ConfView(Conf);

impl View for ConfView {
    fn read(json: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct ConfigMap {
            data: Option<std::collections::BTreeMap<String, String>>,
        }
        let data = serde_json::from_str::<ConfigMap>(json).ok()?.data.unwrap_or_default();
        let properties = data.get(labels::PROPERTIES_KEY);
        Some(ConfView(
            properties.map_or(Conf::Unreadable, |text| Conf::Known(std::sync::Arc::new(AppConf::parse(text)))),
        ))
    }
}

/// How soon a read's turn comes.
pub(super) fn priority(read: &Read) -> Priority {
    match read {
        Read::Labelled(_) | Read::All(_) => Priority::Confirmation,
        Read::Pod(_) | Read::Address(..) | Read::Conf(..) => Priority::Group,
    }
}

/// Lists all pods of a namespace, whatever their labels.
pub(super) async fn all_of(client: &kube::Client, namespace: &str, metrics: &Metrics) -> Answer {
    match poll::all_of(client, namespace, metrics).await {
        Ok(all) => Answer::All(all),
        Err(error) => {
            tracing::debug!(namespace, %error, "the pods of a namespace cannot be listed; tried again");
            Answer::Failed
        }
    }
}

/// Reads one object.
pub(super) async fn read(client: kube::Client, read: &Read) -> Answer {
    let reading = async {
        match read {
            Read::All(_) => Ok(None), // No object: see `all_of`.
            Read::Pod(pod) => Ok(pod_named(&client, pod.namespace(), pod.name()).await?.map(Answer::Pod)),
            Read::Address(namespace, address) => Ok(pod_at(&client, namespace, address).await?.map(Answer::Pod)),
            Read::Conf(pod, _, conf_map) => {
                let api: Api<Seen<ConfView>> =
                    Api::namespaced_with(client, pod.namespace(), &resource("", "v1", "ConfigMap", "configmaps"));
                let found = api.get_opt(conf_map).await?;
                Ok(found.map(|seen| Answer::Conf(seen.view.map_or(Conf::Unreadable, |view| view.0))))
            }
            Read::Labelled(pod) => {
                let pods = resource("", "v1", "Pod", "pods");
                let api: Api<Seen<Sighting>> = Api::namespaced_with(client, pod.namespace(), &pods);
                let found = api.get_opt(pod.name()).await?;
                // One that cannot be read is there all the same; the watch counts it.
                Ok(found.map(|seen| seen.view.map_or(Answer::Failed, Answer::Sighting)))
            }
        }
    };
    match tokio::time::timeout(LIMIT, reading).await {
        Ok(Ok(Some(answer))) => answer,
        Ok(Ok(None)) => Answer::Absent,
        Ok(Err(error)) => {
            let error: kube::Error = error;
            tracing::debug!(?read, %error, "cannot be read; tried again");
            if plant::is(Bug::ErrorIsAbsent) { Answer::Absent } else { Answer::Failed }
        }
        Err(_) => Answer::Failed,
    }
}

/// A pod by name, read from the API server itself.
pub(super) async fn pod_named(client: &kube::Client, namespace: &str, name: &str) -> kube::Result<Option<DriverPod>> {
    let api: Api<Seen<AnyPod>> = Api::namespaced_with(client.clone(), namespace, &resource("", "v1", "Pod", "pods"));
    match api.get_opt(name).await? {
        None => Ok(None),
        // A pod that cannot be read is there all the same.
        Some(seen) => match seen.view {
            Some(view) => Ok(Some(view.0)),
            None => Err(kube::Error::Service(format!("pod {name} cannot be read").into())),
        },
    }
}

/// The pod that has this address; two may claim it while one is on its way out, and then neither is believed.
async fn pod_at(client: &kube::Client, namespace: &str, address: &str) -> kube::Result<Option<DriverPod>> {
    let api: Api<Seen<AnyPod>> = Api::namespaced_with(client.clone(), namespace, &resource("", "v1", "Pod", "pods"));
    // From the API server's cache: nothing is done because of it before the pod is read by its name.
    let found = api.list(&ListParams::default().fields(&format!("status.podIP={address}")).match_any()).await?;
    let mut drivers = found.items.into_iter().filter_map(|seen| seen.view).map(|view| view.0);
    let living = drivers.by_ref().filter(|driver| driver.life != crate::snapshot::Life::Ended).collect::<Vec<_>>();
    match <[DriverPod; 1]>::try_from(living) {
        Ok([driver]) if driver.address.is_some() => Ok(Some(driver)),
        _ => Ok(None),
    }
}
