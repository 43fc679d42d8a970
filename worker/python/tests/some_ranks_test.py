"""Tests of parameters with a gradient on some ranks only, because they are not used or backward is broken off, in real processes."""
import json
import re
import unittest

import support
from torch_support import nn, torch

SOURCE = """
    import json, os, torch, syncline.torch
    from torch import nn
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.shared, self.branches = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

        def forward(self, inputs, branch):
            return self.shared(inputs) + self.branches[branch](inputs)

    def batch(step, rank):
        generator = torch.Generator().manual_seed(100 * step + rank)
        inputs = torch.randn(8, 4, generator=generator)
        return inputs, torch.sin(inputs[:, :3])

    model = Net()
    optimizer = {make}
    for step in range(20):
        inputs, labels = batch(step, rank)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs, {branch}), labels).backward()
        optimizer.step()
    optimizer.synchronize()
    print(json.dumps({{name: value.tolist() for name, value in model.state_dict().items()}}))
    optimizer.close()
"""
# No rank uses branch 2. Only rank 1 uses branch 1, in some steps.
BRANCH = "1 if rank == 1 and step % 3 == 0 else 0"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.shared, self.branches = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

    def forward(self, inputs, branch):
        return self.shared(inputs) + self.branches[branch](inputs)


def reference(mean):
    """Trains in one process that computes all ranks' gradients. `mean` takes those of a parameter, with None for a rank without one."""
    model = Net()
    plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for step in range(20):
        gradients = []
        for rank in range(3):
            generator = torch.Generator().manual_seed(100 * step + rank)
            inputs = torch.randn(8, 4, generator=generator)
            plain.zero_grad(set_to_none=True)
            branch = 1 if rank == 1 and step % 3 == 0 else 0
            nn.functional.mse_loss(model(inputs, branch), torch.sin(inputs[:, :3])).backward()
            gradients.append([parameter.grad for parameter in model.parameters()])
        for parameter, given in zip(model.parameters(), zip(*gradients)):
            parameter.grad = mean(given)
        plain.step()
    return model.state_dict()


def of_those_who_have_one(given):
    there = [gradient for gradient in given if gradient is not None]
    return sum(there) / len(there) if there else None


def of_all(given):
    there = [gradient for gradient in given if gradient is not None]
    return sum(there) / len(given) if there else None


class SomeRanks(support.ServersTest):
    def train(self, make):
        source = SOURCE.format(make=make, branch=BRANCH)
        programs = [self.program(source, {**self.environment(rank, 3), "SYNCLINE_JOB": f"{self.id()}{hash(make)}"}) for rank in range(3)]
        found = []
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())
            found.append(json.loads(program.await_line(r"^\{.*\}$").group()))
        for other in found[1:]:
            self.assertEqual(found[0], other)
        return found[0]

    def assert_are(self, found, expected):
        for name, value in expected.items():
            torch.testing.assert_close(torch.tensor(found[name]), value, rtol=1e-4, atol=1e-5, msg=lambda said: f"{name}: {said}")

    def test_step_by_the_mean_of_those_who_have_a_gradient(self):
        found = self.train('syncline.torch.Optimizer(model, "sgd", 0.1, momentum=0.9, push="fp32", publish="fp32")')
        self.assert_are(found, reference(of_those_who_have_one))
        torch.testing.assert_close(torch.tensor(found["branches.2.weight"]), Net().branches[2].weight.detach())

    def test_count_as_zero_with_wrap_as_with_ddp(self):
        found = self.train("syncline.torch.wrap(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)")
        self.assert_are(found, reference(of_all))


BROKEN = """
    import contextlib, json, os, time, torch, syncline.torch
    from torch import nn
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = {make}
    drop = {drop}

    def fail(_):
        raise RuntimeError("out of memory")

    batch = 0
    while (step := optimizer.steps) < 12:
        {before}
        generator = torch.Generator().manual_seed(100 * batch + rank)
        inputs = torch.randn(8, 4, generator=generator)
        fails = rank == 1 and batch in (5, 6)
        if fails:
            bomb = model[2].weight.register_hook(fail)  # the gradients of the last layer, and of this one's bias, have left
        batch += 1
        optimizer.zero_grad()
        try:
            with {within}:
                nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :3])).backward()
        except RuntimeError as error:
            assert "out of memory" in str(error), error
            drop()
            continue
        finally:
            if fails:
                bomb.remove()
        print("gave", step, batch - 1)
        optimizer.step()
    optimizer.synchronize()
    print(json.dumps({{name: value.tolist() for name, value in model.state_dict().items()}}))
    print("steps", optimizer.steps)
    optimizer.close()
"""
EXACT = 'syncline.torch.Optimizer(model, "sgd", 0.1, momentum=0.9, push="fp32", publish="fp32"{more})'
LEFT = ("2.bias", "4.weight", "4.bias")


