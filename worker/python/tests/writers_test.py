"""Tests the lines of docs/pytorch.md that pass statistics to TensorBoard and Weights & Biases, with stand-ins for both."""
import re
import sys
import types
import unittest
from unittest import mock

import support
from torch_support import OptimizerTest, batches, make_model, nn

import syncline

PAGE = support.HERE.parents[2] / "docs/pytorch.md"
FIGURES = {"loss", "syncline/members", "syncline/pushed_MiB", "syncline/pulled_MiB",
           *(f"syncline/seconds/{phase}" for phase in ("compute", "encode", "push", "others", "publish", "decode"))}


def block(title):
    """Returns the page's Python block that begins with this comment."""
    return re.search(rf"```python\n(# {title}\n.*?)```", PAGE.read_text(), re.DOTALL).group(1)


class Writers(OptimizerTest):
    def setUp(self):
        self.logged = []  # (name, value, step)

    def log_training(self, title, modules):
        namespace = {"syncline": syncline}
        with mock.patch.dict(sys.modules, modules):
            exec(block(title), namespace)
        model = make_model()
        optimizer = self.optimizer(model)
        for step, (inputs, labels) in enumerate(batches(3)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            namespace["log"](step, loss.item())
        for step in range(3):
            self.assertEqual({name for name, _, at in self.logged if at == step}, FIGURES)
        values = {(name, at): value for name, value, at in self.logged}
        self.assertEqual(len(values), len(self.logged), "a figure was written twice")
        for value in values.values():
            self.assertIsInstance(value, (int, float))
        self.assertEqual(values["syncline/members", 2], 1)
        self.assertGreater(values["loss", 2], 0)
        pushed = [values["syncline/pushed_MiB", step] for step in range(3)]
        self.assertEqual(pushed, sorted(pushed))
        self.assertGreater(pushed[2], 0)
        self.assertGreater(values["syncline/seconds/compute", 2], 0)

    def test_tensorboard_gets_every_figure_of_each_step(self):
        logged = self.logged

        class SummaryWriter:
            def add_scalar(self, tag, scalar_value, global_step=None):
                logged.append((tag, scalar_value, global_step))

        stand_in = types.ModuleType("torch.utils.tensorboard")
        stand_in.SummaryWriter = SummaryWriter
        self.log_training("TensorBoard", {"torch.utils.tensorboard": stand_in})

    def test_weights_and_biases_gets_every_figure_of_each_step(self):
        run = types.SimpleNamespace(
            log=lambda data, step: self.logged.extend((name, value, step) for name, value in data.items()))
        stand_in = types.ModuleType("wandb")
        stand_in.init = lambda project: run
        self.log_training("Weights & Biases", {"wandb": stand_in})


if __name__ == "__main__":
    unittest.main()
