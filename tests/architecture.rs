//! The order of the modules, read from the sources: who may use whom, and what the core must never touch.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

/// The modules in their order: each may use itself and those of a lower rank, never those of its own rank or above.
const RANKS: &[(&str, u32)] = &[
    ("plant", 0),
    ("json", 0),
    ("spark", 1),
    ("signature", 1),
    ("snapshot", 2),
    ("reason", 3),
    ("gang", 4),
    ("policy", 5),
    ("driver", 6),
    ("admission", 7),
    ("lifecycle", 8),
    // The edge.
    ("runtime", 10),
    ("telemetry", 11),
    ("tls", 12),
    ("config", 13),
    ("http", 14),
    ("cluster", 14),
    ("sandbox", 15),
    ("app", 16),
    ("cli", 17),
];
/// Everything below this rank is the core.
const EDGE: u32 = 10;
/// What the core must not name: runtimes, clients, clocks, the environment, files, logs.
const IMPURE: &[&str] = &[
    "tokio",
    "axum",
    "hyper",
    "reqwest",
    "rustls",
    "tracing",
    "prometheus",
    "kube::Client",
    "kube::Api",
    "kube::runtime",
    "std::env",
    "std::fs",
    "std::net::Tcp",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "async fn",
    ".await",
    "println!",
    "eprintln!",
    "rand::",
    "random",
];
/// The longest file that can be read in one sitting.
const LONGEST: usize = 700;

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            all.push(path);
        }
    }
    all.sort();
    all
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The code of a file: without comments, and without its unit tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("#[cfg(test)]").next().unwrap().to_owned();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The module that a file belongs to; `None` for `lib.rs` and `main.rs`.
fn module(path: &Path) -> Option<String> {
    let relative = path.strip_prefix(src()).unwrap();
    let first = relative.components().next().unwrap().as_os_str().to_str().unwrap();
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (name != "lib" && name != "main").then(|| name.to_owned())
}

fn rank(module: &str) -> u32 {
    let found = RANKS.iter().find(|(name, _)| *name == module);
    found.unwrap_or_else(|| panic!("src/{module} has no rank: add it to tests/architecture.rs and src/lib.rs")).1
}

#[test]
fn modules_use_only_those_below_them() {
    let mut wrong = Vec::new();
    for path in sources(&src()) {
        let Some(own) = module(&path) else { continue };
        for used in code(&path).split("crate::").skip(1) {
            let name: String = used.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if !name.is_empty() && name != own && rank(&name) >= rank(&own) {
                wrong.push(format!("{} uses crate::{name}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_core_touches_no_world() {
    let mut wrong = Vec::new();
    for path in sources(&src()) {
        if module(&path).is_none_or(|module| rank(&module) >= EDGE) {
            continue;
        }
        let code = code(&path);
        wrong.extend(
            IMPURE.iter().filter(|word| code.contains(**word)).map(|word| format!("{}: {word}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tasks_are_started_by_their_supervisor_alone() {
    for path in sources(&src()) {
        let code = code(&path);
        let spawns = ["tokio::spawn", "task::spawn", "thread::spawn"].iter().any(|word| code.contains(word));
        assert!(!spawns, "{}", path.display());
    }
}

#[test]
fn files_can_be_read_in_one_sitting() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for path in sources(&src()).into_iter().chain(sources(&tests)) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= LONGEST, "{}: {lines} lines", path.display());
    }
}

#[test]
fn the_map_in_lib_rs_names_every_module() {
    let map = std::fs::read_to_string(src().join("lib.rs")).unwrap();
    for (name, _) in RANKS {
        assert!(map.contains(&format!("pub mod {name};")), "{name} does not exist");
        assert!(map.contains(&format!("[`{name}`]")), "{name} is not in the map");
    }
    for path in sources(&src()) {
        module(&path).map(|name| rank(&name));
    }
}
