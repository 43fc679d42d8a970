#!/usr/bin/env python3
"""Tests that the storm finds faults: its ledger, its disk, its schedule, and a planted fault.

    python3 tests/chaos/storm_test.py --build build/release [-v] [Class.test_name ...]
"""

import argparse
import array
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

import storm
from failing_disk import WAYS_TO_LOSE, Disk
from ledger import Ledger
from storm_cluster import Cluster, StormError

BUILD = pathlib.Path("build/release")
RANKS, SLOTS = 3, 8


class LedgerBooks(unittest.TestCase):
    """Two tensors and five steps, of which rank 2 made only the first three."""

    def setUp(self):
        self.page = array.array("f", bytes(4 * RANKS * SLOTS))
        for step in range(5):
            there = RANKS if step < 3 else RANKS - 1
            for rank in range(there):
                self.page[rank * SLOTS + step] = -1 / there
        self.seen = {0: range(5), 1: range(5), 2: range(2)}

    def errors(self, steps=5):
        return Ledger((self.page + self.page).tobytes(), RANKS, SLOTS).errors(steps, self.seen)

    def assert_found(self, what, times):
        errors = self.errors()
        self.assertEqual(len(errors), times, errors)
        self.assertIn(what, errors[0])

    def test_a_good_one_has_no_errors(self):
        self.assertEqual(self.errors(), [])
        good = Ledger(self.page.tobytes(), RANKS, SLOTS)
        self.assertAlmostEqual(good.participation(5), 13 / 15)

    def test_a_doubled_contribution_is_found(self):
        self.page[1 * SLOTS + 3] *= 2
        self.assert_found("step 3: [0.5, 1.0, -0.0]: not each of 2 contributions counts once", 2)

    def test_a_lost_contribution_is_found(self):
        self.page[1 * SLOTS + 3] = 0
        self.page[0 * SLOTS + 3] = -1
        self.assert_found("rank 1 saw this step made with its contribution, which is lost", 2)

    def test_one_that_nobody_saw_made_may_be_lost(self):
        for rank in range(2):
            self.page[rank * SLOTS + 2] = -0.5
        self.page[2 * SLOTS + 2] = 0
        self.assertEqual(self.errors(), [])

    def test_a_lost_step_and_one_too_many_are_found(self):
        for rank in range(RANKS):
            self.page[rank * SLOTS + 1] = 0
        self.seen = {}
        self.assert_found("step 1: [-0.0, -0.0, -0.0]: the step is lost", 2)
        self.setUp()
        self.page[5] = -1
        self.assert_found("step 5: [1.0, -0.0, -0.0]: there is no such step", 2)


class DiskBooks(unittest.TestCase):
    """Another process writes to a disk, and a power cut follows."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.disk = Disk(folder.name, BUILD / "failing_disk.so")

    def write(self, program):
        """Runs a program. Its `disk` is the folder. It prints "no" and the error number if a call fails."""
        given = f"import os\ndisk = {str(self.disk.files)!r}\n{program}"
        done = subprocess.run([sys.executable, "-c", given], env={**os.environ, **self.disk.environment},
                              capture_output=True, text=True, timeout=60)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.strip()

    def read(self, name):
        path = self.disk.files / name
        return path.read_bytes() if path.exists() else None

    NEW = """
