//! An HTTP proxy of an API server, on loopback, that injects faults by a rule of the test.

use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use kube::Client;
use serde_json::json;
use tokio::net::TcpListener;

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is passed on.
    None,
    /// The connection is closed before it is passed on,
    Closed,
    /// or after it.
    ClosedAfter,
    /// It is answered with this status,
    Status(u16),
    /// or with it after it was passed on.
    StatusAfter(u16),
    /// It is never answered.
    Hangs,
    /// It is answered with this text after it was passed on.
    BodyAfter(String),
    /// It is answered with these pieces of a body, and then with its end.
    Body(Vec<String>, End),
}

/// How a body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Clean,
    Broken,
    /// It does not.
    Hangs,
}

type Rule = Box<dyn FnMut(&str, &str) -> Fault + Send>;
type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A faulty API server. It ends with its value.
pub struct Faulty {
    pub url: String,
    /// Method and path of each request.
    pub requests: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Faulty {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Faulty {
    /// Starts one that passes requests on with this client; the rule gets the method, and the path with its query.
    pub async fn start(client: &Client, rule: impl FnMut(&str, &str) -> Fault + Send + 'static) -> Faulty {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (rule, requests): (Arc<Mutex<Rule>>, Arc<Mutex<Vec<String>>>) =
            (Arc::new(Mutex::new(Box::new(rule))), Arc::default());
        let (client, seen) = (client.clone(), requests.clone());
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (client, rule, seen) = (client.clone(), rule.clone(), seen.clone());
                let answer = service_fn(move |request: Request<Incoming>| {
                    let (method, path) = (request.method().to_string(), request.uri().to_string());
                    seen.lock().unwrap().push(format!("{method} {path}"));
                    let fault = rule.lock().unwrap()(&method, &path);
                    answer(client.clone(), request, fault)
                });
                tokio::spawn(async move {
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                });
            }
        });
        Faulty { url, requests, task }
    }

    /// `--master` of it.
    pub fn master(&self) -> String {
        format!("k8s://{}", self.url)
    }

    pub fn count(&self, words: &str) -> usize {
        self.requests.lock().unwrap().iter().filter(|request| request.contains(words)).count()
    }
}

fn status(code: u16) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": "Injected",
        "message": "injected fault", "metadata": {}});
    let body = Full::new(Bytes::from(status.to_string())).map_err(|never: Infallible| match never {}).boxed_unsync();
    Response::builder().status(code).header("content-type", "application/json").body(body).unwrap()
}

async fn answer(client: Client, request: Request<Incoming>, fault: Fault) -> Result<Response<Body>, std::io::Error> {
    let closed = || Err(std::io::Error::other("injected"));
    match fault {
        Fault::Closed => return closed(),
        Fault::Status(code) => return Ok(status(code)),
        Fault::Hangs => std::future::pending().await,
        Fault::Body(pieces, end) => {
            let pieces = futures::stream::unfold(Some(pieces.into_iter()), move |left| async move {
                let mut left = left?;
                match left.next() {
                    Some(piece) => Some((Ok(Frame::data(Bytes::from(piece))), Some(left))),
                    None if end == End::Hangs => std::future::pending().await,
                    None if end == End::Broken => {
                        // What was sent has to arrive first.
                        tokio::time::sleep(Duration::from_millis(200)).await;
                        Some((Err(std::io::Error::other("injected")), None))
                    }
                    None => None,
                }
            });
            return Ok(Response::new(StreamBody::new(pieces).boxed_unsync()));
        }
        Fault::None | Fault::ClosedAfter | Fault::StatusAfter(_) | Fault::BodyAfter(_) => {}
    }
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let mut passed = Request::builder().method(parts.method).uri(parts.uri);
    for name in ["content-type", "accept"] {
        if let Some(value) = parts.headers.get(name) {
            passed = passed.header(name, value);
        }
    }
    let answer = client.send(passed.body(kube::client::Body::from(body.to_vec())).unwrap()).await;
    let answer = answer.map_err(std::io::Error::other)?;
    match fault {
        Fault::ClosedAfter => closed(),
        Fault::StatusAfter(code) => Ok(status(code)),
        Fault::BodyAfter(text) => {
            Ok(Response::new(Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed_unsync()))
        }
        _ => Ok(answer.map(|body| body.map_err(std::io::Error::other).boxed_unsync())),
    }
}
