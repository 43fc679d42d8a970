#!/usr/bin/env python3
"""Two coordinators have their state in etcd. One leads, and when it is lost the other one takes over.

    python3 tests/integration/standby_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import shutil
import signal
import socket
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import cluster
from cluster import PATIENCE
from restart_test import STEPS, RestartTest, nothing

ETCD = shutil.which("etcd")


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


@unittest.skipUnless(ETCD, "etcd-server is not installed")
class StandbyTest(RestartTest):
    """A cluster with two coordinators, of which one leads."""

    def setUp(self):
        self.etcd_folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.etcd_folder.cleanup)
        # Another process may take a port first.
        self.assertTrue(any(self.start_etcd(*free_ports(2)) for _ in range(5)), "no etcd starts")
        self.coordinators = []
        super().setUp()

    def start_etcd(self, clients, peers):
        client, peer = f"http://127.0.0.1:{clients}", f"http://127.0.0.1:{peers}"
        self.etcd = self.start("etcd", [
            ETCD, "--data-dir", os.path.join(self.etcd_folder.name, str(clients)), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}"])  # fmt: skip
        self.etcd_state = f"etcd://127.0.0.1:{clients}/tests"
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and self.etcd.process.poll() is None:
            try:
                with urllib.request.urlopen(f"{client}/health", timeout=5) as reply:
                    if json.load(reply)["health"] == "true":
                        return True
            except OSError:
                time.sleep(0.05)
        return False

    def start_one(self, name, listen="127.0.0.1:0"):
        one = self.serve(name, "--role", "coordinator", "--listen", listen, "--state", self.etcd_state,
                         *self.coordinator_flags)  # fmt: skip
        one.address, one.admin = one.await_line(r"standby control=(\S+) admin=(\S+)").groups()
        return one

    def start_coordinator(self):
        self.coordinator = self.start_one("coordinator-a")
        self.coordinator.await_line(r"ready control=(\S+)")
        self.standby = self.start_one("coordinator-b")
        self.standby.await_line(r"is a standby")
        self.address = f"{self.coordinator.address},{self.standby.address}"

    def await_next_leader(self):
        """Waits until the standby leads. The previous leader may be alive or not."""
        self.standby.await_line(r"ready control=")
        self.standby.await_line(r"the coordinator came back: job 'test' goes on at step \d+ "
                                r"in epoch \d+ with 2 of 2 members")  # fmt: skip
        self.coordinator, self.standby = self.standby, self.coordinator

    def bring_back(self):
        """Starts the lost coordinator again, as a standby."""
        self.standby = self.start_one(f"{self.standby.name}-again", self.standby.address)
        self.standby.await_line(r"is a standby")

    def disturbed_once(self, disturb):
        undisturbed, _ = self.train(nothing, "--clip", "0.01")
        checksum, workers = self.train(disturb, "--clip", "0.01")
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)


class Standby(StandbyTest):
    def test_killed_leaders_are_followed_and_the_weights_are_the_same(self):
        def disturb(workers):
            for steps in (40, 60):
                self.coordinator.kill()
                self.allow(steps)
                self.await_next_leader()
                self.bring_back()
                self.await_steps(workers, steps)
            self.assertEqual(len(self.status_of("test")["members"]), 2)

        self.disturbed_once(disturb)

    def test_a_leader_that_stood_still_steps_down_and_harms_nothing(self):
        def disturb(workers):
            old = self.coordinator
            old.signal(signal.SIGSTOP)
            self.await_next_leader()
            self.allow(40)
            self.await_steps(workers, 40)
            old.signal(signal.SIGCONT)
            self.assertEqual(old.wait(), 138, old.text())
            self.assertRegex(old.text(), "does not any more|does not lead any more|is no longer the leader")
            self.assertEqual(self.status_of("test")["phase"], "running")

        self.disturbed_once(disturb)

    def test_an_etcd_that_is_away_stops_the_leader_and_not_the_steps(self):
        undisturbed, _ = self.train(nothing)

        def disturb(workers):
            self.etcd.signal(signal.SIGSTOP)
            self.allow(40)
            self.await_steps(workers, 40)
            self.assertEqual(self.coordinator.wait(), 138, self.coordinator.text())
            self.assertRegex(self.coordinator.text(), "etcd does not answer")
            self.allow(60)
            self.await_steps(workers, 60)
            self.assertNotRegex(self.standby.text(), "ready control=")
            self.etcd.signal(signal.SIGCONT)
            self.await_next_leader()

        checksum, workers = self.train(disturb)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def page(self, one, path):
        try:
            with urllib.request.urlopen(f"http://{one.admin}{path}", timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def test_probes_and_metrics_tell_a_standby_from_one_without_etcd(self):
        self.assertEqual(self.page(self.standby, "/readyz")[0], 200)
        self.assertIn("syncline_coordinator_leads 0\n", self.page(self.standby, "/metrics")[1])
        self.assertIn("syncline_coordinator_leads 1\n", self.page(self.coordinator, "/metrics")[1])
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            self.etcd_state = f"etcd://127.0.0.1:{nobody.getsockname()[1]}/tests"
            alone = self.start_one("coordinator-c")
            alone.await_line("waiting for etcd; nobody can become the leader")
            status, why = self.page(alone, "/readyz")
            self.assertEqual(status, 503)
            self.assertRegex(why, "etcd does not answer: no answer within 2s; 127.0.0.1")

    def test_a_standby_says_who_leads_and_follows_a_leader_that_ends(self):
        workers = self.start_workers()
        self.allow(20)
        self.await_steps(workers, 20)
        self.address, both = self.standby.address, self.address
        asked = self.syncline("status")
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn(f"is a standby, not the leader; ask {self.coordinator.address}", asked.stderr)
        self.address = both
        self.coordinator.signal(signal.SIGTERM)
        self.assertEqual(self.coordinator.wait(), 143, self.coordinator.text())
        self.await_next_leader()
        self.allow(STEPS)
        self.assert_same_end(workers)
        self.assert_nobody_noticed(workers)


if __name__ == "__main__":
    cluster.main()
