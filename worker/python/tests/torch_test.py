"""Tests of syncline.torch.Optimizer with real servers, against torch's own optimizers."""
import contextlib
import copy
import io
import pickle
import unittest
import warnings

from overlap_cases import Overlap  # noqa: F401
from torch_support import OptimizerTest, batches, make_model, nn, torch, train
from torch.utils.checkpoint import checkpoint

import syncline

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
    ("adadelta", dict(lr=1.0), torch.optim.Adadelta),
    ("adadelta", dict(lr=0.5, rho=0.8, eps=1e-5, weight_decay=0.01), torch.optim.Adadelta),
    ("adamax", dict(lr=0.01), torch.optim.Adamax),
    ("adamax", dict(lr=0.01, betas=(0.8, 0.9), weight_decay=0.1), torch.optim.Adamax),
    ("asgd", dict(lr=0.05), torch.optim.ASGD),
    ("asgd", dict(lr=0.05, lambd=0.01, alpha=0.5, t0=5, weight_decay=0.01), torch.optim.ASGD),
    ("rprop", dict(lr=0.01), torch.optim.Rprop),
    ("rprop", dict(lr=0.01, etas=(0.4, 1.3), step_sizes=(1e-5, 0.05)), torch.optim.Rprop),
    ("adamw", dict(lr=0.001, maximize=True), torch.optim.AdamW),
    ("sgd", dict(lr=0.001, momentum=0.5, maximize=True), torch.optim.SGD),
    ("rmsprop", dict(lr=0.01, centered=True, momentum=0.5, alpha=0.9), torch.optim.RMSprop),
]
if not torch.__version__.startswith("1."):  # NAdam of torch 1.13 and of torch 2 differ; the servers' is the latter
    PAIRS.append(("nadam", dict(lr=0.01), torch.optim.NAdam))


# Optimizers that are tested with the same data at each step: options here, torch's, whose names and defaults differ, and the number of
# steps. L-BFGS divides by differences of gradients, whose rounding grows from step to step.
WHOLE_DATA = [("lbfgs", dict(lr=0.5), lambda parameters: torch.optim.LBFGS(parameters, lr=0.5, max_iter=1, history_size=10), 20)]
if hasattr(torch.optim, "Adafactor"):  # torch 2.5; its lr is the largest relative step, which is 0.01 here, and eps comes elsewhere
    WHOLE_DATA.append(("adafactor", dict(lr=1.0), lambda parameters: torch.optim.Adafactor(parameters, lr=0.01), 100))


class Steps(OptimizerTest):
    def test_of_the_whole_data_are_those_of_torchs_optimizers(self):
        inputs, labels = next(batches(1))
        for name, options, plain, steps in WHOLE_DATA:
            with self.subTest(name):
                model, expected = make_model(), make_model()
                there = plain(expected.parameters())
                with self.optimizer(model, name, **options) as here:
                    for network, optimizer in [(model, here), (expected, there)] * steps:
                        def closure():
                            optimizer.zero_grad()
                            loss = nn.functional.mse_loss(network(inputs), labels)
                            loss.backward()
                            return loss

                        optimizer.step(closure)
                self.assert_same(model, expected)
                self.assertGreater((model[0].weight - make_model()[0].weight).abs().max(), 0.01)

    def test_are_those_of_torchs_optimizers(self):
        for number, (name, options, plain) in enumerate(PAIRS):
            with self.subTest(name, **options):
                model, expected = make_model(), make_model()
                with self.optimizer(model, name, job=number, **options) as optimizer:
                    train(model, optimizer, 100)
                train(expected, plain(expected.parameters(), **options), 100)
                self.assert_same(model, expected)
                self.assertGreater((model[0].weight - make_model()[0].weight).abs().max(), 0.01)

    def test_of_two_models_that_train_each_other(self):
        def adversaries():
            torch.manual_seed(3)
            return nn.Linear(6, 3), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

        def play(generator, discriminator, g, d, without_d):
            for inputs, real in batches(20):
                fake = generator(inputs)
                d.zero_grad()
                (discriminator(fake.detach()).mean() - discriminator(real).mean()).backward()
                d.step()
                g.zero_grad()
                with without_d():
                    (-discriminator(fake).mean()).backward()
                g.step()

        here, there = adversaries(), adversaries()
        with self.optimizer(here[0], "adam", 0.01, job="g") as g, self.optimizer(here[1], "sgd", 0.05, job="d") as d:
            play(*here, g, d, d.no_sync)
        play(*there, torch.optim.Adam(there[0].parameters(), 0.01), torch.optim.SGD(there[1].parameters(), 0.05),
             contextlib.nullcontext)
        for model, expected, before in zip(here, there, adversaries()):
            self.assert_same(model, expected)
            self.assertGreater((next(model.parameters()) - next(before.parameters())).abs().max(), 0.01)
        inputs, _ = next(batches(1))
        g, d = (self.optimizer(model, job=name) for model, name in zip(adversaries(), ("third", "fourth")))
        d._model(g._model(inputs)).mean().backward()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "is on its way already.*no_sync"):
            d.zero_grad()

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


