use std::sync::Mutex;

use super::*;
use usher_net::telemetry::registry::Registry;

#[test]
fn leadership_holds_only_until_its_deadline() {
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
    requests: Vec<String>,
    is_unavailable: bool,
}

impl Server {
    fn answer(&mut self, method: &str, body: &[u8]) -> (u16, serde_json::Value) {
        self.requests.push(method.to_owned());
        if self.is_unavailable {
            return (
                500,
                serde_json::json!({"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500}),
            );
        }
        let error = |code: u16| {
            let reason = if code == 404 { "NotFound" } else { "Conflict" };
            (code, serde_json::json!({"kind": "Status", "status": "Failure", "reason": reason, "code": code}))
        };
        let sent: Option<serde_json::Value> = serde_json::from_slice(body).ok();
        match (method, sent, &self.lease) {
            ("GET", _, Some(lease)) => return (200, lease.clone()),
            ("POST", Some(sent), None) => self.lease = Some(sent),
            ("PUT", Some(sent), Some(lease)) => {
                if sent["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"] {
                    return error(409);
                }
                self.lease = Some(sent);
            }
            _ => return error(404),
        }
        self.version += 1;
        let lease = self.lease.get_or_insert_default();
        lease["metadata"]["resourceVersion"] = self.version.to_string().into();
        (200, lease.clone())
    }
}

/// A client of that server. `loses`: the first POST is executed, and its answer is lost.
fn client_of(server: &Arc<Mutex<Server>>, loses_first_response: bool) -> kube::Client {
    use http_body_util::{BodyExt, Full};

    let (server, loses_first_response) = (server.clone(), Arc::new(Mutex::new(loses_first_response)));
    let service = tower::service_fn(move |request: hyper::Request<kube::client::Body>| {
        let (server, loses_first_response) = (server.clone(), loses_first_response.clone());
        async move {
            let method = request.method().to_string();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let (code, answer) = server.lock().unwrap().answer(&method, &body);
            if method == "POST" && std::mem::take(&mut *loses_first_response.lock().unwrap()) {
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

fn elector(client: &kube::Client, identity: &str) -> Elector {
    let mut elector = Elector::new(Api::namespaced(client.clone(), "n"), election(identity));
    elector.observed_since = Some(0);
    elector
}

/// Participates in the election. Returns its state as it is published.
fn start_election(client: kube::Client) -> (impl Future<Output = ()>, watch::Receiver<ElectionState>) {
    let (state, seen) = watch::channel(ElectionState::NoLeader);
    let channels = Channels { state, contact: watch::channel(None).0, reported: watch::channel(Reported::default()).1 };
    let metrics = Arc::new(Metrics::register(&Registry::default()).unwrap());
    (run(client, election("we"), channels, metrics, CancellationToken::new()), seen)
}

#[tokio::test]
async fn renewal_takes_one_request_unless_another_client_wrote_the_lease() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    let mut elector = self::elector(&client, "we");
    let requests = || std::mem::take(&mut server.lock().unwrap().requests).join(" ");
    assert!(elector.try_acquire_or_renew().await.unwrap());
    assert_eq!(requests(), "GET POST");
    assert!(elector.try_acquire_or_renew().await.unwrap() && elector.try_acquire_or_renew().await.unwrap());
    assert_eq!(requests(), "PUT PUT");
    // The renewal writes the checkpoint, and the replica that takes the Lease finds it.
    let checkpoint =
        Checkpoint { through: 7, at: clock::now(), gaps: usher_core::lifecycle::checkpoint::Gaps::default() };
    elector.checkpoint = Some(checkpoint);
    assert!(elector.try_acquire_or_renew().await.unwrap() && requests() == "PUT");
    elector.release().await.unwrap();
    let mut next = self::elector(&client, "next");
    assert!(next.try_acquire_or_renew().await.unwrap());
    let found = next.found.unwrap();
    assert!(found.checkpoint == Some(checkpoint) && found.is_released && found.taken.is_some(), "{found:?}");
    // A version without checkpoints leads, and leaves the checkpoint as it is: the checkpoint is no longer final.
    next.release().await.unwrap();
    let mut third = self::elector(&client, "third");
    assert!(third.try_acquire_or_renew().await.unwrap());
    let found = third.found.unwrap();
    assert!(found.checkpoint == Some(checkpoint) && found.was_held && !found.is_released, "{found:?}");
    // The third leader reports, loses the Lease for a moment, and has to stop immediately: the checkpoint that it left is older
    // than its last reports, and must not count as final.
    third.checkpoint = Some(checkpoint);
    assert!(third.try_acquire_or_renew().await.unwrap());
    third.checkpoint = None;
    third.release().await.unwrap();
    let mut fourth = self::elector(&client, "fourth");
    assert!(fourth.try_acquire_or_renew().await.unwrap());
    let found = fourth.found.unwrap();
    assert!(found.checkpoint == Some(checkpoint) && !found.is_released, "{found:?}");
    fourth.release().await.unwrap();
    elector.last_written = None;
    assert!(elector.try_acquire_or_renew().await.unwrap());
    requests();
    // An administrator adds a label: the Lease is read again, and still names this replica.
    server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = "77".into();
    server.lock().unwrap().version = 77;
    assert!(elector.try_acquire_or_renew().await.unwrap());
    assert_eq!(requests(), "PUT GET PUT");
    // An administrator deletes the Lease.
    server.lock().unwrap().lease = None;
    assert!(elector.try_acquire_or_renew().await.unwrap());
    assert_eq!(requests(), "PUT GET POST");
    // Another replica takes the Lease.
    server.lock().unwrap().lease.as_mut().unwrap()["spec"]["holderIdentity"] = "they".into();
    server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = "99".into();
    assert!(!elector.try_acquire_or_renew().await.unwrap());
    assert_eq!(requests(), "PUT GET");
    assert!(elector.leader().is_some());
}

/// A replica that has only just listed pods does not know the exits that a killed leader has not reported; another one does.
#[tokio::test(start_paused = true)]
async fn replica_that_has_observed_every_exit_takes_free_lease_before_one_that_has_not() {
    for is_released in [true, false] {
        let server = Arc::new(Mutex::new(Server::default()));
        let client = client_of(&server, false);
        let mut leader = elector(&client, "leader");
        let gaps = usher_core::lifecycle::checkpoint::Gaps::default();
        leader.checkpoint = Some(Checkpoint { through: 7, at: clock::now(), gaps });
        assert!(leader.try_acquire_or_renew().await.unwrap() && leader.try_acquire_or_renew().await.unwrap());
        let (mut young, mut old) = (elector(&client, "young"), elector(&client, "old"));
        (young.observed_since, old.observed_since) = (Some(8), Some(7));
        assert!(!young.try_acquire_or_renew().await.unwrap() && !old.try_acquire_or_renew().await.unwrap());
        match is_released {
            true => leader.release().await.unwrap(),
            false => tokio::time::sleep(Duration::from_secs(4)).await,
        }
        assert!(!young.try_acquire_or_renew().await.unwrap(), "released: {is_released}");
        assert!(old.try_acquire_or_renew().await.unwrap(), "released: {is_released}");
        // Without another one, it takes the Lease a moment later, whatever else changes it.
        old.release().await.unwrap();
        assert!(!young.try_acquire_or_renew().await.unwrap());
        let again = young.delay(false);
        assert!(again <= Duration::from_millis(1600), "{again:?}");
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.lock().unwrap().lease.as_mut().unwrap()["metadata"]["resourceVersion"] = "77".into();
        server.lock().unwrap().version = 77;
        assert!(!young.try_acquire_or_renew().await.unwrap());
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(young.try_acquire_or_renew().await.unwrap());
    }
}

/// The API server stores the first Lease, and its answer is lost.
#[tokio::test(start_paused = true)]
async fn first_leader_finds_no_previous_holder_if_create_response_is_lost() {
    let server = Arc::new(Mutex::new(Server::default()));
    let (running, mut seen) = start_election(client_of(&server, true));
    let leadership = tokio::select! {
        () = running => panic!("the election ended unexpectedly"),
        state = seen.wait_for(|state| state.leadership().is_some()) => state.unwrap().leadership().unwrap().clone(),
    };
    let found = leadership.found().expect("the content of the Lease when it was taken");
    assert!(found.checkpoint.is_none() && !found.was_held);
}

#[tokio::test(start_paused = true)]
async fn leadership_that_has_ended_does_not_hold_when_the_replica_leads_again() {
    let server = Arc::new(Mutex::new(Server::default()));
    let (running, mut seen) = start_election(client_of(&server, false));
    let leading = async {
        let mut leads = async |leads: bool| {
            let state = seen.wait_for(|state| state.leadership().is_some() == leads).await.unwrap();
            state.leadership().cloned()
        };
        let first = leads(true).await.unwrap();
        assert!(first.holds());
        server.lock().unwrap().is_unavailable = true;
        leads(false).await;
        assert!(!first.holds());
        server.lock().unwrap().is_unavailable = false;
        let second = leads(true).await.unwrap();
        assert!(second.holds() && !first.holds());
    };
    tokio::select! {
        () = running => panic!("the election ended unexpectedly"),
        () = leading => {}
    }
}

/// Each change of the leadership wakes its receivers: the signing key is read again, and actions are cancelled.
#[tokio::test(start_paused = true)]
async fn retry_of_follower_does_not_notify_election_receivers() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    assert!(elector(&client, "they").try_acquire_or_renew().await.unwrap());
    server.lock().unwrap().requests.clear();
    let (running, mut seen) = start_election(client);
    // The other replica does not renew the Lease, which is valid for four seconds.
    let mut running = std::pin::pin!(running);
    assert!(tokio::time::timeout(Duration::from_millis(500), &mut running).await.is_err());
    assert!(matches!(*seen.borrow_and_update(), ElectionState::Follower(_)));
    assert!(tokio::time::timeout(Duration::from_secs(3), &mut running).await.is_err());
    let rounds = server.lock().unwrap().requests.len();
    assert!(rounds >= 3, "{rounds} requests");
    assert!(!seen.has_changed().unwrap());
}

/// A leader dies with the API server on its node: a replica that waits for the Lease to expire must not hammer the server then.
#[tokio::test(start_paused = true)]
async fn expired_unreadable_lease_is_retried_once_per_period() {
    let server = Arc::new(Mutex::new(Server::default()));
    let client = client_of(&server, false);
    assert!(elector(&client, "leader").try_acquire_or_renew().await.unwrap());
    let (run, _leading) = start_election(client);
    let requests = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.lock().unwrap().is_unavailable = true;
        tokio::time::sleep(Duration::from_secs(10)).await; // It expires after four.
        server.lock().unwrap().requests.clear();
        tokio::time::sleep(Duration::from_secs(60)).await;
        server.lock().unwrap().requests.len()
    };
    let requests = tokio::select! {
        () = run => unreachable!(),
        requests = requests => requests,
    };
    // One GET and one watch per second, with jitter.
    assert!((100..=150).contains(&requests), "{requests} in a minute");
}

#[test]
fn identities_of_same_pod_are_unique() {
    assert_ne!(identity("a"), identity("a"));
    assert!(identity("pod-1").starts_with("pod-1_"));
}

#[tokio::test(start_paused = true)]
async fn receiver_is_notified_of_each_own_leadership_only() {
    let (state, election) = watch::channel(ElectionState::NoLeader);
    let mut leadership = LeadershipReceiver::new(election);
    let lead = || ElectionState::Leader(Arc::new(Leadership::of(Duration::from_secs(9))));
    state.send_replace(ElectionState::Follower("other".into()));
    let soon = Duration::from_secs(1);
    assert!(tokio::time::timeout(soon, leadership.changed()).await.is_err(), "another leader is not a leadership");
    assert_eq!(leadership.leader_state(None), LeaderState::Follower);
    state.send_replace(lead());
    leadership.changed().await;
    let first = leadership.received().cloned();
    assert_eq!(leadership.leader_state(first.as_ref()), LeaderState::Leader);
    assert_eq!(leadership.leader_state(None), LeaderState::NoLeader, "a leadership that does not hold any more");
    // Lost and won again before the task received it: another replica may have held the Lease meanwhile.
    state.send_replace(ElectionState::NoLeader);
    state.send_replace(lead());
    leadership.changed().await;
    assert!(!Arc::ptr_eq(first.as_ref().unwrap(), leadership.received().unwrap()));
    state.send_replace(ElectionState::NoLeader);
    assert!(leadership.receive() && leadership.received().is_none());
}
