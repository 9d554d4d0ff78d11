//! One application: what it lacks and why, its gang, its executors over time, how they exited, and what was done.

use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::apps::driver_badge;
use super::layout::{Kind, address, badge, columns, since, text};
use super::timeline;
use crate::views::{AppReport, ExitReport, GroupReport, Lacking, WhyReport};

/// The application that a page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AppQuery {
    /// Its namespace.
    pub namespace: String,
    /// Its app selector.
    pub name: String,
    /// The range of time of its executors' lives: `10m`, `1h`, `6h` or `24h`; everything for any other word.
    pub range: String,
}

pub(super) fn page(report: &WhyReport, query: &AppQuery, now: Timestamp) -> Markup {
    let (namespace, name) = (&query.namespace, &query.name);
    let within = timeline::range(&query.range);
    let apps = report.apps.iter().filter(|app| &app.namespace == namespace);
    html! {
        @if report.apps.is_empty() {
            p.empty {
                "No application " (text(name)) " in namespace " (text(namespace)) ": its pods are deleted, and no exit is remembered."
            }
        }
        @for app in apps { (application(app, now)) }
        @for all in &report.timelines {
            section aria-labelledby="lives" {
                h2 #lives { "Executors" }
                (ranges(query, within))
                (timeline::timeline(all, within, now))
            }
        }
        @for app in &report.apps { (exits(app, now)) }
    }
}

/// Links to the ranges of time.
fn ranges(query: &AppQuery, within: Option<i64>) -> Markup {
    let base = address(&query.namespace, &query.name);
    html! {
        nav.ranges aria-label="Range of time" {
            a href=(base) aria-current=[within.is_none().then_some("true")] { "all" }
            @for (word, seconds) in timeline::RANGES {
                a href={ (base) "&range=" (word) } aria-current=[(within == Some(seconds)).then_some("true")] { "last " (word) }
            }
        }
    }
}

fn application(app: &AppReport, now: Timestamp) -> Markup {
    html! {
        dl.facts {
            div { dt { "Name" } dd { (text(app.shown_name())) } }
            div { dt { "Namespace" } dd { (text(&app.namespace)) } }
            div { dt { "Id" } dd { (text(&app.app)) } }
            div { dt { "Driver" } dd { @if let Some(pod) = &app.driver.pod { (text(pod)) " " } (driver_badge(app)) } }
            @if let Some(node) = &app.driver.node { div { dt { "Driver's node" } dd { (text(node)) } } }
            @for (state, count) in &app.executors { div { dt { "Executors " (state) } dd { (count) } } }
            @if let Some(view) = &app.driver_view {
                div {
                    dt { "Registered with the driver" }
                    dd { (view.registered) " " span.quiet { (since(&view.at, now)) @if !view.complete { ", incomplete" } } }
                }
            }
        }
        @if app.unowned > 0 {
            p.caution role="note" {
                (app.unowned) " executors have no ownerReference to a driver, and their driver is not known: nothing deletes them when it ends. "
                "It may run outside the cluster or in another namespace; in this one, " code { "spark.kubernetes.driver.pod.name" } " names it."
            }
        }
        @if app.shortage.is_none() && app.lacking() == Lacking::Unknown {
            p.note { "How many executors it wants is not known"
                @if let Some(target) = &app.target { ", but at least " (target.count) " (" (target.source) ")" } "." }
        }
        @if let Some(why) = &app.driver.why { p.note { "Driver: " (text(why)) } }
        @if let Some(view) = app.driver_view.as_ref().filter(|view| !view.vanished.is_empty()) {
            p.note { "The driver counts on executors that have no live pod: "
                @for (at, id) in view.vanished.iter().enumerate() { @if at > 0 { ", " } (id) } }
        }
        @if let Some(shortage) = &app.shortage {
            section aria-labelledby="lacks" {
                h2 #lacks { "Lacks " (app.lacking().text()) " of " (shortage.target) " executors" }
                p { (shortage.running) " run, " (shortage.pending) " are pending; the number that it wants is known from " (shortage.source)
                    @if let Some(time) = &shortage.since { ". It has lacked executors since " (since(time, now)) } "." }
                ul {
                    @for cause in &shortage.causes {
                        li { strong { (cause.count) " " (text(&cause.cause)) } @if !cause.message.is_empty() { ": " (text(&cause.message)) } }
                    }
                    @if !shortage.exits.is_empty() { li { "Exits within 10 minutes: " (text(&shortage.exits)) } }
                }
            }
        }
        @if !app.groups.is_empty() { (gangs(&app.groups, now)) }
        @if !app.findings.is_empty() {
            section aria-labelledby="findings" {
                h2 #findings { "Findings of recovery, and what is done" }
                table.cards {
                    (columns(&["Rule", "Pod", "Finding", "Since", "What is done"], &[]))
                    tbody {
                        @for finding in &app.findings {
                            tr {
                                th scope="row" { (text(&finding.rule)) }
                                td data-name="Pod" { (text(&finding.pod)) }
                                td.why data-name="Finding" { (text(&finding.message)) }
                                td data-name="Since" { (since(&finding.since, now)) }
                                td data-name="What is done" { (text(&finding.outcome)) }
                            }
                        }
                    }
                }
            }
        }
        @if !app.deletions.is_empty() {
            section aria-labelledby="deletions" {
                h2 #deletions { "Deleted by recovery" }
                ul {
                    @for deletion in &app.deletions {
                        li { (since(&deletion.at, now)) ": " strong { (text(&deletion.pod)) } " (" (text(&deletion.rule)) "): " (text(&deletion.message)) }
                    }
                }
            }
        }
        @if !app.troubled.is_empty() {
            section aria-labelledby="troubled" {
                h2 #troubled { "Executors in trouble" }
                ul {
                    @for executor in &app.troubled {
                        li {
                            strong { (text(&executor.pod)) } " (" (text(&executor.state)) ")"
                            @if let Some(node) = &executor.node { " on " (text(node)) }
                            @if let Some(why) = executor.why.as_ref().or(executor.done.as_ref()) { ": " (text(why)) }
                        }
                    }
                }
            }
        }
    }
}

