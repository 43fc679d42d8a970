"""Training processes that are ranks of hosts, for tests of local aggregation."""
import shutil
import tempfile
import unittest
from pathlib import Path

import support

try:
    import torch
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

# Gradients are elementwise products of small whole numbers and weights, so they have the same bits in every process.
PROGRAM = """
    import os, sys, time, torch, syncline, syncline.torch
    from torch import nn
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterList(nn.Parameter(torch.linspace(-1, 1, size).to(torch.{dtype})) for size in (3, 40_000, 70_001))

        def forward(self, step=None, used=3):
            if step is None:
                return sum(part.sum() for part in self.parts)
            return sum((part * part * (1 + (rank + step + number) % 5)).float().sum() / 8
                       for number, part in enumerate(list(self.parts)[:used]))

    model = Model()
    optimizer = {optimizer}
    first = optimizer.steps
    print(f"first step {{first}} of rank {{optimizer.rank}} of {{optimizer.world_size}}", flush=True)
    before = optimizer.session.stats
    members = before.members
    for step in range(first, {steps}):
        {each_step}
        optimizer.step()
        print(f"step {{step}}", flush=True)
    optimizer.synchronize()
    after = optimizer.session.stats
    print(f"pushed {{after.bytes_pushed - before.bytes_pushed}} pulled {{after.bytes_pulled - before.bytes_pulled}} "
          f"steps {{after.steps}} members {{members}};", flush=True)
    torch.save(model.state_dict(), os.environ["OUT"])
    {at_end}
    print("done", flush=True)
"""
OPTIMIZER = 'syncline.torch.Optimizer(model, "{name}", lr={lr}, push="fp32", publish="fp32", {options})'
BYTES = 4 * (3 + 40_000 + 70_001)
# Weights fall by one in each step, whichever ranks take part, so they count steps.
COUNT = {"name": "sgd", "lr": 1.0, "each_step": "model().backward(); time.sleep(0.01)"}


def program_of(optimizer=OPTIMIZER, **source):
    """Returns PROGRAM with its defaults replaced by `source`."""
    source = {"dtype": "float32", "name": "adamw", "lr": 0.01, "options": "", "steps": 8, "each_step": "model(step).backward()", "at_end": "pass",
              **source}
    return PROGRAM.format(optimizer=optimizer.format(**source), **source)


class Ranks(support.ServersTest):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def start(self, rank, world, on_host, job="", env=None, **source):
        """Starts rank `rank`. `on_host` is the number of ranks on each host; 1: without local aggregation."""
        aggregates = {"LOCAL_RANK": str(rank % on_host), "LOCAL_WORLD_SIZE": str(on_host), "SYNCLINE_LOCAL_AGGREGATION": "1"}
        out = self.folder / f"{job}{on_host}-{rank}.pt"
        environment = {**self.environment(rank, world), "SYNCLINE_JOB": f"{self.id()}{job}{on_host}", "OUT": str(out),
                       **(aggregates if on_host > 1 else {"SYNCLINE_LOCAL_AGGREGATION": "0"}), **(env or {})}
        return self.program(program_of(**source), environment), out

    def run_all(self, world, on_host, **more):
        started = [self.start(rank, world, on_host, **more) for rank in range(world)]
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        weights = [torch.load(out) for _, out in started]
        for other in weights[1:]:
            self.assert_equal(weights[0], other)
        said = [program.await_line(r"pushed (\d+) pulled (\d+) steps (\d+) members (\d+)") for program, _ in started]
        return weights[0], [tuple(map(int, one.groups())) for one in said]

    def assert_counted(self, out, steps):
        """Checks the weights that a program with COUNT has saved: they must have counted `steps` steps."""
        for name, weight in torch.load(out).items():
            self.assertTrue(torch.equal(weight.double().mean().round(), torch.tensor(-float(steps), dtype=torch.double)), name)

    def assert_equal(self, one, other):
        for name, weight in one.items():
            self.assertTrue(torch.equal(weight, other[name]), name)
