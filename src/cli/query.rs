//! Data source of `apps`, `why`, `nodes` and `cost`: the leader of a running spark-usher, a replica, or the API server itself.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Response, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;

use super::api_server::ApiServer;
use super::output::one_line;
use usher_core::snapshot::Snapshot;
use usher_kube::client;
use usher_kube::client::Brief;
use usher_report::views::History;
use usher_server::cluster::leader_forward;
use usher_server::cluster::list::{self, Listing};
use usher_server::http::debug;
use usher_spark::text::{is_dns_label, shown};

/// Timeout of a debug listener's response, or of an API server's first response.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the whole query.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// Maximum size of an answer.
const MAX_ANSWER: usize = 256 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Source {
    /// Ask this replica instead of the leader: the URL of its debug listener, such as http://127.0.0.1:6060 (kubectl port-forward).
    #[arg(long, value_name = "URL", env = "SPARK_USHER_REPLICA")]
    pub(super) replica: Option<Uri>,
    /// Namespace in which spark-usher is installed. Its leader is asked through a port-forward, with the rights of the kubeconfig: it knows
    /// exits of pods that no longer exist, views of drivers, findings and costs. Without those rights pods, ConfigMaps and Events that the
    /// kubeconfig may read are all that is known.
    #[arg(long, value_name = "NAMESPACE", env = "SPARK_USHER_NAMESPACE", default_value = "spark-usher", value_parser = namespace)]
    usher_namespace: String,
    /// Name of the Lease of that spark-usher (leaderElection.leaseName in the chart).
    #[arg(long, value_name = "NAME", env = "SPARK_USHER_LEASE", default_value = "spark-usher")]
    usher_lease: String,
    /// Do not ask the leader, only the API server.
    #[arg(long, conflicts_with = "replica", env = "SPARK_USHER_NO_LEADER", value_parser = clap::builder::FalseyValueParser::new())]
    no_leader: bool,
    #[command(flatten)]
    server: ApiServer,
    /// Namespace; the default is that of the kubeconfig's context, and with --replica all.
    #[arg(long, short, value_name = "NAMESPACE", value_parser = namespace)]
    pub(super) namespace: Option<String>,
    /// All namespaces.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    all_namespaces: bool,
}

pub(super) fn namespace(text: &str) -> Result<String, String> {
    if is_dns_label(text) {
        return Ok(text.to_owned());
    }
    Err("expected a namespace: at most 63 lower-case letters, digits and '-', with a letter or digit at both ends"
        .to_owned())
}

/// Result of a query.
pub(super) struct Found<T> {
    /// The answer.
    pub(super) answer: T,
    /// What the reader has to know about it: what the replica that answered does not know, or that none was asked.
    pub(super) caution: Option<String>,
    /// Whether a replica answered, and not only the API server.
    pub(super) by_replica: bool,
    /// Since when what has exited is remembered, RFC 3339.
    pub(super) since: Option<String>,
}

impl Source {
    /// The same, in the namespace of the context unless another one or all of them are named. A replica may be one of another cluster than
    /// the context's: it is asked for all.
    pub(super) fn in_namespace(mut self) -> Source {
        if self.namespace.is_none() && !self.all_namespaces && self.replica.is_none() {
            self.namespace = Some(self.server.named_namespace().unwrap_or_else(|| "default".to_owned()));
        }
        self
    }

