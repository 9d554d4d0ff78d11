//! Parses a text, and finds every error in its form: a parser ends at the first one, so the text is parsed again without the key that is
//! wrong.

use std::ops::Range;

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Location;

use super::file::{self, PolicyFile};
use super::located::Located;
use super::wrong::Wrong;

/// At most this many errors are reported.
const MAX_ERRORS: usize = 50;

/// A file, without the keys that are wrong, and what is wrong with these. `None` if the rest cannot be read without them. `every`: whether
/// more than the first error is looked for, which reads the text again for each.
pub(super) fn parse(text: &str, every: bool) -> (Option<PolicyFile>, Vec<Wrong>) {
    if let Err(wrong) = version(text) {
        return (None, vec![wrong]);
    }
    let mut found: Vec<Wrong> = Vec::new();
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut rest = text.to_owned();
    for _ in 0..MAX_ERRORS {
        let wrong = match one(&rest) {
            Ok(file) => {
                let is_cut = found.iter().any(|wrong| wrong.concerns("apiVersion") || wrong.concerns("kind"));
                found.extend(check_complete(text, &file).err().filter(|_| !is_cut));
                return (Some(file), found);
            }
            Err(wrong) => wrong,
        };
        if found.is_empty() && !every {
            return (None, vec![wrong]);
        }
        if found.is_empty()
            && let Err(error) = serde_saphyr::from_str::<Value>(text)
        {
            // A text that is not YAML cannot be read without one of its keys.
            let of_text = described(text, "", &error);
            found.push(wrong);
            found.extend(Some(of_text).filter(|of_text| found.iter().all(|known| known.line != of_text.line)));
            return (None, found);
        }
        let is_known = found.iter().any(|known| known.line == wrong.line);
        let shorter = without(&rest, &wrong, is_known);
        // A key is missing because it was misspelled, or because it was cut.
        let field = wrong.message.split('`').nth(1).unwrap_or_default();
        let is_its = |known: &Wrong| {
            let may_be = known.message.starts_with("unknown field") || known.path.rsplit('.').next() == Some(field);
            may_be && item_of(&lines, known) == item_of(&lines, &wrong)
        };
        let follows = is_incomplete(&wrong) && found.iter().any(is_its);
        if !is_known && !follows {
            found.push(wrong);
        }
        // What is left must differ, and still be YAML: an error that the cut caused is none of the file's.
        match shorter.filter(|shorter| *shorter != rest && serde_saphyr::from_str::<Value>(shorter).is_ok()) {
            Some(shorter) => rest = shorter,
            None => break,
        }
    }
    (None, found)
}

/// The text without the key at which an error is, and all that belongs to it; the other lines keep their numbers, and the other policies
/// theirs. `whole`: without the item of a list that begins in that line. `None` if the line is not known.
fn without(text: &str, wrong: &Wrong, whole: bool) -> Option<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let mut at = usize::try_from(wrong.line).ok()?.checked_sub(1)?;
    let is_incomplete = is_incomplete(wrong);
    if is_incomplete {
        // The map begins in this line, or its item above.
        at = item_of(&lines, wrong)?;
    }
    let line = lines.get(at)?.clone();
    let (indent, is_item) = (indent(&line), is_item(&line));
    let key = line.trim_start_matches(['-', ' ']);
    // It is no map of keys in lines of their own.
    let whole = whole || is_incomplete || key.starts_with(['{', '[']) || !key.contains(':');
    let column = if is_item && whole { indent } else { line.len() - key.len() };
    let replacement = match (is_item, whole) {
        (true, true) if policies(&lines).contains(&at) && first_item(&lines) == Some(indent) => {
            format!("{}- {{name: line-{}}}", " ".repeat(indent), at + 1)
        }
        (true, false) => line.get(..column).unwrap_or_default().trim_end().to_owned(),
        _ => String::new(),
    };
    if let Some(line) = lines.get_mut(at) {
        *line = replacement;
    }
    let belongs = |line: &str| {
        let depth = self::indent(line);
        // The items of a list may begin where its key does.
        line.trim().is_empty()
            || line.trim_start().starts_with('#')
            || depth > column
            || depth == column && !is_item && self::is_item(line)
    };
    for line in lines.iter_mut().skip(at + 1).take_while(|line| belongs(line)) {
        line.clear();
    }
    Some(lines.join("\n"))
}

