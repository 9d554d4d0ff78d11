#!/usr/bin/env python3
"""Measure Apache Spark's own ExecutorPodsSnapshotsStoreImpl from its published jars.

Compiles SparkStore.java against the jars in the pyspark sdist and runs it, one JVM per case,
printing one JSON line per case on stdout. Standard library only; needs a JDK (17 or later).
"""

import argparse
import hashlib
import html.parser
import json
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
VERSION = "4.3.0"
JARS_IN_SDIST = f"pyspark-{VERSION}/deps/jars"


def log(message):
    print(message, file=sys.stderr, flush=True)


def index_url():
    """The package index that pip uses, which may be a mirror."""
    from_env = os.environ.get("PIP_INDEX_URL")
    if from_env:
        return from_env
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"],
        capture_output=True, text=True,
    )
    return pip.stdout.strip() or "https://pypi.org/simple"


def open_url(url):
    # pip's certificate setting, for a mirror with a private CA.
    context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
    return urllib.request.urlopen(url, timeout=60, context=context)


def find_sdist():
    """(url, sha256) from the simple index: mirrors serve it, and many do not serve the JSON API."""
    page_url = index_url().rstrip("/") + "/pyspark/"
    hrefs = []

    class Links(html.parser.HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag == "a":
                hrefs.append(dict(attrs).get("href") or "")

    with open_url(page_url) as page:
        Links().feed(page.read().decode())
    for href in hrefs:
        url, fragment = urllib.parse.urldefrag(urllib.parse.urljoin(page_url, href))
        if url.endswith(f"/pyspark-{VERSION}.tar.gz"):
            return url, dict(urllib.parse.parse_qsl(fragment)).get("sha256")
    sys.exit(f"{page_url} does not list pyspark-{VERSION}.tar.gz")


def fetch_jars(cache):
    """The folder of jars in the cache, unpacked from the sdist in the first run."""
    jars = cache / f"pyspark-{VERSION}-jars"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    url, sha256 = find_sdist()
    sdist = cache / f"pyspark-{VERSION}.tar.gz.part"
    log(f"downloading {url} (about 450 MB)")
    digest = hashlib.sha256()
    with open_url(url) as source, open(sdist, "wb") as target:
        while block := source.read(1 << 20):
            digest.update(block)
            target.write(block)
    if sha256 and digest.hexdigest() != sha256:
        sys.exit(f"sha256 of {sdist} is {digest.hexdigest()}: expected {sha256}, as in the index")

    # Unpacked into a temporary folder and then renamed, so that an interrupted run leaves no
    # incomplete folder that the next run would use.
    partial = cache / f"pyspark-{VERSION}-jars.part"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with tarfile.open(sdist, "r|gz") as tar:
        for member in tar:
            # Only the folder itself: its connect-repl/ contains jars that are not on Spark's class path.
            folder, _, name = member.name.rpartition("/")
            if member.isfile() and folder == JARS_IN_SDIST:
                with open(partial / name, "wb") as target:
                    shutil.copyfileobj(tar.extractfile(member), target)
    partial.rename(jars)
    sdist.unlink()
    return jars


def compile_java(jars, out):
    out.mkdir(parents=True, exist_ok=True)
    source = HERE / "SparkStore.java"
    # -Xlint:-path: the jars' manifests name jars that are not shipped, which is irrelevant here.
    subprocess.run(
        ["javac", "-Xlint:-path", "-cp", f"{jars}/*", "-d", str(out), str(source)],
        check=True, timeout=120,
    )


def run_case(args, jars, out, executors, apps, subscriber):
    # Up to 32 executors, Scala's map is a single node and a snapshot is small, so more fit the heap.
    max_events = args.max_events or (4_000_000 if executors <= 32 * apps else 2_000_000)
    if subscriber == "manager" and not args.max_events:
        # The manager reads every executor of every snapshot: as many events as take some seconds.
        max_events = min(max_events, 256 * max(2, 200_000 * apps // executors))
    command = [
        "java",
        # A fixed heap size, touched beforehand: otherwise the run measures the first pass over
        # fresh pages, which the kernel must zero (a factor of two here).
        f"-Xms{args.heap}", f"-Xmx{args.heap}", "-XX:+AlwaysPreTouch",
        f"-XX:+Use{args.gc}GC",
        *args.java_opt,
        "-cp", f"{out}{os.pathsep}{jars}/*",
        "SparkStore",
        f"executors={executors}", f"apps={apps}", f"stalled={str(subscriber == 'stalled').lower()}",
        f"manager={str(subscriber == 'manager').lower()}",
        f"seconds={args.seconds}", f"max_events={max_events}",
        f"interval_ms={args.interval_ms}", f"warmup_seconds={args.warmup}",
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=args.timeout)
    if done.returncode != 0:
        raise RuntimeError(f"exit status {done.returncode}")
    # Spark's logging may share stdout; the result is the last line.
    return json.loads(done.stdout.strip().splitlines()[-1])


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--jars", type=pathlib.Path, help="folder of Spark's jars; by default they are downloaded")
    p.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("target/spark-jars"),
                   help="folder for the download and the compiled class")
    p.add_argument("--executors", type=numbers, default=[10_000, 100_000], help="comma-separated")
    p.add_argument("--apps", type=numbers, default=[1, 1000], help="comma-separated")
    p.add_argument("--subscriber", choices=["both", "keeping-up", "stalled", "manager"],
                   default="both", help="manager: Spark's own ExecutorPodsLifecycleManager")
    p.add_argument("--seconds", type=float, default=5, help="of feeding, per case")
    p.add_argument("--warmup", type=float, default=3, help="seconds of JIT warm-up, per case")
    p.add_argument("--max-events", type=int,
                   help="for stalled only, because buffered events must fit the heap "
                        "(2 million, or 4 million with up to 32 executors per app)")
    p.add_argument("--interval-ms", type=int, default=1000, help="of the subscriber")
    p.add_argument("--heap", default="3g")
    p.add_argument("--gc", choices=["G1", "Parallel", "Serial"], default="G1")
    p.add_argument("--java-opt", action="append", default=[], help="--java-opt=-Xlog:gc and so on")
    p.add_argument("--repeat", type=int, default=1)
    p.add_argument("--timeout", type=float, default=58, help="seconds, per JVM")
    args = p.parse_args()

    for tool in ("java", "javac"):
        if not shutil.which(tool):
            sys.exit(f"{tool} is not on the PATH: expected a JDK (17 or later)")
    jars = args.jars.resolve() if args.jars else fetch_jars(args.cache)
    if not list(jars.glob("spark-kubernetes_*.jar")):
        sys.exit(f"{jars} contains no spark-kubernetes_*.jar")
    out = args.cache / "classes"
    compile_java(jars, out)

    failed = False
    subscribers = ["keeping-up", "stalled"] if args.subscriber == "both" else [args.subscriber]
    for _ in range(args.repeat):
        for executors in args.executors:
            for apps in args.apps:
                for subscriber in subscribers:
                    try:
                        result = run_case(args, jars, out, executors, apps, subscriber)
                    except (RuntimeError, ValueError, IndexError,
                            subprocess.TimeoutExpired) as error:
                        failed = True
                        result = {"peer": "spark", "apps": apps, "executors": executors,
                                  "subscriber": subscriber, "error": str(error)}
                    print(json.dumps(result), flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
