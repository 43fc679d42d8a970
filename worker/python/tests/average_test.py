"""Tests of wrap and hook, by which servers average the gradients of optimizers and DDP models that stay as they are."""
import math
import os
import tempfile
import unittest

import support
from torch_support import OptimizerTest, batches, make_model, meeting_place, nn, torch, train

import syncline
from syncline.torch import HookState, wrap

# Two ranks train on halves of the rows. `{make}` makes `network`, which is called, and `optimizer`.
TRAIN = """
    import os, time, torch, syncline.torch
    import torch.distributed as dist
    from torch import nn
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)     # the first rank's values count
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    {make}
    for step in range({steps}):
        torch.manual_seed(step)
        rows = torch.randn(32, 6)[rank::2]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(network(rows), torch.sin(rows[:, :3]))
        loss.backward()
        optimizer.step()
    torch.save((loss.item(), torch.cat([p.detach().flatten() for p in model.parameters()])), os.environ["OUT"] + str(rank))
    if dist.is_initialized():
        # A thread of torch's gloo drops the last operation, and takes the GIL for it: where Python ends meanwhile, it aborts.
        dist.destroy_process_group()
        time.sleep(0.5)
"""
DDP = """
    dist.init_process_group("gloo")
    network = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.0002)
    optimizer = {optimizer}
    {hook}
"""
# This optimizer is linear in the gradients. Adam would turn a difference in the last bit of a gradient near 0 into a whole step.
SGD = "torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)"
ADAM = "torch.optim.Adam(model.parameters(), lr=0.01)"


class TwoRanks(support.ServersTest):
    def run_ranks(self, make, job, steps=30):
        source = TRAIN.format(make=make, steps=steps)
        environment = {**meeting_place(self), "GLOO_SOCKET_IFNAME": "lo", "SYNCLINE_JOB": f"{self.id()}{job}"}
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/"
            ranks = [self.program(source, {**self.environment(rank, 2), **environment, "OUT": out}) for rank in range(2)]
            for rank in ranks:
                self.assertEqual(rank.wait(), 0, rank.text())
            (loss, weights), (_, others) = (torch.load(f"{out}{rank}") for rank in range(2))
        self.assertTrue(torch.equal(weights, others), "the ranks differ")
        return weights, loss

    def ddp(self, job, state=None, optimizer=SGD):
        hook = "pass" if state is None else f"network.register_comm_hook(syncline.torch.HookState(network{state}), syncline.torch.hook)"
        return self.run_ranks(DDP.format(hook=hook, optimizer=optimizer), job)

    def test_train_as_ddp_does(self):
        expected, _ = self.ddp("plain")
        for job, make in (("hook", None), ("wrap", f"network = model; optimizer = syncline.torch.wrap({SGD}, model)")):
            with self.subTest(job):
                weights, _ = self.ddp(job, "") if make is None else self.run_ranks(make, job)
                torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-5)

    def test_train_with_compressed_gradients(self):
        _, loss = self.ddp("hook", ', push="onebit", publish="bf16"', ADAM)
        self.assertLess(loss, 0.35)  # 0.66 at first


