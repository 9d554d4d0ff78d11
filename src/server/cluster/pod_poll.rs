//! The poll: a full list of all Spark pods, which the leader reads independently of the watch.
//!
//! It requests only the metadata of each pod (`PartialObjectMetadataList`), from the API server's watch cache if that is as new
//! as what we have observed (`resourceVersionMatch=NotOlderThan`): neither etcd nor the network carries a hundred thousand whole
//! pods. The metadata include managedFields, about 5.6 kB per pod, so the answer is requested in gzip; only name, uid and
//! resourceVersion are kept. If such polls fail repeatedly, the list is read in pages, slowly.

use std::time::Duration;

use arc_swap::ArcSwap;
use futures::AsyncBufReadExt as _;
use kube::api::{ListParams, Request, VersionMatch};
use serde::Deserialize;

use super::metrics::Metrics;
use super::watch;
use usher_core::controller::PollResult;
use usher_core::snapshot::{Listed, Snapshot};
use usher_runtime::clock;
use usher_spark::json::Items;

/// Timeout of the answer's first byte: an API server builds, and compresses, a large list before it.
const BUILDS: Duration = Duration::from_secs(60);
/// Timeout of each further part of the answer: a connection that is silently dead is abandoned.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of a whole poll.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(240);
/// Objects per page.
const PAGE: u32 = 500;
/// The pause between pages.
const BETWEEN_PAGES: Duration = Duration::from_millis(100);

