"""check=: what all ranks hear of weights or norms that differ, and when they are compared."""
import contextlib
import math
import os
import sys
import tempfile
import textwrap
import unittest
from unittest import mock

import support
from torch_support import OptimizerTest, make_model, meeting_place, torch, train

import syncline
from syncline import _asserts
from syncline._gathering import Gathering
from syncline.torch._optimizer.check import check_of
from syncline.torch._optimizer.norms import FEWEST_STEPS

# A rank of a job. `damage(step)` has rank 1 hold another value in its second tensor once that step's weights have come.
RANK = """
    import os, sys, time, torch
    import syncline, syncline.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)     # all have the same batches
    rank = int(os.environ["RANK"])
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = syncline.torch.Optimizer(model, "sgd", 0.1, push="fp32", publish="fp32", check=os.environ["CHECK"])
    def train(steps, factor=1):
        for _ in range(steps):
            (model(torch.randn(8, 6)).square().mean() * factor).backward()
            optimizer.step()
    def damage(step):
        weight = optimizer._weights[1]
        wait = weight.wait
        def damaged():
            wait()
            if optimizer.steps == step:
                weight.parameter.data[5] = 7     # torch does not see it
        if rank == 1:
            weight.wait = damaged
    try:
{body}
        print("equal", flush=True)
    except syncline.NotEqual as error:
        print(f"rank={{error.rank}} tensor={{error.tensor}} index={{error.index}} step={{error.step}}", flush=True)
    while not os.path.exists(os.environ["OVER"]):     # others may not have heard all yet
        time.sleep(0.01)
"""


