use super::*;
use crate::controller::DriverAnswer;
use crate::telemetry::registry::Registry;

/// A writer for an API server with these answers, by method, path and body; and the requests that it received.
fn writer_with_responses(
    answer: impl Fn(&str, &str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Writer, Arc<Mutex<Vec<String>>>) {
    use http_body_util::{BodyExt, Full};

    let requests = Arc::<Mutex<Vec<String>>>::default();
    let (recorded, answer) = (requests.clone(), Arc::new(answer));
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (recorded, answer) = (recorded.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = String::from_utf8_lossy(&body.collect().await.unwrap().to_bytes()).into_owned();
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            let what = if body.contains("ownerReferences") { "owner" } else { path };
            recorded.lock().unwrap().push(format!("{method} {what}"));
            tokio::task::yield_now().await;
            let (code, answer) = answer(method, path, &body);
            let response = hyper::Response::builder().status(code);
            Ok::<_, std::convert::Infallible>(response.body(Full::new(bytes::Bytes::from(answer.to_string()))).unwrap())
        }
    });
    let client = kube::Client::new(service, "n");
    let limiter = Limiter::new(crate::cluster::limit::Rate { qps: 1e6, burst: 1_000_000 });
    let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
    let drivers = DriverApi::of(|_| Box::pin(std::future::ready(DriverAnswer::Starting)));
    (Writer::new(client, "one", metrics, limiter, drivers), requests)
}

fn denied(code: u16, message: &str) -> (u16, Value) {
    let status =
        json!({"kind": "Status", "status": "Failure", "reason": "Forbidden", "code": code, "message": message});
    (code, status)
}

/// A running pod.
fn driver_pod() -> (u16, Value) {
    let metadata = json!({"name": "d", "namespace": "n", "uid": "du", "resourceVersion": "1"});
    let (status, spec) = (json!({"phase": "Running"}), json!({"containers": []}));
    (200, json!({"kind": "Pod", "apiVersion": "v1", "status": status, "spec": spec, "metadata": metadata}))
}

/// An API server with OwnerReferencesPermissionEnforcement.
fn enforcing() -> (Writer, Arc<Mutex<Vec<String>>>) {
    writer_with_responses(|_, _, body| match body.contains("ownerReferences") {
        true => denied(403, "pods \"e\" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"),
        false => driver_pod(),
    })
}

fn seen(version: &str) -> ObjectVersion {
    ObjectVersion { uid: "u".into(), resource_version: version.into() }
}

