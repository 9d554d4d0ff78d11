//! One application: what is wrong and what to do about it, its gang, its executors over time, how they exited, and what was done.

use std::collections::BTreeMap;

use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::apps::status_badge;
use super::layout::{Kind, address, ago, badge, columns, copied, lasting, since, text};
use super::links::Links;
use super::{timeline, words};
use crate::views::{AppReport, AppStatus, ExecutorReport, ExitReport, GroupReport, Lacking, ShortageReport, WhyReport};

/// The application that a page shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AppQuery {
    pub namespace: String,
    /// Its app selector.
    pub name: String,
    /// The range of time of its executors' lives: `10m`, `1h`, `6h` or `24h`; everything for any other word.
    pub range: String,
}

pub(super) fn page(report: &WhyReport, query: &AppQuery, links: &Links, now: Timestamp) -> Markup {
    let (namespace, name) = (&query.namespace, &query.name);
    let within = timeline::range(&query.range);
    html! {
        @if report.apps.is_empty() {
            p.empty {
                "No application " (text(name)) " in namespace " (text(namespace)) ": its pods are deleted, and no exit is remembered."
            }
        }
        @for app in &report.apps {
            p.lead {
                (status_badge(app)) " "
                span { (app.running_text()) " executors run" @if !app.executors.is_empty() { " (" (app.states_text()) ")" } }
                span { "namespace " (text(&app.namespace)) }
                span { "id " (copied(&app.app, &app.app)) }
                @if let Some(time) = &app.started { span { "started " (ago(time, now)) } }
                @for (name, address) in links.of(app) { a href=(address) rel="noreferrer" { (name) } }
            }
            (wrong(app, now))
            @if !app.groups.is_empty() { (gangs(&app.groups, now)) }
        }
        @for all in &report.timelines {
            section aria-labelledby="lives" {
                h2 #lives { "Executors" }
                (ranges(query, within))
                (timeline::timeline(all, within, now))
            }
        }
        @for app in &report.apps {
            (exits(app, now))
            (deletions(app, now))
            (driver(app, now))
        }
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

/// What is wrong with it, and what to do about it.
fn wrong(app: &AppReport, now: Timestamp) -> Markup {
    let vanished = app.driver_view.as_ref().map(|view| &view.vanished).filter(|vanished| !vanished.is_empty());
    html! {
        @if let Some(shortage) = &app.shortage { (lacks(app, shortage, now)) }
        @else if app.lacking() == Lacking::Unknown {
            p.note { "How many executors it wants is not known"
                @if let Some(target) = &app.target { ", but at least " (target.count) " (" (target.source) ")" } "." }
        }
        @if app.is_driver_in_trouble() { (driver_trouble(app)) }
        @else if let Some(why) = &app.driver.why { p.note { "Driver: " (text(why)) } }
        @if app.unowned > 0 {
            section.wrong aria-labelledby="unowned" {
                h2 #unowned { (app.unowned) " executors would stay when their driver ends" }
                p { "They have no ownerReference to a driver, and their driver is not known." }
                p.remedy { strong { "What to do: " } "The driver may run outside the cluster or in another namespace. In this one, "
                    code { "spark.kubernetes.driver.pod.name" } " names it." }
            }
        }
        @if let Some(vanished) = vanished {
            p.note { "The driver counts on executors that have no live pod: "
                @for (at, id) in vanished.iter().enumerate() { @if at > 0 { ", " } (id) } "." }
        }
        @if !app.findings.is_empty() { (findings(app, now)) }
        @if !app.troubled.is_empty() { (troubled(app)) }
        @match app.status() {
            AppStatus::Ok => p.fine { "Nothing is wrong: all executors that it wants run." },
            AppStatus::Ended => p.fine { "It has ended, and left nothing behind." },
            _ => {}
        }
    }
}

/// That the driver failed, or is gone, and what it has left.
fn driver_trouble(app: &AppReport) -> Markup {
    let is_failed = app.driver_state() == "failed";
    let left = app.left_over();
    html! {
        section.wrong aria-labelledby="driver-trouble" {
            h2 #driver-trouble {
                @if is_failed { "The driver failed" } @else { "The driver is gone" }
                @if left > 0 { ", and " (left) " executors are left" }
            }
            @if let Some(why) = &app.driver.why { p { (text(why)) } }
            @if is_failed { p.remedy { strong { "What to do: " } "Read the driver's log; the commands are below." } }
            @if left > 0 {
                p.remedy { strong { "To free what the executors hold: " }
                    @if app.driver.state.is_some() { "delete the driver's pod; the garbage collector deletes the executors that it owns. " }
                    "In mode act, the recovery rule orphans deletes executors whose driver is gone." }
            }
        }
    }
}

fn lacks(app: &AppReport, shortage: &ShortageReport, now: Timestamp) -> Markup {
    html! {
        section.wrong aria-labelledby="lacks" {
            h2 #lacks { "Lacks " (app.lacking().text()) " of " (shortage.target) " executors"
                @if let Some(time) = &shortage.since { " " (lasting(time, now)) } }
            ul {
                @for cause in &shortage.causes {
                    li {
                        strong { (cause.count) ": " (text(cause.phrase())) }
                        @if !cause.message.is_empty() { ": " (text(&cause.message)) }
                        @let remedy = cause.remedy();
                        @if !remedy.is_empty() { p.remedy { strong { "What to do: " } (remedy) } }
                    }
                }
                @if !shortage.exits.is_empty() { li { "Exits within 10 minutes: " (text(&shortage.exits)) } }
            }
            p.quiet { (shortage.running) " run and " (shortage.pending) " are pending. That it wants " (shortage.target) " is known from " (shortage.source) "." }
        }
    }
}