class Check(OptimizerTest):
    failure_timeout = "30s"  # nobody dies here

    def run_ranks(self, body, ranks=2, check="weights:every=3", line="^(equal|rank=.*)$"):
        """What each has said."""
        source = textwrap.dedent(RANK.format(body=textwrap.indent(textwrap.dedent(body), " " * 8)))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        over = os.path.join(folder.name, "over")
        environment = {**meeting_place(self), "OVER": over, "CHECK": check, "SYNCLINE_FAILURE_TIMEOUT": self.failure_timeout, "WORLD_SIZE": str(ranks), "SYNCLINE_JOB": self.id(),
                       "SYNCLINE_COORDINATOR": self.coordinator, "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"}
        programs = [support.Process([sys.executable, "-c", source], {**environment, "RANK": str(rank)}) for rank in range(ranks)]
        for program in programs:
            self.addCleanup(program.kill)
        said = [program.await_line(line).group(0) for program in programs]
        open(over, "w").close()
        for program in programs:
            program.wait()
        return said

    def test_weights_that_are_equal_train_on(self):
        self.assertEqual(self.run_ranks("train(8)", ranks=3), ["equal"] * 3)

    def test_every_rank_hears_which_rank_tensor_and_index_differ_and_at_which_step(self):
        said = self.run_ranks("""
            damage(6)
            train(9)
        """, ranks=3)
        self.assertEqual(said, ["rank=1 tensor=0.bias index=(5,) step=6"] * 3)

    def test_steps_between_are_not_compared(self):
        self.assertEqual(self.run_ranks("""
            damage(4)
            train(5)
        """), ["equal"] * 2)

    def test_after_ctrl_c_in_a_comparison_nobody_waits_and_all_meet_again(self):
        said = self.run_ranks("""
            from syncline import _group
            train(1)
            def interrupted(*_, **__):
                del _group.Group.start     # there is that of its base
                raise KeyboardInterrupt
            if rank == 0:
                _group.Group.start = interrupted
            try:
                train(1)
                print("rank=", "went on", flush=True)
            except (KeyboardInterrupt, syncline.Error):
                optimizer.zero_grad()
            train(2)
        """, check="weights:every=1")
        self.assertEqual(said, ["equal"] * 2)

    INTERRUPTED = """
            from syncline import _asserts
            through = [f"{os.environ['OVER']}.{number}" for number in range(int(os.environ["WORLD_SIZE"]))]
            wait = _asserts._Comparison._wait
            def interrupted(comparison, handle):
                wait(comparison, handle)
                while not all(map(os.path.exists, through[1:])):     # now the others have all that they need of it
                    time.sleep(0.01)
                _asserts._Comparison._wait = wait
                raise KeyboardInterrupt
            if rank == 0:
                _asserts._Comparison._wait = interrupted
            try:
                train(1)
            except KeyboardInterrupt:
                optimizer.zero_grad()
            open(through[rank], "w").close()
    """

    def test_after_ctrl_c_when_its_part_has_left_a_rank_meets_the_others_in_the_next_comparison(self):
        said = self.run_ranks(self.INTERRUPTED + """
            began = time.monotonic()
            train(3)
            assert time.monotonic() - began < _asserts._PATIENCE_S, "waited for a rank that did not come"
        """, ranks=3, check="weights:every=1")
        self.assertEqual(said, ["equal"] * 3)

    def test_a_rank_that_ends_after_such_a_ctrl_c_is_missed_at_once(self):
        said = self.run_ranks(self.INTERRUPTED + """
            if rank == 0:
                sys.exit(print("equal", flush=True))     # the others step without it
            began = time.monotonic()
            try:
                train(2)
            except syncline.Error as error:
                assert time.monotonic() - began < _asserts._PATIENCE_S, "waited for a rank that does not come"
                print("rank=missed", flush=True)
        """, check="weights:every=1")
        self.assertEqual(said, ["equal", "rank=missed"])

    def test_a_worker_alone_has_nobody_to_differ_from(self):
        for check in ("weights:every=1", "grad_norm:z=4,every=1"):
            model = make_model()
            train(model, self.optimizer(model, check=check, job=check.split(":", maxsplit=1)[0]), 3)

    def test_what_it_compares_is_counted_from_the_step_at_which_the_optimizer_joins(self):
        with mock.patch("syncline.torch._optimizer.check.WeightCheck.begin") as begin:
            optimizer = self.optimizer(make_model(), check="weights:every=3")
        begin.assert_called_once_with(optimizer.session)

    def test_what_makes_no_sense_is_refused_with_what_is_allowed(self):
        steps, factor = "but must be a whole number from 1 to 1,000,000,000", "but must be a number from 1 to 1,000"
        weights, norms = 'write "weights:every=STEPS"', 'write "grad_norm:z=NUMBER,every=STEPS"'
        for check, why in {
                "norms:every=1": "'norms' is not a check; there are \"weights:every=STEPS\" and \"grad_norm:z=NUMBER,every=STEPS\"", "": "'' is not a check; there are",
                "weights:,every=10": f"'' is not an option of weights; {weights}", "grad_norm:z=3,,": f"'' is not an option of grad_norm; {norms}",
                "weights": f"lacks every=; {weights}", "weights:every=0": f"every is '0', {steps}", "weights:every=-1": f"every is '-1', {steps}",
                "weights:every=1.5": f"every is '1.5', {steps}", "weights:every=99999999999": f"every is '99999999999', {steps}",
                "weights:z=4,every=1": f"'z=4' is not an option of weights; {weights}",
                "grad_norm": f"lacks z=; {norms}", "grad_norm:every=4": f"lacks z=; {norms}", "grad_norm:z=0.5": f"z is '0.5', {factor}",
                "grad_norm:z=1001": f"z is '1001', {factor}", "grad_norm:z=nan": f"z is 'nan', {factor}", "grad_norm:z=4,every=0": f"every is '0', {steps}",
                "grad_norm:z=4,z=4": "z is given twice", "grad_norm:z=4,evry=2": f"'evry=2' is not an option of grad_norm; {norms}"}.items():
            with self.subTest(check), self.assertRaisesRegex(syncline.InvalidArgument, f"^check={check!r}: {why}"):
                self.optimizer(make_model(), check=check)

    def test_modes_in_which_weights_differ_are_refused(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "with mode='ssp:4': in this mode workers may hold weights of different steps"):
            self.optimizer(make_model(), check="weights:every=1", mode="ssp:4")
        with mock.patch.dict("os.environ", SYNCLINE_MODE="asp"), self.assertRaisesRegex(syncline.InvalidArgument, "mode='asp'"):
            self.optimizer(make_model(), check="weights:every=1")

    def test_other_bits_of_the_same_number_are_no_difference(self):
        self.assertEqual(self.run_ranks("""
            wait = optimizer._weights[1].wait
            def negative():
                wait()
                optimizer._weights[1].parameter.data[:] = -0.0 if rank else 0.0
            optimizer._weights[1].wait = negative
            train(3)
        """), ["equal"] * 2)

    def test_a_rank_whose_gradients_are_larger_than_others_is_named_with_the_step(self):
        said = self.run_ranks("""
            train(40)
            train(1, factor=1e4 if rank == 1 else 1)
        """, ranks=3, check="grad_norm:z=4,every=1")
        self.assertEqual(said, ["rank=1 tensor= index=None step=41"] * 3)

    def test_norms_of_steps_between_are_not_compared(self):
        self.assertEqual(self.run_ranks("""
            for _ in range(40):
                train(1)
                train(1, factor=0 if rank == 1 else 1)
                train(1)
        """, check="grad_norm:z=4,every=3"), ["equal"] * 2)

    def test_a_gradient_that_is_no_number_is_named_at_once(self):
        said = self.run_ranks("""
            train(1)
            train(1, factor=float("nan") if rank == 1 else 1)
        """, check="grad_norm:z=4,every=2")
        self.assertEqual(said, ["rank=1 tensor= index=None step=2"] * 2)

    def test_checks_that_are_not_the_same_are_refused(self):
        said = self.run_ranks("""
            if rank == 1:
                from syncline.torch._optimizer.check import check_of
                optimizer._step._check = check_of("grad_norm:z=5,every=2", {})
            try:
                train(2)
            except syncline.NotEqual as error:
                print(error.rank, error, flush=True)
        """, check="grad_norm:z=4,every=2", line=r"^(equal|\d check=.*)$")
        self.assertEqual(said, ["1 check='grad_norm:z=4,every=2' differs between ranks at step 2: rank 1 compares one of name "
                                "check='grad_norm:z=5,every=2', rank 0 one of check='grad_norm:z=4,every=2'"] * 2)  # fmt: skip


