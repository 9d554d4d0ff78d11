//! Port-forwarding to a pod over a WebSocket, with the protocol `v4.channel.k8s.io`
//! (`pkg/kubelet/cri/streaming/portforward/websocket.go` before 1.31): each port has a channel for data and one for errors, the first
//! byte of a message is the channel, and the first message of each channel is the port. A kubelet connects to the pod's own loopback
//! address; here a process on this machine serves as the pod, at the pod's address or at 127.0.0.1.

use std::net::Ipv4Addr;

use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::error::{ApiError, Result};
use super::request::Request;
use super::state::Api;
use usher_spark::json::text;

const PROTOCOL: &str = "v4.channel.k8s.io";
/// The channels of the first port.
const DATA: u8 = 0;
const ERROR: u8 = 1;

/// Whether the request is for it.
pub(super) fn is_for_port(request: &Request) -> bool {
    request.sub.as_deref() == Some("portforward")
        && request.resource.plural == "pods"
        && request.resource.group.is_empty()
}

/// Forwards connections to one port of a pod.
pub(super) fn forward(api: &Api, request: &Request, upgrade: Option<WebSocketUpgrade>) -> Result<Response> {
    let upgrade = upgrade.ok_or_else(|| ApiError::bad_request("Upgrade request required"))?;
    let port = request.param("ports").and_then(|ports| ports.parse::<u16>().ok());
    let port = port.ok_or_else(|| ApiError::bad_request("query parameter \"ports\": the sandbox forwards one port"))?;
    let key = request.key();
    let pod = api.store.get(&request.resource.collection(), &key);
    let pod = pod.ok_or_else(|| ApiError::not_found("pods", &key.1))?.value();
    let address = text(&pod, &["status", "podIP"]).to_owned();
    let pump = move |socket: WebSocket| async move {
        // Either side may close at any time.
        let _ = pump(socket, &address, port).await;
    };
    Ok(upgrade.protocols([PROTOCOL]).on_upgrade(pump).into_response())
}

fn message(channel: u8, data: &[u8]) -> Message {
    Message::Binary(Bytes::from([&[channel], data].concat()))
}

async fn pump(mut socket: WebSocket, address: &str, port: u16) -> anyhow::Result<()> {
    for channel in [DATA, ERROR] {
        socket.send(message(channel, &port.to_le_bytes())).await?;
    }
    let by_address = if address.is_empty() { None } else { TcpStream::connect((address, port)).await.ok() };
    let connected = match by_address {
        Some(by_address) => Ok(by_address),
        None => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await,
    };
    let mut connection = match connected {
        Ok(connection) => connection,
        Err(error) => {
            let why = format!("failed to connect to localhost:{port} inside namespace: {error}");
            socket.send(message(ERROR, why.as_bytes())).await?;
            return Ok(socket.send(Message::Close(None)).await?);
        }
    };
    let (mut from, mut to) = connection.split();
    let mut buffer = vec![0; 1 << 14];
    loop {
        tokio::select! {
            read = from.read(&mut buffer) => match read? {
                0 => return Ok(socket.send(Message::Close(None)).await?),
                count => socket.send(message(DATA, buffer.get(..count).unwrap_or_default())).await?,
            },
            received = socket.recv() => match received.transpose()? {
                Some(Message::Binary(data)) => {
                    if let Some((&DATA, data)) = data.split_first() {
                        to.write_all(data).await?;
                    }
                }
                Some(Message::Close(_)) | None => return Ok(()),
                Some(_) => {}
            },
        }
    }
}
