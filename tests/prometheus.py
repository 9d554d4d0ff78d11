#!/usr/bin/env python3
"""Tests of alerts and dashboard with real Prometheus and promtool (Debian's package `prometheus`, downloaded by apt-get and
unpacked into target/tools): the rules are valid and fire when expected, and every query of the dashboard runs on the metrics of a
running spark-usher."""

import argparse
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

from tools import ROOT, TOOLS, free_port, wait_for

FILES = ROOT / "charts/spark-usher/files"


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def fetch():
    folder = TOOLS / "prometheus"
    if not (folder / "usr/bin/promtool").exists():
        missing = [program for program in ("apt-get", "dpkg-deb") if not shutil.which(program)]
        if missing:
            print(f"SKIPPED: tests/prometheus.py requires {' and '.join(missing)} to download Debian's package prometheus", file=sys.stderr)
            raise SystemExit(0)
        with tempfile.TemporaryDirectory() as scratch:
            done = subprocess.run(["apt-get", "download", "prometheus"], cwd=scratch, capture_output=True, text=True)
            packages = list(pathlib.Path(scratch).glob("prometheus_*.deb"))
            if not packages:
                print(f"SKIPPED: tests/prometheus.py: apt-get download prometheus: {done.stderr.strip()}", file=sys.stderr)
                raise SystemExit(0)
            subprocess.run(["dpkg-deb", "-x", packages[0], folder], check=True)
    return folder / "usr/bin/prometheus", folder / "usr/bin/promtool"


def check_rules(promtool, folder):
    shutil.copy(FILES / "alerts.yaml", folder / "alerts.yaml")
    shutil.copy(ROOT / "tests/alerts.test.yaml", folder / "alerts.test.yaml")
    for args in (["check", "rules", "alerts.yaml"], ["test", "rules", "alerts.test.yaml"]):
        done = subprocess.run([promtool, *args], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            fail(f"promtool {' '.join(args)}\n{done.stdout}{done.stderr}")
        print(f"   ok  promtool {' '.join(args)}")
    alerts = re.findall(r"alert: (\w+)", (folder / "alerts.yaml").read_text())
    tested = set(re.findall(r"alertname: (\w+)\n +exp_alerts", (folder / "alerts.test.yaml").read_text()))
    if set(alerts) != tested:
        fail(f"alerts that fire in no test: {sorted(set(alerts) - tested)}")
    runbooks = (ROOT / "docs/runbooks.md").read_text()
    missing = [alert for alert in alerts if f"## {alert}\n" not in runbooks]
    if missing:
        fail(f"alerts without a section in docs/runbooks.md: {missing}")
    print(f"   ok  {len(alerts)} alerts, each fires in a test and has a runbook")


def get_json(port, path, **query):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)


def create(port, path, created):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/{path}", data=json.dumps(created).encode(), method="POST", headers={"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


