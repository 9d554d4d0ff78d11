//! The code produces every reason, and a test expects it; the generated tables equal the code.

use std::path::{Path, PathBuf};

use usher_core::lifecycle::cause::Cause;
use usher_core::nodes::FaultKind;
use usher_core::policy::{Mode, RecoveryRule, RuleSettings};
use usher_core::reason::{Origin, Reason};
use usher_core::recovery::cost::WasteCause;
use usher_core::recovery::shortage_cause::ShortageCause;
use usher_server::app::metrics::{LABELS, Metrics};
use usher_server::cluster::replica::Replica;

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

/// Whether a text contains a reason as a complete word.
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

/// Compares a page's text between two markers with what the code generates; `UPDATE_DOCS=1` writes it instead.
fn check(page: &str, name: &str, expected: &str) {
    let path = root().join("docs").join(page);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {name}: generated -->\n"), format!("<!-- {name}: end -->"));
    let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("docs/{page} has no {begin}"));
    let (have, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/{page} has no {end}"));
    #[expect(clippy::disallowed_methods, reason = "how a person asks for the update")]
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, [before, &begin, expected, &end, after].concat()).unwrap();
        return;
    }
    assert_eq!(
        have, expected,
        "docs/{page} is out of date: UPDATE_DOCS=1 cargo test --test it reasons -- --test-threads=1"
    );
}

#[test]
fn documented_reasons_equal_code() {
    let mut table = String::from("| reason | origin | description |\n|---|---|---|\n");
    for reason in Reason::ALL {
        let place = match reason.origin() {
            Origin::Admission => "admission",
            Origin::Http => "endpoint",
            Origin::Controller => "controller",
        };
        table += &format!("| `{}` | {place} | {} |\n", reason.as_str(), reason.text());
    }
    check("reasons.md", "reasons", &table);
}

#[test]
fn documented_metrics_equal_code() {
    let mut table = String::from("| metric | labels | description |\n|---|---|---|\n");
    for described in Metrics::new(&Replica::default()).unwrap().registry.registered() {
        let labels: Vec<String> = described.variable_labels.iter().map(|label| format!("`{label}`")).collect();
        table += &format!("| `{}` | {} | {} |\n", described.fq_name, labels.join(", "), described.help);
    }
    check("metrics.md", "metrics", &table);
    let mut table = String::from("| Label | Values |\n|---|---|\n");
    for (label, values) in LABELS {
        table += &format!("| `{label}` | {values} |\n");
    }
    check("metrics.md", "labels", &table);
}

#[test]
fn documented_recovery_rules_equal_code() {
    let mut table = String::from("| rule | what it finds | mode | after | budget |\n|---|---|---|---|---|\n");
    for rule in RecoveryRule::ALL {
        let RuleSettings { mode, after, budget } = rule.defaults();
        let mode = match mode {
            Mode::Off => "off",
            Mode::Warn => "warn",
            Mode::Act => "act",
        };
        let after = match after.as_secs() {
            seconds if seconds % 3600 == 0 && seconds > 0 => format!("{}h", seconds / 3600),
            seconds if seconds % 60 == 0 && seconds > 0 => format!("{}m", seconds / 60),
            seconds => format!("{seconds}s"),
        };
        assert_eq!(budget.per.as_secs(), 3600);
        let budget = if rule.can_act() { format!("{}/h", budget.count) } else { "only reports".to_owned() };
        table += &format!("| `{}` | {} | `{mode}` | {after} | {budget} |\n", rule.as_str(), rule.text());
    }
    check("recovery.md", "rules", &table);
    let mut table = String::from("| cause | why an executor does not run |\n|---|---|\n");
    for cause in ShortageCause::ALL {
        table += &format!("| `{}` | {} |\n", cause.as_str(), cause.text());
    }
    check("recovery.md", "shortages", &table);
    let mut table = String::from("| cause | why an executor does no work |\n|---|---|\n");
    for cause in WasteCause::ALL {
        table += &format!("| `{}` | {} |\n", cause.as_str(), cause.text());
    }
    check("recovery.md", "costs", &table);
}

#[test]
fn documented_faults_of_nodes_equal_code() {
    let mut table = String::from("| kind | what the node does | may be caused by a pod | cure |\n|---|---|---|---|\n");
    for kind in FaultKind::ALL {
        let by_pod = if kind.may_be_by_pod() { "yes" } else { "no" };
        table += &format!("| `{}` | {} | {by_pod} | {} |\n", kind.as_str(), kind.text(), kind.cure());
    }
    check("nodes.md", "faults", &table);
}

#[test]
fn documented_causes_equal_code() {
    let mut table =
        String::from("| cause | blame | reported by an Event | group | description |\n|---|---|---|---|---|\n");
    let yes = |yes: bool| if yes { "yes" } else { "no" };
    for cause in Cause::ALL {
        let (blame, abnormal) = (cause.blame().as_str(), yes(cause.is_abnormal()));
        table += &format!("| `{cause}` | {blame} | {abnormal} | {} | {} |\n", cause.group().as_str(), cause.text());
    }
    check("reasons.md", "causes", &table);
}
