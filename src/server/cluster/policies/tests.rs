//! The task on an API server in memory, in virtual time.

use std::collections::BTreeMap;
use std::sync::Mutex;

use arc_swap::ArcSwapOption;
use http_body_util::{BodyExt, Full};
use tokio::sync::watch;

use super::*;
use crate::cluster::lease::ElectionState;
use usher_core::manifests::converge::SETTLE;
use usher_core::manifests::installation::Kind;
use usher_core::manifests::validating_policy::Parameters;
use usher_net::telemetry::registry::Registry;
use usher_runtime::supervise::Supervisor;

const POLICY: &str = "policies: [{name: a, validate: Enforce}]";

/// What an API server answers instead: by method, path and query. With the code 0 what is listed changes immediately.
type Fault = Box<dyn FnMut(&str, &str) -> Option<(u16, String)> + Send>;

/// An API server with admission policies, which records its requests.
#[derive(Default)]
struct Server {
    objects: BTreeMap<String, Value>,
    version: u64,
    requests: Vec<String>,
    fault: Option<Fault>,
}

impl Server {
    fn answer(&mut self, method: &str, path: &str, sent: &Value) -> (u16, String) {
        let is_watch = path.contains("watch=true");
        let seen = if sent["metadata"]["resourceVersion"].is_string() { " seen" } else { "" };
        self.requests.push(format!("{} {path}{seen}", if is_watch { "WATCH" } else { method }));
        let fault = self.fault.as_mut().and_then(|fault| fault(method, path));
        let is_changed = fault.as_ref().is_some_and(|(code, _)| *code == 0);
        if let Some(answer) = fault.filter(|_| !is_changed) {
            return answer;
        }
        let status = |code: u16, reason: &str| {
            (code, json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}).to_string())
        };
        let path = path.split('?').next().unwrap_or_default();
        let is_named = path.trim_start_matches("/apis/").split('/').count() > 3;
        match (method, self.objects.get(path).cloned()) {
            _ if path.contains("clusterroles/") => (200, json!({"metadata": {"name": "r", "uid": "r-1"}}).to_string()),
            ("GET", _) if !is_named => {
                let items: Vec<&Value> = self
                    .objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(&format!("{path}/")))
                    .map(|(_, found)| found)
                    .collect();
                let answer = json!({"metadata": {"resourceVersion": self.version.to_string()}, "items": items});
                // Each object changes as soon as it is read.
                for object in self.objects.values_mut().filter(|_| is_changed) {
                    self.version += 1;
                    object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                }
                (200, answer.to_string())
            }
            ("PATCH", Some(mut found)) if sent.is_array() => {
                let version = found["metadata"]["resourceVersion"].clone();
                json_patch::patch(&mut found, &serde_json::from_value::<json_patch::Patch>(sent.clone()).unwrap())
                    .unwrap();
                if found["metadata"]["resourceVersion"] != version {
                    return status(409, "Conflict");
                }
                self.version += 1;
                found["metadata"]["resourceVersion"] = json!(self.version.to_string());
                self.objects.insert(path.to_owned(), found.clone());
                (200, found.to_string())
            }
            ("PATCH", found) => {
                let seen = &sent["metadata"]["resourceVersion"];
                let is_stale = found
                    .as_ref()
                    .is_some_and(|found| !seen.is_null() && found["metadata"]["resourceVersion"] != *seen);
                if is_stale {
                    return status(409, "Conflict");
                }
                self.version += 1;
                let mut object = sent.clone();
                object["metadata"]["resourceVersion"] = json!(self.version.to_string());
                object["metadata"]["uid"] = json!("u");
                object["status"] = json!({"observedGeneration": 1});
                self.objects.insert(path.to_owned(), object.clone());
                (200, object.to_string())
            }
            ("DELETE", Some(_)) => {
                self.objects.remove(path);
                (200, json!({"kind": "Status", "status": "Success"}).to_string())
            }
            ("POST", _) => (201, sent.to_string()),
            _ => status(404, "NotFound"),
        }
    }
}

/// A replica with its API server. Its leadership lasts until it is ended.
struct Replica {
    server: Arc<Mutex<Server>>,
    metrics: Arc<Metrics>,
    policies: Arc<ArcSwap<Policies>>,
    leads_until: watch::Sender<Option<Instant>>,
    /// Its task ends with it.
    _supervisor: Supervisor,
}

fn policies(text: &str) -> Arc<Policies> {
    let text = format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\n{text}");
    usher_config::from_text(&text).unwrap().policies
}

impl Replica {
    fn start(account: Option<&str>, text: &str) -> Replica {
        Replica::start_with(Kind::Validating, account, text)
    }

