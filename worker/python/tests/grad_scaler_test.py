"""syncline.torch.GradScaler: torch's calls, of a scale that the servers hold."""
import collections
import textwrap
import unittest

from torch_support import OptimizerTest, batches, make_model, nn, torch

import syncline
from syncline.torch import GradScaler

# A rank whose gradient is not finite in step 3, if it is rank 1. It says its scales, and what its weights are at the end.
RANK = """
    import os, torch
    import syncline.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = int(os.environ["RANK"])
    model = torch.nn.Linear(4, 2)
    optimizer = syncline.torch.Optimizer(model, "adamw", 0.01, push="fp32", publish="fp32", loss_scaling="torch")
    scaler = syncline.torch.GradScaler(optimizer)
    scales = []
    for number in range(6):
        optimizer.zero_grad()
        loss = model(torch.ones(3, 4)).square().mean() * (float("inf") if number == 3 and rank == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    optimizer.synchronize()
    print("scales", scales, "weights", [round(value, 5) for value in model.weight.detach().flatten().tolist()], flush=True)
    optimizer.close()
"""


class Scaler(OptimizerTest):
    failure_timeout = "30s"  # nobody dies here

    def train(self, model, optimizer, scaler):
        scales = []
        for number, (inputs, labels) in enumerate(batches(8)):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            scaler.scale(loss * (float("inf") if number == 4 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    def test_steps_are_torchs_without_the_one_that_is_not_finite(self):
        model, expected = make_model(), make_model()
        with self.optimizer(model, "adamw", 0.01, loss_scaling="torch") as optimizer:
            scales = self.train(model, optimizer, GradScaler(optimizer))
        self.assertEqual(scales[3:6], [scales[0], scales[0] / 2, scales[0] / 2])
        plain = torch.optim.AdamW(expected.parameters(), 0.01)
        for number, (inputs, labels) in enumerate(batches(8)):
            plain.zero_grad()
            nn.functional.mse_loss(expected(inputs), labels).backward()
            if number != 4:
                plain.step()
        self.assert_same(model, expected)

    def test_one_ranks_step_that_is_not_finite_is_left_out_on_all(self):
        ranks = [self.program(textwrap.dedent(RANK), self.environment(rank, 2)) for rank in range(2)]
        said = [rank.await_line("^scales.*").group() for rank in ranks]
        self.assertEqual(said[0], said[1])
        scales = [float(value) for value in said[0].partition("[")[2].partition("]")[0].split(",")]
        self.assertEqual(scales, [scales[0]] * 3 + [scales[0] / 2] * 3)
        self.assertNotIn("nan", said[0])
        self.assertNotIn("inf", said[0])

    def test_it_passes_everything_through_where_it_is_not_enabled(self):
        model, expected = make_model(), make_model()
        with self.optimizer(model) as optimizer:
            scaler = GradScaler(optimizer, enabled=False)
            self.assertEqual((scaler.is_enabled(), scaler.get_scale(), scaler.state_dict()), (False, 1.0, {}))
            inputs, labels = next(batches(1))
            pair = collections.namedtuple("Pair", "first second")(torch.ones(1), torch.ones(1))
            self.assertEqual(scaler.scale(pair), pair)
            self.assertEqual(list(scaler.scale(iter(pair))), list(pair))
            losses = scaler.scale([nn.functional.mse_loss(model(inputs), labels)])
            losses[0].backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
        nn.functional.mse_loss(expected(inputs), labels).backward()
        torch.optim.SGD(expected.parameters(), 0.1).step()
        self.assert_same(model, expected)

    def test_what_it_cannot_do_is_refused_with_what_to_do(self):
        plain = self.optimizer(make_model(), job="plain")
        scaled = self.optimizer(make_model(), loss_scaling="torch", job="scaled")
        scaler = GradScaler(scaled)
        for words, act in (("torch's own GradScaler with wrap", lambda: GradScaler(torch.optim.SGD(make_model().parameters(), 0.1))),
                           ('make the Optimizer with loss_scaling="torch"', lambda: GradScaler(plain)),
                           ("without loss_scaling=", lambda: GradScaler(scaled, enabled=False)),
                           ("another Optimizer's", lambda: scaler.step(plain)), ("not float", lambda: scaler.scale(1.0)),
                           ("the servers hold the scale", lambda: scaler.update(2.0))):
            with self.subTest(words), self.assertRaisesRegex(syncline.InvalidArgument, words):
                act()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "leave unscale_.* out.*clip_global_norm=1"):
            scaler.unscale_(scaled)
        scaler.load_state_dict(scaler.state_dict())
        self.assertEqual(scaler.state_dict(), {"scale": scaled.session.loss_scale})


if __name__ == "__main__":
    unittest.main()
