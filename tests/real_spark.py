#!/usr/bin/env python3
"""Tests with real Spark against `spark-usher sandbox` and `spark-usher serve`.

Client mode: a driver with the token of a notebook's pod creates its executors. Cluster mode: spark-submit creates the
driver's pod; then the script starts the driver that its container would run, with the pod's token and the configuration
from its ConfigMap. Cluster mode again, submitted by `spark-usher submit`. In all of them the executors must have their owner, scheduler and gang, and when one is deleted the
driver must detect it (its watch is a WebSocket) and request another one.

    cargo build --release && python3 tests/real_spark.py [VERSION ...]

Spark is downloaded from PyPI (`pyspark`, 450 MB per version) to --cache if it is missing there. Requires Java 17.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
GROUP = "scheduling.volcano.sh"
POLICY = """
apiVersion: spark-usher.io/v1alpha1
kind: PolicyFile
policies:
- name: batch
  scheduler: {type: volcano}
  queue: analytics
  overrides: [min-member]
"""


def spark_home(version, cache):
    home = cache / f"pyspark-{version}" / "deps"
    if not home.exists():
        cache.mkdir(parents=True, exist_ok=True)
        archive = cache / f"pyspark-{version}.tar.gz"
        if not archive.exists():
            subprocess.run([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", cache, f"pyspark=={version}"], check=True)
        with tarfile.open(archive) as tar:
            tar.extractall(cache, filter="data")
    return home


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


class Api:
    """The sandbox's plain HTTP port, where every client is an administrator."""

    def __init__(self, url):
        self.url = url

    def call(self, method, path, body=None, kind="application/json"):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": kind}, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def post(self, path, body):
        return self.call("POST", path, body)

    def pods(self, role):
        items = self.call("GET", f"/api/v1/namespaces/default/pods?labelSelector=spark-role%3D{role}")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]


def wait_until(what, holds, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            found = holds()
        except (OSError, urllib.error.URLError):
            found = None
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"FAILED: timed out after {seconds} s, waiting until {what}")


