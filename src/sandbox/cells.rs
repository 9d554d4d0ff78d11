//! The values of a table's cells, as kubectl prints them.

use jiff::Timestamp;
use serde_json::{Value, json};

use usher_spark::json::{at, text};

/// A time difference, as kubectl writes it (`duration.HumanDuration`).
pub(super) fn age(since: &str, now: Timestamp) -> String {
    let Ok(since) = since.parse::<Timestamp>() else { return "<unknown>".to_owned() };
    let seconds = now.as_second() - since.as_second();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1..=0 => "0s".to_owned(),
        1..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{minutes}m{}s", seconds % 60),
        120..10_800 => format!("{minutes}m"),
        10_800..28_800 if minutes % 60 != 0 => format!("{hours}h{}m", minutes % 60),
        10_800..172_800 => format!("{hours}h"),
        172_800..691_200 if hours % 24 != 0 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

pub(super) fn object_age(object: &Value, now: Timestamp) -> String {
    age(text(object, &["metadata", "creationTimestamp"]), now)
}

pub(super) fn cell(value: Option<&Value>) -> Value {
    match value {
        None | Some(Value::Null) => json!("<none>"),
        Some(Value::Array(list)) => json!(list.iter().map(plain).collect::<Vec<_>>().join(",")),
        Some(value @ Value::Object(_)) => json!(value.to_string()),
        Some(value) => value.clone(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The value of `additionalPrinterColumns[].jsonPath`: fields, indices and `[?(@.a=="b")]`.
pub(super) fn json_path<'v>(object: &'v Value, path: &str) -> Option<&'v Value> {
    let mut here = object;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = after.split_once(']')?;
            here = match inside.strip_prefix("?(@.").and_then(|filter| filter.strip_suffix(')')) {
                Some(filter) => {
                    let (field, wanted) = filter.split_once("==")?;
                    let wanted = wanted.trim_matches(['"', '\'', ' ']);
                    here.as_array()?.iter().find(|item| text(item, &[field.trim()]) == wanted)?
                }
                None => here.get(inside.parse::<usize>().ok()?)?,
            };
            rest = after;
        } else {
            let field = rest.strip_prefix('.').unwrap_or(rest);
            let mut name = String::new();
            let mut chars = field.char_indices();
            let mut end = field.len();
            while let Some((i, c)) = chars.next() {
                match c {
                    '\\' => name.extend(chars.next().map(|(_, c)| c)),
                    '.' | '[' => {
                        end = i;
                        break;
                    }
                    c => name.push(c),
                }
            }
            here = at(here, &[&name])?;
            rest = field.get(end..)?;
        }
    }
    Some(here)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_formatted_as_in_kubectl() {
        let now: Timestamp = "2026-11-21T00:00:00Z".parse().unwrap();
        let ago = |seconds: i64| age(&(now - jiff::SignedDuration::from_secs(seconds)).to_string(), now);
        for (seconds, expected) in [
            (0, "0s"),
            (1, "1s"),
            (119, "119s"),
            (120, "2m"),
            (121, "2m1s"),
            (599, "9m59s"),
            (601, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (10_860, "3h1m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (691_200, "8d"),
            (-5, "<invalid>"),
        ] {
            assert_eq!(ago(seconds), expected, "{seconds}");
        }
        assert_eq!(age("", now), "<unknown>");
    }

    #[test]
    fn json_path_resolves_escapes_indexes_and_filters() {
        let object = json!({"a": {"b.c": 1, "l": [{"type": "x", "v": "y"}]}});
        assert_eq!(json_path(&object, r".a.b\.c"), Some(&json!(1)));
        assert_eq!(json_path(&object, ".a.l[0].v"), Some(&json!("y")));
        assert_eq!(json_path(&object, r#".a.l[?(@.type=="x")].v"#), Some(&json!("y")));
        assert_eq!(json_path(&object, ".a.none"), None);
    }
}
