//! The log of a driver, line by line, from its beginning to its end, across interruptions.

use std::pin::Pin;
use std::time::Duration;

use futures::io::{AsyncBufRead, AsyncBufReadExt};
use futures::stream::{Stream, unfold};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};
use tokio::sync::watch;

use crate::submission::{DriverStatus, LogLine, LogPosition, LogStage};
use usher_kube::request::{Error, Permission, call};

/// The pause after a failure; it doubles with each, up to the longest.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The pause before a log that was closed is read again.
const REOPEN: Duration = Duration::from_millis(200);
/// Failures in a row, after which reading ends, once the driver has exited. Before, it is tried again for as long as the driver runs.
const MAX_FAILURES: u32 = 6;
/// Timeout of the first byte of an answer.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// A log that is silent for so long after the driver has exited is opened again: its connection may be dead.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest part of a line that is returned in one piece.
const MAX_PART: usize = 1 << 20;

/// What comes from a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogItem {
    /// A line with its line break, as the driver wrote it; a part of it, if it is longer than 1 MiB.
    Text(Vec<u8>),
    /// Reading failed, and is tried again.
    Interrupted(String),
    /// Why reading ended before the log did.
    Problem(String),
}

struct Open {
    stream: Pin<Box<dyn AsyncBufRead + Send>>,
    /// What was read of the next line.
    buffer: Vec<u8>,
    /// Whether the rest of a long line follows, and whether it is new.
    rest: Option<bool>,
    /// Whether the driver had exited when it was opened.
    was_over: bool,
    /// Whether it brought a line that is new.
    has_new: bool,
}

struct Reader {
    api: Api<Pod>,
    name: String,
    stage: watch::Receiver<LogStage>,
    position: LogPosition,
    open: Option<Open>,
    failures: u32,
    permission: Permission,
    /// How often in a row the log was closed without a line that is new.
    fruitless: u32,
    /// The pause before the log is opened.
    pause: Duration,
    /// Whether the container has started, as far as is known.
    has_started: bool,
    /// Whether everything was read up to where the log was closed.
    is_whole: bool,
    ended: bool,
}

/// Reads the log of the driver's container until it has exited and everything is read. Nothing comes while it has not started. The caller
/// sends each stage of the pod that it observes.
pub fn lines(
    client: &kube::Client,
    driver: &DriverStatus,
) -> (watch::Sender<LogStage>, impl Stream<Item = LogItem> + use<>) {
    let (sender, stage) = watch::channel(LogStage::of(driver));
    let reader = Reader {
        api: Api::namespaced(client.clone(), &driver.namespace),
        name: driver.name.clone(),
        stage,
        position: LogPosition::default(),
        open: None,
        failures: 0,
        permission: Permission::default(),
        fruitless: 0,
        pause: Duration::ZERO,
        has_started: false,
        is_whole: false,
        ended: false,
    };
    let lines = unfold(reader, |mut reader| async move {
        let item = reader.next().await?;
        Some((item, reader))
    });
    (sender, lines)
}

/// What reading an open log brings.
enum Read {
    Text(Vec<u8>),
    /// The log was closed.
    End,
    /// Nothing came for a long time.
    Silence,
    Failed(String),
}

impl Reader {
    async fn next(&mut self) -> Option<LogItem> {
        while !self.ended {
            let Some(mut open) = self.open.take() else {
                if let Some(item) = self.begin().await {
                    return Some(item);
                }
                continue;
            };
            let read = open.read(&mut self.stage, &mut self.position).await;
            if open.has_new {
                self.failures = 0;
            }
            let failed = match read {
                Read::Text(text) => {
                    self.open = Some(open);
                    return Some(LogItem::Text(text));
                }
                // A kubelet closes the log of a running container too, and an API server that stops closes everything: the log is complete
                // if it was opened after the driver had exited, and had nothing new.
                Read::End if open.rest.is_none() && open.buffer.is_empty() => {
                    self.is_whole = true;
                    self.failures = 0;
                    self.ended = open.was_over && !open.has_new;
                    self.fruitless = if open.has_new { 0 } else { self.fruitless + 1 };
                    self.pause = (REOPEN * 2_u32.pow(self.fruitless.min(6))).min(LONGEST_PAUSE);
                    continue;
                }
                Read::End => "the log was closed within a line".to_owned(),
                // A log that is open says nothing while the driver runs; afterwards its connection is suspect.
                Read::Silence if !open.was_over => {
                    self.cut(&open);
                    continue;
                }
                // Twice is enough: what comes has come.
                Read::Silence => {
                    self.cut(&open);
                    let is_second = self.failures > 0;
                    if let Some(item) = self.fails(format!("nothing came for {SILENCE:?}"), is_second) {
                        return Some(item);
                    }
                    continue;
                }
                Read::Failed(error) => error,
            };
            self.cut(&open);
            if let Some(item) = self.fails(failed, false) {
                return Some(item);
            }
        }
        None
    }

