#!/usr/bin/env python3
"""Jobs that are saved, lose all processes, and continue.

    python3 tests/integration/checkpoints_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import re
import stat
import struct
import subprocess
import tempfile
import time
import unittest

import cluster
from cluster import PATIENCE, ClusterTest

LARGE = 200000  # elements of the first tensor


def read_safetensors(path):
    """Returns {name: (dtype, shape, bytes)}, read according to the format's description."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    head = json.loads(data[8 : 8 + length])
    head.pop("__metadata__", None)
    body = data[8 + length :]
    ends = sorted(tuple(entry["data_offsets"]) for entry in head.values())
    assert ends[0][0] == 0 and ends[-1][1] == len(body), "the entries do not cover the file"
    assert all(one[1] == next[0] for one, next in zip(ends, ends[1:])), "the entries leave holes"
    return {name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in head.items()}


class Saved(ClusterTest):
    """Several clusters, one after the other, with one directory of checkpoints."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.directory = os.path.join(self.folder.name, "checkpoints")
        self.processes = []

    def begin(self, servers, saves=True):
        self.end()
        state = tempfile.TemporaryDirectory()
        self.addCleanup(state.cleanup)
        where = ("--checkpoint-dir", self.directory) if saves else ()
        self.coordinator = self.serve("coordinator", "--role", "coordinator", "--listen", "127.0.0.1:0", "--servers",
                                      str(servers), "--state-dir", state.name, *where)  # fmt: skip
        self.processes = [self.coordinator]
        ready = self.coordinator.await_line(r"ready control=(\S+) admin=(\S+)")
        self.address, self.admin = ready.groups()
        for i in range(servers):
            self.processes.append(self.serve(f"server{i}", "--role", "server", "--coordinator", self.address, *where))
        for server in self.processes[1:]:
            server.await_line(r"ready control=")

    def end(self):
        """Kills all processes (kill -9)."""
        for process in self.processes:
            process.kill()

    def train(self, *flags, every="", resume="auto", world=2, job="test"):
        os.environ.update({"SYNCLINE_CHECKPOINT_EVERY": every, "SYNCLINE_RESUME": resume})
        workers = [self.worker(rank, world, *flags, job=job) for rank in range(world)]
        self.processes += workers
        return workers

    def checkpoint(self, command, *arguments, code=0):
        done = subprocess.run(
            [f"{cluster.BUILD}/syncline", "checkpoint", command, *arguments],
            capture_output=True, text=True, timeout=PATIENCE,
            env={**os.environ, "SYNCLINE_CHECKPOINT_DIR": self.directory,
                 "SYNCLINE_COORDINATOR": getattr(self, "address", "")})  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def complete(self, job="test"):
        listed = json.loads(self.checkpoint("list", job, "-o", "json"))
        return [one["checkpoint"] for one in listed if one["complete"]]

    def await_checkpoint(self, step):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if os.path.isdir(self.directory) and any(int(n.split("step")[1]) >= step for n in self.complete()):
                return
            time.sleep(0.1)
        self.fail(f"no checkpoint of step {step}: {self.coordinator.text()}")


class Resume(Saved):
    CASES = {
        "adamw": (),
        "fp16": ("--loss-scaling", "torch", "--clip", "0.5", "--codec", "fp16", "--publish-codec", "fp16"),
        "accumulating": ("--accumulate", "2", "--optimizer", "adafactor", "--freeze"),
    }

    def test_all_is_killed_and_ends_with_the_bits_of_an_undisturbed_run_on_more_servers(self):
        for name, more in self.CASES.items():
            with self.subTest(name):
                self.directory = os.path.join(self.folder.name, name)
                flags = ("--steps", "60", *more)
                self.begin(2, saves=False)
                undisturbed = self.assert_same_end(self.train(*flags))
                self.begin(2)
                # Any worker may seed a new job.
                self.train(*flags, "--step-ms", "25", every="10 steps")
                self.await_checkpoint(20)
                self.end()
                self.begin(3)
                workers = self.train(*flags, every="10 steps")
                joined = int(workers[0].await_line(r"joined step=(\d+)").group(1))
                self.assertGreaterEqual(joined, 20)
                self.assertEqual(self.assert_same_end(workers), undisturbed)
                self.assertRegex(self.coordinator.text(), r"goes on from checkpoint run1-step\d+")
                self.end()

    def test_what_is_frozen_is_written_once_and_stays_for_those_who_need_it(self):
        flags = ("--freeze", "--step-ms", "25")
        self.begin(2)
        self.train(*flags, "--steps", "1000", every="10 steps")
        self.await_checkpoint(60)  # retention has deleted the first
        self.assertNotIn("run1-step10", self.complete())
        parts = os.path.join(self.directory, "test", "parts")
        self.end()
        first = [name for name in os.listdir(parts) if name.endswith(".safetensors")]
        self.assertEqual(len(first), 1, "the frozen tensor has one block")
        self.assertIn("frozen-run1-step10-", first[0])
        self.assertEqual(list(read_safetensors(os.path.join(parts, first[0]))), ["tensor2"])
        for name in self.complete():
            self.assertIn("is intact", self.checkpoint("verify", "test", name))
        out = os.path.join(self.folder.name, "weights.safetensors")
        self.checkpoint("export", "test", "--out", out)
        self.assertIn("tensor2", read_safetensors(out))
        self.begin(2)
        workers = self.train("--freeze", "--steps", "100", every="10 steps")
        self.assertGreaterEqual(int(workers[0].await_line(r"joined step=(\d+)").group(1)), 60)
        self.assert_same_end(workers)
        self.assertTrue(any(name.startswith("run2-") for name in self.complete()))
        self.assertEqual([name for name in os.listdir(parts) if name.endswith(".safetensors")], first)
        self.assertIn("is intact", self.checkpoint("verify", "test"))

    def test_a_job_in_mode_ssp_goes_on_with_all_workers_at_one_step(self):
        self.worker_env = {**self.worker_env, "SYNCLINE_MODE": "ssp:staleness=2"}
        self.begin(2)
        self.train("--steps", "60", "--step-ms", "25", every="10 steps")
        self.await_checkpoint(20)
        self.end()
        self.begin(3)
        workers = self.train("--steps", "60", every="10 steps")
        joined = {int(worker.await_line(r"joined step=(\d+)").group(1)) for worker in workers}
        self.assertEqual(len(joined), 1)
        self.assertGreaterEqual(joined.pop(), 20)
        self.assert_same_end(workers)
        self.assertIn('"name": "ssp"', self.checkpoint("show", "test", "-o", "json"))

    def test_a_job_goes_back_to_an_earlier_checkpoint_or_begins_anew(self):
        self.begin(1)
        for worker in self.train("--steps", "25", "--step-ms", "20", every="10 steps"):
            self.assertEqual(worker.wait(), 0, worker.text())
        self.assertEqual(self.complete()[:1], ["run1-step10"])
        for resume, joined in (("run1-step10", 10), ("never", 0), ("latest", None)):
            workers = self.train("--steps", "15", resume=resume, world=1 if resume == "never" else 2)
            if joined is not None:
                workers[0].await_line(f"joined step={joined}$")
            for worker in workers:
                self.assertEqual(worker.wait(), 0, worker.text())
        refused = self.train("--steps", "15", resume="run7-step1")[0]
        self.assertNotEqual(refused.wait(), 0)
        self.assertIn("checkpoint run7-step1 of job 'test' is not in", refused.text())
        other = self.train("--steps", "15", "--elements", "100", resume="latest")[0]
        self.assertNotEqual(other.wait(), 0)
        self.assertRegex(other.text(), r"tensor 0 is 'tensor0' of \[200000\] there, and the job declares")


class Ends(Saved):
    """`syncline run` saves the last step."""

    def run_job(self, *flags, code=0, steps=25, more=()):
        done = subprocess.run(
            [f"{cluster.BUILD}/syncline", "run", "--standalone", "--nproc-per-node", "2", "--failure-timeout", "5s",
             "--job", "test", "--checkpoint-dir", self.directory, *flags, "--",
             f"{cluster.BUILD}/steps_worker", "--steps", str(steps), *more],
            capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def test_a_run_ends_once_its_last_step_is_saved_and_the_next_one_says_where_it_begins(self):
        said = self.run_job("--servers", "2", "--checkpoint-every", "10 steps")
        self.assertRegex(said, "the last step of job test is saved: checkpoint run1-step25, ")
        self.assertIn("run1-step25", self.complete())
        self.assertIn("is intact", self.checkpoint("verify", "test", "run1-step25"))
        said = self.run_job("--servers", "1", "--checkpoint-every", "1 h", steps=40)
        self.assertIn("job test goes on from checkpoint run1-step25", said)
        self.assertEqual(self.complete()[-1], "run2-step40")
        for command in ("list", "show", "verify", "delete"):
            refused = self.checkpoint(command, "tset", *(["run1-step25"] if command == "delete" else []), code=4)
            self.assertIn("there is no job 'tset'; did you mean 'test'?", refused)
        listed = self.checkpoint("list")
        self.assertRegex(listed, r"test +run2-step40 +20\d\d-\d\d-\d\d \d\d:\d\d +\S+ \S+ +complete")

    def test_what_goes_on_from_a_last_step_has_the_bits_of_an_uninterrupted_run(self):
        ends = []
        for directory, parts in (("whole", (12,)), ("parts", (7, 12))):
            self.directory = os.path.join(self.folder.name, directory)
            for number, steps in enumerate(parts):
                resume = ("--resume", "latest") if number > 0 else ()
                said = self.run_job("--servers", "2", "--checkpoint-every", "5 steps", *resume, steps=steps)
                self.assertIn(f"is saved: checkpoint run{number + 1}-step{steps}, ", said)
                if resume:
                    self.assertIn(f"goes on from checkpoint run{number}-step{parts[0]}", said)
            out = os.path.join(self.folder.name, f"{directory}.safetensors")
            self.checkpoint("export", "test", "latest", "--out", out)
            ends.append(read_safetensors(out))
        self.assertEqual(*ends)

    def test_the_last_step_of_mode_ssp_is_that_of_all_workers(self):
        flags = ("--mode", "ssp:staleness=2", "--checkpoint-every", "5 steps")
        self.assertIn("is saved: checkpoint run1-step7, ", self.run_job(*flags, steps=7))
        said = self.run_job(*flags, "--resume", "latest", steps=12)
        self.assertIn("goes on from checkpoint run1-step7", said)
        self.assertIn("is saved: checkpoint run2-step12, ", said)

    def test_a_last_step_in_the_middle_of_an_update_goes_on_with_the_same_bits(self):
        ends = []
        for directory, parts in (("whole", (11,)), ("parts", (7, 11))):
            self.directory = os.path.join(self.folder.name, directory)
            for steps in parts:
                self.run_job("--checkpoint-every", "4 steps", steps=steps, more=("--accumulate", "4", "--freeze"))
            out = os.path.join(self.folder.name, f"{directory}.safetensors")
            self.checkpoint("export", "test", "latest", "--out", out)
            ends.append((self.complete()[-1].split("-")[1], read_safetensors(out)))
        self.assertEqual(*ends)

    def test_a_last_step_that_is_not_saved_is_an_error(self):
        os.mkdir(self.directory)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", self.directory])
        if mounted.returncode != 0:
            self.skipTest("may not mount a small disk here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.directory])
        said = self.run_job("--checkpoint-every", "1 h", code=4)
        self.assertRegex(said, "the last step of job 'test' is not saved: run1-step25: .*No space left")
        self.assertIn("the last checkpoint is none of this run", said)


class Commands(Saved):
    def test_a_running_job_is_saved_looked_at_and_damage_is_found(self):
        self.begin(2)
        workers = self.train("--steps", "1000", "--step-ms", "20")
        workers[0].await_line("^step 5$")
        said = self.checkpoint("create", "test")
        name = re.search(r"checkpoint (run1-step\d+): ", said).group(1)
        self.assertEqual(self.complete(), [name])
        self.assertIn("is intact", self.checkpoint("verify", "test"))
        self.assertIn("tensor0", self.checkpoint("show", "test", name))
        status = self.status_of("test")["checkpoint"]
        self.assertEqual((status["latest"], status["written"], status["failed"]), (name, 1, 0))
        self.assertIn(f"last checkpoint {name}", self.syncline("status").stdout)
        self.assertIn("did you mean 'test'?", self.checkpoint("create", "tset", code=1))

        out = os.path.join(self.folder.name, "weights.safetensors")
        self.checkpoint("export", "test", "--out", out)
        pipe = os.path.join(self.folder.name, "pipe")
        os.mkfifo(pipe)
        self.assertIn("not a regular file", self.checkpoint("export", "test", "--out", pipe, code=2))
        self.assertTrue(stat.S_ISFIFO(os.stat(pipe).st_mode))
        tensors = read_safetensors(out)
        self.assertEqual({key: value[:2] for key, value in tensors.items()},
                         {"tensor0": ("F32", [LARGE]), "tensor1": ("F32", [300]), "tensor2": ("F32", [1])})  # fmt: skip
        parts = os.path.join(self.directory, "test", name)
        pieces = {}
        for file in sorted(os.listdir(parts)):
            if file.startswith("weights-"):
                pieces.update(read_safetensors(os.path.join(parts, file)))
        whole = b"".join(
            pieces[key][2] for key in sorted((k for k in pieces if k.startswith("tensor0")),
                                             key=lambda key: int((re.findall(r"\[(\d+):", key) or ["0"])[0])))  # fmt: skip
        self.assertEqual(tensors["tensor0"][2], whole)
        self.assertEqual(tensors["tensor1"][2], pieces["tensor1"][2])

        self.end()
        largest = max((os.path.join(parts, file) for file in os.listdir(parts)), key=os.path.getsize)
        with open(largest, "r+b") as file:
            file.seek(-100, os.SEEK_END)
            byte = file.read(1)
            file.seek(-100, os.SEEK_END)
            file.write(bytes([byte[0] ^ 1]))
        self.assertRegex(self.checkpoint("verify", "test", code=4), rf"checkpoint {name} .*is damaged")
        self.begin(1)
        refused = self.train("--steps", "1000", "--step-ms", "20")[0]
        self.assertNotEqual(refused.wait(), 0)
        self.assertRegex(refused.text(), rf"checkpoint {name} .*is damaged")
        self.checkpoint("delete", "test", name)
        self.assertEqual(self.complete(), [])

    def test_a_full_disk_fails_the_checkpoint_and_neither_the_job_nor_earlier_ones(self):
        os.mkdir(self.directory)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", self.directory])
        if mounted.returncode != 0:
            self.skipTest("may not mount a small disk here")
        self.addCleanup(subprocess.run, ["umount", "-l", self.directory])
        self.begin(1)
        workers = self.train("--steps", "1000", "--step-ms", "20")
        workers[0].await_line("^step 5$")
        self.checkpoint("create", "test")
        failed = self.checkpoint("create", "test", code=4)
        self.assertRegex(failed, r"No space left on device; free space there")
        self.assertEqual(len(self.complete()), 1)
        self.assertIn("is intact", self.checkpoint("verify", "test"))
        status = self.status_of("test")["checkpoint"]
        self.assertEqual((status["written"], status["failed"]), (1, 1))
        self.assertIn("1 failed, the last: run1-step", self.syncline("status").stdout)
        workers[0].await_line("^step", after=time.monotonic())

    def test_what_asks_for_checkpoints_without_a_place_is_refused_with_the_flag(self):
        self.begin(1, saves=False)
        refused = self.train("--steps", "5", every="2 steps", world=1)[0]
        self.assertNotEqual(refused.wait(), 0)
        self.assertIn("--checkpoint-dir", refused.text())
        wrong = self.train("--steps", "5", every="2 bananas", world=1)[0]
        self.assertNotEqual(wrong.wait(), 0)
        self.assertIn("'2 bananas' does not say when to save", wrong.text())


class Flags(Saved):
    def test_flags_that_make_no_sense_are_refused(self):
        os.mkdir(self.directory)

        def refused(*flags):
            run = [f"{cluster.BUILD}/syncline", "run", "--checkpoint-dir", self.directory, *flags, "--", "true"]
            done = subprocess.run(run, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(done.returncode, 2, done.stderr)
            return done.stderr

        self.assertIn("--servers '-1' is not a", refused("--servers", "-1"))
        self.assertIn("checkpoint_keep is '0', allowed are whole numbers from 1 to 10000", refused("--checkpoint-keep", "0"))
        self.assertIn("write NAME=3", refused("--mode", "asp:3"))
        self.assertIn("is not the name of a checkpoint", self.checkpoint("show", "test", "run", code=2))


if __name__ == "__main__":
    cluster.main()
