"""Tests of local aggregation: it gives the same weights with fewer bytes."""
import re
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import host_support
import support
import torch
from host_support import BYTES, COUNT, program_of


class LocalAggregation(host_support.Ranks):
    def test_ranks_of_one_host_have_the_bits_of_ranks_that_send_alone_and_a_share_of_the_bytes(self):
        for world in (2, 4):
            with self.subTest(ranks=world):
                alone, of_alone = self.run_all(world, 1, job=str(world))
                together, figures = self.run_all(world, world, job=str(world))
                self.assert_equal(alone, together)
                for kind in (0, 1):  # pushed, pulled
                    plain, aggregated = (sum(one[kind] for one in said) for said in (of_alone, figures))
                    self.assertGreaterEqual(aggregated, 8 * BYTES)
                    self.assertEqual(plain, world * aggregated)
                self.assertEqual([pushed > 0 for pushed, *_ in figures], [True] + [False] * (world - 1))
                self.assertEqual({(steps, members) for _, _, steps, members in figures}, {(8, 1)})
        on_two_hosts, figures = self.run_all(4, 2)
        for name, weight in alone.items():  # sums of four in another order
            torch.testing.assert_close(on_two_hosts[name], weight, rtol=1e-5, atol=1e-6)
        self.assertEqual(sum(pushed for pushed, *_ in of_alone), 2 * sum(pushed for pushed, *_ in figures))
        self.assertEqual([pushed > 0 for pushed, *_ in figures], [True, False, True, False])
        self.assertEqual({members for *_, members in figures}, {2})

    def test_programs_that_end_at_once_wait_for_the_others_to_begin(self):
        source = "import torch, syncline.torch; syncline.torch.Optimizer(torch.nn.Linear(2, 2), 'sgd', lr=0.1)"
        place = {"LOCAL_WORLD_SIZE": "3", "SYNCLINE_LOCAL_AGGREGATION": "1"}
        for program in [self.program(source, {**self.environment(rank, 3), **place, "LOCAL_RANK": str(rank)}) for rank in range(3)]:
            self.assertEqual(program.wait(), 0, program.text())

    def test_samples_count_and_a_part_that_only_some_use_is_the_mean_of_these(self):
        # The arithmetic is exact: whole numbers, and sums of 4 samples. Weights fall by the mean gradient.
        weights, _ = self.run_all(
            2, 2, name="sgd", lr=1.0, steps=1,
            options="samples=(1, 3)[rank]",
            each_step="sum(part.sum() * (4 if rank else 8) for part in list(model.parts)[:2 + rank]).backward()")
        begin = [torch.linspace(-1, 1, size) for size in (3, 40_000, 70_001)]
        for (name, weight), first, mean in zip(weights.items(), begin, (5.0, 5.0, 4.0)):  # (1*8 + 3*4) / 4; only rank 1's
            self.assertTrue(torch.equal(weight, first - mean), name)

    def test_steps_without_any_gradient_of_a_part_skip_it(self):
        weights, _ = self.run_all(2, 2, name="sgd", each_step="model(step, used=2).backward()", steps=300)
        self.assertTrue(torch.equal(weights["parts.2"], torch.linspace(-1, 1, 70_001)))

    def test_many_samples_are_weighted_as_servers_do(self):
        alone, _ = self.run_all(2, 1, options="samples=3")
        together, _ = self.run_all(2, 2, options="samples=3")
        self.assert_equal(alone, together)

    def test_programs_with_many_open_files(self):
        opens = ("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (1500, resource.getrlimit(resource.RLIMIT_NOFILE)[1])); "
                 "opened = [os.dup(0) for _ in range(1100)]")
        self.run_all(2, 2, options=f"samples=exec({opens!r}, globals()) or 1")

    def test_a_barrier_ends_at_its_timeout(self):
        each_step = ('exec("if rank == 0 and step == 2:\\n try: optimizer.session.barrier(0.2)\\n except syncline.DeadlineExceeded as error: print(error)"); '
                     "model(step).backward()")
        started = [self.start(rank, 2, 2, each_step=each_step) for rank in range(2)]
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        started[0][0].await_line("timed out waiting for the barrier of all ranks of this host")

    def test_two_threads_of_a_rank_come_to_two_barriers(self):
        each_step = ('exec("if step == 2:\\n time.sleep(rank / 2)\\n both = [threading.Thread(target=optimizer.session.barrier) for _ in range(2)]\\n '
                     'for one in both: one.start()\\n for one in both: one.join()"); model(step).backward()')
        self.run_all(2, 2, each_step="import threading; " + each_step)

    def test_bf16_weights(self):
        alone, _ = self.run_all(2, 1, dtype="bfloat16")
        together, _ = self.run_all(2, 2, dtype="bfloat16")
        self.assertEqual(together["parts.1"].dtype, torch.bfloat16)
        self.assert_equal(alone, together)

    def test_clipping_schedules_and_accumulation(self):
        each_step = ("optimizer.param_groups[0]['lr'] = 0.01 / (1 + step); exec('with optimizer.no_sync(): model(step).backward()'); "
                     "model(step + 1).backward()")
        options = 'gradient="clip_global_norm=1"'
        alone, _ = self.run_all(2, 1, options=options, each_step=each_step)
        together, _ = self.run_all(2, 2, options=options, each_step=each_step)
        self.assert_equal(alone, together)

    def test_a_gradient_that_is_not_finite_lowers_the_scale_on_all_ranks(self):
        each_step = "(optimizer.scale(model(step)) * (float('inf') if rank == 1 and step == 2 else 1)).backward()"
        options = 'loss_scaling="torch"'
        at_end = "print(f'scale {optimizer.session.loss_scale};')"
        alone, _ = self.run_all(2, 1, options=options, each_step=each_step)
        started = [self.start(rank, 2, 2, options=options, each_step=each_step, at_end=at_end) for rank in range(2)]
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        scales = [float(program.await_line(r"scale (\S+);").group(1)) for program, _ in started]
        self.assertEqual(scales, [2.0**15, 2.0**15])
        self.assert_equal(alone, torch.load(started[1][1]))

    def test_every_rank_fetches_the_optimizers_state(self):
        _, _ = self.run_all(2, 2, at_end="torch.save(optimizer.state_dict(), os.environ['OUT'] + '.state')")
        of_leader, of_other = (torch.load(f"{self.folder}/2-{rank}.pt.state") for rank in range(2))
        self.assertEqual(of_leader["state"].keys(), {0, 1, 2})
        for number, state in of_leader["state"].items():
            self.assertGreater(float(state["exp_avg"].abs().sum()), 0)
            for name, value in state.items():
                self.assertTrue(torch.equal(torch.as_tensor(value), torch.as_tensor(of_other["state"][number][name])), name)

    def test_a_warning_is_said_once_for_each_host(self):
        started = [self.start(rank, 2, 2, name="lbfgs", lr=0.5, steps=1)[0] for rank in range(2)]
        for program in started:
            self.assertEqual(program.wait(), 0, program.text())
        self.assertEqual([program.text().count("optimizer lbfgs with lr 0.5") for program in started], [1, 0])

    def test_hosts_of_different_sizes(self):
        hosts = {"GROUP_WORLD_SIZE": "2"}
        places = [{"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"},
                  {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "1"}]
        each_step = "optimizer.samples = rank + 1; model(step).backward()"  # two parts in three of the step are the third rank's
        started = [self.start(rank, 3, 2, env={**hosts, **place}, each_step=each_step) for rank, place in enumerate(places)]
        for rank, (program, out) in enumerate(started):
            self.assertEqual(program.wait(), 0, program.text())
            self.assertIn(f"of rank {rank} of 3", program.text())
            self.assertIn("steps 8 members 2;", program.text())
            self.assert_equal(torch.load(started[0][1]), torch.load(out))
        alone, _ = self.run_all(3, 1, each_step=each_step)
        for name, weight in torch.load(started[0][1]).items():
            torch.testing.assert_close(weight, alone[name], rtol=1e-5, atol=1e-6)


