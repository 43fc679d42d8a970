"""Tests of Hugging Face's Trainer and accelerate with Syncline's optimizer.

They need transformers and accelerate in this Python, or in the one that SYNCLINE_HF_PYTHON names. They download nothing.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import unittest

import support

PYTHON = os.environ.get("SYNCLINE_HF_PYTHON", sys.executable)
if subprocess.run([PYTHON, "-c", "import torch, transformers, accelerate"], capture_output=True).returncode:
    raise unittest.SkipTest(f"ModuleSkipped: {PYTHON} has no transformers and accelerate; pip install them, or name another "
                            "Python in SYNCLINE_HF_PYTHON")

EXAMPLE = support.HERE.parents[1] / "examples/torch/gpt2_trainer.py"
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
SMALL = """
    import torch, syncline.torch, syncline.huggingface
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=8, n_layer=1, n_head=1, resid_pdrop=0, embd_pdrop=0,
                                       attn_pdrop=0, bos_token_id=0, eos_token_id=0))
    data = [{"input_ids": row, "labels": row} for row in torch.randint(0, 16, (64, 8))]
    def arguments(folder=sys.argv[1], **more):
        more = {"max_steps": 8, "save_strategy": "no", **more}
        return TrainingArguments(folder, per_device_train_batch_size=4, use_cpu=True, report_to=[], disable_tqdm=True, seed=1, **more)
