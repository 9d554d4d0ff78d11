//! An S3-compatible storage in memory, over HTTP on loopback: single and multipart uploads, and deletions.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

#[derive(Default)]
struct Stored {
    objects: BTreeMap<String, Vec<u8>>,
    parts: BTreeMap<u32, Vec<u8>>,
    credentials: Vec<String>,
}

/// The storage. It ends with its value.
pub struct Storage {
    pub endpoint: String,
    stored: Arc<Mutex<Stored>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Storage {
    pub async fn start() -> Storage {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let stored: Arc<Mutex<Stored>> = Arc::default();
        let shared = stored.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let shared = shared.clone();
                let service = service_fn(move |request| answer(shared.clone(), request));
                tokio::spawn(async move {
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Storage { endpoint, stored, task }
    }

    /// The paths of the objects, with their sizes.
    pub fn objects(&self) -> Vec<(String, usize)> {
        let stored = self.stored.lock().unwrap();
        stored.objects.iter().map(|(path, content)| (path.clone(), content.len())).collect()
    }

    /// The `Credential` of each signed request.
    pub fn credentials(&self) -> Vec<String> {
        self.stored.lock().unwrap().credentials.clone()
    }
}

async fn answer(stored: Arc<Mutex<Stored>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes().to_vec();
    let path = percent_encoding::percent_decode_str(parts.uri.path()).decode_utf8().unwrap().into_owned();
    let (path, query) = (path, parts.uri.query().unwrap_or_default().to_owned());
    let mut stored = stored.lock().unwrap();
    let signed = parts.headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
    stored
        .credentials
        .extend(signed.split_once("Credential=").and_then(|(_, rest)| rest.split(',').next()).map(str::to_owned));
    let number =
        query.split('&').find_map(|pair| pair.strip_prefix("partNumber=")).and_then(|number| number.parse().ok());
    let mut text = String::new();
    match (parts.method.as_str(), number) {
        ("POST", _) if query.starts_with("uploads") => {
            text = "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>u</UploadId></InitiateMultipartUploadResult>".into();
        }
        ("POST", _) if query == "delete" => {
            let body = String::from_utf8(body).unwrap();
            for key in body.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                stored.objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                text.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
            }
            text = format!("<DeleteResult>{text}</DeleteResult>");
        }
        ("PUT", Some(number)) => _ = stored.parts.insert(number, body),
        ("POST", _) => {
            let whole = std::mem::take(&mut stored.parts).into_values().flatten().collect();
            stored.objects.insert(path, whole);
            text = "<CompleteMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><ETag>e</ETag></CompleteMultipartUploadResult>".into();
        }
        ("PUT", None) => _ = stored.objects.insert(path, body),
        _ => return Ok(Response::builder().status(405).body(Full::default()).unwrap()),
    }
    Ok(Response::builder().header("etag", "\"e\"").body(Full::new(text.into())).unwrap())
}
