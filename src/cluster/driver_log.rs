//! The log of a driver, line by line, from its beginning to its end, across interruptions.

use std::pin::Pin;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt};
use futures::stream::{Stream, unfold};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};

use super::client::Brief;
use super::drivers;
use crate::submission::{DriverStatus, LogPosition};

/// The pause before the log is read again, and before the pod is read again while its container has not started.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause before a log that was closed is read again.
const REOPEN: Duration = Duration::from_millis(200);
/// Failures in a row, after which reading ends.
const MAX_FAILURES: u32 = 5;
/// Timeout of the first byte of an answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The longest line; the rest of a longer one comes as a line of its own.
const MAX_LINE: usize = 1 << 20;

/// What comes from a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    /// A line of it.
    Line(String),
    /// Why reading ended before the log did.
    Problem(String),
}

struct Reader {
    client: kube::Client,
    namespace: String,
    name: String,
    uid: String,
    position: LogPosition,
    open: Option<Pin<Box<dyn AsyncBufRead + Send>>>,
    /// Whether the driver had exited when reading began.
    was_over: bool,
    failures: u32,
    ended: bool,
}

/// Reads the log of the driver's container until it has exited and everything is read. Nothing comes while it has not started.
pub fn lines(client: &kube::Client, driver: &DriverStatus) -> impl Stream<Item = LogItem> + use<> {
    let reader = Reader {
        client: client.clone(),
        namespace: driver.namespace.clone(),
        name: driver.name.clone(),
        uid: driver.uid.clone(),
        position: LogPosition::default(),
        open: None,
        was_over: false,
        failures: 0,
        ended: false,
    };
    unfold(reader, |mut reader| async move {
        let item = reader.next().await?;
        Some((item, reader))
    })
}

impl Reader {
    async fn next(&mut self) -> Option<LogItem> {
        while !self.ended {
            let Some(open) = &mut self.open else {
                if let Some(problem) = self.begin().await {
                    self.ended = true;
                    return Some(LogItem::Problem(problem));
                }
                continue;
            };
            match line(open).await {
                // The rest of a line may be missing where the log was closed.
                Ok(Line::Whole(line)) => {
                    self.failures = 0;
                    if let Some(text) = self.position.read(&line) {
                        return Some(LogItem::Line(text.to_owned()));
                    }
                }
                Ok(Line::Last(line)) if self.was_over => {
                    self.ended = true;
                    return self.position.read(&line).map(|text| LogItem::Line(text.to_owned()));
                }
                // A log that is closed is complete only if the container had exited before it was opened. Otherwise it is read again from
                // there: kubelets close the log of a running container, too.
                Ok(Line::Last(_) | Line::End) => {
                    self.open = None;
                    self.ended = self.was_over;
                    if !self.ended {
                        tokio::time::sleep(REOPEN).await;
                    }
                }
                Err(_) => {
                    self.open = None;
                    self.failures += 1;
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        None
    }

    /// Waits until the container has started, and opens its log. Returns why that is not possible.
    async fn begin(&mut self) -> Option<String> {
        loop {
            match drivers::get(&self.client, &self.namespace, &self.name).await {
                Ok(Some(pod)) if pod.uid == self.uid => {
                    if pod.started.is_none() {
                        // It never will: the pod was rejected, or deleted before.
                        if pod.is_over {
                            self.ended = true;
                            return None;
                        }
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                    self.was_over = pod.is_over;
                    match self.open(pod.container).await {
                        Ok(()) => return None,
                        Err(error) if self.failures >= MAX_FAILURES => return Some(error),
                        Err(_) => self.failures += 1,
                    }
                }
                // Deleted.
                Ok(_) => {
                    self.ended = true;
                    return None;
                }
                Err(error) if self.failures >= MAX_FAILURES || error.status().is_some() => {
                    return Some(error.to_string());
                }
                Err(_) => self.failures += 1,
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn open(&mut self, container: Option<String>) -> Result<(), String> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let params = LogParams {
            container,
            follow: true,
            timestamps: true,
            since_time: self.position.since().and_then(|time| time.parse().ok()),
            ..LogParams::default()
        };
        let opened = tokio::time::timeout(OPEN_TIMEOUT, api.log_stream(&self.name, &params)).await;
        let opened = opened.map_err(|_| format!("no answer within {OPEN_TIMEOUT:?}"))?;
        let stream = opened.map_err(|error| Brief(&error).to_string())?;
        self.position.resume();
        self.open = Some(Box::pin(stream));
        Ok(())
    }
}

/// A line without its line break.
enum Line {
    Whole(String),
    /// The log ended without a line break.
    Last(String),
    End,
}

async fn line(stream: &mut Pin<Box<dyn AsyncBufRead + Send>>) -> std::io::Result<Line> {
    let mut bytes = Vec::new();
    loop {
        let (used, is_done) = {
            let available = stream.fill_buf().await?;
            let end = memchr::memchr(b'\n', available);
            let used = end.map_or(available.len(), |end| end + 1);
            bytes.extend(available.iter().take(used));
            (used, end.is_some() || used == 0)
        };
        stream.consume_unpin(used);
        if is_done || bytes.len() >= MAX_LINE {
            break;
        }
    }
    let as_text = |bytes: &[u8]| String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(bytes)).into_owned();
    Ok(match bytes.strip_suffix(b"\n") {
        Some(line) => Line::Whole(as_text(line)),
        None if bytes.is_empty() => Line::End,
        None if bytes.len() >= MAX_LINE => Line::Whole(as_text(&bytes)),
        None => Line::Last(as_text(&bytes)),
    })
}
