"""Tests of Session with NumPy arrays and real servers: steps, errors, and how programs end."""
import logging
import os
import re
import signal
import sys
import threading
import time
import unittest
import weakref
from unittest import mock

import support

try:
    import numpy
except ImportError:
    raise unittest.SkipTest("no numpy; install python3-numpy") from None

import syncline
EXACT = {"push": "fp32", "publish": "fp32"}


class Steps(support.ServersTest):
    def session(self, **more):
        session = syncline.Session(**self.options(**{**EXACT, **more}))
        self.addCleanup(session.close)
        return session

    def test_of_sgd_are_those_of_numpy(self):
        weights = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
        expected = weights.copy()
        with self.session(optimizer="sgd:lr=0.5") as session:
            tensor = session.declare("w", weights)
            session.start()
            for step in range(5):
                self.assertEqual(session.step, step)
                gradient = numpy.full((3, 4), step + 1, numpy.float32)
                session.push_pull(tensor, gradient, samples=7)
                session.wait(tensor)
                expected -= 0.5 * gradient
                numpy.testing.assert_array_equal(weights, expected)
            self.assertTrue(session.is_ready(tensor))
            self.assertEqual((session.rank, session.world_size), (0, 1))
            self.assertGreater(session.stats.bytes_pushed, 5 * 48)
            self.assertEqual(session.stats.members, 1)

    def test_say_where_their_time_went(self):
        with self.assertRaisesRegex(syncline.FailedPrecondition, "0 sessions are open"):
            syncline.report()
        weights = numpy.zeros(1000, numpy.float32)
        with self.session(optimizer="sgd:lr=0.5") as session:
            tensor = session.declare("w", weights)
            session.start()
            began = time.monotonic()
            self.assertRegex(session.report(), "worker 0: no step yet")
            for _ in range(4):
                time.sleep(0.05)
                session.push_pull(tensor, weights)
                session.wait(tensor)
            stats, passed = syncline.stats(), time.monotonic() - began
            self.assertEqual(stats.steps, 4)
            self.assertGreater(stats.phase_seconds["compute"], 0.19)
            self.assertGreater(stats.phase_seconds["push"] + stats.phase_seconds["others"], 0)
            self.assertLess(abs(sum(stats.phase_seconds.values()) - passed), 0.1 + 0.2 * passed)
            self.assertRegex(syncline.report(), r"(?s)worker 0: 4 steps of .*compute +[\d.]+ % .*decode ")

    def test_end_with_a_summary_of_rank_0(self):
        def summary(level, push, **more):
            weights = numpy.zeros(10_000, numpy.float32)
            session = self.session(job=f"{self.id()}{level}{push}{more}", push=push, **more)
            tensor, other = session.declare("w", weights), session.declare("v", numpy.zeros(3, numpy.float32))
            session.start()
            for _ in range(4):
                session.push_pull(tensor, weights, samples=32)
                session.push_pull(other, other.weights, samples=32)
                session.wait_all()
            with self.assertLogs("syncline", level) as logs:
                session.close()
                logging.getLogger("syncline").error("another line")
            return [line for line in logs.output if "steps in" in line]

        waits = "waits: encode \\d+ %, push \\d+ %, others \\d+ %, publish \\d+ %, decode \\d+ %$"
        self.assertRegex("\n".join(summary("INFO", "fp32")), "worker 0: 4 steps in [\\d.]+ s, .* steps/s, .* samples/s; "
                         f"pushed 15[67].* KiB, pulled 15[67].* KiB; {waits}")
        self.assertRegex(summary("INFO", "bf16")[0], r"pushed [\d.]+ KiB \(1.9\dx less than FP32\), pulled")
        self.assertEqual(summary("WARNING", "fp32"), [])
        with self.session(job=f"{self.id()}none") as session, self.assertLogs("syncline", "INFO") as logs:
            session.declare("w", numpy.zeros(3, numpy.float32))
            session.start()
            session.close()
            logging.getLogger("syncline").error("another line")
        self.assertNotIn("steps in", "".join(logs.output))

    def test_keep_a_gradient_that_nobody_else_keeps(self):
        class Gradient(numpy.ndarray):  # may be referred to weakly
            pass

        def push(value):
            gradient = numpy.full(4, value, numpy.float32).view(Gradient)
            session.push_pull(tensors[0], gradient)
            return weakref.ref(gradient)

        session = self.session(optimizer="sgd:lr=1", gradient="clip_value=100")
        tensors = [session.declare(name, numpy.zeros(4, numpy.float32)) for name in "ab"]
        session.start()
        first = push(1)
        self.assertIsNotNone(first())
        with self.assertRaises(syncline.FailedPrecondition):
            self.assertIsNone(push(2)())  # refused, as the first was not waited for
        self.assertIsNotNone(first())
        session.skip(tensors[1:])
        session.wait(tensors[0])
        self.assertIsNone(first())
        session.wait(tensors[1])
        second = push(2)
        session.skip(tensors[1:])
        session.wait_all()
        self.assertIsNone(second())
        third = push(3)
        session.close()
        self.assertIsNone(third())

    def test_take_half_precision_and_scalars(self):
        half, scalar = numpy.ones(100, numpy.float16), numpy.array(1, numpy.float32)
        session = self.session(optimizer="sgd:lr=0.25")
        tensors = [session.declare("half", half), session.declare("scalar", scalar)]
        session.start()
        session.push_pull(tensors[0], numpy.full(100, 2, numpy.float16))
        session.push_pull(tensors[1], numpy.array(2, numpy.float32))
        session.wait_all()
        numpy.testing.assert_array_equal(half, numpy.full(100, 0.5))
        self.assertEqual(scalar, 0.5)

    def test_skip_and_freeze(self):
        trained, skipped, frozen = (numpy.ones(4, numpy.float32) for _ in range(3))
        session = self.session(optimizer="sgd:lr=1")
        a, b = session.declare("a", trained), session.declare("b", skipped)
        c = session.declare("c", frozen, frozen=True)
        session.start()
        session.push_pull(a, numpy.ones(4, numpy.float32))
        session.skip([b])
        session.wait_all()
        self.assertEqual([trained[0], skipped[0], frozen[0]], [0, 1, 1])
        with self.assertRaises(syncline.FailedPrecondition):
            session.push_pull(c, numpy.ones(4, numpy.float32))

    def test_of_averages(self):
        weights = numpy.zeros(4, numpy.float32)
        session = self.session(optimizer="sgd:lr=1,ema_decay=0.5")
        tensor = session.declare("w", weights)
        session.start()
        session.push_pull(tensor, -numpy.ones(4, numpy.float32))
        session.wait(tensor)
        average = numpy.empty(4, numpy.float32)
        session.pull_average(tensor, average)
        self.assertTrue(0 < average[0] <= 1, average)

    def test_say_what_does_not_fit(self):
        session = self.session()
        declare = session.declare
        for name, array, said in (
                ("doubles", numpy.zeros(3), "dtype float64"),
                ("strided", numpy.zeros((4, 4), numpy.float32)[:, ::2], "not contiguous"),
                ("list", [1.0], "dtype None"),
                ("constant", numpy.frombuffer(b"abcd", numpy.float32), "read-only"),
        ):
            with self.assertRaisesRegex(syncline.InvalidArgument, f"{name}.*{said}"):
                declare(name, array)
        tensor = declare("w", numpy.zeros((2, 3), numpy.float32))
        with self.assertRaises(syncline.AlreadyExists):
            declare("w", numpy.zeros(1, numpy.float32))
        session.start()
        with self.assertRaisesRegex(syncline.InvalidArgument, r"w: .*\[6\].*\[2, 3\]"):
            session.push_pull(tensor, numpy.zeros(6, numpy.float32))
        for samples in (0, -1, 2**32):
            with self.assertRaisesRegex(syncline.InvalidArgument, f"w: samples is {samples}, but must be 1 to 4294967295"):
                session.push_pull(tensor, numpy.zeros((2, 3), numpy.float32), samples)
        session.push_pull(tensor, numpy.zeros((2, 3), numpy.float32))
        session.wait(tensor)

    def test_options_are_checked(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "optimizer"):
            syncline.Session(**self.options(optimiser="sgd"))
        session = self.session(optimizer="adamx:lr=1")
        session.declare("w", numpy.zeros(1, numpy.float32))
        with self.assertRaisesRegex(syncline.Error, "adam") as caught:
            session.start()
        self.assertNotEqual(caught.exception.exit_code, 0)

    def test_of_a_second_run_are_refused(self):
        sessions = [self.session(run_id=name, start_timeout="2s") for name in ("one", "two")]
        for session in sessions:
            session.declare("w", numpy.zeros(1, numpy.float32))
        sessions[0].start()
        with self.assertRaises(syncline.JobRefused) as caught:
            sessions[1].start()
        self.assertEqual(caught.exception.exit_code, 7)

    def test_cannot_follow_close(self):
        session = self.session()
        tensor = session.declare("w", numpy.zeros(1, numpy.float32))
        session.start()
        session.close()
        session.close()
        with self.assertRaisesRegex(syncline.SessionClosed, "closed"):
            session.wait(tensor)