class Run:
    policy = POLICY

    def __init__(self, home, folder):
        self.home, self.folder, self.processes = home, folder, []
        self.http, self.https = free_port(), free_port()
        self.api = Api(f"http://127.0.0.1:{self.http}")

    def start(self, name, command, env=None, stdin=None):
        """Starts a command in the run's folder: a driver copies its JARs into the folder that it runs in."""
        log = open(self.folder / f"{name}.log", "wb")
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=stdin, env={**os.environ, **(env or {})}, cwd=self.folder)
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()

    def set_up(self, usher):
        self.usher = usher
        kubeconfig = self.folder / "kubeconfig"
        self.start("sandbox", [usher, "sandbox", "--http-port", str(self.http), "--https-port", str(self.https), "--kubeconfig", kubeconfig])
        wait_until("the sandbox answers", lambda: self.api.call("GET", "/version"))
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        self.api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"podgroups.{GROUP}"},
            "spec": {"group": GROUP, "scope": "Namespaced",
                     "names": {"kind": "PodGroup", "listKind": "PodGroupList", "plural": "podgroups", "singular": "podgroup"},
                     "versions": [{"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}})
        (self.folder / "policy.yaml").write_text(self.policy)
        webhook, metrics, ca = free_port(), free_port(), self.folder / "ca.pem"
        serve = self.start("serve", [usher, "serve", "--kubeconfig", kubeconfig, "--config", self.folder / "policy.yaml",
                             "--self-signed-for", "127.0.0.1", "--ca-out", ca, "--shutdown-delay-seconds", "0",
                             "--webhook-listen", f"127.0.0.1:{webhook}", "--metrics-listen", f"127.0.0.1:{metrics}"])

        def ready():
            if serve.poll() is not None:
                raise SystemExit("FAILED: spark-usher exited:\n" + (self.folder / "serve.log").read_text())
            return urllib.request.urlopen(f"http://127.0.0.1:{metrics}/readyz", timeout=2).status == 200

        wait_until("spark-usher is ready", ready)
        import base64
        self.api.post("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", {
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": {"name": "00-spark-usher"},
            "webhooks": [{
                "name": "mutate.spark-usher.io", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail", "timeoutSeconds": 2, "reinvocationPolicy": "IfNeeded",
                "objectSelector": {"matchExpressions": [{"key": "spark-role", "operator": "In", "values": ["driver", "executor"]}]},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}],
                "clientConfig": {"url": f"https://127.0.0.1:{webhook}/mutate", "caBundle": base64.b64encode(ca.read_bytes()).decode()}}]})
        self.api.post("/api/v1/namespaces/default/serviceaccounts",
                      {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "spark"}})

    def credential_args(self, pod):
        """The token that the kubelet would mount into a pod, and the CA."""
        bound = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        issued = self.api.post("/api/v1/namespaces/default/serviceaccounts/spark/token",
                               {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
                                "spec": {"boundObjectRef": bound, "expirationSeconds": 3600}})
        token, ca = self.folder / "token", self.folder / "cluster-ca.pem"
        token.write_text(issued["status"]["token"])
        kubeconfig = (self.folder / "kubeconfig").read_text()
        import base64
        ca.write_bytes(base64.b64decode(re.search(r'certificate-authority-data: "([^"]+)"', kubeconfig)[1]))
        return ["--conf", f"spark.kubernetes.authenticate.oauthTokenFile={token}",
                "--conf", f"spark.kubernetes.authenticate.caCertFile={ca}"]

    def driver(self, name, conf, env=None):
        """A driver on this machine: a Spark shell that waits for input."""
        # No container runs, so no executor ever registers. A shell waits for input and runs no job that requires executors.
        command = [self.home / "bin/spark-submit", "--master", f"k8s://https://127.0.0.1:{self.https}", "--deploy-mode", "client",
                   "--class", "org.apache.spark.repl.Main", "--name", "real",
                   "--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1",
                   "--conf", "spark.driver.port=0", "--conf", "spark.driver.blockManager.port=0",
                   "--conf", "spark.ui.enabled=false", "--conf", "spark.kubernetes.container.image=spark:any",
                   "--conf", "spark.kubernetes.allocation.batch.delay=200ms", *conf, "spark-shell"]
        return self.start(name, command, {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": "-Dscala.usejavacp=true", **(env or {})}, stdin=subprocess.PIPE)


def check(what, holds, shown):
    if not holds:
        raise SystemExit(f"FAILED: {what}\n{json.dumps(shown, indent=1)[:4000]}")
    print(f"   ok  {what}")


def check_executors(run, count, owner, group):
    executors = wait_until(f"{count} executors run", lambda: [pods for pods in [run.api.pods("executor")]
                      if len(pods) == count and all(pod["status"].get("phase") == "Running" for pod in pods)])[0]
    for pod in executors:
        meta, spec = pod["metadata"], pod["spec"]
        name = meta["name"]
        owners = [(ref["kind"], ref["name"], ref["uid"]) for ref in meta.get("ownerReferences", []) if ref.get("controller")]
        check(f"{name} is owned by pod {owner['metadata']['name']}", owners == [("Pod", owner["metadata"]["name"], owner["metadata"]["uid"])], pod)
        check(f"{name} has schedulerName volcano, queue analytics and gang {group}",
              spec["schedulerName"] == "volcano"
              and meta["annotations"]["scheduling.k8s.io/group-name"] == group
              and meta["annotations"]["scheduling.volcano.sh/queue-name"] == "analytics", pod)
    pod_group = run.api.call("GET", f"/apis/{GROUP}/v1beta1/namespaces/default/podgroups/{group}")
    check(f"PodGroup {group} is owned by the driver", pod_group["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"], pod_group)
    return executors, pod_group


def group_name(driver, selector):
    import hashlib
    return f"{driver}-{hashlib.sha256(selector.encode()).hexdigest()[:8]}"


def check_replacement(run, executors):
    deleted = executors[0]["metadata"]["name"]
    run.api.call("DELETE", f"/api/v1/namespaces/default/pods/{deleted}")
    replacements = wait_until("the driver replaced it", lambda: [pod for pod in run.api.pods("executor")
                  if pod["metadata"]["name"] not in [known["metadata"]["name"] for known in executors]
                  and pod["status"].get("phase") == "Running"])
    print(f"   ok  the driver detected that {deleted} was deleted, and {replacements[0]['metadata']['name']} replaced it")


def check_deletion_with_driver(run, driver, process):
    process.kill()
    process.wait()
    run.api.call("DELETE", f"/api/v1/namespaces/default/pods/{driver['metadata']['name']}")
    wait_until("the executors are deleted with the driver's pod", lambda: not run.api.pods("executor"))
    print("   ok  the driver's process was killed and its pod deleted, and its executors were deleted")


def client_mode(run):
    print("  client mode, in a notebook's pod", flush=True)
    notebook = run.api.post("/api/v1/namespaces/default/pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "notebook", "annotations": {"spark-usher.io/min-member": "2"}},
        "spec": {"serviceAccountName": "spark", "containers": [{"name": "notebook", "image": "jupyter"}]}})
    process = run.driver("client", ["--conf", "spark.executor.instances=2", *run.credential_args(notebook)])
    wait_until("an executor exists", lambda: run.api.pods("executor"))
    selector = run.api.pods("executor")[0]["metadata"]["labels"]["spark-app-selector"]
    executors, _ = check_executors(run, 2, notebook, group_name("notebook", selector))
    check_replacement(run, executors)
    check_deletion_with_driver(run, notebook, process)


def cluster_mode(run):
    print("  cluster mode")
    submit = subprocess.run(
        [run.home / "bin/spark-submit", "--master", f"k8s://http://127.0.0.1:{run.http}", "--deploy-mode", "cluster", "--name", "real",
         "--class", "org.apache.spark.examples.SparkPi", "--conf", "spark.executor.instances=3",
         "--conf", "spark.kubernetes.authenticate.driver.serviceAccountName=spark",
         "--conf", "spark.kubernetes.container.image=spark:any", "--conf", "spark.kubernetes.submission.waitAppCompletion=false",
         "local:///opt/spark/any.jar"], env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}, capture_output=True, text=True, timeout=180)
    check("spark-submit succeeded", submit.returncode == 0, submit.stderr)
    driver = wait_until("the driver runs", lambda: [pod for pod in run.api.pods("driver") if pod["status"].get("phase") == "Running"])[0]
    check("the driver has schedulerName volcano and no gang", driver["spec"]["schedulerName"] == "volcano"
          and "scheduling.k8s.io/group-name" not in driver["metadata"].get("annotations", {}), driver)
    volume = next(volume for volume in driver["spec"]["volumes"] if volume["name"].startswith("spark-conf-volume"))
    conf_map = run.api.call("GET", f"/api/v1/namespaces/default/configmaps/{volume['configMap']['name']}")
    # The image's entrypoint runs spark-submit --deploy-mode client --properties-file. Properties that are valid only in the container
    # (addresses, jars, mounts) are omitted.
    left_out = re.compile(r"^(spark\.driver\.(host|port|bindAddress|blockManager\.port)|spark\.jars|spark\.master|spark\.submit\.|spark\.kubernetes\.(submitInDriver|memoryOverheadFactor))")
    lines = [line for line in conf_map["data"]["spark.properties"].splitlines() if line and not line.startswith("#")]
    properties = run.folder / "spark.properties"
    properties.write_text("\n".join(line for line in lines if not left_out.match(line)) + "\n")
    process = run.driver("cluster", ["--properties-file", properties, *run.credential_args(driver)],
                         {"SPARK_APPLICATION_ID": driver["metadata"]["labels"]["spark-app-selector"]})
    selector = driver["metadata"]["labels"]["spark-app-selector"]
    executors, pod_group = check_executors(run, 3, driver, group_name(driver["metadata"]["name"][:54].rstrip("-."), selector))
    check("the PodGroup has the size from the ConfigMap", pod_group["spec"]["minMember"] == 3, pod_group)
    check_replacement(run, executors)
    check_deletion_with_driver(run, driver, process)


