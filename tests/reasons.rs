//! Every reason can happen and is expected by a test; the README's tables are those of the code.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use spark_usher::lifecycle::cause::Cause;
use spark_usher::reason::{Origin, Reason};
use spark_usher::telemetry::metrics::{LABELS, TABLE};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn texts(folder: &Path, all: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            texts(&path, all);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push((path, text));
        }
    }
}

/// Whether a text names a reason as a word of its own.
fn names(text: &str, name: &str) -> bool {
    let edge = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
    text.match_indices(name)
        .any(|(at, _)| edge(text[..at].chars().next_back()) && edge(text[at + name.len()..].chars().next()))
}

#[test]
fn every_reason_is_produced_by_the_code_and_expected_by_a_test() {
    let (mut code, mut tests) = (Vec::new(), Vec::new());
    texts(&root().join("src"), &mut code);
    texts(&root().join("tests"), &mut tests);
    tests.retain(|(path, _)| !path.ends_with("reasons.rs"));
    let mut missing = Vec::new();
    for reason in Reason::ALL {
        let name = reason.as_str();
        let produced = code.iter().any(|(path, text)| {
            let text = text.split("#[cfg(test)]").next().unwrap();
            !path.ends_with("reason.rs") && names(text, &format!("Reason::{name}"))
        });
        if !produced {
            missing.push(format!("{name} is never produced"));
        }
        if !tests.iter().any(|(_, text)| names(text, name)) {
            missing.push(format!("{name} is expected by no test"));
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

/// The text between two markers of the README.
fn section(name: &str) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), format!("<!-- {name}: end -->"));
    let (_, rest) = readme.split_once(&begin).unwrap_or_else(|| panic!("README.md has no {begin}"));
    rest.split_once(&end).unwrap_or_else(|| panic!("README.md has no {end}")).0.to_owned()
}

/// Compares with the README; `UPDATE_README=1` writes it instead.
fn check(name: &str, wanted: &str) {
    let have = section(name);
    #[expect(clippy::disallowed_methods, reason = "how a person asks for the update")]
    if std::env::var_os("UPDATE_README").is_some() {
        let path = root().join("README.md");
        let readme = std::fs::read_to_string(&path).unwrap();
        let begin = format!("<!-- {name}: generated -->\n");
        std::fs::write(&path, readme.replace(&format!("{begin}{have}"), &format!("{begin}{wanted}"))).unwrap();
        return;
    }
    assert_eq!(have, wanted, "README.md is out of date: UPDATE_README=1 cargo test --test reasons -- --test-threads=1");
}

#[test]
fn the_readmes_table_of_reasons_is_the_codes() {
    let mut table = String::from("| reason | where | what it says |\n|---|---|---|\n");
    for reason in Reason::ALL {
        let place = match reason.origin() {
            Origin::Admission => "admission",
            Origin::Http => "endpoint",
            Origin::Controller => "loop",
        };
        table += &format!("| `{}` | {place} | {} |\n", reason.as_str(), reason.text());
    }
    check("reasons", &table);
}

#[test]
fn the_readmes_table_of_metrics_is_the_codes() {
    let mut table = String::from("| metric | labels | what it says |\n|---|---|---|\n");
    for (name, labels, help) in TABLE {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        table += &format!("| `{name}` | {} | {help} |\n", labels.join(", "));
    }
    check("metrics", &table);
    let mut table = String::from("| label | values |\n|---|---|\n");
    for (label, values) in LABELS {
        table += &format!("| `{label}` | {values} |\n");
    }
    check("labels", &table);
}

#[test]
fn the_readmes_table_of_causes_is_the_codes() {
    let mut table =
        String::from("| cause | the application's doing | told by an Event | what it says |\n|---|---|---|---|\n");
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    for cause in Cause::ALL {
        let (by_app, abnormal) = (yes(cause.by_app()), yes(cause.is_abnormal()));
        table += &format!("| `{cause}` | {by_app} | {abnormal} | {} |\n", cause.text());
    }
    check("causes", &table);
}