class Closing(support.ServersTest):
    def session(self):
        """Returns a session with a step that never ends, because only one of its two tensors is pushed."""
        session = syncline.Session(**self.options(optimizer="sgd:lr=0.1", gradient="clip_global_norm=1"))
        self.addCleanup(session.close)
        tensor = session.declare("w", numpy.zeros(1000, numpy.float32))
        session.declare("v", numpy.zeros(1, numpy.float32))
        session.start()
        session.push_pull(tensor, numpy.ones(1000, numpy.float32))
        return session, tensor

    def test_ends_the_calls_of_other_threads_before_it_frees_the_session(self):
        session, tensor = self.session()
        ended, freed = [], []
        library = syncline.session.library()
        begun = threading.Barrier(7)

        def work(call):
            begun.wait()
            try:
                while True:
                    call()
            except syncline.SessionClosed:
                ended.append(bool(freed))

        calls = [lambda: session.wait(tensor)] * 3 + [lambda: session.stats, lambda: session.is_ready(tensor), session.barrier]
        threads = [threading.Thread(target=work, args=[call], daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        begun.wait()

        def free(handle):
            freed.append(dict(session._calls._under_way))
            library.syncline_session_free(handle)

        with mock.patch.object(syncline.session, "library", return_value=mock.Mock(wraps=library)) as patched:
            patched.return_value.syncline_session_free = free
            session.close()
        for thread in threads:
            thread.join(support.PATIENCE)
        self.assertEqual(len(ended), 6)
        self.assertEqual([len(calls) for calls in freed], [1])  # the thread of close itself

    def test_may_be_done_by_the_handler_of_a_signal_whatever_it_interrupts(self):
        for interrupted in ("session.close()", "session.wait(tensor)", "session.barrier(); session.barrier()"):
            program = self.program(f"""
                import faulthandler, numpy, os, signal, sys, syncline, syncline.session, threading
                faulthandler.dump_traceback_later(60, exit=True)
                session = syncline.Session(gradient="clip_global_norm=1")
                tensor = session.declare("w", numpy.zeros(1000, numpy.float32))
                session.declare("v", numpy.zeros(1, numpy.float32))
                session.start()
                session.push_pull(tensor, numpy.ones(1000, numpy.float32))
                def handle(*_):
                    session.close()
                    print("closed")
                    sys.exit(3)
                signal.signal(signal.SIGTERM, handle)
                leave = syncline.session.library().syncline_leave
                def leave_with_signal(handle):
                    syncline.session.library().syncline_leave = leave
                    os.kill(os.getpid(), signal.SIGTERM)
                    return leave(handle)
                if {interrupted!r} == "session.close()":
                    syncline.session.library().syncline_leave = leave_with_signal
                else:
                    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGTERM]).start()
                while True:
                    {interrupted}
            """, {"SYNCLINE_JOB": interrupted.split("(")[0]})
            self.assertEqual(program.wait(), 3, program.text())
            self.assertIn("closed", program.text())


class Waiting(support.ServersTest):
    def lonely(self):
        """Returns a session that waits for a second worker, which never comes."""
        session = syncline.Session(**self.options(world_size=2))
        self.addCleanup(session.close)
        session.declare("w", numpy.zeros(1, numpy.float32))
        return session

    def test_in_a_step_says_for_what(self):
        def join(rank):
            session = syncline.Session(**self.options(rank=rank, world_size=2, run_id="r", **EXACT))
            self.addCleanup(session.close)
            tensor = session.declare("w", numpy.zeros(4, numpy.float32))
            session.start()
            session.push_pull(tensor, numpy.ones(4, numpy.float32)) if rank == 0 else None
            return session, tensor

        sessions = {}
        threads = [threading.Thread(target=lambda rank=rank: sessions.update({rank: join(rank)})) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(support.PATIENCE)
        first, second = sessions[0], sessions[1]
        with self.assertLogs("syncline", "INFO") as logs:
            deadline = time.monotonic() + support.PATIENCE
            while not any("waiting for others" in line for line in logs.output) and time.monotonic() < deadline:
                with self.assertRaises(syncline.DeadlineExceeded):
                    first[0].wait(first[1], timeout=0.3)  # in slices, as loops that watch other things do
        self.assertIn(f"waiting for others at step 1 of job {self.id()}, 2 s (2 members); `syncline status` says who holds it up",
                      "\n".join(logs.output))
        second[0].push_pull(second[1], numpy.ones(4, numpy.float32))
        first[0].wait(first[1])

    def test_for_start_ends_with_its_timeout(self):
        with self.assertRaises(syncline.DeadlineExceeded):
            self.lonely().start(timeout=0.5)
        self.await_event(rf"leave +worker 0 \(.*\) left with an error: timed out before job '{self.id()}' began \(.*\)$")

    def test_for_start_lets_other_threads_run(self):
        turns = 0
        done = threading.Event()

        def count():
            nonlocal turns
            while not done.wait(0.01):
                turns += 1

        thread = threading.Thread(target=count)
        thread.start()
        with self.assertRaises(syncline.DeadlineExceeded):
            self.lonely().start(timeout=1)
        done.set()
        thread.join()
        self.assertGreater(turns, 20)

    def test_ends_with_ctrl_c(self):
        program = self.program("""
            import numpy, syncline, sys
            with syncline.Session(world_size=2) as session:
                session.declare("w", numpy.zeros(1, numpy.float32))
                try:
                    session.start()
                except KeyboardInterrupt:
                    print("interrupted")
                    sys.exit(5)
        """)
        program.await_line("waiting for worker")
        started = time.monotonic()
        os.kill(program.process.pid, signal.SIGINT)
        self.assertEqual(program.wait(), 5, program.text())
        self.assertIn("interrupted", program.text())
        self.assertLess(time.monotonic() - started, 5)

    def test_in_a_step_ends_with_ctrl_c(self):
        source = """
            import numpy, syncline, sys, os
            with syncline.Session() as session:
                tensor = session.declare("w", numpy.zeros(1, numpy.float32))
                session.start()
                if session.rank == 1:
                    import time; time.sleep(60)
                session.push_pull(tensor, numpy.ones(1, numpy.float32))
                try:
                    print("pushed")
                    session.wait(tensor)
                except KeyboardInterrupt:
                    print("interrupted")
                    sys.exit(5)
        """
        workers = [self.program(source, self.environment(rank, 2)) for rank in range(2)]
        workers[0].await_line("pushed")
        os.kill(workers[0].process.pid, signal.SIGINT)
        self.assertEqual(workers[0].wait(), 5, workers[0].text())
        self.assertIn("interrupted", workers[0].text())


class Programs(support.ServersTest):
    PREFACE = """
            import numpy, os, sys, syncline
            weights = numpy.zeros(4, numpy.float32)
            session = syncline.Session()
            tensor = session.declare("w", weights)
            session.start()
            session.push_pull(tensor, numpy.ones(4, numpy.float32))
    """

    def test_may_end_without_close(self):
        for ending, code in (("", 0), ("raise ValueError('mine')", 1), ("sys.exit(3)", 3)):
            with self.subTest(ending):
                program = self.program(f"{self.PREFACE}\n            {ending}")
                self.assertEqual(program.wait(20), code, program.text())
                self.assertNotIn("atal Python error", program.text())

    def test_do_not_lose_their_last_step(self):
        source = """
            import numpy, syncline, time
            weights = numpy.zeros(1000000, numpy.float32)
            session = syncline.Session(optimizer="sgd:lr=1", push="fp32", publish="fp32")
            tensor = session.declare("w", weights)
            session.start()
            if session.rank == 0:
                time.sleep(1)
            session.push_pull(tensor, numpy.full(1000000, 1 + 2 * session.rank, numpy.float32))
            if session.rank == 0:
                session.wait(tensor)
                print(f"weights {weights.min()} {weights.max()}")  # in one piece: the log goes to the same place
        """
        first, second = (self.program(source, self.environment(rank, 2)) for rank in range(2))
        self.assertEqual([first.wait(), second.wait()], [0, 0], second.text())
        self.assertIn("weights -2.0 -2.0", first.text())

    def test_say_what_they_lose(self):
        source = """
            import numpy, syncline, time
            session = syncline.Session()
            tensor = session.declare("w", numpy.zeros(4, numpy.float32))
            session.start()
            if session.rank == 1:
                session.push_pull(tensor, numpy.ones(4, numpy.float32))
            else:
                time.sleep(60)  # in an evaluation, say
        """
        _, second = (self.program(source, self.environment(rank, 2)) for rank in range(2))
        self.assertEqual(second.wait(30), 0, second.text())
        self.assertRegex(second.text(), "left before the last step had ended.*wait_all")
        self.await_event(r"leave +worker 1 \(.*\) left with an error: its last step had not ended, and its last contributions may be lost$")

    def test_do_not_wait_for_a_step_begun_in_part(self):
        program = self.program("""
            import numpy, syncline, time
            session = syncline.Session(gradient="clip_global_norm=1")
            tensors = [session.declare(name, numpy.zeros(4, numpy.float32)) for name in "ab"]
            session.start()
            session.push_pull(tensors[0], numpy.ones(4, numpy.float32))
        """)
        self.assertEqual(program.wait(30), 0, program.text())
        self.assertNotIn("left before", program.text())

    def test_are_told_in_a_forked_child_that_the_session_is_the_parents(self):
        program = self.program(f"""{self.PREFACE}
            child = os.fork()
            if child == 0:
                try:
                    session.wait(tensor)
                except syncline.SessionClosed as error:
                    print("child:", error)
                    sys.exit(4)  # with all that Python does at exit
                sys.exit(0)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            session.wait(tensor)
            session.push_pull(tensor, numpy.ones(4, numpy.float32))
            session.wait(tensor)
            print("parent went on, child ended with", code)
        """)
        self.assertEqual(program.wait(30), 0, program.text())
        self.assertRegex(program.text(), "child: .*forked from process")
        self.assertIn("child ended with 4", program.text())

    def test_log_at_the_level_that_syncline_log_names(self):
        quiet, loud = (self.program(self.PREFACE, {"SYNCLINE_LOG": level, "SYNCLINE_JOB": f"{self.id()}.{level}"})
                       for level in ("error", "debug"))
        quiet.wait()
        self.assertEqual(quiet.text(), "")
        program = self.program(self.PREFACE, {"SYNCLINE_LOG": "shout"})
        program.wait()
        self.assertIn("SYNCLINE_LOG=shout: there are debug, info", program.text())
        loud.wait()


class Launcher(unittest.TestCase):
    def test_is_the_bundled_program(self):
        program = support.Process([sys.executable, "-m", "syncline.run", "--help"])
        self.assertEqual(program.wait(), 0, program.text())
        self.assertIn("--nproc-per-node", program.text())

    def test_starts_workers_and_servers(self):
        source = ("import numpy, syncline; s = syncline.Session(); s.declare('w', numpy.zeros(4, numpy.float32)); s.start(); "
                  "print('world', s.world_size); s.barrier(); s.close()")
        program = support.Process([sys.executable, "-m", "syncline.run", "--standalone", "--nproc-per-node", "2", "--tee",
                                   "3", "--", sys.executable, "-c", source])
        self.addCleanup(program.kill)
        self.assertEqual(program.wait(), 0, program.text())
        self.assertEqual(len(re.findall("world 2", program.text())), 2, program.text())


if __name__ == "__main__":
    unittest.main()
