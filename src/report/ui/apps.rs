//! All applications: those that lack executors first, with the cause, and since when.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::hash::Hash;

use jiff::Timestamp;
use maud::{Markup, html};
use serde::{Deserialize, Deserializer};

use super::layout::{Kind, address, ago, badge, encoded, id, lasting_only, text};
use crate::views::{AppReport, AppStatus, Lacking};
use usher_spark::text::{first_line, harmless, vocabulary};

/// How many applications one page has.
const ROWS: usize = 100;
/// The longest message in a row, in characters.
const MAX_WHY: usize = 240;

/// Which applications are shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct AppsQuery {
    /// A part of the name of the application, of its id, its namespace, its driver or an executor in trouble; ignores case.
    pub q: String,
    /// The namespace; empty for all.
    pub namespace: String,
    /// How they are.
    #[serde(deserialize_with = "word")]
    pub status: Filter,
    #[serde(deserialize_with = "word")]
    pub sort: Order,
    /// From 1.
    #[serde(deserialize_with = "number")]
    pub page: usize,
}

vocabulary! {
    /// Which applications are shown, by how they are.
    Filter {
        /// Its name on the page.
        label: &'static str,
    }
    /// Those that have not ended; with a search all.
    Usual = "" { label: "not ended, or found" };
    /// Those that have not ended.
    Active = "active" { label: "not ended" };
    /// Those with anything wrong.
    Wrong = "wrong" { label: "with anything wrong" };
    /// Those that lack executors.
    Lacks = "lacks" { label: "lack executors" };
    /// Those whose driver failed, or is gone while executors are left.
    Failed = "failed" { label: "driver failed or gone" };
    /// Those with findings of recovery rules.
    Findings = "findings" { label: "with findings" };
    /// Those with abnormal exits.
    Exits = "exits" { label: "with abnormal exits" };
    /// Those of which it is not known how many executors they want, or who their driver is.
    Unknown = "unknown" { label: "target or driver unknown" };
    /// Those that have ended.
    Ended = "ended" { label: "ended" };
    /// All.
    All = "all" { label: "all" };
}

vocabulary! {
    /// What orders applications.
    Sort {
        /// Its name on the page.
        label: &'static str,
    }
    /// What is wrong first.
    Status = "status" { label: "Status" };
    /// Their name.
    Name = "name" { label: "Application" };
    /// Their namespace.
    Namespace = "namespace" { label: "Namespace" };
    /// The number of running executors.
    Executors = "executors" { label: "Executors" };
    /// What is wrong, in words.
    Why = "why" { label: "Why" };
    /// Since when they are as they are, the latest first.
    Since = "since" { label: "Since" };
    /// When they started, the latest first.
    Started = "started" { label: "Started" };
}

impl From<&str> for Filter {
    /// The default for any other word.
    fn from(word: &str) -> Filter {
        Filter::of(word).unwrap_or_default()
    }
}

#[expect(clippy::derivable_impls, reason = "the rows of a vocabulary have no attributes")]
impl Default for Filter {
    fn default() -> Filter {
        Filter::Usual
    }
}

impl From<&str> for Sort {
    /// The default for any other word.
    fn from(word: &str) -> Sort {
        Sort::of(word).unwrap_or_default()
    }
}

#[expect(clippy::derivable_impls, reason = "the rows of a vocabulary have no attributes")]
impl Default for Sort {
    fn default() -> Sort {
        Sort::Status
    }
}

/// The order of applications: a word, or the reverse with `-` before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Order {
    /// What orders them.
    pub by: Sort,
    /// Whether in the reverse order.
    pub reversed: bool,
}

impl From<&str> for Order {
    fn from(word: &str) -> Order {
        match word.strip_prefix('-') {
            Some(word) => Order { by: word.into(), reversed: true },
            None => Order { by: word.into(), reversed: false },
        }
    }
}

impl Order {
    fn word(self) -> String {
        match self {
            Order { by: Sort::Status, reversed: false } => String::new(),
            Order { by, reversed } => format!("{}{}", if reversed { "-" } else { "" }, by.as_str()),
        }
    }

