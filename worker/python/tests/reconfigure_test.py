"""Tests of groups that get other members without a new process: torch's contract for `reconfigure`, case by case, and failures."""
import textwrap
import unittest

from distributed_test import run_ranks

import torch.distributed as dist
from syncline.torch._backend.reconfigure import _Probe

# Whether torch's C++, and so DDP, notices a new size.
HEARS = dist.ProcessGroup.size(_Probe()) == 2
SIZES = unittest.skipUnless(HEARS, "this torch's C++ keeps the first size of a group")

SETUP = """
from syncline import errors
from syncline.torch.distributed import reconfigure, reconfigure_handle
group = dist.distributed_c10d._get_default_group()
SECOND = datetime.timedelta(seconds=1)
# Its calls end before the test is ended, with an error that names the key that a rank did not set.
handed = dist.PrefixStore("handles", dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, False, 60 * SECOND, False))
def collect(name, number=rank, of=ranks):
    handed.set(f"{name}/{number}", reconfigure_handle())
    return [handed.get(f"{name}/{other}").decode() for other in range(of)]
def all_here(name):
    handed.set(f"{name}/{rank}", "")
    for other in range(ranks): handed.get(f"{name}/{other}")
def form(uuid, handles, timeout=60 * SECOND):
    reconfigure(uuid, handles, timeout=timeout).wait()
def sums(expected):
    x = torch.full((4,), dist.get_rank() + 1.0)
    dist.all_reduce(x)
    same(x, torch.full((4,), float(expected)))
def fails(said, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except RuntimeError as error:
        assert said in str(error), error
        return error
    raise AssertionError(f"did not fail: {arguments}")
"""


class Case(unittest.TestCase):
    def environment_of(self, rank):
        return {"SYNCLINE_GROUP_ADDRESS": "127.0.0.1"}

    def check(self, body, ranks=3, ends_of=()):
        results = run_ranks(textwrap.dedent(SETUP) + textwrap.dedent(body), ranks, self.environment_of)
        for rank, (output, code) in enumerate(results):
            self.assertEqual(code, -9 if rank in ends_of else 0, output)


class ContractTest(Case):
    """The cases of torch's test_c10d_fault_tolerance."""

    def test_basic(self):
        self.check("""
            form(100, collect("first"))
            assert (dist.get_world_size(), dist.get_rank()) == (3, rank)
            assert group.supports_reconfigure
            """)

    def test_then_all_reduce(self):
        self.check("""
            form(200, collect("first"))
            sums(6)
            """)

    def test_then_send_and_receive(self):
        self.check("""
            form(300, collect("first"))
            to, source = (rank + 1) % 3, (rank + 2) % 3
            got = torch.zeros(4)
            works = [group.send([torch.full((4,), rank + 1.0)], to, 0), group.recv([got], source, 0)]
            for work in works[::1 if rank % 2 else -1]: work.wait()
            same(got, torch.full((4,), source + 1.0))
            """)

    @SIZES
    def test_shrink_without_the_last_rank(self):
        self.check("""
            handles = collect("first")
            form(400, handles)
            if rank < 2:
                form(401, handles[:2])
                assert (dist.get_world_size(), dist.get_rank()) == (2, rank)
                sums(3)
                x = torch.full((4,), 42.0 if rank == 0 else 0.0)
                dist.broadcast(x, 0)
                same(x, torch.full((4,), 42.0))
            all_here("done")
            """)

    @SIZES
    def test_shrink_without_a_rank_in_the_middle(self):
        self.check("""
            handles = collect("first")
            form(500, handles)
            if rank != 1:
                form(501, [handles[0], handles[2]])
                assert (dist.get_world_size(), dist.get_rank()) == (2, rank // 2)
                sums(3)
            all_here("done")
            """)

    @SIZES
    def test_down_to_one_each_and_up_again(self):
        self.check("""
            form(600 + rank, [reconfigure_handle()])
            assert (dist.get_world_size(), dist.get_rank()) == (1, 0)
            sums(1)
            form(603, collect("all"))
            assert (dist.get_world_size(), dist.get_rank()) == (3, rank)
            form(604 + rank, [reconfigure_handle()])
            assert (dist.get_world_size(), dist.get_rank()) == (1, 0)
            all_here("done")
            """)

    @SIZES
    def test_from_one_each_to_all(self):
        self.check("""
            form(700 + rank, [reconfigure_handle()])
            form(703, collect("all"))
            sums(6)
            """)

    def test_identity(self):
        self.check("""
            form(800, collect("first"))
            form(801, collect("again"))
            sums(6)
            """)

    @SIZES
    def test_late_join(self):
        self.check("""
            handles = collect("first")
            if rank < 1: form(900, handles[:1])
            form(901, collect("all"))
            sums(6)
            """)

    @SIZES
    def test_shrink_and_rejoin(self):
        self.check("""
            for round, left in enumerate((2, 1)):
                handles = collect(f"first{round}")
                if rank != left:
                    form(1000 + round, handles[:left] + handles[left + 1:])
                    sums(3)
                form(1010 + round, collect(f"all{round}"))
                assert dist.get_rank() == rank
                sums(6)
            """)

    @SIZES
    def test_shrinks_and_grows_again_and_again(self):
        self.check("""
            number = rank
            for round in range(3):
                handles = collect(f"in{round}", number)
                rejoins = number == round % 3
                if not rejoins:
                    form(1100 + 2 * round, handles[:round % 3] + handles[round % 3 + 1:])
                    sums(3)
                    number = dist.get_rank()
                else:
                    number = 2
                form(1101 + 2 * round, collect(f"back{round}", number))
                assert dist.get_rank() == number
                sums(6)
            """)

    @SIZES
    def test_split_and_merge(self):
        self.check("""
            handles = collect("first")
            form(1200 + (rank > 0), handles[:1] if rank < 1 else handles[1:])
            assert dist.get_world_size() == (1 if rank < 1 else 2)
            form(1202, collect("all"))
            sums(6)
            """)

    def test_after_an_abort(self):
        self.check("""
            form(1300, collect("first"))
            group.abort()
            fails("", dist.all_reduce, torch.ones(1))
            form(1301, collect("again"))
            sums(6)
            """)

    def test_after_a_timeout(self):
        self.check("""
            form(1400, collect("first"))
            sums(6)
            group.set_timeout(datetime.timedelta(milliseconds=50))
            if rank == 1:
                error = fails("in time", dist.all_reduce, torch.ones(4))
                assert isinstance(error, errors.DeadlineExceeded)
            group.set_timeout(60 * SECOND)
            all_here("seen")
            form(1401, collect("again"))
            sums(6)
            """)

    def test_a_uuid_is_used_once(self):
        self.check("""
            handles = collect("first")
            form(1500, handles)
            fails("already used", form, 1500, handles)
            all_here("refused")
            sums(6)  # nobody has left
            form(1501, handles)
            sums(6)
            """)


