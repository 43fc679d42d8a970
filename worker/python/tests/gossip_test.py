"""Gossip: workers that average their weights in pairs, without servers."""
import json
import os
import signal
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

import support
from torch_support import meeting_place, torch

import syncline
from syncline.torch import Gossip
from syncline.torch._gossip import gossip as _gossip

RANKS = 4
# What a rank starts with is its own: weights that are drawn by its rank, after the Gossip gave all the first one's. {body} is the test's.
PROGRAM = """
    import datetime, json, os, signal, sys, threading, time
    import torch
    import syncline, syncline.torch
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = torch.nn.Linear(300, 20)
    inner = torch.optim.SGD(model.parameters(), lr=0.0)

    def flat():
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    def draw():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape))

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 300)).sum().backward()
        optimizer.step()

    def say(**what):
        print(json.dumps({{key: value.double().tolist() if torch.is_tensor(value) else value for key, value in what.items()}}), flush=True)

    {body}
"""
MIX = """
    optimizer = syncline.torch.Gossip(model, inner, {arguments})
    begun = flat()
    draw()
    before = flat()
    for _ in range({steps}):
        step()
    optimizer.measure()
    after, apart = flat(), optimizer.consensus_distance()
    optimizer.average()
    say(begun=begun, before=before, after=after, mean=flat(), apart=apart, stats=optimizer.stats._asdict())
    optimizer.close()
"""


class Ranks(unittest.TestCase):
    def start(self, body, ranks=RANKS):
        meets = meeting_place(self)
        source = PROGRAM.format(body=body.strip())
        return [support.start_program(self, source, {**meets, "RANK": str(rank), "WORLD_SIZE": str(ranks), "SYNCLINE_RUN_SERVERS": "0", "GLOO_SOCKET_IFNAME": "lo"})
                for rank in range(ranks)]

    def ended(self, processes):
        """What each said last."""
        said = []
        for process in processes:
            self.assertEqual(process.wait(), 0, process.text())
            said.append(json.loads(next(line for line in reversed(process.lines) if line.startswith("{"))))
        return [{key: torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else value for key, value in one.items()} for one in said]

    def mix(self, arguments, steps, ranks=RANKS):
        return self.ended(self.start(MIX.format(arguments=arguments, steps=steps), ranks))


def spread(values):
    """sqrt(mean over ranks of |x - mean|^2)"""
    stacked = torch.stack(values)
    return (stacked - stacked.mean(0)).square().sum(1).mean().sqrt().item()


