//! A list and a watch as one endless stream of events.
//!
//! It works as `kube::runtime::watcher` does, and also reports what confirmations depend on: the resourceVersion of each list,
//! bookmarks, and every interruption, after which it pauses. It never opens watches in quick succession, however the server
//! closes them.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::stream::{BoxStream, Stream, StreamExt, unfold};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::core::Status;
use serde::de::DeserializeOwned;
use thiserror::Error;

use super::client::Brief;
use usher_runtime::{clock, random};

/// A watch that is open for so long without an error works, also if nothing happens.
pub const STEADY: Duration = Duration::from_secs(10);

/// How long the server keeps a watch: the longest that kube allows.
const SERVER_CLOSES: Duration = Duration::from_secs(290);
/// After this time without an event a watch is dead: the server should have closed it.
const LONGEST: Duration = SERVER_CLOSES.saturating_add(Duration::from_secs(5));
/// A watch that the server closes sooner without an error was not served.
const AT_ONCE: Duration = STEADY;
/// Objects per page of a list that is not streamed.
const PAGE: u32 = 500;
/// Timeout of a page of a list, of the opening of a watch, and of each event of a streamed list.
const ANSWER: Duration = Duration::from_secs(60);
/// The next watch is opened no sooner than this long after the last.
const BETWEEN_WATCHES: Duration = Duration::from_secs(1);
/// The annotation of the bookmark that ends the initial events of a streamed list.
const INITIAL_END: &str = "k8s.io/initial-events-end";

/// An event of the stream.
#[derive(Debug)]
pub enum Event<K> {
    /// A list begins.
    Init,
    /// An object of the list.
    Listed(K),
    /// The list is complete, as of this resourceVersion.
    InitDone(String),
    /// An object was added or modified.
    Apply(K),
    /// An object was deleted, or left the selection.
    Delete(K),
    /// Everything up to this resourceVersion was delivered.
    Bookmark(String),
    /// The watch is open, again.
    Opened,
}

