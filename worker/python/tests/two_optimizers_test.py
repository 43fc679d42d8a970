"""Tests of two Optimizers in one program, such as a GAN, where each has a job of its own; and of two for one model."""
import contextlib
import json
import os
import sys
import tempfile
import textwrap
import threading
import unittest
from pathlib import Path

import gan_model
import support
from torch_support import EXACT, OptimizerTest, make_model, nn, torch

import syncline
from syncline import _names
from syncline.torch import Optimizer, wrap


class Gan(unittest.TestCase):
    PROGRAM = """
        import json, os, torch, gan_model as test
        from syncline.torch import Optimizer
        torch.set_num_threads(1)
        exact = {"push": "fp32", "publish": "fp32"}
        generator, discriminator = test.networks()
        optimizers = [Optimizer(generator, "adam", 0.01, **exact), Optimizer(discriminator, "adam", 0.02, **exact)]
        rank = optimizers[0].rank
        test.train(generator, discriminator, optimizers, slice(rank, None, 2), lambda optimizer: optimizer.no_sync())
        for optimizer in optimizers:
            optimizer.synchronize()
        said = {"jobs": [o.session.job for o in optimizers], "steps": [o.steps for o in optimizers],
                "weights": [p.flatten().tolist() for net in (generator, discriminator) for p in net.parameters()]}
        with open(os.path.join(os.environ["PLACE"], str(rank)), "w") as out:
            json.dump(said, out)
        """

    def test_trains_as_torch_does_with_the_whole_batch(self):
        with tempfile.TemporaryDirectory() as place:
            program = Path(place) / "gan.py"
            program.write_text(textwrap.dedent(self.PROGRAM))
            command = [os.environ["SYNCLINE_BINARY"], "run", "--standalone", "--job", "gan", "--nproc-per-node", "2", "--", sys.executable,
                       str(program)]
            run = support.Process(command, {"PLACE": place, "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"})
            self.addCleanup(run.kill)
            self.assertEqual(run.wait(), 0, run.text())
            ranks = [json.loads((Path(place) / str(rank)).read_text()) for rank in range(2)]
        self.assertEqual(ranks[0], ranks[1])
        self.assertEqual((ranks[0]["jobs"], ranks[0]["steps"]), (["gan", "gan-2"], [gan_model.STEPS] * 2))
        expected = gan_model.networks()
        optimizers = [torch.optim.Adam(expected[0].parameters(), 0.01), torch.optim.Adam(expected[1].parameters(), 0.02)]
        gan_model.train(*expected, optimizers, slice(None), lambda optimizer: torch.enable_grad())
        for here, there in zip(ranks[0]["weights"], (p.flatten() for net in expected for p in net.parameters())):
            torch.testing.assert_close(torch.tensor(here), there.detach(), rtol=1e-4, atol=1e-4)


class Names(OptimizerTest):
    def open(self, **more):
        where = {key: value for key, value in self.options().items() if key != "job"}
        optimizer = Optimizer(make_model(), "sgd", 0.1, session={**where, **more}, **EXACT)
        self.addCleanup(optimizer.session.close)
        return optimizer

    def setUp(self):
        os.environ["SYNCLINE_JOB"] = self.id()
        self.addCleanup(os.environ.pop, "SYNCLINE_JOB")

    def test_go_by_the_sessions_that_were_made(self):  # a rank that is later than others comes to the same
        first, second, third = self.open(), self.open(), self.open()
        self.assertEqual([o.session.job for o in (first, second, third)], [self.id() + suffix for suffix in ("", "-2", "-3")])
        second.close()
        self.assertEqual(self.open().session.job, self.id() + "-4")
        self.assertEqual(self.open(job="other").session.job, "other")
        first.close()
        third.rejoin()
        self.assertEqual(third.session.job, self.id() + "-3")
        third.close()
        self.assertEqual(self.open().session.job, self.id() + "-5")

    def test_of_a_session_that_never_started_are_taken_by_the_next(self):
        def unstarted():
            return syncline.Session(coordinator=self.coordinator, failure_timeout=self.failure_timeout)

        unstarted().close()
        with self.assertRaises(syncline.InvalidArgument):
            syncline.Session(coordinator=self.coordinator, push="topkk")
        self.assertEqual(unstarted().job, self.id())

    def test_of_a_job_that_is_over_for_this_rank_are_not_taken_again(self):
        first = self.open()
        with self.assertRaises(syncline.JobOver), first.session._calls.call():
            raise syncline.errors.error_of(9, "job over", syncline.JobOver.exit_code)
        first.session.close()
        self.assertEqual(self.open().session.job, self.id() + "-2")

    def test_count_with_servers_of_the_programs_own_too(self):
        for suffix in ("", "-2"):
            with Optimizer(make_model(), "sgd", 0.1) as optimizer:
                self.assertEqual(optimizer.session.job, self.id() + suffix)

    def test_are_given_while_the_garbage_collector_closes_a_session(self):
        session = self.open().session
        job = session.job
        with _names._lock:  # as inside of take
            closing = threading.Thread(target=session.__del__, daemon=True)
            closing.start()
            closing.join(support.PATIENCE)
            self.assertFalse(closing.is_alive())
        self.assertTrue(session._calls.has_left)
        self.assertNotEqual(self.open().session.job, job)

    def test_a_job_that_is_named_twice_is_refused(self):
        self.open(job="same")
        with self.assertRaises(syncline.Error):
            self.open(job="same", start_timeout="2s")

    def test_a_session_that_was_lost_keeps_no_name(self):
        first = self.open()
        first.session._calls.is_lost = True
        self.assertEqual(syncline.Session(coordinator=self.coordinator, failure_timeout=self.failure_timeout).job, self.id())

