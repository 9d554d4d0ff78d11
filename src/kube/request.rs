//! Requests to the API server: a time limit for each, and errors by what their callers do about them.

use std::time::Duration;

use kube::api::{ListParams, ObjectList};
use kube::core::Status;

use super::client::Brief;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server did not answer in time. The request may have been processed.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// 409: another client changed the object meanwhile, or an object of that name exists already.
    #[error("{}", shown(.0))]
    Conflict(Box<Status>),
    /// 404: the object, or its API, does not exist.
    #[error("{}", shown(.0))]
    NotFound(Box<Status>),
    /// 403: RBAC, a quota or an admission policy denies the request.
    #[error("{}", shown(.0))]
    Forbidden(Box<Status>),
    /// Another answer that is not a success.
    #[error("{}", shown(.0))]
    Api(Box<Status>),
    /// The request was not sent, or its answer cannot be read.
    #[error("{}", Brief(.0))]
    Client(kube::Error),
    /// The answer contains an object that cannot be parsed.
    #[error("cannot parse {0}")]
    Malformed(String),
    /// The request was not sent: this replica does not lead any more.
    #[error("this replica does not lead any more")]
    NotLeading,
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, Error>;

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Error {
        match error {
            kube::Error::Api(status) => match status.code {
                403 => Error::Forbidden(status),
                404 => Error::NotFound(status),
                409 => Error::Conflict(status),
                _ => Error::Api(status),
            },
            other => Error::Client(other),
        }
    }
}

impl Error {
    /// The API server's answer, if it is an error.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Error::Conflict(status) | Error::NotFound(status) | Error::Forbidden(status) | Error::Api(status) => {
                Some(status)
            }
            Error::Timeout(_) | Error::Client(_) | Error::Malformed(_) | Error::NotLeading => None,
        }
    }

    /// Whether the API server was not reached, or did not answer.
    pub fn is_of_connection(&self) -> bool {
        matches!(self, Error::Timeout(_) | Error::Client(_))
    }

    /// Whether the same request may succeed soon: the connection broke, or the API server is overloaded or fails.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Error::Client(error) => {
                !has_timed_out(error)
                    && matches!(
                        error,
                        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_)
                    )
            }
            Error::Api(status) => status.code == 429 || status.code >= 500,
            _ => false,
        }
    }

    /// Whether the API server may have processed the request although it failed.
    pub fn may_be_done(&self) -> bool {
        match self {
            Error::Timeout(_) => true,
            Error::Api(status) => status.code >= 500,
            // It was answered, but the answer cannot be read.
            Error::Client(kube::Error::SerdeError(_)) | Error::Malformed(_) => true,
            Error::Client(error) => has_timed_out(error) || may_be_sent(error),
            _ => false,
        }
    }

    /// How long the API server asks to wait before the request is sent again.
    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()))
    }

    /// Whether the object on which the request was based was changed or deleted meanwhile.
    pub fn is_stale(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::NotFound(_))
    }
}

/// Whether the request reached the client's own timeout (`--request-timeout`).
fn has_timed_out(error: &kube::Error) -> bool {
    let mut causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
    causes.any(|error| error.is::<tower::timeout::error::Elapsed>())
}

