//! What every page has: the head, the navigation, and how texts and times are shown.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

use usher_spark::text::{harmless, squeezed};
use usher_spark::time::in_unit;

/// Addresses are relative, so that the pages work below any path, such as that of a proxy.
pub(super) const APPS: &str = "./";
pub(super) const NODES: &str = "nodes";
pub(super) const COST: &str = "cost";
pub(super) const REPLICA: &str = "replica";
const PLACES: [(&str, &str); 4] = [(APPS, "Applications"), (NODES, "Nodes"), (COST, "Cost"), (REPLICA, "Replica")];

/// A document. `form` stays as it is while the content is updated.
pub(super) fn document(title: String, place: &str, form: Option<Markup>, content: PreEscaped<&str>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · spark-usher" }
                link rel="stylesheet" href="style.css";
                link rel="icon" href="icon.svg" type="image/svg+xml";
                script src="live.js" defer {}
            }
            body {
                a.skip href="#content" { "Skip to content" }
                header {
                    span.brand { "spark-usher" }
                    nav aria-label="Pages" {
                        @for (address, name) in PLACES {
                            a href=(address) aria-current=[(address == place).then_some("page")] { (name) }
                        }
                    }
                    p #connection { "Reload for newer data" }
                    button #pause type="button" hidden { "Pause" }
                }
                p #stale role="status" {}
                p #found.hidden role="status" {}
                main #content tabindex="-1" class=[form.as_ref().map(|_| "list")] {
                    h1 { (text(&title)) }
                    @if let Some(form) = form { (form) }
                    div #live { (content) }
                }
            }
        }
    }
}

/// A text that a tenant may have written. An empty one is nothing, so that its cell is empty.
pub(super) fn text(text: &str) -> Markup {
    html! { @if !text.is_empty() { bdi { (harmless(text)) } } }
}

/// How long ago a time of a report is, and the time.
pub(super) fn since(time: &str, now: Timestamp) -> Markup {
    html! { (ago(time, now)) (at(time, now)) }
}

/// How long something has lasted that began at a time of a report, and the time.
pub(super) fn lasting(time: &str, now: Timestamp) -> Markup {
    html! { (lasting_only(time, now)) (at(time, now)) }
}

/// How long ago a time of a report is: `80 s ago`; the script keeps it up to date.
pub(super) fn ago(time: &str, now: Timestamp) -> Markup {
    age(time, now, ("", " ago"))
}

/// How long something has lasted: `for 80 s`; the script keeps it up to date.
pub(super) fn lasting_only(time: &str, now: Timestamp) -> Markup {
    age(time, now, ("for ", ""))
}

fn age(time: &str, now: Timestamp, (before, after): (&str, &str)) -> Markup {
    let age = time.parse::<Timestamp>().ok().map(|at| now.duration_since(at).as_secs().max(0));
    let time = harmless(time);
    let words = age.map_or_else(
        || time.clone(),
        |age| {
            if age < NOW { "now".to_owned() } else { format!("{before}{}{after}", duration(age)) }
        },
    );
    html! { time datetime=(time) title=(time) data-age=[age] data-before=[Some(before).filter(|text| !text.is_empty())] { (words) } }
}

/// What happened less than so many seconds ago happens now.
const NOW: i64 = 5;

/// A duration in its largest unit of which it has at least 2: `3 min`. The script does the same.
pub(super) fn duration(seconds: i64) -> String {
    let (number, unit) = in_unit(seconds);
    format!("{number} {}", if unit == "m" { "min" } else { unit })
}

fn at(time: &str, now: Timestamp) -> Markup {
    html! { @if let Ok(at) = time.parse::<Timestamp>() { " " span.at { (clock(at, now)) } } }
}

/// A time of day in UTC, with the date unless that is today's.
fn clock(at: Timestamp, now: Timestamp) -> String {
    let (at, now) = (at.to_zoned(TimeZone::UTC), now.to_zoned(TimeZone::UTC));
    at.strftime(if at.date() == now.date() { "%H:%M:%SZ" } else { "%Y-%m-%d %H:%M:%SZ" }).to_string()
}

/// The head of a table. Those columns that are `numbers` too end at the same place.
pub(super) fn columns(names: &[&str], numbers: &[&str]) -> Markup {
    html! {
        thead { tr { @for name in names { th scope="col" class=[numbers.contains(name).then_some("number")] { (name) } } } }
    }
}

/// A text, or what is shown of it, with a button that copies it. Without the script there is no button.
pub(super) fn copied(text: &str, shown: &str) -> Markup {
    let text = harmless(text);
    html! {
        code title=(text) { (self::text(shown)) }
        button.copy type="button" data-copy=(text) title={ "Copy " (text) } aria-label={ "Copy " (text) } { "copy" }
    }
}

/// The id of an application: small, shortened in its middle, and copied with one click.
pub(super) fn id(app: &str) -> Markup {
    html! { span.id { (copied(app, &squeezed(app, MAX_ID))) } }
}

/// At most so many characters of an id are shown.
const MAX_ID: usize = 16;

/// The address of an application's page.
pub(super) fn address(namespace: &str, app: &str) -> String {
    format!("app?namespace={}&name={}", encoded(namespace), encoded(app))
}

/// A value in the query of an address.
pub(super) fn encoded(text: &str) -> PercentEncode<'_> {
    /// All but the unreserved characters (RFC 3986, section 2.3).
    const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
    utf8_percent_encode(text, RESERVED)
}

/// A word after a mark. Each kind has a mark of its own, so that no meaning depends on the color alone.
pub(super) fn badge(kind: Kind, word: &str) -> Markup {
    let (class, mark) = match kind {
        Kind::Good => ("good", "●"),
        Kind::Waiting => ("waiting", "◐"),
        Kind::Bad => ("bad", "✕"),
        Kind::Over => ("over", "■"),
    };
    html! { span class={ "badge " (class) } { span.mark aria-hidden="true" { (mark) } " " (text(word)) } }
}

/// What a badge says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It works.
    Good,
    /// It is not there yet.
    Waiting,
    /// It is broken.
    Bad,
    /// It has ended as it should.
    Over,
}
