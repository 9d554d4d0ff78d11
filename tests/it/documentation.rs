//! The documentation: its policy files are valid, its links lead somewhere, and its commands name test binaries that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use spark_usher::config;

/// Every page of the repository: its path and text.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> =
        ["README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "certs/README", "charts/spark-usher/README"]
            .iter()
            .map(|name| root.join(format!("{name}.md")))
            .collect();
    let docs = std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(&path).unwrap())).collect()
}

/// The text outside code blocks.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// The anchors of a page, as GitHub makes them of headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let prose = prose(text);
    let headings =
        prose.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let slug = |heading: &str| -> String {
        let kept = heading.to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect()
    };
    headings.map(slug).collect()
}

#[test]
fn relative_links_lead_to_pages_and_headings_that_exist() {
    let mut broken = Vec::new();
    let mut count = 0;
    for (path, text) in pages() {
        let prose = prose(&text);
        for target in prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if target.contains("://") {
                continue;
            }
            count += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            let found =
                to.exists() && (anchor.is_empty() || anchors(&std::fs::read_to_string(&to).unwrap()).contains(anchor));
            if !found {
                broken.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert!(count > 100, "{count} links");
}

#[test]
fn policy_files_in_pages_are_valid() {
    let mut count = 0;
    for (path, text) in pages() {
        for block in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            if block.contains("kind: PolicyFile") {
                config::from_text(block).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                count += 1;
            }
        }
    }
    assert!(count >= 2, "{count} policy files");
}

#[test]
fn documented_test_binaries_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = pages();
    for name in ["justfile", "tests/run", ".github/workflows/ci.yaml", ".github/workflows/release.yaml"] {
        texts.push((root.join(name), std::fs::read_to_string(root.join(name)).unwrap()));
    }
    let mut count = 0;
    for (path, text) in texts {
        for name in text.split("--test ").skip(1).filter_map(|rest| rest.split([' ', '`', '\n', ',']).next()) {
            let exists =
                root.join(format!("tests/{name}.rs")).exists() || root.join(format!("tests/{name}/main.rs")).exists();
            assert!(exists, "{}: --test {name}", path.display());
            count += 1;
        }
    }
    assert!(count > 8, "{count} commands");
}
