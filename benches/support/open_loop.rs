//! An API server that sends reviews to `spark-usher serve` in an open loop.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub(crate) const API_SERVER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
pub(crate) const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const POOL: usize = 25;
const RATE: u64 = 200;
const ROUND: Duration = Duration::from_secs(12);

pub(crate) type Stream = TlsStream<TcpStream>;

/// Opens connections to a webhook.
#[derive(Clone)]
pub(crate) struct Dialer {
    connector: TlsConnector,
    to: SocketAddr,
}

impl Dialer {
    /// For the webhook at this address, with the certificate of this file.
    pub(crate) fn new(to: SocketAddr, ca: &str) -> Dialer {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&std::fs::read(ca).unwrap()).unwrap()).unwrap();
        let mut client = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        Dialer { connector: TlsConnector::from(Arc::new(client)), to }
    }

    /// A connection from this address.
    pub(crate) async fn connect(&self, from: IpAddr) -> std::io::Result<Stream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::new(from, 0))?;
        let stream = socket.connect(self.to).await?;
        stream.set_nodelay(true)?;
        self.connector.connect("localhost".try_into().unwrap(), stream).await
    }
}

/// Sends a review and reads the response; returns its status.
pub(crate) async fn review(stream: &mut Stream, request: &[u8]) -> std::io::Result<u16> {
    stream.write_all(request).await?;
    stream.flush().await?;
    let mut answer = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let text = String::from_utf8_lossy(&answer);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= length.parse().unwrap() {
            return Ok(head.get(9..12).and_then(|code| code.parse().ok()).unwrap_or_default());
        }
    }
}

/// A request to this path.
pub(crate) fn request(path: &str, body: &[u8]) -> Arc<[u8]> {
    let head = format!(
        "POST {path}?timeout=2s HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat().into()
}

/// The latencies of a round, in milliseconds and sorted.
pub(crate) struct Latencies {
    /// Of reviews on pooled connections.
    pub(crate) pooled: Vec<f64>,
    /// Of reviews on new connections.
    pub(crate) new: Vec<f64>,
    /// The number of reviews that failed.
    pub(crate) failed: usize,
}

/// The latency that this part of them does not exceed.
pub(crate) fn at(sorted: &[f64], part: f64) -> f64 {
    sorted.get((sorted.len() as f64 * part) as usize).copied().unwrap_or(f64::NAN)
}

/// Sends reviews at a steady rate for one round, on a separate thread. Latencies are measured from the time when each review was
/// due. One review in twenty is sent on a new connection, the others over a pool.
pub(crate) fn measure(dialer: &Dialer, request: &Arc<[u8]>) -> Latencies {
    let (dialer, request) = (dialer.clone(), request.clone());
    let (mut pooled, mut new, failed) = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let mut pool = Vec::new();
            for _ in 0..POOL {
                let mut stream = dialer.connect(API_SERVER).await.unwrap();
                review(&mut stream, &request).await.unwrap();
                pool.push(stream);
            }
            let (mut open, mut pooled, mut new, mut failed) = (tokio::task::JoinSet::new(), vec![], vec![], 0);
            let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / RATE));
            let (begin, mut sent) = (Instant::now(), 0);
            while begin.elapsed() < ROUND {
                let due = tick.tick().await;
                sent += 1;
                let known = if sent % 20 == 0 { None } else { pool.pop() };
                let (dialer, request) = (dialer.clone(), request.clone());
                open.spawn(async move {
                    let is_new = known.is_none();
                    let answered = async {
                        let mut stream = match known {
                            Some(stream) => stream,
                            None => dialer.connect(API_SERVER).await?,
                        };
                        let status = review(&mut stream, &request).await?;
                        std::io::Result::Ok((stream, status))
                    };
                    let answered = answered.await;
                    (is_new, answered, due.elapsed())
                });
                while let Some(ended) = open.try_join_next() {
                    let (is_new, answered, took) = ended.unwrap();
                    match answered {
                        Ok((stream, 200)) => {
                            if is_new { &mut new } else { &mut pooled }.push(took.as_secs_f64() * 1000.0);
                            if pool.len() < POOL {
                                pool.push(stream);
                            }
                        }
                        _ => failed += 1,
                    }
                }
            }
            (pooled, new, failed)
        })
    })
    .join()
    .unwrap();
    pooled.sort_by(f64::total_cmp);
    new.sort_by(f64::total_cmp);
    Latencies { pooled, new, failed }
}
