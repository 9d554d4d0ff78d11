//! Watches: one per resource, each an endless list-and-watch that produces changes of the snapshot.
//!
//! The stream restarts after errors with a growing delay, lists again after a 410, and abandons connections that are silent for
//! longer than the server would be. No watch ends before it is cancelled. Only an object, a bookmark or the end of a list is progress: an
//! API server may open a watch and end it immediately ([`progress`](super::progress)).

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::api::Api;
use kube::core::ApiResource;
use smol_str::SmolStr;
use tokio::sync::{mpsc, watch as channel};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::progress::Progress;
use usher_core::annotations;
use usher_core::snapshot::{
    Change, Group, GroupApi, GroupKey, Namespace, Node, ObservedPod, PodChange, RelatedChange, Watched,
};
use usher_kube::client::Brief;
use usher_kube::stream::{self, Event};
use usher_kube::view::{PriorityClassView, ServiceView, View, Viewed, resource};
use usher_runtime::clock;
use usher_spark::ids::{PodIdentity, PodKey};
use usher_spark::labels;

/// A resource whose objects are watched.
pub(super) trait Source: Send + Sync + 'static {
    /// The plural, for metrics and logs.
    const NAME: &'static str;
    /// Whether the controller follows the progress of this watch: it receives bookmarks and interruptions, and lists in parts.
    const TRACKS_PROGRESS: bool = false;
    /// The view of an object.
    type View: View;
    /// What identifies an object in the snapshot.
    type Key: Send;

    /// The resource to watch.
    fn resource(&self) -> ApiResource;

    /// The label selector, if any.
    fn labels(&self) -> Option<String> {
        None
    }

    /// What identifies this object in the snapshot; pods are identified by their view, if they have one.
    fn key(&self, seen: &Viewed<Self::View>) -> Self::Key;

    /// The change of the snapshot. A list may be a part of all objects, if lists are passed on in parts.
    fn change(&self, seen: Watched<Self::Key, Self::View>) -> Change;

    /// The change when an object was deleted; its view, if it can be read, is its last state.
    fn removed(&self, seen: &Viewed<Self::View>) -> Change {
        self.change(Watched::Removed(self.key(seen)))
    }
}

/// A message to the controller.
#[expect(clippy::large_enum_variant, reason = "nearly all are changes")]
#[derive(Debug)]
pub(super) enum WatchMessage {
    /// Something changed.
    Change(Change),
    /// A list of pods begins.
    PodListStarted,
    /// A part of the list.
    PodListPage(Vec<ObservedPod>),
    /// A pod, by its uid, that cannot be read.
    PodUnreadable(String),
    /// The list is complete.
    PodListFinished,
    /// The watch of pods has shown everything up to this resourceVersion.
    PodBookmark(SmolStr),
    /// The watch of pods is interrupted.
    PodWatchInterrupted,
}

/// The destination of changes.
#[derive(Clone, Debug)]
pub(super) struct Sink {
    /// To the snapshot's writer.
    pub(super) changes: mpsc::Sender<WatchMessage>,
    /// For counting.
    pub(super) metrics: Arc<Metrics>,
}

/// Watches until `stop` is cancelled, with lists in pages.
pub(super) async fn run<S: Source>(client: kube::Client, source: S, sink: Sink, stop: CancellationToken) {
    let mut progress = sink.metrics.unseen.follow(S::NAME);
    follow(&client, &source, false, &sink, &mut progress, &stop).await;
}

/// Watches pods, the one resource with very many objects: lists are streamed (`sendInitialEvents`, Kubernetes 1.32 and newer), if the
/// server is new enough to know the parameter (older ones ignore it, and would never report that the list is complete). It then sends
/// objects one by one from its cache instead of building the whole list. The watch starts again whenever `again` changes, because a
/// poll found something that it should have shown.
pub(super) async fn run_pods(
    client: kube::Client,
    mut again: channel::Receiver<u64>,
    sink: Sink,
    stop: CancellationToken,
) {
    let mut progress = sink.metrics.unseen.follow(Pods::NAME);
    while !stop.is_cancelled() {
        let asked = tokio::time::timeout(VERSION_LIMIT, client.apiserver_version()).await;
        let streaming =
            asked.is_ok_and(|version| version.is_ok_and(|version| streams_lists(&version.major, &version.minor)));
        let this = stop.child_token();
        let following = async {
            if let Stopped::NotStreamed = follow(&client, &Pods, streaming, &sink, &mut progress, &this).await {
                follow(&client, &Pods, false, &sink, &mut progress, &this).await;
            }
        };
        tokio::select! {
            biased;
            () = following => {}
            Ok(()) = again.changed() => {
                tracing::warn!("the watch of pods is silent or has lost a change; restarting it");
                this.cancel();
                let _ = sink.changes.send(WatchMessage::PodWatchInterrupted).await.is_ok();
            }
        }
    }
}

