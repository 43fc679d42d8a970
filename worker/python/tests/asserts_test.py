"""Tests of syncline.assert_equal: the errors of all ranks about a tensor that differs, and about a rank that does not come."""
import os
import sys
import tempfile
import textwrap
import unittest

import support
from torch_support import meeting_place, nn, torch

import syncline

# The program of a rank, without servers; the environment gives the rank. `{body}` is the test's; `x` is the same on all ranks.
RANK = """
    import os, sys, time, torch
    import syncline
    from syncline import _asserts
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    x = torch.arange(12.0).reshape(4, 3)
    def compare(tensor, **how):
        try:
            syncline.assert_equal(tensor, **how)
            print("equal")
        except syncline.Error as error:
            print(f"{{type(error).__name__}} rank={{error.rank}} index={{getattr(error, 'index', '-')}} {{error}}", flush=True)
{body}
    print("end", flush=True)
    while not os.path.exists(os.environ["OVER"]):     # until all have done what they had to
        time.sleep(0.01)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
"""


class Ranks(unittest.TestCase):
    def start(self, body, ranks=2):
        source = textwrap.dedent(RANK.format(body=textwrap.indent(textwrap.dedent(body), "    ")))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.gate = os.path.join(folder.name, "gate")
        environment = {**meeting_place(self), "WORLD_SIZE": str(ranks), "GATE": self.gate, "OVER": os.path.join(folder.name, "over")}
        programs = [support.Process([sys.executable, "-c", source], {**environment, "RANK": str(rank)}) for rank in range(ranks)]
        for program in programs:
            self.addCleanup(program.kill)
        return programs

    def finish(self, programs):
        """Lets the ranks end once all have done their work, and waits for them."""
        for program in programs:
            program.await_line("^end$")
        open(os.path.join(os.path.dirname(self.gate), "over"), "w").close()
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())

    def run_ranks(self, body, ranks=2):
        """Returns what each rank has printed, which must be the same on all."""
        programs = self.start(body, ranks)
        self.finish(programs)
        said = [[line for line in program.lines if line != "end"] for program in programs]
        for one in said[1:]:
            self.assertEqual(one, said[0])
        return said[0]

    def test_equal_tensors_are_equal(self):
        self.assertEqual(self.run_ranks("""
            compare(x)
            compare(x.t())                                             # not contiguous
            compare(x.numpy())
            compare(torch.tensor([float("nan"), float("inf"), float("-inf")]))
            compare(torch.nn.Parameter(x))
            compare(torch.zeros(0))
            compare(torch.tensor(2.5))
            for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.complex64):
                compare(x.to(dtype), tolerance=1e-3)
        """, ranks=3), ["equal"] * 14)

    def test_every_rank_hears_which_rank_and_index_differ_first(self):
        (said,) = self.run_ranks("""
            if rank == 1:
                x[3, 2] = 7
            if rank == 2:
                x[0, 0] = 0.5
                x[3, 1] = 9
            if rank == 3:
                x[2, 1] = -1
            compare(x, name="head")
        """, ranks=4)
        self.assertTrue(said.startswith("NotEqual rank=1 index=(3, 2) tensor 'head' differs between ranks: rank 1 has 7.0 at "
                                        "[3, 2], rank 0 has 11.0 (tolerance 0); so do ranks 2, 3"), said)

    def test_a_difference_within_the_tolerance_is_none(self):
        self.assertEqual(self.run_ranks("""
            compare(x + 0.001 * rank, tolerance=0.01)
            compare(torch.tensor([0.0, -0.0][rank]))
            compare(torch.tensor(5 + rank), tolerance=1)
            compare(torch.tensor([float("nan"), float("inf"), 1 + 0.001 * rank]), tolerance=0.01)
        """), ["equal"] * 4)
        said = self.run_ranks("""
            compare(x + 0.001 * rank, tolerance=0.0001)
            compare(torch.tensor([1.0, float("nan")][rank]), tolerance=1e9)
            compare(torch.tensor([float("inf"), float("-inf")][rank]), tolerance=1e9)
            compare(torch.tensor(5 + rank), tolerance=0.5)
            compare(torch.tensor(2**62 + rank))
        """)
        self.assertEqual([line.split(" ")[:2] for line in said], [["NotEqual", "rank=1"]] * 5)
        self.assertIn("index=(0, 0)", said[0])

    def test_it_looks_at_every_piece(self):
        said = self.run_ranks("""
            _asserts._PIECE_BYTES = 64
            x = torch.zeros(5, 100)
            if rank == 2:
                x[4, 99] = 1
            compare(x)
            x[4, 99] = 0
            x[1, 1] = rank
            compare(x)
            compare(torch.zeros(500, dtype=torch.bfloat16))
        """, ranks=3)
        self.assertRegex(said[0], r"^NotEqual rank=2 index=\(4, 99\)")
        self.assertRegex(said[1], r"^NotEqual rank=1 index=\(1, 1\).*so do ranks 2")
        self.assertEqual(said[2:], ["equal"])

    def test_other_shapes_dtypes_and_names_are_differences(self):
        said = self.run_ranks("""
            compare(x if rank == 0 else x.reshape(3, 4))
            compare(x if rank == 0 else x.double())
            compare(x, name="ab"[rank])
            compare(x, tolerance=rank)
            compare(x)
        """)
        self.assertRegex(said[0], r"^NotEqual rank=1 index=None .*rank 1 compares one of shape \[3, 4\], rank 0 one of \[4, 3\]")
        self.assertRegex(said[1], "dtype float64, rank 0 one of float32")
        self.assertRegex(said[2], "name b, rank 0 one of a")
        self.assertRegex(said[3], "tolerance 1, rank 0 one of 0")
        self.assertEqual(said[4:], ["equal"])

    def test_a_rank_that_does_not_come_is_named_and_nobody_hangs(self):
        for absent in (0, 1, 2):
            with self.subTest(absent=absent):
                programs = self.start(f"""
                    if rank == {absent}:
                        time.sleep(3600)
                    import syncline.torch            # takes its time
                    print("ready", flush=True)
                    while not os.path.exists(os.environ["GATE"]):
                        time.sleep(0.01)
                    compare(x, name="head", timeout=10)
                """, ranks=3)
                for other in programs[:absent] + programs[absent + 1:]:
                    other.await_line("^ready$")
                open(self.gate, "w").close()
                self.finish(programs[:absent] + programs[absent + 1:])
                for other in programs[:absent] + programs[absent + 1:]:
                    self.assertRegex(other.text(), r"(?m)^DeadlineExceeded rank=\d .*assert_equal\('head'\)")
                # Those who gave up before the others are not there either when these look.
                named = [program.text().split("rank=")[1][0] for program in programs if "rank=" in program.text()]
                self.assertIn(str(absent), named)

    def test_a_rank_that_does_not_come_again_is_named_and_may_come_back(self):
        programs = self.start("""
            compare(x)
            if rank == 1:
                while not os.path.exists(os.environ["GATE"]):
                    time.sleep(0.01)
                try:                             # the call that rank 0 gave up, of which it may have said everything
                    syncline.assert_equal(x)
                except syncline.Error:
                    pass
            else:
                compare(x, timeout=3)
                print("gave up", flush=True)
            compare(x)
        """)
        programs[0].await_line("^gave up$")
        open(self.gate, "w").close()
        self.finish(programs)
        self.assertRegex(programs[0].text(), r"(?m)^equal\n(DeadlineExceeded|Dropped) rank=1 .*\ngave up\nequal\n")
        self.assertRegex(programs[1].text(), r"^equal\nequal\n")

    def test_a_rank_that_dies_is_named(self):
        programs = self.start("""
            compare(x)
            if rank == 1:
                os._exit(9)
            compare(x)
        """)
        self.assertEqual(programs[1].wait(), 9)
        self.finish(programs[:1])
        self.assertRegex(programs[0].text(), r"(?m)^\w+ rank=1 ")

    def test_whoever_came_too_late_meets_the_others_the_next_time(self):
        for first in (0, 1):
            with self.subTest(first=first):
                programs = self.start(f"""
                    if rank == {first}:
                        compare(x, timeout=2)
                        print("gave up", flush=True)
                    else:
                        while not os.path.exists(os.environ["GATE"]):
                            time.sleep(0.01)
                    compare(x)
                """)
                programs[first].await_line("^gave up$")
                open(self.gate, "w").close()
                self.finish(programs)
                self.assertRegex(programs[first].text(), rf"(?m)^DeadlineExceeded rank={1 - first} ")
                for program in programs:
                    self.assertRegex(program.text(), r"(?m)^equal$")

    def test_whoever_meets_nobody_hears_that_the_others_may_have_given_up(self):
        programs = self.start("""
            if rank == 0:
                compare(x, timeout=2)
                print("gave up", flush=True)
            else:
                while not os.path.exists(os.environ["GATE"]):
                    time.sleep(0.01)
                compare(x, timeout=10)
        """)
        programs[0].await_line("^gave up$")
        open(self.gate, "w").close()
        self.finish(programs)
        for rank, program in enumerate(programs):
            self.assertRegex(program.text(), rf"(?m)^DeadlineExceeded rank={1 - rank} .* rank {1 - rank} is missing: it did not arrive in "
                                             r"time, or had given up when this rank arrived; does it also call assert_equal")  # fmt: skip

    def test_after_an_error_ranks_meet_anew(self):
        said = self.run_ranks("""
            compare(x)
            if rank == 1:
                x = x + 1
            compare(x)
            compare(x - rank)
            compare(x.to_sparse())                         # refused before anybody is asked
            compare(x - rank)
        """)
        self.assertEqual(said[0], "equal")
        self.assertRegex(said[1], "^NotEqual rank=1")
        self.assertEqual(said[2], "equal")
        self.assertRegex(said[3], "^InvalidArgument .*give a dense one")
        self.assertEqual(said[4], "equal")

    def test_in_a_process_group_of_torch_ranks_meet_by_its_store(self):
        said = self.run_ranks("""
            import torch.distributed as dist
            dist.init_process_group("gloo")
            del os.environ["MASTER_PORT"]
            compare(x)
            compare(x + rank)
        """)
        self.assertEqual(said[0], "equal")
        self.assertRegex(said[1], r"^NotEqual rank=1 index=\(0, 0\)")

    def test_a_process_group_may_be_made_afterwards(self):
        self.assertEqual(self.run_ranks("""
            compare(x)
            import torch.distributed as dist
            dist.init_process_group("gloo")
            dist.all_reduce(x)
            compare(x)
        """), ["equal", "equal"])


