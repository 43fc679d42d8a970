"""check=: what all ranks hear of weights that differ, and when they are compared."""
import os
import sys
import tempfile
import textwrap
from unittest import mock

import support
from average_test import free_port
from torch_support import OptimizerTest, make_model, torch, train

import syncline

# A rank of a job. `damage(step)` has rank 1 hold another value in its second tensor once that step's weights have come.
RANK = """
    import os, time, torch
    import syncline, syncline.torch
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = syncline.torch.Optimizer(model, "sgd", 0.1, push="fp32", publish="fp32", check="weights:every=3")
    def train(steps):
        for _ in range(steps):
            model(torch.randn(8, 6)).square().mean().backward()
            optimizer.step()
    def damage(step):
        weight = optimizer._weights[1]
        wait = weight.wait
        def damaged():
            wait()
            if optimizer.steps == step:
                weight.parameter.data[5] = 7     # torch does not see it
        if rank == 1:
            weight.wait = damaged
    try:
{body}
        print("equal", flush=True)
    except syncline.NotEqual as error:
        print(f"rank={{error.rank}} tensor={{error.tensor}} index={{error.index}} step={{error.step}}", flush=True)
    while not os.path.exists(os.environ["OVER"]):     # rank 0 has the store by which the others meet
        time.sleep(0.01)
"""


class Check(OptimizerTest):
    failure_timeout = "30s"  # nobody dies here

    def run_ranks(self, body, ranks=2):
        """What each has said."""
        source = textwrap.dedent(RANK.format(body=textwrap.indent(textwrap.dedent(body), " " * 8)))
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        over = os.path.join(folder.name, "over")
        environment = {"OVER": over, "SYNCLINE_FAILURE_TIMEOUT": self.failure_timeout, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks), "SYNCLINE_JOB": self.id(),
                       "SYNCLINE_COORDINATOR": self.coordinator, "PYTHONPATH": f"{support.PACKAGE}:{support.HERE}"}
        programs = [support.Process([sys.executable, "-c", source], {**environment, "RANK": str(rank)}) for rank in range(ranks)]
        for program in programs:
            self.addCleanup(program.kill)
        said = [program.await_line("^(equal|rank=.*)$").group(0) for program in programs]
        open(over, "w").close()
        for program in programs:
            program.wait()
        return said

    def test_weights_that_are_equal_train_on(self):
        self.assertEqual(self.run_ranks("train(8)", ranks=3), ["equal"] * 3)

    def test_every_rank_hears_which_rank_tensor_and_index_differ_and_at_which_step(self):
        said = self.run_ranks("""
            damage(6)
            train(9)
        """, ranks=3)
        self.assertEqual(said, ["rank=1 tensor=0.bias index=(5,) step=6"] * 3)

    def test_steps_between_are_not_compared(self):
        self.assertEqual(self.run_ranks("""
            damage(4)
            train(5)
        """), ["equal"] * 2)

    def test_a_worker_alone_has_nobody_to_differ_from(self):
        model = make_model()
        train(model, self.optimizer(model, check="weights:every=1"), 3)

    def test_what_makes_no_sense_is_refused_with_what_is_allowed(self):
        for check in ("weights", "weights:every=0", "weights:every=-1", "weights:every=1.5", "norms:every=1", "weights:every=99999999999", ""):
            with self.subTest(check), self.assertRaisesRegex(syncline.InvalidArgument, 'must be "weights:every=STEPS", with 1 to'):
                self.optimizer(make_model(), check=check)

    def test_modes_in_which_weights_differ_are_refused(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "with mode='ssp:4': there workers may hold weights of different steps"):
            self.optimizer(make_model(), check="weights:every=1", mode="ssp:4")
        with mock.patch.dict("os.environ", SYNCLINE_MODE="asp"), self.assertRaisesRegex(syncline.InvalidArgument, "mode='asp'"):
            self.optimizer(make_model(), check="weights:every=1")

    def test_other_bits_of_the_same_number_are_no_difference(self):
        self.assertEqual(self.run_ranks("""
            wait = optimizer._weights[1].wait
            def negative():
                wait()
                optimizer._weights[1].parameter.data[:] = -0.0 if rank else 0.0
            optimizer._weights[1].wait = negative
            train(3)
        """), ["equal"] * 2)
