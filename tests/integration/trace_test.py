#!/usr/bin/env python3
"""`syncline trace` of a job that runs, with real processes: a file with everybody in it, also when somebody dies.

    python3 tests/integration/trace_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import signal
import subprocess
import sys

import cluster
from trace_file import TraceFile

STEPS = 12


class Traces(cluster.LeashedTest):
    servers = 2

    def begin(self, *flags, steps=10**9):
        self.allow(steps)
        workers = [self.worker(rank, 2, "--steps", "1000000", "--leash", self.leash, "--elements", "3000000", *flags) for rank in (0, 1)]
        for worker in workers:
            worker.await_line(r"^step 2$")
        return workers

    def trace(self, *arguments, job="test"):
        self.file = os.path.join(self.directory, "trace.json")
        command = [f"{cluster.BUILD}/syncline", "trace", job, "--coordinator", self.address, "--out", self.file, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=3 * cluster.PATIENCE)

    def read(self, traced):
        self.assertEqual(traced.returncode, 0, traced.stderr)
        return TraceFile(self.file)

    def test_every_member_is_there_with_every_step(self):
        self.begin("--clip", "1")
        trace = self.read(self.trace("--steps", str(STEPS)))
        self.assertEqual(trace.about["missing"], [])
        self.assertEqual(len(trace.window), STEPS)
        self.assertEqual(sorted(name.rsplit(" ", 1)[0] for name in trace.processes.values()),
                         ["server 0", "server 1", "worker 0", "worker 1"])  # fmt: skip
        for member in ("server 0", "server 1", "worker 0", "worker 1"):
            self.assertEqual(trace.steps_of(member), trace.window, member)
        for worker in ("worker 0", "worker 1"):
            self.assertLessEqual({"compute", "encode block", "push block", "wait for block", "decode block"}, trace.names_of(worker))
            self.assertLessEqual({f"step {step}" for step in trace.window}, trace.names_of(worker))
        for server in ("server 0", "server 1"):
            self.assertLessEqual({"receive", "step", "hold", "decide", "send views"}, trace.names_of(server))
        for member in trace.about["members"]:
            self.assertTrue(member["complete"], member)
            self.assertLess(member["clock_error_ns"], 1e9)

    def test_perfetto_reads_it(self):
        try:
            from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
        except ImportError:
            self.skipTest("the Python package perfetto is not installed")
        self.begin()
        trace = self.read(self.trace("--steps", str(STEPS)))
        try:
            processor = TraceProcessor(trace=self.file, config=TraceProcessorConfig())
        except Exception as error:  # it downloads its program
            self.skipTest(f"Perfetto's trace processor cannot be had: {error}")
        with processor:
            self.assertEqual([(row.name, row.value) for row in processor.query(
                "select name, value from stats where severity in ('error', 'data_loss') and value > 0")], [])  # fmt: skip
            slices = next(iter(processor.query("select count(*) as n from slice"))).n
            self.assertEqual(slices, len(trace.slices) + sum(event["ph"] == "b" for event in trace.events))

    def test_a_push_leads_to_a_step_and_to_a_view(self):
        self.begin()
        trace = self.read(self.trace("--steps", str(STEPS)))
        pushed = {(e["args"]["rank"], e["args"]["block"], e["args"]["step"]) for e in trace.slices if e["name"] == "encode block"}
        self.assertEqual(len(trace.flows), len(pushed), "a push whose arrow does not arrive")
        self.assertEqual({e["args"]["tensor"].split(",")[0] for e in trace.slices if "block" in e.get("args", {})}, {"tensor0", "tensor1", "tensor2"})
        errors = max(member["clock_error_ns"] for member in trace.about["members"])
        for flow in trace.flows:
            begin, *middle, end = flow
            self.assertEqual(begin["pid"], end["pid"])
            self.assertTrue(trace.processes[begin["pid"]].startswith("worker"))
            self.assertTrue(all(trace.processes[one["pid"]].startswith("server") for one in middle), flow)
            self.assertLess(begin["ts"], end["ts"])
            # No arrow leads back in time, but for what the clocks may be apart.
            for one, next_one in zip(flow, flow[1:]):
                self.assertLess(one["ts"] - next_one["ts"], 2 * errors / 1000, flow)

    def test_a_worker_that_is_killed_in_the_window_is_named(self):
        workers = self.begin("--step-ms", "100")
        self.file = os.path.join(self.directory, "trace.json")
        tracer = self.start("trace", [f"{cluster.BUILD}/syncline", "trace", "test", "--coordinator", self.address,
                                      "--out", self.file, "--steps", "60", "--wait", "5m"])  # fmt: skip
        # It has answered when it has sent a part: then the window has begun.
        self.await_traced_steps(workers[1], 20)
        workers[1].signal(signal.SIGKILL)
        self.assertEqual(tracer.wait(5 * cluster.PATIENCE), 0, tracer.text())
        trace = TraceFile(self.file)
        self.assertIn("missing: worker 1 went away", tracer.text())
        self.assertTrue(any(line.startswith("worker 1 went away") for line in trace.about["missing"]), trace.about)
        self.assertEqual(trace.steps_of("worker 0"), trace.window)
        of_the_dead = trace.steps_of("worker 1")
        self.assertTrue(of_the_dead and of_the_dead < trace.window, of_the_dead)

    def await_traced_steps(self, worker, steps):
        now = int(worker.text().rsplit("step ", 1)[1].split()[0])
        worker.await_line(rf"^step {now + steps}$")

    def test_a_job_that_nobody_knows(self):
        self.begin()
        traced = self.trace(job="tost")
        self.assertEqual(traced.returncode, 1)
        self.assertIn("no job 'tost' is running; did you mean 'test'?", traced.stderr)
        self.assertFalse(os.path.exists(self.file))

    def test_a_file_that_cannot_be_written_is_found_before_anything_is_asked(self):
        for out in (self.directory, os.path.join(self.directory, "missing", "trace.json")):
            traced = self.syncline("trace", "nobody", "--out", out)
            self.assertEqual(traced.returncode, 1, traced.stderr)
            self.assertIn(f"cannot write --out '{out}'", traced.stderr)
        self.assertEqual([name for name in os.listdir(self.directory) if "unfinished" in name], [])

    def test_a_job_that_stands_still(self):
        self.begin(steps=3)
        traced = self.trace("--wait", "2s")
        self.assertEqual(traced.returncode, 1)
        self.assertIn("made no step within 2s", traced.stderr)
        self.assertFalse(os.path.exists(self.file))

    def test_a_job_that_ends_before(self):
        worker = self.worker(0, 1, "--steps", "6", "--leash", self.leash, "--step-ms", "1")
        self.allow(5)
        worker.await_line(r"^step 4$")
        tracer = self.start("trace", [f"{cluster.BUILD}/syncline", "trace", "test", "--coordinator", self.address,
                                      "--out", os.path.join(self.directory, "trace.json")])  # fmt: skip
        worker.await_line(r"a trace begins")
        self.allow(6)
        self.assertEqual(tracer.wait(), 1, tracer.text())
        self.assertIn("ended before a step could be recorded", tracer.text())

    def test_what_makes_no_sense_is_refused(self):
        for flags, says in ((("--steps", "0"), "--steps 0"), (("--wait", "3h"), "--wait"), (("--steps", "10001"), "1 to 10000")):
            self.allow(10**9)
            if flags[1] == "10001":
                self.begin()
            traced = self.trace(*flags)
            self.assertNotEqual(traced.returncode, 0)
            self.assertIn(says, traced.stderr)


if __name__ == "__main__":
    sys.exit(cluster.main())
