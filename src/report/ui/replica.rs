//! The replica that answers, its certificate, and the leader.

use jiff::Timestamp;
use maud::{Markup, html};
use serde::Serialize;

use super::layout::{Kind, badge, lasting, text};
use super::links::Links;

/// The replica that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplicaReport {
    /// Its identity in the Lease: the name of its pod, and a suffix.
    pub identity: String,
    /// The namespace of the Lease, and of the replicas.
    pub namespace: String,
    /// `leader`, `follower` or `no-leader`.
    pub state: &'static str,
    /// The identity of the leader, if another replica leads.
    pub leader: Option<String>,
    /// Whether the first list of every resource is complete.
    pub is_complete: bool,
    /// The resources that it does not see, and since when.
    pub unseen: Option<String>,
    /// Which pods it deletes as the leader ([`deletions`](usher_core::policy::deletions())).
    pub deletions: String,
    /// Which pods it would have deleted since it started, were deletions not off.
    pub withheld: Option<String>,
    /// How many differences there are between the cluster's admission policies and those of the policy file; `None` if there are none.
    pub policies_differ: Option<i64>,
    /// When the certificate that it serves expires; `None` while it has none.
    pub certificate_until: Option<String>,
    /// Since when it remembers what has exited.
    pub since: String,
    /// The port of the debug listener.
    pub port: u16,
    /// Where the pages of applications link to.
    #[serde(skip)]
    pub links: Links,
}

impl ReplicaReport {
    /// The name of a pod in an identity.
    fn pod(identity: &str) -> &str {
        identity.rsplit_once('_').map_or(identity, |(pod, _)| pod)
    }

    /// How to reach the leader's page.
    fn to_leader(&self) -> Option<String> {
        let leader = ReplicaReport::pod(self.leader.as_deref()?);
        Some(format!("kubectl -n {} port-forward pod/{leader} {port}:{port}", self.namespace, port = self.port))
    }
}

/// What the reader has to know about the data of every page.
pub(super) fn caution(replica: &ReplicaReport) -> Markup {
    html! {
        @if !replica.is_complete {
            p.caution role="note" { "This replica has not read the whole cluster yet: applications may be missing." }
        }
        @if let Some(unseen) = &replica.unseen {
            p.caution role="note" { "This replica does not see " (text(unseen)) ": the API server does not complete the list, or does not open the watch." }
        }
        @if replica.state == "follower" {
            p.caution role="note" {
                "This replica follows. Only the leader polls drivers, applies recovery rules and measures costs: "
                "views of drivers, findings, deletions and costs are missing here, and so are shortages under dynamic allocation. "
                @if let Some(command) = replica.to_leader() { "The leader's page: " code { (text(&command)) } ", and reload." }
            }
        }
        @if replica.state == "no-leader" {
            p.caution role="note" { "No replica leads, or the API server does not answer: the data may be old, and nothing is repaired." }
        }
    }
}

pub(super) fn page(replica: &ReplicaReport, now: Timestamp) -> Markup {
    let until: Option<Timestamp> = replica.certificate_until.as_deref().and_then(|time| time.parse().ok());
    let days = until.map(|until| until.duration_since(now).as_hours() / 24);
    let kind = match replica.state {
        "leader" | "follower" => Kind::Good,
        _ => Kind::Bad,
    };
    html! {
        dl.facts {
            div { dt { "Replica" } dd { (text(&replica.identity)) } }
            div { dt { "State" } dd { (badge(kind, replica.state)) } }
            div { dt { "Leader" } dd {
                @if replica.state == "leader" { "this replica" }
                @else if let Some(leader) = &replica.leader { (text(leader)) }
                @else { "unknown" }
            } }
            div { dt { "Cluster" } dd { @if replica.unseen.is_some() { (badge(Kind::Bad, "not seen")) } @else if replica.is_complete { (badge(Kind::Good, "read")) } @else { (badge(Kind::Waiting, "being read")) } } }
            div { dt { "Certificate" } dd {
                @match (&replica.certificate_until, days) {
                    (Some(time), Some(days)) => { (badge(if days > 6 { Kind::Good } else { Kind::Bad }, &format!("expires in {days} days"))) " " span.quiet { (time) } }
                    _ => { (badge(Kind::Bad, "none")) }
                }
            } }
            div { dt { "Deletions" } dd { (text(&replica.deletions)) } }
            @if let Some(withheld) = &replica.withheld {
                div { dt { "Not deleted" } dd { (text(withheld)) " since it started, because deletions are off" } }
            }
            @if let Some(count) = replica.policies_differ {
                div { dt { "Admission policies" } dd {
                    (badge(Kind::Waiting, &format!("differences: {count}"))) " from the policy file: "
                    code { "spark-usher doctor -n " (text(&replica.namespace)) } " says which, and what to do"
                } }
            }
            div { dt { "Remembers exits" } dd { (lasting(&replica.since, now)) } }
            div { dt { "Version" } dd { (env!("CARGO_PKG_VERSION")) } }
        }
        @if let Some(command) = replica.to_leader() { p { "The leader's page: " code { (text(&command)) } } }
    }
}
