"""Tests of syncline.torch.LocalSGD and DiLoCo with real servers, against the papers' loops in plain torch."""
import copy
import threading
import unittest

import support
from torch_support import EXACT, batches, make_model, nn, torch, train

import syncline
from syncline.torch import DiLoCo, LocalSGD, Optimizer


def rows_of(rank, world, count):
    """Returns a worker's part of the batches."""
    return [(inputs[rank::world], labels[rank::world]) for inputs, labels in batches(count)]


def step(model, optimizer, inputs, labels):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), labels).backward()
    optimizer.step()


random_numbers = threading.Lock()  # torch's are of the process, not of a thread


def fresh(seed=1):
    with random_numbers:
        return make_model(seed)


class LocalTest(support.ServersTest):
    def workers(self, count, work):
        """Runs work(rank, session options) in one thread for each worker. Returns the results."""
        results, errors = [None] * count, []

        def run(rank):
            try:
                results[rank] = work(rank, self.options(rank=rank, world_size=count, run_id=self.id()))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(support.PATIENCE)
            self.assertFalse(errors or thread.is_alive(), errors or "does not end")
        return results

    def assert_same(self, model, expected, tolerance=1e-5):
        for (name, here), there in zip(model.named_parameters(), expected.parameters()):
            torch.testing.assert_close(here, there, rtol=tolerance, atol=tolerance, msg=lambda said: f"{name}: {said}")


def averaged(starts, models, weights, outer):
    """The global model of the papers. `outer` steps it along the weighted mean of the workers' movements."""
    total = sum(weights)
    with torch.no_grad():
        for number, parameter in enumerate(starts.parameters()):
            parameter.grad = sum(weight / total * (parameter - list(model.parameters())[number])
                                 for model, weight in zip(models, weights))
    outer.step()
    for model in models:
        model.load_state_dict(starts.state_dict())