/// What interrupts a watch. The stream continues after each interruption.
#[derive(Debug, Error)]
pub enum Interruption {
    /// The list failed.
    #[error("the list failed: {}", Brief(.0))]
    List(#[source] kube::Error),
    /// The watch could not be opened.
    #[error("cannot open the watch: {}", Brief(.0))]
    Open(#[source] kube::Error),
    /// A list, or the opening of a watch, was not answered in time.
    #[error("no answer within {0:?}")]
    NoAnswer(Duration),
    /// The server closed the watch with an error.
    #[error("the server closed the watch: {} ({})", .0.message, .0.code)]
    Ended(#[source] Box<Status>),
    /// The connection broke, or delivered something that is not an event.
    #[error("the watch was interrupted: {}", Brief(.0))]
    Broken(#[source] kube::Error),
    /// A streamed list ended before its last bookmark.
    #[error("the streamed list ended before its last bookmark")]
    CutOff,
    /// The server closed the watch immediately after it was open.
    #[error("the server closed the watch immediately")]
    Closed,
    /// An answer had no resourceVersion.
    #[error("expected metadata.resourceVersion in the response, got none")]
    NoVersion,
}

impl Interruption {
    /// Whether the server no longer has the resourceVersion from which the watch was to continue.
    fn is_expired(&self) -> bool {
        match self {
            Interruption::List(error) | Interruption::Open(error) | Interruption::Broken(error) => is_expired(error),
            Interruption::Ended(status) => status.code == 410,
            Interruption::NoAnswer(_) | Interruption::CutOff | Interruption::Closed | Interruption::NoVersion => false,
        }
    }
}

impl Interruption {
    /// Whether the list is read again.
    pub fn relists(&self) -> bool {
        // After a line that cannot be read, the watch continues.
        (self.is_expired() && !matches!(self, Interruption::Broken(_))) || matches!(self, Interruption::NoVersion)
    }

    /// How much an end of a streamed list before its last bookmark speaks against streaming: 2 if the server rejects the parameters, 1 if
    /// it may be unable. An API server whose etcd cannot report its progress (before 3.4.31 and 3.5.13, or another make) opens the watch and
    /// ends it with an error event, answers with an error, or sends nothing. 0 for what has other causes: permissions, overload, and a
    /// connection that could not be made.
    pub fn unstreamed(&self) -> u32 {
        let by_code = |code| match code {
            400 | 422 => 2,
            401 | 403 | 429 | 503 => 0,
            _ => 1,
        };
        match self {
            Interruption::Open(kube::Error::Api(status)) => by_code(status.code),
            Interruption::Ended(status) => by_code(status.code).min(1),
            Interruption::CutOff | Interruption::NoAnswer(_) => 1,
            _ => 0,
        }
    }

    /// The status code with which the API server rejected the list or the watch.
    pub fn code(&self) -> Option<u16> {
        match self {
            Interruption::List(kube::Error::Api(status)) | Interruption::Open(kube::Error::Api(status)) => {
                Some(status.code)
            }
            _ => None,
        }
    }
}

fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}

/// How the list is requested, and of which objects.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Label selector.
    pub labels: Option<String>,
    /// Field selector.
    pub fields: Option<String>,
    /// Whether the list is streamed (`sendInitialEvents`).
    pub streaming: bool,
}

type Events<K> = BoxStream<'static, kube::Result<WatchEvent<K>>>;

enum State<K> {
    Empty,
    Page { objects: VecDeque<K>, more: Option<String>, version: Option<String> },
    Initial(Events<K>),
    Listed(String),
    Watching(String, Events<K>),
}

struct Watch<K> {
    api: Api<K>,
    config: Config,
    state: State<K>,
    opened: Option<Instant>,
    backoff: Backoff,
    /// After an interruption: when the stream continues.
    resumes: Option<Instant>,
}

/// Delays after interruptions, as in client-go's reflectors (`tools/cache/reflector.go`), except that a 410 after other errors
/// does not wait for them: the server answers again, and only a list helps. That holds for one 410 in two minutes: repeated
/// 410s must not cause repeated lists.
#[derive(Debug, Default)]
struct Backoff {
    failures: u32,
    /// When the last interruption was,
    last: Option<Instant>,
    /// and the last 410.
    expired: Option<Instant>,
}

/// The shortest delay, the longest, and the time without a failure after which the delays begin at the shortest again. Jitter
/// lengthens each delay by up to its own length.
const MIN_DELAY: Duration = Duration::from_millis(800);
const MAX_DELAY: Duration = Duration::from_secs(30);
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(120);

impl Backoff {
    /// The delay after an interruption; `jitter` is from 0 to 1.
    fn delay(&mut self, interruption: &Interruption, now: Instant, jitter: f64) -> Duration {
        let is_long_ago =
            |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) > BACKOFF_RESET_AFTER);
        let expired = interruption.is_expired();
        if is_long_ago(self.last) || (expired && is_long_ago(self.expired)) {
            self.failures = 0;
        }
        self.last = Some(now);
        if expired {
            self.expired = Some(now);
        }
        let pause = MIN_DELAY * 2_u32.pow(self.failures.min(6));
        self.failures += 1;
        pause.mul_f64(1.0 + jitter).min(MAX_DELAY)
    }
}

/// Lists and watches forever.
pub fn events<K>(api: Api<K>, config: Config) -> impl Stream<Item = Result<Event<K>, Interruption>> + Send
where
    K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let watch = Watch { api, config, state: State::Empty, opened: None, backoff: Backoff::default(), resumes: None };
    unfold(watch, |mut watch| async move {
        let event = watch.next().await;
        Some((event, watch))
    })
}

