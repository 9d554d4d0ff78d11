use std::sync::Mutex;

use super::*;

#[test]
fn leadership_ends_by_our_own_clock() {
    let (until, seen) = watch::channel(None);
    let leadership = Leadership { until: seen, found: None };
    assert!(!leadership.holds());
    until.send_replace(Some(clock::instant() + Duration::from_secs(60)));
    assert!(leadership.holds());
    until.send_replace(Some(clock::instant()));
    assert!(!leadership.holds());
}

/// An API server with one Lease, which records its requests.
#[derive(Default)]
struct Server {
    lease: Option<serde_json::Value>,
    version: u64,
    asked: Vec<String>,
    is_away: bool,
}

impl Server {
    fn answer(&mut self, method: &str, body: &[u8]) -> (u16, serde_json::Value) {
        self.asked.push(method.to_owned());
        if self.is_away {
            return (
                500,
                serde_json::json!({"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500}),
            );
        }
        let refused = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "Conflict" };
            (code, serde_json::json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}))
        };
        let sent: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        match (method, sent, &self.lease) {
            ("GET", _, Some(lease)) => return (200, lease.clone()),
            ("POST", Some(sent), None) => self.lease = Some(sent),
            ("PUT", Some(sent), Some(lease)) => {
                if sent["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return refused(409);
                }
                self.lease = Some(sent);
            }
            _ => return refused(404),
        }
        self.version += 1;
        let lease = self.lease.get_or_insert_default();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        (200, lease.clone())
    }
}

/// A client of that server. `loses`: the first POST is executed, and its answer is lost.
fn client_of(server: &Arc<Mutex<Server>>, loses: bool) -> kube::Client {
    use http_body_util::{BodyExt, Full};

    let (server, loses) = (server.clone(), Arc::new(Mutex::new(loses)));
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (server, loses) = (server.clone(), loses.clone());
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (code, answer) = server.lock().unwrap().answer(&method, &body);
            if method == "POST" && std::mem::take(&mut *loses.lock().unwrap()) {
                std::future::pending::<()>().await;
            }
            let response = hyper::Response::builder().status(code);
            Ok::<_, std::convert::Infallible>(response.body(Full::new(bytes::Bytes::from(answer.to_string()))).unwrap())
        }
    });
    kube::Client::new(service, "n")
}

fn election(identity: &str) -> Election {
    Election {
        namespace: "n".into(),
        name: "l".into(),
        identity: identity.into(),
        duration: Duration::from_secs(4),
        period: Duration::from_secs(1),
    }
}

fn candidate(client: &kube::Client, identity: &str) -> Elector {
    let api = Api::namespaced(client.clone(), "n");
    Elector { api, election: election(identity), observed: None, ours: None, found: None, mark: None }
}

/// Participates in the election. Returns its state as it is published.
fn runs(client: kube::Client) -> (impl Future<Output = ()>, watch::Receiver<ElectionState>) {
    let (state, seen) = watch::channel(ElectionState::NoLeader);
    let channels = Channels { state, contact: watch::channel(None).0, reported: watch::channel(Reported::default()).1 };
    let metrics = Arc::new(Metrics::new().unwrap());
    (run(client, election("we"), channels, metrics, CancellationToken::new()), seen)
}

#[tokio::test]
async fn one_request_renews_a_lease_that_nobody_else_wrote() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    let mut candidate = self::candidate(&client, "we");
    let asked = || std::mem::take(&mut server.lock().unwrap().asked).join(" ");
    assert!(candidate.try_acquire_or_renew().await.unwrap());
    assert_eq!(asked(), "GET POST");
    assert!(candidate.try_acquire_or_renew().await.unwrap() && candidate.try_acquire_or_renew().await.unwrap());
    assert_eq!(asked(), "PUT PUT");
    // The renewal writes the mark, and the replica that takes the Lease finds it.
    let mark = Mark { through: 7, at: clock::now(), gap: None };
    candidate.mark = Some(mark);
    assert!(candidate.try_acquire_or_renew().await.unwrap() && asked() == "PUT");
    candidate.release().await.unwrap();
    let mut next = self::candidate(&client, "next");
    assert!(next.try_acquire_or_renew().await.unwrap());
    let found = next.found.unwrap();
    assert!(found.mark == Some(mark) && found.is_released && found.taken.is_some(), "{found:?}");
    // A version without marks leads, and leaves the mark as it is: the mark is no longer final.
    next.release().await.unwrap();
    let mut third = self::candidate(&client, "third");
    assert!(third.try_acquire_or_renew().await.unwrap());
    let found = third.found.unwrap();
    assert!(found.mark == Some(mark) && found.was_held && !found.is_released, "{found:?}");
    // The third leader reports, loses the Lease for a moment, and has to stop at once: the mark that it left is older than its
    // last reports, and must not count as final.
    third.mark = Some(mark);
    assert!(third.try_acquire_or_renew().await.unwrap());
    third.mark = None;
    third.release().await.unwrap();
    let mut fourth = self::candidate(&client, "fourth");
    assert!(fourth.try_acquire_or_renew().await.unwrap());
    let found = fourth.found.unwrap();
    assert!(found.mark == Some(mark) && !found.is_released, "{found:?}");
    fourth.release().await.unwrap();
    candidate.ours = None;
    assert!(candidate.try_acquire_or_renew().await.unwrap());
    asked();
    // An administrator adds a label: the Lease is read again, and still names this replica.
    server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = "77".into();
    server.lock().unwrap().version = 77;
    assert!(candidate.try_acquire_or_renew().await.unwrap());
    assert_eq!(asked(), "PUT GET PUT");
    // An administrator deletes the Lease.
    server.lock().unwrap().lease = None;
    assert!(candidate.try_acquire_or_renew().await.unwrap());
    assert_eq!(asked(), "PUT GET POST");
    // Another replica takes the Lease.
    server.lock().unwrap().lease.as_mut().unwrap()["spec"]["holderIdentity"] = "they".into();
    server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = "99".into();
    assert!(!candidate.try_acquire_or_renew().await.unwrap());
    assert_eq!(asked(), "PUT GET");
    assert!(candidate.has_leader());
}