class Rounds(LocalTest):
    def test_of_one_step_that_average_are_synchronous_sgd(self):
        def here(rank, session):
            model = fresh(rank + 1)
            with LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=1, session=session) as optimizer:
                for batch in rows_of(rank, 2, 20):
                    step(model, optimizer, *batch)
            return model

        def there(rank, session):
            model = fresh(rank + 1)
            with Optimizer(model, "sgd", 0.1, session={**session, "job": "bsp"}, **EXACT) as optimizer:
                for batch in rows_of(rank, 2, 20):
                    step(model, optimizer, *batch)
            return model

        local, synchronous = self.workers(2, here), self.workers(2, there)
        self.assert_same(local[0], synchronous[0], 1e-6)
        self.assert_same(local[0], local[1], 0)

    def test_weigh_workers_by_their_samples(self):
        def work(rank, session):
            model = fresh()
            optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=4, samples=1 + 2 * rank, session=session)
            with optimizer:
                for batch in rows_of(rank, 2, 12):
                    step(model, optimizer, *batch)
                self.assertEqual(optimizer.rounds, 3)
            return model

        start, models = fresh(), [fresh(), fresh()]
        outer = torch.optim.SGD(start.parameters(), 1.0)
        for first in range(0, 12, 4):
            for rank, model in enumerate(models):
                for batch in rows_of(rank, 2, 12)[first:first + 4]:
                    step(model, torch.optim.SGD(model.parameters(), 0.1), *batch)
            averaged(start, models, [1, 3], outer)
        for model in self.workers(2, work):
            self.assert_same(model, start)

    def test_of_diloco_are_the_papers(self):
        def work(rank, session):
            model = fresh()
            with DiLoCo(model, torch.optim.AdamW(model.parameters(), 0.01), sync_every=5, session=session) as optimizer:
                for batch in rows_of(rank, 2, 23):  # close() synchronises the last three steps
                    step(model, optimizer, *batch)
            return model

        start, models = fresh(), [fresh(), fresh()]
        outer = torch.optim.SGD(start.parameters(), 0.7, momentum=0.9, nesterov=True)
        inner = [torch.optim.AdamW(model.parameters(), 0.01) for model in models]
        for number in range(23):
            for rank, model in enumerate(models):
                step(model, inner[rank], *rows_of(rank, 2, 23)[number])
            if number % 5 == 4 or number == 22:
                averaged(start, models, [1, 1], outer)
        for model in self.workers(2, work):
            self.assert_same(model, start)

    def test_of_fragments_overlap_and_blend(self):
        every, overlap, alpha, count = 6, 2, 0.25, 24
        model, expected = fresh(), fresh()
        optimizer = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.05), every, outer="sgd", lr=0.5, momentum=0.5, fragments=2,
                           overlap=overlap, alpha=alpha, session=self.options())
        self.addCleanup(optimizer.session.close)
        inner = torch.optim.SGD(expected.parameters(), 0.05)
        halves = [list(expected[0].parameters()), list(expected[2].parameters())]
        # By the elements 0.weight (96) is more than half, so 0.bias goes with 2.weight and 2.bias.
        halves = [halves[0][:1], halves[0][1:] + halves[1]]
        globals_ = [[p.detach().clone() for p in half] for half in halves]
        outers = [torch.optim.SGD(half, 0.5, momentum=0.5) for half in globals_]
        for number, batch in enumerate(batches(count), 1):
            step(model, optimizer, *batch)
            step(expected, inner, *batch)
            for half, own, outer, due in zip(halves, globals_, outers, (3, 6)):
                if number % every == due % every:
                    for parameter, start in zip(half, own):
                        start.grad = start - parameter.detach()
                    outer.step()
                if number > overlap and (number - overlap) % every == due % every:
                    for parameter, start in zip(half, own):
                        parameter.data.mul_(alpha).add_(start, alpha=1 - alpha)
            self.assert_same(model, expected)
        optimizer.synchronize()
        before = copy.deepcopy(model)
        optimizer.close()
        self.assert_same(model, before, 0)

    def test_travel_compressed(self):
        def work(rank, session):
            with random_numbers:
                model = nn.Sequential(nn.Linear(6, 200), nn.Tanh(), nn.Linear(200, 3))
            inner = torch.optim.AdamW(model.parameters(), 0.01)
            optimizer = LocalSGD(model, inner, 4, push="int4:min_elements=0,vectors=1", publish="int8:min_elements=0,vectors=1",
                                 session=session)
            losses = []
            for inputs, labels in rows_of(rank, 2, 80):
                optimizer.zero_grad()
                losses.append(nn.functional.mse_loss(model(inputs), labels))
                losses[-1].backward()
                optimizer.step()
            optimizer.synchronize()
            pushed = optimizer.session.stats.bytes_pushed
            optimizer.close()
            return model, losses, pushed, sum(p.numel() for p in model.parameters())

        (first, losses, pushed, elements), (second, *_) = self.workers(2, work)
        self.assert_same(first, second, 0)
        self.assertLess(losses[-1], losses[0] / 3)
        self.assertLess(pushed, 4 * elements + 20 * 2 * elements)  # the seed, and 20 rounds at half of FP32

    def test_leave_the_global_values_of_bfloat16_models_as_they_are(self):
        model = fresh().bfloat16()
        optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.0), sync_every=1, lr=0.5, session=self.options())
        self.addCleanup(optimizer.session.close)
        replica = optimizer._fragments[0]._replicas[0]
        replica._global.mul_(1.0001)  # less than BF16 can tell
        self.assertEqual(replica.moved().abs().max(), 0)
        model(torch.ones(2, 6, dtype=torch.bfloat16)).float().square().mean().backward()
        optimizer.step()
        self.assertEqual(optimizer.rounds, 1)


class Membership(LocalTest):
    def test_a_worker_that_joins_takes_the_current_weights_and_the_others_rhythm(self):
        joined, target = threading.Event(), []

        def work(rank, session):
            session = {**session, "world_size": 1}
            model, rounds = fresh(rank + 1), []
            if rank == 1:
                self.assertTrue(begun.wait(support.PATIENCE))
            optimizer = DiLoCo(model, torch.optim.SGD(model.parameters(), 0.05), sync_every=3, fragments=2, session=session)
            if rank == 1:
                target.append(optimizer.rounds + 6)
                rounds.append(optimizer.rounds)
                joined.set()
            for inputs, labels in rows_of(rank, 2, 100000):
                step(model, optimizer, inputs, labels)
                if optimizer.rounds >= 3:
                    begun.set()
                if joined.is_set() and optimizer._taken == 0 and optimizer.rounds >= target[0]:
                    break
            optimizer.close()
            return model, rounds

        begun = threading.Event()
        (first, _), (second, rounds) = self.workers(2, work)
        self.assertGreaterEqual(rounds[0], 3)
        self.assert_same(first, second, 0)

    SOURCE = """
        import os, time, torch, syncline.torch
        torch.set_num_threads(1)
        torch.manual_seed(int(os.environ["RANK"]))
        model = torch.nn.Linear(6, 3)
        optimizer = syncline.torch.DiLoCo(model, torch.optim.AdamW(model.parameters(), 0.01), sync_every=10)
        print("round", optimizer.rounds)
        while optimizer.rounds < 100:  # 100 ms each
            rows = torch.randn(16, 6)
            optimizer.zero_grad()
            (model(rows) - rows[:, :3]).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)
            if optimizer._taken == 5:
                print("in round", optimizer.rounds)
        optimizer.close()
        print("loss", (model(torch.ones(1, 6)) - 1).square().mean().item())
    """

    def test_a_worker_that_dies_between_synchronisations_loses_its_own_steps_only(self):
        first, second = (self.program(self.SOURCE, self.environment(rank, 2)) for rank in range(2))
        second.await_line("in round 5")
        second.kill()
        first.await_line("in round 10")
        again = self.program(self.SOURCE, self.environment(1, 2))
        self.assertGreater(int(again.await_line(r"^round (\d+)").group(1)), 5)
        for program in (first, again):
            self.assertEqual(program.wait(), 0, program.text())
        self.assertEqual(first.await_line("loss (.*)").group(1), again.await_line("loss (.*)").group(1))


