"""Tests that each sample of an epoch counts exactly once, in all weights, although workers die within steps, come back and join."""
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import support
from counting import counting
from torch_support import torch

import syncline
from syncline.torch._elastic.books import Books, Page
from syncline.torch.elastic import ExactlyOnceSampler


class BooksTest(unittest.TestCase):
    def test_are_read_as_they_were_written(self):
        for batches, workers in ((1, 1), (7, 2), (8, 8), (9, 64), (1000, 9)):
            books = Books(batches, workers)
            counted = torch.arange(batches) % 3 == 1
            for epoch in (0, 255, 256, 70_000):
                read = books.read(books.written(Page(epoch, counted, []), workers - 1, True))
                self.assertEqual((read.epoch, read.members), (epoch, [workers - 1]))
                self.assertEqual(read.counted.tolist(), counted.tolist())

    def test_count_each_batch_once_whoever_contributes(self):
        """Compares the books with a set of pairs while workers come, go and are left out. The mean is made as servers make it."""
        for seed in range(40):
            draw = random.Random(seed)
            books = Books(draw.randint(1, 30), 6)
            numbers, counted, alive = books.first(2), [], [0, 1]
            for _ in range(200):
                page = books.read(numbers)
                if draw.random() < 0.2:
                    alive = sorted(draw.sample(range(6), draw.randint(1, 5)))
                pushed = []
                for rank in alive:
                    mine = page.of(rank)[:1]
                    trains = bool(mine) and draw.random() < 0.9
                    if draw.random() < 0.9:  # otherwise it dies, or a quorum leaves it out
                        pushed.append(books.written(page, rank, trains))
                        counted += [(page.epoch, batch) for batch in mine if trains]
                if pushed:  # a step without contributors changes nothing
                    weight = torch.tensor(1 / len(pushed))
                    numbers = sum(one * weight for one in pushed)
            page = books.read(numbers)
            expected = [(epoch, batch) for epoch in range(page.epoch) for batch in range(books.batches)]
            expected += [(page.epoch, batch) for batch in page.counted.nonzero().flatten().tolist()]
            self.assertEqual(sorted(counted), expected, f"seed {seed}")


class Alone(support.ServersTest):
    def train(self, samples, *, epochs=2, spoiled=(), options=None, **of_sampler):
        sampler = ExactlyOnceSampler(samples, 4, **of_sampler)
        model, optimizer = counting(sampler, samples, session=self.options(**(options or {})))
        self.addCleanup(optimizer.session.close)
        loader = torch.utils.data.DataLoader(torch.arange(samples), batch_sampler=sampler)
        order = []
        while sampler.epoch < epochs:
            for index in sampler.batches(loader):
                order.append(index.tolist())
                (model(index) * (float("nan") if len(order) in spoiled else 1)).backward()
                optimizer.step()
        optimizer.synchronize()
        return order, [(-part).round().tolist() for part in model.parts], optimizer.steps

    def test_the_last_batch_is_smaller_or_left_out(self):
        order, counts, _ = self.train(10)
        self.assertEqual([len(index) for index in order], [4, 4, 2] * 2)
        self.assertEqual(counts, [[2.0] * 10] * 4)
        self.assertNotEqual(order[:3], order[3:])
        order, counts, _ = self.train(10, drop_last=True, shuffle=False, options={"job": "drop"})
        self.assertEqual(order, [[0, 1, 2, 3], [4, 5, 6, 7]] * 2)

    def test_a_step_that_is_skipped_as_it_is_not_finite_counts(self):
        order, counts, steps = self.train(8, epochs=3, spoiled=(3,), shuffle=False, options={"nonfinite_steps": "skip"})
        self.assertEqual((len(order), steps), (6, 6))
        self.assertEqual(counts, [[2.0] * 4 + [3.0] * 4] * 4)

    def test_what_a_program_did_not_train_is_given_again(self):
        for persistent in (False, True):
            with self.subTest(persistent=persistent):
                self.give_again(persistent)

    def give_again(self, persistent):
        sampler = ExactlyOnceSampler(12, 4, shuffle=False)
        _, optimizer = counting(sampler, 12, session=self.options(job=f"{self.id()}{persistent}"))
        self.addCleanup(optimizer.session.close)
        loader = torch.utils.data.DataLoader(torch.arange(12), batch_sampler=sampler, num_workers=1, persistent_workers=persistent)
        for index in sampler.batches(loader):
            break
        self.assertEqual((index.tolist(), sampler.left), ([0, 1, 2, 3], 3))
        given = sampler.batches(loader)
        self.assertEqual(next(given).tolist(), [0, 1, 2, 3])
        with self.assertRaisesRegex(syncline.FailedPrecondition, "requested before optimizer.step"):
            next(given)
        self.assertEqual(next(sampler.batches(loader)).tolist(), [0, 1, 2, 3])
        optimizer.step()  # without backward: it is left out
        self.assertEqual(sampler.left, 2)
        self.assertEqual([index.tolist() for index in self.all_of(sampler, loader, optimizer)], [[4, 5, 6, 7], [8, 9, 10, 11]])
        self.assertEqual((sampler.epoch, sampler.left), (1, 3))

    def test_a_batch_whose_backward_was_broken_off_counts_as_read(self):
        sampler = ExactlyOnceSampler(12, 4, shuffle=False)
        model, optimizer = counting(sampler, 12, session=self.options())
        self.addCleanup(optimizer.session.close)
        loader = torch.utils.data.DataLoader(torch.arange(12), batch_sampler=sampler)
        bomb = model.parts[0].register_hook(lambda gradient: 1 / 0 if gradient[4] else gradient)
        given = []
        for index in sampler.batches(loader):
            given.append(index.tolist())
            try:
                model(index).backward()
            except ZeroDivisionError:
                optimizer.zero_grad()
                continue
            optimizer.step()
        bomb.remove()
        optimizer.synchronize()
        self.assertEqual(given, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]])
        self.assertEqual((-model.parts[0]).round().tolist(), [1.0] * 4 + [0.0] * 4 + [1.0] * 4)

    def all_of(self, sampler, loader, optimizer):
        for index in sampler.batches(loader):
            yield index
            optimizer.step()

    def test_what_makes_no_sense_is_refused(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "3 samples in batches of 4"):
            ExactlyOnceSampler(3, 4, drop_last=True)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "sampler=sampler"):
            ExactlyOnceSampler(3, 4).epoch
        for settings, why in (({"mode": "ssp:3"}, "ssp:3.*ElasticDistributedSampler"), ({"accumulate_steps": 2}, "no_sync"),
                              ({"rank": 3, "world_size": 4}, "rank 3: the sampler has max_workers=2")):
            with self.assertRaisesRegex(syncline.InvalidArgument, why):
                counting(ExactlyOnceSampler(8, 4, max_workers=2), 8, session=self.options(**settings))
        sampler = ExactlyOnceSampler(8, 4)
        _, optimizer = counting(sampler, 8, session=self.options())
        self.addCleanup(optimizer.session.close)
        with self.assertRaisesRegex(syncline.InvalidArgument, "batch_sampler=sampler"):
            next(sampler.batches(torch.utils.data.DataLoader(torch.arange(8))))


