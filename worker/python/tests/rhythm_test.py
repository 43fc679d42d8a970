"""Tests of rounds of different lengths: LocalSGD with a function as `sync_every`."""
import unittest

from local_test import LocalTest, averaged, fresh, rows_of, step
from torch_support import torch

import syncline
from syncline.torch import DiLoCo, LocalSGD


def warmup(number):
    """Returns the length of a round: 1, 2, 4, 4, 4, … steps."""
    return min(4, 2**number)


class Rhythm(LocalTest):
    def local(self, every, kind=LocalSGD, session=None, **more):
        model = fresh()
        optimizer = kind(model, torch.optim.SGD(model.parameters(), 0.05), every, session=session or self.options(), **more)
        self.addCleanup(optimizer.session.close)
        return model, optimizer

    def test_of_a_warm_up_is_the_papers_loop(self):
        def work(_, session):
            model, optimizer = self.local(warmup, DiLoCo, session)
            for batch in rows_of(session["rank"], 2, 15):
                step(model, optimizer, *batch)
            self.assertEqual(optimizer.rounds, 5)
            optimizer.close()
            return model

        start, models = fresh(), [fresh(), fresh()]
        outer = torch.optim.SGD(start.parameters(), 0.7, momentum=0.9, nesterov=True)
        for number in range(15):
            for rank, model in enumerate(models):
                step(model, torch.optim.SGD(model.parameters(), 0.05), *rows_of(rank, 2, 15)[number])
            if number + 1 in (1, 3, 7, 11, 15):
                averaged(start, models, [1, 1], outer)
        for model in self.workers(2, work):
            self.assert_same(model, start)

    def test_counts_steps_whatever_the_rounds(self):
        model, optimizer = self.local(warmup, fragments=1)
        for number, batch in enumerate(rows_of(0, 1, 9)):
            self.assertEqual(optimizer.steps, number)
            step(model, optimizer, *batch)
        self.assertEqual(optimizer.rounds, 3)

    def test_pushes_each_fragment_once_a_round_and_pulls_it_later(self):
        model, optimizer = self.local(lambda number: 4 + 2 * number, fragments=2, overlap=3)
        events = []
        for number, fragment in enumerate(optimizer._fragments):
            for name in ("push", "pull"):
                self.note(events, optimizer, fragment, name, number)
        for batch in rows_of(0, 1, 10):  # rounds of 4 and 6 steps
            step(model, optimizer, *batch)
            events.append("|")
        # Fragments are pushed after steps 2 and 4 of four and after steps 3 and 6 of six, and pulled three steps later.
        self.assertEqual("".join(events), "|push0||push1|pull0||push0pull1|||push1pull0|")

    def note(self, events, optimizer, fragment, name, number):
        action = getattr(fragment, name)

        def noted(*arguments):
            events.append(f"{name}{number}")
            return action(*arguments)

        setattr(fragment, name, noted)

    def test_refuses_a_round_that_cannot_be(self):
        for every, more, said in ((lambda number: 0, {}, "round 0: .*sync_every=0: .* 1 or more"),
                                  (lambda number: 3, {"overlap": 3}, "round 0: overlap=3: .* 0 to 2"),
                                  (lambda number: 2.5, {}, "round 0: .*sync_every=2.5")):
            with self.subTest(said), self.assertRaisesRegex(syncline.InvalidArgument, said):
                self.local(every, session=self.options(job=said[:20]), **more)
        model, optimizer = self.local(lambda number: 2 - number)
        with self.assertRaisesRegex(syncline.InvalidArgument, "round 2: .*sync_every=0"):
            for batch in rows_of(0, 1, 5):
                step(model, optimizer, *batch)


if __name__ == "__main__":
    unittest.main()