    fn start_with(kind: Kind, account: Option<&str>, text: &str) -> Replica {
        let server = Arc::new(Mutex::new(Server::default()));
        let of_task = server.clone();
        let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
            let server = of_task.clone();
            async move {
                let (method, path) = (request.method().to_string(), request.uri().to_string());
                let body = request.into_body().collect().await.unwrap().to_bytes();
                let sent = serde_json::from_slice(&body).unwrap_or_default();
                let (code, answer) = server.lock().unwrap().answer(&method, &path, &sent);
                let response = hyper::Response::builder().status(code);
                Ok::<_, std::convert::Infallible>(response.body(Full::new(bytes::Bytes::from(answer))).unwrap())
            }
        });
        let (leads_until, until) = watch::channel(Some(clock::instant() + Duration::from_secs(100_000)));
        let seen = watch::channel(ElectionState::Leader(Arc::new(Leadership::until(until)))).1;
        let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
        let policies = Arc::new(ArcSwap::new(policies(text)));
        let settings = AdmissionPolicies {
            installation: Installation { name: "u".into(), namespaces: Vec::new(), kinds: vec![kind] },
            owner: Some("ClusterRole/r".parse().unwrap()),
            settle: SETTLE,
        };
        let inputs = Inputs {
            client: kube::Client::new(service, "n"),
            policies: policies.clone(),
            account: Arc::new(ArcSwapOption::from_pointee(account.map(str::to_owned))),
            leadership: LeadershipReceiver::new(seen),
            identity: "one".into(),
            metrics: metrics.clone(),
        };
        let mut supervisor = Supervisor::new(CancellationToken::new());
        supervisor.run("admission policies", run(settings, inputs, CancellationToken::new()));
        Replica { server, metrics, policies, leads_until, _supervisor: supervisor }
    }

    fn leading() -> Replica {
        Replica::start(Some("system:serviceaccount:u:u"), POLICY)
    }

    fn differences(&self) -> i64 {
        self.metrics.policies_that_differ()
    }

    fn fault(&self, fault: impl FnMut(&str, &str) -> Option<(u16, String)> + Send + 'static) {
        self.server.lock().unwrap().fault = Some(Box::new(fault));
    }

    /// The requests of this method since the last call.
    fn requests(&self, method: &str) -> Vec<String> {
        let all = std::mem::take(&mut self.server.lock().unwrap().requests);
        all.into_iter().filter(|request| request.starts_with(method)).collect()
    }
}

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[tokio::test(start_paused = true)]
async fn failed_reads_and_an_unknown_account_count_as_a_difference() {
    let replica = Replica::leading();
    seconds(10).await;
    assert_eq!(replica.differences(), 0);
    replica.fault(|_, path| path.contains("validatingadmissionpolicies").then(|| (500, "{}".to_owned())));
    seconds(120).await;
    assert_eq!(replica.differences(), 1);
    replica.fault(|_, _| None);
    seconds(120).await;
    assert_eq!(replica.differences(), 0);
    let replica = Replica::start(None, POLICY);
    seconds(10).await;
    assert_eq!(replica.differences(), 1);
    assert!(replica.requests("").is_empty(), "nothing is compared with policies for another account");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_where_a_kind_is_not_served_and_an_old_cluster_needs_no_fallback() {
    for (kind, differences) in [(Kind::Validating, 1), (Kind::Fallback, 0)] {
        let replica = Replica::start_with(kind, Some("system:serviceaccount:u:u"), POLICY);
        replica.fault(|method, path| {
            let status = json!({"kind": "Status", "reason": "NotFound", "code": 404}).to_string();
            (method == "GET" && path.contains("policybindings")).then_some((404, status))
        });
        seconds(10).await;
        assert_eq!((replica.differences(), replica.requests("PATCH").len()), (differences, 0), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn watches_that_end_and_changes_of_other_installations_cause_no_loop() {
    let replica = Replica::leading();
    // Without a fault, watches end immediately.
    seconds(60).await;
    let lists = replica.requests("GET").len();
    assert!(lists < 60, "{lists} reads in a minute");
    replica.fault(|_, path| {
        let event =
            |name| json!({"type": "MODIFIED", "object": {"apiVersion": "v1", "kind": "X", "metadata": {"name": name}}});
        path.contains("watch=true").then(|| (200, format!("{}\n", event("other.x")).repeat(100)))
    });
    replica.requests("");
    seconds(60).await;
    let others = replica.requests("GET").len();
    assert!(others <= lists, "{others}, and {lists} without events");
}

#[tokio::test(start_paused = true)]
async fn end_of_the_leadership_between_two_requests_of_a_write_prevents_the_second() {
    let replica = Replica::leading();
    seconds(10).await;
    let leads_until = replica.leads_until.clone();
    {
        let mut server = replica.server.lock().unwrap();
        let (key, found) = server.objects.iter_mut().next().unwrap();
        found["spec"]["matchConditions"] = json!([{"name": "never", "expression": "false"}]);
        // Another manager's condition stays, and a second request would replace it.
        let (key, found) = (key.clone(), found.to_string());
        server.fault = Some(Box::new(move |method, path| {
            if method == "PATCH" && path.starts_with(&key) {
                leads_until.send_replace(None);
                return Some((200, found.clone()));
            }
            None
        }));
    }
    replica.requests("");
    seconds(120).await;
    let all = replica.requests("P");
    assert!(all.len() == 1 && all[0].starts_with("PATCH"), "{all:?}");
}

#[tokio::test(start_paused = true)]
async fn object_that_changes_before_the_write_is_read_again() {
    let replica = Replica::leading();
    seconds(10).await;
    replica.requests("");
    // Every time it is read, it changes before it is written.
    let counts = |result: &str| replica.metrics.actions.with_label_values(&["admission-policy", result]).get();
    for object in replica.server.lock().unwrap().objects.values_mut() {
        object["spec"]["matchConditions"] = json!([]);
        object["spec"]["validationActions"] = json!(["Audit"]);
    }
    replica.fault(|method, path| {
        let is_list = method == "GET" && !path.contains("clusterroles") && !path.contains("watch=true");
        is_list.then_some((0, String::new()))
    });
    seconds(200).await;
    assert!(counts("stale") > 3 && counts("failed") == 0, "{} {}", counts("stale"), counts("failed"));
    assert!(replica.requests("PATCH").iter().all(|request| request.ends_with(" seen")), "each states what it changes");
    replica.fault(|_, _| None);
    seconds(100).await;
    assert_eq!(replica.differences(), 0);
}

#[tokio::test(start_paused = true)]
async fn condition_of_another_manager_is_replaced_also_where_it_makes_the_object_invalid() {
    let replica = Replica::leading();
    seconds(10).await;
    for code in [200, 422] {
        let foreign = json!([{"name": "never", "expression": "false"}]);
        let (key, found) = {
            let mut server = replica.server.lock().unwrap();
            let (key, found) = server.objects.iter_mut().find(|(key, _)| !key.contains("bindings")).unwrap();
            found["spec"]["matchConditions"] = foreign;
            (key.clone(), found.to_string())
        };
        let mut refusals = 1;
        let status = json!({"kind": "Status", "status": "Failure", "reason": "Invalid", "code": code}).to_string();
        let of_fault = key.clone();
        replica.fault(move |method, path| {
            let is_first = method == "PATCH" && path.starts_with(&of_fault) && path.contains("force=true");
            let answer = if code == 422 { &status } else { &found };
            (is_first && std::mem::take(&mut refusals) > 0).then(|| (code, answer.clone()))
        });
        seconds(100).await;
        let stored = replica.server.lock().unwrap().objects[&key].clone();
        assert_ne!(stored["spec"]["matchConditions"][0]["name"], "never", "{code}");
        assert_eq!(replica.differences(), 0, "{code}");
        assert_eq!(replica.metrics.actions.with_label_values(&["admission-policy", "failed"]).get(), 0, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn dry_run_writes_nothing_until_it_ends() {
    let text = format!("lifecycle: {{dryRun: true}}\n{POLICY}");
    let replica = Replica::start(Some("system:serviceaccount:u:u"), &text);
    seconds(70).await;
    assert_eq!((replica.differences(), replica.requests("P").len()), (3, 0), "two objects, and the reason");
    replica.policies.store(policies(POLICY));
    seconds(10).await;
    assert_eq!(replica.differences(), 0);
}

#[tokio::test(start_paused = true)]
async fn file_without_possible_policies_keeps_those_of_the_file_before() {
    let replica = Replica::leading();
    seconds(10).await;
    let queues: Vec<String> = (0..300).map(|number| format!("{}{number}", "x".repeat(400))).collect();
    let large = policies(&format!("policies: [{{name: a, queues: [{}]}}]", queues.join(", ")));
    let parameters =
        Parameters { name: "u".into(), namespaces: Vec::new(), account: "system:serviceaccount:u:u".into() };
    let refused = usher_core::manifests::validating_policy::manifests(&large, &parameters).unwrap_err().to_string();
    assert!(refused.contains("characters: expected at most 100000"), "{refused}");
    // The set that was replaced last is deleted all the same.
    replica.policies.store(policies("policies: [{name: b, validate: Warn}]"));
    seconds(3).await;
    replica.policies.store(large);
    seconds(30).await;
    let names: Vec<String> = replica.server.lock().unwrap().objects.keys().cloned().collect();
    assert!(names.len() == 2 && names.iter().all(|name| name.contains("warn-b")), "{names:?}");
    assert_eq!(replica.differences(), 1, "the file");
    // What another client deletes is restored.
    replica.server.lock().unwrap().objects.clear();
    seconds(120).await;
    assert_eq!(replica.server.lock().unwrap().objects.len(), 2);
}
