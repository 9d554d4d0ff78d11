//! The web page, over HTTP. tests/page.py looks at it in Chromium.

use std::net::SocketAddr;
use std::time::Duration;

use crate::support::cluster::{Cluster, eventually};
use crate::support::process::Process;
use crate::support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn open(address: SocketAddr, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
    stream
}

/// The whole response.
async fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = open(address, path, &format!("{headers}Connection: close\r\n")).await;
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

/// Reads until the text contains this.
async fn read_until(stream: &mut TcpStream, wanted: &str) -> String {
    let mut text = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&text).contains(wanted) {
            assert_ne!(stream.read_buf(&mut text).await.unwrap(), 0, "{}", String::from_utf8_lossy(&text));
        }
    };
    tokio::time::timeout(Duration::from_secs(20), reading).await.unwrap_or_else(|_| panic!("timed out: {wanted}"));
    String::from_utf8_lossy(&text).into_owned()
}

const LOCAL: &str = "Host: localhost:6060\r\n";
const EVENTS: &str = "Host: localhost:6060\r\nAccept: text/event-stream\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn page_shows_applications_protects_itself_and_is_updated() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &pod("one").executor_of("spark-1", 1)).await;
    let app = cluster.usher_named("", "usher").await;
    let address = app.debug().unwrap();
    eventually("the page shows the application", async || get(address, "/", LOCAL).await.contains("title=\"spark-1\""))
        .await;
    for path in ["/", "/nodes", "/cost", "/replica", "/style.css", "/live.js", "/icon.svg"] {
        let page = get(address, path, LOCAL).await;
        assert!(page.starts_with("HTTP/1.1 200"), "{path}: {page}");
        for header in [
            "content-security-policy: default-src 'none'; script-src 'self'; style-src 'self';",
            "x-content-type-options: nosniff",
            "cross-origin-resource-policy: same-origin",
            "cache-control: no-store",
        ] {
            assert!(page.contains(header), "{path}: {header}: {page}");
        }
        assert!(!page.contains("style=\"") && !page.contains("<script>"), "{path}");
    }
    assert!(get(address, "/app?namespace=none&name=none", LOCAL).await.starts_with("HTTP/1.1 404"));
    assert!(get(address, "/app?namespace=%FF&page=-1", LOCAL).await.starts_with("HTTP/1.1 404"));
    // A web site whose name resolves to this address reads nothing.
    for path in ["/", "/debug/apps", "/live.js"] {
        for host in ["Host: evil.example\r\n", "Host: 127.0.0.1.nip.io:6060\r\n", ""] {
            let refused = get(address, path, host).await;
            assert!(
                refused.starts_with("HTTP/1.1 403") || host.is_empty() && refused.starts_with("HTTP/1.1 4"),
                "{refused}"
            );
            assert!(!refused.contains("spark-1"));
        }
    }
    // A page of another site cannot even cause the work; a link on it works.
    let fetch = |site: &str, mode: &str, dest: &str| {
        format!("{LOCAL}Sec-Fetch-Site: {site}\r\nSec-Fetch-Mode: {mode}\r\nSec-Fetch-Dest: {dest}\r\n")
    };
    for (site, mode, dest, status) in [
        ("cross-site", "no-cors", "empty", "403"),
        ("cross-site", "navigate", "iframe", "403"),
        ("same-site", "cors", "empty", "403"),
        ("cross-site", "navigate", "document", "200"),
        ("same-origin", "cors", "empty", "200"),
        ("none", "navigate", "document", "200"),
    ] {
        for path in ["/", "/debug/apps"] {
            let response = get(address, path, &fetch(site, mode, dest)).await;
            assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{path} {site} {mode}: {response}");
            assert!(
                response.contains("x-content-type-options: nosniff") && response.contains("cache-control: no-store")
            );
        }
    }
    // Two names, or one that is not ASCII, whatever the address says.
    for hosts in ["Host: localhost\r\nHost: evil.example\r\n", "Host: \u{e9}.example\r\n"] {
        let response = get(address, "http://127.0.0.1/", hosts).await;
        assert!(response.starts_with("HTTP/1.1 4"), "{response}");
    }
    let mut live = open(address, &format!("/?namespace={}", cluster.namespace), EVENTS).await;
    let first = read_until(&mut live, "\n\n").await;
    assert!(first.contains("content-type: text/event-stream"), "{first}");
    read_until(&mut live, "spark-1").await;
    cluster.pod_by(&cluster.client, &pod("other").executor_of("spark-new", 1)).await;
    read_until(&mut live, "spark-new").await;
    // The live part only, for a page without a connection.
    let part = get(address, "/", "Host: localhost\r\nAccept: application/x-live\r\n").await;
    assert!(part.contains("spark-new") && !part.contains("<html"));
    // Open pages do not keep spark-usher from stopping.
    tokio::time::timeout(Duration::from_secs(10), app.stop()).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_with_live_updates_leave_connections_to_others() {
    let cluster = Cluster::start().await;
    let app = cluster.usher_named("", "usher").await;
    let address = app.debug().unwrap();
    let mut open_pages = Vec::new();
    let refused = loop {
        let mut page = open(address, "/", EVENTS).await;
        let head = read_until(&mut page, "\r\n").await;
        if !head.starts_with("HTTP/1.1 200") {
            break head;
        }
        open_pages.push(page);
        assert!(open_pages.len() < 100);
    };
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    assert!(!open_pages.is_empty());
    assert!(get(address, "/debug/apps", LOCAL).await.starts_with("HTTP/1.1 200"));
    drop(open_pages.pop());
    eventually("a closed page makes room for another one", async || {
        let mut page = open(address, "/", EVENTS).await;
        read_until(&mut page, "\r\n").await.starts_with("HTTP/1.1 200")
    })
    .await;
    app.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn page_is_turned_off_by_its_flag_and_names_are_added_by_another() {
    let cluster = Cluster::start().await;
    let ca = cluster.folder().join("off.ca").display().to_string();
    let arguments =
        ["--self-signed-for", "localhost", "--ca-out", &ca, "--no-web-page", "--debug-hosts", "a.example,b.example"];
    let replica = Process::start_serving(&arguments, &[], &cluster, "off", "", &cluster.kubeconfig());
    for (path, host, status) in [
        ("/", "localhost", "404"),
        ("/live.js", "localhost", "404"),
        ("/debug/apps", "localhost", "200"),
        ("/debug/apps", "b.example:6060", "200"),
        ("/debug/apps", "c.example", "403"),
    ] {
        let response = get(replica.debug, path, &format!("Host: {host}\r\n")).await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status}")), "{path} {host}: {response}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn follower_names_the_leader() {
    let cluster = Cluster::start().await;
    let mut leader = cluster.usher_named("", "usher-0").await;
    leader.has_synced().await;
    let follower = cluster.usher_named("", "usher-1").await;
    let address = follower.debug().unwrap();
    eventually("it knows the leader", async || {
        let page = get(address, "/replica", LOCAL).await;
        page.contains("This replica follows") && page.contains("pod/usher-0 ")
    })
    .await;
    assert!(!get(leader.debug().unwrap(), "/replica", LOCAL).await.contains("This replica follows"));
    leader.stop().await.unwrap();
    follower.stop().await.unwrap();
}
