//! Asks the leader of a running spark-usher, for the command line: its Lease names the leader's pod, and the API server forwards a
//! connection to the pod's debug listener, which listens on loopback, with the rights of the user's kubeconfig
//! (`kubectl port-forward`).

use std::time::Duration;

use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DynamicObject};
use serde_json::Value;

use usher_kube::client::Brief;
use usher_kube::view::pods;
use usher_spark::json;
use usher_spark::text::{is_dns_subdomain, shown};

/// The port of `serve`, if its flags name no other.
const PORT: u16 = 6060;
/// Timeout of each step.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A leader's debug listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    namespace: String,
    pub pod: String,
    port: u16,
}

/// Finds the leader of the spark-usher that is installed in this namespace; an error says what is missing.
pub async fn find(client: &Client, namespace: &str, lease_name: &str) -> Result<Leader, String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = within(leases.get_opt(lease_name)).await?;
    let lease = lease.ok_or_else(|| format!("namespace {namespace} has no Lease {lease_name}"))?;
    let identity = lease.spec.and_then(|spec| spec.holder_identity).filter(|identity| !identity.is_empty());
    let identity = identity.ok_or_else(|| format!("no replica holds Lease {namespace}/{lease_name}"))?;
    // The name of its pod, and a suffix.
    let pod = identity.rsplit_once('_').map_or(&*identity, |(pod, _)| pod).to_owned();
    if !is_dns_subdomain(&pod) {
        return Err(format!(
            "the holder of Lease {namespace}/{lease_name} is {}, which names no pod",
            shown(&identity)
        ));
    }
    let pods: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &pods());
    let found = within(pods.get_opt(&pod)).await?.ok_or_else(|| format!("pod {namespace}/{pod} does not exist"))?;
    Ok(Leader { namespace: namespace.to_owned(), port: debug_port(&found.data), pod })
}

/// The arguments of the container that runs `serve`, of a pod's spec: it has `serve` in its command, or as its first argument. Other
/// containers, such as a proxy, may have flags of the same name.
pub fn serve_arguments(spec: &Value) -> Vec<&str> {
    let serves = |container: &&Value| {
        arguments(container, "command").contains(&"serve") || arguments(container, "args").first() == Some(&"serve")
    };
    let found = json::list(spec, &["containers"]).iter().find(serves);
    found.map(|container| arguments(container, "args")).unwrap_or_default()
}

fn arguments<'v>(container: &'v Value, key: &str) -> Vec<&'v str> {
    json::list(container, &[key]).iter().filter_map(Value::as_str).collect()
}

/// The port of `--debug-listen` in a pod's arguments, as one or two of them.
fn debug_port(pod: &Value) -> u16 {
    const FLAG: &str = "--debug-listen";
    let arguments = json::at(pod, &["spec"]).map(serve_arguments).unwrap_or_default();
    let next = arguments.iter().skip(1).map(Some).chain([None]);
    let addresses = arguments.iter().zip(next).filter_map(|(argument, next)| match argument.strip_prefix(FLAG)? {
        "" => next.copied(),
        value => value.strip_prefix('='),
    });
    addresses.last().and_then(|address| address.rsplit_once(':')?.1.parse().ok()).unwrap_or(PORT)
}

impl Leader {
    /// Sends a GET request for this path to its debug listener, and returns at most so many bytes of the answer.
    pub async fn get(&self, client: &Client, path_and_query: &str, max: usize) -> Result<Response<Bytes>, String> {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &self.namespace);
        let mut forwarder = within(pods.portforward(&self.pod, &[self.port])).await?;
        let stream = forwarder.take_stream(self.port).ok_or("the connection is not forwarded")?;
        let request = Request::get(path_and_query).header(hyper::header::HOST, format!("127.0.0.1:{}", self.port));
        let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
        let exchange = async {
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| brief(&error))?;
            let answer = async {
                let (parts, body) = sender.send_request(request).await.map_err(|error| brief(&error))?.into_parts();
                let body = Limited::new(body, max).collect().await.map_err(|error| error.to_string())?;
                Ok(Response::from_parts(parts, body.to_bytes()))
            };
            tokio::select! {
                answer = answer => answer,
                ended = connection => Err(ended.err().map_or_else(|| "the connection ended".to_owned(), |error| brief(&error))),
            }
        };
        let answer = exchange.await;
        // What its kubelet says explains more than a connection that ends.
        match answer {
            Err(error) => {
                let said = forwarder.take_error(self.port);
                let said = match said {
                    Some(said) => tokio::time::timeout(TIMEOUT, said).await.ok().flatten(),
                    None => None,
                };
                Err(said.filter(|said| !said.is_empty()).unwrap_or(error))
            }
            answer => answer,
        }
    }
}

fn brief(error: &(dyn std::error::Error + 'static)) -> String {
    Brief(error).to_string()
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| brief(&error)),
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn port_is_that_of_the_leaders_arguments() {
        for (args, expected) in [
            (json!(["serve", "--debug-listen=127.0.0.1:7070"]), 7070),
            (json!(["serve", "--debug-listen=[::1]:7071"]), 7071),
            (json!(["serve", "--debug-listen=127.0.0.1:7070", "--debug-listen=127.0.0.1:7072"]), 7072),
            (json!(["serve", "--debug-listen", "127.0.0.1:7073", "--log=info"]), 7073),
            (json!(["serve", "--debug-listen"]), PORT),
            (json!(["serve", "--debug-listeners=127.0.0.1:7074"]), PORT),
            (json!(["serve"]), PORT),
            (json!(null), PORT),
        ] {
            let proxy = json!({"name": "proxy", "args": ["--debug-listen=127.0.0.1:1"]});
            let pod = json!({"spec": {"containers": [{"name": "spark-usher", "args": args}, proxy]}});
            assert_eq!(debug_port(&pod), expected, "{args}");
        }
        let flag = json!(["--debug-listen=127.0.0.1:7075"]);
        for (containers, expected) in [
            (json!([{"args": flag}]), PORT),
            (
                json!([{"command": ["/spark-usher", "serve"], "args": flag}, {"args": ["--debug-listen=127.0.0.1:1"]}]),
                7075,
            ),
            (json!([{"args": ["--debug-listen=127.0.0.1:1"]}, {"args": flag}]), PORT),
        ] {
            assert_eq!(debug_port(&json!({"spec": {"containers": containers}})), expected, "{containers}");
        }
    }
}