/// The pods of a list are passed on in parts of this size.
const PAGE: usize = 256;

/// Timeout of the request for the server's version.
const VERSION_LIMIT: Duration = Duration::from_secs(5);

/// Whether a server of this version supports `sendInitialEvents` well enough: it is on by default since 1.32.
fn streams_lists(major: &str, minor: &str) -> bool {
    let minor = minor.trim_end_matches(|c: char| !c.is_ascii_digit());
    major == "1" && minor.parse().is_ok_and(|minor: u32| minor >= 32)
}

/// Why a watch ended.
enum Stopped {
    /// It was cancelled.
    Stopped,
    /// The server does not stream lists.
    NotStreamed,
}

/// Streamed lists that may end before they are complete, one after the other.
const MAX_CUT: u32 = 2;

async fn follow<S: Source>(
    client: &kube::Client,
    source: &S,
    streaming: bool,
    sink: &Sink,
    progress: &mut Progress,
    stop: &CancellationToken,
) -> Stopped {
    let api: Api<Viewed<S::View>> = Api::all_with(client.clone(), &source.resource());
    let config = stream::Config { labels: source.labels(), fields: None, streaming };
    let mut events = std::pin::pin!(stream::events(api, config).take_until(stop.cancelled()));
    progress.lost();
    let metrics = &*sink.metrics;
    let mut following = Following {
        source,
        metrics,
        progress,
        streaming,
        listing: Vec::new(),
        is_listing: true,
        cut: 0,
        failing: false,
    };
    loop {
        let event = tokio::select! {
            biased;
            event = events.next() => event,
            () = clock::until(following.progress.next()) => {
                following.failing &= !following.progress.look();
                continue;
            }
        };
        let messages = match event {
            None => return Stopped::Stopped,
            Some(Ok(event)) => following.messages(event),
            Some(Err(error)) => match following.interrupted(&error) {
                Some(messages) => messages,
                None => return Stopped::NotStreamed,
            },
        };
        for message in messages {
            if sink.changes.send(message).await.is_err() {
                return Stopped::Stopped; // The writer has stopped.
            }
        }
    }
}

/// What a watch has shown so far.
struct Following<'w, S: Source> {
    source: &'w S,
    metrics: &'w Metrics,
    progress: &'w mut Progress,
    streaming: bool,
    /// Objects of a list that were not passed on yet.
    listing: Vec<(S::Key, S::View)>,
    /// Whether a list is not complete.
    is_listing: bool,
    /// How many streamed lists were cut, one after the other.
    cut: u32,
    /// Whether the watch has failed and has shown nothing since: the next error is worth a warning.
    failing: bool,
}

impl<S: Source> Following<'_, S> {
    /// The messages that the controller gets for an event.
    fn messages(&mut self, event: Event<Viewed<S::View>>) -> Vec<WatchMessage> {
        let messages = match event {
            Event::Init => {
                self.listing.clear();
                return if_tracked::<S>([WatchMessage::PodListStarted]);
            }
            Event::Opened => {
                self.progress.opened();
                return Vec::new();
            }
            Event::Listed(seen) => {
                self.failing = false;
                match self.open(seen) {
                    Ok(seen) => self.listing.push(seen),
                    Err(uid) => return if_tracked::<S>([WatchMessage::PodUnreadable(uid)]),
                }
                if !S::TRACKS_PROGRESS || self.listing.len() < PAGE {
                    return Vec::new();
                }
                vec![self.list()]
            }
            Event::InitDone(version) => {
                (self.cut, self.is_listing) = (0, false);
                let mut messages = vec![self.list()];
                messages.extend(if_tracked::<S>([
                    WatchMessage::PodListFinished,
                    WatchMessage::PodBookmark(version.into()),
                ]));
                messages
            }
            Event::Apply(seen) => {
                self.metrics.watch_events.with_label_values(&[S::NAME]).inc();
                match self.open(seen) {
                    Ok((key, view)) => vec![WatchMessage::Change(self.source.change(Watched::Upserted(key, view)))],
                    Err(uid) => if_tracked::<S>([WatchMessage::PodUnreadable(uid)]),
                }
            }
            Event::Delete(seen) => {
                self.metrics.watch_events.with_label_values(&[S::NAME]).inc();
                vec![WatchMessage::Change(self.source.removed(&seen))]
            }
            Event::Bookmark(version) => if_tracked::<S>([WatchMessage::PodBookmark(version.into())]),
        };
        self.failing = false;
        if !self.is_listing {
            self.progress.made();
        }
        messages
    }

    /// The objects that were listed since the last call.
    fn list(&mut self) -> WatchMessage {
        match self.source.change(Watched::Listed(std::mem::take(&mut self.listing))) {
            Change::Pods(PodChange::Listed(part)) => WatchMessage::PodListPage(part),
            change => WatchMessage::Change(change),
        }
    }

    /// The messages that the controller gets for an error; `None` if the server does not stream lists.
    fn interrupted(&mut self, error: &stream::Interruption) -> Option<Vec<WatchMessage>> {
        self.metrics.watch_errors.with_label_values(&[S::NAME]).inc();
        self.is_listing |= error.relists();
        if self.streaming && self.is_listing {
            self.cut += error.unstreamed();
            if self.cut >= MAX_CUT {
                tracing::info!(resource = S::NAME, error = %Brief(error), "the API server does not stream the list; it is read in pages");
                return None;
            }
        }
        self.progress.lost();
        // After a 410 the watch lists again, and a restart of the server cuts connections: neither is worth a warning the first time.
        if std::mem::replace(&mut self.failing, true) {
            tracing::warn!(resource = S::NAME, error = %Brief(error), "the watch failed; retrying");
        } else {
            tracing::debug!(resource = S::NAME, error = %Brief(error), "the watch was interrupted; restarting it");
        }
        Some(if_tracked::<S>([WatchMessage::PodWatchInterrupted]))
    }

    /// The key and the view of an object. One that cannot be read is counted, and only its uid is returned.
    fn open(&self, mut seen: Viewed<S::View>) -> Result<(S::Key, S::View), String> {
        let Some(view) = seen.view.take() else {
            self.metrics.malformed.with_label_values(&[S::NAME]).inc();
            if self.metrics.warned_malformed.is_due(seen.uid(), clock::instant()) {
                tracing::warn!(
                    resource = S::NAME,
                    namespace = seen.namespace(),
                    name = seen.name(),
                    "cannot parse an object; skipping it. Later events of it are logged once a minute"
                );
            }
            return Err(seen.uid().to_owned());
        };
        Ok((self.source.key(&seen), view))
    }
}