/// Whether the request may have been sent: a connection was made. A request that fails before, such as for want of credentials, was not.
fn may_be_sent(error: &kube::Error) -> bool {
    let mut causes = std::iter::successors(Some(error as &(dyn std::error::Error + 'static)), |error| error.source());
    match causes.find_map(|error| error.downcast_ref::<hyper_util::client::legacy::Error>()) {
        Some(error) => !error.is_connect(),
        None => matches!(error, kube::Error::HyperError(_) | kube::Error::ReadEvents(_)),
    }
}

fn shown(status: &Status) -> String {
    format!("{} ({})", status.message, status.code)
}

/// The result of a request, or of several, within a time limit.
pub async fn call<T, E: From<Error>>(
    limit: Duration,
    request: impl Future<Output = std::result::Result<T, E>>,
) -> std::result::Result<T, E> {
    tokio::time::timeout(limit, request).await.unwrap_or_else(|_| Err(Error::Timeout(limit).into()))
}

/// Answers with 401 or 403 in a row that mean that the credentials have expired, or that a permission was withdrawn.
const MAX_DENIED: u32 = 5;

/// Whether requests of one kind are permitted, by their answers so far.
#[derive(Debug, Default)]
pub struct Permission {
    has_worked: bool,
    /// 401 and 403 in a row.
    denied: u32,
}

impl Permission {
    /// A request succeeded.
    pub fn worked(&mut self) {
        *self = Permission { has_worked: true, denied: 0 };
    }

    /// Counts a failed request, with its status code if it was answered. Returns whether the permission counts as missing: a single 401
    /// or 403 may come from an API server that starts, or that failed to authenticate for a moment.
    pub fn count_failure(&mut self, code: Option<u16>) -> bool {
        self.denied = if matches!(code, Some(401 | 403)) { self.denied + 1 } else { 0 };
        (code == Some(403) && !self.has_worked) || self.denied >= MAX_DENIED
    }
}

/// So often is a request sent at most, as Spark's client does.
const ATTEMPTS: u32 = 4;
/// The pause before the second attempt; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// The longest pause that an API server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(10);

/// The pauses between the attempts of a request.
#[derive(Debug, Default)]
pub struct Attempts {
    failed: u32,
}

impl Attempts {
    /// Counts a failure. Returns the pause before the next attempt; `None` if there is none.
    pub fn pause(&mut self, error: &Error) -> Option<Duration> {
        self.failed += 1;
        let pause = FIRST_PAUSE * 2_u32.pow(self.failed - 1);
        let may_try = error.is_transient() && self.failed < ATTEMPTS;
        may_try.then(|| error.retry_after().map_or(pause, |asked| asked.max(pause).min(MAX_PAUSE)))
    }
}

/// Sends a request that may be sent twice, again if the API server or the way to it fails.
pub async fn retried<T>(limit: Duration, request: impl AsyncFn() -> kube::Result<T>) -> Result<T> {
    retried_noting(limit, request).await.0
}

/// The same. Also returns whether an attempt that failed may have been processed: the answer to the next one does not tell.
pub async fn retried_noting<T>(limit: Duration, request: impl AsyncFn() -> kube::Result<T>) -> (Result<T>, bool) {
    let mut attempts = Attempts::default();
    let mut may_be_done = false;
    loop {
        match call(limit, async { request().await.map_err(Error::from) }).await {
            Ok(done) => return (Ok(done), may_be_done),
            Err(error) => {
                let pause = attempts.pause(&error);
                may_be_done |= error.may_be_done();
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return (Err(error), may_be_done),
                }
            }
        }
    }
}

/// Reads a list in pages, at most this many of them.
pub async fn pages<K: Clone, F: Future<Output = kube::Result<ObjectList<K>>>>(
    mut page: ListParams,
    max: usize,
    list: impl Fn(ListParams) -> F,
) -> kube::Result<Vec<K>> {
    let mut all = Vec::new();
    for _ in 0..max {
        let found = list(page.clone()).await?;
        all.extend(found.items);
        match found.metadata.continue_.filter(|more| !more.is_empty()) {
            Some(more) => page = page.continue_token(&more),
            None => break,
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(code: u16) -> Error {
        let status = Status { code, message: "pods \"a\" …".into(), ..Status::default() };
        kube::Error::Api(Box::new(status)).into()
    }

    #[test]
    fn status_code_determines_error_variant() {
        assert!(matches!(error_of(403), Error::Forbidden(_)));
        assert!(matches!(error_of(404), Error::NotFound(_)) && error_of(404).is_stale());
        assert!(matches!(error_of(409), Error::Conflict(_)) && error_of(409).is_stale());
        assert!(matches!(error_of(422), Error::Api(_)) && !error_of(422).is_stale());
        assert_eq!(error_of(422).to_string(), "pods \"a\" … (422)");
        assert_eq!(error_of(500).status().unwrap().code, 500);
    }

    #[test]
    fn permission_is_missing_at_once_or_was_withdrawn_after_several_answers() {
        assert!(Permission::default().count_failure(Some(403)));
        let mut permission = Permission::default();
        assert!((1..MAX_DENIED).all(|_| !permission.count_failure(Some(401))) && permission.count_failure(Some(401)));
        permission.worked();
        assert!(!permission.count_failure(Some(403)) && !permission.count_failure(None));
        assert!((1..MAX_DENIED).all(|_| !permission.count_failure(Some(403))) && permission.count_failure(Some(403)));
    }

    #[tokio::test(start_paused = true)]
    async fn transient_errors_are_tried_again_after_the_pause_that_was_asked_for() {
        use std::sync::atomic::{AtomicU32, Ordering};
        for (code, seconds, expected) in [(429, 3, Some(9)), (503, 0, Some(0)), (500, 60, Some(30)), (422, 0, None)] {
            let (sent, begun) = (AtomicU32::new(0), usher_runtime::clock::instant());
            let outcome: Result<()> = retried(Duration::from_secs(1), async || {
                sent.fetch_add(1, Ordering::Relaxed);
                let details = serde_json::from_value(serde_json::json!({"retryAfterSeconds": seconds})).unwrap();
                Err(kube::Error::Api(Box::new(Status { code, details: Some(details), ..Status::default() })))
            })
            .await;
            assert!(outcome.is_err());
            let took = (usher_runtime::clock::instant() - begun).as_secs();
            assert_eq!(sent.into_inner(), if expected.is_some() { ATTEMPTS } else { 1 }, "{code}");
            assert!(expected.is_none_or(|least| (least..least + 3).contains(&took)), "{code}: {took} s");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_without_response_times_out() {
        let limit = Duration::from_secs(10);
        let outcome: Result<()> = call(limit, std::future::pending()).await;
        assert_eq!(outcome.unwrap_err().to_string(), "no answer within 10s");
    }
}
