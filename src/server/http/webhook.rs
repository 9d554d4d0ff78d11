//! Serves `POST /mutate`, `/validate` and `/mutate-and-validate`, which API servers call.

use std::convert::Infallible;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::routing::post;
use bytes::{Bytes, BytesMut};
use futures::poll;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::sync::oneshot;

use super::gate::{MEDIUM, Permit, SMALL};
use super::handlers::{Find, Handler, Handlers, Lookup, Namespaces, ReviewResponse, Unobserved};
use super::limits::{Limits, MAX_BODY};
use super::metrics::{Hook, Metrics, ReviewOutcome};
use usher_core::admission::Operation;
use usher_core::admission::head::HEAD_LEN;
use usher_core::reason::Reason;
use usher_net::listener::Origin;
use usher_runtime::{background, clock};

/// Deadline without `?timeout=`: the API server's own default.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to read a body, whatever the deadline: a slower body does not come from an API server.
const MAX_READING: Duration = Duration::from_secs(5);
/// After each part of a large body, its reader pauses: deciphering occupies the thread that it shares with other reviews for a
/// fraction of a millisecond at a time.
const PART: usize = 256 << 10;
const PAUSE: Duration = Duration::from_millis(1);
/// While many peers take turns with its permit, a large body must arrive at this rate, in bytes per second, after this time. With fewer it may
/// take longer, because honest bodies wait for each other, too, and a network between the control plane and the nodes takes time.
const RATE_OF_MANY: f64 = 70e6;
const GRACE_OF_MANY: Duration = Duration::from_millis(25);
/// Many: each of them may hold the permit before a review whose deadline is two seconds.
const MANY_PEERS: f64 = 40.0;
/// The longest time that a large body takes while another peer waits for its permit.
const MAX_READING_IF_OTHERS_WAIT: Duration = Duration::from_millis(400);
/// Maximum time to find the namespace of a large review while others wait for its permit.
const FINDING_IF_OTHERS_WAIT: Duration = Duration::from_millis(100);
/// How often a review that holds a permit is checked while others wait for the permit.
const LOOK: Duration = Duration::from_millis(5);
/// The longest time for which a review waits for its namespace. A request to the API server takes a few milliseconds.
const MAX_FINDING: Duration = Duration::from_secs(1);
/// Maximum timeout that the API allows.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

/// State of the routes.
#[derive(Clone)]
struct Webhook {
    hook: Hook,
    answer: Arc<dyn Handler>,
    namespaces: Arc<dyn Namespaces>,
    limits: Limits,
    metrics: Arc<Metrics>,
}

/// The webhook's routes, which share their limits.
pub fn router(answers: Handlers, limits: Limits, metrics: Arc<Metrics>) -> Router {
    let wrong_method =
        |State(webhook): State<Webhook>, request| reject_route(webhook.limits, request, StatusCode::METHOD_NOT_ALLOWED);
    let route_limits = limits.clone();
    let wrong_path = move |request| reject_route(route_limits.clone(), request, StatusCode::NOT_FOUND);
    let route = |hook, answer| {
        let namespaces = answers.namespaces.clone();
        let webhook = Webhook { hook, answer, namespaces, limits: limits.clone(), metrics: metrics.clone() };
        post(review).fallback(wrong_method).with_state(webhook)
    };
    Router::new()
        .route("/mutate", route(Hook::Mutate, answers.mutate))
        .route("/validate", route(Hook::Validate, answers.validate))
        .route("/mutate-and-validate", route(Hook::Admit, answers.admit))
        .fallback(wrong_path)
}

/// Answers other paths and methods. Reads a small body first: an HTTP/2 client may treat an early answer as a broken stream.
async fn reject_route(limits: Limits, request: Request, status: StatusCode) -> Response {
    let asked = format!("{} {}", request.method(), request.uri().path());
    if is_small(request.body()) {
        let _ = read_small(request.into_body(), &limits, MAX_READING).await;
    }
    text(
        status,
        format!(
            "expected POST /mutate, /validate or /mutate-and-validate, found {}\n",
            asked.chars().take(100).collect::<String>()
        ),
    )
}