class Counting(support.ServersTest):
    SAMPLES = 1003
    LOOP = f"""
        import os, signal, time, torch, syncline.torch
        from counting import counting
        from syncline.torch.elastic import ExactlyOnceSampler
        torch.set_num_threads(1)
        rank = int(os.environ["RANK"])
        sampler = ExactlyOnceSampler({SAMPLES}, 10)
        model, optimizer = counting(sampler, {SAMPLES})
        loader = torch.utils.data.DataLoader(torch.arange({SAMPLES}), batch_sampler=sampler, num_workers=2)

        def die(_):
            time.sleep(0.5)      # what was pushed before is at the servers
            os.kill(os.getpid(), signal.SIGKILL)

        print("rank", rank, "begins at", optimizer.steps, flush=True)
        trained = 0
        while not os.path.exists(os.environ["STOP"]):
            for index in sampler.batches(loader):
                if os.environ.get("DIES") and sampler.epoch == 1 and sampler.left < 60:
                    model.parts[1].register_hook(die)
                model(index).backward()
                optimizer.step()
                trained += 1
                time.sleep(0.005)
                if trained % 10 == 0:
                    print("trained", trained, "epoch", sampler.epoch, flush=True)
        optimizer.synchronize()
        counts = [-part.detach().round() for part in model.parts]
        print("counts", sampler.epoch, *[f"{{int(part.min())}} {{int(part.max())}}" for part in counts], flush=True)
        optimizer.close()
        """

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.stop = Path(folder.name) / "stop"

    def worker(self, rank, **environment):
        path = f"{support.PACKAGE}:{support.HERE}"
        return self.program(self.LOOP, {**self.environment(rank, 2), "STOP": str(self.stop), "PYTHONPATH": path, **environment})

    def test_each_sample_counts_once_an_epoch(self):
        first, second = self.worker(0), self.worker(1, DIES="yes")
        self.assertEqual(second.wait(), -9, second.text())  # with some of its gradients sent
        first.await_line("epoch changed .*members=1")
        second = self.worker(1)
        second.await_line("trained 20 ")
        second.kill()  # wherever it is
        third, second = self.worker(2), self.worker(1)
        for program in (third, second):  # in the middle of an epoch, most likely
            program.await_line("trained 30 ")
        self.stop.touch()
        for program in (first, second, third):
            self.assertEqual(program.wait(), 0, program.text())
            epoch, *counts = program.await_line(r"counts (\d+) (.*)").groups()
            self.assertEqual(counts, [" ".join([epoch] * 8)], program.text())

    def test_more_workers_than_batches_wait_for_the_others(self):
        loop = self.LOOP.replace(f"Sampler({self.SAMPLES}, 10)", f"Sampler({self.SAMPLES}, 400)")
        loop = loop.replace('os.path.exists(os.environ["STOP"])', "sampler.epoch == 3")
        programs = [self.program(loop, {**self.environment(rank, 4), "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"}) for rank in range(4)]
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())
            program.await_line("counts 3 3 3 3 3 3 3 3 3$")


