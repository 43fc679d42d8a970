"""Tests of FP16: torch's GradScaler with each optimizer of the package, and FP16 models."""
import unittest

from torch_support import EXACT, OptimizerTest, batches, make_model, nn, torch

import syncline
from syncline.torch import DiLoCo, wrap

if not hasattr(getattr(torch, "amp", None), "GradScaler"):
    raise unittest.SkipTest("ModuleSkipped: before torch 2.3 GradScaler and FP16 arithmetic are for CUDA alone")


def half_model(seed=1):
    return make_model(seed).half()


class HalfTest(OptimizerTest):
    def train_half(self, model, optimizer, scale=lambda loss: loss):
        losses = []
        for inputs, labels in batches(40):
            optimizer.zero_grad()
            losses.append(nn.functional.mse_loss(model(inputs.half()).float(), labels))
            scale(losses[-1]).backward()
            optimizer.step()
        return [loss.item() for loss in losses]


class Scaler(HalfTest):
    def scaler(self):
        return torch.amp.GradScaler("cpu", init_scale=64.0)

    def test_scales_for_wrap_once_the_means_are_there(self):
        model, expected = make_model(), make_model()
        plain = torch.optim.SGD(expected.parameters(), 0.1)
        wrapped = wrap(torch.optim.SGD(model.parameters(), 0.1), model, session=self.options())
        self.addCleanup(wrapped.session.close)
        for owner, network in ((wrapped, model), (plain, expected)):
            scaler = self.scaler()
            for number, (inputs, labels) in enumerate(batches(7)):
                owner.zero_grad()
                loss = nn.functional.mse_loss(network(inputs), labels)
                scaler.scale(loss * (float("inf") if number == 4 else 1)).backward()  # that step is left out
                if owner is wrapped:
                    owner.synchronize()
                scaler.unscale_(owner)
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
                scaler.step(owner)
                scaler.update()
            self.assertEqual(scaler.get_scale(), 32.0)
        self.assert_same(model, expected)

    def test_that_unscales_before_the_means_are_there_is_told_what_to_do(self):
        model = make_model()
        wrapped = wrap(torch.optim.SGD(model.parameters(), 0.1), model, session=self.options())
        self.addCleanup(wrapped.session.close)
        scaler = self.scaler()
        scaler.scale(model(torch.ones(1, 6)).sum()).backward()
        with self.assertRaisesRegex(syncline.FailedPrecondition, r"synchronize\(\) first, then clip or unscale"):
            scaler.step(wrapped)

    def test_is_refused_by_the_optimizer_with_what_takes_its_place(self):
        for number, act in enumerate((lambda scaler, optimizer: scaler.step(optimizer), lambda scaler, optimizer: scaler.unscale_(optimizer))):
            model = make_model()
            optimizer = self.optimizer(model, job=number)
            scaler = self.scaler()
            scaler.scale(model(torch.ones(1, 6)).sum()).backward()
            with self.assertRaisesRegex(syncline.FailedPrecondition, 'GradScaler.*loss_scaling="torch"'):
                act(scaler, optimizer)

    def test_of_the_servers_scales_a_model_in_fp16(self):
        model = half_model()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with self.optimizer(model, "adamw", 0.01, loss_scaling="torch") as optimizer:
            losses = self.train_half(model, optimizer, optimizer.scale)
        self.assertLess(losses[-1], losses[0] / 2)
        self.assertTrue(all(parameter.dtype == torch.float16 and torch.isfinite(parameter).all() for parameter in model.parameters()))
        self.assertTrue(all((now != then).any() for now, then in zip(model.parameters(), before)))


class Half(HalfTest):
    """Without a scale."""

    def test_steps_are_those_of_fp32_weights_rounded(self):
        model = half_model()
        before = model[0].weight.detach().float().clone()
        with self.optimizer(model, "sgd", 0.5) as optimizer:
            inputs, labels = next(batches(1))
            nn.functional.mse_loss(model(inputs.half()).float(), labels).backward()
            expected = before - 0.5 * model[0].weight.grad.float()
            optimizer.step()
        torch.testing.assert_close(model[0].weight.detach(), expected.half())

    def test_small_steps_add_up_on_the_servers(self):
        model = nn.Linear(1, 1, bias=False).half()
        nn.init.ones_(model.weight)
        with self.optimizer(model, "sgd", 1.0) as optimizer:
            for _ in range(64):
                (model(torch.ones(1, 1).half()).float() / 8192).sum().backward()  # a quarter of FP16's step below 1
                optimizer.step()
        self.assertEqual(model.weight.item(), 1 - 64 / 8192)

    def test_rounds_of_local_steps_and_means(self):
        for name, make in (("local", lambda m, s: DiLoCo(m, torch.optim.SGD(m.parameters(), 0.05), 4, session=s)),
                           ("wrap", lambda m, s: wrap(torch.optim.SGD(m.parameters(), 0.05), m, session=s))):
            with self.subTest(name):
                model = half_model()
                optimizer = make(model, self.options(job=f"{self.id()}{name}"))
                self.addCleanup(optimizer.session.close)
                losses = self.train_half(model, optimizer)
                self.assertLess(losses[-1], losses[0])
                self.assertTrue(all(torch.isfinite(parameter).all() for parameter in model.parameters()))


if __name__ == "__main__":
    unittest.main()
