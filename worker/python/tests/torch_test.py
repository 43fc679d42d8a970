"""syncline.torch.Optimizer against real servers, beside torch's own optimizers."""
import contextlib
import copy
import pickle
import unittest

import support

try:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

import syncline
from syncline.torch import Optimizer

EXACT = {"push": "fp32", "publish": "fp32"}
torch.set_num_threads(1)

# Name and options here; torch's class.
PAIRS = [
    ("sgd", dict(lr=0.05), torch.optim.SGD),
    ("sgd", dict(lr=0.05, momentum=0.9, weight_decay=0.01), torch.optim.SGD),
    ("sgd", dict(lr=0.05, momentum=0.9, dampening=0.1), torch.optim.SGD),
    ("sgd", dict(lr=0.05, momentum=0.9, nesterov=True), torch.optim.SGD),
    ("adam", dict(lr=0.01, betas=(0.8, 0.99)), torch.optim.Adam),
    ("adam", dict(lr=0.01, weight_decay=0.1), torch.optim.Adam),
    ("adam", dict(lr=0.01, amsgrad=True), torch.optim.Adam),
    ("adamw", dict(lr=0.01), torch.optim.AdamW),
    ("adamw", dict(lr=0.01, weight_decay=0.2, eps=1e-6), torch.optim.AdamW),
    ("radam", dict(lr=0.01), torch.optim.RAdam),
    ("adagrad", dict(lr=0.05, lr_decay=0.01), torch.optim.Adagrad),
    ("rmsprop", dict(lr=0.01), torch.optim.RMSprop),
    ("rmsprop", dict(lr=0.01, centered=True, momentum=0.5, alpha=0.9), torch.optim.RMSprop),
]
if not torch.__version__.startswith("1."):  # NAdam of torch 1.13 and of torch 2 differ; the servers' is the latter
    PAIRS.append(("nadam", dict(lr=0.01), torch.optim.NAdam))


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


class OptimizerTest(support.ServersTest):
    def optimizer(self, model, name="sgd", lr=0.1, job="", **more):
        optimizer = Optimizer(model, name, lr, session=self.options(job=f"{self.id()}{job}"), **{**EXACT, **more})
        self.addCleanup(optimizer.session.close)
        return optimizer

    def assert_same(self, model, expected, tolerance=2e-5):
        for (name, here), there in zip(model.named_parameters(), expected.parameters()):
            torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance, msg=lambda said: f"{name}: {said}")


