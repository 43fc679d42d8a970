"""Tests of syncline.torch.progress: a bar where tqdm is installed, lines elsewhere, and nothing that nobody asked for."""
import contextlib
import importlib.util
import io
import os
import sys
import tempfile
import textwrap
import types
import unittest
from pathlib import Path
from unittest import mock

import support
from torch_support import OptimizerTest, make_model, nn, torch

import syncline
from syncline import _report
from syncline.torch import _progress, progress

WITHOUT_TQDM = {"tqdm": None, "tqdm.auto": None}
STOPPED = types.SimpleNamespace(monotonic=lambda: 100.0)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def stats_of(steps, bytes_pushed=0, compute=0.0, others=0.0, slowest=None):
    phases = {**dict.fromkeys(_report.PHASES, 0.0), "compute": compute, "others": others}
    return syncline.Stats(bytes_pushed, 0, 0, 1, 1, steps, phases, slowest=slowest)


class StandIn:
    """As much of an Optimizer as progress needs."""

    members_are = "worker"
    slowest = None

    def __init__(self, rank=0):
        self.rank, self.steps, self.is_closed = rank, 0, False
        self.session = self

    def figures(self):
        if self.is_closed:
            raise syncline.SessionClosed("closed")
        return stats_of(self.steps, slowest=self.slowest), _report.Progress()


def shown(batches, optimizer, *, stream=None, modules=WITHOUT_TQDM, clock=STOPPED, take=lambda batch: None, **more):
    """Runs a loop over the batches. Returns what was printed, after a check that the loop has seen them all."""
    stream = stream or io.StringIO()
    seen = []
    with contextlib.redirect_stderr(stream), mock.patch.dict(sys.modules, modules), mock.patch.object(_progress, "time", clock):
        for batch in progress(batches, optimizer, **more):
            seen.append(batch)
            optimizer.steps += 1
            take(batch)
    assert seen == list(batches), seen
    return stream.getvalue()


