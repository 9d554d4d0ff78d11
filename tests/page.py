#!/usr/bin/env python3
"""Tests of the web page in headless Chromium (Debian's packages `chromium` and `chromium-driver`) with axe-core (npm), on the story of
`spark-usher demo --keep`. Screenshots are written to target/page. `--screenshot FILE` only makes the one of the README."""

import argparse
import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request

from tools import ROOT, TOOLS, free_port

SCREENSHOTS = ROOT / "target/page"
# The link to the application train-model, in the list.
LINK = "[...document.querySelectorAll('table.apps tbody th a')].find((one) => one.textContent === 'train-model')"
# The largest size of the screenshot in the repository, in bytes.
MAX_PICTURE = 160_000
SIZES = {"desktop": (1440, 900), "tablet": (900, 1024), "phone": (390, 844)}


def fail(message):
    raise SystemExit(f"FAILED: {message}")


def skip(reason):
    print(f"SKIPPED: tests/page.py: {reason}", file=sys.stderr)
    raise SystemExit(0)


def browser_programs():
    programs = [shutil.which("chromium"), shutil.which("chromedriver")]
    if not all(programs):
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            skip("requires Debian's packages chromium and chromium-driver, or root and apt-get to install them")
        for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium", "chromium-driver"]):
            done = subprocess.run(command, capture_output=True, text=True)
        programs = [shutil.which("chromium"), shutil.which("chromedriver")]
        if not all(programs):
            skip(f"apt-get install chromium chromium-driver: {done.stderr.strip()[-300:]}")
    return programs


def axe_source():
    script = TOOLS / "axe.min.js"
    if not script.exists():
        if not shutil.which("npm"):
            skip("requires npm, which downloads axe-core")
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(["npm", "pack", "--silent", "axe-core@4"], cwd=folder, capture_output=True, text=True)
            packages = list(pathlib.Path(folder).glob("axe-core-*.tgz"))
            if not packages:
                skip(f"npm pack axe-core: {done.stderr.strip()[-300:]}")
            text = tarfile.open(packages[0]).extractfile("package/axe.min.js").read()
        TOOLS.mkdir(parents=True, exist_ok=True)
        script.write_bytes(text)
    return script.read_text()


