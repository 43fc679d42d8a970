"""Tests of LocalSGD and DiLoCo in jobs whose rounds a quorum ends, and in modes that have no rounds."""
import itertools
import threading
import unittest
from unittest import mock

import support
from local_test import LocalTest, fresh
from torch_support import nn, torch

import syncline
from syncline.torch import DiLoCo, LocalSGD
from syncline.torch._local.decoupled import has_quorum

QUORUM = "bsp:quorum=1"


class Line(nn.Module):
    """One weight vector whose gradient is the same at every step, so that the movement of a round is known exactly."""

    def __init__(self, elements=4):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(elements))

    def forward(self, slope):
        return (self.weight * slope).sum()


def steps(model, optimizer, slope, count):
    for _ in range(count):
        optimizer.zero_grad()
        model(slope).backward()
        optimizer.step()


class Late(LocalTest):
    """Rank 0 ends rounds alone, as a quorum of one. Rank 1 pushes after rank 0 has gone on."""

    def local(self, rank, every=2, **more):
        model = Line(more.pop("elements", 4))
        inner = torch.optim.SGD(model.parameters(), 1.0)
        session = self.options(rank=rank, world_size=2, run_id=self.id(), mode=QUORUM)
        optimizer = LocalSGD(model, inner, every, session=session, **more)
        self.addCleanup(optimizer.session.close)
        return model, optimizer

    def both(self, **more):
        return self.workers(2, lambda rank, _: self.local(rank, **more))

    def test_rounds_are_kept_and_go_with_the_next_by_their_samples(self):
        (fast, first), (slow, second) = self.both()
        steps(fast, first, 1.0, 2)  # of samples 1 each; the weights are -2
        self.assertEqual(first.rounds, 1)
        second.samples = 3
        steps(slow, second, 4.0, 2)  # moved by 8, on 6 samples, too late
        self.assertEqual(slow.weight.tolist(), [-2.0] * 4)
        self.assertEqual(second.rounds, 1)
        second.samples = 1
        steps(slow, second, 1.0, 2)  # moved by 2, on 2 samples: with what is kept by 6.5, on 8
        self.assertEqual(slow.weight.tolist(), [-8.5] * 4)
        self.assertEqual(second._fragments[0].kept_samples, 0)

    def test_of_several_in_a_row_are_all_kept(self):
        (fast, first), (slow, second) = self.both()
        for _ in range(3):
            steps(fast, first, 1.0, 2)
            steps(slow, second, 4.0, 2)
        self.assertEqual(slow.weight.tolist(), [-6.0] * 4)
        self.assertEqual(second._fragments[0].kept_samples, 6)
        steps(slow, second, 1.0, 2)  # 3 x 8 and 2 of equal weight
        self.assertEqual(slow.weight.tolist(), [-6.0 - 26 / 4] * 4)

    def test_go_with_a_round_of_their_own_where_the_worker_leaves(self):
        (fast, first), (slow, second) = self.both()
        steps(fast, first, 1.0, 2)
        steps(slow, second, 4.0, 2)
        second.close()
        self.assertEqual(slow.weight.tolist(), [-10.0] * 4)
        steps(fast, first, 0.0, 2)  # late now, with nothing
        self.assertEqual(fast.weight.tolist(), [-10.0] * 4)

    def test_count_once_where_error_feedback_keeps_them_too(self):
        elements = 1024
        (fast, first), (slow, second) = self.both(elements=elements, push="int8:min_elements=0,vectors=1")
        steps(fast, first, 1.0, 2)
        steps(slow, second, 4.0, 2)
        steps(slow, second, 1.0, 2)  # the mean of 8 and 2; int8 has equal numbers exactly
        torch.testing.assert_close(slow.weight.detach(), torch.full((elements,), -7.0), rtol=1e-5, atol=1e-5)

    def test_that_cannot_be_handed_over_are_said(self):
        _, optimizer = self.both()[0]
        optimizer._fragments[0].kept_samples = 6
        with mock.patch.object(optimizer, "_end_round"), self.assertLogs("syncline", "WARNING") as logs:
            optimizer._hand_over()
        self.assertIn("leaves with 6 samples that no round has counted: 8 rounds", "\n".join(logs.output))

    def test_of_a_worker_that_trains_on_meanwhile(self):
        (fast, first), (slow, second) = self.both(every=4, overlap=1, alpha=0.0)
        steps(fast, first, 1.0, 5)
        steps(slow, second, 4.0, 5)  # moved by 16 when it pushed; then the weights, of the first one's round
        self.assertEqual(slow.weight.tolist(), [-4.0] * 4)
        self.assertEqual(second._fragments[0].kept_samples, 4)

    def test_lose_nothing_of_diloco_where_one_of_three_is_late_again_and_again(self):
        reached = [0]  # of the fast ones
        moved = threading.Condition()

        def await_the_fast_ones(round_number):
            with moved:
                self.assertTrue(moved.wait_for(lambda: reached[0] > round_number, support.PATIENCE))

        def work(rank, session):
            model = fresh()
            inner = torch.optim.SGD(model.parameters(), 0.05)
            optimizer = DiLoCo(model, inner, 3, session={**session, "mode": "bsp:quorum=2"})
            generator = torch.Generator().manual_seed(rank)
            kept = 0
            for number in itertools.count():
                if rank == 2 and number % 3 == 2 and optimizer.rounds < 10:
                    await_the_fast_ones(optimizer.rounds)
                inputs = torch.randn(16, 6, generator=generator)
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :3]))
                loss.backward()
                optimizer.step()
                kept = max(kept, optimizer._fragments[0].kept_samples)
                if rank == 0:
                    with moved:
                        reached[0] = optimizer.rounds
                        moved.notify_all()
                if optimizer.rounds >= 40:
                    break
            optimizer.close()
            return loss.item(), kept, optimizer._fragments[0].kept_samples

        for rank, (loss, kept, left) in enumerate(self.workers(3, work)):
            self.assertLess(loss, 0.4, rank)  # 0.7 at first
            self.assertEqual(left, 0, rank)
        self.assertGreaterEqual(kept, 3)