/// These messages, if the controller follows the progress of the watch.
fn if_tracked<S: Source>(messages: impl Into<Vec<WatchMessage>>) -> Vec<WatchMessage> {
    if S::TRACKS_PROGRESS { messages.into() } else { Vec::new() }
}

/// The selector of pods with a Spark role in an application.
pub(super) fn spark_pods() -> String {
    format!("{} in ({}, {}), {}", labels::ROLE, labels::ROLE_DRIVER, labels::ROLE_EXECUTOR, labels::APP_SELECTOR)
}

/// Pods with a Spark role.
pub(super) struct Pods;

impl Source for Pods {
    const NAME: &'static str = "pods";
    const TRACKS_PROGRESS: bool = true;
    type View = ObservedPod;
    type Key = PodIdentity;

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Pod", Self::NAME)
    }

    fn labels(&self) -> Option<String> {
        Some(spark_pods())
    }

    fn key(&self, seen: &Viewed<ObservedPod>) -> PodIdentity {
        PodIdentity { key: PodKey::new(seen.namespace(), seen.name()), uid: seen.uid().into() }
    }

    fn change(&self, seen: Watched<PodIdentity, ObservedPod>) -> Change {
        Change::Pods(match seen {
            Watched::Upserted(_, pod) => PodChange::Observed(pod),
            Watched::Removed(PodIdentity { key, uid }) => PodChange::Gone(key, uid),
            Watched::Listed(all) => PodChange::Listed(all.into_iter().map(|(_, pod)| pod).collect()),
        })
    }

    fn removed(&self, seen: &Viewed<ObservedPod>) -> Change {
        match &seen.view {
            Some(view) => Change::Pods(PodChange::Deleted(view.clone())),
            None => self.change(Watched::Removed(self.key(seen))),
        }
    }
}

/// Namespaces: policies select by their labels.
pub(super) struct Namespaces;

impl Source for Namespaces {
    const NAME: &'static str = "namespaces";
    type View = Namespace;
    type Key = Arc<str>;

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Namespace", Self::NAME)
    }

    fn key(&self, seen: &Viewed<Namespace>) -> Arc<str> {
        seen.name().into()
    }

    fn change(&self, seen: Watched<Arc<str>, Namespace>) -> Change {
        RelatedChange::Namespaces(seen).into()
    }
}

/// Nodes: which exist, and the version of their kubelets.
pub(super) struct Nodes;

impl Source for Nodes {
    const NAME: &'static str = "nodes";
    type View = Node;
    type Key = Arc<str>;

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Node", Self::NAME)
    }

    fn key(&self, seen: &Viewed<Node>) -> Arc<str> {
        seen.name().into()
    }

    fn change(&self, seen: Watched<Arc<str>, Node>) -> Change {
        RelatedChange::Nodes(seen).into()
    }
}

