"""Tests of torch/_host/steps.py and _host/requests.py without processes: when a host's gradients are whole, and which loss is reported."""
import random
import threading
import types
import unittest
from unittest import mock

import support

try:
    import torch  # noqa: F401
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

from syncline.torch._host import wire
from syncline.torch._host.requests import Requests
from syncline.torch._host.steps import Given, Steps

ONE = Given(1, 1.0)
support  # sets the path


class HostSteps(unittest.TestCase):
    def steps(self, ranks, tensors=2, first=5):
        steps = Steps(tensors, first)
        for rank in ranks:
            steps.ask_to_join(rank)
        self.assertEqual(steps.admit(0.0), list(ranks))
        return steps

    def test_a_gradient_is_whole_when_all_have_given(self):
        steps = self.steps([0, 1])
        self.assertTrue(steps.give(1, 0, 5, ONE, 1.0))
        self.assertFalse(steps.is_whole(0))
        self.assertTrue(steps.give(0, 0, 5, Given(3, 0.5), 1.0))
        self.assertTrue(steps.is_whole(0))
        self.assertFalse(steps.is_whole(1))
        self.assertEqual(steps.hand(0), [(0, Given(3, 0.5)), (1, ONE)])
        self.assertFalse(steps.is_whole(0), "it is handed on once")

    def test_a_second_gradient_or_one_of_another_step_is_refused(self):
        steps = self.steps([0, 1])
        self.assertFalse(steps.give(0, 0, 6, ONE, 1.0))
        self.assertFalse(steps.give(2, 0, 5, ONE, 1.0), "no member")
        self.assertTrue(steps.give(0, 0, 5, ONE, 1.0))
        self.assertFalse(steps.give(0, 0, 5, ONE, 1.0))
        steps.give(1, 0, 5, ONE, 1.0)
        steps.hand(0)
        self.assertFalse(steps.give(0, 0, 5, ONE, 1.0), "it is handed on")
        steps.arrive(0, 2.0)
        self.assertTrue(steps.give(0, 0, 6, ONE, 3.0))

    def test_gradients_of_a_rank_that_left_count_and_it_is_not_waited_for(self):
        steps = self.steps([0, 1])
        steps.give(1, 0, 5, ONE, 1.0)
        steps.give(0, 0, 5, ONE, 1.0)
        steps.give(0, 1, 5, ONE, 1.0)
        steps.remove(1)
        self.assertEqual([rank for rank, _ in steps.hand(0)], [0, 1])
        self.assertTrue(steps.is_whole(1))
        self.assertEqual([rank for rank, _ in steps.hand(1)], [0])

    def test_a_step_that_all_ranks_left_ends_with_the_gradients_that_were_given(self):
        steps = self.steps([0, 1], tensors=3)
        for rank in (0, 1):
            steps.give(rank, 0, 5, ONE, 1.0)
        steps.give(1, 1, 5, ONE, 1.0)
        steps.hand(0)
        for rank in (0, 1):
            steps.remove(rank)
            steps.ask_to_join(rank)
        self.assertEqual(steps.admit(2.0), [])
        self.assertTrue(steps.is_whole(1) and steps.is_whole(2))
        self.assertEqual([[rank for rank, _ in steps.hand(tensor)] for tensor in (1, 2)], [[1], []])
        for tensor in range(3):
            steps.arrive(tensor, 3.0)
        self.assertFalse(any(steps.is_whole(tensor) for tensor in range(3)), "of the next step nothing was handed on")
        self.assertEqual(steps.admit(3.0), [0, 1])

    def test_a_rank_that_joins_waits_for_the_end_of_the_step(self):
        steps = self.steps([0])
        steps.give(0, 0, 5, ONE, 1.0)
        steps.hand(0)
        steps.ask_to_join(1)
        self.assertEqual(steps.admit(1.0), [])
        steps.arrive(0, 1.0)
        steps.give(0, 0, 6, ONE, 1.0)
        self.assertFalse(steps.is_whole(0), "the next step does not begin before the other tensor is through")
        steps.give(0, 1, 5, ONE, 1.0)
        self.assertTrue(steps.is_whole(1))
        steps.hand(1)
        steps.arrive(1, 1.0)
        self.assertEqual(steps.admit(1.0), [1])
        self.assertFalse(steps.is_whole(0), "it is waited for in that step")
        steps.give(1, 0, 6, ONE, 1.0)
        self.assertTrue(steps.is_whole(0))

    def test_a_restarted_rank_repeats_a_gradient_that_did_not_count(self):
        steps = self.steps([0, 1])
        steps.give(1, 0, 5, Given(7, 1.0), 1.0)
        steps.remove(1)
        steps.ask_to_join(1)
        self.assertEqual(steps.admit(1.0), [1])
        steps.give(0, 0, 5, ONE, 1.0)
        self.assertFalse(steps.is_whole(0))
        self.assertTrue(steps.give(1, 0, 5, Given(9, 1.0), 1.0))
        self.assertEqual(steps.hand(0)[1], (1, Given(9, 1.0)))

    def test_a_rank_is_late_if_others_wait_for_it(self):
        steps = self.steps([0, 1])
        self.assertEqual(steps.late(100.0, 4.0), [], "nobody waits")
        steps.give(0, 0, 5, ONE, 100.0)
        self.assertEqual(steps.late(103.0, 4.0), [])
        self.assertEqual(steps.late(105.0, 4.0), [1])
        steps.give(1, 1, 5, ONE, 105.0)
        self.assertEqual(steps.late(108.0, 4.0), [], "it moves")
        self.assertEqual(steps.late(110.0, 4.0), [0, 1], "each waits for the other")

    def test_each_gradient_counts_once_while_ranks_join_and_leave(self):
        for seed in range(300):
            with self.subTest(seed=seed):
                self.run_at_random(random.Random(seed))

    def run_at_random(self, draw):
        """Runs ranks that come, go and give at random. Checks that each gradient is handed on once at most, and that steps go on."""
        tensors, ranks, goal = draw.randint(1, 3), draw.randint(1, 4), 6
        steps = self.steps(range(ranks), tensors, 0)
        life, counted = dict.fromkeys(range(ranks), 0), set()
        lives, gone = {rank: [0] * tensors for rank in range(ranks)}, set()
        handed = []
        for _ in range(10_000):
            if all(steps.step(tensor) >= goal for tensor in range(tensors)):
                return
            event = draw.random()
            rank = draw.randrange(ranks)
            if event < 0.05 and rank not in gone:
                steps.remove(rank)
                lives.pop(rank, None)
                gone.add(rank)
            elif event < 0.15 and rank in gone:
                gone.discard(rank)
                life[rank] += 1
                steps.ask_to_join(rank)
            elif event < 0.6 and rank in lives:
                tensor = draw.randrange(tensors)
                if lives[rank][tensor] == steps.step(tensor):
                    self.assertTrue(steps.give(rank, tensor, lives[rank][tensor], Given(life[rank] + 1, 1.0), 0.0))
                    lives[rank][tensor] += 1
            elif handed and event < 0.8:
                steps.arrive(handed.pop(draw.randrange(len(handed))), 0.0)
            for rank in steps.admit(0.0):
                lives[rank] = [steps.step(0)] * tensors
            for tensor in range(tensors):
                if steps.is_whole(tensor):
                    step, given = steps.step(tensor), steps.hand(tensor)
                    self.assertLessEqual(set(steps.members), {rank for rank, _ in given})
                    for rank, _ in given:
                        self.assertNotIn((rank, tensor, step), counted)
                        counted.add((rank, tensor, step))
                    handed.append(tensor)
        self.fail("it stands still")


