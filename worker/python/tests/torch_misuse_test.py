"""Tests that syncline.torch.Optimizer refuses what it cannot do as torch's own optimizers do."""
import contextlib
import copy
import pickle
import unittest

from torch_support import Optimizer, OptimizerTest, batches, make_model, nn, torch

import syncline


class Misuse(OptimizerTest):
    """It refuses what would silently train something else; the error has the parameter's path in the model."""

    def step(self, model, optimizer):
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()

    def refused(self, pattern, kind=syncline.Error):
        return self.assertRaisesRegex(kind, pattern)

    def test_of_parameters(self):
        model = make_model()
        with self.refused("0.weight: is given twice in params", ValueError):
            self.optimizer(model, params=[{"params": model.parameters()}, {"params": [model[0].weight]}])
        with self.refused(r"shape \[7\] that is not a parameter of the model"):
            self.optimizer(model, params=[nn.Parameter(torch.zeros(7))])
        with self.refused("give the Optimizer an lr"):
            self.optimizer(model, lr=None, params=[{"params": model.parameters(), "lr": 1.0}])
        with self.refused("0.weight: a learning rate of 0 times the job's; freeze it instead"):
            self.optimizer(model, params=[{"params": model.parameters(), "lr": 0.0}])
        with self.refused("momentum='high'"):
            self.optimizer(model, momentum="high")
        with self.refused(r"option goals='samples_per_s>=2': .*; give an option of the session in session=\{'goals': 'samples_per_s>=2'\}"):
            self.optimizer(model, goals="samples_per_s>=2")
        with self.refused("no parameter to train"):
            self.optimizer(nn.ReLU())
        with self.refused("momentun.*momentum"):
            self.optimizer(model, momentun=0.9)
        with self.refused("2.bias: is on meta"):
            model[2].bias = nn.Parameter(torch.zeros(3, device="meta"))
            self.optimizer(model)

    def test_of_parameters_that_share_memory(self):
        base = torch.zeros(12, 3)
        for first, second, shares in ((base[:8], base[4:], True), (base[:8], base[7:8], True), (base, base[5], True), (base[:8], base[8:], False)):
            model = nn.Module()
            model.second, model.empty, model.first = nn.Parameter(second), nn.Parameter(base[5:5]), nn.Parameter(first)
            frozen = [(), (model.first,)][len(second) == 3]  # which the session writes, too
            for parameter in frozen:
                parameter.requires_grad_(False)
            with self.refused("second: shares memory with first", syncline.InvalidArgument) if shares else contextlib.nullcontext():
                self.optimizer(model, job=f"{len(first)}{len(second)}")

    def test_of_gradients(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.words = nn.Embedding(10, 3, sparse=True)

            def forward(self, inputs):
                return self.words(inputs.long().clamp(0, 9)).mean(1)

        model = Net()
        optimizer = self.optimizer(model, job="sparse")
        with self.refused("words.weight: its gradient is sparse"):
            self.step(model, optimizer)

        model = make_model()
        optimizer = self.optimizer(model, job="clipped")
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        gradient = model[0].weight.grad
        self.assertGreater(gradient.norm(), 0)
        doubled = gradient.data.clone().mul_(2)  # of its own memory
        self.assertIs(type(doubled), torch.Tensor)
        for change in (lambda: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
                       lambda: nn.utils.clip_grad_value_(model.parameters(), 1e-3),
                       lambda: gradient.data.view(-1)[:3].zero_(), lambda: gradient.__setitem__(0, 1),
                       lambda: gradient.__imul__(2)):
            with self.refused("0.weight: its gradient was changed.*clip_global_norm"):
                change()
        torch.mul(gradient, 2, out=gradient)
        with self.refused("0.weight: its gradient was changed"):
            optimizer.step()

        model = make_model()
        optimizer = self.optimizer(model, job="twice")
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward(retain_graph=True)
        with self.refused("is on its way already"):
            optimizer.zero_grad()
        with self.refused("a second gradient before step.*no_sync"):
            loss.backward()

    def test_of_weights(self):
        model = make_model()
        optimizer = self.optimizer(model, job="loaded")
        self.step(model, optimizer)
        model.load_state_dict(make_model(5).state_dict())
        with self.refused("2.bias: its values were changed in this process"):
            self.step(model, optimizer)

        model = make_model()
        optimizer = self.optimizer(model, job="moved")
        model[2].weight.data = torch.zeros(3, 16)
        with self.refused("2.weight: its memory or shape has changed"):
            self.step(model, optimizer)

    def test_of_weights_between_backward_and_step(self):
        model = make_model()
        optimizer = self.optimizer(model, gradient="clip_global_norm=1")
        model[2].bias.requires_grad_(False)  # so that only step() says that there is no gradient of it
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        for read in (lambda: model(inputs), model.state_dict, optimizer.synchronize):
            with self.refused("0.weight: its gradient is on its way.*call step.*no_sync"):
                read()
        optimizer.step()
        model(inputs)

    def broken_off(self, model):
        """Runs a backward that fails in the first module, when the gradients of the others and of its bias were sent."""
        bomb = model[0].weight.register_hook(lambda gradient: 1 / 0)
        inputs, labels = next(batches(1))
        with self.assertRaises(ZeroDivisionError):
            nn.functional.mse_loss(model(inputs), labels).backward()
        bomb.remove()

    def test_after_a_backward_that_was_broken_off(self):
        model = make_model()
        optimizer = self.optimizer(model)
        before = model[0].weight.clone()
        for step in range(2):
            self.broken_off(model)
            with self.refused("its gradient is on its way.*exception in backward.*zero_grad"):
                model(torch.zeros(1, 6))
            with self.assertLogs("syncline", "WARNING") as said:
                optimizer.zero_grad()
            self.assertRegex(said.output[0], f"of 3 of 4 parameters had been sent: these count in step {step},")
            self.assertEqual([parameter.grad for parameter in model.parameters()], [None] * 4)
        optimizer.synchronize()
        self.assertTrue(torch.equal(model[0].weight, before))
        self.step(model, optimizer)
        self.assertEqual(optimizer.steps, 3)
        optimizer.synchronize()
        self.assertFalse(torch.equal(model[0].weight, before))
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        with self.refused("is on its way already"):  # of one that came to its end
            optimizer.zero_grad()

    def test_after_a_backward_that_was_broken_off_in_no_sync(self):
        model = make_model()
        optimizer = self.optimizer(model)
        with optimizer.no_sync():
            self.broken_off(model)
        optimizer.zero_grad()
        self.assertEqual([parameter.grad for parameter in model.parameters()], [None] * 4)
        self.step(model, optimizer)
        self.assertEqual(optimizer.steps, 1)

    def test_after_a_backward_that_was_broken_off_where_all_gradients_are_needed(self):
        model = make_model()
        optimizer = self.optimizer(model, "lbfgs", lr=1.0)
        self.broken_off(model)
        with self.refused("backward failed, and its step cannot be ended.*lbfgs needs a gradient of every tensor.*no_sync"):
            optimizer.zero_grad()

    def test_of_weights_that_are_read_before_their_module_is_called(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = make_model()

            def forward(self, inputs):
                penalty = self.body[0].weight.square().sum()
                return self.body(inputs) + penalty

        model = Net()
        optimizer = self.optimizer(model)
        self.step(model, optimizer)
        with self.refused("modified by an inplace operation", RuntimeError):
            self.step(model, optimizer)

    def test_of_parameters_that_are_trained_later(self):
        for names_all in (True, False):
            model = make_model()
            model[0].requires_grad_(False)
            before = model[0].weight.clone()
            optimizer = self.optimizer(model, job=names_all, params=model.parameters() if names_all else None)
            self.step(model, optimizer)
            optimizer.synchronize()
            self.assertTrue(torch.equal(model[0].weight, before))
            model[0].requires_grad_(True)
            if names_all:
                self.step(model, optimizer)
                optimizer.synchronize()
                self.assertFalse(torch.equal(model[0].weight, before))
            else:
                with self.refused("0.weight: has a gradient, but required none.*params="):
                    self.step(model, optimizer)

    def test_of_weights_that_are_on_their_way(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.extra, self.uses_extra = make_model(), nn.Linear(3, 3), False

            def forward(self, inputs):
                hidden = self.body(inputs)
                return hidden @ self.extra.weight if self.uses_extra else hidden

        model = Net()
        optimizer = self.optimizer(model)
        self.step(model, optimizer)
        model.uses_extra = True
        with self.refused("extra.weight: was used while its new weights were on their way.*synchronize"):
            self.step(model, optimizer)

    def test_of_what_torchs_optimizers_keep(self):
        model = make_model()
        optimizer = self.optimizer(model)
        with self.refused("option 'momentum'"):
            optimizer.param_groups[0]["momentum"] = 0.2
        group = optimizer.param_groups[0]
        before = dict(group)
        for change in (lambda: group.update(nesterov=True), lambda: group.__ior__({"nesterov": True}), lambda: group.pop("params"),
                       lambda: group.__delitem__("params"), lambda: group.setdefault("betas", 1), group.popitem, group.clear):
            with self.refused("servers hold"):
                change()
        self.assertEqual(group.keys(), before.keys())

    def test_of_learning_rates(self):
        without = self.optimizer(make_model(), "adamw", lr=None, job="default")
        with self.refused("default learning rate.*give the Optimizer an lr"):
            torch.optim.lr_scheduler.StepLR(without, 1)
        scheduled = self.optimizer(make_model(), schedule="cosine:total_steps=10", job="scheduled")
        with self.refused("has a schedule="):
            scheduled.param_groups[0]["lr"] = 0.2
        model = make_model()
        optimizer = self.optimizer(model, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        with self.refused("0.weight: its gradient is on its way with the learning rate it had.*after optimizer.step"):
            scheduler.step()
        optimizer.step()
        for wrong in (-0.1, float("nan"), 1e7):
            optimizer.param_groups[0]["lr"] = wrong
            with self.refused(r"the learning rate of tensor '2.bias' cannot be multiplied by .*; allowed are 0 to 1e\+06"):
                self.step(model, optimizer)
        optimizer.param_groups[0]["lr"] = 0.1
        for parameter in model.parameters():  # as the loop did not end its steps
            parameter.grad = None
        with self.refused("servers hold the option 'momentum'"):
            torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)

    def test_of_the_optimizers_state(self):
        model = make_model()
        optimizer = self.optimizer(model)
        with self.refused("that of an optimizer has state and param_groups", syncline.InvalidArgument):
            optimizer.load_state_dict({})
        with self.refused("give all groups"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

    def test_of_what_torchs_optimizers_are_given(self):
        model = make_model()
        for given in (model.parameters(), list(model.parameters())):
            with self.refused("give the model itself", syncline.InvalidArgument):
                Optimizer(given, "adamw", lr=0.1)
        with self.refused(r'lower case, such as Optimizer\(model, "adamw"', syncline.InvalidArgument):
            Optimizer(model, torch.optim.AdamW, lr=0.1)
        with self.refused('lower case', syncline.InvalidArgument):
            Optimizer(model, 0.1)

    def test_of_copies(self):
        optimizer = self.optimizer(make_model())
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.refused("cannot be copied or pickled"):
                copied(optimizer)

    def test_of_two_models_in_one_job(self):
        self.optimizer(make_model())
        for second, said in ((nn.Linear(2, 1), "another --job"), (make_model(), "another job of this name")):
            with self.refused(said + r'.*\(choose a job by SYNCLINE_JOB, .*session={"job": …}', syncline.JobRefused):
                self.optimizer(second)

    def test_of_rates_after_a_rate_of_0(self):
        model = make_model()
        optimizer = self.optimizer(model, lr=0.0)
        optimizer.param_groups[0]["lr"] = 0.0
        with self.refused("lr=0.1, but the Optimizer was made with lr=0, .* highest rate"):
            optimizer.param_groups[0]["lr"] = 0.1
        self.step(model, optimizer)

    def test_of_options_given_twice(self):
        for session in ({"optimizer": "sgd:lr=5"}, {"push": "int8"}):
            with self.refused(f"session=.*{next(iter(session))}.*give it once"):
                Optimizer(make_model(), "adamw", push="fp32", session=session)

    def test_of_grad_scaler(self):
        model = make_model()
        optimizer = self.optimizer(model)
        scaler = torch.cuda.amp.GradScaler(enabled=False)
        inputs, labels = next(batches(1))
        scaler.scale(nn.functional.mse_loss(model(inputs), labels)).backward()
        scaler.step(optimizer)  # as much as optimizer.step()
        self.assertTrue(optimizer._step_supports_amp_scaling)  # or torch unscales gradients on their way
        with self.refused('loss_scaling="torch"'):
            optimizer.step(grad_scaler=scaler)


if __name__ == "__main__":
    unittest.main()
