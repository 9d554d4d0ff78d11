#!/usr/bin/env python3
"""Injects the bugs of tests/sim/bugs.toml into a copy of the sources, each behind a switch, and runs tests/sim/bugs.rs there: the
simulation and the tests of the recovery rules must find every one.

Each entry of bugs.toml is an edit of one file:

    [[core.NoGrace]]                          # who finds it, and its name; further edits of the same bug repeat this line
    what = "There is no grace ..."            # of the first edit only
    file = "src/reconcile/cleanup.rs"
    old = "let wait = «conf.grace()»;"        # occurs once; only the expression or statement in «» is replaced, if it has them
    new = "Duration::ZERO"                    # or a text in which BUG stands for the switch, where none can be inserted: a pattern

The indentation of lines does not count. An edit that no longer applies fails, with its name."""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
COPY = ROOT / "target/bugs"
BUGS = "tests/sim/bugs.toml"
# What the tests read. The program itself is not built: it would replace target/debug/spark-usher.
COPIED = ["src", "tests/sim", "tests/it/recovery", "tests/support"]
PROGRAM = "src/main.rs"
GROUPS = {
    "core": "The bugs that simulated histories of the core find.",
    "rules": "The bugs that the tests of the recovery rules find.",
    "nodes": "The bugs of the ledger of nodes that its simulated histories find.",
    "edge": "The bugs that simulated histories of whole replicas find.",
    "scenarios": "The bugs that scenarios of whole replicas find, because few histories do.",
}
# The simulation, with no bug injected, and the search. The tests of the recovery rules run elsewhere.
TESTS = ["controller::", "nodes::", "replicas::", "every_injected_bug_is_found"]


class Failed(Exception):
    pass


def pattern(text):
    """A regular expression for a text with any indentation of its further lines."""
    return re.escape(re.sub(r"\n[ \t]*", "\n", text)).replace("\\\n", r"\n[ \t]*")


def inject(text, edits):
    """Applies edits, each a dictionary with `bug`, `old` and `new`, to the text of a file.

    >>> edit = lambda old, new: {"bug": "B", "old": old, "new": new}
    >>> switch = "crate::injected_bugs::injected(crate::injected_bugs::Bug::B)"
    >>> inject("if a && b {", [edit("if «a» &&", "true")]) == f"if (if {switch} {{ true }} else {{ a }}) && b {{"
    True
    >>> inject("{\\n    f();\\n}", [edit("{\\n«f();»", "")]) == f"{{\\n    if {switch} {{ }} else {{ f(); }}\\n}}"
    True
    >>> inject("A => 1,", [edit("A => 1,", "A if BUG => 2, A => 1,")]) == f"A if {switch} => 2, A => 1,"
    True
    >>> inject("a a", [edit("a", "b")])
    Traceback (most recent call last):
    bugs.Failed: B: its old text occurs 2 times, expected once: a
    >>> inject("a b", [edit("a b", "c"), edit("b", "c")])
    Traceback (most recent call last):
    bugs.Failed: B and B: their old texts overlap; narrow them with «»: b
    """
    changes = []
    for edit in edits:
        bug, old, new = edit["bug"], edit["old"], edit["new"]
        before, marked, after = re.fullmatch("(.*)«(.*)»(.*)", old, re.DOTALL).groups() if "«" in old else ("", old, "")
        found = list(re.finditer(f"{pattern(before)}({pattern(marked)}){pattern(after)}", text))
        if len(found) != 1:
            raise Failed(f"{bug}: its old text occurs {len(found)} times, expected once: {old}")
        start, end = found[0].span(1)
        for other_start, other_end, _, other in changes:
            if start < other_end and other_start < end:
                raise Failed(f"{other} and {bug}: their old texts overlap; narrow them with «»: {old}")
        switch = f"crate::injected_bugs::injected(crate::injected_bugs::Bug::{bug})"
        replaced = text[start:end]
        if "BUG" in new:
            new = new.replace("BUG", switch)
        elif replaced.endswith(";"):
            new = f"if {switch} {{ {new + ' ' if new else ''}}} else {{ {replaced} }}"
        else:
            new = f"(if {switch} {{ {new} }} else {{ {replaced} }})"
        changes.append((start, end, new, bug))
    for start, end, new, _ in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def edits_of(groups):
    """The edits by file, and the bugs of each group with their descriptions."""
    by_file, bugs = {}, {group: {} for group in GROUPS}
    for group, named in groups.items():
        if group not in GROUPS:
            raise Failed(f"{BUGS}: unknown group {group}, expected one of {', '.join(GROUPS)}")
        for bug, edits in named.items():
            if any(bug in others for others in bugs.values()):
                raise Failed(f"{BUGS}: {bug} is in two groups")
            bugs[group][bug] = edits[0].get("what")
            for number, edit in enumerate(edits):
                expected = {"file", "old", "new"} | ({"what"} if number == 0 else set())
                if set(edit) != expected:
                    raise Failed(f"{BUGS}: edit {number + 1} of {bug} has {sorted(edit)}, expected {sorted(expected)}")
                by_file.setdefault(edit["file"], []).append({"bug": bug, **edit})
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
    """The package with its library and one test."""
    text = (ROOT / "Cargo.toml").read_text()
    # Tables of targets, up to the next table.
    text = re.sub(r"^\[\[(bin|test|bench)\]\]\n(?:(?!\[).*\n?)*", "", text, flags=re.M)
    text = text.replace("[package]\n", "[package]\nautobins = false\nautotests = false\nautobenches = false\nautoexamples = false\n", 1)
    # Without line numbers it is built more quickly.
    return text + '\n[[test]]\nname = "bugs"\npath = "tests/sim/bugs.rs"\n\n[profile.dev.package.spark-usher]\ndebug = false\n\n[workspace]\n'


