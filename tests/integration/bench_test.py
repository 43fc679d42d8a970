#!/usr/bin/env python3
"""`syncline bench pushpull`: its checks, and how it ends if it is disturbed.

    python3 tests/integration/bench_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import signal
import socket
import subprocess
import sys
import unittest

import cluster

SMALL = ["--bytes", "1048576", "--tensor-bytes", "524288"]
ENDLESS = [*SMALL, "--steps", "100000000"]


class BenchPushPull(unittest.TestCase):
    def bench(self, *flags):
        process = cluster.Process("bench", [f"{cluster.BUILD}/syncline", "bench", "pushpull", *flags])
        self.addCleanup(process.kill)
        return process

    def report(self, *flags):
        command = [f"{cluster.BUILD}/syncline", "bench", "pushpull", *SMALL, "--steps", "2", "--json", *flags]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=5 * cluster.PATIENCE)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def pid_of_worker(self, bench, rank):
        pid = bench.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as children:
            for child in children.read().split():
                with open(f"/proc/{child}/environ", "rb") as environment:
                    if f"RANK={rank}".encode() in environment.read().split(b"\0"):
                        return int(child)
        self.fail(f"no worker {rank}: {bench.text()}")

    def await_steps(self, bench):
        """Waits until both workers step. Returns the coordinator's address."""
        address = bench.await_line(r"coordinator (\S+),").group(1)
        status = [f"{cluster.BUILD}/syncline", "status", "--json", "--coordinator", address]
        for _ in range(int(cluster.PATIENCE * 10)):
            asked = subprocess.run(status, capture_output=True, text=True)
            jobs = json.loads(asked.stdout)["jobs"] if asked.returncode == 0 else []
            if any(job["step"] > 0 and len(job["members"]) == 2 for job in jobs):
                return address
        self.fail("the benchmark makes no steps: " + bench.text())

    def test_it_checks_what_the_codec_promises(self):
        self.assertEqual(self.report("--codec", "int8")["checked"], "weights")
        self.assertEqual(self.report("--codec", "topk:ratio=0.05")["checked"], "sums")
        self.assertEqual(self.report("--codec", "randomk:ratio=0.05", "--workers", "3", "--servers", "2")["checked"], "sums")
        self.assertEqual(self.report("--codec", "natural")["checked"], "direction")

    def test_ctrl_c_ends_it_with_130_and_its_servers(self):
        bench = self.bench(*ENDLESS)
        address = self.await_steps(bench)
        bench.signal(signal.SIGINT)
        self.assertEqual(bench.wait(), 130, bench.text())
        self.assertIn("bench pushpull was interrupted", bench.text())
        host, port = address.rsplit(":", 1)
        with self.assertRaises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), cluster.PATIENCE)

    def test_a_worker_that_was_lost_is_the_cause_and_no_wrong_result(self):
        bench = self.bench(*ENDLESS)
        self.await_steps(bench)
        worker = self.pid_of_worker(bench, 1)
        os.kill(worker, signal.SIGSTOP)
        self.assertEqual(bench.wait(), 138, bench.text())
        self.assertIn("only 1 of 2 workers are left", bench.text())
        self.assertNotIn("result is wrong", bench.text())
        self.assertNotIn("--max-restarts", bench.text())


if __name__ == "__main__":
    sys.exit(cluster.main())
