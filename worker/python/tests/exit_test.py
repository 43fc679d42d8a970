"""Tests how a program ends that does not catch an error, and which properties of a session can be read after its end."""
import tempfile
import time
import unittest
from pathlib import Path

import support
from torch_support import OptimizerTest, make_model, torch, train

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

import syncline
from syncline import errors
from syncline.torch import DiLoCo


class Exit(support.ServersTest):
    def test_is_short_and_has_the_code_of_the_error(self):
        source = """
            import numpy, sys, syncline
            {before}
            def work():
                session = syncline.Session({options})
                w = session.declare("w", numpy.zeros(3, numpy.float32))
                session.start()
                {then}
            work()
            """
        for options, then, code, last in (
                ('optimizer="adan"', "", 2, "InvalidArgument: unknown optimizer 'adan'; did you mean 'adam'"),
                ('push="topkk"', "", 2, "InvalidArgument: .*topk"),
                ("", "session.push_pull(w, w.weights, 0)", 2, "InvalidArgument: w: samples is 0"),
                ("", "session.close(); session.wait(w)", 1, "SessionClosed: the session was closed"),
                ("", "raise RuntimeError('torch: ' + str(syncline.errors.error_of(10, 'rank 3 is gone', 138)))", 138, "torch: rank 3 is gone"),
                ("", "raise syncline.errors.error_of(14, 'CUDA device 0: lost', 8)", 8, "DeviceFailed: CUDA device 0: lost"),
                ("", "raise RuntimeError('CUDA error: unspecified launch failure')", 8, "CUDA error: unspecified"),
                ("", "raise RuntimeError('CUDA error: out of memory')", 1, "CUDA error: out of memory"),
                ("", "raise RuntimeError('CUDA error: invalid device ordinal')", 1, "CUDA error: invalid device ordinal"),
                ("", "raise ValueError('of the program')", 1, "ValueError: of the program")):
            with self.subTest(last):
                program = self.program(source.format(before="", options=options, then=then), {"SYNCLINE_JOB": f"{self.id()} {last[-20:]} {then[:9]}"})
                self.assertEqual(program.wait(), code, program.text())
                lines = program.text().splitlines()
                self.assertRegex(lines[-1], last)
                self.assertNotIn("session.py", program.text())
                self.assertIn(", in work", program.text())

    def test_of_a_preset_that_there_is_not_names_those_that_there_are(self):
        program = self.program("""
            import torch, syncline.torch
            model = torch.nn.Linear(2, 1)
            def work():
                syncline.torch.LocalSGD.preset("nonsense", model, torch.optim.SGD(model.parameters(), lr=0.1))
            work()
            """)
        self.assertEqual(program.wait(), 2, program.text())
        self.assertRegex(program.text().splitlines()[-1],
                         "InvalidArgument: 'nonsense' is not a preset; there are diloco, streaming-diloco, sparseloco, post-local-sgd, "
                         "demo$")
        self.assertNotIn("_local/presets.py", program.text())
        self.assertIn(", in work", program.text())

    def test_is_the_programs_own_where_the_environment_says_so(self):
        program = self.program('import syncline; syncline.Session(push="topkk")', {"SYNCLINE_EXCEPTHOOK": "0"})
        self.assertEqual(program.wait(), 1, program.text())
        self.assertIn("session.py", program.text())

    def test_of_a_member_of_a_group_has_the_code_of_the_error_too(self):
        program = self.program("""
            import tempfile, torch.distributed, syncline.errors, syncline.torch.distributed
            store = "file://" + tempfile.mkdtemp() + "/store"
            torch.distributed.init_process_group("syncline", init_method=store, rank=0, world_size=1)
            raise syncline.errors.error_of(10, "rank 1 has died", 138)
            """)
        self.assertEqual(program.wait(), 138, program.text())
        program.await_line("rank 1 has died")

    def test_is_shown_under_the_hook_of_torch_distributed(self):  # which collects what this package's writes, to show it afterwards
        program = self.program("""
            import io, sys, syncline
            from syncline import _exit
            _exit.set_up()
            before = sys.excepthook
            def of_torch(*arguments):
                real, sys.stderr = sys.stderr, io.StringIO()
                try:
                    before(*arguments)
                finally:
                    said, sys.stderr = sys.stderr.getvalue(), real
                sys.stderr.write(said)
            sys.excepthook = of_torch
            raise syncline.errors.error_of(14, "no coordinator there", 5)
            """)
        self.assertEqual(program.wait(), 5, program.text())
        self.assertRegex(program.text().splitlines()[-1], "Unavailable: no coordinator there")

    def test_calls_hooks_of_others(self):
        source = """
            import sys, syncline
            sys.excepthook = lambda kind, error, traceback: print("mine:", kind.__name__, flush=True)
            syncline.Session()
            syncline.Session(push="topkk")
            """
        program = self.program(source)
        self.assertEqual(program.wait(), 2, program.text())
        program.await_line("mine: InvalidArgument")


