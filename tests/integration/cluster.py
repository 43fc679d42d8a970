"""Runs a coordinator, servers and workers as processes on loopback, for the tests of this folder.

Every wait has a deadline. Nothing depends on the speed of the machine, only on the failure timeout.
"""

import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

try:
    import jsonschema
except ImportError:  # then no status is compared with the schema, and StatusSchema is skipped
    jsonschema = None

BUILD = "build/release"
os.environ.pop("COLUMNS", None)  # so that awaited lines are not broken
FAILURE_TIMEOUT = 4.0  # seconds; long enough for an oversubscribed machine to send its heartbeats
SCHEMA = os.path.join(os.path.dirname(__file__), "../../docs/status.schema.json")
LISTENS = "0A"  # in /proc/net/tcp
PATIENCE = 60.0  # for anything that must happen sometime


class Process:
    """A child process whose output is collected line by line."""

    def __init__(self, name, command, env=None):
        self.name = name
        self.lines = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            text=True, errors="replace", env={**os.environ, **(env or {})}, start_new_session=True,
        )  # fmt: skip
        self.collector = threading.Thread(target=self._collect, daemon=True)
        self.collector.start()

    def _collect(self):
        with self.process.stdout as output:
            for line in output:
                with self.changed:
                    self.lines.append((time.monotonic(), line.rstrip("\n")))
                    self.changed.notify_all()

    def text(self):
        with self.changed:
            return "\n".join(line for _, line in self.lines)

    def await_line(self, pattern, after=0.0, timeout=PATIENCE):
        """Waits for and returns the first match of `pattern` in a line printed at or after `after`."""
        deadline = time.monotonic() + timeout
        seen = 0
        with self.changed:
            while True:
                for when, line in self.lines[seen:]:
                    match = re.search(pattern, line)
                    if match and when >= after:
                        return match
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or (self.process.poll() is not None and not self.changed.wait(0.5)):
                    break
                self.changed.wait(min(left, 0.5))
        raise AssertionError(f"{self.name} never printed /{pattern}/; it printed:\n{self.text()}")

    def wait(self, timeout=None):
        """Waits for the end and returns the exit code: `timeout` seconds at most, or as long as it goes on printing.

        Without `timeout`, a process that prints nothing for PATIENCE hangs. The test's own limit ends the others.
        """
        end = time.monotonic() + (timeout or PATIENCE)
        while True:
            try:
                code = self.process.wait(max(0.1, end - time.monotonic()))
                self.collector.join(PATIENCE)
                return code
            except subprocess.TimeoutExpired:
                prints_until = self.lines[-1][0] + PATIENCE if self.lines and timeout is None else end
                if prints_until <= end:
                    raise AssertionError(f"{self.name} does not end; it printed:\n{self.text()}") from None
                end = prints_until

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.collector.join(PATIENCE)


def assert_same_end(test, workers):
    """Checks that all workers end well, with the same weights. Returns the checksum."""
    checksums = set()
    for worker in workers:
        test.assertEqual(worker.wait(), 0, worker.text())
        checksums.add(worker.await_line(r"done .*checksum=(\w+)").group(1))
    test.assertEqual(len(checksums), 1, "workers end with different weights")
    return checksums.pop()


def listening_ports(pid):
    """Returns the TCP ports on which a process of this host listens."""
    sockets = set()
    for fd in glob.glob(f"/proc/{pid}/fd/*"):
        try:
            sockets.add(os.readlink(fd))
        except FileNotFoundError:
            pass
    ports = set()
    for family in ("tcp", "tcp6"):
        with open(f"/proc/{pid}/net/{family}", encoding="ascii") as table:
            for line in list(table)[1:]:
                columns = line.split()
                if columns[3] == LISTENS and f"socket:[{columns[9]}]" in sockets:
                    ports.add(int(columns[1].split(":")[1], 16))
    return ports


def in_package(path):
    """Returns the place of a file of a Python package that deploy/install-deps.sh has installed, or None."""
    for build in (BUILD, os.path.join(os.path.dirname(__file__), "../../build/x")):
        packages = os.path.join(os.path.dirname(os.path.abspath(build)), "venv/lib/python3*/site-packages")
        if found := glob.glob(os.path.join(packages, path)):
            return found[0]
    return None


def port_of(address):
    return int(address.rsplit(":", 1)[1])