    /// The log ended where it should not.
    fn cut(&mut self, open: &Open) {
        if open.rest == Some(true) {
            self.position.forget_last();
        }
        self.is_whole = false;
    }

    /// Counts a failure. It is shown if it is the second in a row, or the last.
    fn fails(&mut self, error: String, is_final: bool) -> Option<LogItem> {
        self.failures += 1;
        self.pause = (PAUSE * 2_u32.pow(self.failures.min(6))).min(LONGEST_PAUSE);
        if is_final || (!self.stage.borrow().is_live() && self.failures >= MAX_FAILURES) {
            self.ended = true;
            return Some(LogItem::Problem(error));
        }
        (self.failures == 2).then_some(LogItem::Interrupted(error))
    }

    /// Waits until the container has started, and opens its log.
    async fn begin(&mut self) -> Option<LogItem> {
        tokio::time::sleep(std::mem::take(&mut self.pause)).await;
        let stage = self.stage.borrow_and_update().clone();
        let (container, was_over) = match stage {
            LogStage::Waiting => {
                changed(&mut self.stage).await;
                return None;
            }
            LogStage::Started(container) => (container, false),
            LogStage::Over(container) => (container, true),
            LogStage::Never => {
                self.ended = true;
                return None;
            }
            LogStage::Gone => {
                self.ended = true;
                let is_whole = self.is_whole || !self.has_started;
                return (!is_whole).then(|| LogItem::Problem("the pod was deleted before its log was read".to_owned()));
            }
        };
        self.has_started = true;
        let params = LogParams {
            container,
            follow: true,
            timestamps: true,
            since_time: self.position.since(),
            ..LogParams::default()
        };
        let opened = call(OPEN_TIMEOUT, async { self.api.log_stream(&self.name, &params).await.map_err(Error::from) });
        match opened.await {
            Ok(stream) => {
                self.permission.worked();
                self.position.resume();
                self.open =
                    Some(Open { stream: Box::pin(stream), buffer: Vec::new(), rest: None, was_over, has_new: false });
                None
            }
            // That a pod is gone is said by the watch.
            Err(error) => {
                let is_final = self.permission.count_failure(error.status().map(|status| status.code));
                self.fails(error.to_string(), is_final)
            }
        }
    }
}

/// Waits for the next stage: without end if there is none.
async fn changed(stage: &mut watch::Receiver<LogStage>) {
    if stage.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

impl Open {
    /// The next text that is new.
    async fn read(&mut self, stage: &mut watch::Receiver<LogStage>, position: &mut LogPosition) -> Read {
        loop {
            let has_exited = !stage.borrow_and_update().is_live();
            let silence =
                async { if has_exited { tokio::time::sleep(SILENCE).await } else { std::future::pending().await } };
            // Nothing is lost where another branch comes first: what is in the stream stays there.
            let is_done = tokio::select! {
                filled = self.stream.fill_buf() => match filled {
                    Ok([]) => true,
                    Ok(available) => {
                        let room = MAX_PART - self.buffer.len();
                        let end = memchr::memchr(b'\n', available).map_or(available.len(), |end| end + 1).min(room);
                        self.buffer.extend(available.iter().take(end));
                        self.stream.as_mut().consume(end);
                        false
                    }
                    Err(error) => return Read::Failed(error.to_string()),
                },
                () = changed(stage), if !has_exited => continue,
                () = silence => return Read::Silence,
            };
            let is_whole = self.buffer.ends_with(b"\n");
            // The end of the log of a container that had exited needs no line break.
            let is_last = is_done && self.was_over && !self.buffer.is_empty();
            if is_whole || is_last || self.buffer.len() >= MAX_PART {
                let mut part = std::mem::take(&mut self.buffer);
                if !is_whole && !is_last {
                    // A character comes whole.
                    let cut = part.utf8_chunks().last().map_or(0, |chunk| chunk.invalid().len());
                    self.buffer = part.split_off(part.len() - cut);
                }
                let line = match self.rest {
                    Some(true) => LogLine::New(&part),
                    Some(false) => LogLine::Known,
                    None => position.read(&part),
                };
                self.rest = (!is_whole && !is_last).then_some(line != LogLine::Known);
                match line {
                    LogLine::New(text) => {
                        self.has_new = true;
                        return Read::Text(text.to_vec());
                    }
                    LogLine::Untimed(text) => return Read::Text(text.to_vec()),
                    LogLine::Known => {}
                }
            } else if is_done {
                return Read::End;
            }
        }
    }
}
