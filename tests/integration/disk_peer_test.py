#!/usr/bin/env python3
"""Jobs with journals and backups: servers are killed, alone or together, and come back or not.

    python3 tests/integration/disk_peer_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import re
import signal
import sys
import tempfile
import time

import cluster
from cluster import LeashedTest, SmallDisk

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../chaos"))
from failing_disk import Disk  # noqa: E402

STEPS = 130


class DiskPeerTest(LeashedTest):
    """Three servers, each with a journal of its own and a backup on the next server."""

    servers = 3
    worker_env = {"SYNCLINE_DURABILITY": "disk+peer"}

    def journal(self, which):
        return os.path.join(self.directory, f"journal{which}")

    def serve(self, name, *flags):
        if name.startswith("server"):
            flags = (*flags, "--journal-dir", self.journal(name[-1]))
        return super().serve(name, *flags)

    def start_server(self, which):
        server = self.serve(f"server{which}", "--role", "server", "--coordinator", self.address, *self.server_flags)
        self.server_processes[which] = server

    def begin(self):
        self.allow(20)
        workers = [
            self.worker(rank, 2, "--steps", str(STEPS), "--step-ms", "1", "--leash", self.leash, "--codec", "topk")
            for rank in range(2)
        ]
        self.await_steps(workers, 20)
        return workers

    def train(self, disturb):
        """Trains, and returns the checksum at the end. Calls `disturb` in the middle of steps, after 20 of them."""
        workers = self.begin()
        self.allow(50)
        disturb()
        self.await_steps(workers, 50)
        self.allow(STEPS)
        return self.assert_same_end(workers)

    def assert_same_weights(self, disturb):
        undisturbed = self.train(lambda: None)
        self.assertEqual(self.train(disturb), undisturbed)

    def await_said(self, pattern, times=1):
        deadline = time.monotonic() + cluster.PATIENCE
        while len(re.findall(pattern, self.coordinator.text())) < times:
            self.assertLess(time.monotonic(), deadline, self.coordinator.text())
            time.sleep(0.05)

    def await_whole(self, times=1):
        """Waits until restarted journals are complete: `times` of them, after further steps."""
        said = r"server \d+ .* has a complete journal again"
        deadline = time.monotonic() + cluster.PATIENCE
        steps = 50
        while len(re.findall(said, self.coordinator.text())) < times:
            self.assertLess(time.monotonic(), deadline, self.coordinator.text())
            steps = min(steps + 1, STEPS - 10)
            self.allow(steps)
            time.sleep(0.2)

    def ring(self):
        """Returns the servers by number. Each has its backup on the next one."""
        numbers = [re.search(r"syncline: ready .* server=(\d+)", one.text()).group(1) for one in self.server_processes]
        return sorted(range(self.servers), key=lambda which: int(numbers[which]))

    def segments(self, which):
        return [name for _, _, files in os.walk(self.journal(which)) for name in files if name.endswith(".journal")]


class DiskPeer(DiskPeerTest):
    def test_one_of_three_is_killed_and_comes_back_as_a_spare(self):
        def disturb():
            _, dies, holder = self.ring()
            self.server_processes[dies].kill()
            self.await_said(r"server \d+ .* took the place of server \d+ at step \d+, from its backup")
            self.await_said(r"server \d+ .* has a backup again", 2)
            self.await_whole()
            names = self.segments(holder)
            self.assertTrue([name for name in names if re.search(r"-g\d+-.*-anew", name)], names)
            self.start_server(dies)
            self.await_said(r"has an earlier journal of the place of .*, which went on without it; the journal is not used, and .* is a spare")

        self.assert_same_weights(disturb)

    def test_a_server_and_the_holder_of_its_backup(self):
        """The first server waits for its journal. The third takes over from the second, whose journal is obsolete."""

        def disturb():
            first, second, _ = self.ring()
            for which in (first, second):
                self.server_processes[which].kill()
            self.await_said(r"took the place of server \d+ at step \d+, from its backup")
            self.start_server(first)
            self.await_said(r"came back at step \d+ from the journal of server \d+")
            self.start_server(second)

        self.assert_same_weights(disturb)

    def test_all_at_once(self):
        def disturb():
            for server in self.server_processes:
                server.kill()
            for which in range(3):
                self.start_server(which)
            self.await_said(r"came back at step \d+ from the journal of server \d+", 3)

        self.assert_same_weights(disturb)

    def test_one_process_comes_back_with_two_places(self):
        """The third server has its own place and the second's when all die, and again after its restart."""

        def disturb():
            first, dies, holder = self.ring()
            self.server_processes[dies].kill()
            self.await_said(r"took the place of server \d+ at step \d+, from its backup")
            self.await_whole()
            for which in (first, holder):
                self.server_processes[which].kill()
            for which in (holder, first):
                self.start_server(which)
            self.await_said(r"came back at step \d+ from the journal of server \d+", 3)
            self.await_said(r"server \d+ \(.*/place-\d+\) came back at step")

        self.assert_same_weights(disturb)

    def test_the_coordinator_comes_back_and_then_all_die(self):
        def disturb():
            self.coordinator.kill()
            self.start_coordinator()
            self.coordinator.await_line(r"the coordinator came back: job 'test' goes on")
            for server in self.server_processes:
                server.kill()
            for which in range(3):
                self.start_server(which)
            self.await_said(r"came back at step \d+ from the journal of server \d+", 3)

        self.assert_same_weights(disturb)

    def test_right_after_a_take_over_another_death_is_said(self):
        """If the new owner's journal is not complete and its backup is gone, the job must not go back silently."""
        workers = self.begin()
        first, dies, holder = self.ring()
        self.server_processes[dies].kill()
        self.await_said(r"took the place of server \d+ at step \d+, from its backup")
        for which in (first, holder):
            self.server_processes[which].kill()
        for which in range(3):
            self.start_server(which)
        self.allow(STEPS)
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"is lost, and .*had no complete journal: it starts over after a take-over")