class Browser:
    """A session of WebDriver (https://www.w3.org/TR/webdriver2/)."""

    def __init__(self, chromium, port):
        self.base = f"http://127.0.0.1:{port}"
        # Chromium's own sandbox requires user namespaces, which containers often lack.
        options = {"binary": chromium, "args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self.send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{session['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Otherwise Chromium would run on after its driver.
        with contextlib.suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(self.base, method="DELETE"), timeout=20).close()

    def send(self, method, path, body=None):
        data = json.dumps(body or {}).encode() if method == "POST" else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            fail(f"WebDriver {path}: {json.load(error)['value']['message']}")

    def open(self, url):
        """Returns once the page is painted: until then Chromium drops keys, although the page is loaded."""
        self.send("POST", "/url", {"url": url})
        painted = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        self.send("POST", "/execute/async", {"script": painted, "args": []})

    def run(self, script, *args):
        return self.send("POST", "/execute/sync", {"script": script, "args": args})

    def wait_until(self, script, what, seconds=20):
        end = time.monotonic() + seconds
        while not self.run(script):
            if time.monotonic() > end:
                fail(f"timed out after {seconds} s, waiting until {what}")
            time.sleep(0.1)

    def press(self, key):
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def emulate(self, size, scheme):
        width, height = size
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def cdp(self, command, **params):
        return self.send("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def screenshot(self, name):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(self.send("GET", "/screenshot")))

    def messages(self):
        return [entry["message"] for entry in self.send("POST", "/se/log", {"type": "browser"})]


@contextlib.contextmanager
def running(command, **options):
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextlib.contextmanager
def demo(usher):
    """Runs the demo; returns the address of its page, and how long it took to serve it."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        with running([usher, "demo", "--keep"], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            for line in process.stdout:
                if found := re.match(r"Web page: (\S+)", line):
                    print(f"   the demo serves its page after {time.monotonic() - began:.1f} s")
                    yield found[1], process
                    return
        fail("the demo printed no address of a web page")


def check_axe(browser, axe, name):
    browser.run(axe)
    browser.run("window.found = null; axe.run().then((found) => { window.found = found; }, (error) => { window.found = {error: String(error)}; });")
    browser.wait_until("return window.found !== null", "axe-core finishes")
    found = browser.run("return window.found")
    if found.get("error"):
        fail(f"axe-core: {found['error']}")
    if violations := found["violations"]:
        all_of = [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:300]}" for one in violations]
        fail(f"axe-core on {name}:\n" + "\n".join(all_of))
    if not found["passes"]:
        fail(f"axe-core checked nothing on {name}")


def check_looks(browser, url, axe):
    """Each page, at each size, light and dark: no violation of axe-core, nothing is wider than the window."""
    app = url + browser.run(f"return {LINK}.getAttribute('href')")
    pages = {"apps": url, "app": app, "nodes": url + "nodes", "cost": url + "cost", "replica": url + "replica", "missing": url + "app?namespace=x&name=y"}
    for size, dimensions in SIZES.items():
        for scheme in ("light", "dark"):
            browser.emulate(dimensions, scheme)
            for name, address in pages.items():
                browser.open(address)
                check_axe(browser, axe, f"{name}, {size}, {scheme}")
                wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
                if wide[0] > wide[1]:
                    fail(f"{name} is {wide[0]} pixels wide in a window of {wide[1]} ({size})")
                browser.screenshot(f"{name}-{size}-{scheme}")
        print(f"   ok  {len(pages)} pages at {dimensions[0]} × {dimensions[1]}, light and dark: axe-core finds nothing, nothing is cut off")
    browser.emulate(SIZES["desktop"], "light")


def check_live(browser, url):
    browser.open(url)
    browser.wait_until("return document.getElementById('connection').textContent.startsWith('Live')", "the page is live")
    browser.run("window.before = document.getElementById('live').innerHTML.replace(/<time.*?<.time>/g, ''); window.same = document.body;")
    changed = "return document.getElementById('live').innerHTML.replace(/<time.*?<.time>/g, '') !== window.before"
    browser.wait_until(changed, "something changes on the page without a reload")
    if not browser.run("return window.same === document.body"):
        fail("the page was reloaded")
    print("   ok  the page changes while it is open")


def check_stale(browser, url, process):
    """A page says that it is old: while it is paused, while text is selected, and when nothing arrives although no connection ends."""
    stale = "return document.getElementById('stale').textContent"
    browser.open(url)
    browser.wait_until("return document.getElementById('connection').textContent.startsWith('Live')", "the page is live")
    browser.run("document.getElementById('pause').click(); window.held = document.getElementById('live').firstChild;")
    if "Paused" not in browser.run(stale) or browser.run("return document.getElementById('pause').textContent") != "Resume":
        fail("a paused page does not say so")
    time.sleep(5)
    if not browser.run("return window.held.isConnected"):
        fail("a paused page was updated")
    browser.run("document.getElementById('pause').click();")
    browser.wait_until("return !window.held.isConnected && document.getElementById('stale').textContent === ''", "it goes on")
    browser.run("getSelection().selectAllChildren(document.querySelector('tbody th'));")
    browser.wait_until(f"{stale}.includes('text is selected')", "a selection is said to pause it")
    browser.run("getSelection().removeAllRanges();")
    browser.wait_until(f"{stale} === ''", "it goes on without a selection")
    # Ages go on although nothing arrives, and the page says that it is old.
    process.send_signal(signal.SIGSTOP)
    try:
        browser.run("window.age = [...document.querySelectorAll('time[data-age]')].map((time) => time.textContent).join();")
        browser.wait_until(f"{stale}.includes('Not connected')", "a hung connection is noticed", seconds=40)
        if browser.run("return window.age === [...document.querySelectorAll('time[data-age]')].map((time) => time.textContent).join()"):
            fail("ages stand still")
    finally:
        process.send_signal(signal.SIGCONT)
    browser.wait_until(f"{stale} === '' && document.getElementById('connection').textContent.startsWith('Live')", "it is live again", seconds=40)
    print("   ok  a page that is paused, read, or cut off says that it is old")


def check_long_texts(browser, url):
    """A long word, as in a container's message, and a number of four digits do not break the layout."""
    texts = "<ul><li>${word}</li></ul><p class='note'>${word}</p><table class='cards'><tr><td class='why'>${word}</td><td class='number'>2500</td></tr></table>"
    for size, dimensions in SIZES.items():
        browser.emulate(dimensions, "light")
        browser.open(url)
        browser.run("document.getElementById('pause').click();")
        browser.run(f"const word = 'x'.repeat(900); document.getElementById('live').insertAdjacentHTML('beforeend', `{texts}`);")
        wide = browser.run("return [document.documentElement.scrollWidth, window.innerWidth]")
        if wide[0] > wide[1]:
            fail(f"a long word makes the page {wide[0]} pixels wide in a window of {wide[1]} ({size})")
        lines = "const range = document.createRange(); range.selectNodeContents([...document.querySelectorAll('td.number')].at(-1)); return range.getClientRects().length"
        if browser.run(lines) != 1:
            fail(f"a number is broken across lines ({size})")
    browser.emulate(SIZES["desktop"], "light")
    print("   ok  long words and numbers keep the layout")


def check_search(browser, url):
    browser.open(url)
    box = browser.send("POST", "/element", {"using": "css selector", "value": "input[name=q]"})
    (element,) = box.values()
    browser.send("POST", f"/element/{element}/value", {"text": "TRAIN-model"})
    browser.wait_until(
        "const rows = [...document.querySelectorAll('tbody tr')]; return rows.length > 0 && rows.every((row) => row.textContent.includes('train-model'))",
        "only the application that was searched for is shown",
    )
    if not browser.run("return location.search === '?q=TRAIN-model' && document.activeElement.name === 'q'"):
        fail("the search is not in the address, or its field lost the focus")
    browser.open(url + "?q=no-such-application")
    browser.wait_until("return document.querySelector('.empty') !== null", "it says that nothing matches")
    # Without a script, the form does the same.
    html = urllib.request.urlopen(url + "?q=train-model&status=all&sort=name").read().decode()
    if html.count("<tr>") != 2:
        fail("the search without a script does not find one application")
    print("   ok  the search works as it is typed, by address, and without a script")


def check_keyboard(browser, url):
    browser.open(url)
    browser.press("\ue004")
    if browser.run("return document.activeElement.className") != "skip":
        fail("the first stop of the keyboard is not the link that skips the navigation")
    for _ in range(30):
        browser.press("\ue004")
        if "app?" in (browser.run("return document.activeElement.getAttribute('href') || ''")):
            break
    else:
        fail("the keyboard does not reach an application")
    # As in other lists: / searches, j and k move, Escape leaves the search.
    browser.open(url)
    browser.press("/")
    if browser.run("return document.activeElement.name") != "q":
        fail("/ does not lead to the search")
    browser.press("j")
    if browser.run("return document.activeElement.name + document.activeElement.value") != "qj":
        fail("a letter in the search moves the focus")
    browser.open(url)
    at = "return [...document.querySelectorAll('table.apps tbody th a')].indexOf(document.activeElement)"
    moved = []
    for key in "jjk":
        browser.press(key)
        moved.append(browser.run(at))
    if moved[1] != moved[0] + 1 or moved[2] != moved[0]:
        fail(f"j and k do not move between applications: {moved}")
    # A live update does not take the focus away.
    browser.wait_until("return document.getElementById('connection').textContent.startsWith('Live')", "the page is live")
    browser.run("window.old = document.activeElement;")
    browser.wait_until("return !window.old.isConnected", "an update replaces the link")
    if "app?" not in browser.run("return document.activeElement.getAttribute('href') || ''"):
        fail("an update took the focus away")
    browser.press("\ue007")
    browser.wait_until("return location.pathname.endsWith('/app')", "Enter opens the application")
    print("   ok  the keyboard reaches everything, and an update keeps the focus")


def check_list(browser, url):
    """Tiles filter, headers sort, what has ended is folded away; a table at 900 pixels; on a phone the first application is near the top."""
    names = "return [...document.querySelectorAll('table.apps tbody th a')].map((one) => one.textContent)"

    def click(script, what):
        browser.run("window.left = true;")
        browser.run(script)
        browser.wait_until("return window.left === undefined && document.querySelector('#live') !== null", what)

    browser.open(url)
    if not any("ended" in text for text in browser.run("return [...document.querySelectorAll('.folded')].map((one) => one.textContent)")):
        fail("applications that have ended are not folded away")
    if browser.run("return [...document.querySelectorAll('.col-status')].some((one) => one.textContent.includes('ended'))"):
        fail("an application that has ended is in the list")
    click("[...document.querySelectorAll('.tiles a')].find((one) => one.textContent.startsWith('Lack executors')).click()", "a tile filters")
    statuses = browser.run("return [...document.querySelectorAll('td.col-status')].map((one) => one.textContent)")
    if not statuses or not all("lacks" in status for status in statuses):
        fail(f"the tile does not filter: {statuses}")
    browser.open(url)
    click("document.querySelector('th.col-name a').click()", "a header sorts")
    once = browser.run(names)
    click("document.querySelector('th.col-name a').click()", "it sorts in reverse")
    if once != sorted(once) or browser.run("return document.querySelector('th.col-name').getAttribute('aria-sort')") != "descending":
        fail(f"the header does not sort: {once}")
    ids = browser.run("return [...document.querySelectorAll('table.apps [data-copy]')].map((one) => one.dataset.copy)")
    if not ids or not all(re.fullmatch(r"spark-[0-9a-f]{32}", one) for one in ids):
        fail(f"the ids of the demo are not those of Spark: {ids}")
    browser.emulate((900, 1000), "light")
    browser.open(url)
    if browser.run("return getComputedStyle(document.querySelector('table.apps td')).display") != "table-cell":
        fail("there is no table at 900 pixels")
    browser.emulate(SIZES["phone"], "light")
    browser.open(url)
    top = browser.run("return document.querySelector('table.apps tbody tr').getBoundingClientRect().top")
    if top > 400:
        fail(f"on a phone the first application begins at {top} pixels")
    browser.emulate(SIZES["desktop"], "light")
    print(f"   ok  tiles filter, headers sort, ended applications are folded away; on a phone the first application begins at {top:.0f} pixels")


def check_copy(browser, url):
    browser.open(url)
    # The clipboard of a headless browser needs a permission; what counts is what is asked to be copied.
    browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };")
    browser.run("window.id = document.querySelector('table.apps [data-copy]'); window.id.click();")
    browser.wait_until("return window.copied === window.id.dataset.copy && window.id.dataset.done === 'Copied'", "a click copies an id")
    print("   ok  a click copies an id")


