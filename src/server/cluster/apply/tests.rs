use super::*;
use usher_core::controller::DriverAnswer;
use usher_core::drivers::DriverPoll;
use usher_core::policy::RecoveryRule;
use usher_core::signature::Creator;
use usher_core::snapshot::DriverViewKey;
use usher_net::telemetry::registry::Registry;
use usher_spark::rest::{DriverMetrics, ExecutorSummary};

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
            let query = parts.uri.query().unwrap_or_default();
            let selects = ["labels", "fields"].into_iter().find(|by| query.contains(&by.replace('s', "Selector")));
            let path = selects.map_or_else(|| path.to_owned(), |by| format!("{path}?{by}"));
            let what = if body.contains("ownerReferences") { "owner" } else { &path };
            recorded.lock().unwrap().push(format!("{method} {what}"));
            tokio::task::yield_now().await;
            let (code, answer) = answer(method, &path, &body);
            let response = hyper::Response::builder().status(code);
            Ok::<_, std::convert::Infallible>(response.body(Full::new(bytes::Bytes::from(answer.to_string()))).unwrap())
        }
    });
    let client = kube::Client::new(service, "n");
    let limiter = Limiter::new(usher_kube::limit::Rate { qps: 1e6, burst: 1_000_000 });
    let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
    let drivers = DriverApi::of(|_| Box::pin(std::future::ready(DriverAnswer::Starting)));
    let snapshot = Arc::new(ArcSwap::from_pointee(orphaned()));
    (Writer::new(client, "one", metrics, limiter, drivers, snapshot), requests)
}

fn pod(name: &str, uid: &str, created: &str, labels: &Value, phase: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "n", "uid": uid, "resourceVersion": "7", "labels": labels,
        "creationTimestamp": created});
    let status = json!({"phase": phase, "podIP": "10.0.0.9"});
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "status": status, "spec": {"containers": []}})
}

