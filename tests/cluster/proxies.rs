//! Commands behind a proxy, as kubectl works behind one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::cluster::Cluster;
use crate::support::operator::driver;
use crate::support::process::program;

/// No machine resolves this name: only the proxy knows the API server.
const SERVER: &str = "https://api.team.example:6443";

/// A proxy for HTTP and SOCKS 5 that leads every connection to the API server of the test.
struct Proxy {
    address: std::net::SocketAddr,
    tunnels: Arc<AtomicUsize>,
}

impl Proxy {
    async fn start(cluster: &Cluster) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = cluster.url().trim_start_matches("https://").to_owned();
        let tunnels = Arc::new(AtomicUsize::new(0));
        let counted = tunnels.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (server, counted) = (server.clone(), counted.clone());
                tokio::spawn(async move { tunnel(stream, &server, &counted).await });
            }
        });
        Proxy { address, tunnels }
    }

    /// How many tunnels were opened since the last call.
    fn opened(&self) -> usize {
        self.tunnels.swap(0, Ordering::SeqCst)
    }
}

async fn tunnel(mut stream: TcpStream, server: &str, opened: &AtomicUsize) -> std::io::Result<()> {
    let mut first = [0];
    stream.read_exact(&mut first).await?;
    if first == [5] {
        // A greeting, and a request with a name (RFC 1928).
        let mut count = [0];
        stream.read_exact(&mut count).await?;
        stream.read_exact(&mut vec![0; count[0].into()]).await?;
        stream.write_all(&[5, 0]).await?;
        let mut request = [0; 5];
        stream.read_exact(&mut request).await?;
        assert_eq!(request[..4], [5, 1, 0, 3], "the proxy looks up the name");
        let mut name = vec![0; usize::from(request[4]) + 2];
        stream.read_exact(&mut name).await?;
        assert!(name.starts_with(b"api.team.example"));
        stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 1]).await?;
    } else {
        let mut head = first.to_vec();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).await?;
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("CONNECT api.team.example:6443 "), "{head}");
        // user:p@ss
        let is_known = head.to_ascii_lowercase().contains("proxy-authorization: basic dxnlcjpwqhnz");
        let answer = if is_known { "200 OK" } else { "407 Proxy Authentication Required" };
        stream.write_all(format!("HTTP/1.1 {answer}\r\n\r\n").as_bytes()).await?;
        if !is_known {
            return Ok(());
        }
    }
    opened.fetch_add(1, Ordering::SeqCst);
    let mut server = TcpStream::connect(server).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut server).await.map(|_| ())
}

/// The test's kubeconfig, with the address that only the proxy knows.
fn kubeconfig(cluster: &Cluster, proxy: Option<&str>) -> String {
    let mut file: Value = serde_saphyr::from_str(&cluster.kubeconfig()).unwrap();
    file["clusters"][0]["cluster"] = json!({"server": SERVER, "insecure-skip-tls-verify": true, "proxy-url": proxy});
    let path = cluster.folder().join("proxied.kubeconfig");
    std::fs::write(&path, file.to_string()).unwrap();
    path.display().to_string()
}

/// The output of `status` of the test's namespace, with these arguments and variables.
async fn status(cluster: &Cluster, arguments: &[&str], variables: &[(&str, String)]) -> Result<String, String> {
    output(&[&["status", "-o", "name", "-n", &cluster.namespace], arguments].concat(), variables).await
}

/// The output of a command, or its errors.
async fn output(arguments: &[&str], variables: &[(&str, String)]) -> Result<String, String> {
    let mut command = std::process::Command::new(program());
    command.args(arguments);
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy", "KUBECONFIG", "HOME"]
    {
        command.env_remove(name);
    }
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_the_api_server_through_the_proxy_that_kubectl_would_use() {
    let cluster = Cluster::start().await;
    cluster.pod_by(&cluster.client, &driver("etl-driver", "spark-1")).await;
    let found = Ok(format!("{}:etl-driver\n", cluster.namespace));
    let proxy = Proxy::start(&cluster).await;
    let at = proxy.address;
    let http = format!("http://user:p%40ss@{at}");
    let from = |name: &'static str, value: &str| vec![(name, value.to_owned())];

    let plain = kubeconfig(&cluster, None);
    let by_file = ["--kubeconfig", plain.as_str()];
    assert!(status(&cluster, &by_file, &[]).await.is_err(), "without a proxy nobody knows the name");
    for variables in [from("HTTPS_PROXY", &http), from("https_proxy", &format!("socks5://{at}"))] {
        assert_eq!(status(&cluster, &by_file, &variables).await, found, "{variables:?}");
        assert!(proxy.opened() > 0, "{variables:?}");
    }
    let excluded = [from("HTTPS_PROXY", &http), from("NO_PROXY", "10.0.0.0/8,.team.example")].concat();
    assert!(status(&cluster, &by_file, &excluded).await.is_err());
    assert_eq!(proxy.opened(), 0);
    let refused =
        status(&cluster, &by_file, &from("HTTPS_PROXY", &format!("http://user:secret@{at}"))).await.unwrap_err();
    assert!(refused.contains("proxy") && !refused.contains("secret"), "{refused}");
    let wrong = status(&cluster, &by_file, &from("HTTPS_PROXY", &format!("ftp://{at}"))).await.unwrap_err();
    assert!(wrong.contains("HTTPS_PROXY: expected http://HOST:PORT or socks5://HOST:PORT"), "{wrong}");

    // The API server of the other tests runs on this machine: no proxy of the environment concerns it.
    let local = crate::support::operator::kubeconfig(&cluster);
    let direct = status(&cluster, &["--kubeconfig", &local], &from("HTTPS_PROXY", "http://127.0.0.1:1")).await;
    assert_eq!((direct, proxy.opened()), (found.clone(), 0));

    for own in [http.clone(), format!("socks5h://{at}")] {
        let proxied = kubeconfig(&cluster, Some(&own));
        // It precedes the variables.
        let variables = [from("HTTPS_PROXY", "http://127.0.0.1:1"), from("NO_PROXY", "*")].concat();
        assert_eq!(status(&cluster, &["--kubeconfig", &proxied], &variables).await, found, "{own}");
        assert!(proxy.opened() > 0, "{own}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn proxy_is_used_with_sparks_own_credentials() {
    let cluster = Cluster::start().await;
    let proxy = Proxy::start(&cluster).await;
    let conf = [
        format!("spark.kubernetes.authenticate.submission.oauthToken={}", cluster.admin_token()),
        format!("spark.kubernetes.namespace={}", cluster.namespace),
        "spark.kubernetes.trust.certificates=true".to_owned(),
        "spark.kubernetes.container.image=spark".to_owned(),
    ];
    let master = format!("k8s://{SERVER}");
    let mut arguments =
        vec!["submit", "--dry-run=server", "--deploy-mode", "cluster", "--name", "etl", "--master", &master];
    arguments.extend(conf.iter().flat_map(|conf| ["--conf", conf]));
    arguments.push("local:///app.py");
    let variables = [("HTTPS_PROXY", format!("socks5://{}", proxy.address))];
    let created = output(&arguments, &variables).await.unwrap();
    assert!(created.contains("etl-") && proxy.opened() > 0, "{created}");
}
