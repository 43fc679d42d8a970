"""Reads all places where a coordinator shows the state of its jobs, one after the other.

    places = Places(binary, control, admin, job)
    look = places.look()        # Look(events=[...], status={...}, metrics={...}, top="...", advise={...}, data={...}, page={...})
    places.close()
"""

import dataclasses
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))
import browser  # noqa: E402
from alert_times import parsed  # noqa: E402

PATIENCE = 20
COLUMNS, ROWS = 120, 60
_DRAWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
# The parts of the page that are not in its text.
_MARKED = """({
  silent: [...document.querySelectorAll('#workers .silent')].map((one) => one.closest('tr').firstChild.textContent),
  slow: [...document.querySelectorAll('#workers .slow')].map((one) => one.closest('tr').firstChild.textContent),
})"""


@dataclasses.dataclass
class Look:
    """What all places showed at one time. `page` is empty without Chromium; `advise` is the latest advice."""

    at: float  # by time.monotonic
    events: list
    status: dict  # of the job
    failure_timeout: float
    metrics: dict  # name: [(labels, value)]
    top: str
    advise: dict
    data: dict  # of the dashboard: "events", "status" and so on
    page: dict

    def metric(self, name, **labels):
        """Returns the metric's value; None: there is none."""
        for found, value in self.metrics.get(name, ()):
            if labels.items() <= found.items():
                return value
        return None


class NotThere(Exception):
    """The job, or a place that shows it, does not exist."""


class Screen:
    """`syncline top` in a terminal of its own."""

    def __init__(self, binary, control, keys):
        self.keys = keys  # pressed once something is drawn
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execv(binary, [str(binary), "top", "--coordinator", control, "--interval", "500ms"])
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.drawn = b""

    def read(self):
        """Returns the last complete picture."""
        while select.select([self.terminal], [], [], 0)[0]:
            try:
                self.drawn = (self.drawn + os.read(self.terminal, 1 << 16))[-(1 << 18) :]
            except OSError:
                break
        pictures = self.drawn.decode(errors="replace").split("\x1b[H")
        if len(pictures) < 3:
            return ""
        os.write(self.terminal, self.keys.encode())
        self.keys = ""
        return _DRAWN.sub("", pictures[-2])

    def close(self):
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        os.close(self.terminal)


class Advisor(threading.Thread):
    """Runs `syncline advise` repeatedly in the background, because it takes seconds."""

    def __init__(self, command):
        super().__init__(daemon=True)
        self.command, self.said, self.is_over = command, {}, threading.Event()
        self.start()

    def run(self):
        while not self.is_over.is_set():
            asked = subprocess.run(self.command, capture_output=True, text=True)
            if asked.returncode == 0:
                self.said = json.loads(asked.stdout)
            else:
                self.is_over.wait(1)


def metrics_of(admin):
    """Returns the text at /metrics; None: there is no answer."""
    try:
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=PATIENCE) as reply:
            return reply.read().decode()
    except OSError:
        return None


class Places:
    """All places of a coordinator, by its control port and its admin port."""

    def __init__(self, binary, control, admin, job):
        self.binary, self.control, self.admin, self.job = binary, control, admin, job
        self.screens = [Screen(binary, control, keys) for keys in ("", "e", "p")]
        self.advisor = Advisor([str(binary), "advise", job, "--coordinator", control, "--watch", "4s", "-o", "json"])
        self.tab = None
        if browser.PROGRAM is not None:
            self.tab = browser.Browser()
            self.tab.size(1280, 900)
            self.tab.open(f"http://{self.admin}/")

    def close(self):
        self.advisor.is_over.set()
        self.advisor.join(PATIENCE)
        for screen in self.screens:
            screen.close()
        if self.tab:
            self.tab.close()

    def ask(self, *arguments):
        asked = subprocess.run([self.binary, *arguments, "--coordinator", self.control], capture_output=True, text=True, timeout=PATIENCE)
        if asked.returncode != 0:
            raise NotThere(f"syncline {' '.join(arguments)}: {asked.stderr}")
        return asked.stdout

    def stream(self):
        """Returns the first messages that the dashboard receives, by name."""
        told, name, data = {}, "", ""
        with urllib.request.urlopen(f"http://{self.admin}/stream", timeout=PATIENCE) as reply:
            for line in reply:
                word, _, rest = line.decode().rstrip("\n").partition(": ")
                if word == "event":
                    name, data = rest, ""
                elif word == "data":
                    data += rest
                elif not word and data:
                    told[name] = json.loads(data)
                    if name == "status":
                        break
        return told

    def look(self):
        metrics = {}
        for name, labels, value in parsed(metrics_of(self.admin) or ""):
            metrics.setdefault(name, []).append((dict(_LABEL.findall(labels)), float(value)))
        status = json.loads(self.ask("status", "--json"))
        job = next((job for job in status["jobs"] if job["name"] == self.job), None)
        if job is None:
            raise NotThere(f"the coordinator has no job {self.job} yet")
        page = {}
        if self.tab:
            shown = self.tab.page()
            page = {**shown.words, "marks": shown.marks, **self.tab.value(_MARKED)}
        return Look(
            at=time.monotonic(), events=[json.loads(line) for line in self.ask("events", self.job, "--json").splitlines()],
            status=job, failure_timeout=status["failure_timeout_seconds"],
            metrics=metrics, top="\n".join(screen.read() for screen in self.screens), advise=self.advisor.said,
            data=self.stream(), page=page)  # fmt: skip

    def pictures(self, folder, name):
        """Saves pictures of the page: on a desktop, light and dark, and on a phone."""
        if not self.tab:
            return
        for kind, width, height, dark in (("light", 1280, 900, False), ("dark", 1280, 900, True), ("phone", 390, 844, False)):
            self.tab.size(width, height, mobile=width < 500)
            self.tab.dark(dark)
            time.sleep(1.5)  # the page is drawn each second
            self.tab.picture(str(Path(folder) / f"{name}-{kind}.png"), whole=True)
        self.tab.dark(False)
        self.tab.size(1280, 900)