impl<K: kube::Resource + Clone + Debug + DeserializeOwned + Send + 'static> Watch<K> {
    async fn next(&mut self) -> Result<Event<K>, Interruption> {
        if let Some(resumes) = self.resumes.take() {
            tokio::time::sleep_until(resumes.into()).await;
        }
        loop {
            match self.step().await {
                Ok(Some(event)) => return Ok(event),
                Ok(None) => {}
                Err(interruption) => {
                    let now = clock::instant();
                    self.resumes = Some(now + self.backoff.delay(&interruption, now, random::fraction()));
                    return Err(interruption);
                }
            }
        }
    }

    async fn open(&mut self, initial: bool, version: &str) -> Result<Events<K>, Interruption> {
        if let Some(opened) = self.opened {
            tokio::time::sleep_until((opened + BETWEEN_WATCHES).into()).await;
        }
        self.opened = Some(clock::instant());
        let params = WatchParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            timeout: u32::try_from(SERVER_CLOSES.as_secs()).ok(),
            send_initial_events: initial,
            ..WatchParams::default()
        };
        match tokio::time::timeout(ANSWER, self.api.watch(&params, version)).await {
            Ok(opened) => opened.map(StreamExt::boxed).map_err(Interruption::Open),
            Err(_) => Err(Interruption::NoAnswer(ANSWER)),
        }
    }

    /// Reads a page of the list.
    async fn page(&mut self, more: Option<String>) -> Result<(), Interruption> {
        let params = ListParams {
            label_selector: self.config.labels.clone(),
            field_selector: self.config.fields.clone(),
            limit: Some(PAGE),
            continue_token: more,
            ..ListParams::default()
        };
        let list = match tokio::time::timeout(ANSWER, self.api.list(&params)).await {
            Ok(list) => list.map_err(Interruption::List)?,
            Err(_) => return Err(Interruption::NoAnswer(ANSWER)),
        };
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        let more = list.metadata.continue_.filter(|more| !more.is_empty());
        if version.is_none() && more.is_none() {
            return Err(Interruption::NoVersion);
        }
        self.state = State::Page { objects: list.items.into(), more, version };
        Ok(())
    }

    /// One step; `None` if it produced no event. After an error, the state is where to continue.
    async fn step(&mut self) -> Result<Option<Event<K>>, Interruption> {
        match std::mem::replace(&mut self.state, State::Empty) {
            State::Empty if self.config.streaming => {
                let events = self.open(true, "0").await?;
                self.state = State::Initial(events);
                Ok(Some(Event::Init))
            }
            // The list begins with its first page: a list that fails produces no event.
            State::Empty => {
                self.page(None).await?;
                Ok(Some(Event::Init))
            }
            State::Page { mut objects, more, version } => {
                if let Some(object) = objects.pop_front() {
                    self.state = State::Page { objects, more, version };
                    return Ok(Some(Event::Listed(object)));
                }
                if let (None, Some(version)) = (&more, version) {
                    self.state = State::Listed(version.clone());
                    return Ok(Some(Event::InitDone(version)));
                }
                self.page(more).await?;
                Ok(None)
            }
            State::Initial(mut events) => match next_event(&mut events, ANSWER).await? {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    self.state = State::Initial(events);
                    Ok(Some(Event::Listed(object)))
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    let version = bookmark.metadata.resource_version;
                    if !bookmark.metadata.annotations.contains_key(INITIAL_END) {
                        self.state = State::Initial(events);
                        return Ok(None);
                    }
                    self.state = State::Watching(version.clone(), events);
                    Ok(Some(Event::InitDone(version)))
                }
                Some(Ok(WatchEvent::Error(status))) => Err(Interruption::Ended(status.boxed())),
                Some(Err(error)) => {
                    // Only one line cannot be read; if the connection is broken, the stream ends next.
                    self.state = State::Initial(events);
                    Err(Interruption::Broken(error))
                }
                // No object may be deleted during the list; a list that is cut off is read again.
                Some(Ok(WatchEvent::Deleted(_))) | None => Err(Interruption::CutOff),
            },
            State::Listed(version) => match self.open(false, &version).await {
                Ok(events) => {
                    self.state = State::Watching(version, events);
                    Ok(Some(Event::Opened))
                }
                Err(interruption) => {
                    // The server no longer has that version: some servers report that when the watch opens, and not by an event.
                    if !interruption.is_expired() {
                        self.state = State::Listed(version);
                    }
                    Err(interruption)
                }
            },
            State::Watching(version, mut events) => match next_event(&mut events, LONGEST).await.unwrap_or(None) {
                Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                    self.state = State::Watching(version_of(&object)?, events);
                    Ok(Some(Event::Apply(object)))
                }
                Some(Ok(WatchEvent::Deleted(object))) => {
                    self.state = State::Watching(version_of(&object)?, events);
                    Ok(Some(Event::Delete(object)))
                }
                Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                    let version = bookmark.metadata.resource_version;
                    self.state = State::Watching(version.clone(), events);
                    Ok(Some(Event::Bookmark(version)))
                }
                Some(Ok(WatchEvent::Error(status))) => {
                    // 410: the server no longer has the events that we have not received, so the list is read again.
                    if status.code != 410 {
                        self.state = State::Listed(version);
                    }
                    Err(Interruption::Ended(status.boxed()))
                }
                Some(Err(error)) => {
                    self.state = State::Watching(version, events);
                    Err(Interruption::Broken(error))
                }
                None => {
                    self.state = State::Listed(version);
                    let open = self.opened.map(|opened| clock::instant().saturating_duration_since(opened));
                    match open.is_some_and(|open| open < AT_ONCE) {
                        true => Err(Interruption::Closed),
                        false => Ok(None),
                    }
                }
            },
        }
    }
}