class WithSession(support.ServersTest):
    def test_the_step_is_named_and_weights_of_a_job_are_equal(self):
        place = meeting_place(self)
        source = """
            import os, torch, syncline, syncline.torch
            from torch import nn
            torch.set_num_threads(1)
            rank = int(os.environ["RANK"])
            torch.manual_seed(7 + rank)
            model = nn.Linear(6, 3)
            optimizer = syncline.torch.Optimizer(model, "adamw", lr=0.01)
            for step in range(5):
                optimizer.zero_grad()
                model(torch.randn(8, 6)).square().mean().backward()
                optimizer.step()
            optimizer.synchronize()
            syncline.assert_equal(model.weight, name="weight")
            print("equal", flush=True)
            with torch.no_grad():
                model.bias[2] += rank
            try:
                syncline.assert_equal(model.bias, name="bias")
            except AssertionError as error:
                print("found", error.rank, error.tensor, error.index, error.step, error, flush=True)
            optimizer.close()
        """
        programs = [
            support.start_program(self, source, {**self.environment(rank, 2), **place})
            for rank in range(2)
        ]
        for program in programs:
            self.assertEqual(program.wait(), 0, program.text())
            self.assertRegex(program.text(), r"(?m)^equal$")
            self.assertRegex(program.text(), r"(?m)^found 1 bias \(2,\) 5 .* at step 5: rank 1 has ")


