"""Tests with models on a real GPU. They are skipped without one; staging_test.py and on_device_test.py use a stand-in.

    SYNCLINE_BUILD=build/release python3 worker/python/tests/cuda_test.py -v

Each test runs twice: with tensors that are copied to host memory and encoded there (the classes named Staged…), and with codecs that
run on the GPU (OnDevice…, which are skipped, with the reason, without the CUDA module). Each prints which of the two it used.
"""
import contextlib
import os
import unittest
import unittest.mock

import average_test
import gpu_cases
from torch_support import OptimizerTest, batches, make_model, nn, torch

from syncline import _staging
from syncline._library import library
from syncline.torch import DiLoCo, wrap

if not torch.cuda.is_available():
    raise unittest.SkipTest("torch finds no GPU")

torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False  # results are compared


def why_not_on_device():
    """Returns why the session's codecs cannot run on torch's first GPU; "": they can."""
    if _staging.device_of(torch.zeros(1, device="cuda"), "a tensor").number:
        return ""
    library().syncline_device_check(1)
    return library().syncline_last_error().decode() or "this is not a CUDA device"


class Staged:
    """Tests whose tensors are copied to host memory."""

    codecs = "0"

    def setUp(self):
        reason = why_not_on_device() if self.codecs == "1" else ""
        if reason:
            self.skipTest(f"the session's codecs do not run on this GPU: {reason}")
        patch = unittest.mock.patch.dict(os.environ, SYNCLINE_GPU_CODECS=self.codecs)
        patch.start()
        self.addCleanup(patch.stop)
        super().setUp()

    def check_way(self, session):
        """Checks that the session uses its tensors in the way that this class tests, and says so."""
        known, declared = session.device_codecs, len(session._tensors)
        print(f"\n{self.id()}: SYNCLINE_GPU_CODECS={self.codecs}, {known} of {declared} tensors on the GPU", flush=True)
        self.assertEqual(known, declared if self.codecs == "1" else 0)


class OnDevice(Staged):
    """Tests whose tensors are encoded and decoded on the GPU."""

    codecs = "1"


def train(model, optimizer, count):
    for inputs, labels in batches(count):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(inputs.cuda()), labels.cuda()).backward()
        optimizer.step()


class Models:
    def optimizer(self, model, *arguments, **more):
        optimizer = super().optimizer(model, *arguments, **more)
        self.check_way(optimizer.session)
        return optimizer

    def test_steps_are_those_of_torchs_optimizer(self):
        model, expected = make_model().cuda(), make_model().cuda()
        with self.optimizer(model, "adamw", lr=0.01) as optimizer:
            train(model, optimizer, 100)
        train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 100)
        self.assert_same(model, expected)

    def test_of_many_layers_whose_gradients_take_a_while(self):
        def make():
            torch.manual_seed(5)
            return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24)), nn.Linear(1024, 3)).cuda()

        def run(model, optimizer):
            generator = torch.Generator("cuda").manual_seed(6)
            for _ in range(20):
                optimizer.zero_grad(set_to_none=True)
                model(torch.randn(512, 1024, device="cuda", generator=generator)).square().mean().backward()
                optimizer.step()

        model, expected = make(), make()
        with self.optimizer(model, "sgd", lr=0.01) as optimizer:
            run(model, optimizer)
        run(expected, torch.optim.SGD(expected.parameters(), lr=0.01))
        self.assert_same(model, expected)

    def test_in_bfloat16_and_channels_last(self):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda().bfloat16().to(memory_format=torch.channels_last)
        with self.optimizer(model, "sgd", lr=0.1, push="bf16", publish="bf16") as optimizer:
            losses = []
            images = torch.randn(16, 3, 16, 16, device="cuda").bfloat16()
            for _ in range(30):
                optimizer.zero_grad()
                loss = model(images).float().square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)

    def test_averages_for_torchs_optimizers(self):
        model, expected = make_model().cuda(), make_model().cuda()
        inner = torch.optim.Adam(model.parameters(), 0.01)
        with wrap(inner, model, session=self.options()) as optimizer:
            self.check_way(optimizer.session)
            train(model, optimizer, 30)
        train(expected, torch.optim.Adam(expected.parameters(), 0.01), 30)
        self.assert_same(model, expected, 1e-5)

    def test_local_rounds(self):  # of which the servers hold copies in host memory, either way
        model = make_model().cuda()
        with DiLoCo(model, torch.optim.SGD(model.parameters(), 0.05), 5, session=self.options()) as optimizer:
            train(model, optimizer, 20)
            self.assertEqual(optimizer.rounds, 4)


class TwoRanks:
    """Both ranks share one GPU, which gloo allows."""

    def run_ranks(self, make, job, steps=30):
        on_gpu = average_test.TRAIN.replace("    {make}", "    model = model.cuda()\n    {make}").replace("network(rows)", "network(rows.cuda())")
        on_gpu = on_gpu.replace("torch.sin(rows[:, :3])", "torch.sin(rows[:, :3]).cuda()").replace(".flatten()", ".flatten().cpu()")
        print(f"\n{self.id()}: SYNCLINE_GPU_CODECS={self.codecs}", flush=True)
        with unittest.mock.patch.object(average_test, "TRAIN", on_gpu):
            return super().run_ranks(make, job, steps)


class StagedModels(Staged, Models, OptimizerTest):
    pass


class OnDeviceModels(OnDevice, Models, OptimizerTest):
    pass


class StagedTwoRanks(Staged, TwoRanks, average_test.TwoRanks):
    pass


class OnDeviceTwoRanks(OnDevice, TwoRanks, average_test.TwoRanks):
    pass


class OnDeviceCases(OnDevice, gpu_cases.Cases):
    """The cases for codecs on a GPU, some of which compare both ways themselves."""

    place = "cuda"

    def on_host(self):
        return contextlib.nullcontext()


def load_tests(loader, standard, pattern):
    """Loads only this file's own tests, without those that it imports."""
    return unittest.TestSuite(loader.loadTestsFromTestCase(one) for one in (
        StagedModels, OnDeviceModels, StagedTwoRanks, OnDeviceTwoRanks, OnDeviceCases))


if __name__ == "__main__":
    unittest.main()