async fn review(State(webhook): State<Webhook>, request: Request) -> Result<Response, Infallible> {
    let start = clock::instant();
    let _in_flight = InFlight::new(&webhook.metrics);
    let headers = request.headers();
    let answered = if is_json(headers) {
        webhook.read_and_answer(request).await
    } else {
        let found = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("none");
        Err(Failure::WrongContentType(found.to_owned()))
    };
    let ReviewResponse { body, operation, outcome, reason, how } = match answered {
        Ok(answered) => answered,
        Err(failure) => {
            let reason = failure.reason();
            webhook.metrics.count_review(webhook.hook, Operation::Other, ReviewOutcome::Failed, reason);
            return Ok(failure.into_response());
        }
    };
    webhook.metrics.count_review(webhook.hook, operation, outcome, reason);
    webhook.metrics.time(webhook.hook, start.elapsed());
    if let Some(how) = how {
        webhook.metrics.count_driver(how);
    }
    Ok(match body {
        Ok(bytes) => {
            let mut response = Response::new(Body::from(bytes));
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response
        }
        Err(message) => text(StatusCode::BAD_REQUEST, message),
    })
}

impl Webhook {
    /// Reads the review and decides. A small one immediately, on this thread; a large one takes a permit and is decided on a thread of its
    /// own, the largest with low priority.
    async fn read_and_answer(&self, request: Request) -> Result<ReviewResponse, Failure> {
        let deadline = deadline(request.uri().query());
        let until = clock::instant() + deadline;
        let peer = Origin::of(request.extensions());
        if is_small(request.body()) {
            let body = Read::Whole(read_small(request.into_body(), &self.limits, deadline).await?);
            return match decided(&*self.answer, &body, &mut |_| Lookup::None)? {
                Ok(response) => Ok(response),
                Err(Unobserved(name)) => {
                    let namespace = self.find(name, peer, until).await;
                    decided(&*self.answer, &body, &mut |_| namespace.clone())?.map_err(|_| Failure::Panicked)
                }
            };
        }
        let announced = request.body().size_hint().upper().unwrap_or(u64::MAX);
        let entered = tokio::time::timeout(deadline, self.limits.gate(announced).enter(peer)).await;
        let permit = Arc::new(entered.ok().flatten().ok_or(Failure::Overloaded)?);
        let read = read_large(request.into_body(), &permit, deadline).await?;
        let (ask, asked) = oneshot::channel();
        let (reply, replied) = oneshot::channel();
        let deciding = self.decided_on_thread(permit.clone(), read, ask, replied);
        // Dropped if the namespace is not needed.
        if let Ok(name) = asked.await {
            let namespace = tokio::select! {
                biased;
                namespace = self.find(name, peer, until) => namespace,
                () = others_waited(&permit, |since, _| since >= FINDING_IF_OTHERS_WAIT) => Lookup::Failed,
            };
            let _ = reply.send(namespace);
        }
        deciding.await.unwrap_or(Err(Failure::Overloaded))
    }

    async fn find(&self, name: Arc<str>, peer: IpAddr, until: Instant) -> Lookup {
        // The other half of the remaining time is for the decision and the response.
        let within = MAX_FINDING.min(until.saturating_duration_since(clock::instant()) / 2);
        let found = tokio::time::timeout(within, self.namespaces.find(name, peer)).await;
        found.ok().flatten().map_or(Lookup::Failed, Lookup::Found)
    }

    /// The decision about a large review. Body and permit are kept until it is made, also if the client is gone. Its thread waits where
    /// it asks for the namespace, so that a large body is parsed once.
    fn decided_on_thread(
        &self,
        permit: Arc<Permit>,
        read: Read,
        ask: oneshot::Sender<Arc<str>>,
        replied: oneshot::Receiver<Lookup>,
    ) -> oneshot::Receiver<Result<ReviewResponse, Failure>> {
        let (answer, (done, result)) = (self.answer.clone(), oneshot::channel());
        let deciding = move || {
            if matches!(&read, Read::Whole(body) if body.len() > MEDIUM) {
                background::lower_priority();
            }
            let mut question = Some((ask, replied));
            let mut find = |name| {
                let replied = question.take().and_then(|(ask, replied)| ask.send(name).ok().map(|()| replied));
                replied.and_then(|replied| replied.blocking_recv().ok()).unwrap_or(Lookup::Failed)
            };
            let decision = decided(&*answer, &read, &mut find);
            drop((read, permit));
            let _ = done.send(decision.and_then(|decision| decision.map_err(|_| Failure::Panicked)));
        };
        // It needs no signal to end. Without a thread, the receiver gets an error.
        if let Err(error) = std::thread::Builder::new().name("large review".to_owned()).spawn(deciding) {
            tracing::error!(%error, "cannot start a thread for a large review");
        }
        result
    }
}

