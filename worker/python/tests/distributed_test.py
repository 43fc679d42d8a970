"""Tests of the torch.distributed backend "syncline": every operation against its definition, DDP against gloo, a rank that dies."""
import json
import os
import tempfile
import unittest

import support
from distributed_ranks import RANKS, run_ranks, torch


class DistributedTest(unittest.TestCase):
    """The tests among processes of one host."""

    def environment_of(self, rank):
        return {}

    def check(self, body, ranks=RANKS):
        for output, code in run_ranks(body, ranks, self.environment_of):
            self.assertEqual(code, 0, output)

    def test_barriers_whatever_the_default_dtype_is(self):
        self.check("""
            torch.set_default_dtype(torch.float64 if rank else torch.float32)
            dist.barrier()
            """)

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
        self.check("""
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
            """)

    def test_sums_in_the_exact_order_are_those_of_a_loop_wherever_ranks_are(self):
        exact = {"SYNCLINE_GROUP_EXACT_ORDER": "1"}
        for output, code in run_ranks("""
            def values(of, kind): return torch.randn(70000, generator=torch.Generator().manual_seed(of)).to(kind)
            for kind in (torch.float32, torch.bfloat16):
                x = values(rank, kind)
                dist.all_reduce(x)
                sum = values(0, kind).float()
                for other in range(1, ranks): sum = sum + values(other, kind).float()
                same(x, sum.to(kind))
            """, RANKS, lambda rank: {**self.environment_of(rank), **exact}):
            self.assertEqual(code, 0, output)

    def test_rank_zeros_costs_count_for_all_and_are_logged(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "costs.json")
            results = run_ranks("""
                x = torch.ones(70000)
                dist.all_reduce(x)
                same(x, torch.full((70000,), float(ranks)))
                """, RANKS, lambda rank: {**self.environment_of(rank), "SYNCLINE_GROUP_COSTS": path if rank == 0 else "elsewhere/none"})
            for rank, (output, code) in enumerate(results):
                self.assertEqual(code, 0, output)
                self.assertEqual("costs are measured: within a host" in output and "64 MiB by " in output, rank == 0, output)
            with open(path) as file:
                self.assertEqual(json.load(file)["version"], 1)

    def test_bitwise_and_premultiplied_reductions(self):
        self.check("""
            given = [[0b1100, 7, -1], [0b1010, 5, -2], [0b0110, 3, -4]]
            for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8):
                for op, expected in ((dist.ReduceOp.BAND, [0, 1, -4]), (dist.ReduceOp.BOR, [14, 7, -1]),
                                     (dist.ReduceOp.BXOR, [0, 1, -1 ^ -2 ^ -4])):
                    x = torch.tensor(given[rank]).to(dtype)
                    dist.all_reduce(x, op=op)
                    same(x, torch.tensor(expected).to(dtype))
            flags = torch.tensor([True, rank == 0, rank < 2])
            dist.all_reduce(flags, op=dist.ReduceOp.BXOR)
            assert flags.tolist() == [True, True, False], flags
            times = dist._make_nccl_premul_sum(rank + 2.0)
            if not hasattr(times, "factor"):
                refused("or multiply the tensor", dist.all_reduce, torch.ones(3), op=times)
            else:
                for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8,
                              torch.uint8):
                    x = torch.full((5,), rank + 1, dtype=dtype)
                    dist.all_reduce(x, op=times)
                    same(x, torch.full((5,), 2 * 1 + 3 * 2 + 4 * 3))
                    out = torch.empty(2, dtype=dtype)
                    dist.reduce_scatter(out, [torch.full((2,), part + 1, dtype=dtype) for part in range(ranks)], op=times)
                    same(out, torch.full((2,), 9 * (rank + 1)))
            """)

    def test_a_monitored_barrier_names_who_does_not_come(self):
        self.check("""
            from datetime import timedelta
            from syncline.torch.distributed import monitored_barrier
            monitored_barrier()
            monitored_barrier(timeout=timedelta(seconds=60))
            monitored_barrier(timeout=60)
            for wrong, error in (("x", TypeError), (True, TypeError), (-1, ValueError), (timedelta(0), ValueError)):
                try:
                    monitored_barrier(timeout=wrong)
                except error as refused:
                    assert "timeout" in str(refused), refused
                else:
                    raise AssertionError(f"{wrong!r} was taken")
            try:
                if rank == 0:
                    monitored_barrier(timeout=timedelta(seconds=2))
                else:  # lives, does something else, and hears of it
                    dist.recv(torch.empty(1), src=3 - rank)
            except syncline.errors.DeadlineExceeded as error:
                expected = "ranks 1, 2 did not take part" if rank else "monitored_barrier: ranks 1, 2 did not come within 2 s"
                assert expected in str(error), error
                assert rank or "gather" not in str(error), error
            else:
                raise AssertionError("nobody was missed")
            """)

    def test_ranks_that_disagree_hear_of_it(self):
        self.check("""
            try:
                dist.all_reduce(torch.ones(5 if rank == 1 else 4))
            except syncline.errors.FailedPrecondition as error:
                assert "of 5 f32" in str(error) and "of 4 f32" in str(error), error
                os._exit(0)
            os._exit(1)
            """)

    def test_ranks_that_name_different_roots_hear_of_it(self):
        for call in ("dist.broadcast(torch.ones(4), rank)", "dist.broadcast(torch.ones(10000), rank)",
                     "dist.scatter(torch.ones(10000), [torch.ones(10000)] * 2, src=rank)"):
            with self.subTest(call):
                self.check(f"""
                    refused("with root 1", lambda: {call})
                    os._exit(0)
                    """, ranks=2)

    def test_ranks_that_disagree_on_types_hear_of_it_though_sizes_are_the_same(self):
        for call in ("dist.all_gather([torch.empty(4, dtype=kind) for _ in range(2)], x)",
                     "dist.broadcast(x, 0)",
                     "dist.all_to_all_single(torch.empty(4, dtype=kind), x)",
                     "dist.broadcast(x.repeat(100000), 0)",
                     "dist.all_reduce(torch.ones(4, dtype=(torch.bool, torch.uint8)[rank]), op=dist.ReduceOp.MAX)"):
            with self.subTest(call):
                self.check(f"""
                    kind = (torch.float32, torch.int32)[rank]
                    x = torch.ones(4, dtype=kind)
                    try:
                        {call}
                        dist.barrier()  # a root may have given all that it has before it hears
                    except syncline.errors.FailedPrecondition as error:
                        assert "(int32)" in str(error) or "(bool)" in str(error), error
                        os._exit(0)
                    os._exit(1)
                    """, ranks=2)

    def test_what_it_cannot_do_is_said(self):
        self.check("""
            refused("cannot reduce torch.int16", dist.all_reduce, torch.ones(3, dtype=torch.int16))
            refused("bitwise reductions take integers and booleans, got torch.float32", dist.all_reduce, torch.ones(3), op=dist.ReduceOp.BXOR)
            refused("", dist.all_reduce, torch.ones(3).to_sparse())
            dist.barrier()
            """, ranks=1)

    def test_tensors_that_do_not_fit_each_other_are_refused_before_anything_starts(self):
        self.check("""
            group = dist.distributed_c10d._get_default_group()
            floats, bytes_ = torch.ones(6), torch.zeros(12, dtype=torch.uint8)
            refused("torch.float32 and torch.uint8", group._allgather_base, bytes_, floats)
            refused("torch.float32 and torch.uint8", group._reduce_scatter_base, bytes_[:3], floats)
            refused("torch.float32 and torch.uint8", group.allgather, [[floats, bytes_[:6]]], [floats])
            refused("torch.float32 and torch.uint8", group.gather, [[floats, bytes_[:6]]] if rank == 0 else [], [floats]) \
                if rank == 0 else None
            refused("torch.float32 and torch.uint8", group.alltoall_base, bytes_, floats, [], [])
            refused("torch.float32 and torch.uint8", group.alltoall, [floats, bytes_], [floats, floats])
            refused("rank 1 has 5 elements, but all must have 6", group.allgather, [[floats, floats[:5]]], [floats])
            refused("3 parts for 2 ranks", group.allgather, [[floats] * 3], [floats])
            refused("1 parts for 2 ranks", group.allgather, [[floats]], [floats])
            refused("0 outputs for 1 inputs", group.allgather, [], [floats])
            if rank == 0:
                refused("0 lists of outputs for 1 inputs", group.gather, [], [floats])
                refused("0 lists of inputs for 1 outputs", group.scatter, [floats], [])
            refused("rank 0 has 2 elements, but all must have 3", group.reduce_scatter, [floats[:3]], [[floats[:2], floats[:4]]])
            if rank == 0:
                refused("rank 0 has 2 elements, but all must have 6", group.scatter, [floats], [[floats[:2], floats[:2]]])
                refused("rank 1 has 5 elements, but all must have 6", group.gather, [[floats, floats[:5]]], [floats])
            refused("split sizes [6] of a tensor of 6 rows for 2 ranks", group.alltoall_base, floats.clone(), floats, [6], [6])
            refused("split sizes [7, -1]", group.alltoall_base, floats.clone(), floats, [3, 3], [7, -1])
            refused("split sizes [1, 1] of a tensor of 0 rows", group.alltoall_base, floats[:0], floats[:0], [1, 1], [1, 1])
            refused("5 elements do not divide by 2", group.alltoall_base, floats[:5].clone(), floats[:5], [], [])
            refused("1 inputs and 2 outputs", group.alltoall, [floats, floats], [floats])
            refused("one for each rank", group._native.start, 7, input=1, output=1, counts=([1], [1]))
            dist.all_reduce(floats)
            same(floats, torch.full((6,), 2.0))
            """, ranks=2)

    def test_views_that_are_conjugate_or_negative(self):
        self.check("""
            x = torch.full((3,), rank + 1.0)
            dist.all_reduce(torch._neg_view(x))
            same(x, torch.full((3,), 3.0))
            x.fill_(rank + 5.0)
            dist.broadcast(torch._neg_view(x) if rank else x, 0)
            same(x, torch.full((3,), -5.0 if rank else 5.0))
            dist.all_gather(parts := [torch.empty(3) for _ in range(2)], torch._neg_view(torch.full((3,), rank + 1.0)))
            for other, part in enumerate(parts): same(part, torch.full((3,), -1.0 - other))
            memory = torch.full((4,), complex(rank + 1, 2.0))
            dist.distributed_c10d._get_default_group().broadcast([memory.conj() if rank else memory]).wait()  # dist.broadcast refuses it
            same(memory, torch.full((4,), complex(1, -2.0 if rank else 2.0)))
            """, ranks=2)

    def test_an_exception_that_leaves_a_coalescing_block_keeps_no_later_works(self):
        self.check("""
            (group := dist.distributed_c10d._get_default_group())._start_coalescing(torch.device("cpu"))
            works = [dist.all_reduce(torch.ones(3), async_op=True)]  # and now an exception: the block never ends
            for _ in range(4): dist.all_reduce(torch.ones(3))
            assert list(group._block) == works, group._block
            group._start_coalescing(torch.device("cpu"))
            works += [dist.all_reduce(torch.ones(3), async_op=True)]
            assert group._end_coalescing()._works == works[1:]
            for work in works: work.wait()
            """, ranks=2)

    def test_coalesced_operations(self):
        self.check("""
            xs = [torch.full((n,), rank + 1.0) for n in (1, 70, 5000)]
            group = dist.distributed_c10d._get_default_group()
            options = dist.AllreduceCoalescedOptions()
            group.allreduce_coalesced(xs, options).wait()
            for x in xs: same(x, torch.full_like(x, 3.0))
            import inspect
            block = dist.distributed_c10d._coalescing_manager
            if "device" not in inspect.signature(block).parameters: os._exit(0)  # torch 1, whose blocks are of sends only
            for device in (None, torch.device("cpu")):
                with block(device=device):
                    for x in xs: dist.all_reduce(x)
                for x in xs: same(x, torch.full_like(x, 6.0))
                with block(device=device, async_ops=True) as under_way:
                    for x in xs: dist.all_reduce(x, op=dist.ReduceOp.AVG)
                under_way.wait()
                outs = [torch.empty(2 * x.numel()) for x in xs]
                with block(device=device):
                    for out, x in zip(outs, xs): dist.all_gather_into_tensor(out, x + rank)
                for out, x in zip(outs, xs): same(out, torch.cat((x, x + 1)))
                with block(device=device):
                    for out, x in zip(outs, xs): dist.reduce_scatter_tensor(x, out)
                for x in xs: same(x, torch.full_like(x, 12.0 + 2 * rank))
                for x in xs: x.fill_(3.0)
            peer, got = 1 - rank, [torch.empty(1 << 18) for _ in range(3)]
            with block(device=torch.device("cpu"), async_ops=True) as under_way:
                for number, x in enumerate(got):
                    dist.isend(torch.full_like(x, 10.0 * rank + number), peer)
                    dist.irecv(x, peer)
            work, = under_way.works
            assert len(work.get_future().wait()) == 6
            assert work.is_completed() and work.is_success() and work.exception() is None
            for number, x in enumerate(got): same(x, torch.full_like(x, 10.0 * peer + number))
            dist.barrier()
            """, ranks=2)

    def test_what_torch_asks_of_backends_that_it_lacks_is_refused(self):
        self.check("""
            refused("from one named rank", dist.recv, torch.empty(3))
            if hasattr(dist, "split_group"): refused("not safe to split", dist.split_group, split_ranks=[[0], [1]])
            x = torch.ones(3)
            dist.all_reduce(x)
            same(x, [2.0] * 3)
            """, ranks=2)

    def test_a_tensor_that_is_refused_starts_none_of_its_call(self):
        self.check("""
            group = dist.distributed_c10d._get_default_group()
            if rank == 0:
                refused("cannot reduce torch.int16", group.allreduce, [torch.ones(5), torch.ones(3, dtype=torch.int16)])
            x = torch.ones(3)
            dist.all_reduce(x)  # the first of both ranks
            same(x, torch.full((3,), 2.0))
            """, ranks=2)

    def test_memory_of_an_operation_that_nobody_waits_for_is_kept_until_it_is_done(self):
        self.check("""
            import gc, weakref
            group = dist.distributed_c10d._get_default_group()._native
            if rank == 0:
                x = torch.zeros(1000)
                seen = weakref.ref(x)
                handle = group.start(0, dtype=0, output=x.data_ptr(), count=1000, label="float32", keeps=x)
                del handle, x
                gc.collect()
                assert seen() is not None
            time.sleep(0.5)
            if rank == 1: dist.all_reduce(torch.ones(1000))
            dist.barrier()
            dist.barrier()  # whose start frees what is done
            assert rank == 1 or seen() is None
            """, ranks=2)

    def test_works_that_only_cpp_holds_can_be_waited_for(self):
        self.check("""
            group = dist.distributed_c10d._get_default_group()
            for step in range(300):
                kinds = (torch.float32, torch.float64, torch.int64)
                tensors = [torch.full((30000,), rank + step, dtype=kind) for kind in kinds for _ in range(2)]
                dist._broadcast_coalesced(group, tensors, 100000, 0)
                for tensor in tensors: same(tensor, torch.full((30000,), step))
            assert not group._alive and not group._settled
            """, ranks=2)

    def test_results_are_there_when_a_work_says_so(self):
        self.check("""
            for step in range(20):
                parts = [torch.full((3,), -1.0) for _ in range(ranks)]
                work = dist.all_gather(parts, torch.full((3,), float(rank)), async_op=True)
                while not work.is_completed():
                    assert work.exception() is None, work.exception()
                same(torch.stack(parts)[:, 0], [0.0, 1.0])
                assert work.is_success() and work.exception() is None
                work.wait()
            work = dist.all_reduce(torch.ones(5 + rank), async_op=True)
            while not work.is_completed(): pass
            assert not work.is_success()
            assert isinstance(work.exception(), syncline.errors.FailedPrecondition), work.exception()
            refused("of 5 f32", work.wait)
            """, ranks=2)

    def test_futures_are_fulfilled_after_shutdown(self):
        self.check("""
            group = dist.distributed_c10d._get_default_group()
            for _ in range(2):
                x = torch.ones(3)
                same(group.allreduce([x]).get_future().wait()[0], [2.0, 2.0, 2.0])
                group.shutdown()
                time.sleep(0.2)
            """, ranks=2)

    def test_ctrl_c_ends_a_wait_and_the_start_of_a_group(self):
        self.check("""
            import datetime, signal, threading
            def interrupted(call, *arguments):
                threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
                began = time.monotonic()
                try:
                    call(*arguments)
                except KeyboardInterrupt:
                    assert time.monotonic() - began < 50  # before the operation's own time is over
                    return
                raise AssertionError("went on")
            told = dist.distributed_c10d._get_default_store()
            if rank == 0:
                interrupted(dist.all_reduce, torch.ones(5))
                store = dist.FileStore(f"{__file__}.store", 2)  # where the other one never comes
                interrupted(syncline.torch.distributed.ProcessGroupSyncline, store, 0, 2, datetime.timedelta(seconds=60))
                os.unlink(f"{__file__}.store")
                told.set("interrupted", "twice")
            else:
                told.get("interrupted")
            os._exit(0)
            """, ranks=2)


@support.not_of_torch
class BetweenHostsTest(DistributedTest):
    """The same tests without shared memory: over TCP, with a key from the store."""

    def environment_of(self, rank):
        return {"SYNCLINE_GROUP_HOST": f"host{rank}", "SYNCLINE_GROUP_ADDRESS": "127.0.0.1"}


@support.not_of_torch
class SomeShareAHostTest(DistributedTest):
    """The first two do."""

    def environment_of(self, rank):
        return {"SYNCLINE_GROUP_HOST": f"host{rank // 2}", "SYNCLINE_GROUP_ADDRESS": "127.0.0.1"}


if __name__ == "__main__":
    unittest.main()
