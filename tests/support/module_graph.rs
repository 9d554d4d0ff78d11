//! The graph of uses between the files of a crate, read from the sources: `use` declarations and paths, through re-exports.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module by its path from the crate's root; empty for `lib.rs` and `main.rs`.
pub(crate) type Module = Vec<String>;

/// All `.rs` files below a folder.
pub(crate) fn sources(folder: &Path) -> Vec<PathBuf> {
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

/// The code of a file: without comments, and without its unit tests.
pub(crate) fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("\nmod tests {").next().unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The module of a file.
fn module_of(src: &Path, path: &Path) -> Module {
    let relative = path.strip_prefix(src).unwrap().with_extension("");
    let mut parts: Module = relative.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if parts.last().is_some_and(|last| last == "mod") {
        parts.pop();
    }
    if parts == ["lib"] || parts == ["main"] { Vec::new() } else { parts }
}

/// The paths of a `use` tree: `a::{b, c::d as e}` is `a::b` and `a::c::d`, each with the name that it gets.
fn leaves(tree: &str, prefix: &[String], out: &mut Vec<(Vec<String>, String)>) {
    let tree = tree.trim();
    if let Some((head, body)) = tree.split_once('{') {
        let head: Vec<String> =
            head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect();
        let prefix = [prefix, &head].concat();
        let (mut depth, mut from) = (0, 0);
        let body = body.rsplit_once('}').unwrap().0;
        for (at, c) in body.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 0 => {
                    leaves(&body[from..at], &prefix, out);
                    from = at + 1;
                }
                _ => {}
            }
        }
        leaves(&body[from..], &prefix, out);
    } else if !tree.is_empty() {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
        let mut path: Vec<String> =
            prefix.iter().cloned().chain(path.split("::").map(|part| part.trim().to_owned())).collect();
        if path.last().is_some_and(|last| last == "self") {
            path.pop();
        }
        let name = alias.map_or_else(|| path.last().cloned().unwrap_or_default(), str::to_owned);
        out.push((path, name));
    }
}

/// Every file, its re-exports by name, and its uses.
pub(crate) struct Graph {
    reexports: BTreeMap<Module, BTreeMap<String, Vec<String>>>,
    /// The modules that each module uses.
    pub(crate) uses: BTreeMap<Module, BTreeSet<Module>>,
}

impl Graph {
    /// The graph of the crate in a folder, without the crates below it.
    pub(crate) fn read(src: &Path) -> Graph {
        let is_of_crate = |path: &&PathBuf| {
            let mut folders = path.ancestors().skip(1).take_while(|folder| *folder != src);
            !folders.any(|folder| folder.join("Cargo.toml").exists())
        };
        let files: BTreeMap<Module, String> = sources(src)
            .iter()
            .filter(is_of_crate)
            .map(|path| (module_of(src, path), code(path)))
            .filter(|(module, _)| !module.is_empty())
            .collect();
        let modules: BTreeSet<Module> = files.keys().cloned().chain([Vec::new()]).collect();
        let mut graph = Graph { reexports: BTreeMap::new(), uses: BTreeMap::new() };
        let mut paths: BTreeMap<Module, Vec<Vec<String>>> = BTreeMap::new();
        for (module, code) in &files {
            let mut own = Vec::new();
            let mut rest = String::new();
            for statement in code.split(';') {
                let declaration = statement.lines().position(|line| {
                    let line = line.trim_start();
                    line.starts_with("use ") || (line.starts_with("pub") && line.contains(" use "))
                });
                let Some(line) = declaration else {
                    rest.push_str(statement);
                    rest.push(';');
                    continue;
                };
                let text: Vec<&str> = statement.lines().skip(line).collect();
                let text = text.join(" ");
                let (visibility, tree) = text.split_once("use ").unwrap();
                let mut found = Vec::new();
                leaves(tree, &[], &mut found);
                for (path, name) in found {
                    let Some(path) = absolute(module, &path, &modules) else { continue };
                    if visibility.trim().is_empty() {
                        own.push(path);
                    } else {
                        // A folder shows what its files define; any other re-export is a use.
                        if !path.starts_with(module) {
                            own.push(path.clone());
                        }
                        graph.reexports.entry(module.clone()).or_default().insert(name, path);
                    }
                }
                rest.extend(statement.lines().take(line));
                rest.push(';');
            }
            own.extend(paths_of(&rest).into_iter().filter_map(|path| absolute(module, &path, &modules)));
            paths.insert(module.clone(), own);
        }
        for (module, paths) in paths {
            let used: BTreeSet<Module> = paths
                .iter()
                .map(|path| graph.defines(path, &modules, 0))
                .filter(|used| !used.is_empty() && *used != module)
                .collect();
            graph.uses.insert(module, used);
        }
        graph
    }

    /// The file that defines what a path names.
    fn defines(&self, path: &[String], modules: &BTreeSet<Module>, depth: usize) -> Module {
        let at = (0..=path.len()).rev().find(|at| modules.contains(&path[..*at])).unwrap();
        let (module, rest) = path.split_at(at);
        match rest.first().and_then(|name| self.reexports.get(module)?.get(name)) {
            Some(to) if depth < 8 => self.defines(&[to.as_slice(), &rest[1..]].concat(), modules, depth + 1),
            _ => module.to_vec(),
        }
    }

    /// The modules in cycles: each of them reaches itself.
    pub(crate) fn cycles(&self) -> Vec<Module> {
        self.uses.keys().filter(|module| self.leads(module, module)).cloned().collect()
    }

    /// Whether a chain of uses leads from one file to another.
    fn leads(&self, from: &Module, to: &Module) -> bool {
        let mut seen = BTreeSet::new();
        let mut open: Vec<&Module> = vec![from];
        while let Some(module) = open.pop() {
            for used in self.uses.get(module).into_iter().flatten() {
                if used == to {
                    return true;
                }
                if seen.insert(used) {
                    open.push(used);
                }
            }
        }
        false
    }
}

/// A path from the crate's root; `None` for one that leads out of the crate.
fn absolute(module: &Module, path: &[String], modules: &BTreeSet<Module>) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => {
            let up = path.iter().take_while(|part| *part == "super").count();
            let base = &module[..module.len().checked_sub(up)?];
            Some([base, &path[up..]].concat())
        }
        first => {
            let child = [module.as_slice(), &[first.to_owned()]].concat();
            modules.contains(&child).then(|| [module, path].concat())
        }
    }
}

/// Every `a::b` in code.
fn paths_of(code: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    // `pub(in path)` declares the visibility of an item, not a use.
    let code = code.replace("pub(in crate::", "pub(in ");
    let words = code.split(|c| !is_word(c)).filter(|word| word.contains("::"));
    words.map(|word| word.trim_end_matches(':').split("::").map(str::to_owned).collect()).collect()
}
