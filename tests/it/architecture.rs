//! The order of the modules, checked in the sources: which modules a module may use, and what the core must not use.

use std::path::{Path, PathBuf};

use crate::support::module_graph::{Graph, code, sources};

/// The ranks of the modules. A module may use itself and modules of a lower rank, no others.
const RANKS: &[(&str, u32)] = &[
    ("hash", 0),
    ("text", 0),
    ("time", 0),
    ("json", 0),
    ("spark", 1),
    ("annotations", 2),
    ("signature", 3),
    ("snapshot", 4),
    ("reason", 5),
    ("gang", 6),
    ("policy", 7),
    ("ownership", 8),
    ("admission", 9),
    ("manifests", 9),
    ("leader", 9),
    ("submit", 9),
    ("lifecycle", 10),
    ("drivers", 10),
    ("planning", 11),
    ("nodes", 11),
    ("recovery", 12),
    ("recorder", 13),
    ("views", 13),
    ("reconcile", 13),
    ("ui", 14),
    ("submission", 14),
    ("controller", 14),
    // The edge.
    ("runtime", 20),
    ("telemetry", 21),
    ("tls", 22),
    ("config", 23),
    ("http", 24),
    ("cluster", 24),
    ("sandbox", 25),
    ("app", 26),
    ("cli", 27),
];
/// Everything below this rank is the core.
const EDGE: u32 = 20;
/// Names that the core must not contain: runtimes, clients, clocks, the environment, files, logs.
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
/// The maximum number of lines of a file.
const MAX_LINES: usize = 700;

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
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
    found
        .unwrap_or_else(|| panic!("src/{module} has no rank: expected it in tests/it/architecture.rs and src/lib.rs"))
        .1
}

#[test]
fn modules_use_only_lower_ranked_modules() {
    let mut wrong = Vec::new();
    // Files of tests are compiled for tests only.
    let is_test = |path: &PathBuf| path.ends_with("tests.rs");
    for path in sources(&src()).into_iter().filter(|path| !is_test(path)) {
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
fn source_files_form_no_cycles() {
    let graph = Graph::read(&src());
    // The graph contains a known use, so it was read from the sources.
    let name = |path: &str| -> Vec<String> { path.split("::").map(str::to_owned).collect() };
    assert!(graph.uses[&name("admission::mutate")].contains(&name("ownership::resolve")));
    let cycles: Vec<String> = graph.cycles().iter().map(|module| module.join("::")).collect();
    assert!(cycles.is_empty(), "these files form cycles: {}", cycles.join(", "));
}

#[test]
fn cycle_through_re_export_or_child_module_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("room/mod.rs", "mod low;\nmod high;\npub use high::High;\npub use low::{Low as Lowest};\n");
    write("room/low.rs", "// use super::High;\npub struct Low;\n");
    write("room/high.rs", "use super::{\n    Lowest,\n};\npub struct High(Lowest);\n");
    write("other.rs", "pub fn f() { crate::room::High; }\n");
    assert!(Graph::read(folder.path()).cycles().is_empty());
    write("room/low.rs", "pub struct Low;\nfn f() { super::High; }\n");
    assert_eq!(Graph::read(folder.path()).cycles(), [["room", "high"], ["room", "low"]]);
    write("room/low.rs", "pub struct Low;\n");
    write("room/mod.rs", "mod low;\npub use low::Low;\npub const N: u8 = 1;\nfn g() { low::h() }\n");
    write("room/low.rs", "use super::N;\npub struct Low;\n");
    assert!(!Graph::read(folder.path()).cycles().is_empty(), "a module's own file and its child");
}

#[test]
fn core_uses_no_runtime_client_clock_or_io() {
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
fn no_task_or_thread_is_spawned_outside_supervisor() {
    // Work of `background` ends by itself, and its caller receives the result; what waits for a signal does nothing else.
    let may = ["runtime/background.rs", "runtime/shutdown.rs"];
    for path in sources(&src()).into_iter().filter(|path| may.iter().all(|may| !path.ends_with(may))) {
        let code = code(&path);
        let spawns = ["tokio::spawn", "task::spawn", "thread::spawn"].iter().any(|word| code.contains(word));
        assert!(!spawns, "{}", path.display());
    }
}

#[test]
fn source_files_stay_within_maximum_length() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for path in sources(&src()).into_iter().chain(sources(&tests)) {
        let lines = std::fs::read_to_string(&path).unwrap().lines().count();
        assert!(lines <= MAX_LINES, "{}: {lines} lines", path.display());
    }
}

#[test]
fn lib_rs_declares_and_documents_every_module() {
    let map = std::fs::read_to_string(src().join("lib.rs")).unwrap();
    for (name, _) in RANKS {
        assert!(map.contains(&format!("pub mod {name};")), "src/lib.rs declares no module {name}");
        assert!(map.contains(&format!("[`{name}`]")), "{name} is not in the table of src/lib.rs");
    }
    for path in sources(&src()) {
        module(&path).map(|name| rank(&name));
    }
}