class ErrorFile(support.ServersTest):
    """Tests of torchelastic's error file, from which a launcher reads why a worker failed."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "error.json"

    def run_program(self, last, code, env=None):
        program = self.program(f"import syncline\nsession = syncline.Session()\ndef work():\n    {last}\nwork()",
                               {"TORCHELASTIC_ERROR_FILE": str(self.path), **(env or {})})
        self.assertEqual(program.wait(), code, program.text())

    def test_is_as_torchs_record_writes_it(self):
        for last, code, message in (("raise ValueError('no data')", 1, "ValueError: no data"),
                                    ("session.step, session.close(), session.barrier()", 1, "SessionClosed: the session was closed"),
                                    ("syncline.Session(push='topkk')", 2, "InvalidArgument: ")):
            with self.subTest(message):
                self.path.unlink(missing_ok=True)
                self.run_program(last, code)
                failure = ProcessFailure(local_rank=0, pid=1, exitcode=code, error_file=str(self.path))
                self.assertIn(message, failure.message["message"])
                self.assertLess(abs(failure.timestamp - time.time()), 2 * support.PATIENCE)
                callstack = failure.message["extraInfo"]["py_callstack"]
                self.assertRegex(callstack, "(?s)^Traceback .*, in work\n")
                self.assertEqual("session.py" in callstack, False, callstack)

    def test_is_not_written_over(self):
        self.path.write_text(mine := '{"message": "of @record"}')
        self.run_program("raise ValueError('no data')", 1)
        self.assertEqual(self.path.read_text(), mine)
        self.path.write_text("")
        self.run_program("raise ValueError('no data')", 1)
        self.assertIn("no data", self.path.read_text())

    def test_is_of_exceptions_only(self):
        for last, code in (("raise SystemExit(3)", 3), ("raise KeyboardInterrupt", -2)):
            self.run_program(last, code)
            self.assertFalse(self.path.exists(), last)
        self.run_program("raise ValueError('no data')", 1, {"SYNCLINE_EXCEPTHOOK": "0"})
        self.assertFalse(self.path.exists())
        self.run_program("raise ValueError('no data')", 1, {"TORCHELASTIC_ERROR_FILE": "/no/such/folder/file"})


class AfterClose(OptimizerTest):
    def test_rounds_and_steps_stay(self):
        model = make_model()
        optimizer = self.optimizer(model)
        train(model, optimizer, 3)
        optimizer.close()
        self.assertEqual((optimizer.steps, optimizer.rank, optimizer.world_size), (3, 0, 1))
        diloco = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=2, session=self.options(job=f"{self.id()}diloco"))
        train(model, diloco, 4)
        diloco.close()
        self.assertEqual((diloco.rounds, diloco.steps), (2, 4))
        with self.assertRaises(syncline.SessionClosed):
            diloco.session.barrier()


class ErrorBehind(unittest.TestCase):
    def test_an_exception_of_torch_is_found_by_its_message(self):
        original = errors.error_of(10, "rank 2 hangs", 138)
        original.rank = 2  # as collective operations do, later
        found = errors.behind(RuntimeError("Caught in C++: Dropped: rank 2 hangs\nat ..."))
        self.assertEqual((type(found), found.rank, found.exit_code), (syncline.errors.Dropped, 2, 138))
        self.assertIs(errors.behind(original), original)
        errors.error_of(10, "", 1)  # is in no message
        self.assertIsNone(errors.behind(RuntimeError("of the program")))
        self.assertIsNone(errors.behind(ValueError("rank 2 hangs")))


if __name__ == "__main__":
    unittest.main()
