"""Models on a real GPU; skipped by name without one. What needs none is in staging_test.py."""
import unittest
import unittest.mock

import average_test
from torch_support import OptimizerTest, batches, make_model, nn, torch

from syncline.torch import DiLoCo, wrap

if not torch.cuda.is_available():
    raise unittest.SkipTest("torch finds no GPU")


def train(model, optimizer, count):
    for inputs, labels in batches(count):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(inputs.cuda()), labels.cuda()).backward()
        optimizer.step()


class OnAGpu(OptimizerTest):
    def test_steps_are_those_of_torchs_optimizer(self):
        model, expected = make_model().cuda(), make_model().cuda()
        with self.optimizer(model, "adamw", lr=0.01) as optimizer:
            train(model, optimizer, 100)
        train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 100)
        self.assert_same(model, expected)

    def test_of_many_layers_whose_gradients_take_a_while(self):
        def make():
            torch.manual_seed(5)
            return nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(24)), nn.Linear(1024, 3)).cuda()

        def run(model, optimizer):
            generator = torch.Generator("cuda").manual_seed(6)
            for _ in range(20):
                optimizer.zero_grad(set_to_none=True)
                model(torch.randn(512, 1024, device="cuda", generator=generator)).square().mean().backward()
                optimizer.step()

        model, expected = make(), make()
        with self.optimizer(model, "sgd", lr=0.01) as optimizer:
            run(model, optimizer)
        run(expected, torch.optim.SGD(expected.parameters(), lr=0.01))
        self.assert_same(model, expected)

    def test_in_bfloat16_and_channels_last(self):
        torch.manual_seed(7)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).cuda().bfloat16().to(memory_format=torch.channels_last)
        with self.optimizer(model, "sgd", lr=0.1, push="bf16", publish="bf16") as optimizer:
            losses = []
            images = torch.randn(16, 3, 16, 16, device="cuda").bfloat16()
            for _ in range(30):
                optimizer.zero_grad()
                loss = model(images).float().square().mean()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        self.assertLess(losses[-1], losses[0] / 2)

    def test_averages_for_torchs_optimizers(self):
        model, expected = make_model().cuda(), make_model().cuda()
        inner = torch.optim.Adam(model.parameters(), 0.01)
        with wrap(inner, model, session=self.options()) as optimizer:
            train(model, optimizer, 30)
        train(expected, torch.optim.Adam(expected.parameters(), 0.01), 30)
        self.assert_same(model, expected, 1e-5)

    def test_local_rounds(self):
        model = make_model().cuda()
        with DiLoCo(model, torch.optim.SGD(model.parameters(), 0.05), 5, session=self.options()) as optimizer:
            train(model, optimizer, 20)
            self.assertEqual(optimizer.rounds, 4)


class TwoRanks(average_test.TwoRanks):
    """Both on one GPU, which gloo allows."""

    def run_ranks(self, make, job, steps=30):
        on_gpu = average_test.TRAIN.replace("    {make}", "    model = model.cuda()\n    {make}").replace("network(rows)", "network(rows.cuda())")
        on_gpu = on_gpu.replace("torch.sin(rows[:, :3])", "torch.sin(rows[:, :3]).cuda()").replace(".flatten()", ".flatten().cpu()")
        with unittest.mock.patch.object(average_test, "TRAIN", on_gpu):
            return super().run_ranks(make, job, steps)


def load_tests(loader, standard, pattern):
    """Not once more those that the other files run."""
    return unittest.TestSuite(loader.loadTestsFromTestCase(one) for one in (OnAGpu, TwoRanks))


if __name__ == "__main__":
    unittest.main()