class ClusterTest(unittest.TestCase):
    """One coordinator and `servers` servers for each test."""

    servers = 2
    server_flags = ()
    coordinator_flags = ()
    worker_env = {}

    def setUp(self):
        self.state = tempfile.TemporaryDirectory()
        self.addCleanup(self.state.cleanup)
        self.address = "127.0.0.1:0"
        self.start_coordinator()
        self.server_processes = [
            self.serve(f"server{i}", "--role", "server", "--coordinator", self.address, *self.server_flags)
            for i in range(self.servers)
        ]
        for server in self.server_processes:
            server.await_line(r"ready control=")

    def start_coordinator(self):
        """Starts the coordinator, or starts it again with the same state and address."""
        self.coordinator = self.serve("coordinator", "--role", "coordinator", "--listen", self.address,
                                      "--state-dir", self.state.name, *self.coordinator_flags)  # fmt: skip
        ready = self.coordinator.await_line(r"ready control=(\S+) admin=(\S+)")
        self.address, self.admin = ready.groups()

    def start(self, name, command, env=None):
        process = Process(name, command, env)
        self.addCleanup(process.kill)
        return process

    def serve(self, name, *flags):
        admin = [] if "--admin-listen" in flags else ["--admin-listen", "127.0.0.1:0"]
        return self.start(name, [f"{BUILD}/syncline", "serve", *admin, "--failure-timeout", f"{FAILURE_TIMEOUT}s", *flags])

    def worker(self, rank, world, *flags, program="steps_worker", job="test"):
        env = {
            "SYNCLINE_COORDINATOR": self.address,
            "SYNCLINE_JOB": job,
            "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT}s",
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            **self.worker_env,
        }
        return self.start(f"worker{rank}", [f"{BUILD}/{program}", *flags], env)

    def await_job(self, name):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{self.admin}/status", timeout=5) as reply:
                if name in [job["name"] for job in json.load(reply)["jobs"]]:
                    return
            time.sleep(0.05)
        self.fail(f"job {name} never appeared")

    def syncline(self, command, *arguments):
        return subprocess.run([f"{BUILD}/syncline", command, "--coordinator", self.address, *arguments],
                              capture_output=True, text=True, timeout=20)  # fmt: skip

    def update(self, *arguments):
        return self.syncline("update", "test", *arguments)

    def status_of(self, name):
        shown = self.syncline("status", "-o", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        status = json.loads(shown.stdout)
        if jsonschema:
            with open(SCHEMA) as file:
                jsonschema.validate(status, json.load(file))
        return next(job for job in status["jobs"] if job["name"] == name)

    def assert_same_end(self, workers):
        return assert_same_end(self, workers)


class LeashedTest(ClusterTest):
    """Workers make only the steps that the test allows, so no job ends too early on any machine."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.leash = os.path.join(self.directory, "leash")
        super().setUp()

    def allow(self, steps):
        with open(f"{self.leash}.new", "w") as file:
            file.write(f"{steps}\n")
        os.rename(f"{self.leash}.new", self.leash)

    def await_steps(self, workers, steps):
        for worker in workers:
            worker.await_line(rf"^step {steps - 1}$")


class SmallDisk:
    """A mix-in for tests of servers with journals: server 1 has its journal on a disk of 300 MB."""

    def setUp(self):
        self.disk = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", self.disk]).returncode != 0:
            self.skipTest("may not mount a small disk here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.disk])
        super().setUp()

    def journal(self, which):
        return self.disk if which == "1" else super().journal(which)

    def fill(self):
        filler = os.path.join(self.disk, "filler")
        with open(filler, "wb") as file, self.assertRaisesRegex(OSError, "No space left"):
            while True:
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, 4096)
        return filler


class CertifiedTest(unittest.TestCase):
    """A coordinator with certificates of `syncline certs`, in a folder of its own."""

    coordinator_flags = ()
    server_flags = ()

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.assert_runs("certs", "init", "certs")
        self.assert_runs("certs", "issue", "certs", "--role", "worker", "--job", "default")
        self.coordinator = self.serve("coordinator", "--role", "coordinator", "--listen", "127.0.0.1:0",
                                      "--state-dir", "state", "--audit-log", "audit",
                                      *self.files("coordinator"), *self.coordinator_flags)  # fmt: skip
        ready = self.coordinator.await_line(r"ready control=(\S+) admin=(\S+)")
        self.address, self.admin = ready.groups()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def files(self, name):
        return ["--tls-cert", self.path(f"certs/{name}.crt"), "--tls-key", self.path(f"certs/{name}.key"),
                "--tls-ca", self.path("certs/ca.crt")]  # fmt: skip

    def run_syncline(self, *arguments):
        return subprocess.run([f"{BUILD}/syncline", *arguments], cwd=self.folder.name,
                              capture_output=True, text=True, timeout=120)  # fmt: skip

    def assert_runs(self, *arguments):
        run = self.run_syncline(*arguments)
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def serve(self, name, *flags):
        admin = [] if "--admin-listen" in flags else ["--admin-listen", "127.0.0.1:0"]
        command = [f"{BUILD}/syncline", "serve", *admin, "--failure-timeout", f"{FAILURE_TIMEOUT}s", *flags]
        process = Process(name, ["sh", "-c", 'cd "$0" && exec "$@"', self.folder.name, *command])
        self.addCleanup(process.kill)
        return process

    def start_server(self):
        self.server = self.serve("server", "--role", "server", "--coordinator", self.address, *self.files("server"),
                                 *self.server_flags)  # fmt: skip
        self.server.await_line(r"ready control=")

    def worker(self, rank, world, *flags, certificate="worker-default", program="steps_worker", env=None):
        cert, key, ca = self.files(certificate)[1::2]
        process = Process(f"worker{rank}", [f"{BUILD}/{program}", *flags], {
            "SYNCLINE_COORDINATOR": self.address, "SYNCLINE_FAILURE_TIMEOUT": f"{FAILURE_TIMEOUT}s",
            "SYNCLINE_TLS_CERT": cert, "SYNCLINE_TLS_KEY": key, "SYNCLINE_TLS_CA": ca,
            "RANK": str(rank), "WORLD_SIZE": str(world), **(env or {}),
        })  # fmt: skip
        self.addCleanup(process.kill)
        return process


def main():
    global BUILD
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=BUILD)
    arguments, rest = parser.parse_known_args()
    BUILD = os.path.abspath(arguments.build)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
