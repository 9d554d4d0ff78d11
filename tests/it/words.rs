//! The project's prose uses the standard terms of Kubernetes and Spark: words that earlier texts used in a sense of their own
//! are refused, in documentation, chart, `--help`, reasons, causes, metrics and every message.

use std::path::{Path, PathBuf};

use spark_usher::lifecycle::cause::Cause;
use spark_usher::reason::Reason;
use spark_usher::telemetry::metrics::{LABELS, TABLE};

/// Words and phrases that are refused, with what to write instead.
const REFUSED: &[(&str, &str)] = &[
    ("desk", "controller"),
    ("told", "reported, identified, shown"),
    ("tells", "reports, shows"),
    ("heard", "received, applied"),
    ("hears", "receives"),
    ("looks at", "reads, checks"),
    ("looked at", "read, checked"),
    ("look at", "read, check"),
    ("goes by", "uses, follows"),
    ("somebody", "a client, an account, the name of who does it"),
    ("nobody", "no client, no driver, no account"),
    ("anybody", "any client, any account"),
    ("whoever", "any account that"),
    ("seated", "scheduled, mutated"),
    ("unseated", "not mutated"),
    ("seat", "scheduling fields"),
    ("seats", "scheduling fields"),
    ("wish", "desired"),
    ("owns up", "is known"),
    ("news", "change, event"),
    ("self-made", "self-signed"),
    ("is no pod", "is not a pod"),
    ("what is no", "what is not a"),
    ("by itself", "automatically, alone"),
    ("at once", "immediately, in one step"),
    ("in doubt", "possibly reported before"),
    ("the loop", "the controller"),
    ("untold", "not reported"),
];

/// Spark's own words.
const SPARKS: &[&str] = &["look at logs to clarify"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The refused phrases of a text, each with its place.
fn refused(place: &str, text: &str) -> Vec<String> {
    let mut out = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = SPARKS.iter().fold(line.to_lowercase(), |line, own| line.replace(own, ""));
        for (phrase, instead) in REFUSED {
            let is_word = |at: usize| {
                let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '_');
                edge(line[..at].chars().next_back()) && edge(line[at + phrase.len()..].chars().next())
            };
            if line.match_indices(phrase).any(|(at, _)| is_word(at)) {
                out.push(format!("{place}:{}: {phrase:?}: write {instead}\n    {}", number + 1, line.trim()));
            }
        }
    }
    out
}

/// The texts of string literals in Rust code. Raw strings are JSON, YAML and expressions, no prose.
fn literals(code: &str) -> String {
    let mut out = String::new();
    // The text of the unit tests' own input is not prose.
    let code = code.split("#[cfg(test)]").next().unwrap_or_default();
    for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
        let mut rest = line;
        while let Some(begin) = rest.find('"') {
            let body = &rest[begin + 1..];
            let end = body.char_indices().find(|(at, c)| *c == '"' && !body[..*at].ends_with('\\')).map(|(at, _)| at);
            let Some(end) = end else {
                // A literal of several lines; the rest of this line belongs to it.
                out.push_str(body);
                break;
            };
            // A literal without a space is a name or a key.
            if body[..end].contains(' ') {
                out.push_str(&body[..end]);
                out.push(' ');
            }
            rest = &body[end + 1..];
        }
        out.push('\n');
    }
    out
}

fn files(folder: &Path, ends: &[&str], all: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, ends, all);
        } else if ends.iter().any(|end| path.to_string_lossy().ends_with(end)) {
            all.push(path);
        }
    }
}

fn all_of(folders: &[&str], ends: &[&str]) -> Vec<(String, String)> {
    let mut paths = Vec::new();
    for folder in folders {
        files(&root().join(folder), ends, &mut paths);
    }
    paths.sort();
    let shown = |path: &Path| path.strip_prefix(root()).unwrap_or(path).display().to_string();
    paths.iter().map(|path| (shown(path), std::fs::read_to_string(path).unwrap())).collect()
}

#[test]
fn a_refused_word_is_found_and_a_part_of_another_is_not() {
    assert_eq!(refused("x", "It is told.\nAn untold story").len(), 2);
    assert!(refused("x", "a desktop, a seated-like thing, retold").is_empty());
    let code = "let a = \"it is told\"; // told\nlet b = \"told\";\n#[cfg(test)]\nlet c = \"was told\";";
    assert_eq!(literals(code).trim(), "it is told");
}

#[test]
fn documentation_and_chart_use_the_standard_terms() {
    let mut found = Vec::new();
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Dockerfile", "justfile"] {
        found.extend(refused(name, &std::fs::read_to_string(root().join(name)).unwrap()));
    }
    for (path, text) in all_of(&["docs", "charts", "certs"], &[".md", ".yaml", ".tpl", ".txt", ".json"]) {
        found.extend(refused(&path, &text));
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn reasons_causes_and_metrics_use_the_standard_terms() {
    let mut found = Vec::new();
    for reason in Reason::ALL {
        found.extend(refused(reason.as_str(), reason.text()));
    }
    for cause in Cause::ALL {
        found.extend(refused(&cause.to_string(), cause.text()));
    }
    for (name, _, help) in TABLE {
        found.extend(refused(name, help));
    }
    for (name, values) in LABELS {
        found.extend(refused(name, values));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn messages_use_the_standard_terms() {
    let mut found = Vec::new();
    for (path, code) in all_of(&["src"], &[".rs"]) {
        if !path.contains("/tests") {
            found.extend(refused(&path, &literals(&code)));
        }
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn help_uses_the_standard_terms() {
    let mut found = Vec::new();
    let program = env!("CARGO_BIN_EXE_spark-usher");
    let help = |command: &[&str]| {
        let out = std::process::Command::new(program).args(command).arg("--help").output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    };
    let top = help(&[]);
    let commands = top.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
    let commands: Vec<&str> =
        commands.lines().filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help").collect();
    assert!(commands.contains(&"serve") && commands.contains(&"doctor"), "{commands:?}");
    found.extend(refused("--help", &top));
    for command in commands {
        found.extend(refused(&format!("{command} --help"), &help(&[command])));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