/// Services of drivers: `SPARK_DRIVER_URL` names them (`docs/spark.md#environment-variables`).
pub(super) struct Services;

impl Source for Services {
    const NAME: &'static str = "services";
    type View = ServiceView;
    type Key = PodKey;

    fn resource(&self) -> ApiResource {
        resource("", "v1", "Service", Self::NAME)
    }

    fn labels(&self) -> Option<String> {
        Some(labels::APP_SELECTOR.to_owned())
    }

    fn key(&self, seen: &Viewed<ServiceView>) -> PodKey {
        PodKey::new(seen.namespace(), seen.name())
    }

    fn change(&self, seen: Watched<PodKey, ServiceView>) -> Change {
        RelatedChange::Services(seen.filter_map(|view| view.0)).into()
    }
}

/// Priority classes: the API server rejects a pod that names one that does not exist.
pub(super) struct PriorityClasses;

impl Source for PriorityClasses {
    const NAME: &'static str = "priorityclasses";
    type View = PriorityClassView;
    type Key = Arc<str>;

    fn resource(&self) -> ApiResource {
        resource("scheduling.k8s.io", "v1", "PriorityClass", Self::NAME)
    }

    fn key(&self, seen: &Viewed<PriorityClassView>) -> Arc<str> {
        seen.name().into()
    }

    fn change(&self, seen: Watched<Arc<str>, PriorityClassView>) -> Change {
        RelatedChange::PriorityClasses(seen.map(|PriorityClassView| ())).into()
    }
}

/// PodGroups with our `managed-by` label, of one scheduler type.
pub(super) struct Groups {
    pub(super) scheduler: &'static str,
    pub(super) api: &'static GroupApi,
}

/// The resource of a PodGroup API.
pub(super) fn group_resource(api: &GroupApi) -> ApiResource {
    resource(api.group, api.version, api.kind, api.plural)
}

impl Source for Groups {
    const NAME: &'static str = "podgroups";
    type View = Group;
    type Key = GroupKey;

    fn resource(&self) -> ApiResource {
        group_resource(self.api)
    }

    fn labels(&self) -> Option<String> {
        Some(format!("{}={}", annotations::MANAGED_BY, annotations::USHER))
    }

    fn key(&self, seen: &Viewed<Group>) -> GroupKey {
        GroupKey { namespace: seen.namespace().into(), name: seen.name().into(), scheduler: self.scheduler }
    }

    fn change(&self, seen: Watched<GroupKey, Group>) -> Change {
        RelatedChange::Groups(self.scheduler, seen).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_net::telemetry::registry::Registry;

    #[test]
    fn list_streaming_requires_kubernetes_1_32() {
        assert!(streams_lists("1", "32") && streams_lists("1", "36+"));
        assert!(!streams_lists("1", "31") && !streams_lists("1", "") && !streams_lists("0", "40"));
    }

    /// Polls contain such pods too: without their uids, the watch would seem to have lost them.
    #[tokio::test]
    async fn unreadable_pod_is_reported_by_uid() {
        use http_body_util::Full;

        let pod = |name: &str, containers: usize| {
            let labels = serde_json::json!({"spark-role": "executor", "spark-app-selector": "a", "spark-exec-id": "1"});
            let metadata = serde_json::json!({"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "labels": labels});
            let containers = vec![serde_json::json!({"name": "c"}); containers];
            serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}})
        };
        let items = [pod("good", 1), pod("bad", 65)];
        let list = serde_json::json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items});
        // In the order of an API server: the type first.
        let event = format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", pod("worse", 65));
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
            let body = if is_watch { event.clone() } else { list.to_string() };
            async move { Ok::<_, std::convert::Infallible>(hyper::Response::new(Full::new(bytes::Bytes::from(body)))) }
        });
        let (changes, mut receiver) = mpsc::channel(64);
        let sink = Sink { changes, metrics: Arc::new(Metrics::register(&Registry::default()).unwrap()) };
        let (client, stop) = (kube::Client::new(service, "n"), CancellationToken::new());
        let reading = async {
            let mut unreadable = Vec::new();
            while unreadable.len() < 2 {
                if let Some(WatchMessage::PodUnreadable(uid)) = receiver.recv().await {
                    unreadable.push(uid);
                }
            }
            unreadable
        };
        let mut progress = sink.metrics.unseen.follow("pods");
        let unreadable = tokio::select! {
            _ = follow(&client, &Pods, false, &sink, &mut progress, &stop) => panic!("the watch ended unexpectedly"),
            unreadable = tokio::time::timeout(Duration::from_secs(10), reading) => unreadable.expect("both uids are passed on"),
        };
        assert_eq!(unreadable, ["bad", "worse"]);
        assert!(sink.metrics.malformed.with_label_values(&["pods"]).get() >= 2);
    }
}