/// Whether a key is missing, so that the error is at what should contain it.
fn is_incomplete(wrong: &Wrong) -> bool {
    wrong.message.starts_with("missing field")
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn is_item(line: &str) -> bool {
    line.trim_start() == "-" || line.trim_start().starts_with("- ")
}

/// The line in which the item of a list begins that an error is in.
fn item_of(lines: &[String], wrong: &Wrong) -> Option<usize> {
    let at = usize::try_from(wrong.line).ok()?.checked_sub(1)?;
    let line = lines.get(at)?;
    if is_item(line) {
        return Some(at);
    }
    lines.iter().take(at).rposition(|above| is_item(above) && indent(above) < indent(line))
}

/// The lines that a list of policies takes, as numbers from 0.
fn policies(lines: &[String]) -> Range<usize> {
    let is_key = |line: &String| {
        ["policies", "\"policies\"", "'policies'"].iter().any(|key| line.starts_with(&format!("{key}:")))
    };
    let Some(key) = lines.iter().position(is_key) else { return 0..0 };
    let is_next = |line: &String| !line.starts_with([' ', '#', '-']) && !line.is_empty();
    let after = lines.iter().skip(key + 1).position(is_next);
    key + 1..after.map_or(lines.len(), |after| key + 1 + after)
}

/// Where the items of `policies` begin.
fn first_item(lines: &[String]) -> Option<usize> {
    lines.get(policies(lines))?.iter().find(|line| is_item(line)).map(|line| indent(line))
}

/// The keys that name a file's schema; all other keys are ignored.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TypeMeta {
    api_version: Option<Located<String>>,
    kind: Option<Located<String>>,
}

/// Checks `apiVersion` and `kind` before other keys: a file of a later version has keys that this one does not know.
fn version(text: &str) -> Result<(), Wrong> {
    // If the text is not a map, or these keys have another type, parsing the whole file reports it.
    let Ok(TypeMeta { api_version, kind }) = serde_saphyr::from_str(text) else { return Ok(()) };
    for (key, value, known) in [("apiVersion", &api_version, file::API_VERSION), ("kind", &kind, file::KIND)] {
        if let Some(value) = value.as_ref().filter(|value| ***value != known) {
            let message = format!("unknown {key} {:?}: expected {known}", **value);
            return Err(Wrong::new(text, value.at(), key, message));
        }
    }
    Ok(())
}

/// Rejects a file without `apiVersion` or `kind`. Every key has a default, so that the empty beginning of a file that is being
/// written, or was lost, would be valid, and would switch every policy off.
fn check_complete(text: &str, file: &PolicyFile) -> Result<(), Wrong> {
    let missing = match (&file.api_version, &file.kind) {
        (Some(_), Some(_)) => return Ok(()),
        (None, Some(_)) => "apiVersion is missing",
        (Some(_), None) => "kind is missing",
        (None, None) => "apiVersion and kind are missing",
    };
    let (api_version, kind) = (file::API_VERSION, file::KIND);
    let message =
        format!("{missing}: expected apiVersion: {api_version} and kind: {kind}, also in a file without policies");
    Err(Wrong::new(text, Location::UNKNOWN, "", message))
}

/// Parses a text, until the first error.
fn one(text: &str) -> Result<PolicyFile, Wrong> {
    let mut path = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = without_spans(&error.path().to_string());
            error.into_inner()
        })
    });
    parsed.map_err(|error| described(text, &path, &error))
}

fn described(text: &str, path: &str, error: &serde_saphyr::Error) -> Wrong {
    let message = error.without_snippet().to_string();
    let message = message.split(" at line ").next().unwrap_or_default();
    Wrong::new(text, error.location().unwrap_or(Location::UNKNOWN), path, expected(message))
}

/// The path of a key: located values are maps with a key `value` to the library.
fn without_spans(path: &str) -> String {
    let path = path.replace(".value.", ".").replace(".value[", "[");
    path.strip_suffix(".value").unwrap_or(&path).to_owned()
}

