//! What executors cost that did no work, and what recovery gave back.

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{address, since, text};
use super::words;
use crate::views::{CostReport, CostRow, core_hours, gib_hours};

/// At most this many applications are listed.
const MAX_APPS: usize = 100;

pub(super) fn page(report: &CostReport, now: Timestamp) -> Markup {
    let is_empty = report.namespaces.is_empty() && report.given_back.is_empty();
    // What would be shown as 0.00 hides what costs something.
    let is_shown = |row: &CostRow| core_hours(row.core_seconds) != "0.00" || gib_hours(row.byte_seconds) != "0.00";
    let by_cores = |rows: &[CostRow]| {
        let mut rows: Vec<CostRow> = rows.iter().filter(|row| is_shown(row)).cloned().collect();
        rows.sort_by(|one, other| other.core_seconds.total_cmp(&one.core_seconds));
        rows
    };
    let cores = |rows: &[CostRow]| core_hours(rows.iter().map(|row| row.core_seconds).sum());
    let mut apps = by_cores(&report.applications);
    let left = apps.len().saturating_sub(MAX_APPS);
    apps.truncate(MAX_APPS);
    html! {
        @if is_empty {
            p.empty { "Nothing is measured: this replica has observed no executor without work while it led." }
        } @else {
            @if let Some(time) = &report.since { p { "Requested by executors that did no work, measured since " (since(time, now)) "." } }
            dl.facts {
                div { dt { "Core hours without work" } dd { (cores(&report.namespaces)) } }
                div { dt { "Core hours given back" } dd { (cores(&report.given_back)) } }
            }
            (table("By namespace and cause", "Cause", &by_cores(&report.namespaces)))
            (table("By application and cause", "Cause", &apps))
            @if left > 0 { p.quiet { (left) " more applications are not shown." } }
            p.quiet { "What costs less than 0.01 core hours and GiB hours is not listed." }
            (table("Given back by recovery rules, at most an hour for each deleted executor", "Rule", &by_cores(&report.given_back)))
        }
    }
}

fn table(caption: &str, cause: &str, rows: &[CostRow]) -> Markup {
    let has_apps = rows.iter().any(|row| row.app.is_some());
    html! {
        @if !rows.is_empty() {
            table.cards {
                caption { (caption) }
                thead {
                    tr {
                        @if has_apps { th scope="col" { "Application" } }
                        th scope="col" { "Namespace" }
                        th scope="col" { (cause) }
                        th.number scope="col" { "Core hours" }
                        th.number scope="col" { "GiB hours" }
                    }
                }
                tbody {
                    @for row in rows {
                        tr {
                            @if let Some(app) = &row.app {
                                th scope="row" { a href=(address(&row.namespace, app)) title=(usher_spark::text::shown(app)) { (text(row.name.as_deref().unwrap_or(app))) } }
                                td data-name="Namespace" { (text(&row.namespace)) }
                            } @else {
                                th scope="row" { (text(&row.namespace)) }
                            }
                            td data-name=(cause) { (words::waste(&row.cause)) }
                            td.number data-name="Core hours" { (core_hours(row.core_seconds)) }
                            td.number data-name="GiB hours" { (gib_hours(row.byte_seconds)) }
                        }
                    }
                }
            }
        }
    }
}