/// The API server stores the first Lease, and its answer is lost.
#[tokio::test(start_paused = true)]
async fn a_first_leader_knows_that_it_is_the_first_whatever_it_is_answered() {
    let server = Arc::new(Mutex::new(Server::default()));
    let (running, mut seen) = runs(client_of(&server, true));
    let leadership = tokio::select! {
        () = running => panic!("the election ended unexpectedly"),
        state = seen.wait_for(|state| state.leadership().is_some()) => state.unwrap().leadership().unwrap().clone(),
    };
    let found = leadership.found().expect("the content of the Lease when it was taken");
    assert!(found.mark.is_none() && !found.was_held);
}

/// Each change of the leadership wakes its receivers: the signing key is read again, and actions are cancelled.
#[tokio::test(start_paused = true)]
async fn a_round_of_a_replica_that_does_not_lead_is_no_change_of_the_leadership() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    assert!(candidate(&client, "they").try_acquire_or_renew().await.unwrap());
    server.lock().unwrap().asked.clear();
    let (running, mut seen) = runs(client);
    // The other replica does not renew the Lease, which is valid for four seconds.
    let mut running = std::pin::pin!(running);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut running).await.is_err());
    assert!(matches!(*seen.borrow_and_update(), ElectionState::Follower));
    assert!(tokio::time::timeout(Duration::from_secs(3), &mut running).await.is_err());
    let rounds = server.lock().unwrap().asked.len();
    assert!(rounds >= 3, "{rounds} requests");
    assert!(!seen.has_changed().unwrap());
}

/// A leader dies with the API server on its node: a replica that waits for the Lease to expire must not hammer the server then.
#[tokio::test(start_paused = true)]
async fn where_the_lease_is_over_and_cannot_be_read_a_look_comes_once_a_period() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    assert!(candidate(&client, "leader").try_acquire_or_renew().await.unwrap());
    let (run, _leading) = runs(client);
    let requests = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.lock().unwrap().is_away = true;
        tokio::time::sleep(Duration::from_secs(10)).await; // It expires after four.
        server.lock().unwrap().asked.clear();
        tokio::time::sleep(Duration::from_secs(60)).await;
        server.lock().unwrap().asked.len()
    };
    let requests = tokio::select! {
        () = run => unreachable!(),
        requests = requests => requests,
    };
    // One GET and one watch per second, with jitter.
    assert!((100..=150).contains(&requests), "{requests} in a minute");
}

#[test]
fn identities_differ() {
    assert_ne!(identity("a"), identity("a"));
    assert!(identity("pod-1").starts_with("pod-1_"));
}

#[tokio::test(start_paused = true)]
async fn a_task_learns_of_each_leadership_and_not_of_other_leaders() {
    let (state, election) = watch::channel(ElectionState::NoLeader);
    let mut leadership = LeadershipReceiver::new(election);
    let lead = || ElectionState::Leader(Arc::new(Leadership::of(Duration::from_secs(9))));
    state.send_replace(ElectionState::Follower);
    let soon = Duration::from_secs(1);
    assert!(tokio::time::timeout(soon, leadership.changed()).await.is_err(), "another leader is not a leadership");
    assert_eq!(leadership.leader_state(None), LeaderState::Follower);
    state.send_replace(lead());
    leadership.changed().await;
    let first = leadership.received().cloned();
    assert_eq!(leadership.leader_state(first.as_ref()), LeaderState::Leader);
    assert_eq!(leadership.leader_state(None), LeaderState::NoLeader, "a leadership that does not hold any more");
    // Lost and won again before the task received it: the Lease may have been another replica's in between.
    state.send_replace(ElectionState::NoLeader);
    state.send_replace(lead());
    leadership.changed().await;
    assert!(!Arc::ptr_eq(first.as_ref().unwrap(), leadership.received().unwrap()));
    state.send_replace(ElectionState::NoLeader);
    assert!(leadership.receive() && leadership.received().is_none());
}