/// Adds to a parser's message, which names the invalid text, what would be valid.
fn expected(message: &str) -> String {
    let hint = match message {
        "invalid boolean" => "true or false",
        _ if message.starts_with("invalid u") || message.starts_with("invalid i") => "a whole number, 0 or more",
        "expected sequence start" => return "expected a list".to_owned(),
        "expected mapping start" => return "expected a map of keys and values".to_owned(),
        "expected string scalar" => return "expected a string".to_owned(),
        _ if message.contains("invalid type: unit value, ") => {
            return message.replace("invalid type: unit value, ", "found no value, ");
        }
        _ if message.starts_with("cannot deserialize null into string") => {
            return "found no value, expected a string".to_owned();
        }
        _ if message.starts_with("multiple YAML documents") => {
            return "expected one YAML document, found several".to_owned();
        }
        // The rest is about the settings of the library.
        _ if message.starts_with("duplicate mapping key") => {
            let message = message.split(", set ").next().unwrap_or_default();
            return format!("{message}: expected each key once");
        }
        _ => return message.to_owned(),
    };
    format!("{message}: expected {hint}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn errors(text: &str) -> Vec<String> {
        let all = super::super::every_error(text).unwrap_err();
        all.iter().map(|wrong| format!("{} {}", wrong.line, wrong.path)).collect()
    }

    #[test]
    fn every_error_of_a_file_is_found_with_its_line_and_path() {
        let file = r#"apiVersion: spark-usher.io/v1alpha1
kind: PolicyFile
policies:
- name: batch
  scheduler: {type: volcanoo}
  queue: a
  gang:
    enabled: maybe
    minMembers: 3
- nam: typo
  queue: x
- {name: flow, gang: {enabled: 5}}
- name: Good_Name
  queue: "not a label!"
  scheduler: {type: kueue, name: "-x"}
  priorityClass: {driver: "UPPER"}
- name: batch2
  match:
    namespaces: team-a
    namespaceSelector:
      matchExpressions:
      - {key: a, operator: In}
- name: batch3
  overrides:
  - queue
  - nonsense
- name: batch4
- name: batch4
lifecycle:
  grace: soon
  pol: 5m
recovery:
  stuck:
    mode: perhaps
creators:
  never: [""]
"#;
        let expected = [
            "5 policies[0].scheduler.type",
            "8 policies[0].gang.enabled",
            "9 policies[0].gang.minMembers",
            "10 policies[1].nam",
            "12 policies[2].gang.enabled",
            "13 policies[3].name",
            "14 policies[3].queue",
            "15 policies[3].scheduler.name",
            "16 policies[3].priorityClass.driver",
            "19 policies[4].match.namespaces",
            "26 policies[5].overrides[1]",
            "28 policies[7].name",
            "30 lifecycle.grace",
            "31 lifecycle.pol",
            "34 recovery.stuck.mode",
            "0 creators.never",
        ];
        assert_eq!(errors(file), expected);
    }

    #[test]
    fn what_follows_from_an_error_is_no_error() {
        let found = |rest: &str| errors(&format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\n{rest}"));
        assert_eq!(found("policies:\n- queue: x\n- name: b\n  quue: y\n"), ["4 policies[0]", "6 policies[1].quue"]);
        assert_eq!(found("policies: 5\nlifecycle: {grace: soon}\n"), ["3 policies", "4 lifecycle.grace"]);
        // Without the scheduler's type its name would have no effect, and its queue neither.
        let untouched = "policies:\n- name: a\n  queue: q\n  scheduler:\n    type: volcanoo\n    name: mine\n";
        assert_eq!(found(untouched), ["7 policies[0].scheduler.type"]);
        // A map over several lines has its first error only: a part of it is no YAML.
        assert_eq!(found("policies: [{name: a, quue: x,\n  queeu: y}]\n"), ["3 policies[0].quue"]);
        assert_eq!(found("policies:\n- name: [a\n"), ["4 policies[0].name"], "no YAML at all");
        assert_eq!(found("bogus: 1\nlifecycle:\n  grace: 5m\n  grace: 6m\n"), ["3 bogus", "6 "]);
        // Lists beside that of the policies, and comments.
        assert_eq!(
            found("trustedWriters:\n- [x]\nbogus: 1\npolicies:\n- name: Bad_X\n"),
            ["4 trustedWriters[0]", "5 bogus", "7 policies[0].name"]
        );
        let comment = "recovery:\n  stuck:\n    mode: warn\n  stuk:\n  # for slow nodes\n    after: 5m\n    views: 3\n  orphans: {mode: x}\n";
        assert_eq!(found(comment), ["6 recovery.stuk", "10 recovery.orphans.mode"]);
        let items = "policies:\n- name: a\n  match:\n    podSelector:\n      matchExpressions:\n      - key: a\n        operator: Inn\n      - key: b\n        values: [x]\n      - key: c\n        operator: In\n        values: 5\n";
        assert_eq!(found(items).len(), 3, "{:?}", found(items));
        assert!(found(items)[2].ends_with(".values"), "{:?}", found(items));
        // Policies after the first error of one, and what a name without a type has no effect on.
        assert_eq!(
            found(
                "policies:\n- name: a\n  strict: 8\n- name: a\n  queue: 'x y'\n  scheduler: {name: v}\n  gang: {shape: executors, membership: annotations}\n"
            ),
            ["5 policies[0].strict", "6 policies[1].name", "8 policies[1].scheduler.name"]
        );
        assert_eq!(errors("apiVersion: spark-usher.io/v9\nkind: PolicyFile\nnews: 1\n"), ["1 apiVersion"]);
        assert_eq!(errors("kind: PolicyFile\npolicies: []\n"), ["0 "]);
    }

    proptest! {
        #[test]
        fn first_error_stays_the_first_and_any_text_is_read(lines in proptest::collection::vec("[ -]{0,6}[a-z{}\\[\\]\"#:é]{0,8}:? ?[a-z0-9{}]{0,5}", 0..12)) {
            let text = format!("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\n{}\n", lines.join("\n"));
            let (file, found) = parse(&text, true);
            let first = parse(&text, false).1;
            prop_assert_eq!(first.first(), found.first());
            match version(&text).and_then(|()| one(&text)) {
                Ok(_) => prop_assert!(file.is_some() && found.is_empty(), "{found:?}"),
                Err(wrong) => prop_assert_eq!(found.first(), Some(&wrong)),
            }
            prop_assert!(found.len() <= MAX_ERRORS + 1);
        }
    }
}
