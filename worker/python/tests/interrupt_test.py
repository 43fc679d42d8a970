"""Ctrl-C between any two lines of a step, and in the middle of most: nothing is lost that had left, and training goes on."""
import concurrent.futures
import ctypes
import dis
import functools
import itertools
import signal
import sys
import threading
import unittest
from pathlib import Path
from unittest import mock

import staging_test
import support
from torch_support import OptimizerTest, nn, torch

import syncline
from syncline import _line, _on_device, _staging
from syncline._calls import Calls
from syncline.torch import Optimizer, wrap
from syncline.torch._optimizer import check as _check

RATE = 0.125
PARTS = ("_optimizer/weight.py", "_optimizer/step.py", "_quick.py", "_optimizer/optimizer.py", "_wrap.py", "_ddp/average.py", "_account.py", "_optimizer/backward.py", "session.py", "_optimizer/sent.py")
ON_AN_EXCEPTION = ("PUSH_EXC_INFO", "WITH_EXCEPT_START", "COPY", "POP_EXCEPT", "RERAISE")
FILES = {str(support.PACKAGE / "syncline" / folder / name) for folder in ("", "torch") for name in PARTS}


@functools.cache
def places_on_an_exception(code):
    return {instruction.offset for instruction in dis.get_instructions(code) if instruction.opname in ON_AN_EXCEPTION}


class Interrupt:
    """Raises KeyboardInterrupt before the event of that number in the package's own code, as Python does for a signal."""

    def __init__(self, at, kind):
        self.left, self.kind, self.where = at, kind, ""

    def __enter__(self):
        sys.settrace(self._call)

    def __exit__(self, kind, error, traceback):
        sys.settrace(None)
        return kind is KeyboardInterrupt

    def _call(self, frame, event, _):
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes = self.kind == "opcode"
        return self._go_on

    @staticmethod
    def _begins_to_handle(frame):
        """Whether the interpreter is about to put an exception on its stack, or to take it off. It looks for no signal there, and
        an exception from a tracer leaves the stack in disorder ("'traceback' object is not callable").
        """
        return frame.f_trace_opcodes and frame.f_lasti in places_on_an_exception(frame.f_code)

    def _go_on(self, frame, event, _):
        if event == self.kind and not self._begins_to_handle(frame):
            self.left -= 1
            if self.left < 0 and not self.where:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
                raise KeyboardInterrupt
        return self._go_on


class Net(nn.Module):
    """Its gradients are its inputs, whatever its weights are; `unused` has none."""

    def __init__(self):
        super().__init__()
        self.first, self.unused, self.second = (nn.Linear(3, 1, bias=False) for _ in range(3))

    def forward(self, inputs):
        return (self.first(inputs) + self.second(2 * inputs)).sum()


