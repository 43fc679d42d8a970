"""Tests of `syncline run` for what users of torchrun expect: scripts, modules, variables, restarts, and which error comes last."""
import importlib.util
import os
import re
import signal
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

import support

if importlib.util.find_spec("numpy") is None:
    raise unittest.SkipTest("no numpy; install python3-numpy")

# A program that trains for some steps.
TRAIN = """
    import numpy, os, sys, syncline
    rank = int(os.environ["RANK"])
    session = syncline.Session(optimizer="sgd:lr=0.5", push="fp32", publish="fp32")
    weights = numpy.zeros(64, numpy.float32)
    tensor = session.declare("w", weights)
    session.start()

    def step():
        session.push_pull(tensor, weights, samples=8)
        session.wait(tensor)
"""


class Run(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def script(self, source, name="train.py"):
        path = self.folder / name
        path.write_text(textwrap.dedent(source))
        return path

    def run_launcher(self, *arguments, env=None):
        """Runs the launcher with this Python, which need not be the first in PATH. Returns its exit code and output."""
        command = [sys.executable, "-m", "syncline.run", "--log-dir", self.folder / "logs", *arguments]
        program = support.Process([str(word) for word in command], {"SYNCLINE_FAILURE_TIMEOUT": support.FAILURE_TIMEOUT, **(env or {})})
        self.addCleanup(program.kill)
        return program.wait(), program.text()


class WithoutServers(Run):
    @unittest.skipIf(importlib.util.find_spec("torch") is None, "no torch; install python3-torch")
    def test_programs_of_collectives_run(self):
        script = self.script("""
            import torch, syncline
            import torch.distributed as dist
            import syncline.torch.distributed
            dist.init_process_group("syncline")
            x = torch.full((5,), float(dist.get_rank() + 1))
            dist.all_reduce(x)
            syncline.assert_equal(x)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
            model.register_comm_hook(syncline.torch.CompressedState("int8"), syncline.torch.compressed_hook)
            model(torch.ones(2, 3)).sum().backward()
            syncline.assert_equal(model.module.weight.grad)
            print("sum", int(x[0]), flush=True)
            dist.barrier()
            dist.destroy_process_group()
        """)
        code, said = self.run_launcher("--standalone", "--servers", "0", "--nproc-per-node", "2", "--tee", "1", script,
                                       env={"PYTHONPATH": str(support.PACKAGE)})
        self.assertEqual(code, 0, said)
        self.assertEqual(len(re.findall(r"sum 3", said)), 2, said)
        self.assertIn("2 workers and 0 servers here", said)

    def test_programs_that_want_some_are_told(self):
        code, said = self.run_launcher("--standalone", "--servers", "0", "--nproc-per-node", "1", self.script(textwrap.dedent(TRAIN)),
                                       env={"PYTHONPATH": str(support.PACKAGE)})
        self.assertEqual(code, 7, said)
        self.assertRegex(said, "job 'default' needs servers .* this run has none.* start it with --servers 1")


class Programs(Run):
    def test_are_scripts_and_modules(self):
        source = "import os, sys; print('runs', sys.executable, sys.argv[1:], os.environ['WORLD_SIZE'], os.environ['ROLE_NAME'])"
        script = self.script(source)
        expected = rf"runs {re.escape(sys.executable)} \['--lr', '0.1'\] 2 trainer"
        for program in ([script], ["--", script], ["-m", "train"], ["--run_path", script], ["--no-python", sys.executable, script]):
            with self.subTest(program):
                code, said = self.run_launcher("--standalone", "--nproc_per_node=2", "--role", "trainer", "--tee", "1", *program,
                                               "--lr", "0.1", env={"PYTHONPATH": f"{support.PACKAGE}:{self.folder}"})
                self.assertEqual(code, 0, said)
                self.assertEqual(len(re.findall(expected, said)), 2, said)

    def test_are_started_by_another_python_on_demand(self):
        code, said = self.run_launcher(self.script("raise SystemExit(3)"), env={"PYTHON_EXEC": "/bin/echo"})
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"(?m)^-u /.*/train.py$")

    def test_that_are_not_there_are_named(self):
        code, said = self.run_launcher(self.folder / "tarin.py")
        self.assertEqual(code, 2, said)
        self.assertRegex(said, "there is no script '.*/tarin.py'; check the path")

    def test_run_with_torchruns_variables_and_flags(self):
        script = self.script("import os; print('of', *(os.environ[name] for name in ('WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT')))")
        code, said = self.run_launcher(
            "--rdzv-backend=c10d", "--rdzv_conf", "timeout=60", "--start_method=fork", script,
            env={"PET_NPROC_PER_NODE": "2", "PET_NNODES": "1:1", "PET_RDZV_ENDPOINT": "localhost:29400", "PET_RDZV_ID": "7",
                 "PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "29500", "PET_ROLE": "trainer"})
        self.assertEqual(code, 0, said)
        self.assertIn("of 2 10.0.0.1 29500", said)
        self.assertRegex(said, "--rdzv-endpoint localhost:29400 is not used: workers of one host meet")
        self.assertRegex(said, "--rdzv-backend, --rdzv-conf, --start-method: torchrun options without effect here")


class Ends(Run):
    def test_with_the_error_of_the_rank_that_failed_first(self):
        script = self.script(TRAIN + """
    step()
    if rank == 1:
        raise ValueError("no data in shard 7")
    while True:
        step()
    """)
        code, said = self.run_launcher("--standalone", "--nproc-per-node", 2, script)
        self.assertEqual(code, 1, said)
        lines = said.splitlines()
        self.assertRegex(lines[-1], "^syncline: error: worker 1 failed with exit code 1 .*; it said: ValueError: no data in shard 7$")
        self.assertIn("syncline: traceback of worker 1:", lines)
        self.assertIn(f'    File "{script}", line', said)

    def test_with_a_traceback_that_was_not_shown_before(self):
        script = self.script(TRAIN + "\n    raise ValueError('no data')\n")
        for flags, shown in ((["--redirects", "3"], "syncline: traceback of worker 0:"),
                             (["--tee", "3"], "[worker0]: Traceback (most recent call last):")):
            code, said = self.run_launcher("--standalone", *flags, script)
            self.assertEqual(code, 1, said)
            self.assertIn(shown, said.splitlines())
            self.assertEqual(said.count("Traceback (most recent"), 1, said)

    def test_with_logs_that_stay_when_it_is_interrupted(self):
        script = self.script("import time\nprint('runs', flush=True)\ntime.sleep(100)")
        for stop, exists in ((signal.SIGINT, True), (None, False)):
            command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--redirects", "3", "--nproc-per-node", "1", "--",
                       *([sys.executable, str(script)] if stop else ["/bin/true"])]
            program = support.Process(command, {"TMPDIR": str(self.folder)})
            self.addCleanup(program.kill)
            logs = Path(program.await_line(r"logs (\S+) \(removed once all workers succeed\)").group(1))
            if stop:
                deadline = time.monotonic() + support.PATIENCE
                while "runs" not in ((logs / "worker0.log").read_text() if (logs / "worker0.log").exists() else ""):
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.05)
                program.process.send_signal(stop)
            self.assertEqual(program.wait(), 130 if stop else 0, program.text())
            self.assertEqual((logs / "worker0.log").exists(), exists, program.text())

    def test_with_a_summary_of_rank_0(self):
        script = self.script(TRAIN + "\n    for _ in range(5):\n        step()\n")
        for level, count in (("info", 1), ("warning", 0)):
            code, said = self.run_launcher("--standalone", "--nproc-per-node", 2, "--tee", 3, script, env={"SYNCLINE_LOG": level})
            self.assertEqual(code, 0, said)
            self.assertEqual(len(re.findall(r"worker 0: 5 steps in .* samples/s; pushed .*; waits: ", said)), count, said)
            self.assertNotIn("worker 1: 5 steps", said)


class Restarts(Run):
    def test_go_on_while_the_job_comes_further(self):
        script = self.script(TRAIN + """
    for _ in range(2):
        step()
    if session.step < 12:
        os.kill(os.getpid(), 9)
    print("done at", session.step)
    """)
        code, said = self.run_launcher("--standalone", "--max-restarts", 8, script)
        self.assertEqual(code, 0, said)
        self.assertIn("done at ", said)
        self.assertGreater(len(re.findall("starting it again", said)), 3, said)

    def test_end_when_it_does_not(self):
        script = self.script(TRAIN + """
    if session.step < 2:
        step()
    raise ValueError(f"at step {session.step}, in life {os.environ['TORCHELASTIC_RESTART_COUNT']}")
    """)
        code, said = self.run_launcher("--standalone", "--max-restarts", 8, script)
        self.assertEqual(code, 1, said)
        self.assertRegex(said.splitlines()[-1], "it was started again 3 times, and the job has not got beyond step \\d; .*; "
                                                "it said: ValueError: at step \\d, in life 3$")


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    unittest.main()
