//! All applications: those that lack executors first, with the cause, and since when.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Deserializer};

use super::layout::{Kind, address, badge, columns, encoded, since, text};
use crate::text::{first_line, harmless};
use crate::views::{AppReport, Lacking};

/// How many applications one page has.
const ROWS: usize = 100;
/// The longest message in a row, in characters.
const MAX_WHY: usize = 240;

/// Which applications are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AppsQuery {
    /// A part of the name of the application, of its namespace, its driver or an executor in trouble; ignores case.
    pub q: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// The state of the driver; empty for all.
    pub state: String,
    /// What is wrong.
    #[serde(deserialize_with = "word")]
    pub trouble: Trouble,
    /// In which order.
    #[serde(deserialize_with = "word")]
    pub sort: Sort,
    /// From 1.
    #[serde(deserialize_with = "number")]
    pub page: usize,
}

macro_rules! words {
    ($(#[doc = $title:literal])+ $kind:ident, default $default:ident { $($(#[doc = $doc:literal])+ $name:ident = $word:literal $text:literal;)+ }) => {
        $(#[doc = $title])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $kind {
            const ALL: &'static [$kind] = &[$($kind::$name,)+];

            fn as_str(self) -> &'static str {
                match self { $($kind::$name => $word,)+ }
            }

            fn text(self) -> &'static str {
                match self { $($kind::$name => $text,)+ }
            }
        }

        impl Default for $kind {
            fn default() -> $kind {
                $kind::$default
            }
        }

        impl From<&str> for $kind {
            /// The default for any other word.
            fn from(word: &str) -> $kind {
                $kind::ALL.iter().copied().find(|one| one.as_str() == word).unwrap_or_default()
            }
        }
    };
}

words! {
    /// What is wrong with the applications that are shown.
    Trouble, default All {
        /// All applications.
        All = "" "all applications";
        /// Those with any of the following.
        Any = "any" "with any trouble";
        /// Those that lack executors.
        Lacks = "lacks" "that lack executors";
        /// Those with findings of recovery rules.
        Findings = "findings" "with findings of recovery";
        /// Those with executors in trouble.
        Executors = "executors" "with executors in trouble";
        /// Those whose driver failed or is gone.
        Driver = "driver" "whose driver failed or is gone";
        /// Those with abnormal exits.
        Exits = "exits" "with abnormal exits";
        /// Those of which it is not known how many executors they want, or who their driver is.
        Unknown = "unknown" "with an unknown target or driver";
    }
}

words! {
    /// The order of applications.
    Sort, default Trouble {
        /// Those with trouble first.
        Trouble = "" "trouble first";
        /// By namespace and name.
        Name = "name" "namespace and name";
        /// Those that lack the most executors first.
        Lacks = "lacks" "most executors lacking";
        /// Those with the most executors first.
        Executors = "executors" "most executors";
        /// Those that exited last first.
        Exits = "exits" "last exit";
    }
}

/// A word of a query: a value that is not known means the default.
fn word<'de, D: Deserializer<'de>, T: for<'a> From<&'a str>>(deserializer: D) -> Result<T, D::Error> {
    Ok(T::from(String::deserialize(deserializer)?.as_str()))
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().unwrap_or_default())
}

fn has(app: &AppReport, trouble: Trouble) -> bool {
    match trouble {
        Trouble::All => true,
        Trouble::Any => [Trouble::Lacks, Trouble::Findings, Trouble::Executors, Trouble::Driver]
            .into_iter()
            .any(|trouble| has(app, trouble)),
        Trouble::Lacks => app.shortage.is_some(),
        Trouble::Findings => !app.findings.is_empty(),
        Trouble::Executors => !app.troubled.is_empty(),
        Trouble::Driver => app.is_driver_in_trouble(),
        Trouble::Exits => app.exits.iter().any(|exit| exit.is_abnormal),
        Trouble::Unknown => app.lacking() == Lacking::Unknown || app.unowned > 0,
    }
}

/// Whether a query selects an application; `part` is what is searched, in lower case.
fn matches(app: &AppReport, query: &AppsQuery, part: &str) -> bool {
    let in_it = |text: &str| text.to_lowercase().contains(part);
    (part.is_empty()
        || in_it(&app.app)
        || in_it(&app.name)
        || in_it(&app.namespace)
        || app.driver.pod.as_deref().is_some_and(in_it)
        || app.troubled.iter().any(|executor| in_it(&executor.pod)))
        && (query.namespace.is_empty() || app.namespace == query.namespace)
        && (query.state.is_empty() || app.driver_state() == query.state)
        && has(app, query.trouble)
}

