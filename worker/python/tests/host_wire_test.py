"""Tests that the leader of a host refuses malformed messages of other processes, keeps nothing of them, and goes on."""
import contextlib
import gc
import json
import os
import random
import socket
import threading
import time
import types
import unittest
from unittest import mock

import support

try:
    import torch
except ImportError:
    raise unittest.SkipTest("no torch; install python3-torch") from None

import syncline
from syncline._library import FLOAT32
from syncline._memory import Memory
from syncline.torch._host import hub as _host_hub
from syncline.torch._host import wire
from syncline.torch._host.leader_connector import LeaderConnector
from syncline.torch._host.hub import Hub, Setup
from syncline.torch._host.place import HostPlace

SHAPES = ((3,), (40,), (2, 5))
SEEDS = 40


class Servers:
    """A session whose servers add one to all weights in each step."""

    def __init__(self, weights):
        self._weights = weights
        self._pushed = threading.Semaphore(0)
        self.step, self.loss_scale, self.job = 0, 1.0, "job"
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.is_closed = threading.Event()
        self.losses = []
        self.pushed, self.skipped, self.waited = [], [], []

    @property
    def stats(self):
        self.may_answer.wait()
        return types.SimpleNamespace(epoch=1, members=1)

    def start(self):
        pass

    def push_pull(self, tensor, gradient, samples):
        self.pushed.append((tensor.id, samples))
        self._pushed.release()

    def skip(self, tensors):
        self.skipped.extend(tensor.id for tensor in tensors)
        self._pushed.release()

    def wait(self, tensor):
        self.waited.append(tensor.id)
        while not self._pushed.acquire(timeout=0.02):
            if self.is_closed.is_set():
                raise syncline.SessionClosed("the session was closed")
        self._weights.tensor(tensor.id).add_(1)

    def report_loss(self, loss, step, samples):
        self.losses.append((loss, step, samples))

    def scale_learning_rate(self, tensor, factor):
        pass

    def close(self):
        self.is_closed.set()


class Host(unittest.TestCase):
    """A leader whose rank 0 is this test."""

    failure_timeout = 30.0

    def setUp(self):
        self.layout = wire.Layout([Memory(0, shape, FLOAT32) for shape in SHAPES])
        weights = wire.Region(self.layout)
        tensors = [types.SimpleNamespace(id=number, name=f"t{number}", frozen=False, memory=Memory(0, shape, FLOAT32))
                   for number, shape in enumerate(SHAPES)]
        self.address = wire.address_of(self.id(), os.getpid())
        self.servers = Servers(weights)
        self.hub = Hub(self.address, Setup(HostPlace(0, 2, 0, 1, 0, 2), self.servers, tensors, self.layout, weights, "digest",
                                           self.failure_timeout, 600.0))
        self.addCleanup(self.hub.close, is_clean=False)

    def come(self, rank, **changed):
        """Returns a connection that has sent HELLO."""
        link = wire.connect(self.address)
        self.addCleanup(link.close)
        link.region = wire.Region(self.layout)
        link.send(wire.record(wire.HELLO, **{"local_rank": rank, "digest": "digest", **changed}), [link.region.descriptor])
        return link

    def come_in(self):
        """Returns connections of both ranks, which are members."""
        ranks = [self.come(0), self.come(1)]
        for link in ranks:
            self.assertEqual(self.hear(link, wire.WELCOME, wire.FAILED)[0], wire.WELCOME)
        return ranks

    def hear(self, link, *kinds):
        """Returns the kind and the fields of the next message of one of `kinds`; None: the leader has ended the connection."""
        link.socket.settimeout(support.PATIENCE)
        while True:
            message, descriptors = link.receive()
            wire.close_all(descriptors)
            if not message:
                return None
            kind, said = wire.parse(message)
            if kind in kinds:
                return kind, said

    def take_a_step(self, links, step):
        for link in links:
            for tensor in range(len(SHAPES)):
                link.send(wire.give(tensor, step, 1, 1.0))
        for link in links:
            self.assertEqual(self.hear(link, wire.END, wire.FAILED), (wire.END, (step, 1.0)))


def fields_at_random(draw):
    """Returns fields of a message with random names, whose values are often of a wrong type."""
    values = [None, True, -1, 2**70, 1e400, "x" * draw.randint(0, 300), [], {}, [1], {"a": 1}, 0.5, float("nan"), "0"]
    names = ["local_rank", "digest", "what", "id", "tensor", "array", "timeout", "loss", "step", "samples", "error"]
    fields = {name: draw.choice(values) for name in draw.sample(names, draw.randint(0, len(names)))}
    if draw.random() < 0.5:
        fields["what"] = draw.choice(["loss", "barrier", "stats", "state", "average", "all"])
    return fields


