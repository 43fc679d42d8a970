"""Tests of the torch.distributed backend between network namespaces that act as hosts.

DDP trains, and errors name a rank that is killed, stopped or cut off.
"""
import contextlib
import os
import signal
import sys
import tempfile
import textwrap
import time
import unittest
from pathlib import Path

import support

sys.path.insert(0, str(support.HERE.parents[2]))
from tests.network.hosts import Hosts, missing  # noqa: E402

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("torch is missing (apt-get install python3-torch)") from None

PREFIX = "group"
if (reason := missing(PREFIX)) is not None:
    raise unittest.SkipTest(f"ModuleSkipped: {reason}")

NAMES = ["a", "b"]
# Trains, and prints a digest of the weights. If asked to go on, it trains until an error, and prints the error.
PROGRAM = """
import hashlib, os, sys
import torch
import torch.distributed as dist
import syncline
import syncline.torch.distributed
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("syncline")
rank = dist.get_rank()
torch.manual_seed(3)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(50, 400), torch.nn.ReLU(), torch.nn.Linear(400, 5)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(number):
    torch.manual_seed(100 * rank + number)
    x = torch.randn(16, 50)
    optimizer.zero_grad()
    (model(x) - x[:, :5]).square().mean().backward()
    optimizer.step()
for number in range(20):
    step(number)
weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
print("weights", hashlib.sha256(weights).hexdigest(), flush=True)
if sys.argv[1] == "train":
    dist.barrier()
    sys.exit()
try:
    while True:
        step(0)
except RuntimeError as error:
    try:
        dist.all_reduce(torch.ones(1))
    except syncline.Error as after:
        print("failed", after.rank, str(after).replace(chr(10), " "), flush=True)
        os._exit(0)
"""


class Ranks:
    """Starts PROGRAM on each host."""

    def __init__(self, net, folder, task, share=False):
        program = Path(folder) / "program.py"
        program.write_text(textwrap.dedent(PROGRAM))
        self.logs, self.processes = [], []
        for rank, name in enumerate(NAMES):
            where = NAMES[0] if share else name
            environment = {
                "PYTHONPATH": str(support.PACKAGE), "MASTER_ADDR": net.address("a"), "MASTER_PORT": "29555", "RANK": str(rank),
                "WORLD_SIZE": str(len(NAMES)), "SYNCLINE_GROUP_HOST": "" if share else name}
            self.logs.append(Path(folder) / f"{task}{share}{rank}.log")
            with self.logs[-1].open("w") as log:
                self.processes.append(net.start(where, [sys.executable, program, task], log, environment))

    def await_line(self, rank, start):
        deadline = time.monotonic() + support.PATIENCE
        while time.monotonic() < deadline:
            for line in self.logs[rank].read_text().splitlines():
                if line.startswith(start):
                    return line
            time.sleep(0.05)
        raise AssertionError(f"no line '{start}' of rank {rank}:\n{self.logs[rank].read_text()}")


class HostsTest(unittest.TestCase):
    def setUp(self):
        self.net = self.enterContext(Hosts(PREFIX, NAMES))
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def test_ddp_gives_the_same_bits_between_hosts_as_on_one(self):
        found = set()
        for share in (False, True):
            ranks = Ranks(self.net, self.folder, "train", share)
            found |= {ranks.await_line(rank, "weights") for rank in range(len(NAMES))}
            for process in ranks.processes:
                self.assertEqual(process.wait(support.PATIENCE), 0)
            if not share:
                self.assertGreater(self.net.sent()["b"], 1_000_000)  # 20 gradients went over the cable
        self.assertEqual(len(found), 1)

    def await_failure(self, break_it):
        ranks = Ranks(self.net, self.folder, "go on")
        for rank in range(len(NAMES)):
            ranks.await_line(rank, "weights")
        began = time.monotonic()
        with break_it(ranks):
            line = ranks.await_line(0, "failed")
        self.assertRegex(line, r"^failed 1 .*rank 1 on 10\.1\.0\.2")
        self.assertLess(time.monotonic() - began, 60)  # 10 s, on a machine that is busy

    def test_a_rank_that_is_killed_is_named(self):
        self.await_failure(lambda ranks: self.signalled(ranks, signal.SIGKILL))

    def test_a_rank_that_is_stopped_is_named(self):
        self.await_failure(lambda ranks: self.signalled(ranks, signal.SIGSTOP))

    def test_a_rank_whose_cable_is_cut_is_named(self):
        self.await_failure(lambda ranks: self.net.cut("b", "data"))

    def signalled(self, ranks, number):
        os.killpg(ranks.processes[1].pid, number)
        return contextlib.nullcontext()


if __name__ == "__main__":
    unittest.main()