    /// Asks a replica, or computes the answer from a snapshot of the API server's objects.
    pub(super) async fn query<T: DeserializeOwned>(
        &self,
        path_and_query: &str,
        local: impl FnOnce(&Snapshot, &History) -> T,
    ) -> anyhow::Result<Found<T>> {
        if let Some(replica) = &self.replica {
            return self.ask_replica(replica, path_and_query).await;
        }
        let cluster = self.reach().await?;
        let why = if self.no_leader {
            None
        } else {
            match self.ask_leader(&cluster, path_and_query).await {
                Ok(found) => return Ok(found),
                Err(why) => Some(why),
            }
        };
        match tokio::time::timeout(REQUEST_TIMEOUT, list::list(&cluster.client, self.namespace.as_deref())).await {
            Ok(Ok(Listing { snapshot, history, left_out, unread })) => {
                let answer = local(&snapshot, &history);
                let all = |kinds: BTreeSet<&str>| (!kinds.is_empty()).then(|| Vec::from_iter(kinds).join(", "));
                let cut = all(left_out);
                let cut = cut.map(|cut| format!("not all {cut} were read: there are too many; -n names a namespace"));
                let unread = all(unread).map(|unread| format!("{unread} cannot be read: what they say is not known"));
                let without = why.map(|why| format!("{WITHOUT_LEADER} ({why}; --no-leader does not ask)"));
                let caution = without.into_iter().chain(unread).chain(cut).reduce(|all, one| format!("{all}; {one}"));
                // The API server's words, and those of whatever listens at the leader's port.
                Ok(Found { answer, caution: caution.map(|caution| one_line(&caution)), by_replica: false, since: None })
            }
            Ok(Err(error)) => {
                let is_denied = matches!(&error, kube::Error::Api(status) if status.code == 403);
                let hint = if is_denied && self.namespace.is_none() {
                    "; --namespace NAMESPACE needs the right for one namespace only"
                } else {
                    ""
                };
                bail!("{}: {}{hint}", cluster.server, Brief(&error))
            }
            Err(_) => bail!("{}: the list of pods did not complete within {REQUEST_TIMEOUT:?}", cluster.server),
        }
    }

    /// Asks the leader, or the replica that is named, for what only a replica knows.
    pub(super) async fn ask<T: DeserializeOwned>(&self, path_and_query: &str) -> anyhow::Result<Found<T>> {
        if let Some(replica) = &self.replica {
            return self.ask_replica(replica, path_and_query).await;
        }
        if self.no_leader {
            bail!(
                "only the leader of a running spark-usher knows this: --no-leader, or SPARK_USHER_NO_LEADER, does not ask it"
            );
        }
        let cluster = self.reach().await?;
        let asked = self.ask_leader(&cluster, path_and_query).await;
        asked
            .map_err(|why| anyhow::anyhow!("only the leader of a running spark-usher knows this: {why}{}", self.hint()))
    }

    /// What to do if the leader cannot be asked.
    fn hint(&self) -> String {
        format!(
            "; expected spark-usher in namespace {} (--usher-namespace, --usher-lease) and the rights to get its Lease and pods and to forward to them \
             (pods/portforward: get and create), or --replica URL",
            self.usher_namespace
        )
    }

    async fn ask_replica<T: DeserializeOwned>(&self, replica: &Uri, path_and_query: &str) -> anyhow::Result<Found<T>> {
        match tokio::time::timeout(ANSWER_TIMEOUT, get(replica, path_and_query)).await {
            Ok(outcome) => outcome.and_then(read).with_context(|| format!("--replica {replica}")),
            Err(_) => bail!("--replica {replica}: no answer within {ANSWER_TIMEOUT:?}"),
        }
    }

    /// Asks the leader; an error says why that is not possible.
    async fn ask_leader<T: DeserializeOwned>(
        &self,
        cluster: &client::Cluster,
        path_and_query: &str,
    ) -> Result<Found<T>, String> {
        let leader = leader_forward::find(&cluster.client, &self.usher_namespace, &self.usher_lease).await?;
        let answer = leader.get(&cluster.client, path_and_query, MAX_ANSWER);
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {ANSWER_TIMEOUT:?}")));
        let of_leader = |why: String| format!("leader {}/{}: {why}", self.usher_namespace, leader.pod);
        read(answer.map_err(of_leader)?).map_err(|error| of_leader(format!("{error:#}")))
    }