def message_at_random(draw):
    good = [wire.give(1, 0, 1, 1.0), wire.view(0, 0), wire.end(0, 1.0), wire.record(wire.BEAT),
            wire.record(wire.HELLO, local_rank=1, digest="digest"), wire.record(wire.ASK, what="stats", id=1, timeout=None)]
    kind = draw.randrange(7)
    if kind == 0:
        return draw.randbytes(draw.choice([1, 2, 24, 25, 26, 500, 5000]))
    if kind == 1:
        return bytes([draw.randrange(16)]) + json.dumps(fields_at_random(draw)).encode()
    if kind == 2:
        return bytes([draw.randrange(2, 10)]) + b"[" * draw.choice([1, 60_000])
    if kind == 3:
        return wire.give(draw.randrange(9), draw.randrange(3), draw.randrange(3), draw.choice([1.0, -1.0, float("nan"), 1e300]))
    if kind == 4:
        return draw.choice(good) * 9000  # longer than any of ours, or no message
    chosen = bytearray(draw.choice(good))
    if kind == 5:
        return bytes(chosen[:draw.randint(1, len(chosen))])
    for _ in range(draw.randint(1, 4)):
        chosen[draw.randrange(len(chosen))] = draw.randrange(256)
    return bytes(chosen)


class InvalidMessages(Host):
    def test_end_their_connection_and_the_host_continues(self):
        ranks = self.come_in()
        open_before = self.descriptors_of_the_hub()
        for seed in range(SEEDS):
            with self.subTest(seed=seed):
                self.intrude(random.Random(seed))
                self.take_a_step(ranks, seed)
        self.assertEqual(self.descriptors_of_the_hub(), open_before)

    def intrude(self, draw):
        """Sends random messages with memory of any kind until the leader ends the connection."""
        link = wire.connect(self.address)
        link.socket.settimeout(support.PATIENCE)
        try:
            for _ in range(draw.randint(1, 12)):
                try:
                    with open(draw.choice(["/dev/null", "/dev/zero", __file__]), "rb") as file:
                        link.send(message_at_random(draw), [file.fileno()] * draw.randrange(4))
                except OSError:  # it is too long for the kernel, or the leader has hung up
                    pass
            link.socket.shutdown(socket.SHUT_WR)
            while self.hear(link, *range(16)) is not None:
                pass
        except OSError:
            pass
        finally:
            link.close()

    def descriptors_of_the_hub(self):
        """Returns the number of open descriptors of this process, once the leader has closed those of lost connections."""
        deadline = time.monotonic() + support.PATIENCE
        while len(self.hub._connections) > 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        gc.collect()  # what other tests have left, too
        return len(os.listdir("/proc/self/fd"))

    def test_of_a_known_rank_are_refused_with_the_reason(self):
        self.come(0)
        for message, why in (
                (wire.give(0, 7, 1, 1.0), "a gradient of step 7 that rank 1 may not give now"),
                (wire.give(0, 0, 1, -1.0), "a learning rate of -1 times its own"),
                (wire.record(wire.ASK, what="loss", id=0, loss=1.0, step=0, samples=0), "the loss of 0 samples"),
                (wire.record(wire.ASK, what="loss", id=0, loss=1.0, step=float("inf"), samples=1), "sent an invalid message"),
                (wire.record(wire.ASK, what="all", id=0), "asks for 'all'"),
                (bytes([wire.ASK]) + b"[" * 60_000, "sent an invalid message"),
                (bytes([wire.ASK]) + b"[1]", "its fields have no names"),
                (bytes(70_000), "a message that is too long")):
            with self.subTest(why=why):
                link = self.come(1)
                self.assertEqual(self.hear(link, wire.WELCOME, wire.FAILED)[0], wire.WELCOME)
                link.send(message)
                error = wire.error_in(self.hear(link, wire.FAILED)[1])
                self.assertIsInstance(error, syncline.DataLoss)
                self.assertIn(why, str(error))

    def test_with_memory_that_can_shrink_are_refused(self):
        link = wire.connect(self.address)
        self.addCleanup(link.close)
        memory = os.memfd_create("other")
        self.addCleanup(os.close, memory)
        os.ftruncate(memory, self.layout.size)
        link.send(wire.record(wire.HELLO, local_rank=1, digest="digest"), [memory])
        self.assertIn("or memory that it could shrink", self.hear(link, wire.FAILED)[1]["message"])

    def test_too_many_questions_at_once_are_refused(self):
        self.servers.may_answer.clear()
        self.addCleanup(self.servers.may_answer.set)
        link, _ = self.come(1), self.come(0)
        for number in range(300):
            try:
                link.send(wire.record(wire.ASK, what="stats", id=number))
            except OSError:  # it has been refused already
                break
        self.assertIn("asks 256 questions at once", self.hear(link, wire.FAILED)[1]["message"])


