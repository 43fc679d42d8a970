"""Tests of LocalSGD and DiLoCo with rounds whose length follows each worker's speed."""
import itertools
import threading
import unittest
from unittest import mock

from local_test import LocalTest, averaged, fresh, rows_of, step
from torch_support import torch

import syncline
from syncline.torch import DiLoCo, LocalSGD
from syncline.torch._local import adaptive
from syncline.torch.elastic import ElasticDistributedSampler


class Clock(threading.local):
    """A clock for each worker, which is a thread."""

    seconds = 0.0


class AdaptiveTest(LocalTest):
    def setUp(self):
        super().setUp()
        self.clock = Clock()
        patched = mock.patch.object(adaptive, "now", lambda: self.clock.seconds)
        patched.start()
        self.addCleanup(patched.stop)

    def local(self, every, kind=LocalSGD, session=None, **more):
        model = fresh()
        optimizer = kind(model, torch.optim.SGD(model.parameters(), 0.05), every, session=session or self.options(), **more)
        self.addCleanup(optimizer.session.close)
        return model, optimizer

    def train(self, model, optimizer, batches, seconds):
        """Takes a step of each batch that takes `seconds`. Returns the length of each round that ended."""
        lengths, before = [], (optimizer.rounds, optimizer.round_steps)
        for batch in batches:
            self.clock.seconds += seconds
            step(model, optimizer, *batch)
            if optimizer.rounds != before[0]:
                lengths.append(before[1])
                before = (optimizer.rounds, optimizer.round_steps)
        return lengths


