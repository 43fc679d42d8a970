"""Tests of the argument `mode=` of all classes and functions that open a session."""
import contextlib
import json
import os
import subprocess
from unittest import mock

import support
from torch_support import OptimizerTest, make_model, torch, train

import syncline
from syncline.torch import DiLoCo, HookState, LocalSGD, Optimizer, wrap


class Modes(OptimizerTest):
    def mode_of(self, job):
        """Returns the job's mode as the coordinator has it."""
        said = subprocess.run([os.environ["SYNCLINE_BINARY"], "status", "--json", "--coordinator", self.coordinator],
                              check=True, text=True, stdout=subprocess.PIPE).stdout
        return {entry["name"]: entry["mode"] for entry in json.loads(said)["jobs"]}[job]

    def test_are_arguments(self):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for make, mode, known in (
                (lambda **more: Optimizer(model, "sgd", 0.1, **more), "ssp:4", "ssp:staleness=4"),
                (lambda **more: Optimizer(model, "sgd", 0.1, **more), "asp", "asp"),
                (lambda **more: LocalSGD(model, inner, sync_every=2, **more), "bsp:quorum=1", "bsp:quorum=1"),
                (lambda **more: DiLoCo(model, inner, sync_every=2, **more), "bsp", "bsp"),
                (lambda **more: wrap(inner, model, **more), "bsp", "bsp"),
                (lambda **more: contextlib.nullcontext(HookState(model, **more)), "bsp", "bsp")):
            job = f"{self.id()}{known}{make.__code__.co_firstlineno}"
            with self.subTest(job), make(mode=mode, session=self.options(job=job)) as optimizer:
                if not isinstance(optimizer, HookState):
                    train(model, optimizer, 4)
                self.assertEqual(self.mode_of(job), known)
                optimizer.close()

    def test_of_rounds_are_bsp_with_or_without_a_quorum(self):
        model = make_model()
        for mode in ("ssp:staleness=4", "asp"):
            with self.assertRaisesRegex(syncline.InvalidArgument, f"mode='{mode}' .*take bsp"):
                LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=2, mode=mode, session=self.options())

    def session_ahead(self, optimizer):
        session = syncline.Session(**self.options(), mode="asp:view_ahead=0.25", optimizer=optimizer, push="fp32", publish="fp32")
        self.addCleanup(session.close)
        tensor = session.declare("w", torch.zeros(4))
        session.start()
        return session, tensor

    def test_asp_shows_weights_ahead_of_the_momentum(self):
        session, tensor = self.session_ahead("sgd:lr=1,momentum=0.5")
        for gradient, shown in ((2.0, -2.5), (4.0, -8.25)):  # -2 - 0.25 * 2; -7 - 0.25 * 5
            session.push_pull(tensor, torch.full((4,), gradient))
            session.wait(tensor)
            self.assertEqual(tensor.weights.tolist(), [shown] * 4)

    def test_asp_shows_nothing_ahead_of_an_optimizer_without_momentum(self):
        with self.assertRaisesRegex(syncline.Error, "optimizer 'adamw' keeps no momentum along which it steps; take sgd"):
            self.session_ahead("adamw:lr=1")

    def test_are_given_once(self):
        with self.assertRaisesRegex(syncline.InvalidArgument, "'mode': ….*mode=ssp:4 already; give it once"):
            self.optimizer_of(mode="ssp:4", mode_of_session="bsp")
        with self.assertRaisesRegex(syncline.InvalidArgument, "'3' is not an option: it has no name; write NAME=3"):
            self.optimizer_of(mode="bsp:3")

    def optimizer_of(self, mode, mode_of_session=None):
        return Optimizer(make_model(), "sgd", 0.1, mode=mode, session=self.options(mode=mode_of_session))

    def test_of_averages_are_bsp(self):
        model = make_model()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for mode in ("ssp:4", "asp", "bsp:quorum=1"):
            for make in (lambda **more: wrap(inner, model, **more), lambda **more: HookState(model, **more)):
                with self.assertRaisesRegex(syncline.InvalidArgument, f"mode='{mode}': every worker has its own weights"):
                    make(mode=mode, session=self.options())
        with mock.patch.dict(os.environ, {"SYNCLINE_MODE": "ssp:3"}):
            with self.assertRaisesRegex(syncline.InvalidArgument, "of SYNCLINE_MODE, which `syncline run --mode` sets"):
                wrap(inner, model, session=self.options())
            with wrap(inner, model, mode="bsp", session=self.options()) as optimizer:
                train(model, optimizer, 2)
                self.assertEqual(self.mode_of(self.id()), "bsp")


if __name__ == "__main__":
    support.unittest.main()
