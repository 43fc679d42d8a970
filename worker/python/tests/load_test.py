"""Tests of load_state_dict of a syncline.torch.Optimizer, before the first step and after it."""
import unittest

from state_test import steps, through_a_file
from torch_support import EXACT, OptimizerTest, batches, make_model, nn, torch, train

import syncline
from syncline.torch import Optimizer
from syncline.torch._optimizer.restart import RestartBarrier


def trained(count):
    """Returns a model and its AdamW of torch after a number of steps."""
    model = make_model()
    plain = torch.optim.AdamW(model.parameters(), lr=0.01)
    train(model, plain, count)
    return model, plain


class Load(OptimizerTest):
    def test_before_the_first_step_goes_on_as_torchs_optimizer(self):
        expected, plain = trained(10)
        plain.param_groups[0]["lr"] = 0.005  # as a lr_scheduler would have
        saved = through_a_file({"model": expected.state_dict(), "optimizer": plain.state_dict()})
        model = make_model(5)
        optimizer = self.optimizer(model, "adamw", 0.01)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        self.assertEqual(optimizer.param_groups[0]["lr"], 0.005)
        self.assert_same(model, expected, 0)
        steps(model, optimizer, 10, 20)
        optimizer.synchronize()
        steps(expected, plain, 10, 20)
        self.assert_same(model, expected)
        self.addCleanup(optimizer.session.close)  # it is another one

    def test_that_does_not_fit_leaves_the_job_as_it_was(self):
        model = make_model()
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        train(model, plain, 1)
        optimizer = self.optimizer(model, "adamw", 0.01)
        with self.assertRaisesRegex(syncline.InvalidArgument, "0.weight: state_dict= has no exp_avg"):
            optimizer.load_state_dict(plain.state_dict())
        train(model, optimizer, 2)
        self.assertEqual(optimizer.steps, 2)

    def test_of_the_state_that_the_job_has_changes_nothing(self):
        model = make_model()
        optimizer = self.optimizer(model, "adamw", 0.01)
        session = optimizer.session
        optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does
        self.assertIs(optimizer.session, session)

    def test_keeps_a_scheduler_that_was_made_before(self):
        expected, plain = trained(4)
        saved = plain.state_dict()
        model = make_model(5)
        optimizer = self.optimizer(model, "adamw", 0.01)
        schedules = [torch.optim.lr_scheduler.StepLR(one, 2, 0.5) for one in (optimizer, plain)]
        model.load_state_dict(expected.state_dict())
        optimizer.load_state_dict(saved)
        self.addCleanup(optimizer.session.close)
        for network, one, schedule in ((model, optimizer, schedules[0]), (expected, plain, schedules[1])):
            for inputs, labels in batches(6):
                one.zero_grad()
                nn.functional.mse_loss(network(inputs), labels).backward()
                one.step()
                schedule.step()
        optimizer.synchronize()
        self.assert_same(model, expected)

    def test_after_the_first_step_says_what_to_do(self):
        _, plain = trained(3)
        model = make_model()
        optimizer = self.optimizer(model, "adamw", 0.01)
        nn.functional.mse_loss(model(next(batches(1))[0]), torch.zeros(32, 3)).backward()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "call step"):  # its gradients are on their way
            optimizer.load_state_dict(plain.state_dict())
        optimizer.step()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "only before the first step: .*state_dict="):
            optimizer.load_state_dict(plain.state_dict())

    SOURCE = """
        import sys
        import torch
        from syncline.torch import Optimizer
        model = torch.nn.Linear(3, 1)
        plain = torch.optim.AdamW(model.parameters(), lr=0.01)
        torch.nn.init.ones_(model.weight)
        torch.nn.init.zeros_(model.bias)
        for _ in range(4):
            plain.zero_grad()
            model(torch.ones(2, 3)).sum().backward()
            plain.step()
        saved = plain.state_dict(), {name: value.clone() for name, value in model.state_dict().items()}
        torch.nn.init.zeros_(model.weight)
        optimizer = Optimizer(model, "adamw", lr=0.01, push="fp32", publish="fp32")
        model.load_state_dict(saved[1])
        optimizer.load_state_dict(saved[0])
        print("begins at", optimizer.steps)
        for step in range(optimizer.steps, 6):
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        print("updates", optimizer.state_dict()["state"][0]["step"].item())
        print("weight", model.weight.tolist())
        optimizer.close()
        """

    def test_of_several_workers_begins_the_job_anew(self):
        workers = [self.program(self.SOURCE, self.environment(rank, 3)) for rank in range(3)]
        weights = set()
        for worker in workers:
            self.assertEqual(worker.wait(), 0, worker.text())
            worker.await_line("begins at 0")
            worker.await_line("updates 10.0")
            weights.add(worker.await_line("weight (.*)").group(1))
        self.assertEqual(len(weights), 1)
        self.assertAlmostEqual(float(weights.pop().strip("[]").split(",")[0]), 1 - 10 * 0.01, places=2)

    def test_of_several_workers_is_refused_with_certificates_for_one_job(self):
        with self.assertRaisesRegex(syncline.FailedPrecondition, "worker.pem is valid for one job only.*state_dict="):
            RestartBarrier({"tls_cert": "worker.pem"}, world_size=2)
        RestartBarrier({"tls_cert": "worker.pem"}, world_size=1).wait()

    def test_of_a_worker_that_joined_gives_it_the_jobs_own(self):
        model, _ = trained(3)
        first = self.optimizer(model, "adamw", 0.01)
        train(model, first, 3)
        late, given = trained(1)
        session = {**self.options(job=self.id()), "rank": 1, "world_size": 1}
        second = Optimizer(late, "adamw", 0.01, session=session, **EXACT)
        with torch.no_grad():
            late[0].weight.zero_()
        with self.assertLogs("syncline", "INFO") as logs:
            second.load_state_dict(given.state_dict())
        self.addCleanup(second.session.close)
        self.assertIn("the job has run for 3 steps, and goes on with its own", "\n".join(logs.output))
        first.synchronize()
        self.assert_same(late, model, 0)


if __name__ == "__main__":
    unittest.main()