class Lines(unittest.TestCase):
    """What is printed without tqdm, or where standard error is a file."""

    def test_intervals_grow_with_the_time_that_has_passed(self):
        now = [100.0]

        def pass_a_second(batch):
            now[0] += 1

        text = shown(range(1000), StandIn(), clock=types.SimpleNamespace(monotonic=lambda: now[0]), take=pass_a_second, show=True)
        lines = text.splitlines()
        self.assertEqual(lines[0], "syncline: batch 5 of 1000 after 5 s, step 5")
        self.assertEqual([int(line.split()[2]) for line in lines], [5, 10, 15, 23, 35, 53, 80, 120, 180, 270, 405, 608, 908, 1000])

    def test_only_rank_0_prints_and_only_to_a_terminal_unless_asked(self):
        line = "syncline: batch 3 of 3 after 0 s, step 3\n"
        self.assertEqual(shown(range(3), StandIn(), show=True), line)
        self.assertEqual(shown(range(3), StandIn(), stream=Terminal()), line)
        for silent in (shown(range(3), StandIn()), shown(range(3), StandIn(), stream=Terminal(), show=False),
                       shown(range(3), StandIn(rank=1), stream=Terminal(), show=True)):
            self.assertEqual(silent, "")

    def test_the_number_of_batches_may_be_unknown(self):
        class Endless(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter([1.0, 2.0])

        loader = torch.utils.data.DataLoader(Endless(), batch_size=None)
        self.assertEqual(shown(loader, StandIn(), show=True), "syncline: batch 2 after 0 s, step 2\n")

    def test_after_an_exception_nothing_is_printed(self):
        stream = io.StringIO()
        with contextlib.redirect_stderr(stream):
            batches = progress(range(3), StandIn(), show=True)
            next(batches)
            batches.close()  # as the end of a loop that an exception ends
        self.assertEqual(stream.getvalue(), "")

    def test_the_slowest_worker_is_named_once_it_is_known(self):
        optimizer = StandIn()

        def know(batch):
            optimizer.slowest = 3

        self.assertEqual(shown(range(2), optimizer, take=know, show=True), "syncline: batch 2 of 2 after 0 s, step 2, slowest: worker 3\n")
        optimizer.members_are = "host"
        self.assertEqual(shown(range(1), optimizer, show=True), "syncline: batch 1 of 1 after 0 s, step 3, slowest: host 3\n")

    def test_a_loop_may_close_the_session(self):
        optimizer = StandIn()

        def close_after_the_last(batch):
            optimizer.is_closed = batch == 2

        self.assertEqual(shown(range(3), optimizer, take=close_after_the_last, show=True), "syncline: batch 3 of 3 after 0 s\n")


@unittest.skipUnless(importlib.util.find_spec("tqdm"), "tqdm is not installed")
class Bars(unittest.TestCase):
    """What tqdm shows."""

    def test_a_terminal_shows_a_bar_with_the_figures(self):
        text = shown(range(3), StandIn(), stream=Terminal(), modules={})
        self.assertRegex(text, r"100%.*3/3 .*batch.*, step 3\]")
        self.assertNotIn("syncline:", text)

    def test_a_file_gets_lines(self):
        self.assertEqual(shown(range(3), StandIn(), modules={}, show=True), "syncline: batch 3 of 3 after 0 s, step 3\n")

    def test_figures_are_read_once_a_second(self):
        now = [0.0]
        optimizer = StandIn()
        with mock.patch.object(optimizer, "figures", wraps=optimizer.figures) as read:
            shown(range(1000), optimizer, stream=Terminal(), modules={}, clock=types.SimpleNamespace(monotonic=lambda: now[0]),
                  take=lambda batch: now.append(now.pop() + 1 / 256))
        self.assertEqual(read.call_count, 1 + 1000 // 256 + 1)


class Figures(OptimizerTest):
    def test_rates_are_those_since_the_last_look(self):
        with mock.patch("time.monotonic", return_value=10.0):
            done = _report.Progress(stats_of(0, 1000))
            pace = _report.Pace(stats_of(0, 1000), done)
        # The ratio is that of all steps but the last, whose gradients are still on their way.
        for now, steps, compute, others, said in (
                (12.0, 5, 1.5, 0.5, ", 320 samples/s, pushes 4x less than FP32, waits for others 25 %"),
                (16.0, 10, 5.0, 1.0, ", 160 samples/s, pushes 4x less than FP32, waits for others 12 %")):
            with mock.patch("time.monotonic", return_value=now):
                for _ in range(5):
                    done.push((1024, 1024), 128)
                self.assertEqual(pace.words(stats_of(steps, 1000 + (steps - 1) * 2**20, compute, others), done), said)
        with mock.patch("time.monotonic", return_value=17.0):  # another session, after rejoin()
            self.assertEqual(pace.words(stats_of(0), _report.Progress()), "")

    def test_they_are_those_of_the_session(self):
        model = make_model()
        optimizer = self.optimizer(model, push="fp32", samples=32)
        stream = io.StringIO()
        with contextlib.redirect_stderr(stream):
            for _ in progress(range(3), optimizer, show=True):
                nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()
                optimizer.step()
        self.assertRegex(stream.getvalue(), r"batch 3 of 3 after \d+ s, step 3, [\d,.]+ samples/s, waits for others \d+ %\n")

    def test_all_workers_hear_which_is_slower_than_the_others(self):
        source = """
            import os, time, torch, syncline.torch
            from pathlib import Path
            torch.set_num_threads(1)
            model = torch.nn.Linear(4, 2)
            optimizer = syncline.torch.Optimizer(model, "sgd", 0.1, push="fp32")
            deadline = time.monotonic() + float(os.environ["PATIENCE"])
            known = [Path(os.environ["PLACE"]) / str(rank) for rank in range(2)]
            while not all(path.exists() for path in known):
                assert time.monotonic() < deadline, "nobody was called the slowest"
                time.sleep(0.4 if optimizer.rank == 1 else 0.02)
                model(torch.ones(8, 4)).sum().backward()
                optimizer.step()
                if (slowest := optimizer.session.stats.slowest) is not None:
                    known[optimizer.rank].write_text(str(slowest))
            optimizer.close()
            """
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "train.py"
            program.write_text(textwrap.dedent(source))
            run = support.Process([os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", "2", "--", sys.executable,
                                   str(program)], {"PATIENCE": str(support.PATIENCE), "PLACE": place})
            self.addCleanup(run.kill)
            self.assertEqual(run.wait(), 0, run.text())
            self.assertEqual([(Path(place) / str(rank)).read_text() for rank in range(2)], ["1", "1"])

    def test_the_leader_of_a_host_shows_them_for_all_its_ranks(self):
        source = """
            import torch, syncline.torch
            model = torch.nn.Linear(4, 2)
            optimizer = syncline.torch.Optimizer(model, "sgd", 0.1, samples=8, push="fp32")
            for _ in syncline.torch.progress(range(3), optimizer, show=True):
                model(torch.ones(8, 4)).sum().backward()
                optimizer.step()
            optimizer.close()
            """
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "train.py"
            program.write_text(textwrap.dedent(source))
            run = support.Process([os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", "2", "--local-aggregation", "--",
                                   sys.executable, str(program)])
            self.addCleanup(run.kill)
            self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(run.text().count("batch 3 of 3 after"), 1, run.text())
        self.assertRegex(run.text(), r"batch 3 of 3 after \d+ s, step 3, [\d,.]+ samples/s, waits for others \d+ %")


if __name__ == "__main__":
    unittest.main()
