#!/usr/bin/env python3
"""What the real spark-submit sends in cluster mode: recorded request by request, for tests/it/submit.rs.

    python3 tests/submit_spark.py [VERSION ...] [--case NAME ...] [--update]

Runs spark-submit of each version with the arguments of each case against a recorder on loopback, which answers as an API server would,
and prints what differs from the capture in tests/fixtures/submit; --update writes the captures. Spark is downloaded from PyPI
(`pyspark`, up to 450 MB per version) to --cache if it is missing there. Requires Java 17.

A case is a list of arguments, as spark-submit takes them after the master; a `KEY=VALUE` before the first argument is a variable of the
environment. Paths are relative to tests/fixtures/submit/files, where spark-submit runs. Where it fails, the capture has what it
printed as the reason.
"""

import argparse
import concurrent.futures
import http.server
import json
import os
import pathlib
import re
import subprocess
import tempfile
import threading

from real_spark import ROOT, spark_home

FIXTURES = ROOT / "tests/fixtures/submit"
FILES = FIXTURES / "files"
CASES = FIXTURES / "cases.json"
# The uid that the recorder gives to each pod.
UID = "00000000-0000-4000-8000-000000000001"


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers as an API server would, and remembers the requests."""

    protocol_version = "HTTP/1.1"
    requests = None

    def do_any(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        try:
            parsed = json.loads(body) if body else None
        except ValueError:
            parsed = body.decode("utf-8", "replace")
        self.server.seen.append({"method": self.command, "path": self.path, "contentType": self.headers.get("Content-Type"), "body": parsed})
        answer = json.loads(body) if isinstance(parsed, dict) else {"kind": "Status", "apiVersion": "v1"}
        if answer.get("kind") == "Pod":
            answer.setdefault("metadata", {}).update({"uid": UID, "namespace": re.search(r"/namespaces/([^/]+)/", self.path)[1]})
        text = json.dumps(answer).encode()
        self.send_response(201 if self.command == "POST" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_any

    def log_message(self, *_):
        pass


def record(home, arguments):
    """The requests of spark-submit with these arguments, or the reason why it failed."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = dict(argument.split("=", 1) for argument in arguments[: first_option(arguments)])
    with tempfile.TemporaryDirectory() as scratch:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "HADOOP_", "KUBE"))}
        env |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": f"{FILES}/none", "KUBECONFIG": f"{scratch}/none"}
        env |= {name: value.replace("@UPLOADS@", scratch) for name, value in variables.items()}
        command = [f"{home}/bin/spark-submit", "--master", f"k8s://http://127.0.0.1:{server.server_port}", "--deploy-mode", "cluster",
                   "--conf", "spark.kubernetes.submission.waitAppCompletion=false"]
        command += [argument.replace("@UPLOADS@", scratch) for argument in arguments[first_option(arguments):]]
        done = subprocess.run(command, cwd=FILES, env=env, capture_output=True, text=True, timeout=300)
        server.shutdown()
        text = json.dumps(server.seen).replace(str(FILES), "@FILES@").replace(scratch, "@UPLOADS@").replace(f"127.0.0.1:{server.server_port}", "127.0.0.1:18080")
        text = text.replace(f"127.0.0.1\\\\:{server.server_port}", "127.0.0.1\\\\:18080")
        requests = json.loads(text)
        if done.returncode == 0:
            return {"requests": requests}
        lines = [line for line in done.stderr.splitlines() if re.match(r"(Exception in thread|Error:|Caused by|org\.apache|java\.lang)", line)]
        return {"error": [line.replace(str(FILES), "@FILES@") for line in lines], "requests": requests}


def first_option(arguments):
    return next((at for at, argument in enumerate(arguments) if not re.match(r"[A-Z_]+=", argument)), len(arguments))


def normal(capture):
    """A capture without what differs from run to run."""
    text = json.dumps(capture, sort_keys=True)
    text = re.sub(r"spark-[0-9a-f]{32}", "spark-APP", text)
    text = re.sub(r"[0-9a-f]{6}a[0-9a-f]{9}", "UNIQUE", text)
    text = re.sub(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID", text)
    text = re.sub(r"#[A-Z][a-z]{2} [A-Z][a-z]{2} \d\d .*?\\n", "", text)
    text = re.sub(r"submitTime=\d+", "submitTime=T", text)
    return json.loads(text, object_hook=lambda found: found | ({"spark.properties": sorted(found["spark.properties"].splitlines())} if "spark.properties" in found else {}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", default=["4.3.0", "3.5.9"])
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/spark-usher")
    parser.add_argument("--case", action="append", help="only this case")
    parser.add_argument("--update", action="store_true", help="write the captures")
    args = parser.parse_args()
    cases = json.loads(CASES.read_text())
    wrong = 0
    for version in args.versions:
        home = spark_home(version, args.cache)
        names = [name for name in cases if not args.case or name in args.case]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            for name, capture in zip(names, pool.map(lambda name: record(home, cases[name]), names)):
                path = FIXTURES / version / f"{name}.json"
                if args.update:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(json.dumps(capture, indent=1, ensure_ascii=False) + "\n")
                    print(f"   {version} {name}: {'error' if 'error' in capture else len(capture['requests'])}")
                elif normal(json.loads(path.read_text())) != normal(capture):
                    wrong += 1
                    print(f"   FAILED {version} {name}: another capture than before")
    raise SystemExit(1 if wrong else 0)


if __name__ == "__main__":
    main()
