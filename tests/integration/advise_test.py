#!/usr/bin/env python3
"""`syncline advise` beside jobs with a bottleneck that was put there: it names that one first, and what it promises is had.

    python3 tests/integration/advise_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.request

import cluster

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "network"))
import hosts  # noqa: E402

WATCH = "4s"
PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python", "src")
SLOW_CODEC = "powersgd:rank=30"
TRAIN = """
import sys, numpy, syncline
weights = numpy.zeros((1000, 1000), numpy.float32)
gradient = numpy.random.default_rng(7).standard_normal((1000, 1000), numpy.float32)
with syncline.Session(optimizer="sgd:lr=0.01", push=sys.argv[1], publish="bf16") as session:
    tensor = session.declare("w", weights)
    session.start()
    while True:
        session.push_pull(tensor, gradient)
        session.wait(tensor)
        print("step", session.step, flush=True)
"""


def numpy_python():
    """The first Python that has numpy."""
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", "import numpy"], capture_output=True).returncode == 0:
            return python
    return None


NUMPY_PYTHON = numpy_python()


class Advise(cluster.ClusterTest):
    servers = 2

    def advice(self, job="test"):
        shown = self.syncline("advise", job, "--watch", WATCH, "-o", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return json.loads(shown.stdout)

    def run_job(self, job, *flags_of_workers):
        """Its advice, once it has made some steps."""
        workers = [self.worker(rank, len(flags_of_workers), "--steps", "100000", *flags, job=job)
                   for rank, flags in enumerate(flags_of_workers)]  # fmt: skip
        workers[0].await_line(r"^step 10$")
        advice = self.advice(job)
        for worker in workers:
            worker.kill()
        return advice

    def test_a_worker_that_is_four_times_slower_is_the_straggler(self):
        slow = self.run_job("slow", *[("--step-ms", ms) for ms in ("25", "100", "25")])
        first = slow["advice"][0]
        self.assertEqual(first["bound"], "straggler", slow)
        self.assertIn("worker 1 computes", first["what"])
        # Without it: at least half of what was promised is had.
        even = self.run_job("even", *[("--step-ms", "25")] * 3)
        saved = 1 - even["step_seconds"] / slow["step_seconds"]
        self.assertGreater(first["gain"], 0.4)
        self.assertGreater(saved, first["gain"] / 2)

    def train(self, job, push):
        """Its advice. One matrix: vectors travel densely whatever the codec."""
        env = {"PYTHONPATH": PYTHON, "SYNCLINE_LIBRARY": f"{cluster.BUILD}/libsyncline.so", "OMP_NUM_THREADS": "1",
               "SYNCLINE_COORDINATOR": self.address, "SYNCLINE_JOB": job, "RANK": "0", "WORLD_SIZE": "1",
               "SYNCLINE_FAILURE_TIMEOUT": f"{cluster.FAILURE_TIMEOUT}s"}  # fmt: skip
        worker = self.start(job, [NUMPY_PYTHON, "-c", TRAIN, push], env)
        worker.await_line(r"^step 10$")
        advice = self.advice(job)
        worker.kill()
        return advice

    @unittest.skipIf(NUMPY_PYTHON is None, "no numpy")
    def test_a_codec_that_takes_longer_than_the_wire_does_not_pay(self):
        slow = self.train("slow", SLOW_CODEC)
        first = slow["advice"][0]
        self.assertEqual(first["bound"], "codec", slow)
        self.assertIn("push=bf16", first["change"])
        even = self.train("even", "bf16")
        saved = 1 - even["step_seconds"] / slow["step_seconds"]
        self.assertGreater(saved, first["gain"] / 2)

    def test_the_dashboard_asks_for_the_same(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", ms) for rank, ms in enumerate(("10", "60"))]
        workers[0].await_line(r"^step 10$")
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{self.admin}/advice", timeout=5) as reply:
                jobs = json.load(reply)["jobs"]
            if jobs and jobs[0]["advice"] and jobs[0]["advice"][0]["bound"] == "straggler":
                return
            time.sleep(0.5)
        self.fail(f"never said that worker 1 is the straggler, but {jobs}")

    def test_a_job_that_is_not_there_is_named_with_those_that_are(self):
        self.worker(0, 1, "--steps", "100000", "--step-ms", "20").await_line(r"^step 3$")
        refused = self.syncline("advise", "tset", "--watch", WATCH)
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("there is no job 'tset'; did you mean 'test'?", refused.stderr)
        refused = self.syncline("advise", "test", "--watch", "0s")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("[1s, 1h]", refused.stderr)


@unittest.skipIf(hosts.missing("advise"), hosts.missing("advise"))
class SlowLinks(unittest.TestCase):
    def test_between_hosts_with_slow_cables_the_network_is_the_bound(self):
        names = ["coordinator", "server0", "server1", "worker0", "worker1"]
        with hosts.Hosts("advise", names, rate="50mbit") as cables:
            logs = {name: open(os.path.join(self.directory(), name), "w+") for name in names}
            for log in logs.values():
                self.addCleanup(log.close)
            binary = f"{cluster.BUILD}/syncline"
            address = f"{cables.address('coordinator')}:7070"
            serve = [binary, "serve", "--admin-listen", "127.0.0.1:0", "--failure-timeout", "8s", "--insecure"]
            state = os.path.join(self.directory(), "state")
            cables.start("coordinator", [*serve, "--role", "coordinator", "--servers", "2", "--listen", address,
                                         "--state-dir", state], logs["coordinator"])  # fmt: skip
            for name in names[1:3]:
                listen = f"{cables.address(name)}:7070"
                cables.start(name, [*serve, "--role", "server", "--coordinator", address, "--listen", listen], logs[name])
            for rank in (0, 1):
                cables.start(f"worker{rank}", [f"{cluster.BUILD}/steps_worker", "--steps", "100000", "--elements", "500000",
                                               "--step-ms", "10", "--codec", "fp32", "--publish-codec", "bf16"],
                             logs[f"worker{rank}"],
                             {"SYNCLINE_COORDINATOR": address, "SYNCLINE_JOB": "test", "RANK": str(rank), "WORLD_SIZE": "2",
                              "SYNCLINE_FAILURE_TIMEOUT": "8s"}.items())  # fmt: skip
            self.await_step(logs["worker0"], 4)
            out = os.path.join(self.directory(), "advice")
            with open(out, "w+") as log:
                asked = cables.start("coordinator", [binary, "advise", "test", "--coordinator", address, "--watch", "8s",
                                                     "-o", "json"], log)  # fmt: skip
                asked.wait(cluster.PATIENCE)
            with open(out) as log:
                said = log.read()
            self.assertEqual(asked.returncode, 0, said)
            first = json.loads(said)["advice"][0]
            # FP32 goes up and BF16, half of it, comes down.
            self.assertEqual(first["bound"], "uplink", said)
            self.assertIn("push=int8", first["change"])

    def directory(self):
        if not hasattr(self, "kept"):
            self.kept = cluster.tempfile.TemporaryDirectory()
            self.addCleanup(self.kept.cleanup)
        return self.kept.name

    def await_step(self, log, step):
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            with open(log.name) as lines:
                if f"step {step}\n" in lines.read():
                    return
            time.sleep(0.1)
        with open(log.name) as lines:
            self.fail(f"never made step {step}: {lines.read()}")


if __name__ == "__main__":
    sys.exit(cluster.main())