class Wrappers(LocalTest):
    def test_are_optimizers_to_torch(self):
        model, expected = fresh(), fresh()
        inner, plain = (torch.optim.SGD(m.parameters(), 0.1, momentum=0.9) for m in (model, expected))
        optimizer = LocalSGD(model, inner, sync_every=7, session=self.options())
        self.addCleanup(optimizer.session.close)
        for owner, its in ((optimizer, model), (plain, expected)):
            scheduler = torch.optim.lr_scheduler.StepLR(owner, 2)
            for inputs, labels in batches(5):
                step(its, owner, inputs, labels)
                scheduler.step()
        self.assert_same(model, expected)
        self.assertEqual(inner.param_groups[0]["lr"], plain.param_groups[0]["lr"])
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self.assertIs(optimizer.param_groups, inner.param_groups)
        self.assertIs(optimizer.state, inner.state)
        train(model, optimizer, 3)
        train(expected, plain, 3)
        self.assert_same(model, expected)

    @unittest.skipUnless(hasattr(torch, "amp") and hasattr(torch.amp, "GradScaler"), "torch's GradScaler is for CUDA alone")
    def test_are_what_a_grad_scaler_takes(self):
        model, expected = fresh(), fresh()
        plain = torch.optim.SGD(expected.parameters(), 0.1)
        optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), sync_every=3, session=self.options())
        self.addCleanup(optimizer.session.close)
        for owner, its in ((optimizer, model), (plain, expected)):
            scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
            for number, (inputs, labels) in enumerate(batches(7)):
                owner.zero_grad()
                scaler.scale(nn.functional.mse_loss(its(inputs), labels)).backward()
                if number == 4:
                    next(its.parameters()).grad.fill_(float("inf"))  # this step is left out
                scaler.unscale_(owner)
                nn.utils.clip_grad_norm_(its.parameters(), 0.1)
                scaler.step(owner)
                scaler.update()
        self.assertEqual(optimizer.rounds, 2)
        self.assert_same(model, expected)

    def test_refuse_what_makes_no_sense(self):
        model = fresh()
        inner = torch.optim.SGD(model.parameters(), 0.1)
        for kind, arguments, said in (
                (LocalSGD, dict(sync_every=0), "sync_every=0: .* 1 or more"),
                (LocalSGD, dict(sync_every=4, overlap=4), "overlap=4: .* 0 to 3"),
                (LocalSGD, dict(sync_every=4, alpha=0.5), "alpha=0.5: .* 0 without overlap"),
                (LocalSGD, dict(sync_every=9, fragments=5), "fragments=5: a model of 4 trained parameters is cut into 1 to 4"),
                (LocalSGD, dict(sync_every=2, fragments=3), "fragments=3: .* 1 to sync_every=2"),
                (DiLoCo, dict(outer="adamw", momentum=0.9), "momentum=0.9: .*nesterov"),
                (DiLoCo, dict(outer="nesterof"), "nesterof"),
                (LocalSGD, dict(sync_every=4, push="fp32", session={"push": "int8"}), "give it once")):
            with self.subTest(said), self.assertRaisesRegex(syncline.Error, said):
                kind(model, inner, **{**arguments, "session": {**self.options(), **arguments.get("session", {})}})
        with self.assertRaisesRegex(syncline.InvalidArgument, "one of torch's, which runs on the worker"):
            LocalSGD(model, "adamw", sync_every=4)
        with self.assertRaisesRegex(syncline.InvalidArgument, r"shape \[7\] that is not a parameter of the model"):
            LocalSGD(model, torch.optim.SGD([nn.Parameter(torch.zeros(7))], 0.1), sync_every=4, session=self.options())
        optimizer = LocalSGD(model, inner, sync_every=4, session=self.options(job="copied"))
        self.addCleanup(optimizer.session.close)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "copy the model and the inner optimizer"):
            copy.deepcopy(optimizer)


if __name__ == "__main__":
    unittest.main()
