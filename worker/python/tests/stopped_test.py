"""Tests of a worker that is stopped (SIGSTOP): which workers it holds up in each mode, and for how long.

The other worker is the test itself. The child stops itself after five steps, so the number of steps that the test can make is known.
"""
import os
import signal
import unittest

import support
from torch_support import EXACT, nn, torch

from syncline.torch import LocalSGD, Optimizer

CHILD = """
    import os, signal, torch, syncline.torch
    model = torch.nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    optimizer = {make}
    def steps(count):
        for _ in range(count):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        optimizer.synchronize()
    steps(5)
    os.kill(os.getpid(), signal.SIGSTOP)
    print("goes on")
    steps(5)
    optimizer.close()
    print("done")
"""
OPTIMIZER = 'syncline.torch.Optimizer(model, "sgd", 0.1, push="fp32", publish="fp32")'
LOCAL = "syncline.torch.LocalSGD(model, inner, 1)"


class Stopped(support.ServersTest):
    failure_timeout = "10s"  # 6 s until a stopped worker is dropped: long beside what the steps below take

    def begin(self, mode, child=OPTIMIZER):
        """Starts both workers, and returns when both have made five steps and the other one has stopped."""
        self.child = self.program(CHILD.format(make=child), {**self.environment(1, 2), "SYNCLINE_MODE": mode})
        self.model = nn.Linear(2, 1)
        session = self.options(rank=0, world_size=2, run_id=self.id(), mode=mode)
        if child == OPTIMIZER:
            self.optimizer = Optimizer(self.model, "sgd", 0.1, session=session, **EXACT)
        else:
            self.optimizer = LocalSGD(self.model, torch.optim.SGD(self.model.parameters(), 0.1), 1, session=session)
        self.addCleanup(self.optimizer.session.close)
        self.steps(5)
        self.child.await_stopped()

    def steps(self, count):
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.ones(1, 2)).sum().backward()
            self.optimizer.step()
            if isinstance(self.optimizer, Optimizer):
                self.optimizer.synchronize()

    def members(self):
        return self.optimizer.session.stats.members

    def assert_goes_on_without_it(self):
        """Checks that this worker goes on without the stopped one, once that was dropped."""
        self.steps(1)
        self.optimizer.session.barrier()  # by then it has heard of the epoch
        self.assertEqual(self.members(), 1)
        self.steps(5)

    def assert_child_goes_on(self):
        os.kill(self.child.process.pid, signal.SIGCONT)
        self.assertEqual(self.child.wait(), 0, self.child.text())
        self.child.await_line("done")

    def test_holds_up_bsp_until_it_is_dropped(self):
        self.begin("bsp")
        self.assertEqual(self.members(), 2)
        self.assert_goes_on_without_it()

    def test_holds_up_ssp_when_the_others_are_as_far_ahead_as_they_may(self):
        self.begin("ssp:staleness=3")
        self.steps(3)
        self.assertEqual(self.members(), 2)  # nobody was dropped, so nobody was waited for
        self.assert_goes_on_without_it()

    def test_does_not_hold_up_asp(self):
        self.begin("asp")
        self.steps(50)
        self.assertEqual(self.members(), 2)
        self.assert_child_goes_on()

    def test_does_not_hold_up_a_quorum(self):
        self.begin("bsp:quorum=1")
        self.steps(50)
        self.assertEqual(self.members(), 2)
        self.assert_child_goes_on()

    def test_holds_up_rounds_of_local_steps_until_it_is_dropped(self):
        self.begin("bsp", LOCAL)
        self.assertEqual(self.members(), 2)
        self.assert_goes_on_without_it()

    def test_does_not_hold_up_rounds_that_a_quorum_ends(self):
        self.begin("bsp:quorum=1", LOCAL)
        self.steps(50)
        self.assertEqual(self.members(), 2)
        self.assert_child_goes_on()


if __name__ == "__main__":
    unittest.main()