def dashboard_queries():
    dashboard = json.loads((FILES / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        if panel["type"] != "row" and not panel.get("description"):
            fail(f"a panel of the dashboard has no description: {panel['title']}")
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"].replace("$instance", ".*").replace("$namespace", ".*").replace("$__rate_interval", "1m")


def check_running_installation(prometheus, usher, folder):
    """A sandbox with an application, spark-usher, and Prometheus, which scrapes spark-usher."""
    http, kubeconfig, metrics, own = free_port(), folder / "kubeconfig", free_port(), free_port()
    running = []
    try:
        running.append(subprocess.Popen([usher, "sandbox", "--http-port", str(http), "--https-port", str(free_port()), "--kubeconfig", kubeconfig], stdout=subprocess.DEVNULL))
        wait_for(kubeconfig, running[0])
        (folder / "policy.yaml").write_text("apiVersion: spark-usher.io/v1alpha1\nkind: PolicyFile\npolicies: [{name: batch, scheduler: {type: native}}]\nlifecycle: {poll: 1s}\n")
        listen = ["--webhook-listen", f"127.0.0.1:{free_port()}", "--metrics-listen", f"127.0.0.1:{metrics}", "--debug-listen", "127.0.0.1:0"]
        certificate = ["--tls-secret", "tls", "--tls-names", "localhost", "--namespace", "default"]
        running.append(subprocess.Popen(
            [usher, "serve", "--kubeconfig", kubeconfig, "--config", folder / "policy.yaml", "--shutdown-delay-seconds", "0", *listen, *certificate],
            stderr=open(folder / "serve.log", "w")))
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"}, "rule_files": [str(folder / "alerts.yaml")],
            # As the Prometheus operator does: a label for the namespace of the target.
            "scrape_configs": [{"job_name": "spark-usher", "honor_labels": True, "static_configs": [{"targets": [f"127.0.0.1:{metrics}"], "labels": {"namespace": "of-the-target"}}]}],
        }
        (folder / "prometheus.yml").write_text(json.dumps(config))
        running.append(subprocess.Popen(
            [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{own}"],
            stderr=open(folder / "prometheus.log", "w")))
        until = time.monotonic() + 60
        while True:
            try:
                leaders = get_json(own, "/api/v1/query", query="spark_usher_leader == 1")["data"]["result"]
                if leaders:
                    break
            except OSError:
                pass
            if time.monotonic() > until:
                fail(f"no leader was scraped\n{(folder / 'serve.log').read_text()}\n{(folder / 'prometheus.log').read_text()}")
            time.sleep(0.5)
        create(http, "namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"restartPolicy": "Never", "containers": [{"name": "spark", "image": "spark"}]}}
        driver = {"name": "driver", "labels": {"spark-role": "driver", "spark-app-selector": "spark-1"}, "annotations": {"spark-usher.io/min-member": "3"}}
        executor = {"name": "exec-1", "labels": {"spark-role": "executor", "spark-app-selector": "spark-1", "spark-exec-id": "1"}}
        for metadata in (driver, executor):
            create(http, "namespaces/team-a/pods", pod | {"metadata": metadata})
        time.sleep(4)
        lacking = get_json(own, "/api/v1/query", query="sum by (namespace) (spark_usher_executors_lacking)")["data"]["result"]
        found = {result["metric"]["namespace"]: result["value"][1] for result in lacking}
        if found != {"team-a": "2"}:
            fail(f"expected 2 executors that applications of team-a lack, found {found}")
        print("   ok  what applications lack is counted under their own namespace")
        known = set(re.findall(r"`(spark_usher_\w+)`", (ROOT / "docs/metrics.md").read_text()))
        count, filled = 0, 0
        for title, expression in dashboard_queries():
            answer = get_json(own, "/api/v1/query", query=expression)
            if answer["status"] != "success":
                fail(f"{title}: {expression}: {answer}")
            named = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"spark_usher_\w+", expression)}
            if named - known:
                fail(f"{title}: unknown metrics: {sorted(named - known)}")
            count += 1
            filled += bool(answer["data"]["result"])
        if filled < 12:
            fail(f"expected results for at least 12 of {count} queries, found {filled}")
        print(f"   ok  {count} queries of the dashboard run, {filled} of them with a result")
        groups = get_json(own, "/api/v1/rules")["data"]["groups"]
        unhealthy = [rule for group in groups for rule in group["rules"] if rule["health"] != "ok"]
        if unhealthy or not groups:
            fail(f"rules: {unhealthy}")
        firing = {alert["labels"]["alertname"] for alert in get_json(own, "/api/v1/alerts")["data"]["alerts"] if alert["state"] == "firing"}
        if firing:
            fail(f"expected no alert in a healthy installation, firing: {firing}")
        print("   ok  all rules are evaluated, and none fires in a healthy installation")
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait(20)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    options = parser.parse_args()
    prometheus, promtool = fetch()
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        check_rules(promtool, folder)
        check_running_installation(prometheus, str(options.usher), folder)


if __name__ == "__main__":
    main()
