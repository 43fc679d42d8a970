"""Tests of the torch.distributed backend "syncline" over NCCL, with stand-ins for NCCL and GPUs. cuda_nccl_test.py uses real ones."""
import os
import unittest

import distributed_test
import support
from distributed_ranks import PREAMBLE, RANKS, run_ranks

STAND_IN = os.environ.get("SYNCLINE_FAKE_GPU", str(support.BUILD / "comm/collective/nccl/libcomm_collective_nccl_fake.so"))
if not os.path.isfile(STAND_IN):
    raise unittest.SkipTest(f"no {STAND_IN}; build the target comm_collective_nccl_fake")

OVER_NCCL = PREAMBLE.replace("dist.init_process_group", """
import late_gpu, syncline
from syncline import _group
from syncline.torch._backend import over_nccl as _over_nccl
gpu = late_gpu.install()
if os.environ.get("SYNCLINE_NCCL") in (None, "1"): _over_nccl.why_not = lambda: ""
def over_nccl():  # how many of the operations so far
    return counted[0]
counted, start = [0], _group.NcclGroup._start
def count(self, *arguments):
    counted[0] += 1
    return start(self, *arguments)
_group.NcclGroup._start = count
dist.init_process_group""")


class OverNccl:
    """Runs the tests for tensors in host memory with tensors on stand-ins for GPUs."""

    def environment_of(self, rank):
        return {"SYNCLINE_NCCL_LIBRARY": STAND_IN, "SYNCLINE_CUDA_DRIVER": STAND_IN, "FAKE_GPU_FIRST": str(rank)}

    def check(self, body, ranks=RANKS, environment_of=None):
        for output, code in run_ranks(body, ranks, environment_of or self.environment_of, OVER_NCCL):
            self.assertEqual(code, 0, output)


