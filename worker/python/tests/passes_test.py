"""Tests when the begin and the end of a model's forward and backward are reported."""
import copy
import dataclasses
import unittest

import torch_support  # noqa: F401  (skips where there is no torch)
import torch
from torch import nn

from syncline.torch._optimizer.passes import BACKWARD, FORWARD, Passes


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    hidden: tuple


class Model(nn.Module):
    def __init__(self, told, shape=lambda y: y):
        super().__init__()
        self.layer, self.told, self.shape = nn.Linear(2, 2), told, shape

    def forward(self, x):
        self.told.append("computes")
        return self.shape(self.layer(x))


class PassesTest(unittest.TestCase):
    def setUp(self):
        self.told, self.is_open = [], True

    def begin(self, which):
        self.told.append({FORWARD: "forward", BACKWARD: "backward"}[which])
        return self.is_open

    def watched(self, shape=lambda y: y):
        model = Model(self.told, shape)
        self.hooks = Passes(self.begin, lambda: self.told.append("end")).watch(model)
        model.layer.weight.register_hook(lambda _: self.told.append("gradient"))
        return model

    def test_forward_is_the_call_and_backward_lasts_until_the_last_gradient(self):
        model = self.watched()
        whole = ["forward", "computes", "end", "backward", "gradient", "end"]
        for steps in (1, 2):
            model(torch.ones(1, 2)).sum().backward()
            self.assertEqual(self.told, whole * steps)

    def test_of_all_that_models_return(self):
        for shape, of in ((lambda y: (1, y), lambda out: out[1]),
                          (lambda y: {"loss": y.sum(), "logits": y}, lambda out: out["loss"] + out["logits"].sum()),
                          (lambda y: Output(y, (y * 2,)), lambda out: out.hidden[0]),
                          (lambda y: [[y]], lambda out: out[0][0])):  # fmt: skip
            self.told.clear()
            of(self.watched(shape)(torch.ones(1, 2))).sum().backward()
            self.assertEqual(self.told, ["forward", "computes", "end", "backward", "gradient", "end"])

    def test_while_no_trace_is_open_only_forward_is_asked_for(self):
        self.is_open = False
        output = self.watched()(torch.ones(1, 2))
        output.sum().backward()
        self.assertEqual(self.told, ["forward", "computes", "gradient"])
        self.assertIsNone(output._backward_hooks)

    def test_a_backward_that_breaks_off_has_no_end_and_the_next_step_is_whole(self):
        model = self.watched()

        def fail(_):
            raise RuntimeError("out of memory")

        broken = model.layer.bias.register_hook(fail)
        with self.assertRaisesRegex(RuntimeError, "out of memory"):
            model(torch.ones(1, 2)).sum().backward()
        broken.remove()
        self.assertEqual(self.told[:4], ["forward", "computes", "end", "backward"])
        self.assertEqual(self.told.count("end"), 1)
        self.told.clear()
        model(torch.ones(1, 2)).sum().backward()
        self.assertEqual(self.told, ["forward", "computes", "end", "backward", "gradient", "end"])

    def test_without_gradients_there_is_no_backward(self):
        with torch.no_grad():
            self.watched()(torch.ones(1, 2))
        self.assertEqual(self.told, ["forward", "computes", "end"])

    def test_a_parameter_that_is_returned_keeps_no_hook(self):
        class Returns(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))

            def forward(self):
                return self.weight

        model = Returns()
        Passes(self.begin, lambda: None).watch(model)
        model()
        self.assertFalse(model.weight._backward_hooks)

    def test_copies_of_the_model_and_removed_hooks_say_nothing(self):
        model = self.watched()
        copy.deepcopy(model)(torch.ones(1, 2))
        self.assertEqual(self.told, [])
        for hook in self.hooks:
            hook.remove()
        model(torch.ones(1, 2)).sum().backward()
        self.assertEqual(self.told, ["computes", "gradient"])


if __name__ == "__main__":
    unittest.main()
