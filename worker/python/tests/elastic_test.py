"""Tests of syncline.torch.elastic: which worker reads which samples, and where a worker that comes back continues."""
import signal
import tempfile
import types
import unittest
from pathlib import Path

import support
from torch_support import torch

import syncline
import syncline.torch
from syncline.torch import LocalSGD
from syncline.torch.elastic import ElasticDistributedSampler


def sampler(length, batch_size, rank=0, world_size=1, steps=0, **more):
    return ElasticDistributedSampler(length, types.SimpleNamespace(rank=rank, world_size=world_size, steps=steps), batch_size, **more)


class Sampler(unittest.TestCase):
    def test_gives_each_sample_to_one_worker_in_equally_many_batches(self):
        for length, batch_size, world in ((100, 8, 4), (96, 8, 4), (99, 8, 4), (4, 8, 4), (33, 8, 4), (7, 2, 3), (1, 1, 1)):
            with self.subTest(length=length, batch_size=batch_size, world=world):
                read = [list(sampler(length, batch_size, rank, world)) for rank in range(world)]
                self.assertEqual(sorted(index for batches in read for rows in batches for index in rows), list(range(length)))
                for batches in read:
                    self.assertEqual(len(batches), len(sampler(length, batch_size, 0, world)))
                    self.assertTrue(all(1 <= len(rows) <= batch_size + 1 for rows in batches))

    def test_goes_on_where_the_job_is(self):
        whole = list(sampler(100, 5, 1, 2, steps=10))
        self.assertEqual(list(sampler(100, 5, 1, 2, steps=13)), whole[3:])
        late = sampler(100, 5, 1, 2, steps=13)
        self.assertEqual((late.epoch, late.batch, len(late)), (1, 3, 10))
        self.assertNotEqual(whole, list(sampler(100, 5, 1, 2, steps=0)))
        self.assertEqual(list(sampler(6, 2, shuffle=False, steps=3)), [[0, 1], [2, 3], [4, 5]])
        self.assertEqual(list(sampler(100, 5, 3, 2)), list(sampler(100, 5, 1, 2)))  # a third worker

    def test_has_larger_last_batches_where_little_is_left_over(self):
        self.assertEqual([list(map(len, sampler(33, 8, rank, 4))) for rank in range(4)], [[9], [8], [8], [8]])

    def test_refuses_data_that_is_not_enough(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "3 samples in batches of 2 for 4 workers"):
            sampler(3, 2, 0, 4)


class Rounds(support.ServersTest):
    def test_that_were_cut_short_are_refused(self):
        model = torch.nn.Linear(6, 3)
        optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=4, session=self.options())
        self.addCleanup(optimizer.session.close)
        data = ElasticDistributedSampler(100, optimizer, 10)

        def step():
            model(torch.ones(2, 6)).sum().backward()
            optimizer.step()

        for _ in range(4):
            step()
        optimizer.synchronize()
        self.assertEqual((data.epoch, data.batch, optimizer.was_cut_short), (0, 4, False))
        step()
        self.assertEqual(data.batch, 5)
        optimizer.synchronize()
        for read in (lambda: data.epoch, lambda: data.batch, lambda: next(iter(data))):
            with self.assertRaisesRegex(syncline.FailedPrecondition, "steps`, 8, is more than .* a multiple of `sync_every`"):
                read()


class Workers(support.ServersTest):
    # Adds up what it reads: the weights are the sum of all samples of the epochs, each once.
    SOURCE = """
        import time, torch, syncline.torch
        data = torch.arange(1.0, 801.0)
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        if {kind!r} == "LocalSGD":
            inner = torch.optim.SGD(model.parameters(), 1.0)
            optimizer = syncline.torch.LocalSGD(model, inner, sync_every=5)
        else:
            optimizer = syncline.torch.Optimizer(model, "sgd", 1.0, push="fp32", publish="fp32")
        sampler = syncline.torch.elastic.ElasticDistributedSampler(data, optimizer, 4)
        loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
        print("begins at", sampler.epoch, sampler.batch, flush=True)
        while sampler.epoch < {epochs}:
            for rows in loader:
                optimizer.zero_grad()
                (-2 * model(rows[:, None]).mean()).backward()  # by two, as the servers take the mean of two workers
                optimizer.step()
                time.sleep(0.02)
                print("batch", sampler.epoch, sampler.batch, flush=True)
        optimizer.close()
        print("sum", 4 * model.weight.item())
    """

    def test_add_up_to_all_data(self):
        for kind in ("Optimizer", "LocalSGD"):
            with self.subTest(kind):
                programs = [self.program(self.SOURCE.format(kind=kind, epochs=2), {**self.environment(rank, 2), "SYNCLINE_JOB": kind})
                            for rank in range(2)]
                for program in programs:
                    self.assertEqual(program.wait(), 0, program.text())
                    self.assertAlmostEqual(float(program.await_line("sum (.*)").group(1)), 2 * 800 * 801 / 2, delta=1)

    def test_that_come_back_go_on_where_the_others_are(self):
        source = self.SOURCE.format(kind="Optimizer", epochs=8)
        first, second = (self.program(source, self.environment(rank, 2)) for rank in range(2))
        second.await_line("batch 0 10")
        second.kill()
        first.await_line("batch 0 15")
        again = self.program(source, self.environment(1, 2))
        epoch, batch = map(int, again.await_line(r"begins at (\d+) (\d+)").groups())
        self.assertGreater(epoch * 100 + batch, 10)
        for program in (first, again):
            self.assertEqual(program.wait(), 0, program.text())