class FakeSession:
    """Counts steps, and how often it is asked for them."""

    rank = 0

    def __init__(self, step=0):
        self.at, self.asked = step, 0

    @property
    def step(self):
        self.asked += 1
        return self.at


class FakeWeight:
    """Notes in `calls` that it was waited for."""

    def __init__(self, calls, gradient=None):
        self.calls, self.gradient = calls, gradient

    def wait(self):
        self.calls.append("wait")


class WhenRanksCompare(unittest.TestCase):
    def steps(self, check, session, count, calls=1, weights=()):
        """So many steps of so many calls each; those that were compared."""
        compared = []
        with mock.patch.object(check, "_compare", side_effect=lambda *_: compared.append(session.at)):
            for _ in range(count):
                for call in range(calls):
                    session.at += call == calls - 1
                    check.before_step(session, weights)
                    check.after_step(session, weights)
        return compared

    def test_every_so_many_steps_of_the_job_whichever_it_joins_at(self):
        for check, first, expected in (("weights:every=3", 0, [3, 6, 9]), ("weights:every=3", 4, [6, 9, 12]), ("weights:every=1", 0, list(range(1, 11))),
                                       ("weights:every=3", 3, [6, 9, 12]), ("grad_norm:z=4", 95, [100]), ("grad_norm:z=4,every=20", 5, [])):
            with self.subTest(check, first=first):
                check, session = check_of(check, {}), FakeSession(first)
                check.begin(session)
                self.assertEqual(self.steps(check, session, 10), expected)

    def test_norms_say_once_from_which_step_on_they_are_judged(self):
        for first, said in ((0, 330), (95, 420)):
            with self.subTest(first), self.assertLogs("syncline", "INFO") as logs:
                check_of("grad_norm:z=6", {}).begin(FakeSession(first))
            self.assertEqual(logs.output, [f"INFO:syncline:check='grad_norm:z=6' checks from step {said} on: in 32 steps before that, it learns how "
                                           "much the norms of ranks differ"])
        other = FakeSession()
        other.rank = 1
        with self.assertNoLogs("syncline", "INFO") if hasattr(self, "assertNoLogs") else contextlib.nullcontext():
            check_of("grad_norm:z=6", {}).begin(other)

    def test_a_step_of_several_calls_counts_once(self):
        check, session = check_of("weights:every=3", {}), FakeSession(2)
        check.begin(session)
        self.assertEqual(self.steps(check, session, 20, calls=4), [3, 6, 9, 12, 15, 18, 21])

    def test_the_session_is_asked_only_where_a_step_is_due(self):
        check, session = check_of("grad_norm:z=4,every=50", {}), FakeSession()
        check.begin(session)
        self.assertEqual(self.steps(check, session, 1000), list(range(50, 1001, 50)))
        self.assertEqual(session.asked, 1 + 1000 // 50)

    def test_in_a_step_between_nothing_is_waited_for_and_no_gradient_is_read(self):
        check, session, calls = check_of("grad_norm:z=4,every=5", {}), FakeSession(), []
        check.begin(session)
        weights = [FakeWeight(calls, gradient="no tensor")]     # of which there is no norm
        self.assertEqual(self.steps(check, session, 4, weights=weights), [])
        self.assertEqual(calls, [])

    def test_a_rank_waits_for_all_weights_before_it_waits_for_others(self):
        for name in ("grad_norm:z=4,every=1", "weights:every=1"):
            check, session, calls = check_of(name, {}), FakeSession(), []
            check.begin(session)
            weights = [FakeWeight(calls), FakeWeight(calls)]
            with self.subTest(name), mock.patch.object(check, "_compare", side_effect=lambda *_: calls.append("compare")):
                session.at = 1
                check.before_step(session, weights)
                self.assertEqual(calls, [])
                check.after_step(session, weights)
                self.assertEqual(calls, ["wait", "wait", "compare"])


class OfARankThatDoesNotCome(unittest.TestCase):
    def test_ctrl_c_compares_again_unless_it_ended_the_comparison_of_all(self):
        session = FakeSession(1)
        session.rank, session.world_size = 0, 2
        for step in ("_meet", "_make"):
            check, gathering = check_of("weights:every=1", {}), Gathering()
            check.before_step(session, [])
            with self.subTest(step), mock.patch.object(_asserts, "_gathering", gathering), mock.patch.object(Gathering, "_store"), \
                    mock.patch.object(Gathering, "_meet", return_value="name"), \
                    mock.patch.object(Gathering, step, side_effect=KeyboardInterrupt) as interrupted:
                with self.assertRaises(KeyboardInterrupt):
                    check.after_step(session, [])
                if step == "_meet":  # others wait for this rank
                    with self.assertRaises(KeyboardInterrupt):
                        check.after_step(session, [])
                else:
                    check.after_step(session, [])
                self.assertEqual(interrupted.call_count, 1 + (step == "_meet"))

    def test_the_check_is_named_as_the_user_wrote_it(self):
        session = FakeSession(20)
        session.rank, session.world_size = 0, 2
        for name in ("weights:every=20", "grad_norm:z=6"):
            check = check_of(name, {})
            with self.subTest(name), mock.patch.multiple(_asserts, _PATIENCE_S=0.01, _gathering=Gathering()), \
                    mock.patch.object(Gathering, "_store", return_value=torch.distributed.HashStore()), \
                    self.assertRaisesRegex(syncline.DeadlineExceeded, rf"^check='{name}' at step 20: rank 1 is missing: .*; does it have the same "
                                           r"check, and does it make as many steps\?$") as raised:
                check._compare(session, [])
            self.assertEqual(raised.exception.rank, 1)


class WhatRanksSay(unittest.TestCase):
    """Of one step's norms, and of how much each remembers."""

    def compare(self, check, numbers, own=(3.0, 4.0)):
        """This rank says a number and hears `numbers` of all ranks, or an error."""
        session = FakeSession(7)
        weights = [FakeWeight([], torch.tensor([value])) for value in own]
        check._look(weights)
        with mock.patch("syncline.torch._optimizer.check.gather", side_effect=numbers if isinstance(numbers, Exception) else [numbers]) as gather:
            try:
                check._compare(session, weights)
            finally:
                self.said = gather.call_args[0][0]

    def test_is_the_norm_of_all_its_gradients(self):
        check = check_of("grad_norm:z=4", {})
        self.compare(check, [[5.0, 0], [5.0, 0]])
        self.assertEqual(self.said, [5.0, 0])
        self.compare(check, [[5.0, 1], [5.0, 1]])
        self.assertEqual(self.said, [5.0, 1])
        self.compare(check, [[5.0, 2], [5.0, 2]], own=())
        self.assertEqual(self.said, [None, 2])

    def test_norms_that_are_not_finite_are_left_out_where_the_job_leaves_their_steps_out(self):
        for settings in ({"loss_scaling": "torch"}, {"nonfinite_steps": "skip"}):
            with self.subTest(settings):
                check = check_of("grad_norm:z=4", settings)
                self.compare(check, [[1.0, 0], [math.inf, 0], [math.nan, 0]])
                self.assertEqual(check._norms.steps, 0)

    def test_norms_that_are_not_finite_are_named_where_it_does_not(self):
        for settings in ({}, {"loss_scaling": "none"}, {"nonfinite_steps": "apply"}):
            with self.subTest(settings), self.assertRaisesRegex(
                    syncline.NotEqual, "^check='grad_norm:z=4' at step 7: gradient norms are not finite, rank 1 has inf, rank 2 has nan$") as raised:
                self.compare(check_of("grad_norm:z=4", settings), [[1.0, 0], [math.inf, 0], [math.nan, 0]])
            self.assertEqual((raised.exception.rank, raised.exception.step, raised.exception.tensor), (1, 7, ""))

    def test_ranks_that_stayed_judge_by_what_one_that_came_later_knows(self):
        check = check_of("grad_norm:z=4", {})
        for step in range(FEWEST_STEPS + 5):
            self.compare(check, [[1.0, step]] * 3)
        self.compare(check, [[1.0, FEWEST_STEPS + 5], [1e6, 0], [1.0, FEWEST_STEPS + 5]])     # rank 1 could not find it
        self.assertEqual(check._norms.steps, 1)
        for step in range(1, FEWEST_STEPS):
            self.compare(check, [[1.0, step]] * 3)
        with self.assertRaises(syncline.NotEqual):
            self.compare(check, [[1.0, FEWEST_STEPS], [1e6, FEWEST_STEPS], [1.0, FEWEST_STEPS]])

    def test_what_some_may_not_have_heard_and_what_was_before_it_is_forgotten(self):
        check = check_of("grad_norm:z=4", {})
        self.compare(check, [[1.0, 0]] * 3)
        with self.assertRaises(syncline.DeadlineExceeded):
            self.compare(check, syncline.DeadlineExceeded("rank 2 is missing"))
        self.assertEqual(check._norms.steps, 0)

    def test_a_rank_that_joins_again_begins_with_nothing(self):
        check = check_of("grad_norm:z=4", {})
        self.compare(check, [[1.0, 0]] * 3)
        check.begin(FakeSession(8))
        self.assertEqual(check._norms.steps, 0)