class FailedAttemptsTest(Case):
    def test_leave_the_old_group_as_it_was_and_can_be_repeated(self):
        self.check("""
            handles = collect("first")
            if rank == 0: fails("rank 1 of the new group did not arrive within 0:00:01", form, 10, handles, SECOND)
            if rank == 2: fails("rank 1 of the new group did not arrive", form, 10, handles, 30 * SECOND)
            sums(6)
            fails("already used" if rank == 0 else "", form, 10, handles, 2 * SECOND)
            sums(6)
            form(11, handles)
            sums(6)
            """)

    def test_other_handles_are_found(self):
        self.check("""
            handles = collect("first")
            order = [handles[0], handles[2], handles[1]] if rank == 1 else handles
            fails("or in another order", form, 20, order)
            sums(6)
            """)

    @SIZES
    def test_a_process_that_does_not_answer_ends_it(self):
        self.check("""
            import socket
            with socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                silent.listen()
                fails("does not answer", form, 25, [f"syncline:00:127.0.0.1:{silent.getsockname()[1]}", reconfigure_handle()], SECOND)
            sums(1)
            """, ranks=1)

    def test_a_set_leaves_the_ranks_to_us(self):
        self.check("""
            form(30, frozenset(collect("first")))
            sums(6)
            numbers = [None] * 3
            dist.all_gather_object(numbers, dist.get_rank())
            assert numbers == [0, 1, 2], numbers
            """)

    def test_what_makes_no_sense_is_refused(self):
        self.check("""
            own = reconfigure_handle()
            assert own == reconfigure_handle()
            fails("is not among the 1 handles", form, 40, ["syncline:00:127.0.0.1:1"])
            if dist.ProcessGroup.size(syncline.torch._backend.reconfigure._Probe()) == 2:
                fails("is given twice", form, 41, [own, own])
                fails("'gloo:0' is not a handle", form, 42, [own, "gloo:0"])
                # It "cannot be reached" or "does not answer", whichever of two limits ends first.
                fails("rank 0 of the new group, syncline:00:127.0.0.1:1, ", form, 43, ["syncline:00:127.0.0.1:1", own], SECOND)
            else:
                fails("install torch 2", form, 41, [own, own])
            sums(1)
            """, ranks=1)


class ElasticTest(Case):
    @SIZES
    def test_ddp_goes_on_without_a_rank_that_was_killed(self):
        self.check("""
            import signal
            from torch.nn.parallel import DistributedDataParallel
            torch.manual_seed(1)
            plain = torch.nn.Linear(300, 200)
            def mean(model):
                plain.zero_grad()
                model(torch.full((2, 300), dist.get_rank() + 1.0)).sum().backward()
                return plain.weight.grad[0, 0].item() / 2
            handles = collect("first")
            model = DistributedDataParallel(plain)
            assert mean(model) == 2
            if rank == 1: os.kill(os.getpid(), signal.SIGKILL)
            error = fails("rank 1", lambda: [mean(model) for _ in range(1000)])
            assert errors.behind(error).rank == 1
            form(51, [handles[0], handles[2]])
            model = DistributedDataParallel(plain)
            assert mean(model) == 1.5, mean(model)  # of two
            """, ends_of=(1,))

    @SIZES
    def test_a_process_that_was_started_later_joins(self):
        self.check("""
            if rank == 2:  # begins as a new process does, in a group of its own
                dist.destroy_process_group()
                dist.init_process_group("syncline", store=dist.HashStore(), rank=0, world_size=1)
                sums(1)
            handles = collect("first")
            if rank < 2: form(61, handles[:2])
            form(62, handles)
            sums(6)
            assert dist.get_process_group_ranks(None) == [0, 1, 2]
            """)


class BetweenHostsTest(ContractTest):
    """The same tests without shared memory."""

    def environment_of(self, rank):
        return {"SYNCLINE_GROUP_HOST": f"host{rank}", "SYNCLINE_GROUP_ADDRESS": "127.0.0.1"}


if __name__ == "__main__":
    unittest.main()
