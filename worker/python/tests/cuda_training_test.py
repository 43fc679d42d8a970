"""Tests of training on a real GPU with autocast, scalers, torch.compile, checkpointing, DDP over NCCL, Trainer and the launcher.

    SYNCLINE_BUILD=build/release python3 worker/python/tests/cuda_training_test.py -v

They are skipped without a GPU. As in cuda_test.py, all run with codecs on the host and with codecs on the GPU.
"""
import gc
import os
import signal
import sys
import tempfile
import textwrap
import unittest
import unittest.mock

import support
from cuda_test import OnDevice, Staged
from torch_support import OptimizerTest, batches, make_model, meeting_place, nn, torch

import syncline
from syncline.torch import Optimizer, wrap

INT8 = {"push": "int8", "publish": "int8"}


def rows(count):
    for inputs, labels in batches(count):
        yield inputs.cuda(), labels.cuda()


def wide_model():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 3)).cuda()


class Training(OptimizerTest):
    def train(self, network, optimizer, steps=40, forward=None, scale=lambda loss: loss):
        losses = []
        for inputs, labels in rows(steps):
            optimizer.zero_grad(set_to_none=True)
            output = network(inputs) if forward is None else forward(network, inputs)
            loss = nn.functional.mse_loss(output.float(), labels)
            scale(loss).backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    def assert_learns(self, losses):
        self.assertLess(losses[-1], losses[0] / 2, losses)

    def test_autocast_in_bfloat16(self):
        model = wide_model()

        def forward(network, inputs):
            with torch.autocast("cuda", torch.bfloat16):
                return network(inputs)

        with self.optimizer(model, "adamw", 0.01, **INT8) as optimizer:
            self.check_way(optimizer.session)
            self.assert_learns(self.train(model, optimizer, forward=forward))

    def test_fp16_with_the_servers_loss_scale(self):
        model = wide_model().half()
        with self.optimizer(model, "adamw", 0.01, loss_scaling="torch") as optimizer:
            self.assert_learns(self.train(model, optimizer, forward=lambda network, inputs: network(inputs.half()), scale=optimizer.scale))
        self.assertTrue(all(torch.isfinite(parameter).all() for parameter in model.parameters()))

    def test_grad_scaler_with_wrap_is_as_with_torchs_optimizer(self):
        model, expected = make_model().cuda(), make_model().cuda()
        plain = torch.optim.SGD(expected.parameters(), 0.1)
        wrapped = wrap(torch.optim.SGD(model.parameters(), 0.1), model, session=self.options())
        self.addCleanup(wrapped.session.close)
        for owner, network in ((wrapped, model), (plain, expected)):
            scaler = torch.amp.GradScaler("cuda", init_scale=64.0)
            for number, (inputs, labels) in enumerate(rows(7)):
                owner.zero_grad()
                loss = nn.functional.mse_loss(network(inputs), labels)
                scaler.scale(loss * (float("inf") if number == 4 else 1)).backward()  # that step is left out
                if owner is wrapped:
                    owner.synchronize()
                scaler.unscale_(owner)
                nn.utils.clip_grad_norm_(network.parameters(), 0.1)
                scaler.step(owner)
                scaler.update()
            self.assertEqual(scaler.get_scale(), 32.0)
        self.assert_same(model, expected)

    def compiled(self, **how):
        self.addCleanup(torch._dynamo.reset)
        model, expected = wide_model(), wide_model()
        with self.optimizer(model, "adamw", 0.01) as optimizer:
            self.train(torch.compile(model, **how), optimizer, 20)
        self.train(expected, torch.optim.AdamW(expected.parameters(), lr=0.01), 20)
        self.assert_same(model, expected, 1e-3)

    def test_compiled_model(self):
        self.compiled()

    def test_compiled_model_whose_graphs_are_replayed(self):  # CUDA graphs reuse the memory of gradients
        self.compiled(mode="reduce-overhead")

    def test_checkpointed_model(self):
        from torch.utils.checkpoint import checkpoint_sequential

        model, expected = wide_model(), wide_model()
        with self.optimizer(model, "sgd", 0.05) as optimizer:
            self.train(model, optimizer, 20, lambda network, inputs: checkpoint_sequential(network, 2, inputs, use_reentrant=False))
        self.train(expected, torch.optim.SGD(expected.parameters(), lr=0.05), 20)
        self.assert_same(model, expected)

    def test_batches_of_forked_loaders_in_pinned_memory(self):
        data = [(inputs[0], labels[0]) for inputs, labels in batches(64)]
        model = wide_model()
        with self.optimizer(model, "adamw", 0.01, **INT8) as optimizer:
            losses = []
            for _ in range(6):
                loader = torch.utils.data.DataLoader(data, batch_size=16, num_workers=2, pin_memory=True)
                for inputs, labels in loader:
                    optimizer.zero_grad()
                    loss = nn.functional.mse_loss(model(inputs.cuda(non_blocking=True)), labels.cuda(non_blocking=True))
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
        self.assertLess(losses[-1], losses[0])

    def test_an_optimizer_made_after_a_step_on_another_stream(self):
        side = torch.cuda.Stream()
        model, expected = wide_model(), wide_model()
        with self.optimizer(model, "sgd", 0.05) as optimizer:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                self.train(model, optimizer, 20)
            torch.cuda.current_stream().wait_stream(side)
        self.train(expected, torch.optim.SGD(expected.parameters(), lr=0.05), 20)
        self.assert_same(model, expected)

    def test_norms_and_weights_are_checked(self):
        for number, check in enumerate(("weights:every=3", "grad_norm:z=6,every=10")):
            with self.subTest(check):
                model = wide_model()
                with self.optimizer(model, "adamw", 0.01, job=number, check=check) as optimizer:
                    self.assert_learns(self.train(model, optimizer))

    def test_out_of_memory_is_torchs_error_and_training_goes_on(self):
        model = wide_model()
        with self.optimizer(model, "adamw", 0.01) as optimizer:
            self.train(model, optimizer, 3)
            with self.assertRaises(torch.cuda.OutOfMemoryError):
                torch.empty(1 << 44, device="cuda")
            self.assert_learns(self.train(model, optimizer))

    def test_memory_is_free_again_once_the_session_is_closed(self):
        def used():  # others may use the device, too
            gc.collect()
            torch.cuda.synchronize()
            return torch.cuda.memory_allocated()

        def once(job):
            model = nn.Linear(4096, 4096, bias=False).cuda()
            with Optimizer(model, "sgd", 0.1, session=self.options(job=f"{self.id()}{job}"), **INT8) as optimizer:
                model(torch.ones(1, 4096, device="cuda")).sum().backward()
                optimizer.step()

        once("first")  # loads kernels
        before = used()
        for number in range(3):
            once(number)
        self.assertLess(used() - before, 1 << 20)


