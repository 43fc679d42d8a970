"""Tests of tensors whose part in a session the program ends."""
import threading
import unittest
import weakref

import support

try:
    import numpy
except ImportError:
    raise unittest.SkipTest("no numpy; install python3-numpy") from None

import syncline


class Undeclared(support.ServersTest):
    def session(self, **more):
        session = syncline.Session(**self.options(push="fp32", publish="fp32", **more))
        self.addCleanup(session.close)
        return session

    def test_tensors_are_skipped_and_their_memory_is_free(self):
        weights = [numpy.zeros(100_000, numpy.float32), numpy.zeros(3, numpy.float32), numpy.zeros(5, numpy.float32)]
        gradients = [numpy.ones_like(array) for array in weights]
        with self.session(optimizer="sgd:lr=1") as session:
            big, small, frozen = (session.declare(name, array, frozen=name == "frozen")
                                  for name, array in zip(("big", "small", "frozen"), weights))
            session.start()
            session.push_pull(big, gradients[0])
            for tensor, why in ((big, "before Wait"), (small, "in the middle of step 0")):
                with self.assertRaisesRegex(syncline.FailedPrecondition, f"'{tensor.name}' cannot be undeclared {why}"):
                    session.undeclare(tensor)
            session.push_pull(small, gradients[1])
            session.wait_all()
            session.undeclare(frozen)
            session.undeclare(big)
            held = weakref.ref(weights[0])
            id_of_big = big.id
            del weights[0], gradients[0], big
            self.assertIsNone(held())
            for step in range(1, 5):
                self.assertEqual(session.step, step)
                session.push_pull(small, gradients[0])
                session.wait_all()
            with self.assertRaisesRegex(syncline.FailedPrecondition, "'big' was undeclared"):
                session._do("wait", id_of_big, 0)
            with self.assertRaisesRegex(syncline.FailedPrecondition, "'frozen' was undeclared"):
                session.undeclare(frozen)
            with self.assertRaisesRegex(syncline.FailedPrecondition, "'small' cannot be undeclared as it is the only trained tensor that is left"):
                session.undeclare(small)

    def test_tensors_are_trained_on_by_the_other_workers(self):
        arrays = [[numpy.zeros(70_000, numpy.float32), numpy.zeros(3, numpy.float32)] for _ in range(2)]
        gradient = [numpy.ones_like(array) for array in arrays[0]]
        failures = []

        def train(rank):
            try:
                with self.session(rank=rank, world_size=2, optimizer="sgd:lr=1") as session:
                    first, second = (session.declare(name, array) for name, array in zip("ab", arrays[rank]))
                    session.start()
                    for step in range(10):
                        if rank == 1 and step == 4:
                            session.undeclare(first)
                        if rank == 0 or step < 4:
                            session.push_pull(first, gradient[0])
                        session.push_pull(second, gradient[1])
                        session.wait_all()
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(support.PATIENCE)
        self.assertEqual(failures, [])
        # The mean over those that have a gradient is the gradient.
        for array, steps in ((arrays[0][0], 10), (arrays[1][0], 4), (arrays[0][1], 10), (arrays[1][1], 10)):
            numpy.testing.assert_array_equal(array, -steps)

    def test_tensors_are_refused_where_weights_arrive_at_any_time(self):
        for mode in ("asp", "ssp:2", "bsp:quorum=1"):
            with self.subTest(mode), self.session(optimizer="sgd:lr=1", mode=mode, job=f"{self.id()}{mode}") as session:
                tensors = [session.declare(name, numpy.zeros(3, numpy.float32)) for name in "ab"]
                session.start()
                with self.assertRaisesRegex(syncline.FailedPrecondition, "'a' cannot be undeclared in mode (asp|ssp|bsp with a quorum), "):
                    session.undeclare(tensors[0])


if __name__ == "__main__":
    unittest.main()
