"""The torch.distributed backend "syncline": every operation against its definition, DDP against gloo, and a rank that dies."""
import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import unittest

import support

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("torch is missing (apt-get install python3-torch)") from None

RANKS = 3
PREAMBLE = """
import os, sys
import torch
import torch.distributed as dist
import syncline.torch.distributed
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
dist.init_process_group("syncline", rank=rank, world_size=ranks)
def same(found, expected):
    assert torch.equal(found, torch.as_tensor(expected, dtype=found.dtype)), (found, expected)
"""


def run_ranks(body, ranks=RANKS):
    """Runs the program in `ranks` processes; what each printed, and its exit code."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(PREAMBLE + textwrap.dedent(body))
        program.flush()
        processes = [
            subprocess.Popen(
                [sys.executable, program.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                env={**os.environ, "PYTHONPATH": str(support.PACKAGE), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                     "RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo"})
            for rank in range(ranks)
        ]
        try:
            return [(process.communicate(timeout=support.PATIENCE)[0], process.returncode) for process in processes]
        finally:
            for process in processes:
                process.kill()


class DistributedTest(unittest.TestCase):
    def check(self, body, ranks=RANKS):
        for output, code in run_ranks(body, ranks):
            self.assertEqual(code, 0, output)

    def test_operations(self):
        self.check("""
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8):
                for shape in ((), (0,), (1,), (65,), (7, 1001)):
                    x = torch.full(shape, rank + 1, dtype=dtype)
                    dist.all_reduce(x)
                    same(x, torch.full(shape, 6))
                    x = torch.full(shape, rank + 1, dtype=dtype)
                    dist.all_reduce(x, op=dist.ReduceOp.MAX)
                    same(x, torch.full(shape, 3))
                    dist.broadcast(x.fill_(rank), 2)
                    same(x, torch.full(shape, 2))
                    parts = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
                    dist.all_gather(parts, torch.full(shape, rank, dtype=dtype))
                    for other in range(ranks):
                        same(parts[other], torch.full(shape, other))
                    dist.reduce_scatter(x, [torch.full(shape, rank + part, dtype=dtype) for part in range(ranks)])
                    same(x, torch.full(shape, 3 + 3 * rank))
            flags = torch.tensor([rank == 0, True, False])
            dist.all_reduce(flags, op=dist.ReduceOp.MIN)
            assert flags.tolist() == [False, True, False]
            x = torch.full((4, 6), float(rank)).t()  # whose elements do not lie side by side
            dist.all_reduce(x)
            same(x, torch.full((6, 4), 3.0))
            x = torch.full((5,), rank + 1.0)
            dist.reduce(x, 1)
            if rank == 1: same(x, torch.full((5,), 6.0))
            parts = [torch.empty(5) for _ in range(ranks)] if rank == 2 else None
            dist.gather(torch.full((5,), float(rank)), parts, dst=2)
            if rank == 2: same(torch.stack(parts)[:, 0], [0, 1, 2])
            dist.scatter(x, [torch.full((5,), part + 10.0) for part in range(ranks)] if rank == 0 else None, src=0)
            same(x, torch.full((5,), rank + 10.0))
            objects = [None] * ranks
            dist.all_gather_object(objects, {"rank": rank})
            assert [found["rank"] for found in objects] == [0, 1, 2]
            dist.barrier()
            """)

    def test_all_to_all_and_sends(self):
        self.check("""
            out = torch.empty(ranks)
            dist.all_to_all_single(out, torch.arange(ranks) + 10.0 * rank)
            same(out, [rank, 10 + rank, 20 + rank])
            splits = [[1, 2, 3], [2, 0, 1], [3, 1, 2]]
            takes = [splits[other][rank] for other in range(ranks)]
            out = torch.empty(sum(takes), 2)
            dist.all_to_all_single(out, torch.full((sum(splits[rank]), 2), float(rank)), takes, splits[rank])
            same(out[:, 1], sum([[float(other)] * takes[other] for other in range(ranks)], []))
            outs = [torch.empty(splits[other][rank]) for other in range(ranks)]
            dist.all_to_all(outs, [torch.full((n,), float(rank)) for n in splits[rank]])
            for other in range(ranks): same(outs[other], torch.full_like(outs[other], other))
            # All send first, more than fits anywhere.
            big = torch.full((1 << 20,), float(rank))
            got = torch.empty(1 << 20)
            works = [dist.isend(big, (rank + 1) % ranks, tag=7), dist.irecv(got, (rank - 1) % ranks, tag=7)]
            dist.barrier()
            for work in works: work.wait()
            same(got, torch.full_like(got, (rank - 1) % ranks))
            """)

    def test_handles_and_sub_groups(self):
        self.check("""
            xs = [torch.full((1000 * (k + 1),), float(rank)) for k in range(8)]
            works = [dist.all_reduce(x, async_op=True) for x in xs]
            values = [work.get_future().wait() for work in works[::2]]
            for work in works[1::2]: work.wait()
            assert all(work.is_completed() for work in works)
            for x in xs: same(x, torch.full_like(x, 3.0))
            pair = dist.new_group([0, 2], backend="syncline")
            if rank != 1:
                x = torch.tensor([rank + 1.0])
                dist.all_reduce(x, group=pair)
                same(x, [4.0])
            dist.barrier()
            """)

    def test_ddp_trains_as_over_gloo(self):
        self.check("""
            from torch.nn.parallel import DistributedDataParallel
            def train(group):
                torch.manual_seed(3)
                model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 5))
                model = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.005)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
                losses = []
                for step in range(15):
                    torch.manual_seed(100 * rank + step)
                    x = torch.randn(16, 20)
                    optimizer.zero_grad()
                    loss = (model(x) - x[:, :5]).square().mean()
                    loss.backward()
                    optimizer.step()
                    losses.append(loss.item())
                return losses, [p.detach().clone() for p in model.parameters()]
            ours, weights = train(None)
            theirs, gloo_weights = train(dist.new_group(backend="gloo"))
            assert ours[-1] < 0.9 * ours[0], ours
            assert all(abs(a - b) < 1e-5 for a, b in zip(ours, theirs)), (ours, theirs)
            for mine, other in zip(weights, gloo_weights):
                assert torch.allclose(mine, other, atol=1e-5)
                parts = [torch.empty_like(mine) for _ in range(ranks)]
                dist.all_gather(parts, mine)
                for part in parts: same(part, mine)  # the same bits on all ranks
            dist.barrier()
            """)

    def test_a_rank_that_dies_is_named_on_all_others(self):
        for output, code in run_ranks("""
            from torch.nn.parallel import DistributedDataParallel
            model = DistributedDataParallel(torch.nn.Linear(2000, 500))
            try:
                for step in range(1000000):
                    if step == 3 and rank == 1: os._exit(0)
                    model(torch.ones(2, 2000)).sum().backward()
            except RuntimeError as error:
                assert "rank 1" in str(error), error
                try:
                    dist.all_reduce(torch.ones(1))
                except syncline.Error as error:
                    assert error.rank == 1, error.rank
                    os._exit(0)
            os._exit(1)
            """):
            self.assertEqual(code, 0, output)

    def test_ranks_that_disagree_hear_of_it(self):
        for output, code in run_ranks("""
            try:
                dist.all_reduce(torch.ones(5 if rank == 1 else 4))
            except syncline.errors.FailedPrecondition as error:
                assert "of 5 f32" in str(error) and "of 4 f32" in str(error), error
                os._exit(0)
            os._exit(1)
            """):
            self.assertEqual(code, 0, output)

    def test_what_it_cannot_do_is_said(self):
        self.check("""
            for tensor, op in ((torch.ones(3, dtype=torch.int16), dist.ReduceOp.SUM),
                               (torch.ones(3), dist.ReduceOp.BXOR), (torch.ones(3).to_sparse(), dist.ReduceOp.SUM)):
                try:
                    dist.all_reduce(tensor, op=op)
                except (NotImplementedError, RuntimeError, ValueError) as error:
                    continue
                raise AssertionError(tensor)
            dist.barrier()
            """, ranks=1)


if __name__ == "__main__":
    unittest.main()
