#!/usr/bin/env python3
"""`syncline trace` of a running job, with real processes. The file has all processes, even if one dies.

    python3 tests/integration/trace_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import signal
import subprocess
import sys
import unittest

import cluster
import perfetto
from trace_file import TraceFile

STEPS = 12
PYTHON = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "worker", "python", "src")
# Steps have a realistic length, so that the order to record reaches the worker before the window begins.
TRAIN = """
import time, torch, syncline.torch
model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Tanh(), torch.nn.Linear(400, 3))
optimizer = syncline.torch.Optimizer(model, "sgd", lr=0.01)
while True:
    model(torch.ones(8, 300)).square().mean().backward()
    optimizer.step()
    print("step", optimizer.steps, flush=True)
    time.sleep(0.05)
"""
TORCH_PYTHON = next((python for python in ("/usr/bin/python3", sys.executable)
                     if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0), None)  # fmt: skip


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

    def test_perfetto_shows_every_slice_and_arrow(self):
        self.begin()
        trace = self.read(self.trace("--steps", str(STEPS)))
        with perfetto.open_trace(self.file) as shown:
            # It counts what it drops. Its own times and formats are counted there, too.
            dropped = "select name, value from stats where value > 0 and (severity != 'info' or name glob 'flow_*')"
            self.assertEqual(shown.rows(dropped), [])
            self.assertEqual(shown.number("select count(*) from slice"), len(trace.slices) + sum(event["ph"] == "b" for event in trace.events))
            self.assertEqual(shown.number("select count(*) from flow"), sum(len(flow) - 1 for flow in trace.flows))
            self.assertEqual(dict(shown.rows("select pid, name from process where name is not null")), trace.processes)
            program = "select count(*) from slice join thread_track on track_id = thread_track.id join thread using(utid) " \
                "where thread.name = 'program' and slice.name glob 'step *' and depth = 0"  # fmt: skip
            self.assertEqual(shown.number(program), 2 * STEPS, "a step that is not the outermost slice of its track")

    def test_a_push_leads_to_a_step_and_to_a_view(self):
        self.begin()
        trace = self.read(self.trace("--steps", str(STEPS)))
        pushed = {(e["args"]["rank"], e["args"]["block"], e["args"]["step"]) for e in trace.slices if e["name"] == "encode block"}
        self.assertEqual(len(trace.flows), len(pushed), "a push whose arrow does not arrive")
        self.assertEqual({e["args"]["tensor"].split(",")[0] for e in trace.slices if "block" in e.get("args", {})}, {"tensor0", "tensor1", "tensor2"})
        for flow in trace.flows:
            begin, *middle, end = flow
            self.assertEqual(begin["pid"], end["pid"])
            self.assertTrue(trace.processes[begin["pid"]].startswith("worker"))
            self.assertTrue(all(trace.processes[one["pid"]].startswith("server") for one in middle), flow)
            self.assertLess(begin["ts"], end["ts"])
            for one, next_one in zip(flow, flow[1:]):
                self.assertLess(one["ts"], next_one["ts"], flow)

    def test_in_asp_a_push_leads_to_the_view_that_answers_it(self):
        self.worker_env = {"SYNCLINE_MODE": "asp"}
        self.begin()
        trace = self.read(self.trace("--steps", str(STEPS)))
        pushed = {(e["args"]["rank"], e["args"]["block"], e["args"]["step"]) for e in trace.slices if e["name"] == "encode block"}
        made, decoded = ({(e["args"]["rank"], e["args"]["block"], e["args"]["step"]) for e in trace.slices if e["name"] == name and "rank" in e["args"]}
                         for name in ("step", "decode block"))
        # On a busy machine the server's window may begin later or end earlier than a worker's.
        self.assertGreater(len(pushed & made & decoded), STEPS)
        self.assertEqual(len(trace.flows), len(pushed & made & decoded), "a push whose arrow does not arrive")
        for flow in trace.flows:
            self.assertEqual(sorted(flow, key=lambda e: e["ts"]), flow)

    @unittest.skipIf(TORCH_PYTHON is None, "no torch")
    def test_of_a_torch_program_forward_and_backward_are_slices_of_each_step(self):
        env = {"PYTHONPATH": PYTHON, "SYNCLINE_LIBRARY": f"{cluster.BUILD}/libsyncline.so", "OMP_NUM_THREADS": "1",
               "SYNCLINE_COORDINATOR": self.address, "SYNCLINE_JOB": "test", "SYNCLINE_FAILURE_TIMEOUT": f"{cluster.FAILURE_TIMEOUT}s",
               "RANK": "0", "WORLD_SIZE": "1"}  # fmt: skip
        self.start("worker0", [TORCH_PYTHON, "-c", TRAIN], env).await_line(r"^step 2$")
        trace = self.read(self.trace("--steps", str(STEPS)))
        self.assertEqual(trace.about["missing"], [])
        passes = {name: {e["args"]["step"]: e for e in trace.slices if e["name"] == name} for name in ("forward", "backward")}
        for name, of_steps in passes.items():
            self.assertEqual(set(of_steps), trace.window, name)
            self.assertEqual(len([e for e in trace.slices if e["name"] == name]), STEPS, f"a second {name} in a step")
        threads = {e["tid"] for of_steps in passes.values() for e in of_steps.values()}
        self.assertEqual(len(threads), 1)
        self.assertNotIn(threads.pop(), {e["tid"] for e in trace.slices if e["name"] == "compute"})
        pushes = [e for e in trace.events if e["ph"] == "b" and e["name"] == "push block"]
        self.assertEqual({e["args"]["step"] for e in pushes}, trace.window)
        for step in trace.window:
            forward, backward = passes["forward"][step], passes["backward"][step]
            self.assertLessEqual(forward["ts"] + forward["dur"], backward["ts"] + 1e-3)
            for push in pushes:
                if push["args"]["step"] == step:
                    self.assertGreaterEqual(push["ts"] + 1e-3, backward["ts"], "pushed before backward")

    def test_a_worker_that_is_killed_in_the_window_is_named(self):
        workers = self.begin("--step-ms", "100")
        self.file = os.path.join(self.directory, "trace.json")
        tracer = self.start("trace", [f"{cluster.BUILD}/syncline", "trace", "test", "--coordinator", self.address,
                                      "--out", self.file, "--steps", "60", "--wait", "5m"])  # fmt: skip
        # The worker answers with its first part, after the window has begun.
        self.await_traced_steps(workers[1], 20)
        workers[1].signal(signal.SIGKILL)
        self.assertEqual(tracer.wait(5 * cluster.PATIENCE), 0, tracer.text())
        trace = TraceFile(self.file)
        self.assertIn("missing: worker 1 left", tracer.text())
        self.assertTrue(any(line.startswith("worker 1 left") for line in trace.about["missing"]), trace.about)
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