class Interrupted(OptimizerTest):
    kinds = ("line", "opcode")

    def setUp(self):
        self.model = Net()
        self.inputs = torch.tensor([[1.0, 2.0, 4.0]])
        self.gradients = {"first": self.inputs, "second": 2 * self.inputs}

    def weights(self):
        return {name: getattr(self.model, name).weight.detach().clone() for name in ("first", "second", "unused")}

    def guard(self, optimizer):
        """A wait that would never end does, with SessionClosed."""
        watch = threading.Timer(support.PATIENCE, optimizer.session.close)
        watch.start()
        self.addCleanup(watch.cancel)

    def before(self, optimizer):
        """Before the step that is interrupted."""

    def after(self, optimizer):
        """After it."""

    def step(self, optimizer):
        optimizer.zero_grad()
        self.model(self.inputs).backward()
        optimizer.step()

    @staticmethod
    def await_weights(optimizer):
        """Of a wrapped optimizer step() has waited for all there is."""
        if isinstance(optimizer, Optimizer):
            optimizer.synchronize()

    def assert_stepped(self, before, which, where):
        for name, value in self.weights().items():
            expected = before[name] - RATE * self.gradients[name] if name in which else before[name]
            torch.testing.assert_close(value, expected, rtol=0, atol=0, msg=lambda said: f"interrupted at {where}: {name}: {said}")

    def goes_on_from_anywhere(self, optimizer, kind, end):
        """`end` is what the program does after Ctrl-C."""
        self.guard(optimizer)
        self.step(optimizer)
        for number in itertools.count():
            self.await_weights(optimizer)
            before, steps = self.weights(), optimizer.steps
            self.before(optimizer)
            interrupt = Interrupt(number, kind)
            with interrupt:
                self.step(optimizer)
            self.after(optimizer)
            where = f"{kind} {number}, {interrupt.where}"
            if not interrupt.where:  # the step has no more of them
                break
            with self.subTest(where):
                end(optimizer)
                self.await_weights(optimizer)
                between = self.weights()
                counted = [name for name in self.gradients if not torch.equal(between[name], before[name])]
                self.assert_stepped(before, counted, where)
                if not counted:
                    # A wrapped optimizer steps here: a mean that it does not take is a step of the others alone.
                    self.assertIn(optimizer.steps - steps, (0, 1) if isinstance(optimizer, Optimizer) else (0,), where)
                else:
                    self.assertEqual(optimizer.steps - steps, 1, where)
                self.step(optimizer)
                self.await_weights(optimizer)
                self.assert_stepped(between, self.gradients, where)
                account = optimizer.session.account
                self.assertEqual(len(account.begun), account.trained, where)
        self.assertGreater(number, 50)
        optimizer.close()
        self.assertIsNone(optimizer.session._calls.handle)

    @staticmethod
    def zero_grad(optimizer):
        """As after a backward that was broken off; step() where the interrupt came between the two."""
        try:
            optimizer.zero_grad()
        except syncline.FailedPrecondition:
            optimizer.step()

    def test_training_goes_on_after_zero_grad(self):
        for kind in self.kinds:
            with self.assertLogs("syncline"):  # which are many
                self.goes_on_from_anywhere(self.optimizer(self.model, "sgd", RATE, job=kind), kind, self.zero_grad)

    def test_of_a_wrapped_optimizer_training_goes_on_after_step(self):
        def end(optimizer):
            try:
                optimizer.zero_grad()
            except syncline.FailedPrecondition:
                optimizer.step()

        for kind in self.kinds:
            inner = torch.optim.SGD(self.model.parameters(), RATE)
            self.goes_on_from_anywhere(wrap(inner, self.model, session=self.options(job=f"{self.id()}{kind}")), kind, end)


class OnAGpu(Interrupted):
    """A stand-in for one, whose gradients a Line sends. Locks of Python's own library would be interrupted, too."""

    make_device = staging_test.StandIn

    def setUp(self):
        super().setUp()
        self.gate = threading.Event()
        self.gate.set()
        self.enterContext(staging_test.on(self.make_device(self.gate)))
        also = {module.__file__ for module in (_staging, _line, _on_device, threading)}
        self.enterContext(mock.patch.object(sys.modules[__name__], "FILES", FILES | also))

    def before(self, optimizer):
        if isinstance(optimizer, Optimizer):  # whose step does not wait for the Line
            self.gate.clear()

    def after(self, optimizer):
        self.gate.set()

    def test_close_ends_from_anywhere(self):
        for number in itertools.count():
            with self.assertLogs("syncline"):
                optimizer = self.optimizer(self.model, "sgd", RATE, job=str(number))
                before = {name: value - RATE * self.gradients.get(name, 0) for name, value in self.weights().items()}
                self.step(optimizer)
                with (interrupt := Interrupt(number, "line")):
                    self.step(optimizer)
                closed = concurrent.futures.Future()
                threading.Thread(target=lambda: closed.set_result(optimizer.close()), daemon=True).start()
                closed.result(support.PATIENCE)
            counted = [name for name, value in self.weights().items() if not torch.equal(value, before[name])]
            self.assert_stepped(before, counted, interrupt.where)
            if not interrupt.where:
                break
        self.assertGreater(number, 50)