class DiskOfAHolder(SmallDisk, DiskPeerTest):
    """Server 1 has its journal on a small disk, and holds the backup of the previous server."""

    def test_is_full_and_the_backup_takes_over_all_the_same(self):
        def disturb():
            filler = self.fill()
            self.allow(60)  # earlier steps may be made already
            self.await_said(r"the journal of server \d+ .* has ended: .*No space left")
            ring = self.ring()
            self.server_processes[ring[ring.index(1) - 1]].kill()
            self.await_said(r"took the place of server \d+ at step \d+, from its backup")
            os.remove(filler)
            self.await_whole(2)  # its own journal, and that of the place that it took

        self.assert_same_weights(disturb)


class StuckDisk(DiskPeerTest):
    """Each server has a disk whose syncs hang on the test's order."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        library = os.path.join(cluster.BUILD, "failing_disk.so")
        self.disks = [Disk(os.path.join(folder.name, str(which)), library) for which in range(self.servers)]
        for disk in self.disks:
            self.addCleanup(disk.order, None)
        super().setUp()

    def journal(self, which):
        return str(self.disks[int(which)].files)

    def start(self, name, command, env=None):
        if name.startswith("server"):
            env = {**(env or {}), **self.disks[int(name[-1])].environment}
        return super().start(name, command, env)

    def test_the_job_goes_on_with_the_backup_and_the_journal_comes_back(self):
        def disturb():
            with self.disks[1].failing("stuck"):
                self.allow(60)
                self.await_said(r"the journal of server \d+ .* has ended: .* which took none for 5s")
                ring = self.ring()
                self.server_processes[ring[ring.index(1) - 1]].kill()
                self.await_said(r"took the place of server \d+ at step \d+, from its backup")
            self.await_whole(2)  # its own journal, and that of the place that it took

        self.assert_same_weights(disturb)

    def test_a_job_that_ends_on_it_harms_no_other_job(self):
        """The holder has taken a place, whose job ends while the journal waits for the disk."""
        workers = self.begin()
        _, dies, holder = self.ring()
        self.server_processes[dies].kill()
        self.await_said(r"took the place of server \d+ at step \d+, from its backup")
        self.await_whole()
        self.worker_env = {"SYNCLINE_DURABILITY": "none"}
        leash, self.leash = self.leash, f"{self.leash}-other"
        self.allow(2)
        other = self.worker(0, 1, "--steps", "50", "--leash", self.leash, job="other")
        self.await_steps([other], 2)
        self.leash, other_leash = leash, self.leash
        self.disks[holder].order("stuck")
        self.allow(STEPS)
        self.assert_same_end(workers)
        time.sleep(2 * cluster.FAILURE_TIMEOUT)  # nothing may happen during this time
        self.leash = other_leash
        self.allow(50)
        self.assertEqual(other.wait(), 0, other.text())
        self.assertNotIn("no heartbeat", self.coordinator.text())

        # The first signal ends it in order, and it waits for the disk. A second signal ends it at once.
        stuck = self.server_processes[holder]
        deadline = time.monotonic() + cluster.PATIENCE
        while stuck.process.poll() is None and time.monotonic() < deadline:
            stuck.signal(signal.SIGTERM)
            time.sleep(0.5)
        self.assertEqual(stuck.wait(), -signal.SIGTERM, stuck.text())


class NoPlace(DiskPeerTest):
    def serve(self, name, *flags):
        return LeashedTest.serve(self, name, *flags)

    def test_without_a_journal_dir_is_refused_with_what_to_do(self):
        self.allow(STEPS)
        worker = self.worker(0, 1, "--steps", "2", "--leash", self.leash)
        self.assertNotEqual(worker.wait(), 0)
        self.assertRegex(worker.text(), r"asks for durability=disk\+peer, and server .* has no place for a journal")


if __name__ == "__main__":
    cluster.main()
