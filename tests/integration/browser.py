"""Drives a headless Chromium by its DevTools protocol over a pipe. It needs no package, and uses real time."""

import base64
import fcntl
import html.parser
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60.0


class Page(html.parser.HTMLParser):
    """The contents of a page: its tags, and the words inside the element of each id."""

    def __init__(self, source):
        super().__init__()
        self.tags = set()
        self.words = {}
        self.marks = []  # classes of the marks in charts
        self.open = []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        given = dict(attributes)
        if tag == "line" and "event" in given.get("class", ""):
            self.marks.append(given["class"])
        if tag not in ("meta", "link", "input"):
            self.open.append((tag, given.get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            if name is not None:
                self.words[name] = f"{self.words.get(name, '')} {data.strip()}".strip()


class Browser:
    """A browser with one tab. It accepts untrusted certificates."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        from_us, self.to = os.pipe()
        self.of, from_it = os.pipe()
        # Chromium reads descriptor 3 and writes 4, so these pipes must have other numbers.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (from_us, from_it)]

        def place():
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        self.process = subprocess.Popen(
            [PROGRAM, "--headless=new", "--no-sandbox", "--disable-gpu", "--ignore-certificate-errors", "--remote-debugging-pipe",
             "--hide-scrollbars", "--no-first-run", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            preexec_fn=place, pass_fds=(3, 4), start_new_session=True,
        )  # fmt: skip
        for end in (from_us, from_it, *ends):
            os.close(end)
        self.numbers = itertools.count(1)
        self.received = b""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)
        for _ in range(50):  # helper processes may still write there
            try:
                return self.folder.cleanup()
            except OSError:
                time.sleep(0.1)

    def call(self, method, **parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            head, end, rest = self.received.partition(b"\0")
            if end:
                self.received = rest
                answer = json.loads(head)
                if answer.get("id") != number:
                    continue  # an event
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.of], [], [], left)[0]:
                raise AssertionError(f"the browser does not answer {method}")
            read = os.read(self.of, 1 << 20)
            if not read:
                raise AssertionError("the browser has ended")
            self.received += read

    def size(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def dark(self, wanted=True):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if wanted else "light"}])

    def open(self, url):
        self.call("Page.navigate", url=url)

    def value(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def page(self):
        return Page(self.value("document.documentElement?.outerHTML ?? ''"))  # between two pages there is none

    def await_page(self, is_so):
        """Returns the first page for which `is_so` is true."""
        deadline = time.monotonic() + PATIENCE
        while not is_so(page := self.page()):
            if time.monotonic() > deadline:
                raise AssertionError(f"the page stays so: {page.words}")
            time.sleep(0.1)
        return page

    def picture(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