class Steps(Host):
    def test_that_all_ranks_left_end_with_the_gradients_that_were_given(self):
        ranks = self.come_in()
        for link in ranks:
            link.send(wire.give(1, 0, 3, 1.0))
        self.assertEqual(self.hear(ranks[0], wire.VIEW, wire.FAILED), (wire.VIEW, (1, 0)))
        for link in ranks:
            link.send(wire.record(wire.BYE))
        self.assertEqual(self.hear(self.come(0), wire.WELCOME, wire.FAILED)[1]["step"], 1)
        self.assertEqual((self.servers.pushed, sorted(self.servers.skipped)), ([(1, 6)], [0, 2]))

    def test_end_in_the_order_of_a_backward(self):
        ranks = self.come_in()
        for tensor in (2, 1, 0):
            for link in ranks:
                link.send(wire.give(tensor, 0, 1, 1.0))
            # The weights of one tensor arrive before any gradient of a tensor that was declared earlier.
            self.assertEqual(self.hear(ranks[0], wire.VIEW, wire.FAILED), (wire.VIEW, (tensor, 0)))
        self.assertEqual(self.servers.waited, [2, 1, 0])

    def test_of_more_samples_than_a_push_can_count_are_refused_with_advice(self):
        ranks = self.come_in()
        for link in ranks:
            link.send(wire.give(0, 0, 2**32 - 1, 1.0))
        self.assertIn("let each rank of each host pass a thousandth of its number", self.hear(ranks[0], wire.FAILED)[1]["message"])


class ProcessesOfOtherUsers(Host):
    def test_are_refused_without_a_pause_and_with_one_log_line(self):
        clock = mock.Mock(wraps=time)
        with mock.patch.object(_host_hub, "time", clock), mock.patch.object(wire.os, "getuid", lambda: 2**31 - 2), \
                self.assertLogs("syncline", "WARNING") as said:
            self.hub._says_unheard = 0.0
            for _ in range(50):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
                    other.settimeout(support.PATIENCE)
                    other.connect(self.address)
                    self.assertEqual(other.recv(1), b"")
        clock.sleep.assert_not_called()
        self.assertEqual(len(said.output), 1, said.output)
        self.assertIn("has taken the place of a rank of this host", said.output[0])
        self.come_in()


class SilentConnections(Host):
    failure_timeout = 0.2

    def test_are_closed_after_the_failure_timeout(self):
        link = wire.connect(self.address)
        self.addCleanup(link.close)
        self.assertRegex(self.hear(link, wire.FAILED)[1]["message"], r"process \d+ has not said for 0.2 s which rank it is")


class LeaderThatAcceptsNoConnection(unittest.TestCase):
    def test_connecting_to_it_fails_in_time(self):
        address = wire.address_of(self.id(), os.getpid())
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, contextlib.ExitStack() as links:
            listener.bind(address)
            listener.listen(1)

            def come():
                with self.assertRaises(OSError):
                    for _ in range(10):
                        links.callback(wire.connect(address).close)
                is_refused.set()

            is_refused = threading.Event()
            threading.Thread(target=come, daemon=True).start()
            self.assertTrue(is_refused.wait(support.PATIENCE))


class WhenTheLeaderDies(unittest.TestCase):
    SOURCE = """
        import sys
        from syncline.torch._host import wire
        listener = wire.listen(bytes.fromhex(sys.argv[1]))
        listener.setblocking(True)
        print("listens", flush=True)
        listener.accept()[0].recv(1)
    """

    def test_before_it_let_a_rank_in_the_rank_is_told_at_once(self):
        address = wire.address_of(self.id(), os.getpid())
        leader = support.start_program(self, self.SOURCE.replace("sys.argv[1]", repr(address.hex())))
        leader.await_line("listens")
        connector = LeaderConnector(address, 4, time.monotonic() + support.PATIENCE)
        link = connector.connect()
        self.addCleanup(link.close)
        connector.check("it left")  # as it lives, another session of it may come
        with mock.patch.object(os, "pidfd_open", create=True):
            del os.pidfd_open  # as in a Python that was built with old headers
            self.assertFalse(wire.Process(leader.process.pid).has_ended)
        in_an_earlier_life = LeaderConnector(address, 4, time.monotonic() + support.PATIENCE, known=wire.Process(link.process))
        leader.kill()
        for one in (connector, in_an_earlier_life):
            with self.assertRaisesRegex(syncline.Dropped, f"rank 4, .* ended before it let this rank in: .*process {leader.process.pid}"):
                one.connect()

    def test_in_this_process_its_own_error_is_raised(self):
        def check_hub():
            raise syncline.DeadlineExceeded("the hub was over")

        connector = LeaderConnector(wire.address_of(self.id(), os.getpid()), 0, time.monotonic() + support.PATIENCE, check_hub)
        with self.assertRaisesRegex(syncline.DeadlineExceeded, "the hub was over"):
            connector.connect()


if __name__ == "__main__":
    unittest.main()
