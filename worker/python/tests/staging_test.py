"""Tests of tensors on a stand-in for a GPU that are copied to host memory: they run the suites for tensors in host memory.

on_device_test.py tests a GPU that runs the session's codecs, cuda_test.py a real one.
"""
import concurrent.futures
import contextlib
import gc
import math
import os
import threading
import unittest
import weakref
from unittest import mock

import average_test
import state_test
import support
import torch_test
from torch_support import make_model, nn, torch

import syncline
from syncline import _staging
from syncline._line import Line
from syncline.torch import DiLoCo, Optimizer


class Mark:
    def __init__(self, action=lambda: None, gate=None):
        self.action, self.gate, self.lock = action, gate, threading.Lock()

    def synchronize(self):
        if self.gate is not None:
            assert self.gate.wait(support.PATIENCE)
        with self.lock:
            self.action()
            self.action = lambda: None


class StandIn:
    """A stand-in for a GPU, in host memory. It copies to the host only when a thread waits for the copy; the target is NaN before."""

    number = 0
    why_not = "it is a stand-in"

    def __init__(self, gate=None):
        self.gate = gate
        self.landed = 0

    def address(self, tensor):
        return tensor.data_ptr()

    def host_like(self, tensor):
        return torch.full(tensor.shape, math.nan, dtype=tensor.dtype)

    def mark(self):
        return Mark(gate=self.gate)

    def to_host(self, host, source):
        taken = source.detach().clone()
        host.fill_(math.nan)
        return Mark(lambda: host.copy_(taken), self.gate)

    def to_device(self, target, host):
        self.landed += 1
        target.copy_(host)
        return Mark()


def on(device):
    """Returns a context in which all of torch's tensors are on `device`."""
    return mock.patch.object(_staging, "device_of", lambda array, name: device if isinstance(array, torch.Tensor) else None)


def once_more(make_device, module, *more):
    """Returns the suites of models in host memory, and `more`, with weights and gradients on a stand-in: classes of `module` by name."""

    class OnADevice:
        def setUp(self):
            patch = on(make_device())
            patch.start()
            self.addCleanup(patch.stop)
            super().setUp()

    suites = (torch_test.Steps, torch_test.Schedulers, torch_test.Programs, torch_test.Models, average_test.Wrap, state_test.StateDicts)
    return {one.__name__: type(one.__name__, (OnADevice, one), {"__module__": module}) for one in (*suites, *more)}


def load_own(loader, names):
    """Returns a module's own tests, without those that it imports from other files."""
    own = [value for value in names.values()
           if isinstance(value, type) and issubclass(value, unittest.TestCase) and value.__module__ == names["__name__"]]
    return unittest.TestSuite(loader.loadTestsFromTestCase(one) for one in own)


globals().update(once_more(StandIn, __name__))


