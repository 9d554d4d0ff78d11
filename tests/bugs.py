#!/usr/bin/env python3
"""Injects the bugs of tests/sim/bugs.toml into a copy of the sources, each behind a switch, and runs tests/sim/bugs.rs there: the
simulation and the tests of the recovery rules must find every one.

Each entry of bugs.toml is an edit of one file:

    [[core.NoGrace]]                          # who finds it, and its name; further edits of the same bug repeat this line
    what = "There is no grace ..."            # of the first edit only
    file = "src/core/reconcile/cleanup.rs"
    old = "let wait = «conf.grace()»;"        # occurs once; only the expression or statement in «» is replaced, if it has them
    new = "Duration::ZERO"                    # or a text in which BUG stands for the switch, where none can be inserted: a pattern

The indentation of lines does not count, and comments are not edited. An edit that no longer applies fails, with its name."""

import argparse
import doctest
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/bugs"
BUGS = "tests/sim/bugs.toml"
# What the tests read. The program itself is not built: it would replace target/debug/spark-usher.
COPIED = ["src", "tests/sim", "tests/it/recovery", "tests/support"]
PROGRAM = ("src/main.rs", "src/cli/")
GROUPS = {
    "core": "The bugs that simulated histories of the core find.",
    "rules": "The bugs that the tests of the recovery rules find.",
    "nodes": "The bugs of the ledger of nodes that its simulated histories find.",
    "edge": "The bugs that simulated histories of whole replicas find.",
    "scenarios": "The bugs that scenarios of whole replicas find, because few histories do.",
}
# The simulation, with no bug injected, and the search. The tests of the recovery rules run elsewhere.
SIMULATION = ["controller::", "nodes::", "replicas::"]
SEARCH = "bugs::"
# The switches stand in the crate that all with edits use; net does not.
MODULE = "usher_spark::injected_bugs"


class Failed(Exception):
    pass


def pattern(text):
    """A regular expression for a text with any indentation of its further lines."""
    return re.escape(re.sub(r"\n[ \t]*", "\n", text)).replace("\\\n", r"\n[ \t]*")


def word_edges(text):
    """The text must not begin or end inside a word."""
    return (r"\b" if re.match(r"\w", text) else ""), (r"\b" if re.search(r"\w$", text) else "")


def switched(edit, replaced):
    """What stands in the copy instead of the text that an edit replaces."""
    new = edit["new"].strip()
    switch = f"{MODULE}::injected({MODULE}::Bug::{edit['bug']})"
    if re.search(r"\bBUG\b", new):
        if re.search(r'"[^"\n]*\bBUG\b[^"\n]*"', new):
            raise Failed("its new text has BUG in a string")
        return re.sub(r"\bBUG\b", switch, new)
    if replaced.rstrip().endswith(",") or "//" in replaced or "//" in new:
        raise Failed("a list or a comment cannot be switched")
    if not replaced.endswith(";"):
        return f"(if {switch} {{ {new} }} else {{ {replaced} }})"
    if re.match(r"\s*(let|use|const|static|fn|type)\b", replaced):
        raise Failed("a declaration would end with the switch's block: mark its value")
    return f"if {switch} {{ {new + ' ' if new else ''}}} else {{ {replaced} }}"


