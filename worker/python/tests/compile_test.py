"""Tests of every optimizer of the package with models from torch.compile."""
import shutil
import unittest

from torch_support import OptimizerTest, batches, make_model, nn, torch, train

from syncline.torch import LocalSGD, wrap

if not hasattr(torch, "compile"):
    raise unittest.SkipTest("ModuleSkipped: torch.compile came with torch 2")


def backend():
    """Returns torch's default backend if torch has a C++ compiler that works."""
    if shutil.which("g++"):
        try:
            torch.compile(nn.Linear(2, 2))(torch.ones(1, 2))
            return "inductor"
        except Exception as error:  # of whatever the compiler lacks
            print(f"inductor does not work here, so aot_eager is tested: {type(error).__name__}")
            torch._dynamo.reset()
    return "aot_eager"


BACKEND = backend()


class Compiled(OptimizerTest):
    def compiled(self, model):
        self.addCleanup(torch._dynamo.reset)
        return torch.compile(model, backend=BACKEND)

    def train(self, model, optimizer, count=30):
        network = self.compiled(model)
        train(network, optimizer, count)
        return network

    def expect(self, model, count=30, plain=lambda parameters: torch.optim.AdamW(parameters, lr=0.01)):
        expected = make_model()
        train(expected, plain(expected.parameters()), count)
        self.assert_same(model, expected)

    def test_train_as_with_torchs_optimizer(self):
        model = make_model()
        with self.optimizer(model, "adamw", 0.01) as optimizer:
            self.train(model, optimizer)
        self.expect(model)

    def test_may_be_compiled_before_the_optimizer_is_made(self):
        model = make_model()
        network = self.compiled(model)
        with self.optimizer(network, "adamw", 0.01) as optimizer:
            train(network, optimizer, 30)
        self.expect(model)

    def test_accumulate_in_no_sync_and_clip_on_the_servers(self):
        model, expected = make_model(), make_model()
        plain = torch.optim.SGD(expected.parameters(), 1.0)
        with self.optimizer(model, "sgd", 1.0, gradient="clip_global_norm=0.01") as optimizer:
            network = self.compiled(model)
            for inputs, labels in batches(5):
                with optimizer.no_sync():
                    nn.functional.mse_loss(network(inputs), labels).backward()
                nn.functional.mse_loss(network(inputs), labels).backward()
                optimizer.step()
                plain.zero_grad()
                (2 * nn.functional.mse_loss(expected(inputs), labels)).backward()
                nn.utils.clip_grad_norm_(expected.parameters(), 0.01)
                plain.step()
        self.assert_same(model, expected)

    def test_are_waited_for_at_each_forward(self):
        model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        expected = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
        expected.load_state_dict(model.state_dict())
        plain = torch.optim.SGD(expected.parameters(), 0.1)
        with self.optimizer(model, "sgd", 0.1) as optimizer:
            network = self.compiled(model)
            for _ in range(10):
                data = torch.randn(4, 256)
                for one, step in ((network, optimizer), (expected, plain)):
                    step.zero_grad()
                    one(data).square().mean().backward()
                    step.step()
        self.assert_same(model, expected)

    def test_train_with_wrap_and_local_sgd(self):
        model = make_model()
        wrapped = wrap(torch.optim.AdamW(model.parameters(), lr=0.01), model, session=self.options(job=f"{self.id()}wrap"))
        self.addCleanup(wrapped.session.close)
        self.train(model, wrapped)
        self.expect(model)
        model = make_model()
        with LocalSGD(model, torch.optim.AdamW(model.parameters(), lr=0.01), 7, session=self.options(job=f"{self.id()}local")) as local:
            self.train(model, local)
        self.expect(model)


if __name__ == "__main__":
    unittest.main()
