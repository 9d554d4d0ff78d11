#!/usr/bin/env python3
"""Figures of the web page at scale, beside their limits: 1,000 applications with 20,000 executors in the sandbox, the page in headless
Chromium, 60 s of live updates while pods come and go, and the webhook's latency meanwhile without and with open pages. Not a test:
it takes minutes, and prints what it measures.

  cargo build --release && python3 tests/page_scale.py --usher target/release/spark-usher"""

import argparse
import concurrent.futures
import http.client
import json
import multiprocessing
import pathlib
import re
import ssl
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

from page import Browser, browser_programs, fail, running
from tools import free_port, wait_for

NAMESPACES = 20
REVIEW = pathlib.Path(__file__).parent / "fixtures/reviews/spark-4.3.0/client-mode/exec-1.mutate.create.json"
PAGES = 6  # At most 8 of the debug listener's 16 connections are live pages.


class Api:
    """The sandbox's API, with a connection for each thread."""

    def __init__(self, port):
        self.port, self.local = port, threading.local()

    def __call__(self, method, path, body=None):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self.local.connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        answer = self.local.connection.getresponse()
        text = answer.read()
        if answer.status >= 300 and answer.status not in (404, 409):
            fail(f"{method} {path}: {answer.status} {text[:300]}")


def pod(app, name, role, number=0):
    labels = {"spark-role": role, "spark-app-selector": f"spark-{app:04}"}
    if role == "executor":
        labels["spark-exec-id"] = str(number)
    container = {"name": f"spark-kubernetes-{role}", "image": "spark", "resources": {"requests": {"cpu": "100m", "memory": "100Mi"}}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def namespace(app):
    return f"team-{app % NAMESPACES}"


def create(api, app, executors):
    path = f"/api/v1/namespaces/{namespace(app)}/pods"
    api("POST", path, pod(app, f"job-{app:04}-driver", "driver"))
    for number in range(1, executors + 1):
        api("POST", path, pod(app, f"job-{app:04}-exec-{number}", "executor", number))


def churn(api, apps, stop, number=1000):
    """Replaces executors, about fifty in a second, until stopped; their numbers begin with this one."""
    while not stop.wait(0.02):
        app = number % apps
        path = f"/api/v1/namespaces/{namespace(app)}/pods"
        api("DELETE", f"{path}/job-{app:04}-exec-{1 + number // apps % 20}?gracePeriodSeconds=0")
        api("POST", path, pod(app, f"job-{app:04}-exec-{number}", "executor", number))
        number += 1


def review_times(port, body, seconds):
    """How long reviews take in milliseconds, one after another on one connection, less than 100 a second."""
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=ssl._create_unverified_context())
    connection.connect()
    times, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.monotonic()
        connection.request("POST", "/mutate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200 or not json.loads(answer.read())["response"]["allowed"]:
            fail(f"a review was answered with {answer.status}")
        times.append((time.monotonic() - began) * 1000)
        time.sleep(0.01)
    return sorted(times)


class OpenPage:
    """Receives a page's live updates until it is closed."""

    def __init__(self, url):
        request = urllib.request.Request(url, headers={"Accept": "text/event-stream"})
        self.answer = urllib.request.urlopen(request)
        if not self.answer.headers["Content-Type"].startswith("text/event-stream"):
            fail(f"no live updates, but {self.answer.headers['Content-Type']}")
        self.received, self.closed = 0, False
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        while not self.closed and (part := self.answer.read1(1 << 16)):
            self.received += len(part)

    def close(self):
        self.closed = True
        self.reader.join()


def measure_reviews(webhook, url, seconds):
    """The webhook's latency without and with open pages, measured by another process: Python's threads delay each other. Pods come and
    go on the same cores, so what counts is the difference."""
    tails = []
    for count in (0, PAGES):
        pages = [OpenPage(f"{url}?namespace=team-{number}") for number in range(count)]
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as client:
            times = client.submit(review_times, webhook, REVIEW.read_bytes(), seconds).result()
        received = sum(page.received for page in pages) / (1 << 20)
        for page in pages:
            page.close()
        if count and not received:
            fail("the open pages received nothing")
        tails.append(times[int(len(times) * 0.99)])
        meanwhile = f"{count} pages, each of another namespace, receive {received:.1f} MiB" if count else "no page is open"
        print(f"   {len(times)} reviews while {meanwhile}: p50 {statistics.median(times):.1f} ms, p99 {tails[-1]:.1f} ms")
    show("what open pages add to the 99th percentile", tails[1] - tails[0], 5, "ms")


def measure_answer(page, url):
    times = []
    for _ in range(10):
        began = time.monotonic()
        length = len(urllib.request.urlopen(url).read())
        times.append(time.monotonic() - began)
        time.sleep(1.1)  # Pages and reports are shared for a second.
    show(f"{page}: answer with {length / 1024:.0f} KiB, median of 10", statistics.median(times) * 1000, 1000, "ms")


def memory(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def processor_seconds(process):
    fields = pathlib.Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure_browser(browser):
    browser.cdp("HeapProfiler.collectGarbage")
    heap = browser.cdp("Runtime.getHeapUsage")["usedSize"] / (1 << 20)
    return heap, browser.run("return document.getElementsByTagName('*').length")


def show(what, value, limit, unit):
    print(f"   {what:58} {value:10.1f} {unit}   limit {limit} {unit}{'' if value <= limit else '   EXCEEDED'}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--usher", type=pathlib.Path, required=True)
    parser.add_argument("--apps", type=int, default=1000)
    parser.add_argument("--executors", type=int, default=20, help="of each application")
    parser.add_argument("--seconds", type=int, default=60, help="of live updates")
    args = parser.parse_args()
    usher = args.usher.resolve()
    chromium, chromedriver = browser_programs()
    plain, debug, webhook, port = free_port(), free_port(), free_port(), free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = pathlib.Path(folder) / "kubeconfig"
        sandbox = [usher, "sandbox", "--http-port", str(plain), "--https-port", str(free_port()), "--kubeconfig", kubeconfig, "--nodes", "100", "--node-size", "64,256"]
        serve = [usher, "serve", "--kubeconfig", kubeconfig, "--webhook-listen", f"127.0.0.1:{webhook}", "--metrics-listen", f"127.0.0.1:{free_port()}",
                 "--debug-listen", f"127.0.0.1:{debug}", "--tls-secret", "tls", "--tls-names", "localhost", "--namespace", "default", "--shutdown-delay-seconds", "0"]
        with running(sandbox, **quiet) as cluster:
            wait_for(kubeconfig, cluster)
            api = Api(plain)
            for number in range(NAMESPACES):
                api("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"team-{number}"}})
            began = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda app: create(api, app, args.executors), range(args.apps)))
            print(f"   {args.apps} applications with {args.apps * args.executors} executors, created in {time.monotonic() - began:.0f} s")
            with running(serve, **quiet) as process, running([chromedriver, f"--port={port}"], **quiet):
                url = f"http://127.0.0.1:{debug}/"
                for _ in range(600):
                    try:
                        if f">{args.apps}<" in urllib.request.urlopen(url).read().decode():
                            break
                    except OSError:
                        pass
                    time.sleep(0.2)
                else:
                    fail("the page does not show all applications")
                measure_answer("Applications", url)
                measure_answer("one application", f"{url}app?namespace={namespace(1)}&name=spark-0001")
                with Browser(chromium, port) as browser:
                    views = []
                    for _ in range(5):
                        browser.open(url)
                        browser.wait_until("return performance.getEntriesByName('first-contentful-paint').length > 0", "something is painted")
                        views.append(browser.run("return performance.getEntriesByName('first-contentful-paint')[0].startTime"))
                        time.sleep(1.1)
                    show("first view in Chromium, median of 5", statistics.median(views), 1000, "ms")
                    show("first view in Chromium, longest", max(views), 1000, "ms")
                    stop = threading.Event()
                    changing = threading.Thread(target=churn, args=(api, args.apps, stop))
                    changing.start()
                    try:
                        browser.wait_until("return document.getElementById('connection').textContent.startsWith('Live')", "the page is live")
                        browser.run("window.updates = 0; new MutationObserver(() => { window.updates += 1; }).observe(document.getElementById('live'), {childList: true});")
                        time.sleep(10)
                        heap, elements = measure_browser(browser)
                        before, spent = memory(process), processor_seconds(process)
                        time.sleep(args.seconds)
                        updates = browser.run("return window.updates")
                        heap_after, elements_after = measure_browser(browser)
                        after, spent = memory(process), processor_seconds(process) - spent
                    finally:
                        stop.set()
                        changing.join()
                    print(f"   {updates} updates in {args.seconds + 10} s while about 50 executors a second come and go")
                    if not updates:
                        fail("the page was not updated")
                    show("growth of the page's heap in that time", heap_after - heap, 1, "MiB")
                    show("growth of the number of its elements", elements_after - elements, 500, "")
                    show("growth of spark-usher's memory", after - before, 32, "MiB")
                    print(f"   spark-usher: {after:.0f} MiB, {100 * spent / args.seconds:.1f} % of a core, the sandbox's changes included")
                stop = threading.Event()
                changing = threading.Thread(target=churn, args=(api, args.apps, stop, 100_000))
                changing.start()
                try:
                    measure_reviews(webhook, url, args.seconds / 4)
                finally:
                    stop.set()
                    changing.join()


if __name__ == "__main__":
    main()
