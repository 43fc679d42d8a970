"""Tests of arguments that a session refuses before it calls the library: tensors of other sessions, wrong names and sample numbers."""
import unittest

import support

try:
    import numpy
except ImportError:
    raise unittest.SkipTest("no numpy; install python3-numpy") from None

import syncline


class Refuses(support.ServersTest):
    def session(self, job=""):
        session = syncline.Session(**self.options(job=f"{self.id()}{job}", push="fp32", publish="fp32"))
        self.addCleanup(session.close)
        return session

    def test_tensors_of_another_session(self):
        session, other = self.session(), self.session("other")
        weights = numpy.zeros(4, numpy.float32)
        own = session.declare("w", weights)
        other.declare("first", numpy.zeros(4, numpy.float32))
        theirs = [other.declare("same number", numpy.zeros(4, numpy.float32)), other.declare("no number", numpy.zeros(4, numpy.float32))]
        session.declare("second", numpy.zeros(4, numpy.float32), frozen=True)
        array = numpy.ones(4, numpy.float32)
        with self.assertRaisesRegex(syncline.InvalidArgument, "same number: the tensor was declared by another session"):
            session.set_state(theirs[0], 1, [])
        session.start()
        for tensor in theirs:
            for call in (lambda: session.push_pull(tensor, array), lambda: session.skip([own, tensor]), lambda: session.wait(tensor),
                         lambda: session.is_ready(tensor), lambda: session.scale_learning_rate(tensor, 0.5),
                         lambda: session.pull_average(tensor, array), lambda: session.pull_state(tensor, 0, array)):
                with self.assertRaisesRegex(syncline.InvalidArgument, "number: the tensor was declared by another session"):
                    call()
        session.push_pull(own, -array)  # nothing of it has happened
        session.wait(own)
        self.assertEqual(session.step, 1)
        self.assertTrue((weights > 0).all())

    def test_names_that_the_library_would_read_as_others(self):
        session = self.session()
        for name in ("a\0b", "\0", "\ud800", 3, None):
            with self.assertRaisesRegex(syncline.InvalidArgument, "the name of a tensor is "):
                session.declare(name, numpy.zeros(4, numpy.float32))

    def test_samples_that_are_no_integers(self):
        session = self.session()
        tensor = session.declare("w", numpy.zeros(4, numpy.float32))
        session.start()
        for samples in (1.5, "3", None):
            with self.assertRaisesRegex(syncline.InvalidArgument, "w: samples is .*; give an integer"):
                session.push_pull(tensor, numpy.ones(4, numpy.float32), samples=samples)
        session.push_pull(tensor, numpy.ones(4, numpy.float32), samples=numpy.int64(3))
        session.wait(tensor)


class AtTheEnd(support.ServersTest):
    BEGIN = """
        import numpy, os, sys, syncline
        session = syncline.Session(push="fp32", publish="fp32")
        w = session.declare("w", numpy.zeros(3, numpy.float32))
        session.start()
        session.push_pull(w, numpy.ones(3, numpy.float32))
        """

    def test_a_forked_child_warns_of_no_step_of_its_parent(self):
        program = self.program(self.BEGIN + """
        if (child := os.fork()) == 0:
            sys.exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        session.wait(w)
        """)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertNotIn("left before the last step", program.text())

    def test_a_program_that_has_caught_the_loss_of_its_session_hears_nothing_more(self):
        program = self.program(self.BEGIN + """
        try:
            with session._calls.call():
                raise syncline.Unavailable("as of a server that was lost")
        except syncline.Unavailable:
            session.wait = lambda *_: sys.exit("waits for what is lost")
        """)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertNotIn("waits for what is lost", program.text())


if __name__ == "__main__":
    unittest.main()