def container_of(pod, name):
    return next(container for container in pod["spec"]["containers"] if container["name"] == name)


def submitted_by_usher(run):
    """The driver runs as the image's entrypoint would run it: with the arguments, the environment and the properties file that
    `spark-usher submit` made. Replaced is only what a container provides: the paths of its mounts, its address, token and DNS."""
    print("  cluster mode, submitted by spark-usher")
    # A shell waits for input and runs no job that requires executors: no container runs, so no executor ever registers.
    jar = next((run.home / "jars").glob("spark-repl_*.jar"))
    version = re.search(r"pyspark-([0-9.]+)", str(run.home))[1]
    began = time.monotonic()
    submit = subprocess.run(
        [run.usher, "submit", "--kubeconfig", run.folder / "kubeconfig", "--master", f"k8s://http://127.0.0.1:{run.http}", "--name", "real",
         "--class", "org.apache.spark.repl.Main", "--conf", "spark.executor.instances=3", "--gang", "--no-wait",
         "--conf", "spark.kubernetes.authenticate.driver.serviceAccountName=spark", "--conf", "spark.ui.enabled=false",
         "--conf", f"spark.kubernetes.container.image=spark:{version}", "--conf", "spark.kubernetes.allocation.batch.delay=200ms",
         f"local://{jar}"], capture_output=True, text=True, timeout=60)
    check(f"spark-usher submitted in {(time.monotonic() - began) * 1000:.0f} ms", submit.returncode == 0, submit.stderr)
    driver = wait_until("the driver runs", lambda: [pod for pod in run.api.pods("driver") if pod["status"].get("phase") == "Running"])[0]
    container = container_of(driver, "spark-kubernetes-driver")
    conf_dir = run.folder / "conf"
    conf_dir.mkdir()
    volume = next(volume for volume in driver["spec"]["volumes"] if volume["name"] == "spark-conf-volume-driver")
    conf_map = run.api.call("GET", f"/api/v1/namespaces/default/configmaps/{volume['configMap']['name']}")
    for item in volume["configMap"]["items"]:
        (conf_dir / item["path"]).write_text(conf_map["data"][item["key"]])
    mount = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == volume["name"])
    env = {variable["name"]: variable.get("value", "127.0.0.1") for variable in container["env"]}
    check("the configuration is where SPARK_CONF_DIR and the arguments say", env["SPARK_CONF_DIR"] == mount, container)
    env |= {"SPARK_CONF_DIR": str(conf_dir), "SPARK_LOCAL_DIRS": str(run.folder), "SPARK_LOCAL_IP": "127.0.0.1"}
    token, ca = [argument.split("=", 1)[1] for argument in run.credential_args(driver) if "=" in argument]
    mounted = "spark.kubernetes.authenticate.driver.mounted"
    # As the entrypoint of the image: kubernetes/dockerfiles/spark/entrypoint.sh.
    check("the container's arguments begin with driver", container["args"][0] == "driver", container)
    arguments = [argument.replace(mount, str(conf_dir)) for argument in container["args"][1:]]
    process = run.start("submitted", [
        run.home / "bin/spark-submit", "--conf", "spark.driver.bindAddress=127.0.0.1", "--deploy-mode", "client",
        "--conf", f"spark.kubernetes.driver.master=https://127.0.0.1:{run.https}", "--conf", f"{mounted}.oauthTokenFile={token}",
        "--conf", f"{mounted}.caCertFile={ca}", *arguments], {**env, "SPARK_SUBMIT_OPTS": "-Dscala.usejavacp=true"}, stdin=subprocess.PIPE)
    selector = driver["metadata"]["labels"]["spark-app-selector"]
    executors, pod_group = check_executors(run, 3, driver, group_name(driver["metadata"]["name"][:54].rstrip("-."), selector))
    check("the PodGroup has the size that --gang wrote", pod_group["spec"]["minMember"] == 3, pod_group)
    requests = {pod["spec"]["containers"][0]["resources"]["requests"]["memory"] for pod in executors}
    check("executors request what --gang wrote", requests == {json.loads(driver["metadata"]["annotations"]["spark-usher.io/executor-resources"])["memory"]}, requests)
    # Newer versions use the address of the driver's pod (spark.kubernetes.executor.useDriverPodIP), older ones its Service.
    service = driver["metadata"]["name"].removesuffix("-driver") + "-driver-svc.default.svc"
    urls = {variable["value"] for pod in executors for variable in pod["spec"]["containers"][0]["env"] if variable["name"] == "SPARK_DRIVER_URL"}
    expected = {f"spark://CoarseGrainedScheduler@{service if version < '4' else '127.0.0.1'}:7078"}
    check("executors connect to the driver", urls == expected, [*expected, *urls])
    check_replacement(run, executors)
    check_deletion_with_driver(run, driver, process)


def run_versions(description, default, scenarios, kind=Run):
    """Parses the command line, and runs these scenarios with each version of Spark."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=default)
    parser.add_argument("--usher", type=pathlib.Path, default=ROOT / "target/release/spark-usher")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/spark-usher")
    parser.add_argument("--logs", type=pathlib.Path, help="keep the logs in this folder")
    options = parser.parse_args()
    for version in options.versions:
        home = spark_home(version, options.cache.resolve())
        for scenario in scenarios:
            with tempfile.TemporaryDirectory() as scratch:
                folder = options.logs / f"{version}-{scenario.__name__}" if options.logs else pathlib.Path(scratch)
                folder.mkdir(parents=True, exist_ok=True)
                run = kind(home, folder.resolve())
                print(f"Spark {version}", flush=True)
                try:
                    run.set_up(options.usher.resolve())
                    scenario(run)
                finally:
                    run.stop()


if __name__ == "__main__":
    run_versions(__doc__, ["4.3.0", "3.5.9"], (client_mode, cluster_mode, submitted_by_usher))