/// All applications that a query selects, in its order.
fn selected<'a>(apps: &'a [AppReport], query: &AppsQuery) -> Vec<&'a AppReport> {
    let part = query.q.trim().to_lowercase();
    let mut all: Vec<&AppReport> = apps.iter().filter(|app| matches(app, query, &part)).collect();
    let executors = |app: &AppReport| app.executors.values().sum::<usize>();
    // They are ordered by namespace and name, and each order below keeps that.
    match query.sort {
        Sort::Trouble => all.sort_by_key(|app| {
            let finding = has(app, Trouble::Findings) || has(app, Trouble::Driver);
            let lacking = app.lacking().count();
            Reverse((lacking > 0, finding, has(app, Trouble::Executors), lacking, app.unowned > 0))
        }),
        Sort::Name => {}
        Sort::Lacks => all.sort_by_key(|app| Reverse(app.lacking().count())),
        Sort::Executors => all.sort_by_key(|app| Reverse(executors(app))),
        Sort::Exits => all.sort_by(|one, other| {
            let last = |app: &AppReport| app.exits.first().map(|exit| exit.at.clone());
            last(other).cmp(&last(one))
        }),
    }
    all
}

/// The applications that a query selects, and those on the page that it asks for.
pub(super) struct Selection<'a> {
    pub(super) shown: Vec<&'a AppReport>,
    count: usize,
    /// How many pages they fill, and which one is shown, from 0.
    pages: usize,
    at: usize,
}

impl<'a> Selection<'a> {
    pub(super) fn of(apps: &'a [AppReport], query: &AppsQuery) -> Selection<'a> {
        let all = selected(apps, query);
        let pages = all.len().div_ceil(ROWS).max(1);
        let at = query.page.saturating_sub(1).min(pages - 1);
        Selection { count: all.len(), pages, at, shown: all.into_iter().skip(at * ROWS).take(ROWS).collect() }
    }
}

/// The search.
pub(super) fn form(apps: &[AppReport], query: &AppsQuery) -> Markup {
    let chosen = Some(query.namespace.as_str()).filter(|name| !name.is_empty());
    let namespaces: BTreeSet<&str> = apps.iter().map(|app| app.namespace.as_str()).chain(chosen).collect();
    let states = ["failed", "gone", "no pods", "pending", "running", "succeeded", "terminating", "unknown"];
    html! {
        form #search method="get" action="./" role="search" {
            label { "Search " input type="search" name="q" value=(harmless(&query.q)) maxlength="253" autocomplete="off" spellcheck="false"; }
            label { "Namespace "
                select name="namespace" {
                    option value="" selected[query.namespace.is_empty()] { "all" }
                    @for name in namespaces { option value=(harmless(name)) selected[query.namespace == name] { (harmless(name)) } }
                }
            }
            label { "Driver "
                select name="state" {
                    option value="" selected[query.state.is_empty()] { "any state" }
                    @for name in states { option value=(name) selected[query.state == name] { (name) } }
                }
            }
            label { "Show "
                select name="trouble" {
                    @for one in Trouble::ALL { option value=(one.as_str()) selected[query.trouble == *one] { (one.text()) } }
                }
            }
            label { "Order "
                select name="sort" {
                    @for one in Sort::ALL { option value=(one.as_str()) selected[query.sort == *one] { (one.text()) } }
                }
            }
            button type="submit" { "Apply" }
        }
    }
}

/// All applications in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Summary {
    apps: usize,
    running: usize,
    short: usize,
    lacking: usize,
    unknown: usize,
    findings: usize,
}

impl Summary {
    pub(super) fn of(apps: &[AppReport]) -> Summary {
        Summary {
            apps: apps.len(),
            running: apps.iter().filter_map(|app| app.executors.get("running")).sum(),
            short: apps.iter().filter(|app| app.shortage.is_some()).count(),
            lacking: apps.iter().map(|app| app.lacking().count()).sum(),
            unknown: apps.iter().filter(|app| has(app, Trouble::Unknown)).count(),
            findings: apps.iter().map(|app| app.findings.len()).sum(),
        }
    }
}