def files():
    """Every file of the copy with its text."""
    by_file, bugs = edits_of(tomllib.loads((ROOT / BUGS).read_text()))
    copy = {"Cargo.toml": manifest(), "src/injected_bugs.rs": switches(bugs)}
    for name in ["Cargo.lock", *(str(path.relative_to(ROOT)) for folder in COPIED for path in sorted((ROOT / folder).rglob("*")) if path.is_file())]:
        copy[name] = (ROOT / name).read_text()
    del copy[PROGRAM]
    failed = []
    for name, edits in by_file.items():
        if name not in copy:
            failed.append(f"{edits[0]['bug']}: {name} does not exist")
            continue
        try:
            copy[name] = inject(copy[name], edits)
        except Failed as error:
            failed.append(f"{error} ({name})")
    if failed:
        raise Failed(f"edits of {BUGS} do not apply:\n" + "\n".join(failed))
    # The switches leave parentheses and names without a use.
    copy["src/lib.rs"] = "#![allow(unused)]\n" + copy["src/lib.rs"] + "\npub mod injected_bugs;\n"
    return copy, sum(map(len, bugs.values()))


def write(copy):
    """Writes what changed, so that cargo builds no more than that."""
    for path in [path for path in COPY.rglob("*") if path.is_file() and not path.is_symlink()]:
        if str(path.relative_to(COPY)) not in copy:
            path.unlink()
    for name, text in copy.items():
        path = COPY / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    fixtures = COPY / "tests/fixtures"
    if not fixtures.exists():
        fixtures.symlink_to(ROOT / "tests/fixtures")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that every edit applies")
    parser.add_argument("rest", nargs="*", help="arguments for the tests instead of the names of all of them; write -- before them")
    options = parser.parse_args()
    import doctest
    import bugs as module

    if doctest.testmod(module).failed:
        raise SystemExit("FAILED: the examples of tests/bugs.py")
    try:
        copy, count = files()
    except Failed as error:
        raise SystemExit(f"FAILED: {error}")
    print(f"{count} bugs can be injected")
    if options.check:
        return
    write(copy)
    # The tests need no program; support/process.rs names it when it is compiled.
    environment = {**os.environ, "CARGO_TARGET_DIR": str(ROOT / "target"), "CARGO_BIN_EXE_spark-usher": "/nonexistent", "RUST_BACKTRACE": "0"}
    command = ["cargo", "test", "--locked", "--quiet", "--manifest-path", str(COPY / "Cargo.toml"), "--test", "bugs", "--", *(options.rest or TESTS)]
    sys.stdout.flush()
    raise SystemExit(subprocess.run(command, cwd=COPY, env=environment).returncode)


if __name__ == "__main__":
    main()