/// The decision, which takes microseconds for a small review. A panic in it is a 500 for this review alone.
fn decided(answer: &dyn Handler, read: &Read, find: Find<'_>) -> Result<Result<ReviewResponse, Unobserved>, Failure> {
    let answer = AssertUnwindSafe(|| match read {
        Read::Whole(body) => answer.answer(body, find),
        Read::Head(head) => answer.too_large(head, find),
    });
    catch_unwind(answer).map_err(|_| {
        tracing::error!("bug: a panic while a review was answered");
        Failure::Panicked
    })
}

/// Why a review has no decision.
enum Failure {
    /// The body is not JSON.
    WrongContentType(String),
    /// The body was not read before the deadline.
    TooSlow,
    /// Other bodies took its slot, or its turn did not come.
    Overloaded,
    /// The client aborted it.
    BrokeOff,
    /// A bug.
    Panicked,
}

impl Failure {
    fn reason(&self) -> Reason {
        match self {
            Failure::WrongContentType(_) => Reason::WrongContentType,
            Failure::TooSlow => Reason::DeadlineExceeded,
            Failure::Overloaded => Reason::Overloaded,
            Failure::BrokeOff => Reason::BadReview,
            Failure::Panicked => Reason::Panicked,
        }
    }

    fn into_response(self) -> Response {
        let (status, message) = match self {
            Failure::WrongContentType(found) => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, format!("expected content type application/json, found {found}"))
            }
            Failure::TooSlow => {
                (StatusCode::GATEWAY_TIMEOUT, "the deadline passed before the review was read".to_owned())
            }
            Failure::Overloaded => {
                let mut response = text(StatusCode::TOO_MANY_REQUESTS, "too many concurrent reviews; retry".to_owned());
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
                return response;
            }
            Failure::BrokeOff => (StatusCode::BAD_REQUEST, "the body is incomplete".to_owned()),
            Failure::Panicked => {
                (StatusCode::INTERNAL_SERVER_ERROR, "internal error in spark-usher; see its log".to_owned())
            }
        };
        text(status, message)
    }
}

/// A body as far as it was kept.
enum Read {
    /// The whole body.
    Whole(Bytes),
    /// The first bytes of a body that is too long. The rest was read and dropped, because a client that is cut off in
    /// the middle of its request sees no answer.
    Head(Bytes),
}

/// Whether a body is small, and says so; API servers always say how long it is.
fn is_small(body: &Body) -> bool {
    body.size_hint().upper().is_some_and(|length| length <= SMALL as u64)
}

/// Reads a body that [`is_small`].
async fn read_small(body: Body, limits: &Limits, deadline: Duration) -> Result<Bytes, Failure> {
    let mut reading = pin!(body.collect());
    // The body usually arrives with its head, and neither a slot nor a timer is needed.
    let read = match poll!(&mut reading) {
        Poll::Ready(read) => read,
        Poll::Pending => {
            let slot = limits.arriving().enter();
            tokio::select! {
                biased;
                read = reading => read,
                () = slot.evicted() => return Err(Failure::Overloaded),
                () = tokio::time::sleep(deadline.min(MAX_READING)) => return Err(Failure::TooSlow),
            }
        }
    };
    Ok(read.map_err(|_| Failure::BrokeOff)?.to_bytes())
}

/// Reads any other body, or the head of one above [`MAX_BODY`].
async fn read_large(mut body: Body, permit: &Permit, deadline: Duration) -> Result<Read, Failure> {
    let announced = body.size_hint().upper().unwrap_or(0);
    let mut is_whole = announced <= MAX_BODY as u64;
    let mut bytes = BytesMut::with_capacity(if is_whole { announced as usize } else { HEAD_LEN });
    let (from, arrived) = (clock::instant(), AtomicUsize::new(0));
    let reading = async {
        let mut unpaused = 0;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| Failure::BrokeOff)?.into_data() else { continue };
            is_whole &= bytes.len() + data.len() <= MAX_BODY;
            if is_whole {
                bytes.extend_from_slice(&data);
            } else {
                let free = HEAD_LEN.saturating_sub(bytes.len());
                bytes.extend_from_slice(data.get(..free).unwrap_or(&data));
                bytes.truncate(HEAD_LEN);
            }
            arrived.fetch_add(data.len(), Ordering::Relaxed);
            unpaused += data.len();
            if unpaused >= PART {
                unpaused = 0;
                tokio::time::sleep(PAUSE).await;
            }
        }
        Ok(())
    };
    let is_late = |others_wait, peers| {
        is_late(arrived.load(Ordering::Relaxed), clock::instant().saturating_duration_since(from), others_wait, peers)
    };
    tokio::select! {
        biased;
        read = reading => read?,
        () = tokio::time::sleep(deadline.min(MAX_READING)) => return Err(Failure::TooSlow),
        () = others_waited(permit, is_late) => return Err(Failure::Overloaded),
    }
    let bytes = bytes.freeze();
    Ok(if is_whole { Read::Whole(bytes) } else { Read::Head(bytes) })
}