class WhatElseSendsGradients(host_support.Ranks):
    """Two ranks get the same bits as without local aggregation, and push half as many bytes."""

    def assert_same(self, **source):
        alone, of_alone = self.run_all(2, 1, **source)
        together, figures = self.run_all(2, 2, **source)
        self.assert_equal(alone, together)
        for kind in (0, 1):  # pushed, pulled
            self.assertEqual(sum(one[kind] for one in of_alone), 2 * sum(one[kind] for one in figures))
        self.assertEqual({members for *_, members in figures}, {1})

    def test_wrap(self):
        self.assert_same(optimizer="syncline.torch.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)",
                         each_step="optimizer.zero_grad(); model(step).backward()")

    def test_local_sgd(self):
        self.assert_same(optimizer="syncline.torch.LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.01), sync_every=3)",
                         each_step="optimizer.zero_grad(); model(step).backward()")

    def test_adaptive_rounds(self):
        clock = "setattr(__import__('syncline.torch._local.adaptive', fromlist=['now']), 'now', __import__('itertools').count().__next__)"
        self.assert_same(optimizer=f"({clock}, syncline.torch.LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.01), 'adaptive:4'))[1]",
                         each_step="optimizer.zero_grad(); model(step).backward()")

    def test_diloco_with_fragments_and_overlap(self):
        self.assert_same(optimizer="syncline.torch.DiLoCo(model, torch.optim.SGD(model.parameters(), lr=0.01), sync_every=3, fragments=2, overlap=1)",
                         each_step="optimizer.zero_grad(); model(step).backward()")

    def test_the_hook_of_ddp(self):
        source = """
            import os, torch, syncline.torch
            torch.set_num_threads(1)
            torch.distributed.init_process_group("gloo", init_method="file://" + os.environ["STORE"], rank=int(os.environ["RANK"]), world_size=2)
            torch.manual_seed(0)
            ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 30))
            state = syncline.torch.HookState(ddp)
            ddp.register_comm_hook(state, syncline.torch.hook)
            optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
            for step in range(5):
                optimizer.zero_grad()
                ddp(torch.randn(8, 20, generator=torch.Generator().manual_seed(10 * step + torch.distributed.get_rank()))).square().mean().backward()
                optimizer.step()
            print("members", state.session.stats.members, flush=True)
            torch.distributed.barrier()  # neither leaves before both have looked
            torch.save(ddp.module.state_dict(), os.environ["OUT"])
        """
        weights = {}
        for on_host in (1, 2):
            started = []
            for rank in range(2):
                place = {"LOCAL_RANK": str(rank % on_host), "LOCAL_WORLD_SIZE": str(on_host), "SYNCLINE_LOCAL_AGGREGATION": "1"}
                out = str(self.folder / f"{on_host}-{rank}.pt")
                started.append((self.program(source, {**self.environment(rank, 2), "SYNCLINE_JOB": f"{self.id()}{on_host}", **place, "OUT": out,
                                                      "STORE": str(self.folder / f"store{on_host}")}), out))
            for program, out in started:
                self.assertEqual(program.wait(), 0, program.text())
                self.assertIn(f"members {2 // on_host}", program.text())
            weights[on_host] = [torch.load(out) for _, out in started]
        for other in (weights[1][1], *weights[2]):
            self.assert_equal(weights[1][0], other)