def check_messages(browser):
    """Chromium reports violations of the content security policy, failed requests and errors of the script."""
    wrong = [message for message in browser.messages() if "404 (Not Found)" not in message]
    if wrong:
        fail("Chromium reports:\n" + "\n".join(wrong))
    print("   ok  Chromium reports no error, and no violation of the content security policy")


def picture(browser, file):
    """The list of applications, once the story has an example of each trouble."""
    trouble = "return ['Failed', 'With findings'].every((name) => [...document.querySelectorAll('a, button')].some((tile) => new RegExp(`^${name}\\\\s*[1-9]`).test(tile.textContent.trim())))"
    browser.wait_until(trouble, "an application failed, and a rule found another", 120)
    browser.emulate((1360, 720), "light")
    browser.cdp("Emulation.setScrollbarsHidden", hidden=True)
    # One update more, at this width.
    time.sleep(3)
    content = base64.b64decode(browser.send("GET", "/screenshot"))
    if len(content) > MAX_PICTURE:
        fail(f"the screenshot has {len(content)} bytes: expected at most {MAX_PICTURE}, because it is in the repository")
    file.write_bytes(content)
    print(f"{file}: {len(content)} bytes")


def check_picture():
    """The README shows the screenshot, of the size that `--screenshot` makes."""
    file = ROOT / "docs/web-page.png"
    width, height = struct.unpack(">II", file.read_bytes()[16:24])
    if (width, height) != (1360, 720) or file.stat().st_size > MAX_PICTURE or "](docs/web-page.png)" not in (ROOT / "README.md").read_text():
        fail(f"{file}: expected the picture that `tests/page.py --screenshot docs/web-page.png` makes, shown in the README")
    print("   ok  the README shows the screenshot")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--usher", type=pathlib.Path, required=True)
    parser.add_argument("--screenshot", type=pathlib.Path)
    args = parser.parse_args()
    chromium, chromedriver = browser_programs()
    axe = axe_source()
    port = free_port()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with demo(args.usher.resolve()) as (url, process), running([chromedriver, f"--port={port}"], **quiet):
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/status")
                break
            time.sleep(0.1)
        with Browser(chromium, port) as browser:
            browser.open(url)
            browser.wait_until(f"return {LINK} !== undefined", "the story has begun")
            if args.screenshot:
                return picture(browser, args.screenshot)
            check_picture()
            check_looks(browser, url, axe)
            check_live(browser, url)
            check_long_texts(browser, url)
            check_stale(browser, url, process)
            check_search(browser, url)
            check_list(browser, url)
            check_keyboard(browser, url)
            check_copy(browser, url)
            check_messages(browser)
    print("the web page works in Chromium")


if __name__ == "__main__":
    main()
