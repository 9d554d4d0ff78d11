//! Watches: one a resource, each an endless list-and-watch that turns into changes of the snapshot.
//!
//! kube's watcher restarts after errors with a growing pause, lists again after 410, and gives up on connections that
//! are silent for longer than the server would be. Nothing here ends before it is told to.

use std::fmt;
use std::sync::Arc;

use futures::StreamExt;
use kube::api::Api;
use kube::core::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::view::{PriorityClassView, Seen, ServiceView, View, resource};
use crate::snapshot::{Change, Group, GroupApi, GroupKey, Namespace, Replaced, Sighting};
use crate::spark::ids::PodKey;
use crate::spark::labels;
use crate::telemetry::metrics::Metrics;

/// How a watch of one resource becomes changes.
pub(super) trait Source: Send + Sync + 'static {
    /// The view of an object.
    type View: View;
    /// The plural, for metrics and logs.
    fn name(&self) -> &'static str;
    /// What is watched.
    fn resource(&self) -> ApiResource;
    /// Which of them.
    fn labels(&self) -> Option<String> {
        None
    }
    /// An object was added or modified.
    fn present(&self, seen: Seen<Self::View>, view: Self::View) -> Change;
    /// An object is gone.
    fn gone(&self, seen: &Seen<Self::View>) -> Change;
    /// All objects, listed anew.
    fn all(&self, all: Vec<(Seen<()>, Self::View)>) -> Replaced;
}

impl View for () {
    fn read(_: &str) -> Option<Self> {
        Some(())
    }
}

/// Where changes go.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    /// To the snapshot's writer.
    pub(super) changes: mpsc::Sender<Change>,
    /// For counting.
    pub(super) metrics: Arc<Metrics>,
}

/// Watches until told to stop.
pub(super) async fn run<S: Source>(client: kube::Client, source: S, sink: Sink, stop: CancellationToken) {
    let resource = source.resource();
    let api: Api<Seen<S::View>> = Api::all_with(client, &resource);
    let mut config = watcher::Config::default();
    if let Some(labels) = source.labels() {
        config = config.labels(&labels);
    }
    let events = watch(api, config).default_backoff().take_until(stop.cancelled_owned());
    let mut events = std::pin::pin!(events);
    let (mut listing, mut failing) = (Vec::new(), false);
    let name = source.name();
    while let Some(event) = events.next().await {
        let change = match event {
            Err(error) => {
                sink.metrics.watch_errors.with_label_values(&[name]).inc();
                // 410 is how a watch is told to list anew, and a cut connection how a server restarts: not worth a word
                // the first time.
                if failing {
                    tracing::warn!(resource = name, error = %Brief(&error), "the watch fails and is tried again");
                } else {
                    tracing::debug!(resource = name, error = %Brief(&error), "the watch broke off and is started again");
                }
                failing = true;
                continue;
            }
            Ok(Event::Init) => {
                listing.clear();
                continue;
            }
            Ok(Event::InitApply(seen)) => {
                if let Some((seen, view)) = open(seen, name, &sink.metrics) {
                    listing.push((seen.without_view(), view));
                }
                continue;
            }
            Ok(Event::InitDone) => Change::Replaced(source.all(std::mem::take(&mut listing))),
            Ok(Event::Apply(seen)) => {
                sink.metrics.watch_events.with_label_values(&[name]).inc();
                match open(seen, name, &sink.metrics) {
                    Some((seen, view)) => source.present(seen, view),
                    None => continue,
                }
            }
            Ok(Event::Delete(seen)) => {
                sink.metrics.watch_events.with_label_values(&[name]).inc();
                source.gone(&seen)
            }
        };
        failing = false;
        if sink.changes.send(change).await.is_err() {
            return; // The writer has stopped.
        }
    }
}

/// The view of an object; one that cannot be read is counted and skipped.
fn open<V: View>(mut seen: Seen<V>, resource: &'static str, metrics: &Metrics) -> Option<(Seen<V>, V)> {
    let Some(view) = seen.view.take() else {
        metrics.malformed.with_label_values(&[resource]).inc();
        tracing::warn!(resource, namespace = seen.namespace(), name = seen.name(), "an object cannot be read; skipped");
        return None;
    };
    Some((seen, view))
}

/// What went wrong, in a line: the API server's own words, or the last cause.
struct Brief<'e>(&'e watcher::Error);

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut error: &dyn std::error::Error = self.0;
        loop {
            if let Some(kube::Error::Api(status)) = error.downcast_ref() {
                return write!(f, "{} ({})", status.message, status.code);
            }
            match error.source() {
                Some(source) => error = source,
                None => return write!(f, "{error}"),
            }
        }
    }
}

/// Pods with a Spark role.
pub(super) struct Pods;

impl Source for Pods {
    type View = Sighting;

