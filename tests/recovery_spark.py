#!/usr/bin/env python3
"""What spark-usher sees of real Spark drivers whose executors run as local processes and register.

A driver in client mode runs in a notebook's pod of the sandbox, at that pod's loopback address, and serves its REST API there. For
each executor pod that runs, this script starts the process that the pod's container would run, from the same jars: all but the
third one, which hangs before it registers: a rule deletes its pod, and the driver replaces it. Then it kills a process (kill -9),
deletes a pod, whose successor never starts until a rule has deleted it, and kills the driver, whose pod remains as failed: a rule deletes its executors. After each step it prints what
`/debug/apps` says beside what the driver itself says, and fails if they differ. The size of the gang comes from the driver alone.

    cargo build --release && python3 tests/recovery_spark.py [VERSION ...]

Spark is downloaded from PyPI (`pyspark`, up to 450 MB per version) to --cache if it is missing there. Requires Java 17 and Linux,
where every address of 127.0.0.0/8 is local.
"""

import json
import threading
import time
import urllib.error
import urllib.request

from real_spark import POLICY, Run, check, free_port, run_versions, wait_until

EXECUTORS = 3
OPENED = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch", "sun.util.calendar")
HANGS = "runs, but is not registered with its driver"


def get(url):
    with urllib.request.urlopen(url, timeout=5) as answer:
        return json.loads(answer.read())


RULES = """
recovery:
  act: true
  budget: 3600/h
  driverView: {interval: 5s}
  stuck: {mode: act, after: 20s, budget: 3600/h}
  unregistered: {mode: act, after: 150s, budget: 3600/h}
  orphans: {after: 10s, budget: 3600/h}
"""


class Recovery(Run):
    """A run whose replica also serves /debug, and whose executors are processes."""

    policy = POLICY + RULES

    def __init__(self, home, folder):
        super().__init__(home, folder)
        # In client mode no configuration tells the port, so it is one that is tried. The pod's address has no other process.
        self.debug, self.ui, self.address = free_port(), 4040, None
        self.executors, self.stopped = {}, threading.Event()

    def start(self, name, command, env=None, stdin=None):
        if name == "serve":
            command = [*command, "--debug-listen", f"127.0.0.1:{self.debug}"]
        if name == "client":
            at = command.index("spark-shell")
            own = {"spark.ui.enabled": "true", "spark.ui.port": self.ui, "spark.driver.bindAddress": "0.0.0.0",
                   "spark.executor.memory": "512m", "spark.executor.instances": EXECUTORS}
            command = [*command[:at], *(part for key, value in own.items() for part in ("--conf", f"{key}={value}")), command[at]]
            # The web UI listens on this address.
            env = {**(env or {}), "SPARK_LOCAL_IP": self.address}
        return super().start(name, command, env, stdin)

    def run_executors(self):
        """Starts the processes of executor pods, but the last one's."""
        while not self.stopped.is_set():
            try:
                pods = self.api.pods("executor")
            except (OSError, urllib.error.URLError):
                pods = []
            for pod in pods:
                name = pod["metadata"]["name"]
                if name in self.executors or pod["status"].get("phase") != "Running":
                    continue
                hangs = pod["metadata"]["labels"]["spark-exec-id"] == str(EXECUTORS)
                self.executors[name] = None if hangs else self.executor(name, pod)
            time.sleep(0.3)

    def executor(self, name, pod):
        """The command of the image's entrypoint.sh."""
        env = {entry["name"]: entry.get("value", "") for entry in pod["spec"]["containers"][0].get("env", [])}
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in OPENED]
        return super().start(name, [
            "java", "-Xmx512m", "-cp", f"{self.home}/jars/*", *opened,
            "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend", "--driver-url", env["SPARK_DRIVER_URL"],
            "--executor-id", env["SPARK_EXECUTOR_ID"], "--cores", "1", "--app-id", env["SPARK_APPLICATION_ID"],
            "--hostname", "127.0.0.1", "--resourceProfileId", env.get("SPARK_RESOURCE_PROFILE_ID", "0"), "--podName", name,
        ], {**env, "SPARK_LOCAL_IP": "127.0.0.1"})

    def stop(self):
        self.stopped.set()
        super().stop()

    def report(self):
        apps = get(f"http://127.0.0.1:{self.debug}/debug/apps")
        return apps[0] if apps else None

    def rows(self, app):
        """What the driver itself says: whether each executor is active."""
        rows = get(f"http://{self.address}:{self.ui}/api/v1/applications/{app}/allexecutors")
        return {row["id"]: row["isActive"] for row in rows if row["id"] != "driver"}

    def agree(self, what, app, holds):
        """Waits until the report has a view for which this holds, and prints it beside the driver's own."""
        report = wait_until(what, lambda: [report for report in [self.report()] if report and report["driverView"] and holds(report)], 200)[0]
        active = sum(self.rows(app).values())
        view = report["driverView"]
        check(f"{what}: {view['registered']} registered, the driver itself says {active}; vanished {view['vanished']}; "
              f"troubled {[(pod['pod'].rsplit('-', 1)[-1], pod['why']) for pod in report['troubled']]}",
              view["registered"] == active and view["complete"], report)
        return report