class BrokenOff(support.ServersTest):
    """Rank 1 runs out of memory in the middle of two backwards, catches it, and goes on with its next batch."""

    def train(self, make, drop="optimizer.zero_grad", within="contextlib.nullcontext()", before="", place=None):
        source = BROKEN.format(make=make, drop=drop, within=within, before=before)
        programs = [self.program(source, {**self.environment(rank, 2), "LOCAL_RANK": str(rank), **(place or {})}) for rank in range(2)]
        found = []
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())
            found.append(json.loads(program.await_line(r"^\{.*\}$").group()))
        self.assertEqual(*found)
        return found[0], programs[1].text()

    def reference(self, batches_of_1, counts=lambda step, name: True, clip=None):
        """Trains with plain torch and the mean of both ranks' gradients.

        `batches_of_1` has the number of rank 1's batch by step. `counts` returns whether its gradient of a parameter counts in a step.
        """
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        plain = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        for step in range(12):
            given = []
            for rank, batch in enumerate((step, batches_of_1.get(step, 0))):
                inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * batch + rank))
                plain.zero_grad(set_to_none=True)
                nn.functional.mse_loss(model(inputs), torch.sin(inputs[:, :3])).backward()
                given.append([parameter.grad for parameter in model.parameters()])
            for (name, parameter), own, other in zip(model.named_parameters(), *given):
                parameter.grad = (own + other) / 2 if counts(step, name) else own
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            plain.step()
        return model.state_dict()

    def assert_are(self, found, expected):
        for name, value in expected.items():
            torch.testing.assert_close(torch.tensor(found[name]), value, rtol=1e-4, atol=1e-5, msg=lambda said: f"{name}: {said}")

    def gave(self, said):
        """Returns rank 1's batches whose gradients were all sent, by step, from its output."""
        return {int(step): int(batch) for step, batch in re.findall(r"^gave (\d+) (\d+)$", said, re.MULTILINE)}

    def test_a_step_has_what_had_left_of_it(self):
        # With clipping, no weight is new before all gradients are there.
        for clip, place in ((None, {}), (0.5, {}), (None, {"LOCAL_WORLD_SIZE": "2", "SYNCLINE_LOCAL_AGGREGATION": "1"})):
            with self.subTest(clip=clip, place=place):
                more = f', gradient="clip_global_norm={clip}"' if clip else ""
                found, said = self.train(EXACT.format(more=more), place={"SYNCLINE_JOB": f"{self.id()}{clip}{len(place)}", **place})
                self.assertEqual(self.gave(said), {step: step for step in range(12) if step not in (5, 6)})
                self.assertIn("gradients of 3 of 6 parameters had been sent: these count in step 5", said)
                self.assert_are(found, self.reference({step: step for step in range(12)}, lambda step, name: step not in (5, 6) or name in LEFT, clip))

    def test_nothing_counts_that_no_sync_kept(self):
        found, said = self.train(EXACT.format(more=""), within="optimizer.no_sync()")
        gave = self.gave(said)
        self.assertEqual(list(gave.values()), [0, 1, 2, 3, 4, *range(7, 14)])  # in one step each
        self.assertEqual(list(gave), list(range(12)))
        self.assert_are(found, self.reference(gave))

    def test_nothing_counts_of_one_that_joins_again_where_steps_are_whole(self):
        for_the_other = 'while rank == 0 and optimizer.session.stats.members < 2: time.sleep(0.01)'
        found, said = self.train(EXACT.format(more=', mode="bsp:whole=1"'), drop="optimizer.rejoin", before=for_the_other)
        gave = self.gave(said)
        self.assertTrue({5, 6} - set(gave), gave)
        self.assert_are(found, self.reference(gave, lambda step, name: step in gave))

    def test_averaged_gradients_go_on_with_a_step(self):
        make = "syncline.torch.wrap(torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), model)"
        _, said = self.train(make, drop="optimizer.step")  # with the same weights on both
        self.assertEqual(list(self.gave(said)), [0, 1, 2, 3, 4, 7, 8, 9, 10, 11])


if __name__ == "__main__":
    unittest.main()
