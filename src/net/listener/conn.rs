//! Deadlines of a connection.
//!
//! Go keeps idle connections to a webhook for 90 s and does not retry a POST on one that was cut, so an idle connection must
//! live longer than that. hyper's own header timeout starts when a connection becomes idle
//! (`docs/webhooks.md#idle-connections`): a timeout long enough for Go is far too long for a slow loris. Therefore a head's
//! deadline starts here, at its first byte.

use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Deadlines of a connection by phase.
#[derive(Clone, Copy, Debug)]
pub struct Deadlines {
    /// TLS handshake.
    pub handshake: Duration,
    /// From the first byte of a request to the end of its head. Not for HTTP/2, which sends frames between requests too.
    pub head: Duration,
    /// Idle time between requests.
    pub idle: Duration,
    /// From the moment when the peer stops reading an answer until it has read all of it.
    pub write: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(10),
            idle: Duration::from_secs(180),
            write: Duration::from_secs(10),
        }
    }
}

/// Number of requests in progress on one connection; shared with the connection's service.
#[derive(Clone, Debug, Default)]
pub(super) struct Busy(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    ever: AtomicUsize,
}

impl Busy {
    /// Marks the start of a request; the request ends when the guard is dropped.
    pub(super) fn begin(&self) -> BusyGuard {
        self.0.now.fetch_add(1, Ordering::AcqRel);
        self.0.ever.fetch_add(1, Ordering::AcqRel);
        BusyGuard(self.0.clone())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.0.now.load(Ordering::Acquire) > 0
    }

    /// Total number of requests so far: a request can start and finish between two checks.
    fn ever(&self) -> usize {
        self.0.ever.load(Ordering::Acquire)
    }
}

#[derive(Debug)]
pub(super) struct BusyGuard(Arc<Counts>);

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::AcqRel);
    }
}

pin_project_lite::pin_project! {
    /// A stream that returns an error when its peer exceeds a deadline between requests.
    pub(super) struct Timed<S> {
        #[pin]
        stream: S,
        #[pin]
        timer: Sleep,
        deadlines: Deadlines,
        busy: Busy,
        // Whether bytes of a head were received and the service was not called for it yet.
        in_head: bool,
        // Whether heads have a deadline (HTTP/1).
        heads: bool,
        was_busy: bool,
        answered: usize,
        // Runs while the peer does not read what is written.
        stuck: Option<Pin<Box<Sleep>>>,
        // Bytes that were read ahead and will be read again.
        ahead: Vec<u8>,
    }
}

/// Maximum size of a request's head; hyper rejects a longer one. Tokens of API servers take a few kB. Each connection
/// can hold this much, so 10,240 connections hold 160 MiB.
pub(super) const MAX_HEAD: u16 = 16 << 10;

impl<S> Timed<S> {
    pub(super) fn new(stream: S, deadlines: Deadlines, busy: Busy, heads: bool) -> Self {
        let (timer, ahead) = (tokio::time::sleep(deadlines.idle), Vec::new());
        Timed {
            stream,
            timer,
            deadlines,
            busy,
            in_head: false,
            heads,
            was_busy: false,
            answered: 0,
            stuck: None,
            ahead,
        }
    }
}

impl<S: AsyncRead> Timed<S> {
    /// Waits for the first byte; returns an error if none arrives.
    pub(super) async fn first_byte(self: Pin<&mut Self>) -> io::Result<()> {
        self.read_ahead(|_, _| true).await
    }

    /// Waits for the head of a request, which is then read again. A peer that only holds a connection open, or sends
    /// single bytes, costs only the bytes it sent and not the 10 kB of a hyper connection.
    pub(super) async fn first_head(self: Pin<&mut Self>) -> io::Result<()> {
        let is_whole = |ahead: &[u8], known: usize| {
            // Searches only new bytes: searching all of them each time is too expensive if a client sends single bytes.
            ahead.get(known.saturating_sub(2)..).is_some_and(is_whole_head)
        };
        self.read_ahead(|ahead, known| ahead.len() >= MAX_HEAD.into() || is_whole(ahead, known)).await
    }