class Schedulers(OptimizerTest):
    MAKE = {
        "warm-up from 0": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1, step / 5)),
        "one for each group": lambda o: torch.optim.lr_scheduler.LambdaLR(o, [lambda step: 0.9**step, lambda step: 1 / (step + 1)]),
        "cosine with restarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
        "one cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, [0.1, 0.2], total_steps=25, cycle_momentum=False),
        "in a row": lambda o: torch.optim.lr_scheduler.SequentialLR(
            o, [torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5), torch.optim.lr_scheduler.StepLR(o, 4)], [5]),
        "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=2, threshold=0.5),
    }

    def train(self, model, optimizer, make):
        scheduler = make(optimizer)
        for inputs, labels in batches(20):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
            scheduler.step(*[loss.item()] * isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau))

    def test_of_torch_work(self):
        def groups(model):
            return [{"params": model[0].parameters(), "lr": 0.02}, {"params": model[2].parameters()}]

        for name, make in self.MAKE.items():
            with self.subTest(name):
                model, expected = make_model(), make_model()
                with self.optimizer(model, "adamw", 0.1, params=groups(model), job=name) as optimizer:
                    self.train(model, optimizer, make)
                plain = torch.optim.AdamW(groups(expected), 0.1)
                self.train(expected, plain, make)
                self.assert_same(model, expected)
                self.assertEqual([group["lr"] for group in optimizer.param_groups], [group["lr"] for group in plain.param_groups])

    def test_go_together_with_compression(self):  # what is kept follows the rate
        model = make_model()
        with self.optimizer(model, "sgd", 0.1, push="topk:ratio=0.1,min_elements=0,vectors=1") as optimizer:
            self.train(model, optimizer, self.MAKE["warm-up from 0"])
        self.assertTrue(all(torch.isfinite(parameter).all() for parameter in model.parameters()))


class Programs(OptimizerTest):
    def test_may_have_data_loaders_that_fork(self):
        model, data = make_model(), [(torch.ones(6) * i / 32, torch.ones(3)) for i in range(32)]
        with self.optimizer(model) as optimizer:
            for _ in range(2):
                for inputs, labels in torch.utils.data.DataLoader(data, 8, num_workers=2, multiprocessing_context="fork"):
                    nn.functional.mse_loss(model(inputs), labels).backward()
                    optimizer.step()
            self.assertEqual(optimizer.steps, 8)

    def test_may_end_the_loop_between_backward_and_step(self):
        model = make_model()
        model.unused = nn.Linear(2, 2)
        model.forward = lambda inputs: model[2](model[1](model[0](inputs)))
        with self.optimizer(model, gradient="clip_global_norm=1") as optimizer:
            nn.functional.mse_loss(model(torch.ones(1, 6)), torch.ones(1, 3)).backward()
        with self.assertRaises(syncline.SessionClosed):
            optimizer.session.barrier()

    def test_report_the_loss_itself(self):
        model = make_model()
        with self.optimizer(model) as optimizer, warnings.catch_warnings():
            warnings.simplefilter("error")
            loss = model(torch.ones(2, 6)).square().mean()
            loss.backward()
            optimizer.report_loss(loss)
            optimizer.report_loss(loss.item())
            optimizer.step()

    def test_may_end_the_loop_with_an_exception(self):
        model = make_model()
        with self.assertRaisesRegex(ValueError, "mine"), self.optimizer(model) as optimizer:
            nn.functional.mse_loss(model(torch.ones(1, 6)), torch.ones(1, 3)).backward()
            raise ValueError("mine")
        with self.assertRaises(syncline.SessionClosed):
            optimizer.session.barrier()


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

    def test_are_saved_whole_in_parts_and_as_objects(self):
        def saved(model):
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            return file

        trusting = {} if torch.__version__.startswith("1.") else {"weights_only": False}
        ways = {"part": lambda model: model[0].state_dict()["weight"].clone(),
                "deepcopy": lambda model: copy.deepcopy(model)[0].weight,
                "save": lambda model: torch.load(saved(model), **trusting)[0].weight}
        for name, read in ways.items():
            model = nn.Sequential(nn.Linear(2000, 2000))
            optimizer = self.optimizer(model, lr=1.0, job=name)
            for _ in range(3):
                model(torch.randn(2, 2000)).square().mean().backward()
                optimizer.step()
                found = read(model)
                optimizer.synchronize()
                self.assertTrue(torch.equal(found, model[0].weight), name)

    def test_are_free_after_close(self):
        model = make_model()
        optimizer = self.optimizer(model)
        train(model, optimizer, 2)
        optimizer.close()
        train(model, torch.optim.SGD(model.parameters(), lr=0.1), 2)


if __name__ == "__main__":
    unittest.main()
