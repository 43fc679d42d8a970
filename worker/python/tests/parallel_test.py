"""Tests of torch's ways to spread one model over ranks: the backend "syncline" gives a small transformer the same losses as gloo.

They need DeviceMesh and fully_shard: torch 2.6 or newer. Numbers are float64, so that differences from the order of a sum are far below
the tolerance of 1e-6.
"""
import textwrap
import unittest

try:
    import torch
    import torch.distributed.tensor
    from torch.distributed.fsdp import fully_shard  # noqa: F401
except ImportError:
    raise unittest.SkipTest("ModuleSkipped: this torch has no fully_shard") from None

from distributed_ranks import run_ranks

PREAMBLE = """
import os
import torch
import torch.distributed as dist
import syncline.torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)
STEPS = 50

class Block(nn.Module):
    def __init__(self, attention=None):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(16, 16) for _ in range(4))
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.attention = attention or nn.functional.scaled_dot_product_attention
    def forward(self, x):
        y = self.norms[0](x)
        # As many heads as the projections have here, of 4 channels each.
        heads = [one(y).unflatten(-1, (-1, 4)).transpose(1, 2) for one in (self.q, self.k, self.v)]
        x = x + self.out(self.attention(*heads).transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

def make_model(attention=None):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), *[Block(attention) for _ in range(2)], nn.Linear(16, 8))

def batch(step, of=0):
    x = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(1000 * step + of))
    return x, x.roll(1, 1)

def train(model, of=0, cut=lambda x: x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for step in range(STEPS):
        x, y = (cut(one) for one in batch(step, of))
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

def compare(losses_of):
    store, losses = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False), {}
    for backend in ("gloo", "syncline"):
        dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=ranks)
        losses[backend] = losses_of()
        dist.barrier()
        dist.destroy_process_group()
    theirs, ours = losses["gloo"], losses["syncline"]
    assert len(theirs) == len(ours) and all(abs(a - b) < 1e-6 for a, b in zip(theirs, ours)), (theirs, ours)
    return ours

def compare_training(losses_of):
    losses = compare(losses_of)
    assert len(losses) == STEPS and sum(losses[-10:]) < 0.95 * sum(losses[:10]), losses
"""