#[derive(Deserialize)]
struct Item {
    metadata: ItemMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ItemMeta {
    #[serde(default)]
    namespace: String,
    name: String,
    uid: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct Rest {
    metadata: RestMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestMeta {
    resource_version: String,
    #[serde(default, rename = "continue")]
    more: Option<String>,
}

/// Polls all Spark pods. `newest` is the newest resourceVersion that was observed of any pod; `paged` requests pages.
pub(super) async fn poll(
    client: &kube::Client,
    snapshot: &ArcSwap<Snapshot>,
    newest: Option<String>,
    paged: bool,
    metrics: &Metrics,
) -> Option<PollResult> {
    let reading = async {
        match paged {
            true => in_pages(client, snapshot, PAGE, metrics).await,
            false => in_one_list(client, snapshot, newest, metrics).await,
        }
    };
    let outcome = match tokio::time::timeout(REQUEST_TIMEOUT, reading).await {
        Ok(outcome) => outcome,
        Err(_) => Err(anyhow::anyhow!("no answer within {REQUEST_TIMEOUT:?}")),
    };
    let result = if outcome.is_ok() { "ok" } else { "failed" };
    metrics.polls.with_label_values(&[result]).inc();
    if outcome.is_ok() {
        #[expect(clippy::cast_precision_loss, reason = "seconds since 1970 fit a float's 53 bits")]
        metrics.poll_success.set(clock::now().as_second() as f64);
    }
    match outcome {
        Ok(polled) => {
            tracing::debug!(pods = polled.len(), paged, "polled");
            Some(polled)
        }
        Err(error) => {
            tracing::warn!(%error, paged, "the poll of all Spark pods failed; retrying");
            None
        }
    }
}

/// The path of all pods of the cluster.
const PODS: &str = "/api/v1/pods";

async fn in_one_list(
    client: &kube::Client,
    snapshot: &ArcSwap<Snapshot>,
    newest: Option<String>,
    metrics: &Metrics,
) -> anyhow::Result<PollResult> {
    let version = newest.unwrap_or_else(|| "0".to_owned());
    let params = ListParams::default().at(&version).matching(VersionMatch::NotOlderThan).labels(&watch::spark_pods());
    let mut polled = PollResult::default();
    let rest = list(client, PODS, params, metrics, |pod| add(&mut polled, snapshot, &pod)).await?;
    anyhow::ensure!(rest.more.is_none_or(|more| more.is_empty()), "expected the whole list, got a page of it");
    Ok(polled.finish(&rest.resource_version))
}

async fn in_pages(
    client: &kube::Client,
    snapshot: &ArcSwap<Snapshot>,
    max: u32,
    metrics: &Metrics,
) -> anyhow::Result<PollResult> {
    let params = ListParams::default().limit(max).labels(&watch::spark_pods());
    let mut polled = PollResult::default();
    let rest = pages(client, PODS, params, metrics, |pod| add(&mut polled, snapshot, &pod)).await?;
    Ok(polled.finish(&rest.resource_version))
}

fn add(polled: &mut PollResult, snapshot: &ArcSwap<Snapshot>, pod: &ItemMeta) {
    polled.add(&snapshot.load(), &pod.namespace, &pod.name, &pod.uid, &pod.resource_version);
}

/// Lists all pods of a namespace, regardless of labels, in pages.
pub(super) async fn namespace(client: &kube::Client, namespace: &str, metrics: &Metrics) -> anyhow::Result<Listed> {
    let (path, params) = (format!("/api/v1/namespaces/{namespace}/pods"), ListParams::default().limit(PAGE));
    let mut all = Listed::default();
    let reading = pages(client, &path, params, metrics, |pod| all.insert(namespace, &pod.name, &pod.uid));
    tokio::time::timeout(REQUEST_TIMEOUT, reading)
        .await
        .map_err(|_| anyhow::anyhow!("no answer within {REQUEST_TIMEOUT:?}"))??;
    all.seal();
    Ok(all)
}

/// Reads all pages of a list. Returns the metadata of the last page.
async fn pages(
    client: &kube::Client,
    path: &str,
    params: ListParams,
    metrics: &Metrics,
    mut each: impl FnMut(ItemMeta),
) -> anyhow::Result<RestMeta> {
    let mut page = params.clone();
    loop {
        let rest = list(client, path, page, metrics, &mut each).await?;
        match rest.more.as_ref().filter(|more| !more.is_empty()) {
            None => return Ok(rest),
            Some(more) => page = params.clone().continue_token(more),
        }
        tokio::time::sleep(BETWEEN_PAGES).await;
    }
}

/// Reads one list or page, and passes the metadata of each pod to `each`. Returns the list's own metadata.
async fn list(
    client: &kube::Client,
    path: &str,
    params: ListParams,
    metrics: &Metrics,
    mut each: impl FnMut(ItemMeta),
) -> anyhow::Result<RestMeta> {
    let request = Request::new(path).list_metadata(&params)?;
    let silent = || anyhow::anyhow!("no data for {SILENCE_TIMEOUT:?}");
    let late = |_| anyhow::anyhow!("no response within {BUILDS:?}");
    let answered = tokio::time::timeout(BUILDS, client.request_stream(request)).await.map_err(late)?;
    let mut body = std::pin::pin!(answered?);
    let mut items = Items::default();
    loop {
        let bytes = tokio::time::timeout(SILENCE_TIMEOUT, body.fill_buf()).await.map_err(|_| silent())??;
        let length = bytes.len();
        if length == 0 {
            break;
        }
        items.feed(bytes, |Item { metadata: pod }: Item| each(pod))?;
        metrics.poll_bytes.inc_by(length as u64);
        body.consume_unpin(length);
    }
    Ok(items.finish::<Rest>()?.metadata)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use http_body_util::Full;
    use hyper::{Request, Response};
    use kube::client::Body;

    use super::*;
    use usher_net::telemetry::registry::Registry;

    fn item(number: usize) -> String {
        format!(
            r#"{{"metadata":{{"namespace":"a","name":"e-{number}","uid":"u{number}","resourceVersion":"{number}"}}}}"#
        )
    }

    /// An API server with seven pods, which serves pages and records its requests.
    fn server() -> (kube::Client, Arc<Mutex<Vec<String>>>) {
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let recorded = requests.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let value = |key: &str| {
                let pair = query.split('&').find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
                pair.and_then(|value| value.parse::<usize>().ok())
            };
            let (first, limit) = (value("continue").unwrap_or(0), value("limit").unwrap_or(7));
            let end = (first + limit).min(7);
            let items: Vec<String> = (first..end).map(item).collect();
            let more = if end < 7 { format!(r#","continue":"{end}""#) } else { String::new() };
            let text = format!(
                r#"{{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{}],"metadata":{{"resourceVersion":"40"{more}}}}}"#,
                items.join(",")
            );
            if let Ok(mut recorded) = recorded.lock() {
                recorded.push(query);
            }
            async move { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(text)))) }
        });
        (kube::Client::new(service, "default"), requests)
    }