class Consensus(Ranks):
    def check(self, said, left):
        before, after = [one["before"] for one in said], [one["after"] for one in said]
        for one in said:
            torch.testing.assert_close(one["begun"], said[0]["begun"], rtol=0, atol=0)
            torch.testing.assert_close(one["mean"], said[0]["mean"], rtol=0, atol=0)
        mean = torch.stack(before).mean(0)
        torch.testing.assert_close(torch.stack(after).mean(0), mean, rtol=0, atol=1e-5)
        torch.testing.assert_close(said[0]["mean"], mean, rtol=0, atol=1e-5)
        self.assertLess(spread(after), left * spread(before))
        for one in said:
            self.assertAlmostEqual(one["apart"] / max(spread(after), 1e-9), 1, delta=0.05 if spread(after) > 1e-3 else 1e9)

    def test_an_exponential_graph_of_four_has_the_mean_after_two_rounds(self):
        self.check(self.mix('"exponential"', 2), 1e-6)

    def test_a_ring_comes_near_it_and_its_distance_is_measured(self):
        said = self.mix('"ring", push="bf16"', 1)
        self.check(said, 0.9)
        self.assertGreater(spread([one["after"] for one in said]), 1)
        self.check(self.mix('"ring", push="bf16"', 12), 0.01)

    def test_whatever_torchs_default_type_is_values_travel_as_fp32(self):
        body = textwrap.dedent(MIX).format(arguments='"ring"', steps=1).strip()
        first, rest = body.split("\n", 1)
        body = f"torch.set_default_dtype(torch.float64)\n    {first}\n    torch.set_default_dtype(torch.float32)\n" + textwrap.indent(rest, "    ")
        self.check(self.ended(self.start(body, 2)), 1e-6)

    def test_random_pairs_of_five_conserve_the_mean_with_int8(self):
        said = self.mix('"random", push="int8", seed=3', 30, ranks=5)
        self.check(said, 1e-3)
        for one in said:
            self.assertLess(one["stats"]["exchanges"], 30)  # it was idle sometimes
            self.assertLess(one["stats"]["bytes_sent"], 0.3 * one["stats"]["plain_bytes"])

    def test_topk_conserves_the_mean(self):
        self.check(self.mix('"exponential", push="topk:ratio=0.2"', 60), 0.2)

    def test_overlap_conserves_the_mean_once_all_is_taken(self):
        self.check(self.mix('"exponential", overlap=True', 4), 1e-2)

    def test_two_are_plain_averaging(self):
        for overlap in (False, True):
            said = self.mix(f'"random", overlap={overlap}', 1, ranks=2)
            mean = (said[0]["before"] + said[1]["before"]) / 2
            for one in said:
                torch.testing.assert_close(one["after"], mean, rtol=0, atol=1e-6)

    def test_several_meet_in_torchs_default_group_one_after_the_other(self):
        body = """
    torch.distributed.init_process_group("gloo")
    apart = []
    for graph in ("ring", "random"):
        with syncline.torch.Gossip(model, inner, graph, push="bf16") as optimizer:
            draw()
            before = flat()
            optimizer.average()
            apart.append(optimizer.measure())
    say(before=before, after=flat(), apart=apart)
    """
        said = self.ended(self.start(body, ranks=3))
        mean = torch.stack([one["before"] for one in said]).mean(0)
        for one in said:
            torch.testing.assert_close(one["after"], mean, rtol=0, atol=1e-6)
            self.assertLess(one["apart"].max().item(), 1e-6)

    def test_exchanges_come_every_so_many_steps(self):
        said = self.mix('"ring", every=3, measure_every=1', 7)
        self.assertEqual([one["stats"]["rounds"] for one in said], [2] * RANKS)


TRAIN = """
    model = torch.nn.Linear(6, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = syncline.torch.Gossip(model, inner, "exponential", {arguments}timeout=datetime.timedelta(seconds=60))
    torch.manual_seed(100 + rank)
    for number in range(80):
        inputs = torch.randn(16, 6)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), inputs[:, :3]).backward()
        optimizer.step()
        if number == 20:
            print("is under way", flush=True)
            time.sleep(0.3 if rank != {victim} else 60)
    optimizer.average()
    inputs = torch.eye(6)
    loss = torch.nn.functional.mse_loss(model(inputs), inputs[:, :3]).item()
    say(mean=flat(), loss=loss, stats=optimizer.stats._asdict())
    optimizer.close()
"""