class OfStreams(unittest.TestCase):
    def test_the_programs_stays_current(self):
        self.enterContext(mock.patch.object(sys.modules[__name__], "FILES", {_staging.__file__}))
        for name, operands in (("to_host", 2), ("to_device", 2), ("bring", 3)):
            for kind in ("line", "opcode"):
                for number in itertools.count():
                    streams = staging_test.Streams()
                    streams.setUp()
                    with (interrupt := Interrupt(number, kind)):
                        getattr(streams.gpu, name)(*(streams.tensor("one") for _ in range(operands)))
                    streams.doCleanups()
                    self.assertEqual(streams.current, "program", f"{name}, {kind} {number}: {interrupt.where}")
                    if not interrupt.where:
                        break
                self.assertGreater(number, 10)


class Small(Interrupted):
    def test_each_step_is_compared_once(self):
        compared = []
        self.enterContext(mock.patch.object(_check.WeightCheck, "_compare", lambda check, session, weights: compared.append(session.step)))
        self.enterContext(mock.patch.object(sys.modules[__name__], "FILES", FILES | {_check.__file__}))
        optimizer = self.optimizer(self.model, "sgd", RATE, check="weights:every=1")
        self.guard(optimizer)
        for number in itertools.count():
            steps = optimizer.steps
            del compared[:]
            with (interrupt := Interrupt(number, "line")):
                self.step(optimizer)
            if not interrupt.where:
                break
            self.zero_grad(optimizer)
            self.step(optimizer)
            optimizer.synchronize()
            self.assertEqual(sorted(set(compared)), list(range(steps + 1, optimizer.steps + 1)), interrupt.where)
        self.assertGreater(number, 50)

    def test_no_sync_that_does_not_begin_holds_nothing_back(self):
        optimizer = self.optimizer(self.model, "sgd", RATE)
        for number in range(10):
            manager = optimizer.no_sync()
            with (interrupt := Interrupt(number, "line")):
                manager.__enter__()
            del manager
            self.assertTrue(optimizer._pushes, interrupt.where)

    def test_an_error_of_skip_or_push_is_no_success(self):
        optimizer = self.optimizer(self.model, "sgd", RATE)
        optimizer.session.account.skip_codes.append(3)
        optimizer._step._skipping = list(optimizer._weights)
        optimizer._step.settle()
        self.assertFalse(optimizer._step.is_begun)
        self.assertEqual(optimizer.session.account.skip_codes, [])


class Closing(unittest.TestCase):
    """While a function of another package than ours is in a call, as those of syncline.torch are."""

    def setUp(self):
        self.calls, self.freed = Calls(), []
        self.calls.open(ctypes.c_void_p(1))

    def close(self, *_):
        self.calls.close("closed", lambda handle: None, lambda handle: self.freed.append(handle))

    def test_by_another_thread_waits_for_the_call(self):
        other = threading.Thread(target=self.close)
        with self.calls.call():
            other.start()
            while not self.calls.why_closed:
                other.join(0.01)
            self.assertEqual(self.freed, [])
        other.join(support.PATIENCE)
        self.assertEqual(len(self.freed), 1)

    def test_by_a_handler_leaves_the_handle_to_the_call(self):
        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, self.close))
        thread = threading.get_ident()
        self.calls._begin(thread)
        signal.raise_signal(signal.SIGUSR1)
        self.assertNotEqual(self.calls.why_closed, "")
        self.assertEqual(self.freed, [])
        self.calls._end(thread)
        self.assertEqual(len(self.freed), 1)

    def test_forgets_a_call_that_an_exception_broke_off(self):
        def broken_off():
            self.calls._begin(threading.get_ident())

        broken_off()
        self.close()
        self.assertEqual(len(self.freed), 1)


if __name__ == "__main__":
    unittest.main()
