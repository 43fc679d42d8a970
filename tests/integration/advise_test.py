#!/usr/bin/env python3
"""`syncline advise` and jobs with a planted bottleneck: it names that bottleneck first, and its promise is kept.

    python3 tests/integration/advise_test.py --build build/release [-v] [TestClass.test_name ...]

Bottlenecks of servers, cables and decisions are in bottlenecks_test.py.
"""

import json
import os
import subprocess
import sys
import time
import unittest
import urllib.request

import cluster

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
    """Returns the first Python that has numpy."""
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
        """Runs the job, and returns its advice after some steps."""
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
        # Without the bottleneck, at least half of the promised gain is there.
        even = self.run_job("even", *[("--step-ms", "25")] * 3)
        saved = 1 - even["step_seconds"] / slow["step_seconds"]
        self.assertGreater(first["gain"], 0.4)
        self.assertGreater(saved, first["gain"] / 2)
        print(f"straggler: saved {saved:.2f} of {first['gain']:.2f}", flush=True)

    def train(self, job, push):
        """Trains one matrix (vectors are always sent densely). Returns the job's advice."""
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
        print(f"codec: saved {saved:.2f} of {first['gain']:.2f}", flush=True)

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


if __name__ == "__main__":
    sys.exit(cluster.main())