DDP = """
    import os, torch, syncline.torch
    import torch.distributed as dist
    from torch import nn
    dist.init_process_group("{backend}", rank=0, world_size=1)
    torch.manual_seed(7)
    ddp = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 3)).cuda(), bucket_cap_mb=0.001)
    {hook}
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    losses = []
    for step in range(60):
        torch.manual_seed(step)
        rows = torch.randn(32, 6).cuda()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(rows), torch.sin(rows[:, :3]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2, losses
    dist.destroy_process_group()
    print("trained")
"""
HOOKS = ("ddp.register_comm_hook(syncline.torch.HookState(ddp, push='int8', publish='bf16'), syncline.torch.hook)",
         "ddp.register_comm_hook(syncline.torch.CompressedState('int8'), syncline.torch.compressed_hook)")
WORKER = """
    import os, sys, time, torch, syncline.torch
    from torch import nn
    torch.manual_seed(0)
    model = nn.Linear(64, 64).cuda()
    optimizer = syncline.torch.Optimizer(model, "adamw", 0.01, push="int8", publish="int8")
    killed, back = sys.argv[1] + ".killed", sys.argv[1] + ".back"
    if os.environ["RANK"] == "1" and os.path.exists(killed):
        with open(back + "~", "w") as file:
            file.write(str(optimizer.steps + 20))
        os.rename(back + "~", back)
    while not os.path.exists(back) or optimizer.steps < int(open(back).read()):
        model(torch.randn(8, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        if os.environ["RANK"] == "1" and optimizer.steps > 20 and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), 9)
    print("steps", optimizer.steps, flush=True)
    optimizer.session.close()
"""


class Programs(support.ServersTest):
    def run_program(self, source, environment):
        program = self.program(source, {**self.environment(0, 1), "SYNCLINE_JOB": self.id(), **environment})
        self.assertEqual(program.wait(), 0, program.text())
        return program.text()

    def test_ddp_over_nccl_with_either_hook(self):
        for number, hook in enumerate(HOOKS):
            with self.subTest(hook):
                said = self.run_program(DDP.format(backend="nccl", hook=hook), {**meeting_place(self), "SYNCLINE_JOB": f"{self.id()}{number}"})
                self.assertIn("trained", said)

    def launch(self, *flags, script, arguments=()):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "train.py")
        with open(path, "w") as file:
            file.write(textwrap.dedent(script))
        command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", *flags, "--", sys.executable, path, os.path.join(folder.name, "flag"), *arguments]
        program = support.Process(command)
        self.addCleanup(program.kill)
        return program

    def test_killed_worker_comes_back_into_the_running_job(self):
        program = self.launch("--nproc-per-node", "2", "--max-restarts", "2", "--failure-timeout", "4s", script=WORKER)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertRegex(program.text(), r"worker 1 .*starting it again[\s\S]*worker 1 .*joins[\s\S]*steps \d+")

    def test_one_worker_for_each_gpu(self):
        script = "import os, torch; print('world', os.environ['WORLD_SIZE'], 'of', torch.cuda.device_count(), flush=True)"
        program = self.launch("--nproc-per-node", "gpu", script=script)
        self.assertEqual(program.wait(), 0, program.text())
        world, devices = program.await_line(r"world (\d+) of (\d+)").groups()
        self.assertEqual(world, devices)

    def test_ctrl_c_in_a_wait(self):
        source = """
            import torch, syncline.torch
            model = torch.nn.Linear(64, 64).cuda()
            optimizer = syncline.torch.Optimizer(model, "sgd", 0.1)
            print("ready", flush=True)
            try:
                while True:     # the other worker never comes
                    model(torch.ones(1, 64, device="cuda")).sum().backward()
                    optimizer.step()
            except KeyboardInterrupt:
                print("interrupted", flush=True)
        """
        program = self.program(source, {**self.environment(0, 1), "SYNCLINE_JOB": self.id()})
        program.await_line("ready")
        program.process.send_signal(signal.SIGINT)
        program.await_line("interrupted")
        program.wait(30)


class StagedTraining(Staged, Training):
    pass


class OnDeviceTraining(OnDevice, Training):
    pass


class StagedPrograms(Staged, Programs):
    pass


class OnDevicePrograms(OnDevice, Programs):
    pass


del OptimizerTest, Programs, Training

if __name__ == "__main__":
    unittest.main()
