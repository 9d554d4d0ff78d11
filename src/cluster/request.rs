//! Requests to the API server: a time limit for each, and errors by what their callers do about them.

use std::time::Duration;

use kube::core::Status;

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
    #[error(transparent)]
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

    /// Whether the object on which the request was based was changed or deleted meanwhile.
    pub fn is_stale(&self) -> bool {
        matches!(self, Error::Conflict(_) | Error::NotFound(_))
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

    #[tokio::test(start_paused = true)]
    async fn request_without_response_times_out() {
        let limit = Duration::from_secs(10);
        let outcome: Result<()> = call(limit, std::future::pending()).await;
        assert_eq!(outcome.unwrap_err().to_string(), "no answer within 10s");
    }
}