class Losses(unittest.TestCase):
    """Tests of the loss that the leader reports for the ranks of its host."""

    def setUp(self):
        self.told = []
        session = types.SimpleNamespace(report_loss=lambda *said: self.told.append(said))
        self.requests = Requests(session, [], lambda action: action())

    def report(self, rank, loss, step, samples):
        self.requests.take(types.SimpleNamespace(rank=rank), {"what": "loss", "id": 0, "loss": loss, "step": step, "samples": samples}, [])
        self.requests.look([0, 1])

    def test_are_told_as_one_mean_when_all_have_come(self):
        self.report(0, 1.0, 5, 1)
        self.assertEqual(self.told, [])
        self.report(1, 5.0, 5, 3)
        self.assertEqual(self.told, [(4.0, 5, 4)])

    def test_of_the_last_step_those_that_came_are_told_once(self):
        self.report(0, 1.0, 5, 1)
        self.requests.tell_loss()
        self.requests.tell_loss()
        self.assertEqual(self.told, [(1.0, 5, 1)])

    def test_of_a_step_that_some_left_out_are_told_before_those_of_the_next(self):
        self.report(0, 1.0, 5, 1)
        self.report(0, 2.0, 6, 1)
        self.report(1, 2.0, 6, 1)
        self.assertEqual(self.told, [(1.0, 5, 1), (2.0, 6, 2)])


class Questions(unittest.TestCase):
    def test_are_answered_with_an_error_if_no_thread_can_start(self):
        requests = Requests(types.SimpleNamespace(), [], lambda action: action())
        answers = []
        connection = types.SimpleNamespace(rank=1, questions=0, answer=answers.append)
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
            requests.take(connection, {"what": "stats", "id": 7}, [])
        (message,) = answers
        _, said = wire.parse(message)
        self.assertEqual((said["id"], said["value"]), (7, None))
        self.assertIn("cannot ask the servers: can't start new thread", said["error"])


if __name__ == "__main__":
    unittest.main()
