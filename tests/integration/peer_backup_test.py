#!/usr/bin/env python3
"""Servers with backups in each other's memory: a server is killed, and its backup takes over.

    python3 tests/integration/peer_backup_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import re
import signal
import time

import cluster
from cluster import LeashedTest

STEPS = 60


class PeerBackupTest(LeashedTest):
    """Jobs with durability=peer whose servers are killed, and not started again."""

    servers = 3
    worker_env = {"SYNCLINE_DURABILITY": "peer"}

    def start_workers(self, *flags):
        return [
            self.worker(rank, 2, "--steps", str(STEPS), "--step-ms", "1", "--leash", self.leash, *flags)
            for rank in range(2)
        ]

    def begin(self, *flags):
        self.allow(20)
        workers = self.start_workers(*flags)
        self.await_steps(workers, 20)
        return workers

    def train(self, disturb, *flags):
        """Trains, and returns the checksum at the end. Calls `disturb` in the middle of steps, after 20 of them."""
        workers = self.begin(*flags)
        self.allow(40)
        disturb()
        self.await_steps(workers, 40)
        self.allow(STEPS)
        return self.assert_same_end(workers)

    def await_times(self, pattern, times):
        deadline = time.monotonic() + cluster.PATIENCE
        while len(re.findall(pattern, self.coordinator.text())) < times:
            self.assertLess(time.monotonic(), deadline, self.coordinator.text())
            time.sleep(0.05)

    def wait_without_coordinator(self):
        """Waits until a server that should end waits for the coordinator's permission."""
        self.coordinator.kill()
        server = self.server_processes[1]
        server.signal(signal.SIGTERM)
        server.await_line(r"waits until other servers have what it has")
        return server

    def await_recovery(self):
        """Waits for one takeover, and until the other servers have their backups again."""
        deadline = time.monotonic() + cluster.PATIENCE
        while True:
            job = self.status_of("test")
            done = job["recoveries"]["count"] == 1 and len(job["records"]) == 3
            if done and min(one["durable_step"] for one in job["records"]) >= 20:
                break
            self.assertLess(time.monotonic(), deadline, job)
            time.sleep(0.05)
        self.assertEqual(job["recoveries"]["causes"]["backup"]["count"], 1, job)

    def drain(self, server):
        number = re.search(r"syncline: ready .* server=(\d+)", server.text()).group(1)
        return self.syncline("drain", number, "--wait", "15s")

    def assert_same_weights(self, *flags):
        undisturbed = self.train(lambda: None, *flags)

        def disturb():
            self.server_processes[1].kill()
            self.coordinator.await_line(r"job 'test': server \d+ .* took the place of server \d+ at step \d+")
            self.coordinator.await_line(r"job 'test': the backup of server \d+ .* is lost: .*; the server goes on without one")
            self.await_recovery()

        self.assertEqual(self.train(disturb, *flags), undisturbed)


class PeerBackup(PeerBackupTest):
    def test_one_of_three_is_killed_and_the_weights_are_the_same(self):
        self.assert_same_weights()

    def test_with_top_k(self):
        self.assert_same_weights("--codec", "topk")

    def test_one_after_the_other_until_one_is_left(self):
        """Each place has a backup again before the next server is killed."""
        undisturbed = self.train(lambda: None)

        def disturb():
            self.server_processes[1].kill()
            # The places are its own, and the one whose backup it held.
            self.await_times(r"job 'test': server \d+ .* has a backup again, with server", 2)
            self.server_processes[2].kill()
            self.await_times(r"job 'test': server \d+ .* took the place of server \d+ at step", 2)

        self.assertEqual(self.train(disturb), undisturbed)

    def test_a_coordinator_that_comes_back_has_new_ones_made(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.coordinator.kill()
            self.start_coordinator()
            self.await_times(r"job 'test': server \d+ .* has a backup again, with server", 3)
            self.server_processes[1].kill()
            self.await_times(r"job 'test': server \d+ .* took the place of server \d+ at step", 1)

        self.assertEqual(self.train(disturb), undisturbed)

    def test_servers_that_are_told_to_end_wait_for_backups(self):
        """Two servers get SIGTERM in a row. The second has the only copy of two places, and keeps both."""
        undisturbed = self.train(lambda: None)

        def disturb():
            for server in self.server_processes[1:]:
                server.signal(signal.SIGTERM)
            for server in self.server_processes[1:]:
                self.assertEqual(server.wait(), 128 + signal.SIGTERM, server.text())

        self.assertEqual(self.train(disturb), undisturbed)

    def test_a_coordinator_that_comes_back_hears_who_is_to_end(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.coordinator.kill()
            self.server_processes[1].signal(signal.SIGTERM)
            self.server_processes[1].await_line(r"waits until other servers have what it has")
            self.start_coordinator()
            self.coordinator.await_line(r"server \d+ .* may end: other servers have all that it has")
            self.assertEqual(self.server_processes[1].wait(), 128 + signal.SIGTERM, self.server_processes[1].text())
            self.await_times(r"job 'test': server \d+ .* took the place of server \d+ at step", 1)

        self.assertEqual(self.train(disturb), undisturbed)

    def test_an_operator_drains_one_after_the_other(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            for server in self.server_processes[1:]:
                drained = self.drain(server)
                self.assertEqual(drained.returncode, 0, drained.stderr)
                self.assertRegex(drained.stdout, r"was told to stop\n(waits: .*\n)*server \d+ .* has ended\n$")
                self.assertEqual(server.wait(), 128 + signal.SIGTERM, server.text())
            refused = self.drain(self.server_processes[0])
            self.assertNotEqual(refused.returncode, 0)
            self.assertRegex(refused.stderr, r"job 'test' would fail: there is no other server")

        self.assertEqual(self.train(disturb), undisturbed)

    def test_a_second_signal_ends_a_server_that_waits(self):
        self.begin()
        server = self.wait_without_coordinator()
        server.signal(signal.SIGTERM)
        self.assertEqual(server.wait(timeout=20), 128 + signal.SIGTERM, server.text())

    def test_a_server_and_the_holder_of_its_backup(self):
        workers = self.begin()
        for server in self.server_processes[:2]:
            server.kill()
        self.allow(STEPS)
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"server \d+ \(.*\) is lost, and (so is its backup|it no longer had a backup)")


class PeerBackupOverTls(PeerBackupTest):
    server_flags = ("--data-plane", "tls")

    def test_keys_of_the_backup(self):
        self.assert_same_weights()


class ShortDrain(PeerBackupTest):
    server_flags = ("--drain-timeout", "1s")

    def test_a_server_that_waits_ends_after_its_drain_timeout(self):
        self.begin()
        server = self.wait_without_coordinator()
        self.assertEqual(server.wait(timeout=20), 128 + signal.SIGTERM, server.text())


class OneServer(PeerBackupTest):
    servers = 1

    def test_is_refused_with_what_to_do(self):
        for worker in self.start_workers():
            self.assertNotEqual(worker.wait(), 0)
            self.assertRegex(worker.text(), r"durability=peer, but there is only one server.*start two servers or more")


if __name__ == "__main__":
    cluster.main()