fn of(number: usize, finish: bool) -> Action {
    let executor = PodKey::new("n", &format!("e-{number}"));
    let seen = seen("1");
    let driver = DriverRef { name: "d".into(), uid: "du".into() };
    match finish {
        true => Action::CleanUp { executor, seen, how: Cleanup::Label, cause: Cause::Error, gone_driver: None },
        false => Action::Adopt { executor, seen, driver, how: crate::ownership::resolve::DriverSource::AppSelector },
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_adoption_is_tried_once_and_does_not_block_other_actions() {
    let (writer, requests) = enforcing();
    let leadership = Leadership::of(Duration::from_secs(3600));
    let app = AppKey::new("n", "a");
    let actions = || (0..14).map(|number| of(number, false)).chain((0..3).map(|number| of(number, true)));
    let applied = writer.apply(&leadership, &app, actions().collect(), false).await;
    assert!(!applied.failed && applied.wrote);
    let first = std::mem::take(&mut *requests.lock().unwrap());
    let count = |what: &str| first.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("PATCH owner"), 1, "{first:?}");
    assert_eq!(count("PATCH /api/v1/namespaces/n/pods/e-"), 3, "{first:?}");
    assert_eq!(count("GET"), 1, "one GET of the driver: {first:?}");
    assert_eq!(count("POST /apis/events.k8s.io"), 1, "one Event about the refusal: {first:?}");
    // The next plan.
    writer.apply(&leadership, &app, actions().collect(), false).await;
    assert!(requests.lock().unwrap().iter().all(|line| line.starts_with("PATCH /api")), "{requests:?}");
    assert_eq!(writer.metrics.actions.with_label_values(&["adopt", "refused"]).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn dry_run_counts_each_action_once_and_sends_no_request() {
    let (writer, requests) = enforcing();
    let leadership = Leadership::of(Duration::from_secs(3600));
    let app = AppKey::new("n", "a");
    for _ in 0..100 {
        writer.apply(&leadership, &app, vec![of(1, true), of(2, false)], true).await;
    }
    for action in ["label-executor", "adopt"] {
        assert_eq!(writer.metrics.actions.with_label_values(&[action, "dry-run"]).get(), 1, "{action}");
    }
    assert!(requests.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn expired_leadership_sends_no_request() {
    let (writer, requests) = enforcing();
    let app = AppKey::new("n", "a");
    let applied = writer.apply(&Leadership::of(Duration::ZERO), &app, vec![of(1, true)], false).await;
    assert!(applied.failed && !applied.wrote, "the action is planned again");
    assert!(requests.lock().unwrap().is_empty());
}

#[test]
fn deletion_has_uid_and_resource_version_preconditions() {
    let params = serde_json::to_value(guarded_deletion(&seen("7"))).unwrap();
    assert_eq!(params["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
}

#[test]
fn patch_has_uid_and_resource_version_preconditions() {
    let patch = guarded(&json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"minMember": 2}}), &seen("7"));
    assert_eq!(
        patch,
        json!({"metadata": {"annotations": {"a": "b"}, "uid": "u", "resourceVersion": "7"}, "spec": {"minMember": 2}})
    );
}

const LONG: Duration = Duration::from_secs(360_000);

/// Labels twenty executors, a plan per minute, for this many minutes. Returns the requests for e-0, and for the others.
async fn label_executors(minutes: usize, code: u16, message: &'static str) -> (usize, usize) {
    let (writer, requests) =
        writer_with_responses(
            move |_, path, _| if path.ends_with("/e-0") { denied(code, message) } else { driver_pod() },
        );
    let leadership = Leadership::of(LONG);
    for _ in 0..minutes {
        let actions = (0..20).map(|number| of(number, true)).collect();
        writer.apply(&leadership, &AppKey::new("n", "a"), actions, false).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let requests = requests.lock().unwrap();
    let first = requests.iter().filter(|line| line.ends_with("/e-0")).count();
    (first, requests.len() - first)
}

#[tokio::test(start_paused = true)]
async fn denied_object_backs_off_alone_and_missing_permission_for_all() {
    let policy = "admission webhook \"p\" denied the request: pods of team x cannot be labelled";
    let named = "admission webhook \"p\" denied the request: pods \"e\" is forbidden: User \"x\" cannot patch it";
    let cel = "pods \"e-0\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: it cannot";
    for (code, message) in [(403, policy), (403, named), (403, cel), (400, policy), (422, "is invalid")] {
        let (first, others) = label_executors(60, code, message).await;
        assert!(first < 12 && others == 60 * 19, "{code} {message}: {first}, {others}");
    }
    // A missing permission is missing for all of them.
    let right =
        "pods \"e-0\" is forbidden: User \"u\" cannot patch resource \"pods\" in API group \"\" in the namespace \"n\"";
    let (first, others) = label_executors(60, 403, right).await;
    assert!(first < 12 && others == 0, "{first}, {others}");
}

#[tokio::test(start_paused = true)]
async fn backoff_covers_each_of_20000_denied_objects() {
    let (writer, requests) =
        writer_with_responses(|_, _, _| denied(403, "admission webhook \"p\" denied the request: no"));
    let leadership = Leadership::of(LONG);
    for _ in 0..5 {
        let actions = (0..20_000).map(|number| of(number, true)).collect();
        writer.apply(&leadership, &AppKey::new("n", "a"), actions, false).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(requests.lock().unwrap().len(), 20_000);
}

/// Waits for the first request, and then advances the clock until the leadership has ended.
async fn wait_until_leadership_ends(requests: &Mutex<Vec<String>>) {
    while requests.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_get_that_outlasts_leadership() {
    let (writer, requests) = writer_with_responses(|_, _, _| driver_pod());
    let app = AppKey::new("n", "a");
    let leadership = Leadership::of(Duration::from_secs(5));
    let adopting = writer.apply(&leadership, &app, vec![of(1, false)], false);
    let ((), applied) = tokio::join!(biased; wait_until_leadership_ends(&requests), adopting);
    assert!(applied.failed && !applied.wrote);
    assert_eq!(*requests.lock().unwrap(), ["GET /api/v1/namespaces/n/pods/d"]);
}

#[tokio::test(start_paused = true)]
async fn event_write_that_outlasts_leadership_is_not_counted() {
    let (writer, requests) = writer_with_responses(|method, path, _| match method {
        "POST" => (
            201,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "n"}}),
        ),
        _ => panic!("{method} {path}"),
    });
    let subject = crate::recorder::Subject {
        pod: PodKey::new("n", "d"),
        uid: "du".into(),
        cause: Cause::Killed,
        possibly_reported: false,
    };
    let event = AggregatedEvent { subject, count: 3, message: "three executors exited".into() };
    let leadership = Leadership::of(Duration::from_secs(5));
    let writing = writer.write_event(&leadership, &event, false);
    let ((), is_written) = tokio::join!(biased; wait_until_leadership_ends(&requests), writing);
    assert!(!is_written, "the next leader counts it, or this replica when it leads again");
    assert_eq!(requests.lock().unwrap().len(), 1);
}
