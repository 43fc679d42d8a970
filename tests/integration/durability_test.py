#!/usr/bin/env python3
"""Jobs whose servers journal each step, and the recovery after all servers are gone.

    python3 tests/integration/durability_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
import unittest.mock
import urllib.request

import cluster
from checkpoints_test import read_safetensors
from cluster import PATIENCE, ClusterTest


class Durable(ClusterTest):
    """Several clusters, one after the other. Each server has a journal of its own."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.processes = []
        variables = ("SYNCLINE_DURABILITY", "SYNCLINE_CHECKPOINT_EVERY", "SYNCLINE_CHECKPOINT_KEEP", "SYNCLINE_RESUME")
        for name in variables:
            self.addCleanup(os.environ.pop, name, None)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def journals(self, name):
        return [self.path(f"{name}-journal{i}") for i in range(2)]

    def begin(self, checkpoints="", journals=("", "")):
        self.end()
        state = tempfile.TemporaryDirectory()
        self.addCleanup(state.cleanup)
        saves = ("--checkpoint-dir", checkpoints) if checkpoints else ()
        coordinator = self.serve("coordinator", "--role", "coordinator", "--listen", "127.0.0.1:0", "--servers", "2",
                                 "--state-dir", state.name, *saves)  # fmt: skip
        self.address, self.admin = coordinator.await_line(r"ready control=(\S+) admin=(\S+)").groups()
        self.processes = [coordinator]
        for i, journal in enumerate(journals):
            keeps = ("--journal-dir", journal) if journal else ()
            self.processes.append(self.serve(f"server{i}", "--role", "server", "--coordinator", self.address,
                                             "--engine-threads", "2", *saves, *keeps))  # fmt: skip
        self.server_admins = [
            server.await_line(r"ready control=\S+ admin=(\S+)").group(1) for server in self.processes[1:]
        ]

    def await_durable(self, step):
        """Waits until the journals report that this step is on the disk. A server that trains nothing stays at 0."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            shown = [self.durable_step(admin) for admin in self.server_admins]
            if max(shown) >= step and all(one >= step or one == 0 for one in shown):
                return
            time.sleep(0.05)
        self.fail(f"journals have come to {shown}, not to {step}")

    def durable_step(self, admin):
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as reply:
            found = re.search(r"^syncline_journal_durable_step\{.*\} (\S+)$", reply.read().decode(), re.MULTILINE)
            return float(found.group(1)) if found else -1

    def end(self):
        """Kills all processes (kill -9)."""
        for process in self.processes:
            process.kill()
        self.processes = []

    def train(self, *flags, durability="none", every="", world=2):
        os.environ.update({"SYNCLINE_DURABILITY": durability, "SYNCLINE_CHECKPOINT_EVERY": every,
                           "SYNCLINE_CHECKPOINT_KEEP": "10", "SYNCLINE_RESUME": "auto"})  # fmt: skip
        workers = [self.worker(rank, world, *flags) for rank in range(world)]
        self.processes += workers
        return workers

    def run_syncline(self, *arguments, code=0):
        done = subprocess.run([f"{cluster.BUILD}/syncline", *arguments], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def replay(self, name, *arguments, code=0):
        journals = [word for path in self.journals(name) for word in ("--journal", path)]
        return self.run_syncline("replay", *journals, "--job", "test", *arguments, code=code)


class Replay(Durable):
    CASES = {
        "adamw": (),
        "fp16": ("--loss-scaling", "torch", "--clip", "0.5", "--codec", "fp16", "--publish-codec", "fp16"),
        "accumulating": ("--accumulate", "2", "--optimizer", "adafactor", "--freeze"),
    }

    def test_all_is_killed_and_the_journal_gives_the_bits_of_an_undisturbed_run(self):
        for name, more in self.CASES.items():
            with self.subTest(name):
                saved, again = self.path(f"{name}-saved"), self.path(f"{name}-again")
                flags = ("--steps", "200", *more)
                self.begin(saved)
                undisturbed = self.assert_same_end(self.train(*flags, every="50 steps"))

                self.begin(journals=self.journals(name))
                self.train(*flags, "--step-ms", "40", durability="disk")
                self.await_durable(50)
                self.end()

                # Replay gives the weights of a step that a checkpoint of the other run has.
                weights, expected = self.path("replayed.safetensors"), self.path("expected.safetensors")
                self.assertIn("verified", self.replay(name, "--to", "50", "--verify", "--out", weights))
                self.run_syncline("checkpoint", "export", "test", "run1-step50", "--checkpoint-dir", saved, "--out",
                                  expected)  # fmt: skip
                self.assertEqual(read_safetensors(weights), read_safetensors(expected))

                # The job itself continues after the last journalled step.
                said = self.replay(name, "--verify", "--checkpoint-out", again)
                last = int(re.search(r"to step (\d+)", said).group(1))
                self.assertGreaterEqual(last, 50)
                self.assertLess(last, 200, "it was killed in mid-run")
                self.begin(again)
                workers = self.train(*flags)
                workers[0].await_line(rf"joined step={last}$")
                self.assertEqual(self.assert_same_end(workers), undisturbed)
                self.end()

    def test_what_cannot_be_replayed_is_said(self):
        self.begin(journals=self.journals("one"))
        for worker in self.train("--steps", "40", "--step-ms", "25", durability="disk"):
            self.assertEqual(worker.wait(), 0, worker.text())
        self.end()
        out = self.path("weights.safetensors")
        half = self.run_syncline("replay", "--journal", self.journals("one")[0], "--job", "test", "--out", out, code=4)
        self.assertIn("name the --journal-dir of every server", half)
        self.assertIn("ends at step 40, before step 99", self.replay("one", "--to", "99", "--out", out, code=4))
        self.assertFalse(os.path.exists(out))
        self.assert_that_replay_leaves_alone_what_others_have(out)
        segments = [
            os.path.join(folder, file)
            for journal in self.journals("one")
            for folder, _, files in os.walk(journal)
            for file in files
        ]
        segment = max(segments, key=os.path.getsize)
        with open(segment, "r+b") as file:
            file.seek(5000)
            file.write(b"spoiled")
        self.assertRegex(self.replay("one", "--out", out, code=4), rf"{segment} is damaged at byte \d+")

    def test_one_command_starts_servers_that_keep_a_journal(self):
        journal = self.path("journal")
        os.mkdir(journal)
        for variable in ({}, {"SYNCLINE_JOURNAL_DIR": journal}):
            flags = () if variable else ("--journal-dir", journal)
            with unittest.mock.patch.dict(os.environ, variable):
                self.run_syncline("run", "--standalone", "--servers", "2", "--nproc-per-node", "1", "--job", "test",
                                  "--durability", "disk", *flags, "--", f"{cluster.BUILD}/steps_worker", "--steps", "10")  # fmt: skip
            played = self.run_syncline("replay", "--journal", journal, "--job", "test", "--verify")
            self.assertIn("verified", played)

    def test_a_link_or_a_device_is_not_replaced_by_weights(self):
        self.begin(journals=self.journals("one"))
        for worker in self.train("--steps", "3", durability="disk"):
            self.assertEqual(worker.wait(), 0, worker.text())
        self.end()
        link, fifo = self.path("link"), self.path("fifo")
        os.symlink("/dev/null", link)
        os.mkfifo(fifo)
        for out in (link, fifo):
            self.assertIn("is not a regular file", self.replay("one", "--out", out, code=2))
        self.assertTrue(os.path.islink(link))
        self.assertIn("there is no directory", self.replay("one", "--out", self.path("none/w"), code=2))

    def assert_that_replay_leaves_alone_what_others_have(self, out):
        for name in (out, self.journals("one")[0]):
            os.mkdir(f"{name}.replay")
            with open(f"{name}.replay/mine", "w") as mine:
                mine.write("kept")
        before = sorted(os.listdir(self.folder.name))
        self.assertIn("verified", self.replay("one", "--verify"))
        self.assertEqual(sorted(os.listdir(self.folder.name)), before)
        self.replay("one", "--out", out)
        self.assertEqual(sorted(os.listdir(self.folder.name)), sorted([*before, os.path.basename(out)]))
        for name in (out, self.journals("one")[0]):
            self.assertTrue(os.path.exists(f"{name}.replay/mine"))

    def test_a_job_that_asks_for_a_journal_where_there_is_none_is_refused_with_the_flag(self):
        self.begin()
        refused = self.train("--steps", "5", durability="disk", world=1)[0]
        self.assertNotEqual(refused.wait(), 0)
        self.assertIn("start all servers with --journal-dir", refused.text())
        file = self.path("file")
        with open(file, "w") as full:
            full.write("a file is not a directory")
        said = self.run_syncline("serve", "--role", "server", "--coordinator", "127.0.0.1:1", "--journal-dir", file, code=2)
        self.assertIn(f"--journal-dir: cannot create a file in {file}: Not a directory", said)
        journal = self.path("journal")
        self.begin(journals=(journal, journal))
        shutil.rmtree(journal, ignore_errors=True)
        os.rename(file, journal)
        unusable = self.train("--steps", "5", durability="disk", world=1)[0]
        self.assertNotEqual(unusable.wait(), 0)
        self.assertRegex(unusable.text(), f"{journal}.*check its --journal-dir")
        wrong = self.train("--steps", "5", durability="paper", world=1)[0]
        self.assertNotEqual(wrong.wait(), 0)
        self.assertIn("durability is 'paper', allowed are none, disk, peer and disk+peer", wrong.text())


if __name__ == "__main__":
    cluster.main()