    /// Sorts applications, which are ordered by namespace and id otherwise. Those without a value come last in both directions.
    fn sorted(self, apps: Vec<&AppReport>) -> Vec<&AppReport> {
        let some = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(str::to_owned);
        match self.by {
            Sort::Status => self.by_key(apps, |app| Some(app.urgency())),
            Sort::Name => self.by_key(apps, |app| Some(app.shown_name().to_owned())),
            Sort::Namespace => self.by_key(apps, |app| Some(app.namespace.clone())),
            Sort::Executors => self.by_key(apps, |app| Some(Reverse(app.running()))),
            Sort::Why => self.by_key(apps, |app| some(Some(&app.trouble()))),
            // RFC 3339 in UTC is ordered as text.
            Sort::Since => self.by_key(apps, |app| some(app.since()).map(Reverse)),
            Sort::Started => self.by_key(apps, |app| some(app.started.as_deref()).map(Reverse)),
        }
    }

    fn by_key<K: Ord>(self, apps: Vec<&AppReport>, key: impl Fn(&AppReport) -> Option<K>) -> Vec<&AppReport> {
        let mut keyed: Vec<(Option<K>, &AppReport)> = apps.into_iter().map(|app| (key(app), app)).collect();
        keyed.sort_by(|(one, _), (other, _)| match (one, other) {
            (Some(one), Some(other)) if self.reversed => other.cmp(one),
            (Some(one), Some(other)) => one.cmp(other),
            (one, other) => one.is_none().cmp(&other.is_none()),
        });
        keyed.into_iter().map(|(_, app)| app).collect()
    }

    /// As `aria-sort` says it: numbers and times begin with the largest and the latest.
    fn direction(self) -> &'static str {
        let falls = matches!(self.by, Sort::Executors | Sort::Since | Sort::Started);
        if falls == self.reversed { "ascending" } else { "descending" }
    }
}

/// A word of a query: a value that is not known means the default.
fn word<'de, D: Deserializer<'de>, T: for<'a> From<&'a str>>(deserializer: D) -> Result<T, D::Error> {
    Ok(T::from(String::deserialize(deserializer)?.as_str()))
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    Ok(String::deserialize(deserializer)?.parse().unwrap_or_default())
}

fn has(app: &AppReport, filter: Filter) -> bool {
    match filter {
        Filter::All => true,
        Filter::Usual | Filter::Active => app.status() != AppStatus::Ended,
        Filter::Ended => app.status() == AppStatus::Ended,
        Filter::Wrong => app.status() <= AppStatus::Trouble,
        Filter::Lacks => app.shortage.is_some(),
        Filter::Failed => app.is_driver_in_trouble(),
        Filter::Findings => !app.findings.is_empty(),
        Filter::Exits => app.exits.iter().any(|exit| exit.is_abnormal),
        Filter::Unknown => app.lacking() == Lacking::Unknown || app.unowned > 0 || app.status() == AppStatus::Unknown,
    }
}

/// Whether a query selects an application, however it is; `part` is what is searched, in lower case.
fn matches(app: &AppReport, query: &AppsQuery, part: &str) -> bool {
    let in_it = |text: &str| text.to_lowercase().contains(part);
    (part.is_empty()
        || in_it(&app.app)
        || in_it(&app.name)
        || in_it(&app.namespace)
        || app.driver.pod.as_deref().is_some_and(in_it)
        || app.troubled.iter().any(|executor| in_it(&executor.pod)))
        && (query.namespace.is_empty() || app.namespace == query.namespace)
}

/// The applications that a query selects, and those on the page that it asks for.
pub(super) struct Selection<'a> {
    pub(super) shown: Vec<&'a AppReport>,
    /// All that match the search and the namespace, however they are.
    summary: Summary,
    count: usize,
    /// How many pages they fill, and which one is shown, from 0.
    pages: usize,
    at: usize,
    /// How many are folded away because they have ended.
    folded: usize,
}

