"""Tests of LocalSGD.preset: each preset does the same as the loop of its paper in plain torch."""
import math
import unittest

from local_test import LocalTest, averaged, random_numbers, rows_of, step
from torch_support import nn, torch

import syncline
from syncline.torch import DiLoCo, LocalSGD, Optimizer
from syncline.torch._optimizer.spelling import check_spelling

ROUNDS, STEPS = 4, 3
CHUNK, RATIO, DECAY = 256, 0.125, 0.95
SIDE, MOMENTUM = 64, 0.75  # of DeMo
PUSH = f"sparseloco:min_elements=0,vectors=1,chunk_log2=8,ratio={RATIO}"  # all tensors of a small model


def fresh():
    """Returns a model with one tensor of more than a chunk, and others of less."""
    with random_numbers:
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 100), nn.Tanh(), nn.Linear(100, 3))


def chosen(chunk):
    """Returns the positions of the largest magnitudes, without zeros."""
    order = sorted(range(len(chunk)), key=lambda i: (-abs(chunk[i]), i))
    return sorted(i for i in order[:max(1, int(RATIO * len(chunk)))] if chunk[i] != 0)


def in_two_bits(values):
    """Replaces each value by the mean of its bin: values of one sign, with magnitudes above or not above 1.25 times the mean one."""
    limit = 1.25 * sum(abs(value) for value in values) / max(1, len(values))
    bins = [(value < 0, abs(value) > limit) for value in values]
    mean = {one: sum(value for value, other in zip(values, bins) if other == one) / bins.count(one) for one in bins}
    return [mean[one] for one in bins]


def sent_of(tensor):
    """Returns what a receiver decodes: zero for values that were not sent."""
    flat = tensor.double().flatten().tolist()
    positions = [first + i for first in range(0, len(flat), CHUNK) for i in chosen(flat[first:first + CHUNK])]
    sent = torch.zeros(len(flat), dtype=torch.float64)
    for position, value in zip(positions, in_two_bits([flat[i] for i in positions])):
        sent[position] = value
    return sent.view(tensor.shape)


def waves_of(weights, backwards=False):
    """Returns the coefficients of squares one below another, by the definition of the DCT-II, or what they stand for."""
    k, j = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    waves = torch.cos(math.pi * k.double() * (2 * j + 1) / (2 * SIDE)) * math.sqrt(2 / SIDE)
    waves[0] /= math.sqrt(2)
    squares = weights.double().view(-1, SIDE, SIDE)
    return (waves.T @ squares @ waves if backwards else waves @ squares @ waves.T).view(weights.shape)