class Rounds(AdaptiveTest):
    def test_are_as_long_as_the_speeds_allow_and_weigh_by_their_steps(self):
        # Rounds of 2, 8, 8, 8 steps for the fast worker and 2, 2, 2, 2 for one that is four times slower.
        counts = [2 + 8 + 8 + 8, 2 + 2 + 2 + 2]

        def work(rank, session):
            model, optimizer = self.local("adaptive:8", DiLoCo, session)
            lengths = self.train(model, optimizer, rows_of(rank, 2, counts[rank]), 0.25 * 4**rank)
            self.assertEqual(optimizer.rounds, 4)
            self.assertEqual(lengths, [[2, 8, 8, 8], [2, 2, 2, 2]][rank])
            optimizer.close()
            return model

        start, models = fresh(), [fresh(), fresh()]
        outer = torch.optim.SGD(start.parameters(), 0.7, momentum=0.9, nesterov=True)
        batches = [iter(rows_of(rank, 2, counts[rank])) for rank in range(2)]
        for weights in ([2, 2], [8, 2], [8, 2], [8, 2]):
            for rank, model in enumerate(models):
                for batch in itertools.islice(batches[rank], weights[rank]):
                    step(model, torch.optim.SGD(model.parameters(), 0.05), *batch)
            averaged(start, models, weights, outer)
        for model in self.workers(2, work):
            self.assert_same(model, start)

    def test_do_not_count_the_time_of_waiting_for_others(self):
        def work(rank, session):
            model, optimizer = self.local("adaptive:8", session=session)
            pull = optimizer._fragments[0].pull

            def slow(*arguments):
                pull(*arguments)
                self.clock.seconds += 1000

            optimizer._fragments[0].pull = slow
            lengths = self.train(model, optimizer, rows_of(rank, 2, [2 + 8, 2 + 4][rank]), 1.0 + rank)
            optimizer.close()
            return lengths

        self.assertEqual(self.workers(2, work), [[2, 8], [2, 4]])

    def test_do_not_count_what_happens_after_synchronize(self):
        model, optimizer = self.local("adaptive:8")
        self.train(model, optimizer, rows_of(0, 1, 2), 1.0)
        optimizer.synchronize()
        self.clock.seconds += 1000  # an evaluation
        self.train(model, optimizer, rows_of(0, 1, 8), 1.0)
        pushed = optimizer._rhythm._pushed
        self.assertEqual(pushed.max().item(), 1.0)

    def test_count_steps_as_the_fastest_worker_does(self):
        def work(rank, session):
            model, optimizer = self.local("adaptive:8", session=session)
            seen = []
            for batch in rows_of(rank, 2, [2 + 8, 2 + 2][rank]):
                seen.append(optimizer.steps)
                self.train(model, optimizer, [batch], 1.0 + 3 * rank)
            seen.append(optimizer.steps)
            optimizer.close()
            return seen

        fast, slow = self.workers(2, work)
        self.assertEqual(fast, [0, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16])
        self.assertEqual(slow, [0, 4, 8, 12, 16])

    def test_of_fragments_that_overlap_are_bounded_by_least(self):
        def work(rank, session):
            model, optimizer = self.local("adaptive:most=12,least=4", session=session, fragments=2, overlap=3)
            lengths = self.train(model, optimizer, rows_of(rank, 2, [4 + 4 + 12, 4 + 4 + 4][rank]), 10.0**rank)
            optimizer.close()
            return lengths, model

        # The times of a round are read three steps into the next one, and count for the one after that.
        (fast, model), (slow, other) = self.workers(2, work)
        self.assertEqual((fast, slow), ([4, 4, 12], [4, 4, 4]))
        self.assert_same(model, other, 0)

    def test_of_a_quorum_keep_what_came_too_late(self):
        def join(rank, session):
            return self.local("adaptive:8", session={**session, "mode": "bsp:quorum=1"})

        (fast, first), (slow, second) = self.workers(2, join)
        self.assertEqual(self.train(fast, first, rows_of(0, 2, 2), 1.0), [2])
        self.assertEqual(self.train(slow, second, rows_of(1, 2, 2), 4.0), [2])  # too late
        self.assertEqual(second._fragments[0].kept_samples, 2)
        self.assertEqual(second.round_steps, 2)  # by its own time, and that of the fast one
        self.assertEqual(self.train(slow, second, rows_of(1, 2, 2), 4.0), [2])
        self.assertEqual(second._fragments[0].kept_samples, 0)

    def test_of_a_worker_that_joins_begin_short(self):
        model, optimizer = self.local("adaptive:8", session=self.options(rank=0, world_size=1, run_id=self.id()))
        self.train(model, optimizer, rows_of(0, 1, 2 + 8), 1.0)
        joined = []

        def join():
            joined.extend(self.local("adaptive:8", session=self.options(rank=1, world_size=1, run_id=self.id())))
            lengths = self.train(joined[0], joined[1], rows_of(1, 2, 2 + 2), 4.0)
            joined[1].close()
            joined.append(lengths)

        thread = threading.Thread(target=join, daemon=True)
        thread.start()
        while len(joined) < 3:  # until the newcomer has made two rounds
            self.train(model, optimizer, rows_of(0, 2, 8), 1.0)
        thread.join()
        self.assertEqual(joined[2], [2, 2])

    def test_that_cannot_be_are_refused(self):
        for every, more, said in (("adaptive", {}, "it lacks the number of steps; such as adaptive:100"),
                                  ("100", {}, "adaptive rounds '100'"),
                                  ("adaptive:0", {}, "most"),
                                  ("adaptive:8", {"overlap": 3}, "rounds of 'adaptive:8' have 1 steps at least; say .*least=L: overlap=3"),
                                  ("adaptive:most=8,least=2", {"fragments": 3}, "have 2 steps at least; .*fragments=3")):
            with self.subTest(every, **more), self.assertRaisesRegex(syncline.InvalidArgument, said):
                self.local(every, **more)

    def test_are_refused_where_nobody_waits(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "mode='asp' with adaptive rounds: no worker waits for another"):
            self.local("adaptive:8", DiLoCo, mode="asp", momentum_every=2)

    def test_are_refused_by_a_sampler_of_equal_parts(self):
        _, optimizer = self.local("adaptive:8")
        with self.assertRaisesRegex(syncline.InvalidArgument, "adaptive rounds take different numbers of steps.*RandomSampler"):
            ElasticDistributedSampler(100, optimizer, 10)

    def test_travel_exactly_whatever_the_codecs(self):
        def work(rank, session):
            model, optimizer = self.local("adaptive:30", session=session, push="int4:min_elements=0,vectors=1",
                                          publish="int8:min_elements=0,vectors=1")
            lengths = self.train(model, optimizer, rows_of(rank, 2, [8 + 30, 8 + 10][rank]), 1.0 + 2 * rank)
            optimizer.close()
            return lengths

        self.assertEqual(self.workers(2, work), [[8, 30], [8, 10]])


if __name__ == "__main__":
    unittest.main()