    /// Describes a pod of that name that belongs to no application: its namespace, and the labels that it lacks.
    pub(super) async fn unselected_pod(&self, name: &str) -> anyhow::Result<Option<String>> {
        let cluster = self.reach().await?;
        let unselected_pod = list::unselected_pod(&cluster.client, self.namespace.as_deref(), name).await;
        unselected_pod.map_err(|error| anyhow::anyhow!("{}: {}", cluster.server, Brief(&error)))
    }

    /// A client for an API server that answers.
    pub(super) async fn reach(&self) -> anyhow::Result<client::Cluster> {
        let cluster = self.server.cluster().await?;
        match tokio::time::timeout(ANSWER_TIMEOUT, cluster.client.apiserver_version()).await {
            Ok(Ok(_)) => Ok(cluster),
            Ok(Err(error)) => bail!("{}: {}", cluster.server, Brief(&error)),
            Err(_) => bail!("{}: no answer within {ANSWER_TIMEOUT:?}", cluster.server),
        }
    }

    /// ` in namespace …`, or empty.
    pub(super) fn place(&self) -> String {
        self.namespace.as_ref().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"))
    }

    /// The same, and how to see more than that.
    pub(super) fn place_and_hint(&self) -> String {
        let hint = if self.namespace.is_some() { "; -A shows all namespaces" } else { "" };
        self.place() + hint
    }

    /// `&namespace=…`, or empty.
    pub(super) fn namespace_query(&self) -> String {
        self.namespace.as_ref().map_or_else(String::new, |namespace| format!("&namespace={namespace}"))
    }
}

/// The warning if only the API server was asked.
const WITHOUT_LEADER: &str =
    "the leader of spark-usher was not asked, so findings, views of drivers and exits of deleted pods are missing";
const MAY_BE_OLD: &str = "this replica knows no leader: it may not reach the API server, and its data may be stale";
const FOLLOWS: &str = "this replica follows, and its leader knows more: views of drivers, shortages under dynamic allocation, findings and costs";

async fn get(base: &Uri, path_and_query: &str) -> anyhow::Result<Response<Bytes>> {
    let (Some("http"), Some(authority)) = (base.scheme_str(), base.authority()) else {
        bail!("expected a URL such as http://127.0.0.1:6060");
    };
    let uri: Uri = format!("http://{authority}{path_and_query}").parse()?;
    let client = Client::builder(TokioExecutor::new()).build_http::<Empty<Bytes>>();
    let response = client.get(uri).await.map_err(|error| {
        anyhow::anyhow!("{}; expected spark-usher's debug listener: is kubectl port-forward running?", Brief(&error))
    })?;
    let (parts, body) = response.into_parts();
    let body = Limited::new(body, MAX_ANSWER).collect().await.map_err(|error| anyhow::anyhow!(error))?;
    Ok(Response::from_parts(parts, body.to_bytes()))
}

/// Reads a replica's answer.
fn read<T: DeserializeOwned>(response: Response<Bytes>) -> anyhow::Result<Found<T>> {
    let status = response.status();
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    let Some(leader_state) = header(debug::LEADER_STATE_HEADER).filter(|_| status.is_success()) else {
        let body = String::from_utf8_lossy(response.body());
        let body = body.trim().chars().take(200).collect::<String>();
        bail!("{status} {body}: expected spark-usher's debug listener (port 6060, or the one in --debug-listen)");
    };
    let unseen = header(debug::UNSEEN_HEADER);
    let unseen =
        unseen.map(|unseen| format!("this replica does not see {}: its data is incomplete or stale", shown(unseen)));
    let caution = unseen.or_else(|| match leader_state {
        "no-leader" => Some(MAY_BE_OLD.to_owned()),
        "follower" => Some(FOLLOWS.to_owned()),
        _ => None,
    });
    let answer =
        serde_json::from_slice(response.body()).context("expected a response of spark-usher's debug listener")?;
    Ok(Found { answer, caution, by_replica: true, since: header(debug::SINCE_HEADER).map(shown) })
}