fn gangs(groups: &[GroupReport], now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="gang" {
            h2 #gang { "Gang" }
            table.cards {
                (columns(&["PodGroup", "State", "Size", "Scheduler", "Created"], &["Size"]))
                tbody {
                    @for group in groups {
                        tr {
                            th scope="row" { (text(&group.name)) }
                            td data-name="State" {
                                @if group.started { (badge(Kind::Good, "started")) } @else { (badge(Kind::Waiting, "waits")) }
                                @if let Some(phase) = &group.phase { " " span.quiet { (text(phase)) } }
                            }
                            td.number data-name="Size" { @if let Some(size) = group.size { (group.bound) " of " (size) " on a node" } }
                            td data-name="Scheduler" { (group.scheduler) }
                            td data-name="Created" { @if let Some(time) = &group.since { (since(time, now)) } }
                        }
                    }
                }
            }
        }
    }
}

fn exits(app: &AppReport, now: Timestamp) -> Markup {
    html! {
        @if !app.ended.is_empty() {
            section aria-labelledby="exits" {
                h2 #exits { "Exits" }
                p { @for (at, (cause, count)) in app.ended.iter().enumerate() { @if at > 0 { ", " } (count) " " (text(cause)) } "." @if app.forgotten > 0 { " " (app.forgotten) " earlier ones are forgotten." } }
                table.cards {
                    (columns(&["Executor", "When", "Cause", "Detail", "Node"], &[]))
                    tbody { @for exit in &app.exits { (exited(exit, now)) } }
                }
            }
        }
    }
}

fn exited(exit: &ExitReport, now: Timestamp) -> Markup {
    html! {
        tr {
            th scope="row" { (text(&exit.pod)) }
            td data-name="When" { (since(&exit.at, now)) }
            td data-name="Cause" { (badge(if exit.is_abnormal { Kind::Bad } else { Kind::Over }, &exit.cause)) " " span.quiet { (exit.text) } }
            td.why data-name="Detail" {
                (text(&exit.detail))
                @if let Some(recovery) = &exit.recovery { " " span.quiet { (text(recovery)) } }
            }
            td data-name="Node" { @if let Some(node) = &exit.node { (text(node)) } }
        }
    }
}
