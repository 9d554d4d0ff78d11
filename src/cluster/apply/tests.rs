use super::*;

/// A writer for an API server with these answers, by method, path and body; and the requests that it received.
fn answered_by(
    answer: impl Fn(&str, &str, &str) -> (u16, Value) + Send + Sync + 'static,
) -> (Writer, Arc<Mutex<Vec<String>>>) {
    use http_body_util::{BodyExt, Full};

    let asked = Arc::<Mutex<Vec<String>>>::default();
    let (noted, answer) = (asked.clone(), Arc::new(answer));
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (noted, answer) = (noted.clone(), answer.clone());
        async move {
            let (parts, body) = request.into_parts();
            let body = String::from_utf8_lossy(&body.collect().await.unwrap().to_bytes()).into_owned();
            let (method, path) = (parts.method.as_str(), parts.uri.path());
            let what = if body.contains("ownerReferences") { "owner" } else { path };
            noted.lock().unwrap().push(format!("{method} {what}"));
            tokio::task::yield_now().await;
            let (code, answer) = answer(method, path, &body);
            let response = hyper::Response::builder().status(code);
            Ok::<_, std::convert::Infallible>(response.body(Full::new(bytes::Bytes::from(answer.to_string()))).unwrap())
        }
    });
    let client = kube::Client::new(service, "n");
    let limiter = Limiter::new(crate::cluster::limit::Rate { qps: 1e6, burst: 1_000_000 });
    (Writer::new(client, "one", Arc::new(Metrics::new().unwrap()), limiter), asked)
}