class Alone(unittest.TestCase):
    def test_one_rank_is_equal_to_itself(self):
        syncline.assert_equal(nn.Linear(2, 2).weight)

    def test_what_makes_no_sense_is_refused(self):
        for how, reason in (({"tolerance": -1}, "0 or more"), ({"tolerance": float("nan")}, "0 or more"),
                            ({"timeout": 0}, "more than 0"), ({"timeout": 1e9}, "86400"),
                            ({"timeout": "x"}, "timeout is 'x', but must be a number"),
                            ({"timeout": None}, "timeout is None, but must be a number"),
                            ({"tolerance": "x"}, "tolerance is 'x', but must be a number"),
                            ({"tolerance": True}, "tolerance is True, but must be a number")):
            with self.assertRaisesRegex(syncline.InvalidArgument, reason):
                syncline.assert_equal(torch.zeros(1), **how)
        with self.assertRaisesRegex(syncline.InvalidArgument, "it is a list"):
            syncline.assert_equal([1.0])

    def test_without_an_address_it_says_what_to_set(self):
        os.environ["WORLD_SIZE"] = "2"
        self.addCleanup(os.environ.pop, "WORLD_SIZE")
        with self.assertRaisesRegex(syncline.FailedPrecondition, "MASTER_ADDR and MASTER_PORT, which are not set"):
            syncline.assert_equal(torch.zeros(1))


if __name__ == "__main__":
    unittest.main()
