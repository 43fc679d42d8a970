"""Of check="grad_norm:…": which rank's norm is unlike those of the others."""
import math
import random
import re
import statistics
import unittest

import support  # noqa: F401, finds the package

from syncline.torch._optimizer.norms import FEWEST_STEPS, Norms, _deviations


class NormsOfRanks(unittest.TestCase):
    """The rule by itself: which rank of which step is not as the others."""

    def usual(self, ranks, z=4.0, seed=0, spread=0.2):
        """Norms that fall as training goes on, and differ by 20 % between ranks."""
        norms, noise = Norms(z), random.Random(seed)
        for step in range(FEWEST_STEPS):
            self.assertIsNone(norms.judge([math.exp(-0.1 * step + noise.gauss(0, spread)) for _ in range(ranks)]))
        return norms

    def found(self, ranks, spread, steps, seed, z=6.0, factors=None):
        """Of norms with the spread of each step: in which steps a rank was found, and which."""
        norms, noise, found = Norms(z), random.Random(seed), {}
        for step in range(steps):
            said = norms.judge([math.exp(noise.gauss(0, spread(step))) * (factors or {}).get(rank, 1) for rank in range(ranks)])
            if said:
                found[step] = said.rank
        return found

    def test_the_first_steps_are_looked_at_only(self):
        norms = Norms(4)
        for _ in range(FEWEST_STEPS):
            self.assertIsNone(norms.judge([1.0, 1.0, 1e6]))
        self.assertEqual(norms.judge([1.0, 1.0, 1e6]).rank, 2)

    def test_a_rank_far_from_the_median_is_named_whatever_the_number_of_ranks(self):
        for ranks in (3, 4, 8, 33):
            for factor in (1e3, 1e-3, 0.0):
                with self.subTest(ranks=ranks, factor=factor):
                    norms = [math.exp(-0.1 * FEWEST_STEPS)] * ranks
                    norms[1] *= factor
                    found = self.usual(ranks).judge(norms)
                    self.assertEqual(found.rank, 1)
                    # Both as factors: what it is, and what may be.
                    said = re.search(r", a factor of ([\d.e+]+); allowed is a factor of ([\d.]+): 4 standard deviations, each a factor of ([\d.]+)$",
                                     found.what)
                    self.assertIsNotNone(said, found.what)
                    is_factor, allowed, deviation = map(float, said.groups())
                    self.assertGreater(is_factor, allowed)
                    self.assertAlmostEqual(allowed, deviation ** 4, delta=0.01 * allowed)
                    if factor:
                        self.assertAlmostEqual(is_factor, max(factor, 1 / factor), delta=1)

    def test_of_two_ranks_both_are_said_and_neither_is_named(self):
        for other in (200.0, 2e-4, 0.0):
            for norms in ([0.2, other], [other, 0.2]):
                found = self.usual(2).judge(norms)
                self.assertIsNone(found.rank)
                self.assertIn(f"rank 0 has {norms[0]:.4g} and rank 1 has {norms[1]:.4g} (with two ranks it is unknown which one is wrong), a factor of ", found.what)

    def test_two_that_have_gradients_of_several_are_two(self):
        found = self.usual(3).judge([None, 0.2, 1e9])
        self.assertIsNone(found.rank)
        self.assertIn("rank 1 has 0.2 and rank 2 has 1e+09", found.what)

    def test_all_that_are_far_are_said_and_the_first_is_named(self):
        norms = [0.2] * 8
        norms[2] = norms[6] = 500.0
        found = self.usual(8).judge(norms)
        self.assertEqual(found.rank, 2)
        self.assertTrue(found.what.endswith("so do ranks 6"), found.what)

    def test_one_that_is_not_finite_is_named_before_anything_is_known(self):
        for wrong in (math.inf, math.nan):
            found = Norms(4).judge([1.0, 1.0, wrong])
            self.assertEqual((found.rank, found.what), (2, f"gradient norms are not finite, rank 2 has {wrong}"))

    def test_what_all_ranks_do_is_no_difference(self):
        norms = self.usual(3)
        self.assertIsNone(norms.judge([1e6, 1e6, 1.1e6]))
        self.assertIsNone(norms.judge([0.0, 0.0, 0.0]))

    def test_the_one_rank_that_has_a_gradient_beside_zeros_is_named(self):
        found = self.usual(4).judge([0.0, 0.0, 0.3, 0.0])
        self.assertEqual(found.rank, 2)
        self.assertIn("rank 2 has 0.3, the median of all is 0, a factor of 3e+299; allowed is ", found.what)

    def test_a_rank_that_was_unlike_others_from_the_start_is_found(self):
        for ranks in (4, 5, 8, 16):
            for factor in (10, 0.1):
                with self.subTest(ranks=ranks, factor=factor):
                    found = self.found(ranks, lambda _: 0.1, 3000, seed=ranks, factors={3: factor})
                    self.assertEqual(set(found.values()), {3})
                    self.assertLess(min(found), 2 * FEWEST_STEPS)
                    self.assertGreater(len(found), 2000)     # what is found is learned, and does not become usual

    def test_a_spread_that_grows_for_good_becomes_usual(self):
        for seed in range(20):
            found = self.found(8, lambda step: 0.02 if step < FEWEST_STEPS else 0.2, 516, seed)
            self.assertLessEqual(len(found), 1, (seed, found))
        for ranks in (2, 3, 4):     # of few the first wide steps cannot be told from a fault
            for seed in range(20):
                found = self.found(ranks, lambda step: 0.02 if step < FEWEST_STEPS else 0.2, 516, seed, z=8.0)
                self.assertLess(max(found, default=0), FEWEST_STEPS + 64, (ranks, seed, found))

    def test_the_deviation_is_that_of_normal_values(self):
        noise = random.Random(5)
        for ranks in (*range(2, 13), 32):
            found = []
            for _ in range(3000):
                logs = [noise.gauss(0, 0.2) for _ in range(ranks)]
                median = statistics.median(logs)
                found.append(_deviations(ranks) * statistics.median(abs(log - median) for log in logs))
            self.assertAlmostEqual(statistics.median(found), 0.2, delta=0.02, msg=ranks)

    def test_noise_is_no_difference(self):
        for ranks in (2, 3, 4, 8):
            for seed in range(20):
                self.assertEqual(self.found(ranks, lambda _: 0.2, 200, seed, z=8.0), {}, (ranks, seed))

    def test_equal_batches_may_differ_by_rounding(self):
        norms = self.usual(3, spread=0.0)
        self.assertIsNone(norms.judge([1.0, 1.0001, 1.0]))
        self.assertEqual(norms.judge([1.0, 1.2, 1.0]).rank, 1)

    def test_one_wild_step_does_not_hide_the_next(self):
        norms = Norms(4)
        for step in range(FEWEST_STEPS + 1):
            norms.judge([1.0, 1e30 if step == 5 else 1.01])
        self.assertIsNotNone(norms.judge([1.0, 1e3]))

    def test_ranks_without_a_gradient_are_left_out(self):
        norms = self.usual(4)
        self.assertIsNone(norms.judge([None, 0.2, 0.21, 0.2]))
        self.assertIsNone(norms.judge([None, None, None, 1e9]))
        self.assertIsNone(norms.judge([None] * 4))
        self.assertEqual(norms.judge([None, 0.2, 0.2, 1e9]).rank, 3)
