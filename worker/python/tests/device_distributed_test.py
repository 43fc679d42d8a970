"""Tests of the torch.distributed backend "syncline" with tensors on a stand-in for a GPU. cuda_distributed_test.py uses a real one."""
import unittest

import distributed_test
import support
from distributed_ranks import PREAMBLE, RANKS, run_ranks

ON_A_GPU = PREAMBLE + """
import late_gpu
gpu = late_gpu.install()
"""


class OnAGpu:
    """Runs the tests for tensors in host memory with tensors on the stand-in."""

    def check(self, body, ranks=RANKS):
        for output, code in run_ranks(body, ranks, self.environment_of, ON_A_GPU):
            self.assertEqual(code, 0, output)


class GpuTest(OnAGpu, distributed_test.DistributedTest):
    test_sums_in_the_exact_order_are_those_of_a_loop_wherever_ranks_are = None  # says nothing of tensors
    test_rank_zeros_costs_count_for_all_and_are_logged = None  # nor does this

    def test_operations_begin_in_the_order_of_their_calls_also_where_some_wait_for_a_gpu(self):
        self.check("""
            import datetime
            first, second = torch.full((5,), rank + 1.0), gpu.keep_on_host(torch.full((7,), rank + 1.0))
            if rank == 0: gpu.up.gate.clear()
            works = [dist.all_reduce(x, async_op=True) for x in (first, second)]
            if rank == 0:
                assert not any(work.is_completed() for work in works)
                try:
                    works[1].wait(datetime.timedelta(milliseconds=50))
                except syncline.DeadlineExceeded as error:
                    assert "a GPU did not produce" in str(error), error
                else:
                    raise AssertionError("it went by")
                group = dist.distributed_c10d._get_default_group()
                group.shutdown()  # ends no operation
                gpu.up.gate.set()
            for work in works: work.wait()
            same(first, [3.0] * 5)
            same(second, [3.0] * 7)
            third = torch.ones(3)
            dist.all_reduce(third)
            same(third, [2.0] * 3)
            """, ranks=2)

    def test_what_is_wrong_with_a_call_that_waits_is_raised_by_its_wait(self):
        self.check("""
            group = dist.distributed_c10d._get_default_group()
            gpu.up.gate.clear()
            x = torch.ones(3)
            good = dist.all_reduce(x, async_op=True)
            options = dist.BroadcastOptions()
            options.rootRank = 9
            bad = group.broadcast([torch.ones(3)], options)
            gpu.up.gate.set()
            refused("9", bad.wait)
            assert bad.is_completed() and not bad.is_success() and bad.exception() is not None
            refused("9", bad.get_future().wait)
            good.wait()
            same(x, [2.0] * 3)
            """, ranks=2)

    def test_no_thread_of_a_group_is_left_when_the_program_ends(self):  # inside torch it would end the process with SIGABRT
        self.check("""
            import threading
            def mine(): return [one.name for one in threading.enumerate() if one.name.startswith("syncline")]
            work = dist.all_reduce(torch.full((4,), rank + 1.0), async_op=True)
            work.get_future().wait()
            assert sorted(mine()) == ["syncline-futures", "syncline-starts"], mine()
            import syncline.torch._backend.ending as ending
            dist.distributed_c10d._get_default_group().shutdown()  # as destroy_process_group does
            ending.end_all()
            assert not mine(), mine()
            """, ranks=2)

    def test_a_destroyed_group_leaves_no_thread(self):
        self.check("""
            import gc, threading
            def mine(): return [one.name for one in threading.enumerate() if one.name.startswith("syncline")]
            group = dist.new_group()
            dist.all_reduce(torch.full((4,), rank + 1.0), group=group, async_op=True).get_future().wait()
            assert sorted(mine()) == ["syncline-futures", "syncline-starts"], mine()
            dist.destroy_process_group(group)
            del group
            deadline = time.monotonic() + 60
            while mine() and time.monotonic() < deadline:
                gc.collect()
                time.sleep(0.01)
            assert not mine(), mine()
            """, ranks=2)

    def test_futures_do_not_wait_for_what_a_peer_has_yet_to_send(self):
        self.check("""
            x = torch.zeros(4)
            coming = dist.irecv(x, 1 - rank)
            y = torch.full((4,), rank + 1.0)
            dist.all_reduce(y, async_op=True).get_future().wait()
            same(y, [3.0] * 4)
            dist.send(torch.full((4,), rank + 5.0), 1 - rank)
            coming.wait()
            same(x, [6.0 - rank] * 4)
            """, ranks=2)

    def test_results_that_nobody_waits_for_are_let_go(self):
        self.check("""
            import weakref
            given = []
            for _ in range(100):
                x = torch.full((4,), rank + 1.0)
                given.append(weakref.ref(x))
                dist.all_reduce(x, async_op=True)
                del x
            dist.barrier()
            deadline = time.monotonic() + 60
            while (left := sum(one() is not None for one in given)) > 2 and time.monotonic() < deadline:
                time.sleep(0.02)
                dist.all_reduce(torch.ones(1))  # looks at those before it
            assert left <= 2, left
            """, ranks=2)

    def test_tensors_of_inference_mode(self):
        self.check("""
            for _ in range(10):
                with torch.inference_mode():
                    x = torch.full((4,), rank + 1.0)
                    work = dist.all_reduce(x, async_op=True)
                    time.sleep(0.002)
                    work.wait()
                    same(x, [3.0] * 4)
            """, ranks=2)

    def test_results_land_though_nobody_waits(self):
        self.check("""
            x = torch.full((4,), rank + 1.0)
            work = dist.all_reduce(x, async_op=True)
            while not work.is_completed(): time.sleep(0.01)
            same(x, [3.0] * 4)
            """, ranks=2)

    def test_only_what_is_read_is_copied_to_the_host(self):
        self.check("""
            def read_by(call, *arguments, **more):
                before = gpu.read
                call(*arguments, **more)
                return gpu.read - before
            x = torch.full((4,), float(rank))
            assert read_by(dist.broadcast, x, 1) == (rank == 1)
            same(x, [1.0] * 4)
            parts = [torch.empty(4) for _ in range(ranks)]
            assert read_by(dist.all_gather, parts, x) == 1
            assert read_by(dist.scatter, x, parts if rank == 0 else None) == (rank == 0)
            assert read_by(dist.send, x, 1) == 1 if rank == 0 else read_by(dist.recv, x, 0) == 0
            """, ranks=2)


@support.not_of_torch
class GpuBetweenHostsTest(GpuTest):
    environment_of = distributed_test.BetweenHostsTest.environment_of


class MixedBackendsTest(unittest.TestCase):
    def test_a_group_that_wants_nccl_for_gpus_is_refused_their_tensors(self):
        for output, code in run_ranks("""
            if not hasattr(dist.distributed_c10d, "BackendConfig"): os._exit(0)  # torch 1: one backend for all devices
            mixed = dist.new_group(backend="cpu:syncline,cuda:nccl")
            x = torch.ones(2)
            dist.all_reduce(x, group=mixed)
            same(x, [2.0, 2.0])
            refused("dist.new_group(backend='nccl')", mixed._check_gpus_are_ours)
            dist.new_group(backend="syncline")._check_gpus_are_ours()
            dist.distributed_c10d._get_default_group()._check_gpus_are_ours()
            """, ranks=2):
            self.assertEqual(code, 0, output)


def load_tests(loader, _, __):
    """Loads only this file's own tests, without those of distributed_test.py."""
    own = (GpuTest, GpuBetweenHostsTest, MixedBackendsTest)
    return unittest.TestSuite(loader.loadTestsFromTestCase(one) for one in own)


if __name__ == "__main__":
    unittest.main()