class Wrap(OptimizerTest):
    def wrap(self, optimizer, model=None, job="", **more):
        wrapped = wrap(optimizer, model, session=self.options(job=f"{self.id()}{job}"), **more)
        self.addCleanup(wrapped.session.close)
        return wrapped

    def test_steps_as_the_optimizer_does(self):
        for number, plain in enumerate((lambda p: torch.optim.Adam(p, 0.01), lambda p: torch.optim.SGD(p, 0.05, momentum=0.9))):
            model, expected = make_model(), make_model()
            optimizer = self.wrap(plain(model.parameters()), model, job=number)
            schedules = [torch.optim.lr_scheduler.StepLR(one, 10, 0.5) for one in (optimizer, plain(expected.parameters()))]
            for (inputs, labels) in batches(30):
                for network, schedule in ((model, schedules[0]), (expected, schedules[1])):
                    schedule.optimizer.zero_grad()
                    nn.functional.mse_loss(network(inputs), labels).backward()
                    if network is model:
                        optimizer.synchronize()
                    nn.utils.clip_grad_norm_(network.parameters(), 0.5)
                    schedule.optimizer.step()
                    schedule.step()
            self.assert_same(model, expected, 1e-6)
            again = plain(make_model().parameters())
            again.load_state_dict(optimizer.state_dict())

    @unittest.skipUnless(hasattr(torch.optim, "Muon"), "this torch has no Muon")
    def test_steps_as_muon_does(self):  # which no server does
        def model():
            torch.manual_seed(1)
            return nn.Sequential(nn.Linear(6, 16, bias=False), nn.Tanh(), nn.Linear(16, 3, bias=False))

        here, expected = model(), model()
        train(here, self.wrap(torch.optim.Muon(here.parameters(), 0.02), here), 20)
        train(expected, torch.optim.Muon(expected.parameters(), 0.02), 20)
        self.assert_same(here, expected, 0)
        self.assertFalse(torch.equal(here[0].weight, model()[0].weight))

    def test_leaves_parameters_without_gradients_alone(self):
        model = make_model()
        optimizer = self.wrap(torch.optim.AdamW(model.parameters(), 0.1), model)
        model[0].bias.requires_grad_(False)
        train(model, optimizer, 2)
        self.assertIsNone(model[0].bias.grad)
        torch.testing.assert_close(model[0].bias, make_model()[0].bias)

    def test_shows_gradients_that_are_not_finite_and_recovers(self):
        model = make_model()
        optimizer = self.wrap(torch.optim.SGD(model.parameters(), 0.0), model)
        inputs, labels = next(batches(1))
        for scale, check in ((math.inf, lambda g: not torch.isfinite(g).any()), (1.0, lambda g: torch.isfinite(g).all())):
            optimizer.zero_grad()
            (nn.functional.mse_loss(model(inputs), labels) * scale).backward()
            optimizer.synchronize()
            self.assertTrue(check(model[2].bias.grad))  # a GradScaler would not step

    def test_accumulates_in_no_sync(self):
        model, expected = make_model(), make_model()
        optimizer = self.wrap(torch.optim.SGD(model.parameters(), 0.1), model)
        inputs, labels = next(batches(1))
        with optimizer.no_sync():
            nn.functional.mse_loss(model(inputs), labels).backward()
        nn.functional.mse_loss(model(inputs), labels).backward()
        optimizer.step()
        plain = torch.optim.SGD(expected.parameters(), 0.2)
        nn.functional.mse_loss(expected(inputs), labels).backward()
        plain.step()
        self.assert_same(model, expected, 1e-6)

    def test_refuses_what_would_be_silently_wrong(self):
        model = make_model()
        optimizer = self.wrap(torch.optim.SGD(model.parameters(), 0.1), model)
        inputs, labels = next(batches(1))
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward(retain_graph=True)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "bias: a second gradient.*no_sync"):
            loss.backward()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "call step"):
            optimizer.zero_grad()
        with self.assertRaisesRegex(syncline.FailedPrecondition, r"0.weight: its gradient was changed.*synchronize\(\) first"):
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        model[0].weight.grad = torch.zeros(16, 6)
        with self.assertRaisesRegex(syncline.FailedPrecondition, r"0.weight: its gradient was changed.*synchronize\(\) first"):
            optimizer.step()
        with self.assertRaisesRegex(syncline.InvalidArgument, "give one of torch's"):
            wrap(optimizer)
        with self.assertRaisesRegex(syncline.InvalidArgument, "a mean gradient comes as fp32, bf16, fp16"):
            HookState(model, publish="topk:ratio=0.1")
        with self.assertRaisesRegex(syncline.FailedPrecondition, "before wrap"):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})

    def test_refuses_to_join_a_job_that_has_run(self):
        model = make_model()
        optimizer = self.wrap(torch.optim.SGD(model.parameters(), 0.1), model)
        train(model, optimizer, 2)
        session = {**self.options(job=self.id()), "rank": 1}
        with self.assertRaisesRegex(syncline.FailedPrecondition, "has run for . steps without this worker"):
            joiner = make_model()
            wrap(torch.optim.SGD(joiner.parameters(), 0.1), joiner, session=session)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    unittest.main()