"""


class HuggingFace(support.ServersTest):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def python(self, source, env):
        program = support.Process([PYTHON, "-c", textwrap.dedent("import sys") + "\n" + textwrap.dedent(source), self.folder], {**QUIET, **env})
        self.addCleanup(program.kill)
        return program

    def test_example_trains_a_gpt2_with_two_workers(self):
        command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--nproc-per-node", "2", "--", PYTHON, str(EXAMPLE), "--steps", "30",
                   "--push", "onebit", "--out", self.folder]
        program = support.Process(command, QUIET)
        self.addCleanup(program.kill)
        self.assertEqual(program.wait(), 0, program.text())
        losses = [float(loss) for loss in re.findall(r"'loss': '?([\d.]+)", program.text())]
        self.assertEqual(len(losses), 3, program.text())
        self.assertLess(losses[-1], 4, program.text())  # 5.5 at first
        self.assertRegex(program.text(), "'pushed_mib': .*'workers': '?2")
        self.assertTrue(os.path.exists(f"{self.folder}/model.safetensors"))

    def test_trainer_steps_as_with_torchs_optimizer(self):
        source = SMALL + """
    from transformers import set_seed
    saved = []
    for make in (lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
                 lambda m: syncline.torch.Optimizer(m, "adamw", lr=0.01, push="fp32", publish="fp32")):
        import copy
        network = copy.deepcopy(model)
        optimizer = make(network)
        callbacks = [syncline.huggingface.SynclineCallback(optimizer)] if hasattr(optimizer, "session") else []
        trainer = Trainer(network, arguments(max_grad_norm=0, warmup_steps=3), train_dataset=data, optimizers=(optimizer, None), callbacks=callbacks)
        trainer.train()
        state = optimizer.state_dict()  # which waits for the last weights, too
        saved.append((torch.cat([p.detach().flatten() for p in network.parameters()]), state))
    torch.testing.assert_close(saved[1][0], saved[0][0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(saved[1][1]["state"][0]["exp_avg"], saved[0][1]["state"][0]["exp_avg"], rtol=1e-4, atol=1e-6)
    print("same")
    """
        program = self.python(source, self.environment())
        self.assertEqual(program.wait(), 0, program.text())
        program.await_line("same")

    def test_trainer_resumes_as_with_torchs_optimizer(self):
        source = SMALL + """
    import copy
    def run(folder, make, first, last):
        network = copy.deepcopy(model)
        optimizer = make(network)
        callbacks = [syncline.huggingface.SynclineCallback(optimizer)] if hasattr(optimizer, "session") else []
        trainer = Trainer(network, arguments(folder, max_grad_norm=0, max_steps=last, lr_scheduler_type="constant_with_warmup", warmup_steps=6,
                                             save_strategy="steps", save_steps=4), train_dataset=data, optimizers=(optimizer, None), callbacks=callbacks)
        trainer.train(resume_from_checkpoint=first > 0)
        state = optimizer.state_dict()
        if hasattr(optimizer, "session"):
            assert optimizer.steps == last - first, optimizer.steps
            optimizer.close()
        return torch.cat([p.detach().flatten() for p in network.parameters()]), state
    def plain(m):
        return torch.optim.AdamW(m.parameters(), lr=0.01)
    def ours(m):
        return syncline.torch.Optimizer(m, "adamw", lr=0.01, push="fp32", publish="fp32")
    expected = run(sys.argv[1] + "/plain", plain, 0, 8)
    run(sys.argv[1] + "/ours", ours, 0, 4)
    resumed = run(sys.argv[1] + "/ours", ours, 4, 8)
    torch.testing.assert_close(resumed[0], expected[0], rtol=1e-4, atol=1e-5)
    assert resumed[1]["state"][0]["step"] == 8
    print("same")
    """
        program = self.python(source, self.environment())
        self.assertEqual(program.wait(), 0, program.text())
        program.await_line("same")

    def test_accelerate_saves_and_loads_the_optimizer(self):
        source = """
            import torch, accelerate, syncline.torch
            def prepare():
                torch.manual_seed(1)
                model = torch.nn.Linear(4, 2)
                optimizer = syncline.torch.Optimizer(model, "adamw", lr=0.1, push="fp32", publish="fp32")
                return accelerator.prepare(model, optimizer)
            def train(model, optimizer, steps):
                for _ in range(steps):
                    accelerator.backward((model(torch.ones(3, 4)) - 1).square().mean())
                    optimizer.step()
                    optimizer.zero_grad()
            accelerator = accelerate.Accelerator(cpu=True)
            model, optimizer = prepare()
            train(model, optimizer, 5)
            accelerator.save_state(sys.argv[1])
            train(model, optimizer, 5)
            expected = {name: value.clone() for name, value in model.state_dict().items()}
            optimizer.optimizer.close()
            accelerator = accelerate.Accelerator(cpu=True)
            model, optimizer = prepare()
            accelerator.load_state(sys.argv[1])
            train(model, optimizer, 5)
            for name, value in model.state_dict().items():
                torch.testing.assert_close(value, expected[name])
            print("same")
            """
        program = self.python(source, self.environment())
        self.assertEqual(program.wait(), 0, program.text())
        program.await_line("same")

    def test_accelerate_takes_the_optimizer(self):
        source = """
            import torch, accelerate, syncline.torch
            torch.manual_seed(1)  # of some beginnings 20 steps do not come so far, with torch's optimizer neither
            model = torch.nn.Linear(4, 2)
            optimizer = syncline.torch.Optimizer(model, "adamw", lr=0.1)
            accelerator = accelerate.Accelerator(cpu=True)
            model, optimizer = accelerator.prepare(model, optimizer)
            for step in range(20):
                loss = (model(torch.ones(3, 4)) - 1).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            assert loss < 0.05, loss
            """
        program = self.python(source, self.environment())
        self.assertEqual(program.wait(), 0, program.text())

    def test_accelerate_trains_with_two_workers(self):
        source = """
            import os, torch, accelerate, syncline.torch, syncline.huggingface
            torch.manual_seed(1 + int(os.environ["RANK"]))  # the first one's weights are the job's
            model = torch.nn.Linear(4, 2)
            optimizer = syncline.torch.Optimizer(model, "sgd", lr=0.1, push="fp32", publish="fp32")
            rank = optimizer.rank
            syncline.huggingface.train_alone()
            accelerator = accelerate.Accelerator(cpu=True)
            model, optimizer = accelerator.prepare(model, optimizer)
            expected = {name: value.clone() for name, value in model.state_dict().items()}
            inputs = [torch.randn(3, 4, generator=torch.Generator().manual_seed(rank)) for rank in range(2)]
            for step in range(20):
                accelerator.backward((model(inputs[rank]) - 1).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            plain = torch.nn.Linear(4, 2)
            plain.load_state_dict(expected)
            alone = torch.optim.SGD(plain.parameters(), 0.1)
            for step in range(20):
                alone.zero_grad()
                (plain(torch.cat(inputs)) - 1).square().mean().backward()
                alone.step()
            for name, value in model.state_dict().items():
                torch.testing.assert_close(value, plain.state_dict()[name])
            print("bits", [value.view(torch.int32).tolist() for value in model.state_dict().values()])
            optimizer.optimizer.close()
            """
        programs = [self.python(source, self.environment(rank, 2)) for rank in range(2)]
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())
        self.assertEqual(*(program.await_line("^bits .*").group() for program in programs))

    def test_settings_that_would_break_are_refused(self):
        for given, world, said in (("max_grad_norm=1.0", {}, "max_grad_norm=0.*clip_global_norm=1"),
                                   ("max_grad_norm=0, gradient_accumulation_steps=2", {}, "accumulate_steps")):
            with self.subTest(given):
                source = SMALL + f"""
    optimizer = syncline.torch.Optimizer(model, "adamw", lr=0.01)
    Trainer(model, arguments({given}), train_dataset=data, optimizers=(optimizer, None),
            callbacks=[syncline.huggingface.SynclineCallback(optimizer)]).train()
    """
                program = self.python(source, {**self.environment(), "SYNCLINE_JOB": given, **world})
                self.assertEqual(program.wait(), 1, program.text())
                self.assertRegex(program.text().splitlines()[-1], said)


if __name__ == "__main__":
    unittest.main()