impl<'a> Selection<'a> {
    pub(super) fn of(apps: &'a [AppReport], query: &AppsQuery) -> Selection<'a> {
        let part = query.q.trim().to_lowercase();
        let matching: Vec<&AppReport> = apps.iter().filter(|app| matches(app, query, &part)).collect();
        let summary = Summary::of(&matching);
        // A search also finds applications that have ended.
        let filter = if part.is_empty() || query.status != Filter::Usual { query.status } else { Filter::All };
        let (all, others): (Vec<&AppReport>, Vec<_>) = matching.into_iter().partition(|app| has(app, filter));
        let all = query.sort.sorted(all);
        let pages = all.len().div_ceil(ROWS).max(1);
        let at = query.page.saturating_sub(1).min(pages - 1);
        Selection {
            summary,
            count: all.len(),
            pages,
            at,
            shown: all.into_iter().skip(at * ROWS).take(ROWS).collect(),
            folded: if filter == Filter::Usual { others.len() } else { 0 },
        }
    }

    /// What is shown, apart from the rows.
    pub(super) fn numbers(&self) -> impl Hash + use<> {
        (self.summary, self.count, self.folded)
    }
}

/// The search.
pub(super) fn form(apps: &[AppReport], query: &AppsQuery) -> Markup {
    let chosen = Some(query.namespace.as_str()).filter(|name| !name.is_empty());
    let namespaces: BTreeSet<&str> = apps.iter().map(|app| app.namespace.as_str()).chain(chosen).collect();
    html! {
        form #search method="get" action="./" role="search" {
            label { span { "Search" } input type="search" name="q" value=(harmless(&query.q)) maxlength="253" placeholder="Name, id or pod" autocomplete="off" spellcheck="false"; }
            label { span { "Namespace" }
                select name="namespace" {
                    option value="" selected[query.namespace.is_empty()] { "all" }
                    @for name in namespaces { option value=(harmless(name)) selected[query.namespace == name] { (harmless(name)) } }
                }
            }
            label { span { "Show" }
                select name="status" {
                    @for one in Filter::ALL { option value=(one.as_str()) selected[query.status == one] { (one.label()) } }
                }
            }
            // Where there is no head of the table: on a phone.
            label.order { span { "Order" }
                select name="sort" {
                    @for by in Sort::ALL { @for reversed in [false, true] {
                        @let order = Order { by, reversed };
                        @if !reversed || order == query.sort { option value=(order.word()) selected[order == query.sort] { (by.label()) @if reversed { ", reversed" } } }
                    } }
                }
            }
            noscript { button type="submit" { "Apply" } }
        }
    }
}

/// All applications in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Summary {
    active: usize,
    running: usize,
    short: usize,
    lacking: usize,
    failed: usize,
    unknown: usize,
    findings: usize,
    ended: usize,
}

impl Summary {
    fn of(apps: &[&AppReport]) -> Summary {
        let count = |filter| apps.iter().filter(|app| has(app, filter)).count();
        Summary {
            active: count(Filter::Active),
            running: apps.iter().map(|app| app.running()).sum(),
            short: count(Filter::Lacks),
            lacking: apps.iter().map(|app| app.lacking().count()).sum(),
            failed: count(Filter::Failed),
            unknown: count(Filter::Unknown),
            findings: count(Filter::Findings),
            ended: count(Filter::Ended),
        }
    }
}

/// The numbers, each a link to the applications that it counts. `leads`: whether this replica knows what recovery found.
fn tiles(all: &Summary, query: &AppsQuery, leads: bool) -> Markup {
    let executors = match all.lacking {
        0 => format!("{}", all.running),
        lacking => format!("{}, {lacking} lacking", all.running),
    };
    let number = |count: usize| count.to_string();
    let findings = if leads { number(all.findings) } else { "–".to_owned() };
    let tiles = [
        (Filter::Usual, "Applications", number(all.active), false),
        (Filter::Lacks, "Lack executors", number(all.short), all.short > 0),
        (Filter::Failed, "Failed", number(all.failed), all.failed > 0),
        (Filter::Findings, "With findings", findings, false),
        (Filter::Unknown, "Unknown", number(all.unknown), false),
        (Filter::Ended, "Ended", number(all.ended), false),
    ];
    html! {
        ul.tiles {
            @for (filter, name, count, bad) in tiles {
                li { a.bad[bad] href=(link(&AppsQuery { status: filter, page: 0, ..query.clone() })) aria-current=[(query.status == filter).then_some("true")] { span { (name) } " " strong { (count) } } }
            }
            li { span { "Executors run" } " " strong { (executors) } }
        }
    }
}