class ParallelTest(unittest.TestCase):
    def check(self, body):
        for output, code in run_ranks(body, 4, preamble=PREAMBLE):
            self.assertEqual(code, 0, output)

    def test_fully_sharded_data_parallel(self):
        self.check("""
            from torch.distributed.fsdp import fully_shard
            def losses():
                mesh = init_device_mesh("cpu", (ranks,))
                model = make_model()
                for block in model: fully_shard(block, mesh=mesh)
                fully_shard(model, mesh=mesh)
                return train(model, of=rank)
            compare_training(losses)
            """)

    def test_hybrid_sharded_data_parallel(self):
        self.check("""
            from torch.distributed.fsdp import fully_shard
            def losses():
                mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
                model = make_model()
                for block in model: fully_shard(block, mesh=mesh, reshard_after_forward=False)
                fully_shard(model, mesh=mesh)
                return train(model, of=rank)
            compare_training(losses)
            """)

    def test_tensor_parallel_beside_data_parallel(self):
        self.check("""
            from torch.distributed.fsdp import fully_shard
            from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
            def losses():
                mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
                model = make_model()
                for block in model[1:-1]:
                    parallelize_module(block, mesh["tensor"], {
                        "q": ColwiseParallel(), "k": ColwiseParallel(), "v": ColwiseParallel(), "out": RowwiseParallel(),
                        "up": ColwiseParallel(), "down": RowwiseParallel()})
                    fully_shard(block, mesh=mesh["data"])
                fully_shard(model, mesh=mesh["data"])
                return train(model, of=mesh["data"].get_local_rank())
            compare_training(losses)
            """)

    def test_dtensors_change_places(self):
        self.check("""
            from torch.distributed.tensor import Replicate, Shard, distribute_tensor
            def numbers():
                mesh = init_device_mesh("cpu", (ranks,))
                whole = torch.arange(10 * 12.0).reshape(10, 12)
                rows = distribute_tensor(whole, mesh, [Shard(0)])  # 10 rows for 4 ranks
                columns = rows.redistribute(mesh, [Shard(1)])
                assert columns.to_local().shape == (10, 3), columns.to_local().shape
                assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
                assert torch.equal((rows @ distribute_tensor(whole.t(), mesh, [Shard(1)])).full_tensor(), whole @ whole.t())
                return columns.to_local().flatten().tolist()
            assert compare(numbers)[:2] == [3.0 * rank, 3.0 * rank + 1]
            """)

    def check_pipeline(self, schedule):
        self.check(f"""
            from torch.distributed.pipelining import PipelineStage, {schedule}
            def losses():
                part = make_model()[rank]
                stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
                schedule = {schedule}(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)
                optimizer, said = torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9), []
                for step in range(STEPS):
                    x, y = batch(step)
                    optimizer.zero_grad()
                    parts = []
                    if rank == 0: schedule.step(x)
                    elif rank == ranks - 1: schedule.step(target=y, losses=parts)
                    else: schedule.step()
                    optimizer.step()
                    loss = torch.stack(parts).mean().detach() if parts else torch.zeros(())
                    dist.broadcast(loss, ranks - 1)
                    said.append(loss.item())
                return said
            compare_training(losses)
            """)

    def test_pipeline_gpipe(self):
        self.check_pipeline("ScheduleGPipe")

    def test_pipeline_1f1b(self):
        self.check_pipeline("Schedule1F1B")

    def check_attention(self, attention):
        """Each rank has a quarter of the sequence. The mean of the ranks' losses is that of one process with the whole sequence."""
        self.check(attention + textwrap.dedent("""
            def losses():
                model = nn.parallel.DistributedDataParallel(make_model(attention))
                parts = torch.tensor(train(model, cut=lambda x: x.chunk(ranks, 1)[rank]))
                dist.all_reduce(parts)
                return (parts / ranks).tolist()
            ours, alone = compare(losses), train(make_model())
            assert all(abs(a - b) < 1e-6 for a, b in zip(ours, alone)), (ours, alone)
            assert sum(ours[-10:]) < 0.95 * sum(ours[:10]), ours
            """))

    def test_attention_by_all_to_all(self):
        # As DeepSpeed's Ulysses: of all positions some heads, in place of all heads of some positions.
        self.check_attention(textwrap.dedent("""
            from torch.distributed.nn.functional import all_to_all_single
            def attention(q, k, v):
                def exchange(x, of, to):
                    given = torch.cat(x.chunk(ranks, of), 0).contiguous()
                    return torch.cat(all_to_all_single(torch.empty_like(given), given).chunk(ranks, 0), to)
                heads = [exchange(x, 1, 2) for x in (q, k, v)]
                return exchange(nn.functional.scaled_dot_product_attention(*heads), 2, 1)
            """))

    def test_attention_in_a_ring(self):
        # Keys and values go round, and their gradients on with them.
        self.check_attention(textwrap.dedent("""
            def passed_on(x, by):
                out = torch.empty_like(x)
                works = dist.batch_isend_irecv([dist.P2POp(dist.isend, x.contiguous(), (rank + by) % ranks),
                                                dist.P2POp(dist.irecv, out, (rank - by) % ranks)])
                for work in works: work.wait()
                return out
            class PassOn(torch.autograd.Function):
                @staticmethod
                def forward(context, x): return passed_on(x, 1)
                @staticmethod
                def backward(context, gradient): return passed_on(gradient, -1)
            def attention(q, k, v):
                both, scores, values = torch.stack((k, v)), [], []
                for turn in range(ranks):
                    scores.append(q @ both[0].transpose(-1, -2) / 2)
                    values.append(both[1])
                    if turn + 1 < ranks: both = PassOn.apply(both)
                weights = torch.cat(scores, -1).softmax(-1).chunk(ranks, -1)
                return sum(weight @ value for weight, value in zip(weights, values))
            """))


if __name__ == "__main__":
    unittest.main()
