//! The lives of an application's executors, each a bar on one scale of time.

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{Kind, badge, columns, text};
use crate::lifecycle::cause_group::CauseGroup;
use crate::text::harmless;
use crate::views::{Life, LifeSpan, Timeline, age};

/// Width of the scale in units of the drawing.
const WIDTH: i64 = 1000;

/// The table of executors.
pub(super) fn timeline(timeline: &Timeline, now: Timestamp) -> Markup {
    let lives: Vec<(&Life, LifeSpan)> =
        timeline.executors.iter().filter_map(|life| Some((life, life.span(now)?))).collect();
    let begin = lives.iter().map(|(_, span)| span.created).min().unwrap_or_default();
    let end = lives.iter().map(|(_, span)| span.end).max().unwrap_or(begin).max(begin + 1);
    let x = |at: i64| (at - begin) * WIDTH / (end - begin);
    let since = |at: i64| age(now.as_second() - at);
    html! {
        @if lives.is_empty() {
            p.empty { "No executor has a pod, and no exit is remembered." }
        } @else {
            p.legend {
                span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { rect.pending x="0" y="3" width="40" height="4" {} } " requested or pending" }
                span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { rect.running x="0" y="0" width="40" height="10" {} } " running" }
                @for group in CauseGroup::ALL {
                    span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { (filled(group.as_str(), 0, 40)) } " " (group.text()) }
                }
            }
            (patterns())
            table.lives {
                caption { "From " (since(begin)) " to " (since(end)) " ago" @if timeline.omitted > 0 { "; " (timeline.omitted) " earlier ones are not shown" } }
                (columns(&["Executor", "State", "Life"], &[]))
                tbody {
                    @for (life, span) in lives.iter().rev() {
                        tr {
                            th scope="row" title=(harmless(&life.pod)) { @if let Some(id) = life.id { (id) } @else { (text(&life.pod)) } }
                            td { (state(life)) }
                            td.life { (bar(life, span, x)) }
                        }
                    }
                }
            }
        }
    }
}

fn state(life: &Life) -> Markup {
    let kind = match (&life.ended, life.state.as_str()) {
        (Some(_), _) if life.abnormal => Kind::Bad,
        (Some(_), _) => Kind::Over,
        (None, "running") => Kind::Good,
        (None, "unknown" | "failed") => Kind::Bad,
        (None, _) => Kind::Waiting,
    };
    badge(kind, life.cause.as_deref().unwrap_or(&life.state))
}

/// A part of a bar in the colour and the pattern of a class.
fn filled(class: &str, x: i64, width: i64) -> Markup {
    html! {
        rect class=(class) x=(x) y="0" width=(width) height="10" {}
        @if PATTERNS.iter().any(|(name, _)| *name == class) {
            rect class={ "pattern " (class) } x=(x) y="0" width=(width) height="10" {}
        }
    }
}

/// What is drawn over a bar's colour, so that groups of causes are told apart without it: lines in a square of 10 units, which is
/// repeated. Bars are stretched in width, so each pattern has another direction.
const PATTERNS: [(&str, &str); 3] =
    [("memory", "M0 3H10M0 7H10"), ("cluster", "M3 0V10"), ("unexplained", "M0 10L10 0")];

fn patterns() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs {
                @for (name, lines) in PATTERNS {
                    pattern id={ "pattern-" (name) } width="10" height="10" patternUnits="userSpaceOnUse" { path d=(lines) {} }
                }
            }
        }
    }
}

fn bar(life: &Life, span: &LifeSpan, x: impl Fn(i64) -> i64) -> Markup {
    let (from, to) = (x(span.created), x(span.end));
    let started = span.started.map_or(to, &x);
    let class = life.cause_group().map_or("running", CauseGroup::as_str);
    let seconds = |from: i64, to: i64| format!("{} s", (to - from).max(0));
    let words = match span.started {
        Some(started) => format!("pending {}, ran {}", seconds(span.created, started), seconds(started, span.end)),
        None => format!("pending {}", seconds(span.created, span.end)),
    };
    html! {
        svg viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label=(words) {
            title { (words) }
            rect.pending x=(from) y="3" width=((started - from).max(if span.started.is_some() { 0 } else { 3 })) height="4" {}
            @if span.started.is_some() { (filled(class, started, (to - started).max(3))) }
            @if life.ended.is_some() { rect.end x=(to.min(WIDTH - 3)) y="0" width="3" height="10" {} }
        }
    }
}
