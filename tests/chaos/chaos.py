#!/usr/bin/env python3
"""Tests of jobs whose cables are cut and whose processes stand still.

    sudo tests/chaos/chaos.py --bin build/release [-v] [Class.test_name ...]

Every process is a host of its own: a network namespace with a control and a data cable (tests/network). A disturbance
that is shorter than 0.4 of the failure timeout must not end any process. The job continues with the same members, and
ends with the checksum of an undisturbed one.
"""

import argparse
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from network import hosts

BIN = pathlib.Path("build/release")
FAILURE_TIMEOUT = 4.0
TOLERATED = 0.4 * FAILURE_TIMEOUT  # Timeouts::tolerated_cut
PATIENCE = 120.0
STEPS = 300


class Job:
    """A coordinator, servers and two workers, until the block ends. `rate` is that of all cables, as tc writes it."""

    def __init__(self, servers=2, rate=None, worker_flags=("--steps", str(STEPS), "--step-ms", "20"), environment=None):
        self.servers = [f"server{i}" for i in range(servers)]
        self.worker_flags = list(worker_flags)
        self.environment = environment or {}
        names = ["coordinator", *self.servers, "worker0", "worker1"]
        self.net = hosts.Hosts("chaos", names, networks=["control", "data"], rate=rate)
        self.folder = tempfile.TemporaryDirectory()
        self.processes = {}

    def __enter__(self):
        self.net.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *_):
        self.net.__exit__()
        self.folder.cleanup()

    def text(self, host):
        return (pathlib.Path(self.folder.name) / host).read_text(errors="replace")

    def all_text(self):
        return "\n".join(f"--- {host}\n{self.text(host)[-3000:]}" for host in self.processes)

    def await_line(self, host, pattern, timeout=PATIENCE):
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if match := re.search(pattern, self.text(host), re.M):
                return match
            time.sleep(0.02)
        raise AssertionError(f"{host} never printed /{pattern}/\n{self.all_text()}")

    def await_times(self, host, pattern, times):
        deadline = time.monotonic() + PATIENCE
        while len(re.findall(pattern, self.text(host))) < times:
            if time.monotonic() > deadline:
                raise AssertionError(f"{host} printed /{pattern}/ less than {times} times\n{self.all_text()}")
            time.sleep(0.02)

    def step(self, host):
        return max((int(number) for number in re.findall(r"^step (\d+)$", self.text(host), re.M)), default=0)

    def signal(self, host, number):
        os.killpg(self.processes[host].pid, number)

    def finish(self, workers=("worker0", "worker1")):
        """Waits for all workers, and returns their checksum."""
        checksums = set()
        for worker in workers:
            try:
                code = self.processes[worker].wait(PATIENCE)
            except Exception as error:
                raise AssertionError(f"{worker} does not end: {error}\n{self.all_text()}") from None
            if code != 0:
                raise AssertionError(f"{worker} ended with {code}\n{self.all_text()}")
            checksums.add(self.await_line(worker, r"^done .*checksum=(\w+)").group(1))
        assert len(checksums) == 1, f"the workers end with {checksums}"
        return checksums.pop()

    def _run(self, host, command, environment=()):
        with (pathlib.Path(self.folder.name) / host).open("w") as log:
            self.processes[host] = self.net.start(host, command, log, environment)

    def _start(self):
        timeout = f"{FAILURE_TIMEOUT}s"
        control = f"{self.net.address('coordinator')}:7070"
        common = ["--admin-listen", "127.0.0.1:0", "--insecure", "--failure-timeout", timeout]
        serve = [BIN / "syncline", "serve", "--role"]
        self._run("coordinator", [*serve, "coordinator", "--listen", control, "--servers", len(self.servers),
                                  "--state-dir", pathlib.Path(self.folder.name) / "state", *common])  # fmt: skip
        self.await_line("coordinator", "ready control=")
        for server in self.servers:
            listen = f"{self.net.address(server)}:7070"
            self._run(server, [*serve, "server", "--coordinator", control, "--listen", listen,
                               "--data-plane-address", self.net.address(server, "data"),
                               "--engine-threads", 1, *common])  # fmt: skip
            self.await_line(server, r"data plane: .* address=10\.2\.")
        for rank in range(2):
            job = {"SYNCLINE_COORDINATOR": control, "SYNCLINE_JOB": "chaos", "SYNCLINE_FAILURE_TIMEOUT": timeout,
                   "SYNCLINE_PATIENCE": f"{FAILURE_TIMEOUT}s", "RANK": str(rank), "WORLD_SIZE": "2",
                   **self.environment}  # fmt: skip
            self._run(f"worker{rank}", [BIN / "steps_worker", *self.worker_flags], job)