def largest_of_squares(coefficients):
    """Returns the 32 largest coefficients of each square, and zeros."""
    flat = coefficients.view(-1, SIDE * SIDE)
    positions = flat.abs().topk(SIDE * SIDE // 128).indices
    return torch.zeros_like(flat).scatter(1, positions, flat.gather(1, positions)).view(coefficients.shape)


class Presets(LocalTest):
    def trained(self, name, **changes):
        def work(rank, session):
            model = fresh()
            with LocalSGD.preset(name, model, torch.optim.AdamW(model.parameters(), 0.01), session=session, **changes) as optimizer:
                for batch in rows_of(rank, 2, ROUNDS * STEPS):
                    step(model, optimizer, *batch)
                self.assertEqual(optimizer.rounds, ROUNDS)
            return model
        return self.workers(2, work)

    def test_sparseloco_is_the_papers_loop(self):
        start, models = fresh(), [fresh(), fresh()]
        inner = [torch.optim.AdamW(model.parameters(), 0.01) for model in models]
        kept = [[torch.zeros_like(p, dtype=torch.float64) for p in start.parameters()] for _ in models]
        for first in range(0, ROUNDS * STEPS, STEPS):
            for rank, model in enumerate(models):
                for batch in rows_of(rank, 2, ROUNDS * STEPS)[first:first + STEPS]:
                    step(model, inner[rank], *batch)
            with torch.no_grad():
                for number, parameter in enumerate(start.parameters()):
                    pushed = []
                    for rank, model in enumerate(models):
                        total = kept[rank][number] + (parameter - list(model.parameters())[number]).double()
                        pushed.append(sent_of(total))
                        kept[rank][number] = DECAY * (total - pushed[-1])
                    senders = sum((sent != 0).double() for sent in pushed)
                    parameter -= (sum(pushed) / senders.clamp(min=1)).float()
            for model in models:
                model.load_state_dict(start.state_dict())
        here = self.trained("sparseloco", sync_every=STEPS, push=PUSH, publish="fp32")
        self.assert_same(here[0], here[1], 0)
        self.assert_same(here[0], start)

    def demo(self, inputs, **changes):
        """Returns the weights of two workers after steps of DeMo, and those of the paper's loop in float64."""
        def squares():
            with random_numbers:
                torch.manual_seed(2)
                return nn.Linear(SIDE, 2 * SIDE, bias=False)  # two squares of 64 x 64

        def work(rank, session):
            model = squares()
            inner = torch.optim.SGD(model.parameters(), 0.25)
            with LocalSGD.preset("demo", model, inner, publish="fp32", push=f"demo:values=fp32,decay={MOMENTUM}", session=session,
                                 **changes) as optimizer:
                for batch in inputs[rank]:
                    optimizer.zero_grad()
                    loss_of(model, batch).backward()
                    optimizer.step()
            return model.weight.detach()

        def loss_of(model, batch):
            return model(batch).sin().square().mean()

        start = squares()
        momenta = [torch.zeros(2 * SIDE, SIDE, dtype=torch.float64) for _ in inputs]
        for batches in zip(*inputs):
            coefficients = []
            for rank, batch in enumerate(batches):
                start.zero_grad()
                loss_of(start, batch).backward()
                momenta[rank] = MOMENTUM * momenta[rank] + 0.25 * start.weight.grad.double()
                coefficients.append(largest_of_squares(waves_of(momenta[rank])))
                momenta[rank] -= waves_of(coefficients[-1], backwards=True)
            senders = sum((sent != 0).double() for sent in coefficients)
            mean = waves_of(sum(coefficients) / senders.clamp(min=1), backwards=True)
            if changes.get("outer") != "sgd":
                mean = mean.sign()
            with torch.no_grad():
                start.weight -= changes["lr"] * mean.float()
        return self.workers(2, work), start.weight.detach()

    def test_demo_is_the_papers_loop(self):
        random = torch.Generator().manual_seed(3)
        inputs = [[torch.randn(8, SIDE, generator=random) for _ in range(6)] for _ in range(2)]
        here, expected = self.demo(inputs, outer="sgd", lr=40.0)
        torch.testing.assert_close(here[0], here[1], rtol=0, atol=0)
        torch.testing.assert_close(here[0], expected, rtol=1e-5, atol=1e-5)
        # The sign of a value near zero may differ between float32 and float64.
        here, expected = self.demo(inputs, lr=1e-3)
        torch.testing.assert_close(here[0], here[1], rtol=0, atol=0)
        self.assertLess(((here[0] - expected).abs() > 1e-6).double().mean().item(), 0.02)

    def test_diloco_is_the_papers_loop(self):
        start, models = fresh(), [fresh(), fresh()]
        inner = [torch.optim.AdamW(model.parameters(), 0.01) for model in models]
        outer = torch.optim.SGD(start.parameters(), 0.7, momentum=0.9, nesterov=True)
        for first in range(0, ROUNDS * STEPS, STEPS):
            for rank, model in enumerate(models):
                for batch in rows_of(rank, 2, ROUNDS * STEPS)[first:first + STEPS]:
                    step(model, inner[rank], *batch)
            averaged(start, models, [1, 1], outer)
        self.assert_same(self.trained("diloco", sync_every=STEPS)[0], start)

    def test_post_local_sgd_begins_with_rounds_of_one_step(self):
        model = fresh()
        optimizer = LocalSGD.preset("post-local-sgd", model, torch.optim.SGD(model.parameters(), 0.1), session=self.options())
        self.addCleanup(optimizer.session.close)
        for number, batch in enumerate(rows_of(0, 1, 3)):
            step(model, optimizer, *batch)
            self.assertEqual(optimizer.rounds, number + 1)
        self.assertEqual([optimizer._rhythm.steps(number) for number in (0, 999, 1000, 5000)], [1, 1, 32, 32])

    def test_streaming_diloco_has_fragments_that_overlap(self):
        model = fresh()
        optimizer = LocalSGD.preset("streaming-diloco", model, torch.optim.SGD(model.parameters(), 0.1), session=self.options())
        self.addCleanup(optimizer.session.close)
        self.assertEqual([len(optimizer._fragments), optimizer._overlap, optimizer._alpha], [4, 5, 0.5])

    def test_are_the_sessions_too(self):
        for name in ("diloco", "streaming-diloco", "sparseloco", "post-local-sgd", "demo"):
            settings = syncline.torch._local.presets.PRESETS[name]
            options = syncline._library.Options()
            options["preset"] = name
            self.assertEqual(options["push"], settings.get("push", "fp32"), name)
            self.assertEqual(options["publish"], settings.get("publish", "fp32"), name)
            numbers = dict(part.split("=") for part in options["optimizer"].partition(":")[2].split(","))
            self.assertEqual({key: float(value) for key, value in numbers.items()},
                             {key: float(settings[key]) for key in ("lr", "momentum", "nesterov") if key in settings}, name)
            options.free()

    def test_a_slip_of_an_option_is_named_with_what_was_meant(self):
        model = fresh()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        known = "it has sync_every, outer, lr, .*, and those of the servers' optimizer; did you mean"
        for make, reason in (
                (lambda: LocalSGD.preset("diloco", model, inner, syncevery=7), f"LocalSGD has no option 'syncevery'; {known} 'sync_every'"),
                (lambda: DiLoCo(model, inner, sync_evry=7), f"DiLoCo has no option 'sync_evry'; {known} 'sync_every'"),
                (lambda: DiLoCo(model, inner, fragment=4), "did you mean 'fragments'"),
                (lambda: Optimizer(model, "adamw", lr=0.1, sample=3), "Optimizer has no option 'sample'; it has lr, .* 'samples'"),
                (lambda: Optimizer(model, "adamw", lr=0.1, loss_scalin="torch"), "did you mean 'loss_scaling'")):
            with self.assertRaisesRegex(syncline.InvalidArgument, reason):
                make()

    def test_no_option_of_the_servers_optimizers_is_taken_for_a_slip(self):
        for name in ("alpha", "amsgrad", "beta1", "beta2", "beta3", "centered", "clip_threshold", "dampening", "decay_power", "decoupled",
                     "ema_decay", "eps", "eta_minus", "eta_plus", "exclude_1d", "exponent", "gamma", "hessian", "history_size",
                     "initial_accumulator_value", "lambd", "lookahead_alpha", "lookahead_steps", "lr", "lr_decay", "max_variance",
                     "maximize", "momentum", "momentum_decay", "nesterov", "power", "relative_step", "rho", "scale_parameter",
                     "step_size_max", "step_size_min", "swa_every", "swa_start", "t0", "trust_coefficient", "warmup_init",
                     "weight_decay"):
            for of in (LocalSGD, DiLoCo, Optimizer):
                check_spelling(of, [name])

    def test_others_are_refused(self):
        model = fresh()
        with self.assertRaisesRegex(syncline.InvalidArgument, "'dilocco' is not a preset; there are diloco, streaming-diloco, sparseloco.*; did you mean 'diloco'"):
            LocalSGD.preset("dilocco", model, torch.optim.SGD(model.parameters(), 0.1))

    def test_may_be_changed(self):
        model = fresh()
        optimizer = LocalSGD.preset("diloco", model, torch.optim.SGD(model.parameters(), 0.1), outer="adamw", lr=1e-3,
                                    session=self.options())
        self.addCleanup(optimizer.session.close)
        self.assertEqual(optimizer._rhythm.steps(0), 100)


if __name__ == "__main__":
    unittest.main()