def new(name):
    return os.open(f"{disk}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
def sync_folder():
    os.fsync(os.open(disk, os.O_RDONLY))
"""

    def test_what_was_synced_stays_and_the_rest_is_lost_or_torn(self):
        self.write(self.NEW + "a = new('a'); os.write(a, b'safe'); os.fdatasync(a); sync_folder(); os.write(a, b'X' * 100)")
        self.assertEqual(self.read("a"), b"safe" + b"X" * 100)
        self.assertEqual(self.disk.cut_power(random.Random(1)), 100)
        left = self.read("a")
        self.assertEqual(left[:4], b"safe")
        self.assertNotEqual(left[4:], b"X" * 100)
        self.assertEqual(self.disk.cut_power(random.Random(2)), 0, "what was left is on the disk")

    def test_a_name_that_was_not_synced_is_gone(self):
        self.write(self.NEW + "sync_folder(); a = new('a'); os.write(a, b'safe'); os.fsync(a)")
        self.disk.cut_power(random.Random(1))
        self.assertIsNone(self.read("a"))

    def test_a_rename_that_was_not_synced_is_undone(self):
        self.write(self.NEW + "a = new('a'); os.write(a, b'1'); os.fsync(a); sync_folder(); os.rename(f'{disk}/a', f'{disk}/b')")
        self.disk.cut_power(random.Random(1))
        self.assertEqual((self.read("a"), self.read("b")), (b"1", None))

    def test_a_sync_that_failed_is_made_good_by_no_later_one(self):
        self.write(self.NEW + "a = new('a'); sync_folder()")
        with self.disk.failing("sync-fails"):
            said = self.write("""
a = os.open(f"{disk}/a", os.O_WRONLY)
os.write(a, b"lost")
try:
    os.fsync(a)
except OSError as error:
    print("no", error.errno)
""")
        self.assertEqual(said, "no 5")
        self.write("os.fsync(os.open(f'{disk}/a', os.O_WRONLY))")
        self.assertEqual(self.disk.cut_power(random.Random(1)), 4)

    def test_a_disk_that_lies_saves_nothing(self):
        self.write(self.NEW + "a = new('a'); sync_folder()")
        with self.disk.failing("lies"):
            self.write("a = os.open(f'{disk}/a', os.O_WRONLY); os.write(a, b'lost'); os.fsync(a)")
        self.assertEqual(self.disk.cut_power(random.Random(1)), 4)

    def test_writes_are_short_or_fail_as_told(self):
        for order, said in (("short", "5"), ("full", "no 28"), ("write-fails", "no 5")):
            with self.subTest(order), self.disk.failing(order):
                before = self.disk.faults()
                self.assertEqual(self.write(f"""
a = os.open(f"{{disk}}/{order}", os.O_WRONLY | os.O_CREAT)
try:
    print(os.write(a, bytes(10)))
except OSError as error:
    print("no", error.errno)
"""), said)  # fmt: skip
                self.assertEqual(self.disk.faults(), before + 1)
        self.write("os.write(os.open(f'{disk}/fine', os.O_WRONLY | os.O_CREAT), bytes(10))")
        self.assertEqual(self.read("fine"), bytes(10))

    def test_files_elsewhere_are_left_alone(self):
        with self.disk.failing("full"):
            said = self.write("print(os.write(os.open(f'{disk}-other', os.O_WRONLY | os.O_CREAT), b'12'))")
        self.assertEqual(said, "2")
        self.assertEqual(self.disk.faults(), 0)

    def test_a_new_file_with_the_inode_of_an_old_one_is_not_synced(self):
        self.write(self.NEW + "new('a')")
        books = self.disk.orders / "synced" / str((self.disk.files / "a").stat().st_ino)
        books.write_text(f"{3:20d}")  # the record of a deleted file
        self.write("os.open(f'{disk}/a', os.O_WRONLY | os.O_CREAT)")
        self.assertFalse(books.exists())


class Schedule(unittest.TestCase):
    def test_a_seed_is_a_schedule(self):
        self.assertEqual(storm.schedule(7, True), storm.schedule(7, True))
        self.assertNotEqual(storm.schedule(7, True), storm.schedule(8, True))

    def test_all_kinds_come_before_one_comes_again(self):
        kinds = [event.kind for event in storm.schedule(3, True)]
        every = {*storm.ON_ANY_MACHINE, *storm.OF_THE_NETWORK}
        self.assertEqual(set(kinds[: len(every)]), every)
        without = storm.schedule(3, False)
        self.assertFalse({event.kind for event in without} & {*storm.OF_THE_NETWORK})

    def test_without_namespaces_the_other_faults_stay_the_same(self):
        local = [event for event in storm.schedule(3, True) if event.kind in storm.ON_ANY_MACHINE]
        self.assertEqual(storm.schedule(3, False)[: len(local)], local)


class PlantedFault(unittest.TestCase):
    """The disk lies, so the server reports steps as durable too early. The storm must find it."""

    def test_a_server_that_acknowledges_before_it_has_synced_is_found(self):
        # All unsynced data must be gone, because a torn file could still have every reported step.
        seed = next(seed for seed in range(100) if random.Random(seed).choice(WAYS_TO_LOSE) == "gone")
        event = storm.schedule(1, False)[0]._replace(kind="disk lies, then without power", pause=0.0, seed=seed)
        with self.assertRaisesRegex(StormError, r"says 'joined step=\d+' after step \d+"):
            storm.run(BUILD, [event], has_hosts=False, seconds=60)


class FailedSync(unittest.TestCase):
    """A disk reports a failed sync only once. The server ends, and the next one has the synced data."""

    def test_the_server_ends_and_says_why_and_the_job_goes_on_from_what_was_synced(self):
        event = storm.schedule(1, False)[0]._replace(kind="disk sync-fails", pause=0.0)
        with tempfile.TemporaryDirectory() as folder, Cluster(BUILD, folder, has_hosts=False) as cluster:
            struck = storm.Storm(cluster)
            cluster.await_steps(3)
            struck.strike(event)
            self.assertRegex(cluster.log(event.server), r"cannot sync \S+\.journal: Input/output error \(errno 5\).*"
                             r"job 'storm' all steps below \d+ are on the disk")  # fmt: skip
            struck.finish()


def main():
    global BUILD
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=BUILD)
    arguments, rest = parser.parse_known_args()
    BUILD = arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)


if __name__ == "__main__":
    main()