/// The table.
/// `leads`: whether this replica knows what recovery found.
pub(super) fn page(apps: &[AppReport], query: &AppsQuery, leads: bool, now: Timestamp) -> Markup {
    let Selection { shown, count, pages, at } = Selection::of(apps, query);
    let all = Summary::of(apps);
    html! {
        dl.facts {
            div { dt { "Applications" } dd { (all.apps) } }
            div { dt { "Executors running" } dd { (all.running) } }
            div class=[(all.short > 0).then_some("bad")] { dt { "Lack executors" } dd { (all.short) } }
            div { dt { "Executors lacking" } dd { (all.lacking) } }
            @if all.unknown > 0 { div { dt { "Target or driver unknown" } dd { (all.unknown) } } }
            div { dt { "Findings of recovery" } dd { @if leads { (all.findings) } @else { "–" } } }
        }
        @if count == 0 {
            p.empty {
                @if apps.is_empty() { "No Spark application has a pod, and no exit is remembered." }
                @else { "No application matches." }
            }
        } @else {
            table.cards {
                caption { (count) @if count == 1 { " application" } @else { " applications" } @if pages > 1 { ", page " (at + 1) " of " (pages) } }
                (columns(&["Application", "Driver", "Running", "Pending", "Lacks", "Why", "Since", "Last exit"], &["Running", "Pending", "Lacks"]))
                tbody { @for app in shown { (row(app, now)) } }
            }
            @if pages > 1 { (page_links(query, pages, at)) }
        }
    }
}

fn row(app: &AppReport, now: Timestamp) -> Markup {
    let count = |state: &str| app.executors.get(state).copied().unwrap_or_default();
    let started = app.shortage.as_ref().and_then(|shortage| shortage.since.as_deref());
    let first = app.findings.iter().map(|finding| finding.since.as_str()).min();
    html! {
        tr {
            th scope="row" {
                a href=(address(&app.namespace, &app.app)) title=(crate::text::shown(&app.app)) { (text(app.shown_name())) }
                span.quiet { (text(&app.namespace)) }
            }
            td data-name="Driver" { (driver_badge(app)) }
            td.number data-name="Running" { (count("running")) @if let Some(target) = &app.target { " of " @if target.at_least { "≥" } (target.count) } }
            td.number data-name="Pending" { (count("pending")) }
            td.number data-name="Lacks" {
                @match app.lacking() {
                    Lacking::None => span.quiet { "0" },
                    Lacking::Unknown => span.quiet title="How many executors it wants is not known" { "?" },
                    lacking => strong.bad { (lacking.text()) },
                }
            }
            td.why data-name="Why" { (text(&first_line(&app.trouble(), MAX_WHY))) }
            td data-name="Since" { @if let Some(time) = started.or(first) { (since(time, now)) } }
            td data-name="Last exit" { @if let Some(exit) = app.exits.first() { (text(&exit.cause)) " " span.quiet { (since(&exit.at, now)) } } }
        }
    }
}

/// The state of an application's driver.
pub(super) fn driver_badge(app: &AppReport) -> Markup {
    let state = app.driver_state();
    let kind = match state {
        "running" | "alive" => Kind::Good,
        "succeeded" | "no pods" => Kind::Over,
        "gone" if !app.is_driver_in_trouble() => Kind::Over,
        "failed" | "gone" => Kind::Bad,
        _ => Kind::Waiting,
    };
    badge(kind, state)
}

fn page_links(query: &AppsQuery, pages: usize, at: usize) -> Markup {
    let to = |page: usize| {
        let words = [
            ("q", query.q.as_str()),
            ("namespace", &query.namespace),
            ("state", &query.state),
            ("trouble", query.trouble.as_str()),
            ("sort", query.sort.as_str()),
        ];
        let set = words.into_iter().filter(|(_, value)| !value.is_empty());
        let set = set.map(|(name, value)| format!("{name}={}&", encoded(value))).collect::<String>();
        format!("./?{set}page={page}")
    };
    html! {
        nav.pages aria-label="Pages of applications" {
            @if at > 0 { a href=(to(at)) rel="prev" { "Previous" } }
            @if at + 1 < pages { a href=(to(at + 2)) rel="next" { "Next" } }
        }
    }
}