class Deaths(Ranks):
    def train(self, victim, arguments=""):
        processes = self.start(TRAIN.format(victim=victim, arguments=arguments))
        processes[victim].await_line("is under way")
        processes[victim].kill()
        said = self.ended([process for rank, process in enumerate(processes) if rank != victim])
        for one in said:
            torch.testing.assert_close(one["mean"], said[0]["mean"], rtol=0, atol=0)
            self.assertLess(one["loss"], 0.02)
            self.assertEqual((one["stats"]["members"], one["stats"]["deaths"], one["stats"]["rounds"]), (3, 1, 80))

    def test_the_others_go_on_without_one_that_is_killed(self):
        self.train(2)

    def test_also_without_the_first_and_in_the_middle_of_overlap_with_int8(self):
        self.train(0, 'overlap=True, push="int8", ')

    def test_two_of_four_may_die_at_once(self):
        body = TRAIN.format(victim=1, arguments='measure_every=5, ').replace("rank != 1", "rank not in (1, 3)")
        processes = self.start(body)
        for victim in (1, 3):
            processes[victim].await_line("is under way")
        for victim in (1, 3):
            processes[victim].process.send_signal(signal.SIGKILL)
        for one in self.ended([processes[0], processes[2]]):
            self.assertEqual((one["stats"]["members"], one["stats"]["deaths"]), (2, 2))
            self.assertLess(one["loss"], 0.02)

    def test_one_that_hangs_is_left_behind_and_hears_so(self):
        processes = self.start(TRAIN.format(victim=1, arguments="").replace("else 60", "else 3"))
        processes[1].await_line("is under way")
        processes[1].process.send_signal(signal.SIGSTOP)
        for one in self.ended([processes[rank] for rank in (0, 2, 3)]):
            self.assertEqual((one["stats"]["members"], one["stats"]["deaths"]), (3, 1))
        processes[1].process.send_signal(signal.SIGCONT)
        self.assertEqual(processes[1].wait(), 138, processes[1].text())
        self.assertIn("the others have gone on without this worker, number 1", processes[1].text())

    def test_a_process_that_comes_later_is_refused(self):
        body = """
    optimizer = syncline.torch.Gossip(model, inner, "ring")
    print("is made", flush=True)
    sys.stdin.read() if rank else time.sleep(30)
    """
        processes = self.start(body, ranks=2)
        processes[0].await_line("is made")
        late = support.start_program(self, PROGRAM.format(body=body.strip()), processes[1].environment)
        self.assertEqual(late.wait(), 7, late.text())
        self.assertIn("cannot join a running gossip", late.text())


LEAVE = """
    model = torch.nn.Linear(6, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(optimizer):
        torch.manual_seed(100 + rank)
        for number in range(40):
            if number == 10 and {fails}:
                print("fails", flush=True)
                raise ArithmeticError("of the program")
            if number == 10 and {is_late}:
                time.sleep({late})
            elif number == 10 and rank == {leaves} and {late}:
                print("fails", flush=True)
                threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
            inputs = torch.randn(16, 6)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), inputs[:, :3]).backward()
            optimizer.step()
            if number == 10:
                {at_ten}
        optimizer.average()
        say(mean=flat(), stats=optimizer.stats._asdict())

    {how}
"""
INSIDE = """
    try:
        with syncline.torch.Gossip(model, inner, {arguments}timeout=datetime.timedelta(seconds=60)) as optimizer:
            train(optimizer)
    except (ArithmeticError, KeyboardInterrupt):
        print("stays", flush=True)
        time.sleep(120)
"""
UNCAUGHT = """
    optimizer = syncline.torch.Gossip(model, inner, {arguments}timeout=datetime.timedelta(seconds=60))
    train(optimizer)
    optimizer.close()
"""


