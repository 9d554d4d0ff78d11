//! The project's prose uses the standard terms of Kubernetes and Spark: words that earlier texts used in a sense of their own
//! are rejected, in documentation, chart, `--help`, reasons, causes, metrics, comments and every message.

use std::path::{Path, PathBuf};
use std::process::Command;

use usher_core::lifecycle::cause::Cause;
use usher_core::reason::Reason;
use usher_server::app::metrics::{LABELS, Metrics};
use usher_server::cluster::replica::Replica;

/// Forbidden words and phrases, with what to write instead.
const FORBIDDEN: &[(&str, &str)] = &[
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

/// Names that say nothing of what they stand for, with examples of what does.
const VAGUE: &[(&str, &str)] = &[
    ("most", "max"),
    ("own", "own_account, of_driver"),
    ("its", "the object's name"),
    ("goes_on", "continues"),
    ("gave_way", "is_superseded"),
    ("ends", "is_final, exits"),
    ("followed", "tracked, current"),
    ("life", "lifetime"),
    ("of", "the object's name"),
];

/// Spark's own words.
const SPARKS: &[&str] = &["look at logs to clarify"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The forbidden phrases of a text, each with its place. A phrase may wrap at the end of a line.
fn violations(place: &str, text: &str) -> Vec<String> {
    let lines: Vec<String> = text
        .lines()
        .map(|line| SPARKS.iter().fold(line.trim().to_lowercase(), |line, own| line.replace(own, "")))
        .collect();
    let mut out = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let next = lines.get(number + 1).map_or("", String::as_str);
        let both = format!("{line} {next}");
        for (phrase, instead) in FORBIDDEN {
            let is_word = |at: usize| {
                let edge = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '_');
                edge(both[..at].chars().next_back()) && edge(both[at + phrase.len()..].chars().next())
            };
            if both.match_indices(phrase).any(|(at, _)| at < line.len() && is_word(at)) {
                out.push(format!("{place}:{}: {phrase:?}: write {instead}\n    {line}", number + 1));
            }
        }
    }
    out
}

