"""Shared parts of the tests with torch: a model, its batches, and an optimizer in the test's job."""
import unittest

import support

try:
    import torch
    from torch import nn
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

from syncline.torch import Optimizer

EXACT = {"push": "fp32", "publish": "fp32"}
torch.set_num_threads(1)


def make_model(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


def batches(count, seed=2):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        inputs = torch.randn(32, 6, generator=generator)
        yield inputs, torch.sin(inputs[:, :3])


def train(model, optimizer, count, loss_function=nn.functional.mse_loss):
    for inputs, labels in batches(count):
        optimizer.zero_grad(set_to_none=True)
        loss_function(model(inputs), labels).backward()
        optimizer.step()


def meeting_place(test):
    """Returns the environment by which ranks meet, as with torchrun: with a store in this process, which holds its port."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    test.addCleanup(lambda: store)  # which keeps it until then
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0"}


class OptimizerTest(support.ServersTest):
    def optimizer(self, model, name="sgd", lr=0.1, job="", **more):
        optimizer = Optimizer(model, name, lr, session=self.options(job=f"{self.id()}{job}"), **{**EXACT, **more})
        self.addCleanup(optimizer.session.close)
        return optimizer

    def assert_same(self, model, expected, tolerance=2e-5):
        for (name, here), there in zip(model.named_parameters(), expected.parameters()):
            torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance, msg=lambda said: f"{name}: {said}")
