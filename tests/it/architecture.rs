//! What Cargo cannot see: the crates that decide use no clock, environment, file or thread, the files of a crate form no cycle, tasks are
//! spawned in one place, and files stay short. The order of the crates is in their `Cargo.toml`.

use std::path::{Path, PathBuf};

use crate::support::module_graph::{Graph, code, sources};

/// The crates that decide and describe: functions from facts to values. `submit` is one of them but for its module `api`.
const PURE: &[&str] = &["spark", "core", "config", "report", "submit"];
/// Names that they must not contain: clocks, the environment, files, the network, threads, randomness.
const IMPURE: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::process",
    "std::thread",
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "Zoned::now",
    "async fn",
    "async move",
    "async {",
    ".elapsed()",
    "println!",
    "SystemRandom",
    "TimeZone::system",
    "ToSocketAddrs",
    "futures::",
    "kube::Api",
    "kube::Client",
    "kube::{",
    "std::io::std",
    "std::{env",
    "std::{fs",
    "tokio::",
    "tracing::",
    "usher_net::",
    "usher_runtime::",
];
/// The dependencies of the pure crates, without those on each other. `submit` is left out: its module `api` needs a client.
const PURE_DEPENDENCIES: &str = " base64 equivalent imbl indexmap jiff json-patch k8s-openapi kube-core maud percent-encoding ring schemars \
    semver serde serde-saphyr serde_json serde_path_to_error smol_str thiserror wide wildmatch ";
/// The maximum number of lines of a file.
const MAX_LINES: usize = 700;

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The folders of the crates, and that of the program.
fn crates() -> Vec<PathBuf> {
    let folders = std::fs::read_dir(src()).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = folders.filter(|path| path.join("Cargo.toml").is_file()).collect();
    assert!(all.len() > 5 && PURE.iter().all(|name| all.contains(&src().join(name))), "{all:?}");
    all.push(src());
    all
}

/// The names in the table `[dependencies]` of a crate.
fn dependencies(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let table = text.split("\n[dependencies]\n").nth(1).unwrap_or_default().split("\n[").next().unwrap();
    let name = |line: &str| line.split(['.', ' ', '=']).next().unwrap().to_owned();
    table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(name).collect()
}

#[test]
fn crates_use_what_the_architecture_says() {
    let page = std::fs::read_to_string(src().join("../docs/architecture.md")).unwrap();
    let rows: Vec<(&str, &str)> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `src/")?.split_once("` | "))
        .filter_map(|(name, rest)| Some((name, rest.split_once(" |")?.0)))
        .filter(|(name, _)| src().join(name).join("Cargo.toml").is_file())
        .collect();
    assert_eq!(rows.len(), crates().len() - 1, "a row for each crate: {rows:?}");
    for (name, uses) in rows {
        let mut stated: Vec<String> =
            uses.split(", ").filter(|name| *name != "–").map(|name| format!("usher-{name}")).collect();
        stated.sort();
        let mut used = dependencies(&src().join(name));
        used.retain(|name| name.starts_with("usher-"));
        assert_eq!(used, stated, "src/{name}");
    }
    for name in PURE.iter().filter(|name| **name != "submit") {
        let mut others = dependencies(&src().join(name));
        others.retain(|name| !name.starts_with("usher-") && !PURE_DEPENDENCIES.contains(&format!(" {name} ")));
        assert!(others.is_empty(), "src/{name}: is each of {others:?} free of clocks, files, threads and connections?");
    }
}

#[test]
fn source_files_form_no_cycles() {
    let graph = Graph::read(&src().join("core"));
    // The graph contains a known use, so it was read from the sources.
    let name = |path: &str| -> Vec<String> { path.split("::").map(str::to_owned).collect() };
    assert!(graph.uses[&name("admission::mutate")].contains(&name("ownership::resolve")));
    for folder in crates() {
        let cycles: Vec<String> = Graph::read(&folder).cycles().iter().map(|module| module.join("::")).collect();
        assert!(cycles.is_empty(), "{}: these files form cycles: {}", folder.display(), cycles.join(", "));
    }
}

#[test]
fn first_file_of_a_crate_defines_nothing() {
    // What it defined could be in a cycle with a file below it, which the graph does not see.
    for folder in crates().into_iter().filter(|folder| *folder != src()) {
        let code = code(&folder.join("lib.rs"));
        let is_definition = |line: &&str| {
            let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            ["fn ", "async ", "const ", "static ", "struct ", "enum ", "trait ", "impl", "type ", "macro"]
                .iter()
                .any(|word| line.starts_with(word))
        };
        let definition = code.lines().map(str::trim).find(is_definition);
        assert_eq!(definition, None, "{}", folder.display());
    }
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
fn pure_crates_use_no_clock_environment_file_or_thread() {
    let mut wrong = Vec::new();
    let may = |path: &PathBuf| path.ends_with("test_time.rs") || path.starts_with(src().join("submit/api"));
    for path in PURE.iter().flat_map(|name| sources(&src().join(name))).filter(|path| !may(path)) {
        let code = code(&path);
        wrong.extend(
            IMPURE.iter().filter(|word| code.contains(**word)).map(|word| format!("{}: {word}", path.display())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn listeners_and_client_of_the_server_never_use_each_other() {
    for (folder, other) in [("http", "crate::cluster"), ("cluster", "crate::http")] {
        for path in sources(&src().join("server").join(folder)) {
            assert!(!code(&path).contains(other), "{} uses {other}", path.display());
        }
    }
}

#[test]
fn no_task_or_thread_is_spawned_outside_supervisor() {
    // A `JoinSet` is joined, or stops its tasks when it is dropped.
    let spawns = [
        "tokio::spawn",
        "task::spawn",
        "thread::spawn",
        "spawn_blocking",
        "thread::Builder",
        "runtime.spawn",
        "handle.spawn",
    ];
    let may = [
        // Work that ends by itself, and whose caller receives the result.
        "runtime/background.rs",
        "server/http/webhook.rs",
        "server/app/namespaces.rs",
        // It ends with the future that its caller awaits or drops.
        "runtime/isolated.rs",
        // It only waits for a signal.
        "runtime/shutdown.rs",
    ];
    let found: Vec<PathBuf> =
        sources(&src()).into_iter().filter(|path| spawns.iter().any(|word| code(path).contains(word))).collect();
    assert_eq!(found.len(), may.len(), "{found:?}");
    assert!(found.iter().all(|path| may.iter().any(|may| path.ends_with(may))), "{found:?}");
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
fn documentation_has_no_code_that_tests_would_run() {
    // tests/run has no `cargo test --doc`: its pass over every crate takes a minute for nothing.
    for path in sources(&src()) {
        let text = std::fs::read_to_string(&path).unwrap();
        let fences = text.lines().map(str::trim_start).filter_map(|line| line.strip_prefix("//")?.split_once("```"));
        for (_, language) in fences.step_by(2) {
            assert!(!language.is_empty() && language != "rust", "{}: expected ```text", path.display());
        }
    }
}