class NcclTest(OverNccl, distributed_test.DistributedTest):
    test_sums_in_the_exact_order_are_those_of_a_loop_wherever_ranks_are = None  # not over NCCL: see below
    test_rank_zeros_costs_count_for_all_and_are_logged = None  # not over NCCL
    # NCCL does not compare the ranks' calls, so a difference is found while it hangs or afterwards: see below.
    test_ranks_that_name_different_roots_hear_of_it = None
    test_ranks_that_disagree_on_types_hear_of_it_though_sizes_are_the_same = None

    def test_ranks_that_disagree_hear_of_it(self):
        for call in ("dist.all_reduce(torch.ones(5 if rank == 1 else 4))",
                     "dist.broadcast(torch.ones(4), rank)",
                     "dist.scatter(torch.ones(10000), [torch.ones(10000)] * 2, src=rank)",
                     "dist.all_reduce(torch.ones(4)) if rank else dist.all_gather([torch.ones(4)] * 2, torch.ones(4))",
                     "dist.broadcast(torch.ones(4, dtype=(torch.float32, torch.int32)[rank]), 0)",
                     "dist.all_reduce(torch.ones(4), op=(dist.ReduceOp.SUM, dist.ReduceOp.MAX)[rank])"):
            with self.subTest(call):
                self.check(f"""
                    try:
                        {call}
                        while True: dist.all_reduce(torch.ones(4))
                    except syncline.errors.FailedPrecondition as error:
                        assert error.rank == 1 - rank or "found by rank" in str(error), error
                        os._exit(0)
                    """, ranks=2)

    def test_memory_of_an_operation_that_nobody_waits_for_is_kept_until_it_is_done(self):
        self.check("""
            import gc, weakref
            dist.all_reduce(torch.ones(1))
            over, = dist.distributed_c10d._get_default_group()._nccl._groups.values()
            if rank == 0:
                x = torch.zeros(1000)
                seen = weakref.ref(x)
                handle = over.start(0, dtype=0, output=x.data_ptr(), count=1000, label="float32", keeps=x)
                del handle, x
                gc.collect()
                assert seen() is not None
            time.sleep(0.5)
            if rank == 1: dist.all_reduce(torch.ones(1000))
            for _ in range(2): dist.all_reduce(torch.ones(1))  # whose start frees what is done
            assert rank == 1 or seen() is None
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
            x, parts = torch.ones(5), [torch.ones(5)] * 2
            work = dist.all_reduce(x, async_op=True) if rank else dist.gather(x, parts, async_op=True)  # both hang
            while not work.is_completed(): pass
            assert not work.is_success()
            assert isinstance(work.exception(), syncline.errors.FailedPrecondition), work.exception()
            refused("gather number", work.wait)
            """, ranks=2)

    def test_what_goes_over_nccl(self):
        self.check("""
            x = torch.ones(4)
            def goes(call, *arguments, **more):
                before = over_nccl()
                call(*arguments, **more)
                return over_nccl() > before
            parts = [torch.empty(4) for _ in range(ranks)]
            assert goes(dist.all_reduce, x)
            assert goes(dist.broadcast, x, 1)
            assert goes(dist.reduce, x, 1)
            assert goes(dist.all_gather, parts, x)
            assert goes(dist.reduce_scatter, x, parts)
            assert goes(dist.gather, x, parts if rank == 0 else None)
            assert goes(dist.scatter, x, parts if rank == 0 else None)
            assert goes(dist.all_to_all_single, torch.empty(ranks), torch.ones(ranks))
            assert gpu.read == 0  # nothing was copied to the host
            assert not goes(dist.barrier)
            assert not goes(dist.all_reduce, torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.BXOR)
            assert not goes(dist.all_reduce, gpu.keep_on_host(torch.ones(3)))
            assert not goes(dist.send, x, 1) if rank == 0 else not goes(dist.recv, x, 0)
            assert gpu.read > 0
            """, ranks=2)

    def test_an_operation_of_the_host_and_the_first_one_over_nccl_keep_their_order(self):
        self.check("""
            gpu.up.gate.clear()
            x = torch.full((3,), rank + 1)
            late = dist.all_reduce(x, op=dist.ReduceOp.BXOR, async_op=True)  # by way of the host, once the GPU has come to it
            import threading
            threading.Timer(0.2 * rank, gpu.up.gate.set).start()
            y = torch.full((5,), rank + 1.0)
            dist.all_reduce(y)  # meets first
            same(y, [3.0] * 5)
            late.wait()
            same(x, [3] * 3)
            """, ranks=2)

    def test_results_of_strided_tensors_land(self):
        self.check("""
            x = torch.full((6, 4), float(rank)).t()
            work = dist.all_reduce(x, async_op=True)
            work.wait()
            same(x, torch.full((4, 6), 3.0))
            x = torch.full((6, 4), float(rank)).t()
            dist.all_reduce(x, async_op=True).get_future().wait()
            same(x, torch.full((4, 6), 3.0))
            """)

    def test_several_groups(self):
        self.check("""
            pairs = [dist.new_group([0, 1], backend="syncline"), dist.new_group([1, 2], backend="syncline")]
            for turn in range(20):
                for first, pair in enumerate(pairs):
                    if rank in (first, first + 1):
                        x = torch.full((1000,), rank + 1.0)
                        dist.all_reduce(x, group=pair)
                        same(x, torch.full((1000,), 3.0 + 2 * first))
                x = torch.full((1000,), rank + 1.0)
                dist.all_reduce(x)
                same(x, torch.full((1000,), 6.0))
            assert over_nccl() == 20 * (3 if rank == 1 else 2)
            """)

    def test_a_rank_that_dies_is_named_while_others_wait(self):
        self.check("""
            x = torch.ones(1000)
            dist.all_reduce(x)
            if rank == 1: os._exit(0)
            began = time.monotonic()
            for wait in (lambda: dist.all_reduce(x), lambda: dist.all_reduce(x, async_op=True).get_future().wait()):
                try:
                    wait()
                except RuntimeError as error:
                    assert syncline.errors.behind(error).rank == 1, error
                else:
                    raise AssertionError("went on")
            assert time.monotonic() - began < 10  # the failure timeout
            os._exit(0)
            """)

    def test_a_group_that_gets_other_members_goes_on_over_nccl(self):
        self.check("""
            from syncline.torch.distributed import reconfigure, reconfigure_handle
            x = torch.ones(10)
            dist.all_reduce(x)
            handles = [None] * ranks
            dist.all_gather_object(handles, reconfigure_handle())
            before = over_nccl()
            reconfigure(7, handles[::-1]).wait()
            x = torch.full((10,), dist.get_rank() + 1.0)
            dist.broadcast(x, 0)
            same(x, [1.0] * 10)
            assert over_nccl() == before + 1
            """, ranks=2)

    def test_an_abort_ends_everything(self):
        self.check("""
            x = torch.ones(10)
            dist.all_reduce(x)
            group = dist.distributed_c10d._get_default_group()
            if rank == 0: group.abort()
            for _ in range(2):
                try:
                    dist.all_reduce(x)
                except syncline.Cancelled:
                    pass
                else:
                    raise AssertionError("went on")
            """, ranks=2)

    def test_a_process_ends_with_operations_that_nobody_waited_for(self):
        self.check("""
            works = [dist.all_reduce(torch.ones(1000), async_op=True) for _ in range(50)]
            """)


