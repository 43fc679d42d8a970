#!/usr/bin/env python3
"""Journals with snapshots stay small, and a server that is killed during a snapshot comes back as it was.

    python3 tests/integration/journal_snapshot_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import random
import re
import shutil
import subprocess
import time

import cluster
from server_restart_test import ServerRestartTest

ELEMENTS = 4 << 20  # in four blocks, two on each server
STATE = 12 * ELEMENTS // 2  # bytes on each server: weights and two slots of AdamW
SEGMENT = 64 << 20
KILLS = 2
# With 8 MB per step and server, a snapshot begins every 9 steps.
STEPS = 60


class JournalSnapshots(ServerRestartTest):
    server_flags = ("--engine-threads", "1", "--journal-snapshot-factor", "1")

    def segments(self, which):
        return sorted(
            os.path.join(folder, file)
            for folder, _, files in os.walk(self.journal(which))
            for file in files
            if file.endswith(".journal")
        )

    def bytes_of(self, which):
        """Returns the bytes of a journal. A segment may be deleted meanwhile."""
        size = 0
        for segment in self.segments(which):
            try:
                size += os.path.getsize(segment)
            except FileNotFoundError:
                pass
        return size

    def train(self, disturb):
        for which in "01":
            shutil.rmtree(self.journal(which), ignore_errors=True)
        self.allow(20)
        workers = [
            self.worker(rank, 2, "--steps", str(STEPS), "--leash", self.leash, "--elements", str(ELEMENTS))
            for rank in range(2)
        ]
        self.await_steps(workers, 20)
        disturb()
        self.allow(STEPS)
        return self.assert_same_end(workers)

    def await_new_segment(self):
        """Waits for a new segment. A snapshot begins with one; otherwise the last one was full."""
        before = self.segments("1")
        deadline = time.monotonic() + cluster.PATIENCE
        while set(self.segments("1")) <= set(before):
            self.assertLess(time.monotonic(), deadline, "no segment begins")
            time.sleep(0.001)

    def kill_in_the_middle(self):
        seed = random.randrange(1 << 30)
        print(f"kills of seed {seed}", flush=True)
        draw = random.Random(seed)
        self.most = 0
        for kill in range(1, KILLS + 1):
            self.allow(20 + kill * (STEPS - 30) // KILLS)
            self.await_new_segment()
            time.sleep(draw.uniform(0, 0.2))
            self.most = max(self.most, self.bytes_of("0"), self.bytes_of("1"))
            self.restart(1)
            self.coordinator.await_line(r"job 'test': server \d+ .* came back at step \d+")

    def test_a_server_killed_in_the_middle_of_them_comes_back_as_it_was(self):
        undisturbed = self.train(lambda: None)
        self.assertEqual(self.train(self.kill_in_the_middle), undisturbed)
        # The bound is (factor + 3) times the state, and the segments that are not full.
        bound = 4 * STATE + 3 * SEGMENT
        self.most = max(self.most, self.bytes_of("0"), self.bytes_of("1"))
        self.assertLess(self.most, bound)
        written = STEPS * 4 * ELEMENTS // 2
        self.assertGreater(written, 1.2 * bound, "without snapshots it would be as small")
        for which in "01":
            self.assertTrue(any("-anew" in segment for segment in self.segments(which)), self.segments(which))

        journals = [word for which in "01" for word in ("--journal", self.journal(which))]
        for server in self.server_processes:
            server.kill()
        replay = [f"{cluster.BUILD}/syncline", "replay", *journals, "--job", "test", "--verify"]
        done = subprocess.run(replay, capture_output=True, text=True, timeout=cluster.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        first, last = map(int, re.search(r"the journal has steps (\d+) to (\d+)", done.stdout).groups())
        self.assertGreater(first, 0)
        self.assertEqual(last, STEPS)
        early = subprocess.run([*replay, "--to", str(first - 1)], capture_output=True, text=True, timeout=cluster.PATIENCE)
        self.assertEqual(early.returncode, 4, early.stdout + early.stderr)
        self.assertIn(f"from step {first} on", early.stderr)

    def test_status_says_how_much_is_there(self):
        self.allow(30)
        workers = [
            self.worker(rank, 2, "--steps", "60", "--leash", self.leash, "--elements", str(ELEMENTS))
            for rank in range(2)
        ]
        self.await_steps(workers, 30)
        deadline = time.monotonic() + cluster.PATIENCE
        while min(one["begins_at"] for one in self.status_of("test")["records"]) == 0:
            self.assertLess(time.monotonic(), deadline, "no snapshot was taken")
            time.sleep(0.1)
        for one in self.status_of("test")["records"]:
            self.assertLess(one["disk_bytes"], one["bytes"])
        self.assertRegex(self.syncline("status").stdout, r"on disk, from step \d+ on")
        self.allow(60)
        self.assert_same_end(workers)


if __name__ == "__main__":
    cluster.main()
