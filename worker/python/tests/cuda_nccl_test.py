"""Tests of the torch.distributed backend "syncline" over NCCL on real GPUs, one for each rank.

    SYNCLINE_BUILD=build/release python3 worker/python/tests/cuda_nccl_test.py -v

Tests of one rank need one GPU, those of more ranks as many; they are skipped without. nccl_distributed_test.py has the tests that use a
stand-in for NCCL.
"""
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest

import support

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is missing (apt-get install python3-torch)") from None

if not torch.cuda.is_available():
    raise unittest.SkipTest("torch finds no GPU")
if torch.version.hip is not None or not torch.distributed.is_nccl_available():
    raise unittest.SkipTest("this torch has no NCCL")

GPUS = torch.cuda.device_count()
PREAMBLE = """
import faulthandler, os, time
faulthandler.enable()
faulthandler.dump_traceback_later(150, exit=True)
import torch
import torch.distributed as dist
import syncline
import syncline.torch.distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(rank)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
dist.init_process_group("syncline")
gpu = torch.device("cuda", rank)
def same(found, expected):
    assert found.is_cuda, found
    assert torch.equal(found.cpu(), torch.as_tensor(expected, dtype=found.dtype).cpu()), (found, expected)
def be_busy(seconds=0.5):
    torch.cuda._sleep(int(seconds * 1.5e9))  # cycles
dist.all_reduce(torch.ones(1, device=gpu))
assert None not in dist.distributed_c10d._get_default_group()._nccl._groups.values(), "not over NCCL: SYNCLINE_LOG=info says why"
"""


class CudaNcclTest(unittest.TestCase):
    """Starts each rank as a new process, because a GPU's driver does not work after a fork."""

    def check(self, body, least=1):
        sizes = sorted({size for size in (1, 2, GPUS) if least <= size <= GPUS})
        if not sizes:
            self.skipTest(f"needs {least} GPUs, and there are {GPUS}")
        for ranks in sizes:
            with self.subTest(ranks=ranks):
                self.run_ranks(body, ranks)

    def run_ranks(self, body, size):
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {**os.environ, "PYTHONPATH": str(support.PACKAGE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
                  "WORLD_SIZE": str(size), "SYNCLINE_NCCL": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(PREAMBLE + textwrap.dedent(body))
            program.flush()
            ranks = [subprocess.Popen([sys.executable, program.name], env={**common, "RANK": str(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(size)]
            outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
        for rank, output in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, output)

    def test_operations(self):
        self.check("""
            last = ranks - 1
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8):
                for shape in ((), (0,), (1,), (65,), (7, 1001), (1 << 20,)):
                    def full(value): return torch.full(shape, value, dtype=dtype, device=gpu)
                    for op, expected in ((dist.ReduceOp.SUM, ranks * (ranks + 1) // 2), (dist.ReduceOp.MAX, ranks), (dist.ReduceOp.MIN, 1)):
                        x = full(rank + 1)
                        dist.all_reduce(x, op=op)
                        same(x, full(expected))
                    dist.broadcast(x.fill_(rank), last)
                    same(x, full(last))
                    x = full(1)
                    dist.reduce(x, last)
                    if rank == last: same(x, full(ranks))
                    parts = [full(9) for _ in range(ranks)]
                    dist.all_gather(parts, full(rank))
                    for other in range(ranks): same(parts[other], full(other))
                    dist.reduce_scatter(x, [full(part) for part in range(ranks)])
                    same(x, full(ranks * rank))
                    dist.gather(full(rank), parts if rank == 0 else None)
                    if rank == 0: same(parts[last], full(last))
                    dist.scatter(x, [full(part + 5) for part in range(ranks)] if rank == last else None, src=last)
                    same(x, full(5 + rank))
                    dist.all_to_all(parts, [full(10 * rank + part) for part in range(ranks)])
                    for other in range(ranks): same(parts[other], full(10 * other + rank))
            x = torch.full((5,), 2.0 * rank, device=gpu)
            dist.all_reduce(x, op=dist.ReduceOp.AVG)
            same(x, [float(last)] * 5)
            flags = torch.tensor([rank == 0, True, False], device=gpu)
            dist.all_reduce(flags, op=dist.ReduceOp.MAX)
            assert flags.tolist() == [True, True, False]
            x = torch.full((4, 6), 1.0, device=gpu).t()  # whose elements do not lie side by side
            dist.all_reduce(x)
            same(x + 1, torch.full((6, 4), ranks + 1.0))
            """)

    def test_a_call_waits_for_nothing_and_begins_behind_the_stream(self):
        self.check("""
            side = torch.cuda.Stream()
            for turn in range(5):
                with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
                    x = torch.zeros(1 << 20, device=gpu)
                    be_busy()
                    x.fill_(turn)
                    busy = torch.cuda.Event()
                    busy.record()
                    work = dist.all_reduce(x, async_op=True)
                    assert not busy.query(), "the call waited for the GPU"
                    assert not work.is_completed()
                work.wait()  # on the default stream
                same(x * 2, torch.full((1 << 20,), 2.0 * ranks * turn))
            """)

    def test_memory_is_not_used_again_too_early(self):
        self.check("""
            kept = []
            for turn in range(300):
                x = torch.full((100000,), float(turn), device=gpu)
                dist.all_reduce(x, async_op=True).wait()
                kept.append(x[:1].clone())
                dist.all_reduce(torch.full((100000,), -1.0, device=gpu), async_op=True)  # that nobody waits for
                del x
            dist.barrier()
            same(torch.cat(kept), [float(ranks * turn) for turn in range(300)])
            """)

    def test_ddp_trains_as_one_process(self):
        self.check("""
            from torch.nn.parallel import DistributedDataParallel
            def make():
                torch.manual_seed(3)
                return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5)).to(gpu, torch.float64)
            def batch(step): return torch.randn(8 * ranks, 20, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(gpu)
            def train(model, cut):
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                for step in range(20):
                    x = batch(step)[cut]
                    optimizer.zero_grad()
                    (model(x) - x[:, :5]).square().mean().backward()
                    optimizer.step()
            model, alone = DistributedDataParallel(make(), device_ids=[rank], bucket_cap_mb=0.01), make()
            train(model, slice(8 * rank, 8 * rank + 8))
            train(alone, slice(None))
            for mine, other in zip(model.parameters(), alone.parameters()): assert torch.allclose(mine, other, atol=1e-9)
            """)

    def test_a_rank_that_dies_is_named(self):
        self.check("""
            x = torch.ones(1 << 20, device=gpu)
            dist.all_reduce(x)
            torch.cuda.synchronize()
            if rank == 1: os._exit(0)
            try:
                dist.all_reduce(x)
            except syncline.Error as error:
                assert error.rank == 1, error
                os._exit(0)
            os._exit(1)
            """, least=2)


if __name__ == "__main__":
    unittest.main()