fn findings(app: &AppReport, now: Timestamp) -> Markup {
    html! {
        section aria-labelledby="findings" {
            h2 #findings { "Findings of recovery, and what is done" }
            table.cards {
                (columns(&["Pod", "Finding", "Since", "What is done", "Rule"], &[]))
                tbody {
                    @for finding in &app.findings {
                        tr {
                            th scope="row" { (text(&finding.pod)) }
                            td.why data-name="Finding" { (text(&finding.message)) }
                            td data-name="Since" { (lasting(&finding.since, now)) }
                            td data-name="What is done" { (text(&finding.outcome)) }
                            td data-name="Rule" { (text(&finding.rule)) }
                        }
                    }
                }
            }
        }
    }
}

/// Executors in trouble, those with the same trouble together.
fn troubled(app: &AppReport) -> Markup {
    let mut alike: BTreeMap<(&str, &str), Vec<&ExecutorReport>> = BTreeMap::new();
    for executor in &app.troubled {
        let why = executor.why.as_deref().or(executor.done.as_deref()).unwrap_or_default();
        alike.entry((&executor.state, why)).or_default().push(executor);
    }
    html! {
        section aria-labelledby="troubled" {
            h2 #troubled { "Executors in trouble" }
            ul {
                @for ((state, why), executors) in alike {
                    li {
                        @for (at, executor) in executors.iter().enumerate() {
                            @if at > 0 { ", " }
                            strong { (text(&executor.pod)) }
                            @if let Some(node) = &executor.node { " on " (text(node)) }
                        }
                        " (" (text(state)) ")" @if !why.is_empty() { ": " (text(why)) }
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
                                @let kind = if group.state() == "waits" { Kind::Waiting } else { Kind::Good };
                                (badge(kind, group.state()))
                                @if let Some(phase) = &group.phase { " " span.quiet { (text(phase)) } }
                            }
                            td.number data-name="Size" { @if let Some(size) = group.size { (group.bound) " of " (size) " on a node" } @else { "–" } }
                            td data-name="Scheduler" { (group.scheduler) }
                            td data-name="Created" { @if let Some(time) = &group.since { (since(time, now)) } @else { "–" } }
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
                p { @for (at, (cause, count)) in app.ended.iter().enumerate() { @if at > 0 { ", " } (count) " " (text(words::cause(cause))) } "." @if app.forgotten > 0 { " " (app.forgotten) " earlier ones are forgotten." } }
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
            td data-name="Cause" { (badge(if exit.is_abnormal { Kind::Bad } else { Kind::Over }, words::cause(&exit.cause))) " " span.quiet { (exit.text) } }
            td.why data-name="Detail" {
                (text(&exit.detail))
                @if let Some(recovery) = &exit.recovery { " " span.quiet { (text(recovery)) } }
            }
            td data-name="Node" { @if let Some(node) = &exit.node { (text(node)) } @else { "–" } }
        }
    }
}

fn deletions(app: &AppReport, now: Timestamp) -> Markup {
    html! {
        @if !app.deletions.is_empty() {
            section aria-labelledby="deletions" {
                h2 #deletions { "Deleted by recovery" }
                ul {
                    @for deletion in &app.deletions {
                        li { (since(&deletion.at, now)) ": " strong { (text(&deletion.pod)) } ": " (text(&deletion.message)) " (rule " (text(&deletion.rule)) ")" }
                    }
                }
            }
        }
    }
}

/// Its driver, and commands that say more.
fn driver(app: &AppReport, now: Timestamp) -> Markup {
    let pod = app.driver.pod.as_ref().filter(|_| app.driver.state.is_some());
    let of_driver = pod.map(|pod| {
        // A driver of another namespace is stated with it.
        let (namespace, pod) = pod.split_once('/').unwrap_or((&app.namespace, pod));
        [format!("kubectl -n {namespace} logs {pod}"), format!("kubectl -n {namespace} describe pod {pod}")]
    });
    let why = format!("spark-usher why -n {} {}", app.namespace, app.app);
    html! {
        section aria-labelledby="driver" {
            h2 #driver { "Driver" }
            dl.facts {
                div { dt { "Pod" } dd { @if let Some(pod) = &app.driver.pod { (text(pod)) } @else { "–" } } }
                div { dt { "State" } dd { (app.driver_state()) } }
                @if let Some(node) = &app.driver.node { div { dt { "Node" } dd { (text(node)) } } }
                @if let Some(view) = &app.driver_view {
                    div {
                        dt { "Executors that it has registered" }
                        dd { (view.registered) " " span.quiet { (since(&view.at, now)) @if !view.complete { ", incomplete" } } }
                    }
                }
            }
            ul.commands { @for command in of_driver.into_iter().flatten().chain([why]) { li { (copied(&command, &command)) } } }
        }
    }
}