class Steps(OptimizerTest):
    def test_are_those_of_torchs_optimizers(self):
        for number, (name, options, plain) in enumerate(PAIRS):
            with self.subTest(name, **options):
                model, expected = make_model(), make_model()
                with self.optimizer(model, name, job=number, **options) as optimizer:
                    train(model, optimizer, 100)
                train(expected, plain(expected.parameters(), **options), 100)
                self.assert_same(model, expected)
                self.assertGreater((model[0].weight - make_model()[0].weight).abs().max(), 0.01)

    def test_of_parameter_groups(self):
        def groups(model):
            return [{"params": [model[0].weight], "lr": 0.02, "weight_decay": 0.5}, {"params": model[2].parameters()}]

        model, expected = make_model(), make_model()
        with self.optimizer(model, "adamw", 0.01, params=groups(model)) as optimizer:
            self.assertEqual(optimizer.param_groups[0]["weight_decay"], 0.5)
            train(model, optimizer, 30)
        train(expected, torch.optim.AdamW(groups(expected), lr=0.01), 30)
        self.assert_same(model, expected)
        torch.testing.assert_close(model[0].bias, make_model()[0].bias)  # in no group

    def test_leave_frozen_and_unused_parameters_alone(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.unused = make_model(), nn.Linear(2, 2)
                self.body[0].weight.requires_grad_(False)

            def forward(self, inputs):
                return self.body(inputs)

        model, expected = Net(), Net()
        with self.optimizer(model, "adam", 0.01) as optimizer:
            train(model, optimizer, 10)
        train(expected, torch.optim.Adam(expected.parameters(), lr=0.01), 10)
        self.assert_same(model, expected)

    def test_of_a_parameter_that_some_batches_use(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.branches = nn.ModuleList([make_model(1), make_model(2)])
                self.calls = 0

            def forward(self, inputs):
                self.calls += 1
                return self.branches[self.calls % 3 == 0](inputs)

        model, expected = Net(), Net()
        with self.optimizer(model, "adam", 0.01) as optimizer:
            train(model, optimizer, 20)
        train(expected, torch.optim.Adam(expected.parameters(), lr=0.01), 20)
        self.assert_same(model, expected)

    def test_of_tied_weights_and_modules_that_are_never_called(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(3)
                self.encode, self.attend = nn.Linear(6, 8), nn.MultiheadAttention(8, 2, batch_first=True)
                self.again = nn.Linear(6, 8, bias=False)
                self.again.weight = self.encode.weight
                self.scale = nn.ParameterList([nn.Parameter(torch.ones(8))])

            def forward(self, inputs):
                hidden = self.encode(inputs)[None] * self.scale[0]
                hidden = self.attend(hidden, hidden, hidden)[0] + self.again(inputs)
                return nn.functional.linear(hidden, self.encode.weight.t())[0, :, :3]

        model, expected = Net(), Net()
        with self.optimizer(model, "sgd", 0.05) as optimizer:
            train(model, optimizer, 30)
        train(expected, torch.optim.SGD(expected.parameters(), lr=0.05), 30)
        self.assert_same(model, expected)

    def test_of_channels_last_and_recurrent_models(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                torch.manual_seed(4)
                self.convolve = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last)
                self.recur = nn.LSTM(4, 3, batch_first=True)

            def forward(self, inputs):
                picture = inputs.reshape(32, 1, 2, 3).expand(32, 3, 2, 3).contiguous(memory_format=torch.channels_last)
                return self.recur(self.convolve(picture).flatten(2).transpose(1, 2))[0][:, -1]

        model, expected = Net(), Net()
        with self.optimizer(model, "adamw", 0.01) as optimizer:
            train(model, optimizer, 20)
        train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 20)
        self.assert_same(model, expected)

    def test_of_checkpointed_models(self):
        class Net(nn.Module):
            def __init__(self, reentrant):
                super().__init__()
                self.body, self.head, self.reentrant = make_model(), nn.Linear(3, 3, bias=False), reentrant
                nn.init.ones_(self.head.weight)

            def forward(self, inputs):
                return self.head(checkpoint(self.body, inputs.requires_grad_(), use_reentrant=self.reentrant))

        for reentrant in (True, False):
            model, expected = Net(reentrant), Net(reentrant)
            with self.optimizer(model, "adamw", 0.01, job=reentrant) as optimizer:
                train(model, optimizer, 10)
            train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 10)
            self.assert_same(model, expected)

    def test_of_bfloat16_models_and_autocast(self):
        model = make_model().bfloat16()
        before = model[0].weight.detach().clone()
        with self.optimizer(model, "sgd", 0.5, job="half") as optimizer:
            inputs, labels = next(batches(1))
            nn.functional.mse_loss(model(inputs.bfloat16()).float(), labels).backward()
            expected = before.float() - 0.5 * model[0].weight.grad.float()
            optimizer.step()
        torch.testing.assert_close(model[0].weight.detach(), expected.bfloat16())

        model, expected = make_model(), make_model()
        for net, make in ((model, lambda: self.optimizer(model, "sgd", 0.1)),
                          (expected, lambda: torch.optim.SGD(expected.parameters(), lr=0.1))):
            optimizer = make()
            for inputs, labels in batches(10):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    loss = nn.functional.mse_loss(net(inputs).float(), labels)
                loss.backward()
                optimizer.step()
        optimizer = None
        model.state_dict()  # waits
        self.assert_same(model, expected, 1e-3)

    def test_of_several_backwards(self):
        model, expected = make_model(), make_model()
        here, there = self.optimizer(model), torch.optim.SGD(expected.parameters(), lr=0.1)
        for number, (inputs, labels) in enumerate(batches(12)):
            with here.no_sync() if number % 3 < 2 else contextlib.nullcontext():
                (nn.functional.mse_loss(model(inputs), labels) / 3).backward()
            (nn.functional.mse_loss(expected(inputs), labels) / 3).backward()
            if number % 3 == 2:
                here.step()
                there.step()
                there.zero_grad()
        with here.no_sync():  # step() sends what no backward has
            nn.functional.mse_loss(model(inputs), labels).backward()
        here.step()
        nn.functional.mse_loss(expected(inputs), labels).backward()
        there.step()
        here.synchronize()
        self.assert_same(model, expected)

    def test_clip_schedule_and_scale_on_the_servers(self):
        model, expected = make_model(), make_model()
        optimizer = self.optimizer(model, "sgd", 1.0, gradient="clip_global_norm=0.01")
        train(model, optimizer, 5)
        plain = torch.optim.SGD(expected.parameters(), lr=1.0)
        for inputs, labels in batches(5):
            plain.zero_grad()
            nn.functional.mse_loss(expected(inputs), labels).backward()
            nn.utils.clip_grad_norm_(expected.parameters(), 0.01)
            plain.step()
        optimizer.synchronize()
        self.assert_same(model, expected)

    def test_with_loss_scaling(self):
        model, expected = make_model(), make_model()
        optimizer = self.optimizer(model, "sgd", 0.1, loss_scaling="torch")
        self.assertGreater(optimizer.session.loss_scale, 1)
        for inputs, labels in batches(5):
            optimizer.scale(nn.functional.mse_loss(model(inputs), labels)).backward()
            optimizer.step()
        optimizer.synchronize()
        train(expected, torch.optim.SGD(expected.parameters(), lr=0.1), 5)
        self.assert_same(model, expected)

    def test_go_on_in_a_loop_that_never_waits(self):
        model = make_model()
        optimizer = self.optimizer(model)
        for step in range(50):
            self.assertEqual(optimizer.steps, step)
            model[0].weight.grad, model[0].bias.grad = torch.ones(16, 6), torch.ones(16)
            optimizer.step()
            optimizer.synchronize()
        torch.testing.assert_close(model[0].bias, make_model()[0].bias - 5)


class Programs(OptimizerTest):
    def test_may_have_data_loaders_that_fork(self):
        model, data = make_model(), [(torch.ones(6) * i / 32, torch.ones(3)) for i in range(32)]
        with self.optimizer(model) as optimizer:
            for _ in range(2):
                for inputs, labels in torch.utils.data.DataLoader(data, 8, num_workers=2, multiprocessing_context="fork"):
                    nn.functional.mse_loss(model(inputs), labels).backward()
                    optimizer.step()
            self.assertEqual(optimizer.steps, 8)

    def test_may_end_the_loop_with_an_exception(self):
        model = make_model()
        with self.assertRaisesRegex(ValueError, "mine"), self.optimizer(model) as optimizer:
            nn.functional.mse_loss(model(torch.ones(1, 6)), torch.ones(1, 3)).backward()
            raise ValueError("mine")
        with self.assertRaises(syncline.SessionClosed):
            optimizer.steps


class Models(OptimizerTest):
    def test_can_be_saved_and_copied(self):
        model = make_model()
        optimizer = self.optimizer(model, lr=1.0)
        train(model, optimizer, 3)
        saved = {name: weight.clone() for name, weight in model.state_dict().items()}  # right after step()
        twin = copy.deepcopy(model)
        again = pickle.loads(pickle.dumps(model))
        optimizer.synchronize()
        for name, weight in model.state_dict().items():
            self.assertTrue(torch.equal(weight, saved[name]), name)
        twin(torch.zeros(1, 6)).sum().backward()  # pushes nothing
        self.assertIsNone(model[0].weight.grad)
        train(again, torch.optim.SGD(again.parameters(), lr=1), 1)

    def test_are_free_after_close(self):
        model = make_model()
        optimizer = self.optimizer(model)
        train(model, optimizer, 2)
        optimizer.close()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)


