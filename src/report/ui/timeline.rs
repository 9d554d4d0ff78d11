//! The lives of an application's executors, each a bar on one scale of time.

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{Kind, ago, badge, duration, text};
use super::words;
use crate::views::{Lifetime, LifetimeSpan, Scale, Timeline, cause_groups};
use usher_core::lifecycle::cause_group::CauseGroup;
use usher_spark::text::harmless;

/// The ranges of time that can be chosen: their words, and their lengths in seconds.
pub(super) const RANGES: [(&str, i64); 4] = [("10m", 600), ("1h", 3600), ("6h", 21_600), ("24h", 86_400)];

/// The length of a range in seconds; `None` for any other word, which means everything.
pub(super) fn range(word: &str) -> Option<i64> {
    RANGES.iter().find(|(name, _)| *name == word).map(|(_, seconds)| *seconds)
}

/// The table of executors, of the last `within` seconds.
pub(super) fn timeline(timeline: &Timeline, within: Option<i64>, now: Timestamp) -> Markup {
    let Some(Scale { lifetimes, begin, end }) = timeline.scale(now, within) else {
        return match within {
            Some(_) => html! { p.empty { "No executor existed in this range of time." } },
            None => html! { p.empty { "No executor has a pod, and no exit is remembered." } },
        };
    };
    // In per cent of the width.
    let x = |at: i64| (at - begin) as f64 * 100.0 / (end - begin) as f64;
    let since = |at: i64| match now.as_second() - at {
        0 => "now".to_owned(),
        seconds => format!("{} ago", duration(seconds)),
    };
    html! {
        p.legend {
            span { svg.bar aria-hidden="true" { rect.pending x="0" y="4" width="40" height="4" {} } " requested or pending" }
            span { svg.bar aria-hidden="true" { (filled(None, 0.0, 100.0)) } " running" }
            @for group in cause_groups(lifetimes.iter().map(|(lifetime, _)| *lifetime)) {
                span { svg.bar aria-hidden="true" { (filled(Some(group), 0.0, 100.0)) } " " (group.legend()) }
            }
        }
        (patterns())
        table.lives {
            caption { (lifetimes.len()) " executors" @if timeline.omitted > 0 { "; " (timeline.omitted) " others are not shown" } }
            thead {
                tr {
                    th scope="col" { "Executor" }
                    th scope="col" { "State" }
                    th scope="col" { "Life " span.axis { span { (since(begin)) } span { (since(begin + (end - begin) / 2)) } span { (since(end)) } } }
                }
            }
            tbody {
                @for (lifetime, span) in lifetimes.iter().rev() {
                    tr {
                        th scope="row" title=(harmless(&lifetime.pod)) { @if let Some(id) = lifetime.id { (id) } @else { (text(&lifetime.pod)) } }
                        td { (state(lifetime)) " " (last_change(lifetime, now)) }
                        td.life { (bar(lifetime, span, x)) }
                    }
                }
            }
        }
    }
}

/// When it exited, started or was created.
fn last_change(lifetime: &Lifetime, now: Timestamp) -> Markup {
    let time = lifetime.ended.as_ref().or(lifetime.started.as_ref()).unwrap_or(&lifetime.created);
    html! { span.quiet { (ago(time, now)) } }
}

fn state(lifetime: &Lifetime) -> Markup {
    let kind = match (&lifetime.ended, lifetime.state.as_str()) {
        (Some(_), _) if lifetime.abnormal => Kind::Bad,
        (Some(_), _) => Kind::Over,
        (None, "running") => Kind::Good,
        (None, "succeeded" | "deleted") => Kind::Over,
        (None, "unknown" | "failed") => Kind::Bad,
        (None, _) => Kind::Waiting,
    };
    badge(kind, lifetime.cause.as_deref().map_or(&lifetime.state, words::cause))
}

/// The narrowest bar of an executor that ran, in pixels: its color and pattern can be seen.
const MIN_WIDTH: i64 = 8;

/// The time that an executor ran, in per cent, with the color and the pattern of its cause's group; `None` if it still runs.
fn filled(group: Option<CauseGroup>, x: f64, width: f64) -> Markup {
    let class = group.map_or("running", CauseGroup::as_str);
    let (x, width) = (percent(x), percent(width));
    html! {
        @for width in [MIN_WIDTH.to_string(), width] {
            rect class=(class) x=(x) y="1" width=(width) height="10" {}
            @if group.and_then(pattern).is_some() {
                rect class={ "pattern " (class) } x=(x) y="1" width=(width) height="10" {}
            }
        }
    }
}

fn percent(value: f64) -> String {
    format!("{value:.2}%")
}

/// The lines over the color of a group, in a square of 10 pixels that is repeated. Each group has lines of its own, so that no meaning
/// depends on the color alone; executors that exited as expected are pale instead.
fn pattern(group: CauseGroup) -> Option<&'static str> {
    match group {
        CauseGroup::Expected => None,
        CauseGroup::Application => Some("M0 10L10 0M0 0L10 10"),
        CauseGroup::Memory => Some("M0 3H10M0 7H10"),
        CauseGroup::Cluster => Some("M2 0V10M7 0V10"),
        CauseGroup::Unexplained => Some("M0 10L10 0"),
    }
}

/// The definitions that the style sheet refers to.
fn patterns() -> Markup {
    html! {
        svg.patterns width="0" height="0" aria-hidden="true" {
            defs {
                @for group in CauseGroup::ALL {
                    @if let Some(lines) = pattern(group) {
                        pattern id={ "pattern-" (group.as_str()) } width="10" height="10" patternUnits="userSpaceOnUse" { path d=(lines) {} }
                    }
                }
            }
        }
    }
}

fn bar(lifetime: &Lifetime, span: &LifetimeSpan, x: impl Fn(i64) -> f64) -> Markup {
    let (from, to) = (x(span.created), x(span.end));
    let started = span.started.map_or(to, &x);
    let words = words(lifetime);
    html! {
        svg role="img" aria-label=(words) {
            title { (words) }
            @if started > from || span.started.is_none() {
                rect.pending x=(percent(from)) y="4" width=(percent(started - from)) height="4" {}
                @if span.started.is_none() { rect.pending x=(percent(from)) y="4" width="3" height="4" {} }
            }
            @if span.started.is_some() { (filled(lifetime.cause_group(), started, to - started)) }
        }
    }
}

/// The times of a life.
fn words(lifetime: &Lifetime) -> String {
    let mut words = format!("created {}", harmless(&lifetime.created));
    for (what, time) in [("started", &lifetime.started), ("ended", &lifetime.ended)] {
        if let Some(time) = time {
            words.push_str(&format!(", {what} {}", harmless(time)));
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn style_sheet_has_the_color_and_the_pattern_of_each_group_of_causes() {
        for group in CauseGroup::ALL {
            let name = group.as_str();
            assert!(crate::ui::STYLE.contains(&format!("\n.{name} {{ fill: var(--bar-")), "{name}");
            let reference = format!("\n.pattern.{name} {{ fill: url(\"#pattern-{name}\");");
            assert_eq!(crate::ui::STYLE.contains(&reference), pattern(group).is_some(), "{name}");
            assert_eq!(patterns().0.contains(&format!("id=\"pattern-{name}\"")), pattern(group).is_some(), "{name}");
        }
    }
}