/// The table. `leads`: whether this replica knows what recovery found.
pub(super) fn page(apps: &[AppReport], query: &AppsQuery, leads: bool, now: Timestamp) -> Markup {
    let Selection { shown, summary, count, pages, at, folded } = Selection::of(apps, query);
    html! {
        (tiles(&summary, query, leads))
        @if count == 0 {
            p.empty {
                @if apps.is_empty() { "No Spark application has a pod, and no exit is remembered." }
                @else { "No application matches." }
            }
        } @else {
            table.apps {
                caption { (count) @if count == 1 { " application" } @else { " applications" } @if pages > 1 { ", page " (at + 1) " of " (pages) } }
                (head(query))
                tbody { @for app in shown { (row(app, now)) } }
            }
            @if pages > 1 { (page_links(query, pages, at)) }
        }
        @if folded > 0 {
            p.folded { a href=(link(&AppsQuery { status: Filter::Ended, page: 0, ..query.clone() })) {
                (folded) @if folded == 1 { " application that has ended" } @else { " applications that have ended" }
            } }
        }
    }
}

/// The head of the table: a column sorts, and once more reverses the order.
fn head(query: &AppsQuery) -> Markup {
    let columns = [Sort::Name, Sort::Namespace, Sort::Status, Sort::Executors, Sort::Why, Sort::Since, Sort::Started];
    html! {
        thead { tr {
            @for by in columns {
                @let is_current = query.sort.by == by;
                @let next = Order { by, reversed: is_current && !query.sort.reversed };
                th scope="col" class={ "col-" (by.as_str()) } aria-sort=[is_current.then_some(query.sort.direction())] {
                    a href=(link(&AppsQuery { sort: next, page: 0, ..query.clone() })) { (by.label()) }
                }
            }
        } }
    }
}

fn row(app: &AppReport, now: Timestamp) -> Markup {
    let status = app.status();
    let (trouble, remark) = (app.trouble(), app.remark());
    html! {
        tr {
            th scope="row" {
                a href=(address(&app.namespace, &app.app)) title=(usher_spark::text::shown(&app.app)) { (text(app.shown_name())) }
                " " (id(&app.app))
            }
            td.col-namespace data-name="in" { (text(&app.namespace)) }
            td.col-status { (status_badge(app)) }
            td.col-executors data-name="executors" {
                @match app.lacking() {
                    Lacking::Unknown => span title="How many executors it wants is not known" { (app.running_text()) },
                    _ if status == AppStatus::Ended => span.quiet { (app.running_text()) },
                    _ => (app.running_text()),
                }
            }
            td.col-why {
                @if trouble.is_empty() { @if !remark.is_empty() { span.quiet { (text(&first_line(&remark, MAX_WHY))) } } }
                @else { (text(&first_line(&trouble, MAX_WHY))) }
            }
            td.col-since { @if let Some(time) = app.since() { @if status == AppStatus::Ended || status == AppStatus::Failed { (ago(time, now)) } @else { (lasting_only(time, now)) } } }
            td.col-started { @if let Some(time) = &app.started { (ago(time, now)) } }
        }
    }
}

/// How an application is.
pub(super) fn status_badge(app: &AppReport) -> Markup {
    let kind = match app.status() {
        AppStatus::Lacks | AppStatus::Failed | AppStatus::LeftOver => Kind::Bad,
        AppStatus::Trouble | AppStatus::Unknown | AppStatus::Starting => Kind::Waiting,
        AppStatus::Running | AppStatus::Ok => Kind::Good,
        AppStatus::Ending | AppStatus::Ended => Kind::Over,
    };
    badge(kind, &app.status_text())
}

/// The address of the applications that a query selects.
fn link(query: &AppsQuery) -> String {
    let sort = query.sort.word();
    let page = if query.page > 0 { query.page.to_string() } else { String::new() };
    let words = [
        ("q", query.q.as_str()),
        ("namespace", &query.namespace),
        ("status", query.status.as_str()),
        ("sort", &sort),
        ("page", &page),
    ];
    let set = words.into_iter().filter(|(_, value)| !value.is_empty());
    let set = set.map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&");
    if set.is_empty() { "./".to_owned() } else { format!("./?{set}") }
}

fn page_links(query: &AppsQuery, pages: usize, at: usize) -> Markup {
    let to = |page: usize| link(&AppsQuery { page, ..query.clone() });
    html! {
        nav.pages aria-label="Pages of applications" {
            @if at > 0 { a href=(to(at)) rel="prev" { "Previous" } }
            @if at + 1 < pages { a href=(to(at + 2)) rel="next" { "Next" } }
        }
    }
}