class OneModel(OptimizerTest):
    """A second Optimizer for the parameters of the first."""

    def step(self, model, optimizer):
        nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()
        optimizer.step()
        optimizer.synchronize()

    def test_a_second_optimizer_is_refused_until_the_first_is_closed(self):
        model = make_model()
        first = self.optimizer(model, job="first")
        with self.assertRaisesRegex(syncline.FailedPrecondition, "0.weight: another Optimizer trains it, in job .*first.*close"):
            self.optimizer(model, job="second")
        self.step(model, first)  # goes on
        first.close()
        second = self.optimizer(model, job="third")
        self.step(model, second)
        self.assertEqual((first.steps, second.steps), (1, 1))

    def test_after_a_failed_with_block_the_next_optimizer_trains_the_model(self):
        model = make_model()
        with self.assertRaises(ZeroDivisionError), self.optimizer(model, job="failed"):
            nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()
            raise ZeroDivisionError
        nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()  # no hook is left that would send it
        second = self.optimizer(model, job="next")
        self.step(model, second)
        self.assertEqual(second.steps, 1)

    def test_of_a_session_that_was_closed_or_lost_no_hook_is_left(self):
        model = make_model()
        closed = self.optimizer(model, job="closed")
        closed.session.close()
        lost = self.optimizer(model, job="lost")
        self.step(model, lost)
        lost.session._calls.is_lost = True  # as when it was dropped
        last = self.optimizer(model, job="last")
        self.step(model, last)
        self.assertEqual((closed.steps, lost.steps, last.steps), (0, 1, 1))

    def wrap(self, parameters, job, model=None):
        optimizer = wrap(torch.optim.SGD(parameters, 0.1), model, session=self.options(job=f"{self.id()}{job}"))
        self.addCleanup(optimizer.session.close)
        return optimizer

    def step_wrapped(self, model, optimizer):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()
        optimizer.step()

    def test_a_second_wrap_is_refused_until_the_first_is_closed(self):
        model = make_model()
        first = self.wrap(model.parameters(), "first", model)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "0.weight: another wrapped optimizer trains it, in job .*first.*close"):
            self.wrap(model.parameters(), "second", model)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "2.bias: another wrapped optimizer trains it"):
            self.wrap([model[2].bias], "of one parameter")
        with self.assertRaisesRegex(syncline.FailedPrecondition, "another wrapped optimizer trains it, in job .*first"):
            self.optimizer(model, job="beside it")
        self.step_wrapped(model, first)  # goes on
        first.close()
        nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()  # no hook is left that would send it
        second = self.wrap(model.parameters(), "third")
        self.step_wrapped(model, second)
        self.assertEqual((first.steps, second.steps), (1, 1))
        with self.assertRaisesRegex(syncline.FailedPrecondition, "group0.0: another wrapped optimizer trains it, in job .*third"):
            self.wrap(model.parameters(), "fourth")

    def test_a_wrap_of_what_an_optimizer_trains_is_refused(self):
        model = make_model()
        with self.optimizer(model, job="first"), self.assertRaisesRegex(
                syncline.FailedPrecondition, "0.weight: another Optimizer trains it, in job .*first.*close"):
            self.wrap(model.parameters(), "second", model)
        self.step_wrapped(model, self.wrap(model.parameters(), "third", model))

    def test_of_a_wrap_whose_session_was_closed_or_lost_no_hook_is_left(self):
        model = make_model()
        closed = self.wrap(model.parameters(), "closed")
        closed.session.close()
        lost = self.wrap(model.parameters(), "lost")
        self.step_wrapped(model, lost)
        lost.session._calls.is_lost = True  # as when it was dropped
        with contextlib.suppress(ZeroDivisionError), self.wrap(model.parameters(), "failed"):
            raise ZeroDivisionError
        last = self.wrap(model.parameters(), "last")
        self.step_wrapped(model, last)
        self.assertEqual((closed.steps, lost.steps, last.steps), (0, 1, 1))

    def test_two_optimizers_train_different_parts_of_a_model(self):
        model = make_model()
        parts = [self.optimizer(model, job=str(number), params=model[number].parameters()) for number in (0, 2)]
        before = [parameter.clone() for parameter in model.parameters()]
        nn.functional.mse_loss(model(torch.ones(4, 6)), torch.ones(4, 3)).backward()
        for optimizer in parts:
            optimizer.step()
        for optimizer in parts:
            optimizer.synchronize()
        self.assertFalse(any(torch.equal(old, new) for old, new in zip(before, model.parameters())))


if __name__ == "__main__":
    unittest.main()