class FallBackTest(OverNccl, unittest.TestCase):
    def check_goes_by_the_host(self, said, environment_of, level="INFO"):
        self.check(f"""
            import logging
            lines = []
            class Keep(logging.Handler):
                def emit(self, record): lines.append(record)
            logging.getLogger("syncline").addHandler(Keep())
            logging.getLogger("syncline").setLevel(logging.DEBUG)
            x = torch.full((5,), rank + 1.0)
            dist.all_reduce(x)
            same(x, [3.0] * 5)
            assert over_nccl() == 0 and gpu.read == 1
            line, = lines
            assert {said!r} in line.getMessage(), line.getMessage()
            assert line.levelname == ("DEBUG" if rank and {level!r} == "INFO" else {level!r}), line.levelname
            """, ranks=2, environment_of=environment_of)

    def test_ranks_on_one_gpu(self):
        self.check_goes_by_the_host("by way of the host: ranks 0 and 1 are on the same GPU",
                                    lambda rank: {**self.environment_of(rank), "FAKE_GPU_FIRST": "3"})

    def test_no_library_on_one_rank(self):
        self.check_goes_by_the_host("rank 1: no NCCL: libnccl_not_there.so", lambda rank: {
            **self.environment_of(rank), **({"SYNCLINE_NCCL_LIBRARY": "libnccl_not_there.so"} if rank else {})})

    def test_an_old_library(self):
        self.check_goes_by_the_host("NCCL 2.18.1 is too old",
                                    lambda rank: {**self.environment_of(rank), "FAKE_NCCL_VERSION": "21801"})

    def test_nccl_does_not_start(self):
        self.check_goes_by_the_host("NCCL", lambda rank: {**self.environment_of(rank), "FAKE_NCCL": "1:init:0"})

    def test_the_exact_order(self):
        self.check_goes_by_the_host("NCCL has no exact order of ranks",
                                    lambda rank: {**self.environment_of(rank), "SYNCLINE_GROUP_EXACT_ORDER": "1"})

    def test_whoever_wants_nccl_is_warned(self):
        self.check_goes_by_the_host("NCCL 2.18.1 is too old", lambda rank: {
            **self.environment_of(rank), "FAKE_NCCL_VERSION": "21801", "SYNCLINE_NCCL": "1"}, "WARNING")

    def test_one_rank_wants_none(self):
        self.check_goes_by_the_host("SYNCLINE_NCCL=0", lambda rank: {**self.environment_of(rank), **({} if rank else {"SYNCLINE_NCCL": "0"})})

    def test_a_setting_that_makes_no_sense_is_refused(self):
        for output, code in run_ranks("", 1, lambda rank: {**self.environment_of(rank), "SYNCLINE_NCCL": "yes"}, OVER_NCCL):
            self.assertEqual(code, 1)
            self.assertIn("SYNCLINE_NCCL is 'yes', but must be 1, or 0", output)


def load_tests(loader, _, __):
    """Loads only this file's own tests, without those of distributed_test.py."""
    return unittest.TestSuite(loader.loadTestsFromTestCase(one) for one in (NcclTest, FallBackTest))


if __name__ == "__main__":
    unittest.main()
