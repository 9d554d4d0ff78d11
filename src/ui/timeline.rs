//! The lives of an application's executors, each a bar on one scale of time.

use jiff::Timestamp;
use maud::{Markup, html};

use super::layout::{Kind, badge, columns, text};
use crate::lifecycle::cause_group::CauseGroup;
use crate::text::harmless;
use crate::views::{Life, LifeSpan, Scale, Timeline, age, cause_groups};

/// Width of the scale in units of the drawing.
const WIDTH: i64 = 1000;

/// The table of executors.
pub(super) fn timeline(timeline: &Timeline, now: Timestamp) -> Markup {
    let Some(Scale { lives, begin, end }) = timeline.scale(now) else {
        return html! { p.empty { "No executor has a pod, and no exit is remembered." } };
    };
    let x = |at: i64| (at - begin) * WIDTH / (end - begin);
    let since = |at: i64| age(now.as_second() - at);
    html! {
        p.legend {
            span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { rect.pending x="0" y="3" width="40" height="4" {} } " requested or pending" }
            span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { (filled(None, 0, 40)) } " running" }
            @for group in cause_groups(lives.iter().map(|(life, _)| *life)) {
                span { svg.bar viewBox="0 0 40 10" aria-hidden="true" { (filled(Some(group), 0, 40)) } " " (group.text()) }
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

/// The time that an executor ran, with the color and the pattern of its cause's group; `None` if it still runs.
fn filled(group: Option<CauseGroup>, x: i64, width: i64) -> Markup {
    let class = group.map_or("running", CauseGroup::as_str);
    html! {
        rect class=(class) x=(x) y="0" width=(width) height="10" {}
        @if group.and_then(pattern).is_some() {
            rect class={ "pattern " (class) } x=(x) y="0" width=(width) height="10" {}
        }
    }
}

/// The lines over the color of a group, in a square of 10 units that is repeated. Bars are stretched in width, so patterns differ in
/// direction. A bar without a pattern differs by the mark of its state, which stands beside it.
fn pattern(group: CauseGroup) -> Option<&'static str> {
    match group {
        CauseGroup::Expected | CauseGroup::Application => None,
        CauseGroup::Memory => Some("M0 3H10M0 7H10"),
        CauseGroup::Cluster => Some("M3 0V10"),
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

fn bar(life: &Life, span: &LifeSpan, x: impl Fn(i64) -> i64) -> Markup {
    let (from, to) = (x(span.created), x(span.end));
    let started = span.started.map_or(to, &x);
    let seconds = |from: i64, to: i64| format!("{} s", (to - from).max(0));
    let words = match span.started {
        Some(started) => format!("pending {}, ran {}", seconds(span.created, started), seconds(started, span.end)),
        None => format!("pending {}", seconds(span.created, span.end)),
    };
    html! {
        svg viewBox={ "0 0 " (WIDTH) " 10" } preserveAspectRatio="none" role="img" aria-label=(words) {
            title { (words) }
            rect.pending x=(from) y="3" width=((started - from).max(if span.started.is_some() { 0 } else { 3 })) height="4" {}
            @if span.started.is_some() { (filled(life.cause_group(), started, (to - started).max(3))) }
            @if life.ended.is_some() { rect.end x=(to.min(WIDTH - 3)) y="0" width="3" height="10" {} }
        }
    }
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