fn refuses(code: u16, message: &str) -> (u16, Value) {
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
    answered_by(|_, _, body| match body.contains("ownerReferences") {
        true => refuses(403, "pods \"e\" is forbidden: cannot set an ownerRef on a resource you can't delete: , <nil>"),
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
        true => Action::CleanUp { executor, seen, how: Cleanup::Label, cause: Cause::Error, gone: None },
        false => Action::Adopt { executor, seen, driver, how: crate::ownership::resolve::DriverSource::AppSelector },
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_asked_once_and_keeps_nothing_else_from_being_done() {
    let (writer, asked) = enforcing();
    let leadership = Leadership::of(Duration::from_secs(3600));
    let app = AppKey::new("n", "a");
    let actions = || (0..14).map(|number| of(number, false)).chain((0..3).map(|number| of(number, true)));
    let applied = writer.apply(&leadership, &app, actions().collect(), false).await;
    assert!(!applied.failed && applied.wrote);
    let first = std::mem::take(&mut *asked.lock().unwrap());
    let count = |what: &str| first.iter().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("PATCH owner"), 1, "{first:?}");
    assert_eq!(count("PATCH /api/v1/namespaces/n/pods/e-"), 3, "{first:?}");
    assert_eq!(count("GET"), 1, "one GET of the driver: {first:?}");
    assert_eq!(count("POST /apis/events.k8s.io"), 1, "one Event about the refusal: {first:?}");
    // The next plan.
    writer.apply(&leadership, &app, actions().collect(), false).await;
    assert!(asked.lock().unwrap().iter().all(|line| line.starts_with("PATCH /api")), "{asked:?}");
    let metrics = writer.metrics.render().unwrap();
    let metrics = String::from_utf8(metrics).unwrap();
    assert!(metrics.contains(r#"spark_usher_actions_total{action="adopt",result="refused"} 1"#), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_says_each_thing_once() {
    let (writer, asked) = enforcing();
    let leadership = Leadership::of(Duration::from_secs(3600));
    let app = AppKey::new("n", "a");
    for _ in 0..100 {
        writer.apply(&leadership, &app, vec![of(1, true), of(2, false)], true).await;
    }
    let metrics = String::from_utf8(writer.metrics.render().unwrap()).unwrap();
    for action in ["label-executor", "adopt"] {
        let line = format!(r#"spark_usher_actions_total{{action="{action}",result="dry-run"}} 1"#);
        assert!(metrics.contains(&line), "{metrics}");
    }
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_leadership_nothing_is_begun() {
    let (writer, asked) = enforcing();
    let app = AppKey::new("n", "a");
    let applied = writer.apply(&Leadership::of(Duration::ZERO), &app, vec![of(1, true)], false).await;
    assert!(applied.failed && !applied.wrote, "the action is planned again");
    assert!(asked.lock().unwrap().is_empty());
}

#[test]
fn deletions_carry_their_preconditions() {
    let params = serde_json::to_value(guarded_deletion(&seen("7"))).unwrap();
    assert_eq!(params["preconditions"], json!({"uid": "u", "resourceVersion": "7"}));
}

#[test]
fn patches_carry_their_preconditions() {
    let patch = guarded(&json!({"metadata": {"annotations": {"a": "b"}}, "spec": {"minMember": 2}}), &seen("7"));
    assert_eq!(
        patch,
        json!({"metadata": {"annotations": {"a": "b"}, "uid": "u", "resourceVersion": "7"}, "spec": {"minMember": 2}})
    );
}

const LONG: Duration = Duration::from_secs(360_000);

/// Labels twenty executors, a plan per minute, for this many minutes. Returns the requests for e-0, and for the others.
async fn labelled(minutes: usize, code: u16, message: &'static str) -> (usize, usize) {
    let (writer, asked) =
        answered_by(move |_, path, _| if path.ends_with("/e-0") { refuses(code, message) } else { driver_pod() });
    let leadership = Leadership::of(LONG);
    for _ in 0..minutes {
        let actions = (0..20).map(|number| of(number, true)).collect();
        writer.apply(&leadership, &AppKey::new("n", "a"), actions, false).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    let asked = asked.lock().unwrap();
    let first = asked.iter().filter(|line| line.ends_with("/e-0")).count();
    (first, asked.len() - first)
}

#[tokio::test(start_paused = true)]
async fn who_is_refused_one_object_goes_on_with_the_others_and_tries_that_one_ever_more_rarely() {
    let policy = "admission webhook \"p\" denied the request: pods of team x cannot be labelled";
    let named = "admission webhook \"p\" denied the request: pods \"e\" is forbidden: User \"x\" cannot patch it";
    let cel = "pods \"e-0\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: it cannot";
    for (code, message) in [(403, policy), (403, named), (403, cel), (400, policy), (422, "is invalid")] {
        let (refused, others) = labelled(60, code, message).await;
        assert!(refused < 12 && others == 60 * 19, "{code} {message}: {refused}, {others}");
    }
    // A missing permission is missing for all of them.
    let right =
        "pods \"e-0\" is forbidden: User \"u\" cannot patch resource \"pods\" in API group \"\" in the namespace \"n\"";
    let (refused, others) = labelled(60, 403, right).await;
    assert!(refused < 12 && others == 0, "{refused}, {others}");
}

#[tokio::test(start_paused = true)]
async fn thousands_that_are_refused_one_by_one_are_each_remembered() {
    let (writer, asked) = answered_by(|_, _, _| refuses(403, "admission webhook \"p\" denied the request: no"));
    let leadership = Leadership::of(LONG);
    for _ in 0..5 {
        let actions = (0..20_000).map(|number| of(number, true)).collect();
        writer.apply(&leadership, &AppKey::new("n", "a"), actions, false).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(asked.lock().unwrap().len(), 20_000);
}

/// The process stands still after its first request, and continues when its leadership has ended.
async fn stands_still(asked: &Mutex<Vec<String>>) {
    while asked.lock().unwrap().is_empty() {
        tokio::task::yield_now().await;
    }
    tokio::time::advance(Duration::from_secs(10)).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_after_a_look_whose_answer_came_too_late() {
    let (writer, asked) = answered_by(|_, _, _| driver_pod());
    let app = AppKey::new("n", "a");
    let leadership = Leadership::of(Duration::from_secs(5));
    let adopting = writer.apply(&leadership, &app, vec![of(1, false)], false);
    let ((), applied) = tokio::join!(biased; stands_still(&asked), adopting);
    assert!(applied.failed && !applied.wrote);
    assert_eq!(*asked.lock().unwrap(), ["GET /api/v1/namespaces/n/pods/d"]);
}

#[tokio::test(start_paused = true)]
async fn an_event_counts_nothing_more_once_the_leadership_has_ended() {
    let (writer, asked) = answered_by(|method, path, _| match method {
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
    let notice = AggregatedEvent { subject, count: 3, message: "three executors exited".into() };
    let leadership = Leadership::of(Duration::from_secs(5));
    let noticing = writer.write_event(&leadership, &notice, false);
    let ((), is_written) = tokio::join!(biased; stands_still(&asked), noticing);
    assert!(!is_written, "the next leader counts it, or this replica when it leads again");
    assert_eq!(asked.lock().unwrap().len(), 1);
}
