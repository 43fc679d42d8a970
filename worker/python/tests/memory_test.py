"""Tests of Session.allocate: memory for gradients that servers on this host read without a copy."""
import unittest

import support

try:
    import numpy
except ImportError:
    raise unittest.SkipTest("no numpy; install python3-numpy") from None

import syncline


class Memory(support.ServersTest):
    def session(self, **more):
        session = syncline.Session(**self.options(**{"push": "fp32", "publish": "fp32", **more}))
        self.addCleanup(session.close)
        return session

    def test_gradients_are_read_from_it(self):
        weights = numpy.arange(100_000, dtype=numpy.float32)
        expected = weights.copy()
        with self.session(optimizer="sgd:lr=0.5") as session:
            gradient = session.allocate((100, 1000))
            self.assertEqual((gradient.shape, gradient.dtype, float(gradient.sum())), ((100, 1000), numpy.float32, 0))
            tensor = session.declare("w", weights.reshape(100, 1000))
            session.start()
            for step in range(4):
                gradient[:] = step + 1
                session.push_pull(tensor, gradient)
                session.wait(tensor)
                expected -= 0.5 * (step + 1)
                numpy.testing.assert_array_equal(weights, expected)
        gradient[:] = 7  # it outlives the session
        self.assertEqual(float(gradient[99, 999]), 7)

    def test_there_is_none_of_other_types_or_shapes(self):
        with self.session() as session:
            with self.assertRaisesRegex(syncline.InvalidArgument, "float64; give float32, bfloat16 or float16"):
                session.allocate(3, "float64")
            with self.assertRaisesRegex(syncline.InvalidArgument, r"\[-1\]; no dimension may be negative"):
                session.allocate([-1])
            with self.assertRaisesRegex(syncline.InvalidArgument, "a tensor has at most"):
                session.allocate([2**40])
            self.assertEqual(session.allocate([0, 3]).shape, (0, 3))
            self.assertEqual(session.allocate(5, numpy.float16).dtype, numpy.float16)

    def test_a_part_of_it_is_pushed_as_any_memory(self):
        weights = numpy.zeros(16001, numpy.float32)
        with self.session(optimizer="sgd:lr=1") as session:
            memory = session.allocate(20000)
            memory[:] = 1  # behind the part there are no zeros
            tensor = session.declare("w", weights)
            session.start()
            session.push_pull(tensor, memory[:16001])
            session.wait(tensor)
        self.assertEqual(set(weights.tolist()), {-1.0})


if __name__ == "__main__":
    unittest.main()