def nodes_start(run, start):
    """Whether the sandbox's nodes start pods."""
    patch = {"metadata": {"annotations": {"sandbox.spark-usher.io/node": None if start else "starts-nothing"}}}
    for node in run.api.call("GET", "/api/v1/nodes")["items"]:
        run.api.call("PATCH", f"/api/v1/nodes/{node['metadata']['name']}", patch, "application/merge-patch+json")


def registration(run):
    notebook = run.api.post("/api/v1/namespaces/default/pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "notebook"},
        "spec": {"serviceAccountName": "spark", "containers": [{"name": "notebook", "image": "jupyter"}]}})
    pod = "/api/v1/namespaces/default/pods/notebook"
    run.address = wait_until("the notebook runs", lambda: run.api.call("GET", pod)["status"].get("podIP"))
    began = time.monotonic()
    process = run.driver("client", run.credential_args(notebook))
    threading.Thread(target=run.run_executors, daemon=True).start()
    wait_until("the driver's view is read", lambda: (run.report() or {}).get("driverView"))
    print(f"   ok  the first view, {time.monotonic() - began:.0f} s after the driver was started", flush=True)
    app = run.report()["app"]
    groups = run.api.call("GET", "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups")["items"]
    sizes = [group["spec"]["minMember"] for group in groups]
    check(f"the gang has the size that only the driver states: {sizes}", sizes == [EXECUTORS], groups)
    run.agree("two of three register", app, lambda report: report["driverView"]["registered"] == EXECUTORS - 1)
    hung = run.agree("the third hangs", app, lambda report: [pod for pod in report["troubled"] if pod["why"] == HANGS])
    check("it is the one that hangs", hung["troubled"][0]["id"] == EXECUTORS, hung["troubled"])

    names = sorted(run.executors)
    began = time.monotonic()
    deleted = wait_until("the rule deletes it", lambda: run.report()["deletions"], 120)
    check(f"{deleted[0]['rule']} deleted {deleted[0]['pod'].rsplit('-', 1)[-1]}, {time.monotonic() - began:.0f} s after it was reported",
          [entry["pod"] for entry in deleted] == [names[EXECUTORS - 1]] and deleted[0]["rule"] == "unregistered", deleted)
    wait_until("the driver replaced it", lambda: run.rows(app).get(str(EXECUTORS + 1)), 120)
    run.agree("the driver replaced the executor that hung", app, lambda report: report["driverView"]["registered"] == EXECUTORS)

    run.executors[names[0]].kill()
    run.executors[names[0]].wait()
    time.sleep(35)
    run.agree("after kill -9 of a process, whose pod says Running", app, lambda report: report["driverView"])

    nodes_start(run, False)
    run.api.call("DELETE", f"/api/v1/namespaces/default/pods/{names[1]}")
    run.executors[names[1]].kill()
    # The driver sees the deletion in its watch, and requests another one, which no node starts.
    stuck = names[0].rsplit("-", 1)[0] + f"-{EXECUTORS + 2}"
    wait_until("the executor that does not start is named", lambda: [
        cause for cause in (run.report()["shortage"] or {"causes": []})["causes"] if cause["cause"] == "starting" and stuck in cause["message"]], 120)
    began = time.monotonic()
    deleted = wait_until("the rule deletes it", lambda: [entry for entry in run.report()["deletions"] if entry["pod"] == stuck], 120)
    check(f"{deleted[0]['rule']} deleted the executor that never started, {time.monotonic() - began:.0f} s after it was named",
          deleted[0]["rule"] == "stuck", deleted)
    nodes_start(run, True)
    # The driver requests another one, which registers.
    replaced = str(EXECUTORS + 3)
    wait_until("the driver replaced the deleted pod", lambda: run.rows(app).get(replaced), 120)
    run.agree("after a pod was deleted", app, lambda report: not report["driverView"]["vanished"] and report["driverView"]["registered"] == EXECUTORS)

    process.kill()
    process.wait()
    run.api.call("PATCH", f"{pod}/status", {"status": {"phase": "Failed"}}, "application/merge-patch+json")
    wait_until("the orphans are deleted", lambda: not run.api.pods("executor"), 120)
    cost = get(f"http://127.0.0.1:{run.debug}/debug/cost")
    rows = {row["cause"]: round(row["coreSeconds"]) for row in cost["namespaces"]}
    check(f"its executors are orphans, and a rule deleted them; core-seconds without work: {rows}",
          {entry["rule"] for entry in run.report()["deletions"]} == {"stuck", "unregistered", "orphans"}, cost)
    run.api.call("DELETE", pod)
    wait_until("the view is void with its driver", lambda: not (run.report() or {}).get("driverView"))
    print("   ok  the view is void with its driver", flush=True)


if __name__ == "__main__":
    run_versions(__doc__, ["4.3.0", "3.5.9", "3.3.4"], (registration,), Recovery)
