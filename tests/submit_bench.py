#!/usr/bin/env python3
"""How long `spark-usher submit` and the real spark-submit take on the same API endpoint, and how much memory: by turns, in one run.
Not a test: it prints figures beside their limits.

    cargo build --release && python3 tests/submit_bench.py [--spark VERSION]

The endpoint is `spark-usher sandbox`. Spark is downloaded from PyPI (`pyspark`, 450 MB) to --cache if it is missing. Requires Java 17."""

import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

from real_spark import ROOT, Run, spark_home, wait_until

TIME, MEMORY = 50, 10


def measured(command, env):
    """Wall time in seconds, processor time in seconds and the largest process in MB, with all children."""
    began = time.monotonic()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    text = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"FAILED: {command}: {text.decode()[-2000:]}")
    return time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--usher", default=ROOT / "target/release/spark-usher")
    parser.add_argument("--spark", default="4.3.0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path.home() / ".cache/spark-usher")
    options = parser.parse_args()
    # The run's programs start in another folder.
    home, usher = spark_home(options.spark, options.cache.resolve()), pathlib.Path(options.usher).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        run = Run(home, pathlib.Path(scratch))
        try:
            kubeconfig = run.folder / "kubeconfig"
            run.start("sandbox", [usher, "sandbox", "--no-run", "--http-port", str(run.http), "--https-port", str(run.https), "--kubeconfig", kubeconfig])
            wait_until("the sandbox answers", lambda: run.api.call("GET", "/version"))
            env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "KUBECONFIG": str(kubeconfig)}
            arguments = ["--master", f"k8s://http://127.0.0.1:{run.http}", "--deploy-mode", "cluster", "--name", "pi", "--class", "a.B",
                         "--conf", f"spark.kubernetes.container.image=reg.example/spark:{options.spark}",
                         "--conf", "spark.kubernetes.submission.waitAppCompletion=false", "local:///x.jar"]
            theirs, ours = [], []
            for _ in range(options.rounds):
                theirs.append(measured([home / "bin/spark-submit", *arguments], env))
                ours += [measured([usher, "submit", *arguments], env) for _ in range(10)]
            created = len(run.api.pods("driver"))
            if created != len(theirs) + len(ours):
                raise SystemExit(f"FAILED: {created} drivers were created")
            print(f"{'':28}{'time':>10}{'CPU':>10}{'memory':>10}")
            for name, all_of_it in ((f"spark-submit {options.spark}", theirs), ("spark-usher submit", ours)):
                wall, cpu, memory = (statistics.median(column) for column in zip(*all_of_it))
                print(f"{name:28}{wall * 1000:>7.0f} ms{cpu * 1000:>7.0f} ms{memory:>7.1f} MB   median of {len(all_of_it)}")
            for what, at, limit in (("time", 0, TIME), ("memory", 2, MEMORY)):
                factor = statistics.median(row[at] for row in theirs) / statistics.median(row[at] for row in ours)
                print(f"{what}: 1/{factor:.0f} of spark-submit's (limit 1/{limit}){'' if factor >= limit else '  ABOVE THE LIMIT'}")
        finally:
            run.stop()


if __name__ == "__main__":
    main()