class UnderTheLauncher(unittest.TestCase):
    def launch(self, *arguments, **source):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        script = Path(folder.name) / "train.py"
        script.write_text(textwrap.dedent(program_of(**source)))
        command = [sys.executable, "-m", "syncline.run", "--log-dir", Path(folder.name) / "logs", "--standalone", "--nproc-per-node", "4",
                   "--local-aggregation", "--tee", "3", *arguments, script]
        program = support.Process([str(word) for word in command], {"SYNCLINE_FAILURE_TIMEOUT": support.FAILURE_TIMEOUT,
                                                                    "OUT": str(Path(folder.name) / "out.pt")})
        self.addCleanup(program.kill)
        code = program.wait()
        return code, program.text()

    def test_four_ranks_are_one_member(self):
        code, said = self.launch(**COUNT, steps=5)
        self.assertEqual(code, 0, said)
        self.assertEqual(len(re.findall(r"steps 5 members 1;", said)), 4, said)
        self.assertIn("local aggregation: rank 0 sends for the 4 ranks of this host", said)

    def test_a_leader_that_dies_is_started_again_with_all_ranks_of_its_host(self):
        at_step = "os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' and rank == 0 and step == 20 and os.kill(os.getpid(), 9); "
        counted = "assert all(abs(float(part.detach().mean()) + 60) < 1e-3 for part in model.parts)"
        code, said = self.launch("--max-restarts", "3", **{**COUNT, "each_step": at_step + COUNT["each_step"]}, steps=60, at_end=counted)
        self.assertEqual(code, 0, said)
        self.assertEqual(len(re.findall(r"\bdone", said)), 4, said)
        self.assertIn("which sends for all ranks of this host, is gone", said)


if __name__ == "__main__":
    unittest.main()
