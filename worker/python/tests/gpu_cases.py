"""Cases for a GPU that runs the session's codecs: on_device_test.py runs them on a stand-in, cuda_test.py on a real one."""
import os
import threading
import unittest.mock

import support
from torch_support import nn, torch

import syncline
from syncline.torch import Optimizer


class Cases(support.ServersTest):
    place = "cpu"  # where torch has the GPU's tensors

    def way(self, value):
        """Returns a context in which SYNCLINE_GPU_CODECS is `value`."""
        return unittest.mock.patch.dict(os.environ, SYNCLINE_GPU_CODECS=value)

    def on_host(self):
        """Returns a context in which torch.zeros() is in host memory, even if the place is "cpu"."""
        raise NotImplementedError

    def network(self, dtype):
        torch.manual_seed(8)
        # The first weights are a tile of 65,536 and part of another.
        return nn.Sequential(nn.Linear(64, 1030), nn.Tanh(), nn.Linear(1030, 4)).to(self.place, dtype)

    def losses(self, way, dtype, steps=8, **codecs):
        """Trains, and returns the losses. The session's codecs run on the GPU with way "1", and on the CPU with "0"."""
        model = self.network(dtype)
        generator = torch.Generator().manual_seed(9)
        losses = []
        # It has its own servers, because random rounding depends on the name of the job, which must be the same for both ways.
        with self.way(way), Optimizer(model, "sgd", 0.2, session={"job": self.id()}, **codecs) as optimizer:
            known = optimizer.session.device_codecs
            print(f"\n{self.id()}: SYNCLINE_GPU_CODECS={way}, {known} tensors on the GPU, {dtype}, {codecs}", flush=True)
            self.assertEqual(known, 4 if way == "1" else 0)
            for _ in range(steps):
                rows = torch.randn(32, 64, generator=generator).to(self.place, dtype)
                optimizer.zero_grad()
                loss = (model(rows) - rows[:, :4]).float().square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses

    def check_both_ways(self, dtype=torch.float32, **codecs):
        """Checks that the losses are the same with codecs of the GPU and of the CPU, whose bits are the same, and that they fall."""
        losses = self.losses("1", dtype, **codecs)
        self.assertEqual(losses, self.losses("0", dtype, **codecs))
        self.assertLess(losses[-1], losses[0])

    def test_int8_trains_as_on_the_cpu(self):
        self.check_both_ways(push="int8", publish="int8")

    def test_int8_rounded_at_random_trains_as_on_the_cpu(self):
        self.check_both_ways(push="int8-stochastic", publish="bf16")

    def test_one_bit_trains_as_on_the_cpu(self):
        self.check_both_ways(push="onebit", publish="onebit")

    def test_top_k_trains_as_on_the_cpu(self):
        self.check_both_ways(push="topk:ratio=0.01", publish="topk:ratio=0.05,values=bf16")

    def test_dense_values_train_as_on_the_cpu(self):
        self.check_both_ways(push="bf16", publish="fp32")

    def test_what_only_the_cpu_encodes_trains_as_there(self):
        self.check_both_ways(push="int4", publish="int4")

    def test_bfloat16_weights_and_gradients_train_as_on_the_cpu(self):
        self.check_both_ways(torch.bfloat16, push="int8", publish="bf16")

    def test_weights_hold_the_jobs_values_after_start(self):
        first, second = (syncline.Session(**self.options(rank=rank, world_size=2)) for rank in range(2))
        self.addCleanup(first.close)
        self.addCleanup(second.close)
        with self.on_host():
            first.declare("w", torch.arange(100.0))
        ours = torch.zeros(100, device=self.place)
        second.declare("w", ours)
        self.assertEqual((first.device_codecs, second.device_codecs), (0, 1))
        starts = [threading.Thread(target=session.start, args=(support.PATIENCE,)) for session in (first, second)]
        for start in starts:
            start.start()
        for start in starts:
            start.join()
        self.assertEqual(ours.tolist(), list(range(100)))

    def test_steps_with_gradients_in_host_memory(self):
        session = syncline.Session(**self.options(optimizer="sgd:lr=1", push="fp32", publish="fp32"))
        self.addCleanup(session.close)
        weights = torch.zeros(8, device=self.place)
        tensor = session.declare("w", weights)
        session.start()
        for _ in range(2):
            session.push_pull(tensor, torch.ones(8).numpy())
            session.wait(tensor)
        self.assertEqual(weights.tolist(), [-2.0] * 8)

    def test_steps_with_gradients_that_are_views(self):
        session = syncline.Session(**self.options(optimizer="sgd:lr=1", push="fp32", publish="fp32"))
        self.addCleanup(session.close)
        weights = torch.zeros(3, 5, device=self.place)
        tensor = session.declare("w", weights)
        session.start()
        values = torch.arange(31.0, device=self.place)
        session.push_pull(tensor, values[1:16].view(3, 5))  # not aligned to 16 bytes
        session.wait(tensor)
        session.push_pull(tensor, values[16:].view(5, 3).t())
        session.wait(tensor)
        expected = -(values[1:16].view(3, 5) + values[16:].view(5, 3).t())
        self.assertTrue(torch.equal(weights, expected), weights)
