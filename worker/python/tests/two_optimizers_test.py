"""Two Optimizers in one program, as of a GAN: each is a job of its own."""
import json
import os
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import gan_model
import support
from torch_support import EXACT, OptimizerTest, make_model, torch

import syncline
from syncline.torch import Optimizer


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

    def test_go_by_the_sessions_that_are_open(self):
        first, second, third = self.open(), self.open(), self.open()
        self.assertEqual([o.session.job for o in (first, second, third)], [self.id() + suffix for suffix in ("", "-2", "-3")])
        second.close()
        self.assertEqual(self.open().session.job, self.id() + "-2")
        self.assertEqual(self.open(job="other").session.job, "other")
        first.close()
        third.rejoin()
        self.assertEqual(third.session.job, self.id() + "-3")

    def test_a_job_that_is_named_twice_is_refused(self):
        self.open(job="same")
        with self.assertRaises(syncline.Error):
            self.open(job="same", start_timeout="2s")

    def test_a_session_that_was_lost_keeps_no_name(self):
        first = self.open()
        first.session._calls.is_lost = True
        self.assertEqual(syncline.Session(coordinator=self.coordinator, failure_timeout=self.failure_timeout).job, self.id())


if __name__ == "__main__":
    unittest.main()
