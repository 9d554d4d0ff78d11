//! The documentation: its policy files are valid, its links lead somewhere, and its commands name test binaries that exist.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Every page of the repository: its path and text.
fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths: Vec<PathBuf> =
        ["README", "CONTRIBUTING", "CHANGELOG", "SECURITY", "certs/README", "charts/spark-usher/README"]
            .iter()
            .map(|name| root.join(format!("{name}.md")))
            .collect();
    for folder in ["docs", "docs/recipes"] {
        let docs = std::fs::read_dir(root.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        paths.extend(docs.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
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
            // A policy file, or one below `config` of the chart's values. tests/recipes.py checks whole values files.
            let below_config = block.strip_prefix("config:\n  ").map(|text| text.replace("\n  ", "\n"));
            let text = below_config.as_deref().unwrap_or(block);
            if text.starts_with("apiVersion: spark-usher.io") {
                usher_config::from_text(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
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
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut count = 0;
    for (path, text) in texts {
        for name in text.split("--test ").skip(1).filter_map(|rest| rest.split(|c: char| !is_name(c)).next()) {
            let exists =
                root.join(format!("tests/{name}.rs")).exists() || root.join(format!("tests/{name}/main.rs")).exists();
            assert!(exists, "{}: --test {name}", path.display());
            count += 1;
        }
    }
    assert!(count > 8, "{count} commands");
}

/// The folders of the crates, and that of the program.
fn crates(src: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(src).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|path| path.join("Cargo.toml").is_file()).chain([src.to_owned()]).collect()
}

/// All sources of a module of a crate, and the rest of a path that begins with it: `gang::TABLE` is in `src/core/gang`, and
/// `usher_kube::stream` in `src/kube`.
fn module<'p>(folder: &Path, path: &'p str) -> (String, Vec<&'p str>) {
    let mut rest: Vec<&str> = path.split("::").collect();
    if rest[0].strip_prefix("usher_").is_some_and(|name| folder.ends_with(name)) {
        rest.remove(0);
    }
    let mut at = folder.to_owned();
    let is_module = |at: &Path, name: &str| at.join(name).is_dir() || at.join(format!("{name}.rs")).is_file();
    while !rest.is_empty() && is_module(&at, rest[0]) {
        at.push(rest.remove(0));
    }
    let mut text = std::fs::read_to_string(at.with_extension("rs")).unwrap_or_default();
    let mut folders = vec![at];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else {
                text.push_str(&std::fs::read_to_string(entry).unwrap());
            }
        }
    }
    (text, rest)
}

/// Whether sources define a name. Of a function or a module they must have the item: a word in lower case stands anywhere. A type may be
/// made by a macro.
fn defines(text: &str, name: &str, is_of_type: bool) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let item = ["fn ", "struct ", "enum ", "trait ", "const ", "static ", "type ", "mod "];
    text.match_indices(name).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + name.len()..]);
        !after.starts_with(is_part)
            && (item.iter().any(|keyword| before.ends_with(keyword))
                || (is_of_type || name.starts_with(char::is_uppercase)) && !before.ends_with(is_part))
    })
}

#[test]
fn files_and_names_of_the_architecture_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let crates = crates(&root.join("src"));
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
    let (mut missing, mut count) = (Vec::new(), 0);
    for path in page.split(|c| !is_name(c)).map(|path| path.trim_matches(':')).filter(|path| path.contains("::")) {
        let found = crates.iter().map(|folder| module(folder, path));
        let mut found: Vec<_> = found.filter(|(_, rest)| rest.len() < path.split("::").count()).collect();
        if found.is_empty() {
            continue; // Not of ours.
        }
        count += 1;
        found.retain(|(text, rest)| rest.iter().enumerate().all(|(at, name)| defines(text, name, at > 0)));
        if found.is_empty() {
            missing.push(path.to_owned());
        }
    }
    let is_path = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/');
    for path in page.split(|c| !is_path(c)).map(|path| path.trim_end_matches('.')) {
        if ["src/", "tests/", "docs/", "charts/"].iter().any(|folder| path.starts_with(folder)) {
            count += 1;
            missing.extend((!root.join(path).exists()).then(|| path.to_owned()));
        }
    }
    assert!(missing.is_empty(), "docs/architecture.md names what does not exist: {missing:?}");
    assert!(count > 80, "{count} names");
}