def inject(text, edits):
    """Applies edits, each a dictionary with `bug`, `old` and `new`, to the text of a file. Returns it with the reasons of those that do
    not apply. The text in «» must be a whole operand: `a + «b * c»`, not `a - «b + c»`.

    >>> edit = lambda old, new: {"bug": "B", "old": old, "new": new}
    >>> switch = "usher_spark::injected_bugs::injected(usher_spark::injected_bugs::Bug::B)"
    >>> inject("if a && b {", [edit("if «a» &&", "true")])[0] == f"if (if {switch} {{ true }} else {{ a }}) && b {{"
    True
    >>> inject("{\\n    f();\\n}", [edit("{\\n«f();»", "")])[0] == f"{{\\n    if {switch} {{ }} else {{ f(); }}\\n}}"
    True
    >>> inject("A => 1,", [edit("A => 1,", "A if BUG => 2, A => 1,")])[0] == f"A if {switch} => 2, A => 1,"
    True
    >>> failed = lambda text, *edits: print("; ".join(inject(text, edits)[1]))
    >>> failed("a a", edit("a", "b"))
    B: its old text occurs 2 times, expected once: a
    >>> failed("a, a, a", edit("a, a", "b"))
    B: its old text occurs 2 times, expected once: a, a
    >>> failed("is_lost // lost", edit("lost", "b"))
    B: its old text occurs 0 times, expected once: lost
    >>> failed("a b", edit("a b", "c"), edit("b", "c"))
    B: its old text overlaps with that of B; narrow them with «»: b
    >>> failed("a b", edit("«a", "c"), edit("«a» «b»", "c"), edit("a«»", "c"))
    B: its old text needs one « before one », with a text between them: «a; B: its old text needs one « before one », with a text between them: «a» «b»; B: its old text needs one « before one », with a text between them: a«»
    >>> failed("let a = 1; f(a,)", edit("let a = 1;", ""), edit("a,", "b,"), edit("f", 'g("BUG")'))
    B: a declaration would end with the switch's block: mark its value: let a = 1;; B: a list or a comment cannot be switched: a,; B: its new text has BUG in a string: f
    """
    changes, failed = [], []
    code = re.sub(r"//[^\n]*", lambda comment: "\0" * len(comment[0]), text)
    for edit in edits:
        old = edit["old"].strip()
        marks = re.fullmatch("([^«»]*)«([^«»]+)»([^«»]*)", old) if re.search("[«»]", old) else re.fullmatch("()(.+)()", old, re.DOTALL)
        try:
            if not marks:
                raise Failed("its old text needs one « before one », with a text between them")
            before, marked, after = marks.groups()
            begin, end = word_edges(before + marked + after)
            inner_begin, inner_end = word_edges(marked)
            regex = f"(?={begin}{pattern(before)}{inner_begin}({pattern(marked)}){inner_end}{pattern(after)}{end})"
            found = list(re.finditer(regex, code))
            if len(found) != 1:
                raise Failed(f"its old text occurs {len(found)} times, expected once")
            start, end = found[0].span(1)
            for other_start, other_end, _, other in changes:
                if start < other_end and other_start < end:
                    raise Failed(f"its old text overlaps with that of {other}; narrow them with «»")
            changes.append((start, end, switched(edit, text[start:end]), edit["bug"]))
        except Failed as error:
            failed.append(f"{edit['bug']}: {error}: {old}")
    for start, end, new, _ in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text, failed


def edits_of(groups):
    """The edits by file, and the bugs of each group with their descriptions."""
    by_file, bugs = {}, {group: {} for group in GROUPS}
    if set(groups) != set(GROUPS):
        raise Failed(f"{BUGS}: it has the groups {', '.join(groups)}, expected {', '.join(GROUPS)}")
    for group, named in groups.items():
        for bug, edits in named.items() if isinstance(named, dict) else [(group, None)]:
            if not (isinstance(edits, list) and edits and all(isinstance(edit, dict) for edit in edits)):
                raise Failed(f"{BUGS}: {bug}: expected entries that begin with [[{group}.{bug}]]")
            if not re.fullmatch("[A-Z][A-Za-z0-9]+", bug) or bug == "Self":
                raise Failed(f"{BUGS}: {bug} is no name of a bug, expected CamelCase")
            if any(bug in others for others in bugs.values()):
                raise Failed(f"{BUGS}: {bug} is in two groups")
            for number, edit in enumerate(edits):
                expected = {"file", "old", "new"} | ({"what"} if number == 0 else set())
                if set(edit) != expected or not all(isinstance(value, str) for value in edit.values()):
                    raise Failed(f"{BUGS}: edit {number + 1} of {bug} has {sorted(edit)}, expected texts {sorted(expected)}")
                if not re.match("src/(?!(net|runtime)/)[a-z]+/", edit["file"]) or edit["file"].startswith(PROGRAM):
                    raise Failed(f"{BUGS}: {bug}: {edit['file']} is no file of a library that uses usher-spark, expected src/CRATE/…")
                by_file.setdefault(edit["file"], []).append({"bug": bug, **edit})
            bugs[group][bug] = edits[0]["what"]
            if "\n" in edits[0]["what"]:
                raise Failed(f"{BUGS}: {bug}: its description has several lines")
    return by_file, bugs


def switches(bugs):
    """The module of the copy that the tests inject bugs with."""
    names = [f"    /// {what}\n    {bug},\n" for group in bugs.values() for bug, what in group.items()]
    lists = [
        f"    /// {text}\n    pub const {group.upper()}: &'static [Bug] = &[{', '.join(f'Bug::{bug}' for bug in bugs[group])}];\n"
        for group, text in GROUPS.items()
    ]
    return f"""//! The bugs that are injected into this copy, one at a time for each thread.

/// A bug that can be injected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {{
{''.join(names)}}}

impl Bug {{
{''.join(lists)}}}

thread_local! {{
    static INJECTED: std::cell::Cell<Option<Bug>> = const {{ std::cell::Cell::new(None) }};
}}

/// Injects a bug for this thread, or removes it.
pub fn inject(bug: Option<Bug>) {{
    INJECTED.set(bug);
}}

/// Whether this bug is injected.
pub fn injected(bug: Bug) -> bool {{
    INJECTED.get() == Some(bug)
}}
"""