/// A snapshot with one executor, e-1, which the pods d, its controller, and d-2 own, and whose driver is at 10.0.0.9.
fn orphaned() -> Snapshot {
    let labels = json!({"spark-role": "executor", "spark-app-selector": "a", "spark-exec-id": "1"});
    let mut executor = pod("e-1", "u", "2026-01-01T12:00:00Z", &labels, "Running");
    executor["metadata"]["ownerReferences"] = json!([
        {"apiVersion": "v1", "kind": "Pod", "name": "d", "uid": "du", "controller": true},
        {"apiVersion": "v1", "kind": "Pod", "name": "d-2", "uid": "d2u"},
    ]);
    let url = "spark://CoarseGrainedScheduler@10.0.0.9:7078";
    executor["spec"]["containers"] = json!([{"name": "e", "env": [{"name": "SPARK_DRIVER_URL", "value": url}]}]);
    let mut snapshot = Snapshot::default();
    let executor = <ObservedPod as usher_kube::view::View>::read(&executor.to_string()).unwrap();
    snapshot.apply(PodChange::Observed(executor));
    snapshot
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
    let driver = PodIdentity::new("n", "d", "du");
    match finish {
        true => Action::CleanUp { executor, seen, how: Cleanup::Label, cause: Cause::Error, gone_driver: None },
        false => {
            Action::Adopt { executor, seen, driver, how: usher_core::ownership::resolve::DriverSource::AppSelector }
        }
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
    let subject = usher_core::event_aggregator::Subject {
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

fn not_found() -> (u16, Value) {
    (404, json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not found"}))
}

fn pod_list(items: &[Value]) -> Value {
    json!({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items})
}

fn recovery(check: Check) -> Action {
    let event = PodEvent {
        pod: PodKey::new("n", "e-1"),
        uid: "u".into(),
        reason: Reason::ExecutorStuck,
        message: "has not started".into(),
    };
    Action::Recover(Box::new(Recover { rule: RecoveryRule::Stuck, seen: seen("7"), check, event }))
}

fn driver_poll() -> Box<DriverPoll> {
    let app = AppKey::new("n", "a");
    Box::new(DriverPoll {
        key: DriverViewKey { app, driver: Creator::of_pod("d", "du") },
        pod: PodKey::new("n", "d"),
        uid: "u".into(),
        max_rows: 1_000_000,
        reads_conf: false,
        address: "10.0.0.5".into(),
        ui: usher_spark::conf::Ui::default(),
        port: None,
        is_first: false,
        access: usher_core::policy::DriverAccess::Pod,
    })
}

fn not_registered() -> Check {
    Check::NotRegistered(driver_poll(), 1)
}

/// A view with these rows: exec id, and whether it is active.
fn view(rows: &[(u64, bool)], dropped_events: Option<u64>) -> DriverAnswer {
    let row = |(id, is_active): &(u64, bool)| ExecutorSummary {
        id: Some(*id),
        is_active: *is_active,
        is_excluded: false,
        registered: None,
        removed: None,
        remove_reason: None,
    };
    let metrics = DriverMetrics { dropped_events, queued_events: Some(0), target: None };
    DriverAnswer::View { port: 4040, executors: rows.iter().map(row).collect(), metrics, conf: None }
}

/// Whether the pod is deleted, if the API server answers GETs and LISTs with this, and the driver so. Asserts what is recorded.
async fn is_deleted(check: Check, found: (u16, Value), driver: DriverAnswer) -> bool {
    let bodies = Arc::<Mutex<Vec<Value>>>::default();
    let seen = bodies.clone();
    let (mut writer, requests) = writer_with_responses(move |method, path, body| match method {
        "GET" if path.contains("/pods?") && found.1["kind"] != "PodList" => (200, pod_list(&[])),
        "GET" if path.ends_with("/d-2") => not_found(),
        "GET" => found.clone(),
        "DELETE" => {
            seen.lock().unwrap().push(serde_json::from_str(body).unwrap());
            (200, json!({"kind": "Status", "status": "Success"}))
        }
        _ => (201, json!({"kind": "Event", "metadata": {"name": path}})),
    });
    writer.drivers = DriverApi::of(move |_| Box::pin(std::future::ready(driver.clone())));
    let app = AppKey::new("n", "a");
    let applied = writer.apply(&Leadership::of(LONG), &app, vec![recovery(check.clone())], false).await;
    let deletions = bodies.lock().unwrap().clone();
    assert!(!applied.failed && deletions.len() == applied.recovered.len(), "{requests:?}");
    let events = requests.lock().unwrap().iter().filter(|line| line.starts_with("POST /apis/events.k8s.io")).count();
    assert_eq!(events, deletions.len(), "an Event for each deletion: {requests:?}");
    let result = if deletions.is_empty() { "stale" } else { "ok" };
    assert_eq!(writer.metrics.actions.with_label_values(&["recover", result]).get(), 1);
    let kept: Vec<&str> = applied.attempts.iter().filter_map(|attempt| attempt.not_deleted).collect();
    let expected: Vec<&str> = deletions.is_empty().then(|| check.failure()).into_iter().collect();
    assert_eq!(kept, expected, "what is not deleted is not charged");
    if let Some(deletion) = deletions.first() {
        assert_eq!(deletion["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
        assert_eq!(deletion["gracePeriodSeconds"] == 0, matches!(check, Check::NodeGone(_)), "{deletion}");
        assert_eq!((applied.recovered[0].rule, &*applied.recovered[0].uid), (RecoveryRule::Stuck, "u"));
    }
    !deletions.is_empty()
}

#[tokio::test(start_paused = true)]
async fn executor_is_deleted_only_if_its_driver_answers_again_that_it_is_not_registered() {
    let failed = DriverAnswer::Failed(usher_core::controller::PollError::Timeout);
    for (answer, expected) in [
        (view(&[], Some(0)), true),
        (view(&[(1, false), (2, true)], Some(0)), true),
        (view(&[(1, false)], Some(9)), true),
        (view(&[(1, true)], Some(0)), false),
        (view(&[(2, true)], Some(9)), false),
        (view(&[(2, true)], None), false),
        (DriverAnswer::Starting, false),
        (failed, false),
    ] {
        let deleted = is_deleted(not_registered(), driver_pod(), answer.clone()).await;
        assert_eq!(deleted, expected, "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphan_is_deleted_only_if_its_drivers_pod_is_gone_or_has_exited() {
    let in_phase = |phase: &str| {
        let (code, mut pod) = driver_pod();
        pod["status"]["phase"] = phase.into();
        (code, pod)
    };
    let (code, mut another) = in_phase("Running");
    another["metadata"]["uid"] = "another".into();
    for (found, expected) in [
        (not_found(), true),
        (in_phase("Running"), false),
        (in_phase("Pending"), false),
        (in_phase("Failed"), true),
        ((code, another), true),
    ] {
        let check = Check::DriverGone(PodIdentity::new("n", "d", "du"));
        assert_eq!(is_deleted(check, found.clone(), DriverAnswer::Starting).await, expected, "{found:?}");
    }
}

/// Whether e-1 is deleted if its driver d is gone, the API server answers the LIST of labelled drivers, in two pages, the GET of d-2,
/// and the LIST of pods at 10.0.0.9 with these.
async fn orphan_is_deleted(labelled: Vec<Value>, second: Option<Value>, at_address: Vec<Value>) -> bool {
    let pages = Mutex::new(vec![labelled, Vec::new()]);
    let (writer, requests) = writer_with_responses(move |method, path, _| match (method, path) {
        ("DELETE", _) => (200, json!({"kind": "Status", "status": "Success"})),
        ("POST", _) => (201, json!({"kind": "Event", "metadata": {"name": path}})),
        (_, path) if path.ends_with("/d-2") => second.clone().map_or_else(not_found, |pod| (200, pod)),
        (_, path) if path.ends_with("/d") => not_found(),
        (_, "/api/v1/namespaces/n/pods?labels") => {
            let mut pages = pages.lock().unwrap();
            let mut page = pod_list(&pages.pop().unwrap());
            page["metadata"]["continue"] = if pages.is_empty() { "" } else { "more" }.into();
            (200, page)
        }
        (_, "/api/v1/namespaces/n/pods?fields") => (200, pod_list(&at_address)),
        _ => panic!("{method} {path}"),
    });
    let action = recovery(Check::DriverGone(PodIdentity::new("n", "d", "du")));
    writer.apply(&Leadership::of(LONG), &AppKey::new("n", "a"), vec![action.clone(), action], false).await;
    let requests = requests.lock().unwrap();
    let reads = |path: &str| requests.iter().filter(|line| line.starts_with("GET") && line.contains(path)).count();
    let counts = [reads("/pods?labels"), reads("/pods?fields"), reads("/pods/d")];
    assert_eq!(counts, [2, 1, 2], "once a batch: {requests:?}");
    requests.iter().any(|line| line.starts_with("DELETE"))
}

#[tokio::test(start_paused = true)]
async fn orphan_is_kept_by_every_pod_that_may_be_its_driver_and_that_only_the_api_server_knows() {
    let (before, after) = ("2026-01-01T11:59:59Z", "2026-01-01T12:00:01Z");
    let labels = json!({"spark-role": "driver", "spark-app-selector": "a"});
    let driver = |created, phase| vec![pod("x", "xu", created, &labels, phase)];
    let plain = |name, created, phase| pod(name, "xu", created, &json!({}), phase);
    let second = |uid, phase| {
        let mut pod = pod("d-2", uid, before, &json!({}), phase);
        pod["status"]["podIP"] = "10.0.0.2".into();
        Some(pod)
    };
    // It terminates, or its node is lost, while another pod has its address.
    let executor = pod("z", "zu", "2026-01-01T11:00:00Z", &json!({"spark-role": "executor"}), "Running");
    let mut unreadable = pod("x", "xu", before, &labels, "Running");
    unreadable["metadata"]["annotations"] = (0..1025).map(|at| (format!("a{at}"), json!("b"))).collect();
    for (labelled, second, at_address, expected) in [
        (vec![], None, vec![], true),
        (driver(before, "Running"), None, vec![], false),
        (driver(after, "Running"), None, vec![], true),
        (driver(before, "Pending"), None, vec![], true),
        (driver(before, "Failed"), None, vec![], true),
        (vec![unreadable], None, vec![], false),
        (vec![], second("d2u", "Running"), vec![], false),
        (vec![], second("another", "Running"), vec![], true),
        (vec![], second("d2u", "Succeeded"), vec![], true),
        (vec![], None, vec![plain("x", before, "Running")], false),
        (vec![], None, vec![executor.clone(), plain("x", before, "Running")], false),
        (vec![], None, vec![executor], true),
        (vec![], None, vec![plain("x", after, "Running")], true),
    ] {
        let what = format!("{labelled:?} {second:?} {at_address:?}").chars().take(2000).collect::<String>();
        assert_eq!(orphan_is_deleted(labelled, second, at_address).await, expected, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn orphan_is_kept_if_what_may_contradict_cannot_be_read() {
    let (writer, requests) = writer_with_responses(|method, path, _| match (method, path) {
        ("GET", path) if path.ends_with("/pods?labels") => denied(500, "no"),
        ("GET", path) if path.ends_with("/pods?fields") => (200, pod_list(&[])),
        ("GET", _) => not_found(),
        _ => panic!("{method} {path}"),
    });
    let action = recovery(Check::DriverGone(PodIdentity::new("n", "d", "du")));
    let applied = writer.apply(&Leadership::of(LONG), &AppKey::new("n", "a"), vec![action], false).await;
    assert!(applied.failed && applied.recovered.is_empty(), "{requests:?}");
}

#[tokio::test(start_paused = true)]
async fn executor_is_deleted_by_force_only_if_its_node_is_gone() {
    let node =
        (200, json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {"name": "n1"}}));
    for (found, expected) in [(node, false), (not_found(), true)] {
        assert_eq!(is_deleted(Check::NodeGone("n1".into()), found, DriverAnswer::Starting).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn hopeless_driver_is_deleted_only_if_it_answers_and_a_list_contains_no_executor() {
    let list = |phases: &[&str]| {
        let pod = |phase: &&str| {
            json!({"metadata": {"name": "e", "namespace": "n", "uid": "e", "resourceVersion": "1",
                "labels": {"spark-role": "executor", "spark-app-selector": "a", "spark-exec-id": "1"}},
                "spec": {"containers": []}, "status": {"phase": phase}})
        };
        let items: Vec<Value> = phases.iter().map(pod).collect();
        (200, pod_list(&items))
    };
    for (phases, expected) in [
        (&[][..], true),
        (&["Failed", "Succeeded"], true),
        (&["Failed", "Pending"], false),
        (&["Running"], false),
        (&["Unknown"], false),
    ] {
        let deleted = is_deleted(Check::NoExecutors(driver_poll()), list(phases), view(&[], Some(0))).await;
        assert_eq!(deleted, expected, "{phases:?}");
    }
    assert!(
        !is_deleted(Check::NoExecutors(driver_poll()), list(&[]), view(&[(1, true)], Some(0))).await,
        "without labels"
    );
    // It has stopped its SparkContext, or has not created it yet: it needs no executors.
    for answer in [DriverAnswer::Starting, DriverAnswer::Failed(usher_core::controller::PollError::Refused)] {
        assert!(!is_deleted(Check::NoExecutors(driver_poll()), list(&[]), answer).await);
    }
}

/// An overloaded API server refuses nothing: the next plan may succeed.
#[test]
fn only_an_answer_about_the_pod_group_is_its_refusal() {
    let api = usher_core::gang::GangScheduler::of_kind("volcano").unwrap().apis.first().unwrap();
    let action = Action::CreateGroup {
        key: GroupKey { namespace: "n".into(), name: "g".into(), scheduler: "volcano" },
        api,
        app: AppKey::new("n", "a"),
        spec: json!({}),
        owner: Some(PodIdentity::new("n", "d", "u")),
        started: false,
    };
    let webhook = "failed calling webhook \"validatepodgroup.volcano.sh\": connection refused";
    for (code, message, expected) in [
        (400, "queue team does not exist", true),
        (403, "podgroups is forbidden", true),
        (422, "spec.minMember: Invalid value", true),
        (500, webhook, true),
        (404, "", false),
        (408, "", false),
        (409, "", false),
        (429, "too many requests", false),
        (500, "etcdserver: request timed out", false),
        (503, "shutting down", false),
    ] {
        let status: Status =
            serde_json::from_value(json!({"code": code, "message": message, "status": "Failure"})).unwrap();
        let (change, event) = group_refused(&AppKey::new("n", "a"), &action, &status);
        assert_eq!((change.is_some(), event.is_some()), (expected, expected), "{code} {message}");
    }
}
