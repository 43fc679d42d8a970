"""Parameters that have a gradient on some ranks only, in real processes."""
import json
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
# Branch 2 is nobody's; branch 1 is rank 1's, and only now and then.
BRANCH = "1 if rank == 1 and step % 3 == 0 else 0"


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.shared, self.branches = nn.Linear(4, 3), nn.ModuleList([nn.Linear(4, 3) for _ in range(3)])

    def forward(self, inputs, branch):
        return self.shared(inputs) + self.branches[branch](inputs)


def reference(mean):
    """One process that computes all ranks' gradients; `mean` of those of a parameter, None where a rank has none."""
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


if __name__ == "__main__":
    unittest.main()