    fn name(&self) -> &'static str {
        "pods"
    }

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Pod", "pods")
    }

    fn labels(&self) -> Option<String> {
        Some(format!("{} in ({}, {})", labels::ROLE, labels::ROLE_DRIVER, labels::ROLE_EXECUTOR))
    }

    fn present(&self, _: Seen<Sighting>, view: Sighting) -> Change {
        Change::Pod(view)
    }

    fn gone(&self, seen: &Seen<Sighting>) -> Change {
        Change::PodGone(PodKey::new(seen.namespace(), seen.name()), seen.uid().into())
    }

    fn all(&self, all: Vec<(Seen<()>, Sighting)>) -> Replaced {
        Replaced::Pods(all.into_iter().map(|(_, view)| view).collect())
    }
}

/// Namespaces: policies select by their labels.
pub(super) struct Namespaces;

impl Source for Namespaces {
    type View = Namespace;

    fn name(&self) -> &'static str {
        "namespaces"
    }

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Namespace", "namespaces")
    }

    fn present(&self, seen: Seen<Namespace>, view: Namespace) -> Change {
        Change::Namespace(seen.name().into(), view)
    }

    fn gone(&self, seen: &Seen<Namespace>) -> Change {
        Change::NamespaceGone(seen.name().into())
    }

    fn all(&self, all: Vec<(Seen<()>, Namespace)>) -> Replaced {
        Replaced::Namespaces(all.into_iter().map(|(seen, view)| (seen.name().into(), view)).collect())
    }
}

/// Services of drivers: `SPARK_DRIVER_URL` names them (SPARK.md §1).
pub(super) struct Services;

impl Source for Services {
    type View = ServiceView;

    fn name(&self) -> &'static str {
        "services"
    }

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Service", "services")
    }

    fn labels(&self) -> Option<String> {
        Some(labels::APP_SELECTOR.to_owned())
    }

    fn present(&self, seen: Seen<ServiceView>, view: ServiceView) -> Change {
        let key = PodKey::new(seen.namespace(), seen.name());
        match view.0 {
            Some(owner) => Change::Service(key, owner),
            None => Change::ServiceGone(key),
        }
    }

    fn gone(&self, seen: &Seen<ServiceView>) -> Change {
        Change::ServiceGone(PodKey::new(seen.namespace(), seen.name()))
    }

    fn all(&self, all: Vec<(Seen<()>, ServiceView)>) -> Replaced {
        let owned =
            all.into_iter().filter_map(|(seen, view)| Some((PodKey::new(seen.namespace(), seen.name()), view.0?)));
        Replaced::Services(owned.collect())
    }
}

/// Priority classes: a pod that names one that is not there would be refused.
pub(super) struct PriorityClasses;

impl Source for PriorityClasses {
    type View = PriorityClassView;

    fn name(&self) -> &'static str {
        "priorityclasses"
    }

    fn resource(&self) -> ApiResource {
        resource("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses")
    }

    fn present(&self, seen: Seen<PriorityClassView>, _: PriorityClassView) -> Change {
        Change::PriorityClass(seen.name().into())
    }

    fn gone(&self, seen: &Seen<PriorityClassView>) -> Change {
        Change::PriorityClassGone(seen.name().into())
    }

    fn all(&self, all: Vec<(Seen<()>, PriorityClassView)>) -> Replaced {
        Replaced::PriorityClasses(all.into_iter().map(|(seen, _)| seen.name().into()).collect())
    }
}

/// PodGroups that carry our mark, of one scheduler type.
pub(super) struct Groups {
    pub(super) scheduler: &'static str,
    pub(super) api: &'static GroupApi,
}

impl Groups {
    fn key<V>(&self, seen: &Seen<V>) -> GroupKey {
        GroupKey { namespace: seen.namespace().into(), name: seen.name().into(), scheduler: self.scheduler }
    }
}

/// The resource of a PodGroup API.
pub(super) fn group_resource(api: &GroupApi) -> ApiResource {
    resource(api.group, api.version, api.kind, api.plural)
}

impl Source for Groups {
    type View = Group;

    fn name(&self) -> &'static str {
        "podgroups"
    }

    fn resource(&self) -> ApiResource {
        group_resource(self.api)
    }

    fn labels(&self) -> Option<String> {
        Some(format!("{}={}", labels::MANAGED_BY, labels::USHER))
    }

    fn present(&self, seen: Seen<Group>, view: Group) -> Change {
        Change::Group(self.key(&seen), view)
    }

    fn gone(&self, seen: &Seen<Group>) -> Change {
        Change::GroupGone(self.key(seen))
    }

    fn all(&self, all: Vec<(Seen<()>, Group)>) -> Replaced {
        Replaced::Groups(self.scheduler, all.into_iter().map(|(seen, view)| (self.key(&seen), view)).collect())
    }
}
