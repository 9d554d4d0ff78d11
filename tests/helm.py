"""Helm, the chart, and the validation of what it renders, for the tests of the chart and of the recipes."""

import json
import os
import subprocess

from tools import ROOT

CHART = ROOT / "charts/spark-usher"
NAMESPACE = "usher-system"
NEWEST = "1.37"
MAP = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
# What every installation sets: no image is published yet.
IMAGE = {"registry": "registry.example.com", "repository": "platform/spark-usher"}


class Helm:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, scratch
        home = {name: str(scratch / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        self.environment = {**os.environ, **home}

    def __call__(self, *args, values=None, code=0):
        """Runs helm. `values` are a dict, to which the image is added, or the text of a whole values file."""
        if values is not None:
            path = self.scratch / "values.yaml"
            path.write_text(values if isinstance(values, str) else json.dumps({**values, "image": {**IMAGE, **values.get("image", {})}}))
            args = (*args, "--values", str(path))
        done = subprocess.run([str(self.program), *args], capture_output=True, text=True, timeout=120, env=self.environment)
        output = done.stdout + done.stderr
        if (done.returncode == 0) != (code == 0):
            raise SystemExit(f"FAILED: helm {' '.join(args)}: exit {done.returncode}\n{output}")
        return done.stdout if code == 0 else output

    def template(self, values, *more, api_versions=(MAP,)):
        """The text and the objects of the rendered chart."""
        import yaml

        served = [arg for version in api_versions for arg in ("--api-versions", version)]
        text = self("template", "spark-usher", str(CHART), "--namespace", NAMESPACE, "--kube-version", NEWEST, *served, *more, values=values)
        return text, [document for document in yaml.safe_load_all(text) if document]


def is_foreign(document):
    """Whether the kind is of a CustomResourceDefinition, of which no schema is at hand."""
    group = document["apiVersion"].rpartition("/")[0]
    return "." in group and (not group.endswith(".k8s.io") or group in ("sparkoperator.k8s.io",))


def check_object(document):
    """What Kubernetes' schemas say against an object, or None."""
    import kubernetes_validate

    if is_foreign(document):
        return None
    try:
        kubernetes_validate.validate(document, NEWEST, strict=True)
    except kubernetes_validate.ValidationError as error:
        return str(error)