    /// Reads until `is_enough` returns true for all received bytes and the number of bytes that it has checked before.
    async fn read_ahead(mut self: Pin<&mut Self>, is_enough: impl Fn(&[u8], usize) -> bool) -> io::Result<()> {
        let mut ahead = std::mem::take(self.as_mut().project().ahead);
        let mut known = 0;
        let read = poll_fn(|cx| {
            while ahead.is_empty() || !is_enough(&ahead, known) {
                known = ahead.len();
                // On the stack, so that it does not become part of each connection.
                let mut bytes = [MaybeUninit::uninit(); 4096];
                let mut buffer = ReadBuf::uninit(&mut bytes);
                ready!(self.as_mut().poll_read(cx, &mut buffer))?;
                if buffer.filled().is_empty() {
                    return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
                }
                ahead.extend_from_slice(buffer.filled());
            }
            Poll::Ready(Ok(()))
        });
        let outcome = read.await;
        *self.project().ahead = ahead;
        outcome
    }
}

/// Reports whether a request's head is complete: an empty line, with or without carriage returns.
fn is_whole_head(bytes: &[u8]) -> bool {
    bytes.windows(2).any(|pair| pair == b"\n\n") || bytes.windows(3).any(|three| three == b"\n\r\n")
}

/// Result of a write, a flush or a shutdown; an error if the peer has not read for too long.
fn within<T>(
    stuck: &mut Option<Pin<Box<Sleep>>>,
    deadline: Duration,
    polled: Poll<io::Result<T>>,
    cx: &mut Context<'_>,
) -> Poll<io::Result<T>> {
    if polled.is_ready() {
        return polled;
    }
    let timer = stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(deadline)));
    ready!(timer.as_mut().poll(cx));
    Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
}

