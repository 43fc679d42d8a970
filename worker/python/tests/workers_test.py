"""Tests of several training processes of one job: what they compute together, and what happens when one dies."""
import re
import shutil
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import support

try:
    import torch
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

# Trains on rows rank, rank + W, rank + 2W, ... of one batch for each step, and saves the result.
TRAIN = """
    import os, sys, time, torch, syncline.torch
    from torch import nn
    torch.set_num_threads(1)
    torch.manual_seed(int(os.environ["RANK"]))  # the first one's values count
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
    {initial}
    optimizer = syncline.torch.Optimizer(model, "adamw", lr=0.01, push="fp32", publish="fp32")
    first = optimizer.steps
    print("first step", first)
    for step in range(first, {steps}):
        torch.manual_seed(step)
        rows = torch.randn(64, 6)[optimizer.rank::optimizer.world_size]
        optimizer.zero_grad()
        nn.functional.mse_loss(model(rows), torch.sin(rows[:, :3])).backward()
        optimizer.step()
        print("step", step)
        {each_step}
    optimizer.synchronize()
    torch.save(model.state_dict(), sys.argv[1] if len(sys.argv) > 1 else os.environ["OUT"])
    print("done")
"""


class Workers(support.ServersTest):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def train(self, rank, world, job="", **source):
        source = {"steps": 50, "initial": "pass", "each_step": "pass", **source}
        out = self.folder / f"{job}{rank}.pt"
        environment = {**self.environment(rank, world), "SYNCLINE_JOB": f"{self.id()}{job}", "OUT": str(out)}
        return self.program(TRAIN.format(**source), environment), out

    def finish(self, started):
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        return [torch.load(out) for _, out in started]

    def test_together_compute_what_one_does(self):
        initial = "torch.manual_seed(7); [nn.init.normal_(p) for p in model.parameters()]"
        together = self.finish([self.train(rank, 4, "four", initial=initial) for rank in range(4)])
        alone = self.finish([self.train(0, 1, "one", initial=initial)])[0]
        for name, weight in together[0].items():
            for other in together[1:]:
                self.assertTrue(torch.equal(weight, other[name]), name)
            torch.testing.assert_close(weight, alone[name], rtol=1e-4, atol=1e-5)

    def test_begin_with_the_weights_of_one(self):
        several = self.finish([self.train(rank, 3, steps=0) for rank in range(3)])
        for name, weight in several[0].items():
            self.assertTrue(all(torch.equal(weight, other[name]) for other in several[1:]), name)

    def test_go_on_after_one_is_killed_and_comes_back(self):
        back = self.folder / "back"
        # The restarted process takes some seconds to import torch.
        slow = {"steps": 300, "each_step": f"time.sleep(0.3 if 60 < step < 290 and not os.path.exists({str(back)!r}) else 0.01)"}
        first, second = (self.train(rank, 2, **slow) for rank in range(2))
        second[0].await_line("step 20")
        second[0].kill()
        first[0].await_line("step 60")
        again = self.train(1, 2, **slow)
        joined = int(again[0].await_line(r"first step (\d+)").group(1))
        back.touch()
        self.assertGreater(joined, 20)
        weights = self.finish([first, again])
        for name, weight in weights[0].items():
            self.assertTrue(torch.equal(weight, weights[1][name]), name)

    @unittest.skipUnless(shutil.which("torchrun", path="/usr/bin") and sys.executable.startswith("/usr/bin"), "no torchrun")
    def test_are_started_by_torchrun(self):
        script = self.folder / "train.py"

        script.write_text(textwrap.dedent(TRAIN.format(steps=5, initial="pass", each_step="pass")))
        environment = self.environment()
        for name in ("RANK", "WORLD_SIZE"):
            del environment[name]
        # Without -r and -t Debian's torchrun fails under Python 3.11.
        program = support.Process(["/usr/bin/torchrun", "--standalone", "--nproc_per_node", "2", "-r", "1", "-t", "1",
                                   str(script)], {**environment, "OUT": str(self.folder / "out.pt")})
        self.addCleanup(program.kill)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertEqual(len(re.findall(r"\bdone", program.text())), 2, program.text())


if __name__ == "__main__":
    unittest.main()
