"""Tests of state_dict: the servers' state goes to torch's optimizers and back, compared with torch's own."""
import copy
import io
import unittest

from torch_support import EXACT, OptimizerTest, batches, make_model, nn, torch, train
from torch_test import PAIRS

import syncline
from syncline.torch import Optimizer


def steps(model, optimizer, first, count):
    for inputs, labels in list(batches(first + count))[first:]:
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


class StateDicts(OptimizerTest):
    def test_go_on_in_torchs_optimizers(self):
        for number, (name, options, plain) in enumerate(PAIRS):
            with self.subTest(name, **options):
                model, expected = make_model(), make_model()
                undisturbed = plain(expected.parameters(), **options)
                train(expected, undisturbed, 30)
                with self.optimizer(model, name, job=number, **options) as optimizer:
                    train(model, optimizer, 10)
                    saved = through_a_file(optimizer.state_dict())
                    weights = through_a_file(model.state_dict())
                later = make_model()
                later.load_state_dict(weights)
                onward = plain(later.parameters(), **options)
                onward.load_state_dict(saved)
                steps(later, onward, 10, 20)
                self.assert_same(later, expected)
                fresh = plain(later.parameters(), **options)
                self.assertEqual(saved["param_groups"][0].keys(), fresh.state_dict()["param_groups"][0].keys())

    def test_of_torchs_optimizers_go_on_here(self):
        for number, (name, options, plain) in enumerate(PAIRS):
            with self.subTest(name, **options):
                model, expected = make_model(), make_model()
                before = plain(expected.parameters(), **options)
                steps(expected, before, 0, 10)
                model.load_state_dict(expected.state_dict())
                saved = through_a_file(before.state_dict())
                steps(expected, before, 10, 20)
                with self.optimizer(model, name, job=number, state_dict=saved, **options) as optimizer:
                    self.assertEqual(optimizer.steps, 0)
                    steps(model, optimizer, 10, 20)
                self.assert_same(model, expected)

    def test_hold_groups_rates_and_parameters_without_gradients(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.unused = make_model(), nn.Linear(2, 2)

            def forward(self, inputs):
                return self.body(inputs)

        def groups(model):
            return [{"params": [model.body[0].weight], "lr": 0.02, "weight_decay": 0.5},
                    {"params": [*model.body[2].parameters(), *model.unused.parameters()]}]

        model, expected = Net(), Net()
        expected.load_state_dict(model.state_dict())
        plain = torch.optim.AdamW(groups(expected), lr=0.01)
        with self.optimizer(model, "adamw", 0.01, params=groups(model)) as optimizer:
            schedules = [torch.optim.lr_scheduler.StepLR(one, 1, 0.5) for one in (optimizer, plain)]
            train(model, optimizer, 3)
            train(expected, plain, 3)
            for schedule in schedules:
                schedule.step()
            here, there = optimizer.state_dict(), plain.state_dict()
        self.assertEqual(here["state"].keys(), there["state"].keys())
        for number, entry in there["state"].items():
            for name, value in entry.items():
                torch.testing.assert_close(torch.as_tensor(here["state"][number][name]).float(), torch.as_tensor(value).float())
        self.assertEqual(here["param_groups"], there["param_groups"])
        model.load_state_dict(expected.state_dict())
        with self.optimizer(model, "adamw", 0.01, params=groups(model), job="again", state_dict=there) as again:
            self.assertEqual([group["lr"] for group in again.param_groups], [0.01, 0.005])
            steps(model, again, 3, 5)
        steps(expected, plain, 3, 5)
        self.assert_same(model, expected)

    def test_follow_the_layout_of_parameters_and_narrow_types(self):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 3)).to(memory_format=torch.channels_last)
        expected = copy.deepcopy(model)
        plain = torch.optim.Adam(expected.parameters(), lr=0.01)
        data = torch.randn(4, 2, 4, 4)
        with self.optimizer(model, "adam", 0.01) as optimizer:
            for network, one in ((model, optimizer), (expected, plain)):
                network(data).square().mean().backward()
                one.step()
            here, there = optimizer.state_dict(), plain.state_dict()
        for number, entry in there["state"].items():
            torch.testing.assert_close(here["state"][number]["exp_avg"], entry["exp_avg"])
        narrow = make_model().bfloat16()
        with self.optimizer(narrow, "adam", 0.01, job="narrow") as optimizer:
            nn.functional.mse_loss(narrow(next(batches(1))[0].bfloat16()).float(), torch.zeros(32, 3)).backward()
            optimizer.step()
            saved = optimizer.state_dict()
        later = torch.optim.Adam(narrow.parameters(), lr=0.01)
        later.load_state_dict(saved)
        self.assertEqual(later.state[narrow[0].weight]["exp_avg"].dtype, torch.bfloat16)

    def test_are_not_for_optimizers_and_options_that_torch_has_not(self):
        for number, (name, options, said) in enumerate([
                ("lion", {}, "no 'lion'.*checkpoints"), ("adafactor", {}, "row and column factors.*docs/checkpoints"),
                ("lbfgs", {}, "all weights together.*docs/checkpoints"), ("adam", {"ema_decay": 0.9}, "no ema_decay.*docs/checkpoints"),
                ("sgd", {"decoupled": 1, "weight_decay": 0.1}, "SGD has no weight decay of that kind")]):
            with self.subTest(name, **options), self.optimizer(make_model(), name, 0.01, job=number, **options) as optimizer:
                with self.assertRaisesRegex(syncline.FailedPrecondition, said):
                    optimizer.state_dict()

    def test_that_do_not_fit_are_refused(self):
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(model, plain, 1)
        sgd = plain.state_dict()
        small = nn.Sequential(nn.Linear(6, 2), nn.Tanh(), nn.Linear(2, 3))
        for name, network, saved, options, said in [
                ("adam", model, sgd, {}, "0.weight: state_dict= has no exp_avg, which Adam has, but momentum_buffer"),
                ("sgd", small, sgd, {"momentum": 0.9}, r"0.weight: momentum_buffer .* shape \[16, 6\], but the parameter has \[2, 6\]"),
                ("sgd", nn.Linear(6, 3), sgd, {"momentum": 0.9}, r"groups of \[4\] parameters, .* groups of \[2\]")]:
            with self.subTest(said), self.assertRaisesRegex(syncline.InvalidArgument, said):
                self.optimizer(network, name, 0.1, state_dict=saved, **options)
        with self.optimizer(make_model(), "adam", 0.1, job="runs") as optimizer:
            empty = optimizer.state_dict()
            self.assertEqual(empty["state"], {})
            optimizer.load_state_dict(empty)  # as accelerate does
            train(optimizer._model, optimizer, 1)
            optimizer.load_state_dict(optimizer.state_dict())
            with self.assertRaisesRegex(syncline.FailedPrecondition, "only before the first step"):
                optimizer.load_state_dict(empty)
            loss = nn.functional.mse_loss(optimizer._model(next(batches(1))[0]), torch.zeros(32, 3))
            loss.backward()
            with self.assertRaisesRegex(syncline.FailedPrecondition, "call step"):
                optimizer.state_dict()
            optimizer.step()

    def test_are_those_of_all_workers_and_not_of_one_that_joins(self):
        source = """
            import sys
            import torch
            from syncline.torch import Optimizer
            model = torch.nn.Linear(3, 1)
            plain = torch.optim.AdamW(model.parameters(), lr=0.01)
            torch.nn.init.ones_(model.weight)
            for _ in range(4):
                plain.zero_grad()
                model(torch.ones(2, 3)).sum().backward()
                plain.step()
            optimizer = Optimizer(model, "adamw", lr=0.01, push="fp32", publish="fp32", state_dict=plain.state_dict())
            for step in range(optimizer.steps, 6):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
            print("updates", optimizer.state_dict()["state"][0]["step"].item())
            optimizer.close()
            """
        workers = [self.program(source, self.environment(rank, 2)) for rank in range(2)]
        for worker in workers:
            self.assertEqual(worker.wait(), 0, worker.text())
            worker.await_line("updates 10.0")
        late = make_model()
        first = self.optimizer(make_model(), "adam", 0.01, job="two")
        train(first._model, first, 3)
        session = {**self.options(job=f"{self.id()}two"), "rank": 1, "world_size": 1}
        given = torch.optim.Adam(late.parameters(), lr=0.01)
        train(late, given, 1)
        with self.assertLogs("syncline", "INFO") as logs:
            second = Optimizer(make_model(), "adam", 0.01, session=session, state_dict=given.state_dict(), **EXACT)
        self.addCleanup(second.session.close)
        self.assertIn("state_dict= is not used: the job has run for 3 steps", "\n".join(logs.output))


if __name__ == "__main__":
    unittest.main()