/// The texts of string literals in Rust code, without those of unit tests. Raw strings are JSON, YAML and expressions, no
/// prose; a literal without a space is a name or a key.
fn literals(code: &str) -> String {
    let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = rest.find(['"', '/', '\'']) {
        let begin = &rest[at..];
        if begin.starts_with("//") {
            let end = begin.find('\n').unwrap_or(begin.len());
            rest = &begin[end..];
        } else if begin.starts_with('\'') {
            // A character, or a lifetime.
            let character =
                ["'\"'", "'\\\"'", "'\\''", "'\\\\'", "'/'"].iter().find(|quoted| begin.starts_with(**quoted));
            rest = &begin[character.map_or(1, |quoted| quoted.len())..];
        } else if let Some(after) = begin.strip_prefix('/') {
            rest = after;
        } else if rest[..at].ends_with('#') || rest[..at].ends_with('r') {
            let hashes = rest[..at].chars().rev().take_while(|c| *c == '#').count();
            let close = format!("\"{}", "#".repeat(hashes));
            let end = begin[1..].find(&close).map_or(begin.len(), |end| end + 1 + close.len());
            rest = &begin[end..];
        } else {
            let mut escaped = false;
            let end = begin[1..].find(|c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let Some(end) = end else { break };
            // A backslash at the end of a line joins it with the next one.
            let text: Vec<&str> = begin[1..=end].split("\\\n").map(str::trim_start).collect();
            let text = text.concat();
            if text.contains(' ') {
                out.push_str(&text);
                out.push('\n');
            }
            rest = &begin[end + 2..];
        }
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
fn forbidden_word_is_found_only_as_whole_word() {
    assert_eq!(violations("x", "It is told.\nAn untold story").len(), 2);
    assert!(violations("x", "a desktop, a seated-like thing, retold").is_empty());
    assert_eq!(violations("x", "everything\nat\nonce, look\nat it").len(), 2, "phrases wrap");
    let code = r#"let a = "it is told"; // told by "x y"
#[cfg(test)]
fn of() {}
let b = ("told", '"', "it is \"told\" \
    again", r"it is told", b'\'');
#[cfg(test)]
mod tests {
let c = "was told";"#;
    assert_eq!(literals(code), "it is told\nit is \\\"told\\\" again\n");
}

#[test]
fn documentation_and_chart_use_the_standard_terms() {
    let mut found = Vec::new();
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "Dockerfile", "justfile"] {
        found.extend(violations(name, &std::fs::read_to_string(root().join(name)).unwrap()));
    }
    for (path, text) in all_of(&["docs", "charts", "certs"], &[".md", ".yaml", ".tpl", ".txt", ".json"]) {
        found.extend(violations(&path, &text));
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn reasons_causes_and_metrics_use_the_standard_terms() {
    let mut found = Vec::new();
    for reason in Reason::ALL {
        found.extend(violations(reason.as_str(), reason.text()));
    }
    for cause in Cause::ALL {
        found.extend(violations(&cause.to_string(), cause.text()));
    }
    for metric in Metrics::new(&Replica::default()).unwrap().registry.registered() {
        found.extend(violations(&metric.fq_name, &metric.help));
    }
    for (name, values) in LABELS {
        found.extend(violations(name, values));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The comments of Rust code, each on its line.
fn comments(code: &str) -> String {
    let comment = |line: &str| {
        let line = line.trim_start();
        let at = if line.starts_with("//") { Some(0) } else { line.find(" // ") };
        at.map_or_else(String::new, |at| line[at..].trim_start_matches([' ', '/', '!']).to_owned())
    };
    code.lines().map(comment).collect::<Vec<_>>().join("\n")
}

#[test]
fn messages_and_comments_use_the_standard_terms() {
    let mut found = Vec::new();
    for (path, code) in all_of(&["src"], &[".rs"]) {
        found.extend(violations(&path, &comments(&code)));
        if !path.contains("/tests") {
            found.extend(violations(&path, &literals(&code)));
        }
    }
    assert!(found.is_empty(), "{} lines:\n{}", found.len(), found.join("\n"));
}

#[test]
fn names_say_what_they_stand_for() {
    let mut found = Vec::new();
    for (path, code) in all_of(&["src"], &[".rs"]) {
        for (number, line) in code.lines().enumerate() {
            let declared = ["    ", "let ", "let mut ", "(", ", ", "|", "fn "].iter().any(|before| {
                VAGUE.iter().any(|(name, _)| {
                    let begin = format!("{before}{name}");
                    // `Type::of(…)` is a constructor, and may be called without the type.
                    let is_end = |rest: &str| match *before {
                        "    " => rest.starts_with(": "),
                        _ => rest.starts_with([':', ' ', ',', ')', '|']) || (*name != "of" && rest.starts_with('(')),
                    };
                    line.match_indices(&begin).any(|(at, _)| is_end(&line[at + begin.len()..]))
                })
            });
            if declared && !line.trim_start().starts_with("//") && !line.contains('"') {
                found.push(format!("{path}:{}: {}", number + 1, line.trim()));
            }
        }
    }
    assert!(found.is_empty(), "{} lines, expected names such as {VAGUE:?}:\n{}", found.len(), found.join("\n"));
}

#[test]
fn help_uses_the_standard_terms() {
    let mut commands = vec![Vec::new()];
    let mut found = Vec::new();
    let mut seen = Vec::new();
    while let Some(command) = commands.pop() {
        let out = Command::new(env!("CARGO_BIN_EXE_spark-usher")).args(&command).arg("--help").output().unwrap();
        let name = format!("{} --help", command.join(" "));
        assert!(out.status.success(), "{name}: {out:?}");
        let text = String::from_utf8(out.stdout).unwrap();
        found.extend(violations(&name, &text));
        if let Some((_, list)) = text.split_once("\nCommands:\n") {
            let list = list.split("\n\n").next().unwrap_or_default().lines();
            let names = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
            for name in names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
                commands.push([&command[..], &[name.to_owned()]].concat());
            }
        }
        seen.push(name);
    }
    for name in ["serve --help", "doctor --help", "config check --help"] {
        assert!(seen.iter().any(|seen| seen == name), "{seen:?}");
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn help_of_submit_describes_every_option_in_either_form() {
    let text = |arguments: &[&str]| {
        let out = Command::new(env!("CARGO_BIN_EXE_spark-usher")).args(arguments).output().unwrap();
        assert!(out.status.success(), "{arguments:?}: {out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    let help = text(&["submit", "--help"]);
    assert!(help.contains("  -c, --conf <KEY=VALUE> ") && help.contains("--dry-run[=<client|server>] "), "{help}");
    assert_eq!(text(&["help", "submit"]), help);
}

/// The words of a comment, or of the declaration below it, without endings of the plural: `exit_code` and `ExitCode` are two.
fn bare_words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    for c in text.chars() {
        if c.is_uppercase() && spaced.ends_with(|before: char| before.is_lowercase() || before.is_ascii_digit()) {
            spaced.push(' ');
        }
        spaced.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    let singular = |word: &str| match word.strip_suffix("ies") {
        Some(stem) => format!("{stem}y"),
        None => word.strip_suffix('s').filter(|stem| !stem.ends_with('s')).unwrap_or(word).to_owned(),
    };
    spaced.split_whitespace().map(singular).collect()
}

/// The comments of one line that say no more than the declaration below them.
fn repeated_names(path: &str, code: &str) -> Vec<String> {
    const FILLERS: &str = " a all an and are as at be been by each for from had has have in is it its no of on one or that the this to what whose with any which ";
    let lines: Vec<&str> = code.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (number, line) in lines.iter().enumerate() {
        let Some(text) = line.strip_prefix("/// ") else { continue };
        let is_long = |at: Option<usize>| at.and_then(|at| lines.get(at)).is_some_and(|line| line.starts_with("///"));
        let item = lines[number + 1..].iter().find(|line| !line.starts_with("#["));
        // A row of a vocabulary: its comment is a text that the program prints.
        let Some(item) = item.filter(|item| !item.contains("= \"") && !item.starts_with('"')) else { continue };
        let declared = bare_words(item);
        let says_more =
            bare_words(text).iter().any(|word| !FILLERS.contains(&format!(" {word} ")) && !declared.contains(word));
        if !says_more && !is_long(number.checked_sub(1)) && !is_long(Some(number + 1)) {
            found.push(format!("{path}:{}: {line} {item}", number + 1));
        }
    }
    found
}

#[test]
fn no_comment_repeats_a_name() {
    let code = "/// The exit codes.\n#[derive(Debug)]\nstruct ExitCode;\n/// Its exit code, 0 to 255.\nexit_code: u8,\n/// The exit.\n/// More.\nexit: u8";
    assert_eq!(repeated_names("x", code), ["x:1: /// The exit codes. struct ExitCode;"]);
    let mut found = Vec::new();
    for (path, code) in all_of(&["src"], &[".rs"]) {
        // The comments of options and of settings are the texts of `--help` and of the schema.
        let is_text = ["clap::", "JsonSchema"].iter().any(|derived| code.contains(derived));
        found.extend(if is_text { Vec::new() } else { repeated_names(&path, &code) });
    }
    assert!(found.is_empty(), "{} comments:\n{}", found.len(), found.join("\n"));
}
