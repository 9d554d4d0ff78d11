//! The nodes on which executors failed, suspect ones first.

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{Kind, address, badge, columns, lasting, since, text};
use super::words;
use crate::views::{NodeReport, NodesReport};

pub(super) fn page(report: &NodesReport, now: Timestamp) -> Markup {
    html! {
        dl.facts {
            div { dt { "Nodes" } dd { @if report.total > 0 { (report.total) } @else { "not watched" } } }
            div class=[(report.suspect > 0).then_some("bad")] { dt { "Suspect" } dd { (report.suspect) } }
            div { dt { "Avoided by new executors" } dd { (report.avoided) } }
        }
        @if report.nodes.is_empty() { p.empty { "No executor has failed because of its node." } }
        @for node in &report.nodes { (one(node, now)) }
    }
}

fn one(node: &NodeReport, now: Timestamp) -> Markup {
    html! {
        article.node {
            h2 {
                (text(&node.name)) " "
                @if node.suspicion.is_some() { (badge(Kind::Bad, "suspect")) " " }
                @if node.avoided { (badge(Kind::Over, "avoided")) " " }
                @if node.cordoned { (badge(Kind::Over, "cordoned")) " " }
                @if node.exists == Some(false) { (badge(Kind::Over, "no longer exists")) }
                @else if node.ready == Some(false) { (badge(Kind::Bad, "not ready")) }
            }
            @if let Some(suspicion) = &node.suspicion {
                p { strong { (suspicion.text) } " " (suspicion.executors) " executors of " (suspicion.applications)
                    " applications failed; suspect " (lasting(&suspicion.since, now)) "." }
                p { "What to do: " (suspicion.cure) }
            }
            dl.facts {
                @if let Some(kubelet) = &node.kubelet { div { dt { "Kubelet" } dd { (text(kubelet)) } } }
                div { dt { "Spark pods" } dd { (node.pods) } }
                @if node.schedulers.len() > 1 { div.bad { dt { "Schedulers" } dd { "more than one places pods here" } } }
                @for (scheduler, count) in &node.schedulers { div { dt { "Placed by " (text(scheduler)) } dd { (count) } } }
                @if node.excluded > 0 { div { dt { "Excluded by their drivers" } dd { (node.excluded) } } }
            }
            @if !node.recent.is_empty() {
                table.cards {
                    caption { "The last " (node.recent.len()) " of " (node.faults.values().sum::<usize>()) " faults" }
                    (columns(&["When", "Fault", "Application", "Message"], &[]))
                    tbody {
                        @for fault in &node.recent {
                            tr {
                                th scope="row" { (since(&fault.at, now)) }
                                td data-name="Fault" { (words::fault(&fault.kind)) @if let Some(resource) = &fault.resource { " " (text(resource)) } @if !fault.counts { " " span.quiet { "does not count" } } }
                                td data-name="Application" { a href=(address(&fault.namespace, &fault.app)) title=(usher_spark::text::shown(&fault.app)) { (text(if fault.name.is_empty() { &fault.app } else { &fault.name })) } " " span.quiet { (text(&fault.pod)) } }
                                td.why data-name="Message" { (text(&fault.message)) }
                            }
                        }
                    }
                }
            }
        }
    }
}