class Leaving(Ranks):
    """One that an exception ends is as dead to the others, though its process may live on."""

    def leave(self, how, leaves, arguments="", late=0, is_late="rank != leaves", at_ten="pass"):
        """`late`: so many seconds do the others take for a step, in whose exchange Ctrl-C comes to this one."""
        fails, is_late = (f"rank == {leaves}", "False") if not late else ("False", is_late.replace("leaves", str(leaves)))
        processes = self.start(textwrap.dedent(LEAVE).format(fails=fails, is_late=is_late, late=late, leaves=leaves, at_ten=at_ten, how=textwrap.dedent(how).format(arguments=arguments).strip()).replace("\n", "\n    "))
        processes[leaves].await_line("fails")
        began = time.monotonic()
        said = self.ended([process for rank, process in enumerate(processes) if rank != leaves])
        self.assertLess(time.monotonic() - began, 30)  # of a timeout of 60 s, and 120 s that it stays
        for one in said:
            torch.testing.assert_close(one["mean"], said[0]["mean"], rtol=0, atol=0)
            self.assertEqual((one["stats"]["members"], one["stats"]["deaths"], one["stats"]["rounds"]), (3, 1, 40))
        return processes[leaves]

    def test_by_an_exception_whose_process_stays_the_others_go_on(self):
        for leaves in (2, 0):
            for arguments in ("", 'push="int8", overlap=True, '):
                with self.subTest(leaves=leaves, arguments=arguments):
                    self.assertIn("stays", self.leave(INSIDE, leaves, arguments).text())

    def test_by_ctrl_c_in_an_exchange_the_others_go_on(self):
        for leaves in (1, 0):
            with self.subTest(leaves=leaves):
                self.assertIn("stays", self.leave(INSIDE, leaves, late=4).text())

    def test_by_ctrl_c_beside_an_exchange_for_which_it_cannot_wait_the_others_go_on(self):
        self.assertIn("stays", self.leave(INSIDE, 1, "overlap=True, ", late=12).text())

    def test_by_ctrl_c_in_an_operation_that_others_have_begun_they_go_on(self):
        for leaves, at_ten in ((1, "optimizer.measure()"), (0, "optimizer.measure()"), (1, "optimizer.average()")):
            with self.subTest(leaves=leaves, at_ten=at_ten):
                self.assertIn("stays", self.leave(INSIDE, leaves, late=4, is_late="rank == 3", at_ten=at_ten).text())

    def test_by_an_exception_that_ends_the_program_the_others_go_on(self):
        for leaves in (1, 0):
            with self.subTest(leaves=leaves):
                self.assertEqual(self.leave(UNCAUGHT, leaves).wait(), 1)


class Launched(unittest.TestCase):
    """By `syncline run`."""

    body = """
    optimizer = syncline.torch.Gossip(model, inner, push="bf16")
    for _ in range(5):
        step()
    optimizer.average()
    optimizer.close()
    """

    def run_program(self, *flags, ranks=2):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = Path(folder.name) / "train.py"
        program.write_text(textwrap.dedent(PROGRAM.format(body=self.body.strip())))
        process = support.Process([os.environ["SYNCLINE_BINARY"], "run", "--standalone", *flags, "--nproc-per-node", str(ranks), "--", sys.executable, program])
        self.addCleanup(process.kill)
        return process.wait(), process.text()

    def test_without_servers_it_runs_and_says_a_summary(self):
        code, said = self.run_program("--servers", "0")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"worker 0: 5 rounds of gossip \(exponential, bf16\) in .* s; sent .* \(1.9\dx less than FP32\)")

    def test_goes_on_without_the_first_worker(self):
        self.body = """
    optimizer = syncline.torch.Gossip(model, inner, "ring")
    for number in range(40):
        step()
        if number == 10 and rank == 0:
            os.kill(os.getpid(), 9)
    optimizer.average()
    print("members", optimizer.stats.members, optimizer.stats.rounds, flush=True)
    optimizer.close()
    """
        code, said = self.run_program("--servers", "0", "--min-workers", "2", "--max-restarts", "0", "--tee", "3", ranks=3)
        self.assertEqual(code, 0, said)
        self.assertEqual(said.count("members 2 40"), 2, said)

    def test_with_servers_it_is_refused(self):
        code, said = self.run_program("--servers", "1", "--max-restarts", "0")
        self.assertNotEqual(code, 0)
        self.assertRegex(said, "has started 1 server, but Gossip needs no servers.*--servers 0.*LocalSGD")


