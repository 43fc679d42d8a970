"""check=: what all ranks hear of weights or norms that differ, and when they are compared."""
import math
import os
import random
import sys
import tempfile
import textwrap
import types
import unittest
from unittest import mock

import support
from average_test import free_port
from torch_support import OptimizerTest, make_model, torch, train

import syncline
from syncline.torch._check import check_of
from syncline.torch._norms import FEWEST_STEPS, Norms

# A rank of a job. `damage(step)` has rank 1 hold another value in its second tensor once that step's weights have come.
RANK = """
    import os, time, torch
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
    while not os.path.exists(os.environ["OVER"]):     # rank 0 has the store by which the others meet
        time.sleep(0.01)
"""


class Check(OptimizerTest):
    failure_timeout = "30s"  # nobody dies here

    def run_ranks(self, body, ranks=2, check="weights:every=3"):
        """What each has said."""
        source = textwrap.dedent(RANK.format(body=textwrap.indent(textwrap.dedent(body), " " * 8)))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        over = os.path.join(folder.name, "over")
        environment = {"OVER": over, "CHECK": check, "SYNCLINE_FAILURE_TIMEOUT": self.failure_timeout, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "SYNCLINE_JOB": self.id(),
                       "SYNCLINE_COORDINATOR": self.coordinator, "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"}
        programs = [support.Process([sys.executable, "-c", source], {**environment, "RANK": str(rank)}) for rank in range(ranks)]
        for program in programs:
            self.addCleanup(program.kill)
        said = [program.await_line("^(equal|rank=.*)$").group(0) for program in programs]
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

    def test_a_worker_alone_has_nobody_to_differ_from(self):
        model = make_model()
        train(model, self.optimizer(model, check="weights:every=1"), 3)

    def test_what_makes_no_sense_is_refused_with_what_is_allowed(self):
        for check in ("weights", "weights:every=0", "weights:every=-1", "weights:every=1.5", "norms:every=1", "weights:every=99999999999", "",
                      "grad_norm", "grad_norm:z=0.5", "grad_norm:z=1001", "grad_norm:z=nan", "grad_norm:z=4,every=0", "grad_norm:every=4", "grad_norm:z=4,z=4"):
            with self.subTest(check), self.assertRaisesRegex(syncline.InvalidArgument, 'must be "weights:every=STEPS" or "grad_norm:z=NUMBER,every=STEPS", with 1 to'):
                self.optimizer(make_model(), check=check)

    def test_modes_in_which_weights_differ_are_refused(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "with mode='ssp:4': there workers may hold weights of different steps"):
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
            train(20)
            train(1, factor=1e4 if rank == 1 else 1)
        """, ranks=3, check="grad_norm:z=4")
        self.assertEqual(said, ["rank=1 tensor= index=None step=21"] * 3)

    def test_norms_of_steps_between_are_not_compared(self):
        self.assertEqual(self.run_ranks("""
            for _ in range(20):
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


class NormsThatAreNotFinite(unittest.TestCase):
    def compare(self, norms, **settings):
        check = check_of("grad_norm:z=4", settings)
        with mock.patch("syncline.torch._check.gather_number", return_value=norms):
            check.after_step(types.SimpleNamespace(step=7), [])

    def test_are_left_out_where_the_job_leaves_their_steps_out(self):
        for settings in ({"loss_scaling": "torch"}, {"nonfinite_steps": "skip"}):
            with self.subTest(settings):
                self.compare([1.0, math.inf, math.nan], **settings)

    def test_are_named_where_it_does_not(self):
        for settings in ({}, {"loss_scaling": "none"}, {"nonfinite_steps": "apply"}):
            with self.subTest(settings), self.assertRaisesRegex(syncline.NotEqual, "at step 7: rank 1 has inf; so do ranks 2") as raised:
                self.compare([1.0, math.inf, math.nan], **settings)
            self.assertEqual((raised.exception.rank, raised.exception.step), (1, 7))


class NormsOfRanks(unittest.TestCase):
    """The rule by itself: which rank of which step is not as the others."""

    def usual(self, ranks, z=4.0, seed=0, spread=0.2):
        """Norms that fall as training goes on, and differ by 20 % between ranks."""
        norms, noise = Norms(z), random.Random(seed)
        for step in range(FEWEST_STEPS):
            self.assertIsNone(norms.judge([math.exp(-0.1 * step + noise.gauss(0, spread)) for _ in range(ranks)]))
        return norms

    def test_the_first_steps_are_looked_at_only(self):
        norms = Norms(4)
        for _ in range(FEWEST_STEPS):
            self.assertIsNone(norms.judge([1.0, 1.0, 1e6]))

    def test_a_rank_far_from_the_median_is_named_whatever_the_number_of_ranks(self):
        for ranks in (2, 3, 8):
            for factor in (1e3, 1e-3, 0.0):
                with self.subTest(ranks=ranks, factor=factor):
                    norms = [math.exp(-0.1 * FEWEST_STEPS)] * ranks
                    norms[1] *= factor
                    found = self.usual(ranks).judge(norms)
                    self.assertEqual(found.rank, 1)
                    self.assertIn("allowed are 4 times that", found.what)

    def test_all_that_are_far_are_said_and_the_first_is_named(self):
        norms = [0.2] * 8
        norms[2] = norms[6] = 500.0
        found = self.usual(8).judge(norms)
        self.assertEqual(found.rank, 2)
        self.assertTrue(found.what.endswith("so do ranks 6"), found.what)

    def test_one_that_is_not_finite_is_named_before_anything_is_known(self):
        for wrong in (math.inf, math.nan):
            self.assertEqual(Norms(4).judge([1.0, 1.0, wrong]).rank, 2)

    def test_what_all_ranks_do_is_no_difference(self):
        norms = self.usual(3)
        self.assertIsNone(norms.judge([1e6, 1e6, 1.1e6]))
        self.assertIsNone(norms.judge([0.0, 0.0, 0.0]))

    def test_noise_is_no_difference(self):
        for ranks in (2, 3, 8):
            for seed in range(50):
                norms, noise = self.usual(ranks, z=7, seed=seed), random.Random(seed + 1000)
                for step in range(200):
                    self.assertIsNone(norms.judge([math.exp(noise.gauss(0, 0.2)) for _ in range(ranks)]), (ranks, seed, step))

    def test_equal_batches_may_differ_by_rounding(self):
        norms = self.usual(2, spread=0.0)
        self.assertIsNone(norms.judge([1.0, 1.0001]))
        self.assertEqual(norms.judge([1.0, 1.2]).rank, 1)

    def test_one_wild_step_does_not_hide_the_next(self):
        norms = Norms(4)
        norms.judge([1.0, 1e30])
        for _ in range(FEWEST_STEPS):
            norms.judge([1.0, 1.01])
        self.assertEqual(norms.judge([1.0, 1e3]).rank, 1)

    def test_ranks_without_a_gradient_are_left_out(self):
        norms = self.usual(3)
        self.assertIsNone(norms.judge([None, 0.2, 0.21]))
        self.assertIsNone(norms.judge([None, None, 1e9]))
        self.assertEqual(norms.judge([None, 0.2, 1e9]).rank, 2)