def manifest():
    """The workspace, with one test of the package."""
    text = read("Cargo.toml")
    # Tables of targets, up to the next table.
    text = re.sub(r"^\[\[(bin|test|bench)\]\]\n(?:(?!\[).*\n?)*", "", text, flags=re.M)
    text = text.replace("[package]\n", "[package]\nautobins = false\nautotests = false\nautobenches = false\nautoexamples = false\n", 1)
    # The core decides in every history: optimized, it is built more slowly, and its histories run several times as fast.
    core = "\n[profile.dev.package.usher-core]\nopt-level = 1\n"
    return text + '\n[[test]]\nname = "bugs"\npath = "tests/sim/main.rs"\n' + core


def files():
    """Every file of the copy with its text, and the names of the bugs."""
    import tomllib

    try:
        by_file, bugs = edits_of(tomllib.loads(read(BUGS)))
    except tomllib.TOMLDecodeError as error:
        raise Failed(f"{BUGS}: {error}") from None
    copy = {"Cargo.toml": manifest(), "Cargo.lock": read("Cargo.lock"), "src/spark/injected_bugs.rs": switches(bugs)}
    for path in sorted(path for folder in COPIED for path in (ROOT / folder).rglob("*")):
        if path.is_file() and not path.name.startswith(".") and not path.name.endswith("~"):
            copy[str(path.relative_to(ROOT))] = read(path.relative_to(ROOT))
    copy = {name: text for name, text in copy.items() if not name.startswith(PROGRAM)}
    failed = []
    for name, edits in by_file.items():
        if name not in copy:
            failed.append(f"{edits[0]['bug']}: {name} does not exist")
            continue
        copy[name], wrong = inject(copy[name], edits)
        failed += [f"{error} ({name})" for error in wrong]
    if failed:
        raise Failed(f"edits of {BUGS} do not apply:\n" + "\n".join(failed))
    # The switches leave parentheses and names without a use.
    copy["tests/sim/main.rs"] += '\nmod bugs;\n#[path = "../it/recovery/mod.rs"]\nmod recovery;\n'
    for name in [name for name in copy if re.fullmatch("src/[a-z]+/lib.rs", name)]:
        copy[name] = "#![allow(unused)]\n" + copy[name]
    copy["src/spark/lib.rs"] += "\nextern crate self as usher_spark;\npub mod injected_bugs;\n"
    return copy, [bug for group in bugs.values() for bug in group]


def read(name):
    try:
        return (ROOT / name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Failed(f"{name}: {error}") from None


def write(copy):
    """Writes what changed, so that cargo builds no more than that."""
    for path in [path for path in COPY.rglob("*") if path.is_file() and not path.is_symlink()]:
        if str(path.relative_to(COPY)) not in copy:
            path.unlink()
    for name, text in copy.items():
        path = COPY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    fixtures = COPY / "tests/fixtures"
    if fixtures.is_symlink():
        fixtures.unlink()
    fixtures.symlink_to("../../../tests/fixtures")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that every edit applies")
    parser.add_argument("--seeds", type=int, help="how many histories to search, for a bug that is searched for in histories")
    parser.add_argument("bug", nargs="*", help="search only for these bugs, and show what finds them")
    options = parser.parse_args()
    if sys.version_info < (3, 11):
        raise SystemExit("FAILED: tests/bugs.py requires Python 3.11")
    if doctest.testmod().failed:
        raise SystemExit("FAILED: the examples of tests/bugs.py")
    try:
        copy, bugs = files()
    except Failed as error:
        raise SystemExit(f"FAILED: {error}")
    unknown = [bug for bug in options.bug if bug not in bugs]
    if unknown:
        raise SystemExit(f"FAILED: {', '.join(unknown)}: expected one of {', '.join(bugs)}")
    print(f"{len(bugs)} bugs can be injected", flush=True)
    if options.check:
        return
    write(copy)
    # The tests need no program; support/process.rs names it when it is compiled.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target"), "CARGO_BIN_EXE_spark-usher": "/nonexistent", "RUST_BACKTRACE": "0"}
    environment |= {"BUGS": " ".join(options.bug), **({"SEARCHED_SEEDS": str(options.seeds)} if options.seeds else {})}
    chosen = [SEARCH, "--nocapture"] if options.bug else [*SIMULATION, SEARCH]
    command = ["cargo", "test", "--locked", "--quiet", "--manifest-path", str(COPY / "Cargo.toml"), "--test", "bugs", "--", *chosen]
    done = subprocess.run(command, cwd=COPY, env=environment, stderr=subprocess.PIPE, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise SystemExit(done.returncode)
    # A filter that matches no test passes.
    found = re.search(r"^(\d+) injected bugs are found$", done.stderr, re.M)
    if not found or int(found[1]) != len(options.bug or bugs):
        raise SystemExit(f"FAILED: the search for {len(options.bug or bugs)} bugs did not run")


if __name__ == "__main__":
    main()