class Misuse(OptimizerTest):
    """What would silently train something else is refused, with the parameter's path in the model."""

    def step(self, model, optimizer):
        inputs, labels = next(batches(1))
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()

    def refused(self, pattern, kind=syncline.Error):
        return self.assertRaisesRegex(kind, pattern)

    def test_of_parameters(self):
        model = make_model()
        with self.refused("0.weight: is in params twice", ValueError):
            self.optimizer(model, params=[{"params": model.parameters()}, {"params": [model[0].weight]}])
        with self.refused(r"shape \[7\] that is no parameter of the model"):
            self.optimizer(model, params=[nn.Parameter(torch.zeros(7))])
        with self.refused("give the Optimizer an lr"):
            self.optimizer(model, lr=None, params=[{"params": model.parameters(), "lr": 1.0}])
        with self.refused("0.weight: a learning rate of 0 times the job's; freeze it instead"):
            self.optimizer(model, params=[{"params": model.parameters(), "lr": 0.0}])
        with self.refused("momentum='high'"):
            self.optimizer(model, momentum="high")
        with self.refused("no parameter to train"):
            self.optimizer(nn.ReLU())
        with self.refused("momentun.*momentum"):
            self.optimizer(model, momentun=0.9)
        with self.refused("2.bias: is on meta"):
            model[2].bias = nn.Parameter(torch.zeros(3, device="meta"))
            self.optimizer(model)

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
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        with self.refused("0.weight: its gradient was changed.*clip_global_norm"):
            optimizer.step()

        model = make_model()
        optimizer = self.optimizer(model, job="twice")
        nn.functional.mse_loss(model(inputs), labels).backward()
        with self.refused("is on its way already"):
            optimizer.zero_grad()
        with self.refused("a second gradient before step.*no_sync"):
            nn.functional.mse_loss(model(inputs), labels).backward()

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
        with self.refused("2.weight: its memory or shape is another"):
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
        with self.refused("schedule=.*cosine"):
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        with self.refused("schedule="):
            optimizer.param_groups[0]["lr"] = 0.2
        with self.refused("option 'momentum'"):
            optimizer.param_groups[0]["momentum"] = 0.2
        for call in (optimizer.state_dict, lambda: optimizer.load_state_dict({})):
            with self.refused("state is on the servers.*model.state_dict"):
                call()
        with self.refused("give all groups"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})

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