class Chaos(unittest.TestCase):
    undisturbed = None

    @classmethod
    def setUpClass(cls):
        if (reason := hosts.missing("chaos")) is not None:
            raise unittest.SkipTest(reason)
        with Job() as job:
            cls.undisturbed = job.finish()

    def assert_survives(self, disturb):
        with Job() as job:
            job.await_line("worker0", r"^step 40$")
            disturb(job)
            self.assertLess(job.step("worker0"), STEPS, "the disturbance came after the job")
            self.assertEqual(job.finish(), self.undisturbed, job.all_text())
            for worker in ("worker0", "worker1"):
                self.assertIn("members=2", job.text(worker))
            epochs = re.findall(r"epoch \d+ with \d+ members: (.*)", job.text("coordinator"))
            self.assertEqual([reason for reason in epochs if " left" not in reason], ["the job begins role=coordinator"],
                             job.all_text())  # fmt: skip

    def cut(self, host, network, direction):
        def disturb(job):
            with job.net.cut(host, network, direction):
                time.sleep(TOLERATED)

        self.assert_survives(disturb)

    def test_control_cable_of_a_worker(self):
        for direction in ("both", "out", "in"):
            with self.subTest(direction=direction):
                self.cut("worker1", "control", direction)

    def test_control_cable_of_a_server(self):
        for direction in ("both", "out", "in"):
            with self.subTest(direction=direction):
                self.cut("server1", "control", direction)

    def test_control_cable_of_the_coordinator(self):
        for direction in ("both", "out", "in"):
            with self.subTest(direction=direction):
                self.cut("coordinator", "control", direction)

    def test_data_cable_of_a_worker(self):
        self.cut("worker1", "data", "both")

    def test_data_cable_of_a_server(self):
        self.cut("server1", "data", "both")

    def test_coordinator_that_stands_still(self):
        def disturb(job):
            job.signal("coordinator", signal.SIGSTOP)
            time.sleep(TOLERATED)
            job.signal("coordinator", signal.SIGCONT)

        self.assert_survives(disturb)

    def test_worker_that_stands_still(self):
        def disturb(job):
            job.signal("worker1", signal.SIGSTOP)
            time.sleep(TOLERATED)
            job.signal("worker1", signal.SIGCONT)

        self.assert_survives(disturb)

    def test_killed_worker_is_dropped_after_a_quarter(self):
        with Job() as job:
            job.await_line("worker0", r"^step 40$")
            job.signal("worker1", signal.SIGKILL)
            killed = time.monotonic()
            last = job.step("worker0")
            job.await_line("worker0", rf"^step {last + 3}$")
            self.assertLess(time.monotonic() - killed, FAILURE_TIMEOUT / 4 + 2.0)
            job.finish(["worker0"])

    def test_coordinator_cut_off_for_good_ends_workers_with_a_reason_to_retry(self):
        with Job() as job:
            job.await_line("worker0", r"^step 40$")
            with job.net.cut("coordinator", "control", "both"):
                for worker in ("worker0", "worker1"):
                    self.assertEqual(job.processes[worker].wait(PATIENCE), 138, job.all_text())
                    self.assertIn("lost the coordinator", job.text(worker))


class ServersDie(unittest.TestCase):
    """Jobs with durability=peer and a model that is slow on cables of 100 Mbit/s: 16 MB of weights, 48 MB of state."""

    flags = ("--steps", "40", "--elements", "4000000", "--optimizer", "adamw")

    def setUp(self):
        if (reason := hosts.missing("chaos")) is not None:
            self.skipTest(reason)

    def train(self, disturb):
        with Job(3, "100mbit", self.flags, {"SYNCLINE_DURABILITY": "peer"}) as job:
            job.await_line("worker0", r"^step 3$")
            disturb(job)
            return job.finish()

    def test_one_after_the_other_until_one_is_left(self):
        undisturbed = self.train(lambda job: None)

        def disturb(job):
            job.signal("server1", signal.SIGKILL)
            job.await_times("coordinator", r"has a backup again, with server", 2)
            self.assertLess(job.step("worker0"), 35, "the backups came after the job")
            job.signal("server2", signal.SIGKILL)
            job.await_times("coordinator", r"took the place of server \d+ at step", 2)

        self.assertEqual(self.train(disturb), undisturbed)


def main():
    global BIN
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=BIN)
    options, rest = parser.parse_known_args()
    BIN = options.bin.resolve()
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