/// Whether a large body arrives too slowly while others wait for its permit. The more peers take turns, the faster it must arrive.
fn is_late(arrived: usize, since: Duration, others_wait: Duration, peers: usize) -> bool {
    let many = (peers as f64 / MANY_PEERS).clamp(0.1, 1.0);
    let grace = GRACE_OF_MANY.div_f64(many);
    let due = grace + Duration::from_secs_f64(arrived as f64 / (RATE_OF_MANY * many));
    others_wait >= grace && since >= due.min(MAX_READING_IF_OTHERS_WAIT)
}

/// Ends when other large reviews have waited for this permit for longer than `is_too_long` allows, which gets this time and the number of
/// peers that take turns.
async fn others_waited(permit: &Permit, is_too_long: impl Fn(Duration, usize) -> bool) {
    loop {
        permit.wanted().await;
        let from = clock::instant();
        loop {
            let peers = permit.contenders();
            if peers == 0 {
                break;
            }
            if is_too_long(clock::instant().saturating_duration_since(from), peers) {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn text(status: StatusCode, message: String) -> Response {
    let mut response = Response::new(Body::from(message));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn is_json(headers: &HeaderMap) -> bool {
    let essence =
        headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).and_then(|value| value.split(';').next());
    essence.is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"))
}

/// The API server passes its deadline in the URL: `?timeout=2s`. Work after the deadline is wasted.
fn deadline(query: Option<&str>) -> Duration {
    let value = query.into_iter().flat_map(|query| query.split('&')).find_map(|pair| pair.strip_prefix("timeout="));
    value.and_then(go_duration).unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT)
}

/// A Go duration such as `2s`, `1m30s` or `500ms`.
fn go_duration(text: &str) -> Option<Duration> {
    let parsed: jiff::SignedDuration = text.parse().ok()?;
    Duration::try_from(parsed).ok().filter(|duration| !duration.is_zero())
}

struct InFlight<'m>(&'m Metrics);

impl<'m> InFlight<'m> {
    fn new(metrics: &'m Metrics) -> Self {
        metrics.in_flight.inc();
        InFlight(metrics)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_late_if_others_wait_and_it_is_behind_the_rate() {
        let millis = Duration::from_millis;
        let late = |arrived, since, wait| is_late(arrived, millis(since), millis(wait), 40);
        assert!(!late(0, 24, 24) && late(0, 25, 25));
        assert!(!late(0, 4000, 24), "the others came just now");
        // 7 MB take 100 ms.
        assert!(!late(7_000_000, 124, 124) && late(7_000_000, 126, 126));
        assert!(late(1, 26, 26), "a byte now and then does not hold the permit");
        // Of few peers, one has time for a connection across zones.
        let late = |arrived, since| is_late(arrived, millis(since), millis(since), 2);
        assert!(!late(0, 249) && late(0, 250) && !late(500_000, 320) && late(500_000, 323));
        assert!(late(MAX_BODY, 400), "no body takes longer");
    }

    #[test]
    fn deadline_is_read_from_timeout_parameter_of_url() {
        assert_eq!(deadline(Some("timeout=2s")), Duration::from_secs(2));
        assert_eq!(deadline(Some("a=b&timeout=1m30s")), MAX_TIMEOUT);
        assert_eq!(deadline(Some("timeout=500ms")), Duration::from_millis(500));
        for other in [None, Some(""), Some("timeout="), Some("timeout=soon"), Some("timeout=0s"), Some("timeout=-1s")] {
            assert_eq!(deadline(other), DEFAULT_TIMEOUT, "{other:?}");
        }
    }

    #[test]
    fn only_json_content_type_is_accepted() {
        let with = |value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            is_json(&headers)
        };
        assert!(with("application/json") && with("application/json; charset=utf-8") && with("Application/JSON"));
        assert!(!with("application/yaml") && !with("text/json") && !is_json(&HeaderMap::new()));
    }
}