class Misuse(unittest.TestCase):
    def setUp(self):
        self.model = torch.nn.Linear(3, 2)
        self.inner = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def assert_refused(self, kind, words, *given, **options):
        with self.assertRaisesRegex(kind, words):
            Gossip(self.model, self.inner, *given, **options)

    def test_settings_that_cannot_be_are_refused_with_a_reason(self):
        bad = syncline.InvalidArgument
        self.assert_refused(bad, "no gossip graph is called 'star'; there are ring, exponential and random", "star")
        for every in (0, -1, 1.5, True):
            self.assert_refused(bad, "every=.*1 or more", every=every)
        for gamma in (0, 1.1, -1, float("nan"), "half"):
            self.assert_refused(bad, "gamma=.*above 0 and at most 1", gamma=gamma)
        for codec in ("auto", "powersgd", "onebitt"):
            self.assert_refused(bad, f"codec '{codec}'|{codec}", push=codec)
        self.assert_refused(bad, "overlap=3", overlap=3)
        self.assert_refused(bad, "measure_every=-1", measure_every=-1)
        with self.assertRaisesRegex(bad, "the optimizer is"):
            Gossip(self.model, None)

    def test_servers_of_the_run_are_refused(self):
        for environment, words in (({"SYNCLINE_RUN_SERVERS": "2"}, "has started 2 servers.*--servers 0"),
                                   ({"SYNCLINE_RUN_SERVERS": "elsewhere", "SYNCLINE_COORDINATOR": "host:7070"}, "host:7070, has its own servers"),
                                   ({"SYNCLINE_COORDINATOR": "host:7070"}, "host:7070, has its own servers")):
            with unittest.mock.patch.dict(os.environ, environment):
                self.assert_refused(syncline.FailedPrecondition, words)

    def test_ranks_without_a_place_to_meet_are_told_what_to_set(self):
        with unittest.mock.patch.dict(os.environ, {"RANK": "0", "WORLD_SIZE": "2"}):
            os.environ.pop("MASTER_ADDR", None)
            self.assert_refused(syncline.FailedPrecondition, "MASTER_ADDR and MASTER_PORT")

    def test_one_worker_alone_trains_as_the_inner_optimizer_does(self):
        with Gossip(self.model, self.inner, overlap=True, measure_every=1) as optimizer:
            for _ in range(3):
                optimizer.zero_grad()
                self.model(torch.ones(1, 3)).sum().backward()
                optimizer.step()
            before = [parameter.detach().clone() for parameter in self.model.parameters()]
            optimizer.average()
            self.assertEqual(optimizer.consensus_distance(), 0)
            self.assertEqual((optimizer.stats.rounds, optimizer.stats.exchanges, optimizer.stats.bytes_sent), (3, 0, 0))
        for one, other in zip(before, self.model.parameters()):
            torch.testing.assert_close(one, other.detach(), rtol=0, atol=0)
        with self.assertRaisesRegex(syncline.FailedPrecondition, "closed"):
            optimizer.average()
        with self.assertRaisesRegex(syncline.FailedPrecondition, "closed"):
            optimizer.step()
        for one, other in zip(before, self.model.parameters()):
            torch.testing.assert_close(one, other.detach(), rtol=0, atol=0)

    def test_complex_parameters_are_refused(self):
        self.model.phase = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
        self.assert_refused(syncline.InvalidArgument, "complex")

    def test_ctrl_c_ends_what_the_library_is_at_before_anything_else_begins(self):
        with Gossip(self.model, self.inner) as optimizer:
            ended, interrupted = threading.Event(), iter([True])

            def is_over(call, timeout):
                if timeout and next(interrupted, False):
                    raise KeyboardInterrupt
                return call._ended.wait(timeout)

            with unittest.mock.patch.object(_gossip._Call, "is_over", is_over), unittest.mock.patch.object(
                    type(optimizer._present), "abort", lambda group: ended.set()):
                with self.assertRaises(KeyboardInterrupt):
                    optimizer._run(ended.wait)
            self.assertTrue(ended.is_set())
            self.assertNotIn("syncline-gossip", [thread.name for thread in threading.enumerate()])

    def test_an_error_keeps_nothing_of_its_call(self):
        def fail():
            raise syncline.Unavailable("gone")

        call = _gossip._Call(fail, [])
        with self.assertRaises(syncline.Unavailable):
            call.result()
        self.assertIsNone(call._error)