    #[tokio::test]
    async fn paged_list_contains_same_pods_as_single_list() {
        let (client, requests) = server();
        let (snapshot, metrics) = (ArcSwap::default(), Metrics::register(&Registry::default()).unwrap());
        let whole = in_one_list(&client, &snapshot, Some("12".into()), &metrics).await.unwrap();
        assert_eq!(whole.len(), 7);
        let first = std::mem::take(&mut *requests.lock().unwrap());
        assert!(first.len() == 1 && first[0].contains("labelSelector=spark-role"), "{first:?}");
        assert!(first[0].contains("resourceVersion=12&resourceVersionMatch=NotOlderThan"), "{first:?}");
        let read = metrics.poll_bytes.get();
        assert!(read > 400);

        let paged = in_pages(&client, &snapshot, 3, &metrics).await.unwrap();
        assert_eq!(paged.len(), 7);
        assert!((0..7).all(|number| paged.has("a", &format!("e-{number}"), &format!("u{number}"))));
        let requests: Vec<String> = requests.lock().unwrap().clone();
        assert_eq!(requests.len(), 3);
        // The first page requests the newest state: it has no resourceVersion.
        assert!(
            requests.iter().all(|query| query.contains("limit=3") && !query.contains("resourceVersion")),
            "{requests:?}"
        );
        assert!(requests.iter().all(|query| query.contains("labelSelector=spark-role")), "{requests:?}");
        assert!(metrics.poll_bytes.get() > 2 * read);
    }

    #[tokio::test]
    async fn namespace_list_has_no_label_selector() {
        let (client, requests) = server();
        let all = namespace(&client, "a", &Metrics::register(&Registry::default()).unwrap()).await.unwrap();
        assert_eq!(all.len(), 7);
        assert!((0..7).all(|number| all.contains("a", &format!("e-{number}"), &format!("u{number}"))));
        assert!(!all.contains("a", "e-1", "another"));
        let requests = requests.lock().unwrap();
        assert!(
            requests.len() == 1 && requests[0].contains("limit=500") && !requests[0].contains("labelSelector"),
            "{requests:?}"
        );
    }

    #[tokio::test]
    async fn gzip_compressed_list_is_decoded() {
        use std::io::Write as _;

        use flate2::{Compression, write::GzEncoder};

        let service = tower::service_fn(|request: Request<Body>| async move {
            let accepted = request.headers().get("accept-encoding").and_then(|value| value.to_str().ok());
            assert!(accepted.is_some_and(|accepted| accepted.contains("gzip")), "{accepted:?}");
            let items: Vec<String> = (0..1000).map(item).collect();
            let text = format!(r#"{{"items":[{}],"metadata":{{"resourceVersion":"40"}}}}"#, items.join(","));
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(text.as_bytes()).unwrap();
            let response = Response::builder().header("content-encoding", "gzip");
            Ok::<_, std::convert::Infallible>(response.body(Full::new(Bytes::from(encoder.finish().unwrap()))).unwrap())
        });
        let service = tower::ServiceBuilder::new().layer(usher_kube::client::decompression(true)).service(service);
        let client = kube::Client::new(service, "default");
        let metrics = Metrics::register(&Registry::default()).unwrap();
        let whole = in_one_list(&client, &ArcSwap::default(), None, &metrics).await.unwrap();
        assert_eq!(whole.len(), 1000);
    }

    #[tokio::test]
    async fn page_in_place_of_whole_list_is_rejected() {
        let service = tower::service_fn(|_: Request<Body>| async {
            let text = r#"{"items":[],"metadata":{"resourceVersion":"40","continue":"x"}}"#;
            Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from(text))))
        });
        let client = kube::Client::new(service, "default");
        let result =
            in_one_list(&client, &ArcSwap::default(), None, &Metrics::register(&Registry::default()).unwrap()).await;
        assert!(result.unwrap_err().to_string().contains("expected the whole list"));
    }
}