def processes_of(run):
    """Returns the number and the command of each process that a launcher has started."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(run.process.pid)], capture_output=True, text=True).stdout
    return [(int(pid), command) for pid, _, command in (line.strip().partition(" ") for line in listed.splitlines())]


class Durable(unittest.TestCase):
    """In a job with a journal the coordinator dies, and then all processes die. Each sample still counts once in an epoch."""

    LOOP = Counting.LOOP.replace('not os.path.exists(os.environ["STOP"])', "sampler.epoch < last").replace(
        "trained = 0", 'trained, last = 0, sampler.epoch + int(os.environ["MORE"])')

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        (self.folder / "train.py").write_text(textwrap.dedent(self.LOOP))

    def run_job(self, more):
        command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--servers", "2", "--nproc-per-node", "2", "--job", "books",
                   "--durability", "disk", "--journal-dir", f"{self.folder}/journal", "--checkpoint-dir", f"{self.folder}/saved",
                   "--", sys.executable, str(self.folder / "train.py")]  # fmt: skip
        run = support.Process(command, {"MORE": str(more), "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"})
        self.addCleanup(run.kill)
        return run

    def test_goes_on_when_the_coordinator_is_back_and_when_everything_is(self):
        run = self.run_job(1_000_000)
        run.await_line("trained 20 ")
        [coordinator] = [pid for pid, command in processes_of(run) if "--role coordinator" in command]
        os.kill(coordinator, signal.SIGKILL)
        run.await_line("coordinator .*; starting it again")
        trained = max(int(steps) for steps in re.findall(r"trained (\d+) ", run.text()))
        run.await_line(f"trained {trained + 100} ")  # the coordinator rules on each step
        for pid in [run.process.pid, *(pid for pid, _ in processes_of(run))]:
            with contextlib.suppress(ProcessLookupError):  # they end with the first
                os.kill(pid, signal.SIGKILL)
        run.wait()
        again = self.run_job(2)
        self.assertEqual(again.wait(), 0, again.text())
        self.assertGreater(int(again.await_line(r"rank 0 begins at (\d+)").group(1)), 100)
        again.await_line(r"counts (\d+) \1 \1 \1 \1 \1 \1 \1 \1$")


class Resumed(unittest.TestCase):
    PROGRAM = """
        import os, torch
        from counting import counting
        from syncline.torch.elastic import ExactlyOnceSampler
        torch.set_num_threads(1)
        sampler = ExactlyOnceSampler(203, 10)
        model, optimizer = counting(sampler, 203)
        loader = torch.utils.data.DataLoader(torch.arange(203), batch_sampler=sampler)
        print("begins with", sampler.left, "of epoch", sampler.epoch, flush=True)
        steps = 0
        while sampler.epoch < 2 and steps < int(os.environ["STEPS"]):
            for index in sampler.batches(loader):
                model(index).backward()
                optimizer.step()
                steps += 1
                if steps == int(os.environ["STEPS"]):
                    break
        optimizer.synchronize()
        print("counts", *[f"{int(-part.max())} {int(-part.min())}" for part in model.parts], flush=True)
        optimizer.close()
        """

    def test_goes_on_in_the_middle_of_an_epoch(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "train.py"
            script.write_text(textwrap.dedent(self.PROGRAM))
            command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", "2", "--checkpoint-dir", f"{folder}/saved",
                       "--checkpoint-every", "100 steps", "--", sys.executable, str(script)]
            for steps, begins, counts in ((7, "21 of epoch 0", "0 1 0 1 0 1 0 1"), (100, "7 of epoch 0", "2 2 2 2 2 2 2 2")):
                run = support.Process(command, {"STEPS": str(steps), "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"})
                self.addCleanup(run.kill)
                self.assertEqual(run.wait(), 0, run.text())
                run.await_line(f"begins with {begins}$")
                run.await_line(f"counts {counts}$")


if __name__ == "__main__":
    unittest.main()