class Staging(support.ServersTest):
    def session(self, device, optimizer="sgd:lr=1", count=1, **more):
        session = syncline.Session(**self.options(optimizer=optimizer, push="fp32", publish="fp32", **more))
        self.addCleanup(session.close)
        with on(device):
            tensors = [session.declare(f"w{number}", torch.zeros(4)) for number in range(count)]
            session.start()
        return session, tensors

    def test_of_a_gradient_ends_when_the_gpu_has_it(self):
        gate = threading.Event()
        device = StandIn(gate)
        gate.set()
        session, [tensor] = self.session(device)
        gate.clear()
        pushed = session.stats.bytes_pushed
        with on(device):
            session.push_pull(tensor, torch.full((4,), 2.0))
        self.assertFalse(session.is_ready(tensor))
        self.assertEqual(session.stats.bytes_pushed, pushed)
        with self.assertRaisesRegex(syncline.DeadlineExceeded, "the GPU did not finish the gradients to be pushed within 0.01 s"):
            session.wait(tensor, 0.01)
        gate.set()
        session.wait(tensor)
        self.assertTrue(torch.equal(tensor.weights, torch.full((4,), -2.0)), tensor.weights)
        self.assertEqual(session.step, 1)

    def test_of_an_undeclared_tensor_is_over(self):
        device = StandIn()
        session, [first, second] = self.session(device, count=2)
        held = weakref.ref(session._stage._placed[first.id])
        with on(device):
            for tensor in (first, second):
                session.push_pull(tensor, torch.ones(4))
            session.wait_all()
            session.undeclare(first)
            self.assertIsNone(held(), "its host memory is still kept")
            session.push_pull(second, torch.ones(4))
            session.wait_all()
        self.assertEqual((first.weights.tolist(), second.weights.tolist()), ([-1.0] * 4, [-2.0] * 4))

    def test_keeps_pinned_memory_in_forked_children(self):  # which torch may not free there
        memory = []

        class Watched(StandIn):
            def host_like(self, tensor):
                memory.append(weakref.ref(host := super().host_like(tensor)))
                return host

        session, [tensor] = self.session(Watched())
        with on(session._stage._placed[tensor.id]._device):
            session.push_pull(tensor, torch.ones(4))
            session.wait(tensor)
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.get_freeze_count() and all(one() is not None for one in memory) else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(memory), 2)  # weights and their gradient

    def test_keeps_the_order_of_pushes_and_skips(self):
        device = StandIn()
        session, tensors = self.session(device, count=3)
        with on(device):
            for step in range(20):
                session.push_pull(tensors[0], torch.ones(4))
                session.skip([tensors[1]])
                session.push_pull(tensors[2], torch.ones(4))
                for tensor in tensors:
                    session.wait(tensor)
                self.assertEqual(session.step, step + 1)
        self.assertEqual([float(tensor.weights[0]) for tensor in tensors], [-20, 0, -20])

    def test_copies_weights_to_the_gpu_once_a_step(self):
        device = StandIn()
        session, [tensor] = self.session(device)
        self.assertEqual(device.landed, 1)
        with on(device):
            session.push_pull(tensor, torch.ones(4))
            for _ in range(3):
                session.wait(tensor)
        self.assertEqual(device.landed, 2)

    def test_of_a_step_lands_after_a_barrier_before_its_end(self):
        def both(action):
            with concurrent.futures.ThreadPoolExecutor(2) as threads:
                list(threads.map(action, sessions))

        with on(StandIn()):
            sessions = [syncline.Session(**self.options(optimizer="sgd:lr=1", push="fp32", publish="fp32", run_id="1", rank=rank, world_size=2)) for rank in range(2)]
            for session in sessions:
                self.addCleanup(session.close)
            tensors = [session.declare("w", torch.zeros(4)) for session in sessions]
            both(lambda session: session.start())
            sessions[0].push_pull(tensors[0], torch.ones(4))
            both(lambda session: session.barrier())
            sessions[1].push_pull(tensors[1], torch.ones(4))
            for session, tensor in zip(sessions, tensors):
                session.wait(tensor)
                self.assertEqual(tensor.weights.tolist(), [-1.0] * 4)

    def test_says_that_the_cpu_has_the_codecs(self):
        session, [tensor, _] = self.session(StandIn(), count=2)
        self.assertEqual(session.stats.codecs, "on the CPU (2 tensors of a GPU copied to host memory: it is a stand-in)")

    def test_tells_whoever_waits_of_a_call_that_failed(self):
        device = StandIn()
        session = syncline.Session(**self.options(optimizer="sgd:lr=1"))
        self.addCleanup(session.close)
        with on(device):
            trained = session.declare("trained", torch.zeros(4))
            frozen = session.declare("frozen", torch.zeros(4), frozen=True)
            session.start()
            session.push_pull(frozen, torch.ones(4))  # returns before the library could refuse it
            session.push_pull(trained, torch.ones(4))
            for _ in range(2):
                with self.assertRaisesRegex(syncline.Error, "frozen"):
                    session.wait(trained)

    def test_refuses_gradients_where_the_weights_are_not(self):
        device = StandIn()
        session = syncline.Session(**self.options(optimizer="sgd:lr=1"))
        self.addCleanup(session.close)
        with on(None):
            here = session.declare("here", torch.zeros(4))
        with on(device):
            session.declare("there", torch.zeros(4))
            session.start()
            with self.assertRaisesRegex(syncline.InvalidArgument, "here: a gradient on cpu for weights on the host: pass .* or its .cpu"):
                session.push_pull(here, torch.ones(4))
            with self.assertRaisesRegex(syncline.InvalidArgument, r"there: a gradient of shape \[5\] for weights of shape \[4\]"):
                session.push_pull(session._tensors[1], torch.ones(5))

    def test_of_a_device_that_is_no_gpu_is_refused_by_name(self):
        model = nn.Linear(2, 2, device="meta")
        with self.assertRaisesRegex(syncline.InvalidArgument, "weight: is on meta; only host memory and CUDA"):
            Optimizer(model, "sgd", 0.1, session=self.options())

    def test_ends_with_the_session(self):
        device = StandIn()
        session, [tensor] = self.session(device)
        with on(device):
            session.push_pull(tensor, torch.ones(4))
        session.close()
        line = session._stage._line._thread
        line.join(support.PATIENCE)
        self.assertFalse(line.is_alive())

    def test_that_fails_ends_with_the_session_all_the_same(self):
        class Broken(StandIn):
            def to_host(self, host, source):
                def fail():
                    raise RuntimeError("an illegal memory access was encountered")
                return Mark(fail)

        device = Broken()
        session, [tensor] = self.session(device)
        with on(device):
            session.push_pull(tensor, torch.ones(4))
        with self.assertRaisesRegex(RuntimeError, "illegal memory access"):
            session.wait(tensor)
        session.close()
        with on(device), self.assertRaises(syncline.SessionClosed):
            session.push_pull(tensor, torch.ones(4))
        with self.assertRaises(RuntimeError):
            session.wait(tensor)

    def test_its_thread_alone_keeps_the_account(self):
        gate = threading.Event()
        gate.set()
        session, tensors = self.session(StandIn(gate), count=2)
        with on(session._stage._placed[tensors[0].id]._device):
            session.push_pull(tensors[0], torch.ones(4))
            session._stage.settle()
            gate.clear()
            session.skip(tensors[1:])
            session.account.note_late([tensors[1].id])  # as after Ctrl-C
            gate.set()
            session.wait_all()
        self.assertEqual(session.account.begun, {tensor.id for tensor in tensors})

    def test_leaves_a_gradient_alone_until_it_was_waited_for(self):
        device = StandIn()
        session, [tensor] = self.session(device)
        with on(device):
            session.push_pull(tensor, torch.full((4,), 2.0))
            session._stage.settle()
            [sent] = session._gradients[tensor.id]
            with contextlib.suppress(syncline.Error):  # refused, unless the weights are here already
                session.push_pull(tensor, torch.full((4,), 3.0))
                session._stage.settle()
            self.assertTrue(torch.equal(sent, torch.full((4,), 2.0)), sent)

    def test_local_rounds_are_those_of_host_memory(self):
        def rounds(job):
            model = make_model()
            inner = torch.optim.SGD(model.parameters(), 0.05)
            with DiLoCo(model, inner, 5, session=self.options(job=f"{self.id()}{job}")) as optimizer:
                torch_test.train(model, optimizer, 20)
            return model

        expected = rounds("host")
        with on(StandIn()):
            there = rounds("device")
        for one, other in zip(there.parameters(), expected.parameters()):
            self.assertTrue(torch.equal(one, other))