class Modes(LocalTest):
    def sessions(self, mode):
        def join(rank, session):
            session = syncline.Session(**{**session, "mode": mode, "optimizer": "sgd:lr=1", "push": "fp32", "publish": "fp32"})
            self.addCleanup(session.close)
            weights = torch.zeros(4)
            tensor = session.declare("w", weights)
            session.start()
            return session, tensor, weights

        return self.workers(2, join)

    def test_asp_makes_an_outer_step_of_each_push(self):  # why it is refused
        (one, w1, here), (two, w2, there) = self.sessions("asp")
        one.push_pull(w1, torch.ones(4))
        one.wait(w1)
        two.push_pull(w2, torch.ones(4))
        two.wait(w2)
        self.assertEqual(there.tolist(), [-2.0] * 4)  # where the mean of two that have moved by one is one

    def test_asp_makes_parts_of_an_outer_step_where_the_momentum_is_delayed(self):
        def join(rank, session):
            model = Line()
            optimizer = DiLoCo(model, torch.optim.SGD(model.parameters(), 1.0), 2, lr=1.0, momentum=0.5, momentum_every=2, mode="asp",
                               session=session)
            self.addCleanup(optimizer.session.close)
            return model, optimizer

        (one, first), (two, second) = self.workers(2, join)
        steps(one, first, 1.0, 2)  # moved by 2: half of that
        self.assertEqual(one.weight.tolist(), [-1.0] * 4)
        steps(two, second, 2.0, 2)  # moved by 4: half of that, and half of the momentum, which is 3
        self.assertEqual(two.weight.tolist(), [-4.5] * 4)
        steps(two, second, 0.0, 2)  # nobody waits for the first one
        self.assertEqual(two.weight.tolist(), [-4.5] * 4)
        self.assertEqual((first.rounds, second.rounds), (1, 2))
        steps(two, second, 0.0, 2)  # the momentum moves again: 1.5, and half of it
        self.assertEqual(two.weight.tolist(), [-5.25] * 4)
        second.close()
        steps(one, first, 0.0, 2)
        self.assertEqual(one.weight.tolist(), [-5.25] * 4)

    def test_ssp_gives_weights_without_the_workers_own_push(self):  # why it is refused
        (one, w1, here), _ = self.sessions("ssp:staleness=1")
        one.push_pull(w1, torch.ones(4))
        one.wait(w1)
        self.assertEqual(here.tolist(), [0.0] * 4)

    def test_without_rounds_are_refused_with_the_reason(self):
        model = fresh()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for mode, more, said in (("asp", {}, "mode='asp' makes each worker's push an outer step of its own.*bsp:quorum=K.*momentum_every=W"),
                                 ("ssp:staleness=2", {}, "mode='ssp:staleness=2' lets a worker go on with weights that lack its own"),
                                 (QUORUM, {"fragments": 2}, "fragments=2 with mode='bsp:quorum=1'.*leave fragments at 1"),
                                 ("bsp:quorum=+1", {"fragments": 2}, "fragments=2 with mode='bsp:quorum=1': a quorum counts"),
                                 ("bsp:whole=1", {"fragments": 2}, "fragments=2 with mode='bsp:whole=1': whole=1 is a quorum of all")):
            with self.subTest(mode), self.assertRaisesRegex(syncline.InvalidArgument, said):
                LocalSGD(model, inner, 4, session=self.options(mode=mode), **more)
        with self.assertRaisesRegex(syncline.InvalidArgument, "fragments=4 with mode='bsp:whole=1'"):
            LocalSGD.preset("streaming-diloco", model, inner, session=self.options(mode="bsp:whole=1"))

    def test_are_read_as_the_library_reads_them(self):
        for mode, has_one in (("bsp", False), ("bsp:whole=0", False), ("bsp:whole=1", True), ("bsp:quorum=+1", True),
                              ("bsp:grace_ms=5,quorum=2e0", True)):
            with self.subTest(mode):
                self.assertEqual(has_quorum(mode, 1), has_one)
        with self.assertRaisesRegex(syncline.InvalidArgument, "did you mean 'bsp'"):
            has_quorum("bps:quorum 1", 1)

    def test_without_rounds_are_refused_to_presets_of_sessions(self):
        for order in (("preset", "mode"), ("mode", "preset")):
            settings = {"preset": "diloco", "mode": "asp"}
            with self.subTest(order), self.assertRaisesRegex(syncline.InvalidArgument, "preset=diloco with mode=asp.*W times as far"):
                syncline.Session(**self.options(), **{key: settings[key] for key in order})

    def test_of_the_environment_count_too(self):
        source = """
            import torch, syncline.torch
            model = torch.nn.Linear(2, 1)
            syncline.torch.LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), 4)
            """
        program = self.program(source, {"SYNCLINE_MODE": "asp:age_power=1"})
        self.assertNotEqual(program.wait(), 0, program.text())
        program.await_line("mode='asp:age_power=1' makes each worker's push")
        source = """
            import torch, syncline.torch
            model = torch.nn.Linear(2, 1)
            syncline.torch.LocalSGD.preset("streaming-diloco", model, torch.optim.SGD(model.parameters(), 0.1))
            """
        program = self.program(source, {"SYNCLINE_MODE": "bsp:whole=1"})
        self.assertNotEqual(program.wait(), 0, program.text())
        program.await_line("fragments=4 with mode='bsp:whole=1'")


if __name__ == "__main__":
    unittest.main()
