"""Shared parts of the tests: the build, servers for a test, and workers in processes of their own."""
import codecs
import contextlib
import io
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
from pathlib import Path

import nursery

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src"
BUILD = Path(os.environ.get("SYNCLINE_BUILD", HERE.parents[2] / "build/release")).resolve()
PATIENCE = 120.0  # seconds; for events that must happen at some time, even on a machine that is busy with builds
FAILURE_TIMEOUT = "4s"

os.environ.setdefault("SYNCLINE_LIBRARY", str(BUILD / "libsyncline.so"))
os.environ.setdefault("SYNCLINE_BINARY", str(BUILD / "syncline"))
for name in ("SYNCLINE_COORDINATOR", "SYNCLINE_JOB", "RANK", "WORLD_SIZE", "COLUMNS"):
    os.environ.pop(name, None)
sys.path.insert(0, str(PACKAGE))

if not Path(os.environ["SYNCLINE_LIBRARY"]).is_file():
    raise unittest.SkipTest(f"no {os.environ['SYNCLINE_LIBRARY']}; build the target syncline_c")


def not_of_torch(test):
    """Marks tests that differ from others only below torch, as by the wire between ranks. ctest runs them with one torch only.

    All other tests of a suite that CMakeLists.txt lists for the newest torch run with both.
    """
    return unittest.skipIf(os.environ.get("SYNCLINE_TESTS_OF_NEWEST_TORCH"), "ctest runs this with the older torch")(test)


class Lines:
    """Cuts what a stream brings into lines."""

    def __init__(self):
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._rest = ""

    def take(self, data):
        """Returns the lines that end with this data. With b"" the stream ends, and so does its last line."""
        *lines, self._rest = (self._rest + self._decoder.decode(data, final=not data)).split("\n")
        return lines if data or not self._rest else [*lines, self._rest]


class Process:
    """A child process. A thread collects the lines of its two output streams.

    Each stream is a pipe of its own: print() writes a line and its end with two calls, and in a common pipe a line of the log could come
    between them.
    """

    def __init__(self, command, env=None):
        env = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONUNBUFFERED": "1", **(env or {})}
        self.environment = env
        if len(command) == 3 and command[:2] == [sys.executable, "-c"] and nursery.can_start(command[2], env):
            self.process = nursery.Nursery.of_this_process().start(command[2], env)
        else:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
                                            env=env, start_new_session=True)
        self.lines = []
        self.changed = threading.Condition()
        self.collector = threading.Thread(target=self._collect, daemon=True)
        self.collector.start()

    def _collect(self):
        with self.process.stdout as output, self.process.stderr as errors:
            open_streams = {output: Lines(), errors: Lines()}
            while open_streams:
                ready, _, _ = select.select(list(open_streams), [], [])
                lines = []
                for stream in ready:
                    data = os.read(stream.fileno(), 1 << 16)
                    lines += open_streams[stream].take(data)
                    if not data:
                        del open_streams[stream]
                with self.changed:
                    self.lines += lines
                    self.changed.notify_all()

    def text(self):
        with self.changed:
            return "\n".join(self.lines)

    def await_line(self, pattern, timeout=PATIENCE):
        deadline = time.monotonic() + timeout
        with self.changed:
            while True:
                for line in self.lines:
                    if match := re.search(pattern, line):
                        return match
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.changed.wait(0.5)):
                    raise AssertionError(f"never printed /{pattern}/, but:\n" + "\n".join(self.lines))
                self.changed.wait(min(left, 0.5))

    def wait(self, timeout=PATIENCE):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"does not end; it printed:\n{self.text()}") from None
        self.collector.join(timeout)
        return code

    def await_stopped(self):
        """Waits until the process has stopped itself."""
        stat = Path(f"/proc/{self.process.pid}/stat")
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            if self.process.poll() is not None:
                raise AssertionError(f"ended, and did not stop:\n{self.text()}")
            time.sleep(0.01)

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.collector.join(PATIENCE)


class ServersTest(unittest.TestCase):
    """A coordinator and a server for all tests of a class; each test has a job of its own."""

    failure_timeout = FAILURE_TIMEOUT

    @classmethod
    def setUpClass(cls):
        state = tempfile.TemporaryDirectory()
        cls.addClassCleanup(state.cleanup)
        serve = Process([os.environ["SYNCLINE_BINARY"], "serve", "--role", "all", "--listen", "127.0.0.1:0",
                         "--admin-listen", "127.0.0.1:0", "--state-dir", state.name, "--failure-timeout", cls.failure_timeout])
        cls.addClassCleanup(serve.kill)
        cls.coordinator = serve.await_line(r"ready control=(\S+)").group(1)

    def options(self, **more):
        """Returns the options of a session in this test's job, and `more`."""
        return {"coordinator": self.coordinator, "job": self.id(), "failure_timeout": self.failure_timeout, **more}

    def await_event(self, pattern):
        """Waits until `syncline events` shows an event of this test's job that matches `pattern`."""
        command = [os.environ["SYNCLINE_BINARY"], "events", self.id(), "--coordinator", self.coordinator]
        deadline = time.monotonic() + PATIENCE
        while True:
            shown = subprocess.run(command, capture_output=True, text=True)
            if re.search(pattern, shown.stdout, re.MULTILINE):
                return
            if time.monotonic() > deadline:
                raise AssertionError(f"no event says /{pattern}/, but:\n{shown.stdout}{shown.stderr}")
            time.sleep(0.1)

    def environment(self, rank=0, world_size=1):
        return {"SYNCLINE_COORDINATOR": self.coordinator, "SYNCLINE_JOB": self.id(), "SYNCLINE_RUN_ID": self.id(),
                "SYNCLINE_FAILURE_TIMEOUT": self.failure_timeout, "RANK": str(rank), "WORLD_SIZE": str(world_size)}

    def program(self, source, env=None):
        return start_program(self, source, {**self.environment(), **(env or {})})


def start_program(test, source, env=None):
    """Starts a Python program that a test wrote; it ends with the test."""
    process = Process([sys.executable, "-c", textwrap.dedent(source)], env)
    test.addCleanup(process.kill)
    return process
