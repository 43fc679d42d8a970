"""Tests of the torch.distributed backend "syncline" with tensors on a real GPU that two ranks share. They are skipped without a GPU.

    SYNCLINE_BUILD=build/release python3 worker/python/tests/cuda_distributed_test.py -v

device_distributed_test.py has the tests that use a stand-in for a GPU.
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

RANKS = 2
PREAMBLE = """
import faulthandler, os, time
faulthandler.enable()
faulthandler.dump_traceback_later(150, exit=True)
import torch
import torch.distributed as dist
import syncline.torch.distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.cuda.set_device(0)
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
dist.init_process_group("syncline")
gpu = torch.device("cuda", 0)
def same(found, expected):
    assert found.is_cuda, found
    assert torch.equal(found.cpu(), torch.as_tensor(expected, dtype=found.dtype).cpu()), (found, expected)
def be_busy(seconds=0.5):
    torch.cuda._sleep(int(seconds * 1.5e9))  # cycles
def refused(said, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except (NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        assert said in str(error), error
        return
    raise AssertionError("not refused")
"""


class CudaTest(unittest.TestCase):
    """Starts each rank as a new process, because a GPU's driver does not work after a fork."""

    def check(self, body):
        store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {**os.environ, "PYTHONPATH": str(support.PACKAGE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
                  "WORLD_SIZE": str(RANKS), "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
            program.write(PREAMBLE + textwrap.dedent(body))
            program.flush()
            ranks = [subprocess.Popen([sys.executable, program.name], env={**common, "RANK": str(rank), **self.environment_of(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank in range(RANKS)]
            outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
        for rank, output in zip(ranks, outputs):
            self.assertEqual(rank.returncode, 0, output)

    def environment_of(self, rank):
        return {}

    def test_operations(self):
        self.check("""
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8):
                for shape in ((), (0,), (1,), (65,), (7, 1001), (1 << 20,)):
                    def full(value): return torch.full(shape, value, dtype=dtype, device=gpu)
                    x = full(rank + 1)
                    dist.all_reduce(x)
                    same(x, full(3))
                    x = full(rank + 1)
                    dist.all_reduce(x, op=dist.ReduceOp.MAX)
                    same(x, full(2))
                    dist.broadcast(x.fill_(rank), 1)
                    same(x, full(1))
                    x = full(rank + 1)
                    dist.reduce(x, 1)
                    if rank == 1: same(x, full(3))
                    parts = [full(9) for _ in range(ranks)]
                    dist.all_gather(parts, full(rank))
                    for other in range(ranks): same(parts[other], full(other))
                    dist.reduce_scatter(x, [full(rank + part) for part in range(ranks)])
                    same(x, full(1 + 2 * rank))
                    dist.gather(full(rank), parts if rank == 0 else None)
                    if rank == 0: same(parts[1], full(1))
                    dist.scatter(x, [full(part + 5) for part in range(ranks)] if rank == 1 else None, src=1)
                    same(x, full(5 + rank))
                    dist.all_to_all(parts, [full(10 * rank + part) for part in range(ranks)])
                    for other in range(ranks): same(parts[other], full(10 * other + rank))
                    if rank == 0: dist.send(full(7), 1, tag=3)
                    else:
                        dist.recv(x, 0, tag=3)
                        same(x, full(7))
            flags = torch.tensor([rank == 0, True, False], device=gpu)
            dist.all_reduce(flags, op=dist.ReduceOp.MIN)
            assert flags.tolist() == [False, True, False]
            x = torch.full((4, 6), float(rank), device=gpu).t()  # whose elements do not lie side by side
            dist.all_reduce(x)
            same(x, torch.full((6, 4), 1.0))
            out = torch.empty(2 * ranks, device=gpu)
            gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
            gather(out, torch.full((2,), float(rank), device=gpu))
            same(out, [0.0, 0.0, 1.0, 1.0])
            scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
            half = torch.empty(2, device=gpu)
            scatter(half, out)
            same(half, [2.0 * rank] * 2)
            splits = [[1, 2], [2, 0]]
            takes = [splits[other][rank] for other in range(ranks)]
            out = torch.empty(sum(takes), 2, device=gpu)
            dist.all_to_all_single(out, torch.full((sum(splits[rank]), 2), float(rank), device=gpu), takes, splits[rank])
            same(out[:, 1], sum([[float(other)] * takes[other] for other in range(ranks)], []))
            objects = [None] * ranks
            dist.all_gather_object(objects, {"rank": rank})
            assert [found["rank"] for found in objects] == [0, 1]
            dist.barrier()
            """)

    def test_tensors_of_host_and_gpu_in_turn(self):
        self.check("""
            works, xs = [], []
            for turn in range(60):
                x = torch.full((1000 + turn,), rank + float(turn), device=gpu if turn % 3 else "cpu")
                if turn % 7 == 1: be_busy(0.01)
                xs.append(x)
                works.append(dist.all_reduce(x, async_op=True))
            for work in works: work.wait()
            for turn, x in enumerate(xs): same(x.cuda(), torch.full((1000 + turn,), 2.0 * turn + 1))
            """)

    def test_a_call_waits_for_nothing_and_its_wait_orders_the_stream(self):
        self.check("""
            x = torch.zeros(1 << 20, device=gpu)
            dist.all_reduce(x)  # pinned memory is there
            for turn in range(5):
                x = torch.zeros(1 << 20, device=gpu)
                be_busy()
                x.fill_(rank + turn)
                busy = torch.cuda.Event()
                busy.record()
                work = dist.all_reduce(x, async_op=True)
                assert not busy.query(), "the call waited for the GPU"
                assert not work.is_completed()
                work.wait()
                same(x * 2, torch.full((1 << 20,), 2.0 * (2 * turn + 1)))
            """)

    def test_results_come_behind_what_the_stream_did_with_their_memory_before(self):
        self.check("""
            x = torch.full((1 << 20,), 5.0, device=gpu)
            y = torch.empty_like(x)
            dist.barrier()
            if rank == 0:
                dist.send(x * 2, 1)
            else:
                be_busy()
                y.copy_(x)  # reads what is received, once it is there
                work = dist.irecv(x, 0)
                work.wait()
                same(y, torch.full((1 << 20,), 5.0))
                same(x, torch.full((1 << 20,), 10.0))
            """)

    def test_other_streams(self):
        self.check("""
            side = torch.cuda.Stream()
            for turn in range(5):
                with torch.cuda.stream(side):
                    x = torch.zeros(1 << 18, device=gpu)
                    be_busy(0.1)
                    x.fill_(rank + turn)
                    work = dist.all_reduce(x, async_op=True)
                work.wait()  # here, on the default stream
                same(x + 1, torch.full((1 << 18,), 2.0 * turn + 2))
            """)

    def test_futures_and_completion(self):
        self.check("""
            for turn in range(10):
                x = torch.full((1 << 18,), rank + float(turn), device=gpu)
                future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
                same(future.wait() + 1, torch.full((1 << 18,), 4.0 * turn + 3))
                x = torch.full((1 << 18,), rank + float(turn), device=gpu)
                work = dist.all_reduce(x, async_op=True)
                while not work.is_completed(): time.sleep(0.001)
                assert work.is_success() and work.exception() is None
                same(x, torch.full((1 << 18,), 2.0 * turn + 1))
                same(work.get_future().wait()[0], x)
            """)

    def test_memory_is_not_used_again_too_early(self):
        self.check("""
            kept = []
            for turn in range(300):
                x = torch.full((100000,), rank + float(turn), device=gpu)
                dist.all_reduce(x, async_op=True).wait()
                kept.append(x[:1].clone())
                dist.all_reduce(torch.full((100000,), -1.0, device=gpu), async_op=True)  # that nobody waits for
                del x
            dist.barrier()
            same(torch.cat(kept), [2.0 * turn + 1 for turn in range(300)])
            """)

    def test_ddp_trains_as_one_process(self):
        self.check("""
            from torch.nn.parallel import DistributedDataParallel
            def make():
                torch.manual_seed(3)
                return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5)).to(gpu, torch.float64)
            def batch(step): return torch.randn(32, 20, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(gpu)
            def train(model, cut):
                optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
                for step in range(20):
                    x = batch(step)[cut]
                    optimizer.zero_grad()
                    loss = (model(x) - x[:, :5]).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach())
                return torch.stack(losses)
            model, alone = DistributedDataParallel(make(), device_ids=[0], bucket_cap_mb=0.01), make()
            losses = train(model, slice(16 * rank, 16 * rank + 16))
            dist.all_reduce(losses)
            expected = train(alone, slice(None))
            assert torch.allclose(losses / ranks, expected, atol=1e-6, rtol=0), (losses / ranks, expected)
            assert expected[-1] < 0.9 * expected[0]
            for mine, other in zip(model.parameters(), alone.parameters()): assert torch.allclose(mine, other, atol=1e-9)
            """)

    def test_fsdp2_trains_as_one_process(self):
        self.check("""
            import sys
            try:
                from torch.distributed.device_mesh import init_device_mesh
                from torch.distributed.fsdp import fully_shard
            except ImportError:
                sys.exit(0)
            def make():
                torch.manual_seed(3)
                return torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 6)).to(gpu, torch.float64)
            def batch(step): return torch.randn(32, 20, generator=torch.Generator().manual_seed(step), dtype=torch.float64).to(gpu)
            def train(model, cut):
                optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
                for step in range(20):
                    x = batch(step)[cut]
                    optimizer.zero_grad()
                    loss = (model(x) - x[:, :6]).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.detach())
                return torch.stack(losses)
            model, alone = make(), make()
            mesh = init_device_mesh("cuda", (ranks,))
            for layer in (model[0], model[2]): fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            losses = train(model, slice(16 * rank, 16 * rank + 16))
            dist.all_reduce(losses)
            expected = train(alone, slice(None))
            assert torch.allclose(losses / ranks, expected, atol=1e-6, rtol=0), (losses / ranks, expected)
            for mine, other in zip(model.parameters(), alone.parameters()): assert torch.allclose(mine.full_tensor(), other, atol=1e-9)
            """)

    def test_what_is_refused(self):
        self.check("""
            refused("torch.sparse", dist.all_reduce, torch.ones(3, device=gpu).to_sparse())
            if hasattr(dist.distributed_c10d, "BackendConfig"):
                mixed = dist.new_group(backend="cpu:syncline,cuda:nccl")
                refused("dist.new_group(backend='nccl')", dist.all_reduce, torch.ones(3, device=gpu), group=mixed)
                x = torch.ones(3)
                dist.all_reduce(x, group=mixed)
                same(x.cuda(), [2.0] * 3)
            work = dist.all_reduce(torch.ones(5 + rank, device=gpu), async_op=True)
            refused("of 5 f32", work.wait)
            assert isinstance(work.exception(), syncline.errors.FailedPrecondition), work.exception()
            """)

    def test_a_rank_that_dies_is_named(self):
        self.check("""
            import sys
            x = torch.ones(1 << 20, device=gpu)
            dist.all_reduce(x)
            if rank == 1:
                torch.cuda.synchronize()
                os._exit(0)
            refused("rank 1", dist.all_reduce, x)
            torch.cuda.synchronize()
            """)


class CudaBetweenHostsTest(CudaTest):
    def environment_of(self, rank):
        return {"SYNCLINE_GROUP_HOST": f"host{rank}", "SYNCLINE_GROUP_ADDRESS": "127.0.0.1"}


if __name__ == "__main__":
    unittest.main()