impl<S: AsyncRead> AsyncRead for Timed<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut this = self.project();
        if !this.ahead.is_empty() {
            let rest = this.ahead.split_off(this.ahead.len().min(buf.remaining()));
            buf.put_slice(&std::mem::replace(this.ahead, rest));
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        let polled = this.stream.poll_read(cx, buf);
        let busy = this.busy.is_busy();
        if busy {
            // The request's own deadline (webhook) applies; the next request starts a new head.
            *this.in_head = false;
            *this.was_busy = true;
            return polled;
        }
        let ever = this.busy.ever();
        if std::mem::take(this.was_busy) | (std::mem::replace(this.answered, ever) != ever) {
            *this.in_head = false;
            this.timer.as_mut().reset(after(this.deadlines.idle));
        }
        match polled {
            Poll::Ready(Ok(())) if buf.filled().len() > before => {
                if !*this.heads {
                    this.timer.as_mut().reset(after(this.deadlines.idle));
                } else if !std::mem::replace(this.in_head, true) {
                    this.timer.as_mut().reset(after(this.deadlines.head));
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                ready!(this.timer.poll(cx));
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            done => done,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "deadlines of sockets count on tokio's clock, which tests can pause")]
fn after(duration: Duration) -> Instant {
    Instant::now() + duration
}

impl<S: AsyncWrite> AsyncWrite for Timed<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let polled = this.stream.poll_write(cx, buf);
        within(this.stuck, this.deadlines.write, polled, cx)
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let polled = this.stream.poll_flush(cx);
        if polled.is_ready() {
            // Everything was written; partial writes do not stop the timer.
            *this.stuck = None;
        }
        within(this.stuck, this.deadlines.write, polled, cx)
    }
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let polled = this.stream.poll_shutdown(cx);
        within(this.stuck, this.deadlines.write, polled, cx)
    }
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let polled = this.stream.poll_write_vectored(cx, bufs);
        within(this.stuck, this.deadlines.write, polled, cx)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const SHORT: Deadlines = Deadlines {
        handshake: Duration::from_secs(10),
        head: Duration::from_secs(10),
        idle: Duration::from_secs(180),
        write: Duration::from_secs(10),
    };

    #[tokio::test(start_paused = true)]
    async fn idle_connection_times_out_after_three_minutes() {
        let (_client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), true));
        let start = after(Duration::ZERO);
        let error = timed.read_u8().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 180);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_head_times_out_ten_seconds_after_first_byte() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), true));
        let start = after(Duration::ZERO);
        let drip = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if client.write_u8(b'G').await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let read = async {
            loop {
                if timed.read_u8().await.is_err() {
                    return start.elapsed().as_secs();
                }
            }
        };
        tokio::select! {
            () = drip => unreachable!(),
            closed_after = read => assert_eq!(closed_after, 13),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn busy_connection_has_no_deadline_and_idle_time_restarts_afterwards() {
        let (mut client, server) = tokio::io::duplex(64);
        let busy = Busy::default();
        let mut timed = Box::pin(Timed::new(server, SHORT, busy.clone(), true));
        client.write_all(b"G").await.unwrap();
        assert_eq!(timed.read_u8().await.unwrap(), b'G');
        let guard = busy.begin();
        let reading = tokio::time::timeout(Duration::from_secs(3600), timed.read_u8());
        assert!(reading.await.is_err(), "open after a request of an hour");
        drop(guard);
        let start = after(Duration::ZERO);
        assert!(timed.read_u8().await.is_err());
        assert_eq!(start.elapsed().as_secs(), 180);
    }

    #[tokio::test(start_paused = true)]
    async fn request_completed_between_reads_ends_head_deadline() {
        let (mut client, server) = tokio::io::duplex(64);
        let busy = Busy::default();
        let mut timed = Box::pin(Timed::new(server, SHORT, busy.clone(), true));
        client.write_all(b"G").await.unwrap();
        assert_eq!(timed.read_u8().await.unwrap(), b'G');
        drop(busy.begin());
        let start = after(Duration::ZERO);
        assert!(timed.read_u8().await.is_err());
        assert_eq!(start.elapsed().as_secs(), 180);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_heads_stays_open_while_data_arrives() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), false));
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(100)).await;
            client.write_u8(1).await.unwrap();
            assert_eq!(timed.read_u8().await.unwrap(), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn response_that_client_does_not_read_times_out_after_ten_seconds() {
        let (_client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), true));
        let start = after(Duration::ZERO);
        let error = timed.write_all(&[0; 65]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_reads_do_not_extend_write_deadline() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), true));
        let start = after(Duration::ZERO);
        let drip = async {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if client.read_u8().await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            () = drip => unreachable!(),
            result = timed.write_all(&[0; 1000]) => assert!(result.is_err()),
        }
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn write_deadline_restarts_after_each_response() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(server, SHORT, Busy::default(), true));
        for _ in 0..3 {
            let take = async {
                tokio::time::sleep(Duration::from_secs(8)).await;
                client.read_exact(&mut [0; 100]).await.unwrap();
            };
            let write = async {
                timed.write_all(&[0; 100]).await.unwrap();
                timed.flush().await.unwrap();
            };
            tokio::join!(take, write);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_head_is_awaited_and_replayed() {
        for head in ["GET / HTTP/1.1\r\nhost: x\r\n\r\n", "GET / HTTP/1.0\n\n", "POST / HTTP/1.1\r\na: b\n\r\nbody"] {
            let (mut client, stream) = tokio::io::duplex(64);
            let mut timed = Box::pin(Timed::new(stream, SHORT, Busy::default(), true));
            let writing = async {
                for byte in head.bytes() {
                    client.write_all(&[byte]).await.unwrap();
                }
                client
            };
            let (read, client) = tokio::join!(timed.as_mut().first_head(), writing);
            read.unwrap();
            drop(client);
            let mut again = Vec::new();
            let mut small = [0; 3];
            loop {
                match timed.read(&mut small).await.unwrap() {
                    0 => break,
                    count => again.extend_from_slice(&small[..count]),
                }
            }
            assert_eq!(again, head.as_bytes());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn first_head_has_deadlines_and_size_limit() {
        let begin = after(Duration::ZERO);
        let (mut client, stream) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(stream, SHORT, Busy::default(), true));
        assert_eq!(timed.as_mut().first_byte().await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() >= SHORT.idle);
        let begin = after(Duration::ZERO);
        let mut timed = Box::pin(Timed::new(tokio::io::duplex(64).1, SHORT, Busy::default(), true));
        assert_eq!(timed.as_mut().first_head().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let (mut drips, stream) = tokio::io::duplex(64);
        let mut timed = Box::pin(Timed::new(stream, SHORT, Busy::default(), true));
        let dripping = async {
            while drips.write_all(b"x").await.is_ok() {
                tokio::time::sleep(SHORT.head / 10).await;
            }
        };
        let read = tokio::select! {
            read = timed.as_mut().first_head() => read,
            () = dripping => panic!("the reader has stopped"),
        };
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begin.elapsed() < SHORT.head * 2);
        // hyper rejects a longer head.
        let max = usize::from(MAX_HEAD);
        let (mut long, stream) = tokio::io::duplex(1 << 20);
        let mut timed = Box::pin(Timed::new(stream, SHORT, Busy::default(), true));
        long.write_all(&vec![b'x'; max + 5000]).await.unwrap();
        timed.as_mut().first_head().await.unwrap();
        assert!((max..=max + 4096).contains(&timed.ahead.len()));
        client.shutdown().await.unwrap();
    }
}