class OfALine(unittest.TestCase):
    def test_makes_no_call_after_one_that_failed(self):
        made = []

        def fail():
            raise syncline.InvalidArgument("no")

        line = Line()
        for number, call in enumerate((lambda: made.append(0), fail, lambda: made.append(2))):
            line.put([number], [], call, codes := [])
            self.assertEqual(codes, [0])
        line.end()
        line._thread.join(support.PATIENCE)
        self.assertEqual(made, [0])
        with self.assertRaisesRegex(syncline.InvalidArgument, "no"):
            line.wait(0, 0)
        self.assertFalse(line.holds(2))

    def test_a_call_put_while_another_thread_ends_it_keeps_nobody_waiting(self):
        line, gate = Line(), threading.Event()
        line.put([0], [Mark(gate=gate)], lambda: None, [])
        line.end()
        line._is_ended = False  # as read before
        line.put([1], [], lambda: self.fail("it was over"), [])
        waiter = threading.Thread(target=line.wait, args=(1, support.PATIENCE), daemon=True)
        waiter.start()
        gate.set()
        waiter.join(support.PATIENCE / 2)
        self.assertFalse(waiter.is_alive())
        line.wait(1, support.PATIENCE)


class Streams(unittest.TestCase):
    """Tests of the order in which Cuda calls torch."""

    def setUp(self):
        self.told = []
        cuda = mock.Mock()
        names = iter(["up", "down"])
        cuda.Stream.side_effect = lambda device: self.stream(next(names))
        self.current = "program"
        cuda.current_stream.side_effect = lambda device=None: self.stream(self.current)
        cuda.Event.side_effect = self.event
        cuda.set_stream.side_effect = self.set_stream
        for patch in (mock.patch.object(torch, "cuda", cuda),):
            patch.start()
            self.addCleanup(patch.stop)
        self.gpu = _staging.Cuda("cuda:0")

    def stream(self, name):
        stream = mock.Mock()
        stream.name_ = name
        stream.wait_event.side_effect = lambda event: self.told.append(f"{name} waits for {event.place}")
        return stream

    def event(self, blocking):
        self.assertTrue(blocking)
        event = mock.Mock(place="nothing")

        def record(stream):
            event.place = f"{stream.name_} after {len(self.told)}"
        event.record.side_effect = record
        return event

    def set_stream(self, stream):
        self.current = stream.name_

    def tensor(self, name):
        tensor = mock.Mock()
        tensor.detach.return_value = tensor
        tensor.copy_.side_effect = lambda source, non_blocking: self.told.append(f"copy to {name} by {self.current}")
        tensor.record_stream.side_effect = lambda stream: self.told.append(f"{name} is {stream.name_}'s, too")
        return tensor

    def test_copy_a_gradient_behind_what_computes_it(self):
        self.gpu.to_host(self.tensor("host"), self.tensor("gradient"))
        self.assertEqual(self.told, ["up waits for program after 0", "copy to host by up", "gradient is up's, too"])

    def test_copy_weights_before_the_program_goes_on(self):
        self.gpu.to_device(self.tensor("weights"), self.tensor("host"))
        self.assertEqual(self.told, ["copy to weights by down", "program waits for down after 1"])


def load_tests(loader, standard, pattern):
    return load_own(loader, globals())


if __name__ == "__main__":
    unittest.main()