fn version_of<K: kube::Resource>(object: &K) -> Result<String, Interruption> {
    object.meta().resource_version.clone().filter(|version| !version.is_empty()).ok_or(Interruption::NoVersion)
}

/// The next event; `None` if the server has closed the watch, and an error if nothing came within this time.
async fn next_event<K>(
    events: &mut Events<K>,
    within: Duration,
) -> Result<Option<kube::Result<WatchEvent<K>>>, Interruption> {
    tokio::time::timeout(within, events.next()).await.map_err(|_| Interruption::NoAnswer(within))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn ended(code: u16) -> Interruption {
        Interruption::Ended(Status { code, ..Status::default() }.boxed())
    }

    #[test]
    fn backoff_grows_and_resets_after_two_minutes_without_error() {
        let (mut backoff, mut now) = (Backoff::default(), clock::instant());
        let delays: Vec<f64> = (0..8).map(|_| backoff.delay(&ended(500), now, 0.0).as_secs_f64()).collect();
        assert_eq!(delays, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]);
        now += BACKOFF_RESET_AFTER + Duration::from_secs(1);
        assert_eq!(backoff.delay(&ended(500), now, 0.5), MIN_DELAY.mul_f64(1.5));
    }

    /// An API server that accepts connections and answers nothing would otherwise stop the watch without a word.
    #[tokio::test(start_paused = true)]
    async fn list_without_an_answer_is_an_interruption() {
        let silent = tower::service_fn(|_: hyper::Request<kube::client::Body>| {
            std::future::pending::<Result<hyper::Response<kube::client::Body>, std::io::Error>>()
        });
        let api: Api<k8s_openapi::api::core::v1::Pod> = Api::all(kube::Client::new(silent, "default"));
        let mut events = Box::pin(events(api, Config::default()));
        for _ in 0..2 {
            let interruption = events.next().await.unwrap().unwrap_err();
            assert_eq!(interruption.to_string(), "no answer within 60s");
        }
    }

    /// Otherwise a watch whose version expired during an outage of a minute would wait up to 30 s more before its list.
    #[test]
    fn first_410_after_other_errors_uses_minimum_delay() {
        let (mut backoff, mut now) = (Backoff::default(), clock::instant());
        for _ in 0..6 {
            backoff.delay(&ended(500), now, 0.0);
        }
        assert_eq!(backoff.delay(&ended(410), now, 0.0), MIN_DELAY);
        let next = backoff.delay(
            &Interruption::Open(kube::Error::Api(Status { code: 410, ..Status::default() }.boxed())),
            now,
            0.0,
        );
        assert_eq!(next, MIN_DELAY * 2, "a second 410 does not reset the delay");
        now += Duration::from_secs(100);
        assert_eq!(backoff.delay(&ended(500), now, 0.0), MIN_DELAY * 4);
        assert_eq!(backoff.delay(&ended(410), now, 0.0), MIN_DELAY * 8);
        now += BACKOFF_RESET_AFTER;
        assert_eq!(backoff.delay(&ended(500), now, 0.0), MIN_DELAY * 16);
        now += Duration::from_secs(1);
        assert_eq!(backoff.delay(&ended(410), now, 0.0), MIN_DELAY);
    }
}