class Elastic(support.ServersTest):
    LOOP = """
        import os, time, torch, syncline.torch
        torch.set_num_threads(1)
        model = torch.nn.Linear(6, 3)
        optimizer = syncline.torch.Optimizer(model, "adam", lr=0.01)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, 10**6)
        state = syncline.torch.State(model, optimizer, entered=0, scheduler=scheduler)

        @syncline.torch.elastic.run
        def train(state):
            state.entered += 1
            state.commit()
            first = state.step
            while not os.path.exists(os.environ["STOP"]):
                state.entered = -1      # not committed
                model(torch.randn(4, 6)).square().mean().backward()
                optimizer.step()
                model(torch.ones(1, 6))
                if state.step == first + 20:
                    print("trains", first, flush=True)
                time.sleep(0.005)
            state.restore()

        train(state)
        print("entered", state.entered, "rate", optimizer.param_groups[0]["lr"], flush=True)
        """

    def test_a_dropped_worker_joins_again_in_its_loop(self):
        with tempfile.TemporaryDirectory() as folder:
            stop = Path(folder) / "stop"
            first, second = (self.program(self.LOOP, {**self.environment(rank, 2), "STOP": str(stop)}) for rank in range(2))
            second.await_line("trains 0")
            second.process.send_signal(signal.SIGSTOP)
            first.await_line("epoch changed .*members=1")
            second.process.send_signal(signal.SIGCONT)
            at = int(second.await_line(r"joined the job again at step (\d+)").group(1))
            second.await_line(f"trains {at}")
            stop.touch()
            for program, entered in ((first, 1), (second, 2)):
                self.assertEqual(program.wait(), 0, program.text())
                program.await_line(f"entered {entered} rate 0.005")
        self.assertGreaterEqual(at, 20)

    def test_a_drop_ends_what_cannot_join_again(self):
        source = self.LOOP.replace('syncline.torch.Optimizer(model, "adam", lr=0.01)',
                                   "syncline.torch.LocalSGD(model, torch.optim.SGD(model.parameters(), 0.01), sync_every=2)")
        source = source.replace("ConstantLR(optimizer,", "ConstantLR(torch.optim.SGD([torch.zeros(1)], 1.0),")
        with tempfile.TemporaryDirectory() as folder:
            stop = Path(folder) / "stop"
            first, second = (self.program(source, {**self.environment(rank, 2), "STOP": str(stop)}) for rank in range(2))
            second.await_line("trains 0")
            second.process.send_signal(signal.SIGSTOP)
            first.await_line("epoch changed .*members=1")
            second.process.send_signal(signal.SIGCONT)
            self.assertEqual(second.wait(), 138, second.text())
            self.assertRegex(second.text().splitlines()[-1], "Dropped: ")
            stop.touch()
            first.wait()

    def test_a_loop_that_makes_no_step_ends(self):
        optimizer = syncline.torch.Optimizer(torch.nn.Linear(6, 3), "sgd", lr=0.1, session=self.options())
        self.addCleanup(optimizer.session.close)
        state = syncline.torch.State(torch.nn.Linear(6, 3), optimizer)
        joined = []
        state.rejoin = lambda: joined.append(state.step)

        @syncline.torch.elastic.run
        def train(state, rank):
            self.assertLess(len(joined), 3)
            error = syncline.errors.error_of(10, "rank 2 hangs", 1)
            error.rank = rank
            raise error

        for rank, times in ((2, 0), (None, 1)):  # of another rank, in a collective operation; this worker
            with self.subTest(rank=rank), self.assertRaisesRegex(syncline.errors.Dropped, "rank 2 hangs"):
                train(state, rank)
            self.assertEqual(len(joined), times)


class Committed(support.ServersTest):
    def test_values_come_back(self):
        model = torch.nn.Linear(6, 3)
        optimizer = syncline.torch.Optimizer(model, "sgd", lr=0.1, session=self.options())
        self.addCleanup(optimizer.session.close)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        state = syncline.torch.State(model, optimizer, best=[3], scheduler=scheduler)
        optimizer.step()
        scheduler.step()
        state.best.append(2)
        state.commit()
        optimizer.step()
        scheduler.step()
        state.best.append(1)
        self.assertEqual((state.step, scheduler.last_epoch), (2, 2))
        state.restore()
        self.assertEqual((state.best, scheduler.last_epoch, state.step), ([3, 2], 1, 2))
        state.best.append(0)
        state.restore()
        self.assertEqual(state.best, [3, 2])
        with self.assertRaisesRegex(syncline.FailedPrecondition, "step= is a name that State itself uses"):
            syncline.torch.State(model, optimizer, step=1)

        @syncline.torch.elastic.run
        def train(state):
            raise syncline.Unavailable("the servers are gone")

        with self.assertRaisesRegex(syncline.Unavailable, "are gone"):
            train(state)


if __name__ == "__main__":
    unittest.main()
