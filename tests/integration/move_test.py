#!/usr/bin/env python3
"""A server that joins a running job gets a share from one that has two. No worker restarts, and weights do not change.

    python3 tests/integration/move_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import contextlib
import json
import os
import re
import signal
import tempfile
import threading
import time

import cluster
from cluster import LeashedTest

STEPS = 300
TOOK = r"job 'test': server \d+ .* took the place of server \d+ at step \d+"
FROM_BACKUP = TOOK + ", from its backup"
MOVED = TOOK + ", which handed it over"


class MoveTest(LeashedTest):
    """Servers are killed or drained and others join, while steps are made."""

    servers = 2
    worker_env = {"SYNCLINE_DURABILITY": "peer"}
    coordinator_flags = ("--rebalance", "auto")

    def begin(self):
        self.allow(20)
        workers = [
            self.worker(rank, 2, "--steps", str(STEPS), "--step-ms", "1", "--leash", self.leash) for rank in range(2)
        ]
        self.await_steps(workers, 20)
        return workers

    @contextlib.contextmanager
    def steps(self):
        """Allows steps during this context. The job does not end before it."""
        over = threading.Event()

        def pace():
            allowed = 20
            while not over.wait(0.02):
                allowed = min(allowed + 1, STEPS - 20)
                self.allow(allowed)

        thread = threading.Thread(target=pace)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def train(self, disturb):
        """Trains, and returns the checksum at the end."""
        workers = self.begin()
        with self.steps():
            disturb()
        self.allow(STEPS)
        return self.assert_same_end(workers)

    def start_another(self):
        name = f"server{len(self.server_processes)}"
        server = self.serve(name, "--role", "server", "--coordinator", self.address, *self.server_flags)
        server.await_line(r"ready control=")
        self.server_processes.append(server)

    def await_times(self, pattern, times):
        deadline = time.monotonic() + cluster.PATIENCE
        while len(re.findall(pattern, self.coordinator.text())) < times:
            self.assertLess(time.monotonic(), deadline, self.coordinator.text())
            time.sleep(0.05)

    def await_moves(self, moves):
        """Waits for this number of moves, and until every place has its backup again."""
        self.await_times(MOVED, moves)
        deadline = time.monotonic() + cluster.PATIENCE
        while any(backup.get("lost") for backup in self.status_of("test")["backups"]):
            self.assertLess(time.monotonic(), deadline, self.coordinator.text())
            time.sleep(0.05)

    def hosts(self):
        """Returns the names of the servers that serve the places."""
        status = json.loads(self.syncline("status", "-o", "json").stdout)
        names = {server["server"]: server["name"].split("/")[0] for server in status["servers"]}
        job = next(job for job in status["jobs"] if job["name"] == "test")
        return [names[backup["server"]] for backup in job["backups"]]


class Move(MoveTest):
    def test_a_server_that_comes_gets_one_of_two_shares(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.server_processes[1].kill()
            self.await_times(FROM_BACKUP, 1)
            self.assertEqual(len(set(self.hosts())), 1, self.coordinator.text())
            self.start_another()
            self.await_moves(1)
            self.assertEqual(len(set(self.hosts())), 2, self.coordinator.text())

        self.assertEqual(self.train(disturb), undisturbed)

    def test_over_and_over(self):
        """Another server dies each time, and the newest one gets a share."""
        undisturbed = self.train(lambda: None)

        def disturb():
            for times, dies in enumerate((1, 0, 2), 1):
                self.server_processes[dies].kill()
                self.await_times(FROM_BACKUP, times)
                self.start_another()
                self.await_moves(times)

        self.assertEqual(self.train(disturb), undisturbed)

    def test_servers_are_replaced_one_after_the_other(self):
        """This is what an upgrade does. In the end each new server has a share."""
        undisturbed = self.train(lambda: None)

        def disturb():
            for which in (0, 1):
                self.start_another()
                number = re.search(r"syncline: ready .* server=(\d+)", self.server_processes[which].text()).group(1)
                drained = self.syncline("drain", number, "--wait", "15s")
                self.assertEqual(drained.returncode, 0, drained.stderr)
                self.await_moves(which + 1)
            self.assertEqual(len(set(self.hosts())), 2, self.coordinator.text())

        self.assertEqual(self.train(disturb), undisturbed)

    def test_ctrl_c_after_a_move_ends_all(self):
        workers = self.begin()
        self.server_processes[1].kill()
        self.await_times(FROM_BACKUP, 1)
        self.start_another()
        self.await_times(MOVED, 1)
        processes = [*workers, self.server_processes[0], self.server_processes[2], self.coordinator]
        for process in processes:
            process.signal(signal.SIGINT)
        for process in processes:
            process.wait(timeout=20)


class MoveOfThree(MoveTest):
    servers = 3

    def test_a_backup_that_is_elsewhere_goes_to_the_newcomer_first(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.server_processes[1].kill()
            self.await_times(r"server \d+ .* has a backup again, with server", 2)
            self.start_another()
            self.await_moves(1)
            self.assertEqual(len(set(self.hosts())), 3, self.coordinator.text())
            # The share had a backup all the time.
            self.await_times(r"has its backup with server \d+ .* now, no longer with server \d+", 1)

        self.assertEqual(self.train(disturb), undisturbed)


class MoveOverTls(MoveTest):
    server_flags = ("--data-plane", "tls")

    def test_keys_of_the_new_place(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.server_processes[1].kill()
            self.await_times(FROM_BACKUP, 1)
            self.start_another()
            self.await_moves(1)

        self.assertEqual(self.train(disturb), undisturbed)


class MoveWithJournals(MoveTest):
    """Each server has a journal of its own. A place that moves starts a new journal."""

    worker_env = {"SYNCLINE_DURABILITY": "disk+peer"}

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.journals = folder.name
        super().setUp()

    def serve(self, name, *flags):
        journal = ("--journal-dir", os.path.join(self.journals, name)) if name.startswith("server") else ()
        return super().serve(name, *flags, *journal)

    def test_the_newcomer_serves_and_takes_over(self):
        undisturbed = self.train(lambda: None)

        def disturb():
            self.server_processes[1].kill()
            self.await_times(FROM_BACKUP, 1)
            self.start_another()
            self.await_moves(1)
            self.server_processes[0].kill()
            self.await_times(FROM_BACKUP, 2)

        self.assertEqual(self.train(disturb), undisturbed)


class MoveOff(MoveTest):
    coordinator_flags = ()  # by default

    def test_shares_stay(self):
        self.begin()
        self.server_processes[1].kill()
        self.await_times(FROM_BACKUP, 1)
        self.start_another()
        self.await_times(r"server \d+ .* has a backup again, with server", 2)
        time.sleep(cluster.FAILURE_TIMEOUT)  # many ticks
        self.assertEqual(len(set(self.hosts())), 1)


if __name__ == "__main__":
    cluster.main()
