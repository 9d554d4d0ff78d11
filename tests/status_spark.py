#!/usr/bin/env python3
"""What `spark-submit --status`, `--kill` and its waiting print, compared with spark-usher's `--spark-compatible`, to the byte.

    cargo build --release && python3 tests/status_spark.py [VERSION ...]

Both ask the same `spark-usher sandbox` about the same pods. Spark is downloaded from PyPI (`pyspark`, 450 MB per version) to --cache if it
is missing there. Requires Java 17."""

import json
import os
import re
import subprocess
import threading
import time

from real_spark import Run, check, run_versions, wait_until

IMAGE = "reg.example/spark:4.3.0"
STARTED, FINISHED = "2026-11-25T00:00:05Z", "2026-11-25T00:01:00Z"
STATES = {
    "pending": ("Pending", []),
    "pulling": ("Pending", [{"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}]),
    "running": ("Running", [{"running": {"startedAt": STARTED}}, {"running": {"startedAt": STARTED}}]),
    "failed": ("Failed", [{"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": STARTED, "finishedAt": FINISHED}}]),
    "odd": ("Failed", [{"terminated": {"exitCode": 0}}, {}]),
}


class Sandbox(Run):
    def set_up(self, usher):
        self.usher = usher
        self.start("sandbox", [usher, "sandbox", "--no-run", "--http-port", str(self.http), "--https-port", str(self.https),
                               "--kubeconfig", self.folder / "kubeconfig"])
        wait_until("the sandbox answers", lambda: self.api.call("GET", "/version"))

    def pod(self, name, labels, phase, states, **spec):
        containers = [{"name": "spark-kubernetes-driver", "image": IMAGE}, {"name": "log-shipper", "image": IMAGE}][: max(1, len(states))]
        self.api.post("/api/v1/namespaces/default/pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {"containers": containers, **spec}})
        statuses = [{"name": container["name"], "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0, "state": state}
                    for container, state in zip(containers, states)]
        status = {"phase": phase, "containerStatuses": statuses, **({"startTime": STARTED} if phase != "Pending" else {})}
        self.api.call("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", {"status": status}, "application/merge-patch+json")

    def environment(self):
        names = [name for name in os.environ if name.startswith(("SPARK_", "HADOOP_"))]
        return {name: value for name, value in os.environ.items() if name not in names} | {
            "SPARK_LOCAL_IP": "127.0.0.1", "KUBECONFIG": str(self.folder / "kubeconfig")}

    def master(self):
        return f"k8s://http://127.0.0.1:{self.http}"

    def spark(self, *arguments):
        return subprocess.run([self.home / "bin/spark-submit", "--master", self.master(), *arguments], env=self.environment(),
                              capture_output=True, text=True, timeout=120)

    def own(self, *arguments):
        command, *rest = arguments
        return subprocess.run([self.usher, command, "--master", self.master(), *rest], env=self.environment(), capture_output=True, text=True, timeout=120)


def said(done):
    """What a command printed, without the lines of Spark's logger and of the JVM. Volumes of tokens have random names."""
    lines = [line for line in done.stderr.split("\n") if not re.match(r"^(\d\d/\d\d/\d\d \d\d:|WARNING: Using incubator|Using Spark's|Setting default|To adjust)", line)]
    return "\n".join(lines), done.stdout, done.returncode


def compare(what, theirs, ours):
    check(what, theirs == ours, {"spark-submit": theirs, "spark-usher": ours})


def status_and_kill(run):
    for name, (phase, states) in STATES.items():
        labels = {"spark-role": "driver", "spark-app-selector": f"spark-{name}", "b": "2", "a": "1"}
        run.pod(f"app-{name}-driver", labels, phase, states, serviceAccountName="default",
                volumes=[{"name": "one", "emptyDir": {}}, {"name": "two", "emptyDir": {}}])
    run.pod("plain", {}, "Running", [])
    for ident in [f"default:app-{name}-driver" for name in STATES] + ["default:app-*", "default:*", "default:nope", "default:no*", "app-failed-driver", "default:a*p-*"]:
        compare(f"--status {ident}", said(run.spark("--status", ident)), said(run.own("status", "--spark-compatible", ident)))
    grace = ["--conf", "spark.kubernetes.appKillPodDeletionGracePeriod=7s"]
    for ident, options in [("default:app-failed-driver", grace), ("default:app-*", []), ("default:nope", []), ("default:no*", [])]:
        theirs, left = said(run.spark(*options, "--kill", ident)), [pod["metadata"]["name"] for pod in run.api.pods("driver")]
        for name, (phase, states) in STATES.items():
            if f"app-{name}-driver" not in left:
                labels = {"spark-role": "driver", "spark-app-selector": f"spark-{name}"}
                run.pod(f"app-{name}-driver", labels, phase, states)
        ours = said(run.own("submit", *options, "--kill", ident))
        # Pods of a list are killed in no certain order. Spark 3 says nothing if the one pod does not exist.
        silent = "Application not found." if "pyspark-3" in str(run.home) and ident == "default:nope" else None
        compare(f"--kill {ident}", sorted(theirs[0].split("\n")), sorted(line for line in ours[0].split("\n") if line != silent))
        check(f"--kill {ident} deletes the same pods", left == [pod["metadata"]["name"] for pod in run.api.pods("driver")], left)
        for name, (phase, states) in STATES.items():
            if not any(pod["metadata"]["name"] == f"app-{name}-driver" for pod in run.api.pods("driver")):
                run.pod(f"app-{name}-driver", {"spark-role": "driver", "spark-app-selector": f"spark-{name}"}, phase, states)


def waiting(run):
    """One application that both wait for: spark-submit submits it, and `watch` joins it."""
    done = {}
    submit = lambda: done.update(theirs=run.spark("--deploy-mode", "cluster", "--name", "real", "--class", "a.B", "--conf", f"spark.kubernetes.container.image={IMAGE}",
                                                  "local:///x.jar"))
    thread = threading.Thread(target=submit)
    thread.start()
    driver = wait_until("the driver exists", lambda: run.api.pods("driver"))[0]
    name = driver["metadata"]["name"]
    watch = run.start("watch", [run.usher, "watch", "--master", run.master(), "--spark-compatible", f"default:{name}"], run.environment())
    wait_until("watch has begun", lambda: "Waiting for application" in (run.folder / "watch.log").read_text())
    # spark-submit watches later than it creates, and shows the short form each second.
    time.sleep(5)
    for phase in ["running", "failed"]:
        _, states = STATES[phase]
        statuses = [{"name": "spark-kubernetes-driver", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0, "state": states[0]}]
        run.api.call("PATCH", f"/api/v1/namespaces/default/pods/{name}/status",
                     {"status": {"phase": phase.capitalize(), "startTime": STARTED, "containerStatuses": statuses}}, "application/merge-patch+json")
        wait_until(f"watch shows {phase}", lambda: f"(phase: {phase.capitalize()})" in (run.folder / "watch.log").read_text())
        time.sleep(2)
    thread.join()
    watch.wait(30)
    text = done["theirs"].stderr
    prefix = re.compile(r"^\d\d/\d\d/\d\d \d\d:\d\d:\d\d INFO LoggingPodStatusWatcherImpl: ", re.M)
    # What one event prints is one message; which events there are depends on when each began to watch.
    messages = lambda text: {message.rstrip("\n") for message in re.split(r"(?=^(?:Waiting for|State changed|Application |Container final))", text, flags=re.M) if message.strip()}
    theirs = "".join(part for part in re.split(r"(?m)(?=^\d\d/\d\d/\d\d \d\d:\d\d:\d\d )", text) if prefix.match(part))
    theirs = messages(prefix.sub("", theirs))
    ours = messages((run.folder / "watch.log").read_text())
    check("spark-submit exits with 0, and watch too", (done["theirs"].returncode, watch.returncode) == (0, 0), text[-2000:])
    check("spark-submit has printed each kind of message", len(theirs) >= 7, sorted(theirs))
    compare("both print the same messages while they wait", sorted(theirs), sorted(ours))


if __name__ == "__main__":
    run_versions(__doc__, ["4.3.0", "3.5.9"], (status_and_kill, waiting), Sandbox)
