"""Ranks of a host that send their gradients as one: what becomes of those that die or hang, and what is refused."""
import os
import signal
import unittest
from unittest import mock

import host_support
import syncline.torch
import torch
from host_support import COUNT


class WhenRanksDie(host_support.Ranks):
    def assert_counted(self, out, steps):
        for name, weight in torch.load(out).items():
            self.assertTrue(torch.equal(weight.double().mean().round(), torch.tensor(-float(steps), dtype=torch.double)), name)

    def test_a_follower_that_is_killed_is_not_waited_for_and_comes_back(self):
        flag = self.folder / "go on"
        waits = f'exec("while step == 100 and not os.path.exists({str(flag)!r}): time.sleep(0.01)"); '
        source = {**COUNT, "each_step": waits + COUNT["each_step"], "steps": 140}
        (leader, out), (other, _) = (self.start(rank, 2, 2, **source) for rank in range(2))
        other.await_line("step 20")
        other.kill()
        leader.await_line("rank 1 of this host is gone")
        leader.await_line("step 99")
        again, again_out = self.start(1, 2, 2, **source)
        again.await_line("first step 100 of rank 1 of 2")
        flag.touch()
        for program in (leader, again):
            self.assertEqual(program.wait(), 0, program.text())
        self.assert_equal(torch.load(out), torch.load(again_out))
        self.assert_counted(out, 140)

    def test_a_follower_that_is_stopped_is_dropped_and_hears_of_it(self):
        (leader, out), (other, _) = (self.start(rank, 2, 2, steps=100, **COUNT) for rank in range(2))
        other.await_line("step 20")
        os.kill(other.process.pid, signal.SIGSTOP)
        self.assertEqual(leader.wait(), 0, leader.text())
        self.assertIn("rank 1 was dropped by the others of its host", leader.text())
        os.kill(other.process.pid, signal.SIGCONT)
        self.assertEqual(other.wait(), 138, other.text())
        self.assertRegex(other.text(), "Dropped: rank 1 was dropped by the others of its host, which had waited 16 s")
        self.assert_counted(out, 100)

    def test_without_its_leader_a_host_ends_and_names_it(self):
        leader, *others = (self.start(rank, 3, 3, steps=10_000, **COUNT)[0] for rank in range(3))
        others[0].await_line("step 20")
        leader.kill()
        for other in others:
            self.assertEqual(other.wait(), 138, other.text())
            self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, is gone")

    def test_with_a_leader_that_is_stopped_a_host_ends(self):
        leader, other = (self.start(rank, 2, 2, steps=10_000, **COUNT)[0] for rank in range(2))
        other.await_line("step 20")
        os.kill(leader.process.pid, signal.SIGSTOP)
        self.assertEqual(other.wait(), 138, other.text())
        self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, has said nothing for")

    def test_under_elastic_run_others_wait_for_a_leader_that_comes_back(self):
        source = """
            import os, time, torch, syncline.torch
            torch.set_num_threads(1)
            model = torch.nn.Linear(4, 2)
            optimizer = syncline.torch.Optimizer(model, "sgd", lr=0.1)

            @syncline.torch.elastic.run
            def train(state):
                while state.step < 60:
                    model(torch.ones(1, 4)).sum().backward()
                    optimizer.step()
                    print(f"step {state.step}", flush=True)
                    time.sleep(0.01)

            train(syncline.torch.State(model, optimizer))
        """
        places = [{"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2", "SYNCLINE_LOCAL_AGGREGATION": "1", **self.environment(rank, 2)}
                  for rank in range(2)]
        leader, other = (self.program(source, place) for place in places)
        other.await_line("step 20")
        leader.kill()
        other.await_line("joining the job again: rank 0, which sends for all ranks of this host, is gone")
        for program in (self.program(source, places[0]), other):
            self.assertEqual(program.wait(), 0, program.text())
            self.assertIn("step 60", program.text())

    def test_other_hosts_go_on_without_one_whose_leader_was_killed(self):
        started = [self.start(rank, 4, 2, steps=400, **COUNT) for rank in range(4)]
        started[2][0].await_line("step 20")
        started[2][0].kill()
        self.assertEqual(started[3][0].wait(), 138, started[3][0].text())
        for program, out in started[:2]:
            self.assertEqual(program.wait(), 0, program.text())
            self.assert_counted(out, 400)


class WhatIsRefused(host_support.Ranks):
    def test_ranks_that_differ(self):
        for what, options in (("momentum", "momentum=(0.5, 0.9)[rank]"), ("tensors", "params=list(model.parts)[rank:]")):
            with self.subTest(differ=what):
                leader, other = (self.start(rank, 2, 2, job=what, name="sgd", options=options)[0] for rank in range(2))
                self.assertEqual(other.wait(), 7, other.text())
                self.assertRegex(other.text(), "JobRefused: rank 1 declares other tensors, or has other options, than rank 0")
                leader.kill()

    def test_a_second_process_of_a_rank(self):
        leader = self.start(0, 2, 2, steps=10_000, **COUNT)[0]
        self.start(1, 2, 2, steps=10_000, **COUNT)
        leader.await_line("step 1")
        second = self.start(1, 2, 2, **COUNT)[0]
        self.assertEqual(second.wait(), 7, second.text())
        self.assertRegex(second.text(), r"JobRefused: process \d+ says that it is rank 1, which another one of this host is")

    def test_a_rank_that_does_not_come(self):
        leader = self.start(0, 2, 2, options='session={"start_timeout": "2s"}')[0]
        self.assertEqual(leader.wait(), 5, leader.text())
        self.assertRegex(leader.text(), "DeadlineExceeded: of the 2 ranks of this host rank 1 did not come within 2 s")
        other = self.start(1, 2, 2, options='session={"start_timeout": "2s"}')[0]
        self.assertEqual(other.wait(), 5, other.text())
        self.assertRegex(other.text(), "DeadlineExceeded: rank 0, which sends for all ranks of this host, was not met in time")

    def test_what_does_not_go_together(self):
        sampler = syncline.torch.elastic.ExactlyOnceSampler(8, 2)
        for options, environment, why in (
                ({"local_aggregation": 2}, {}, "local_aggregation is 2, but must be True or False"),
                ({}, {"SYNCLINE_LOCAL_AGGREGATION": "yes"}, "SYNCLINE_LOCAL_AGGREGATION is 'yes', but must be 1 or 0"),
                ({}, {"LOCAL_RANK": ""}, "LOCAL_RANK and LOCAL_WORLD_SIZE do not say which"),
                ({}, {"LOCAL_WORLD_SIZE": "3"}, "rank 1 of 2 is number 1 of 3 on its host"),
                ({"session": {"accumulate_steps": 2}}, {}, "accumulate in no_sync\\(\\)"),
                ({"mode": "ssp:2"}, {}, "mode is ssp.*, and local aggregation is for bsp"),
                ({"sampler": sampler}, {}, "take an ElasticDistributedSampler")):
            place = {**self.environment(1, 2), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SYNCLINE_LOCAL_AGGREGATION": "1", **environment}
            with self.subTest(why=why), mock.patch.dict(os.environ, place), self.assertRaisesRegex(syncline.InvalidArgument, why):
                syncline.torch.Optimizer(torch.nn.Linear(1, 1), "sgd", lr=0.1, **options)

    def test_others_than_the_optimizer_say_that_they_do_not_heed_it(self):
        session = self.options(rank=0, world_size=1)
        with mock.patch.dict(os.environ, {"SYNCLINE_LOCAL_AGGREGATION": "1"}), self.assertLogs("syncline", "WARNING") as said:
            model = torch.nn.Linear(1, 1)
            syncline.torch.wrap(torch.optim.SGD(model.parameters(), lr=0.1), model, session=session).close()
        self.assertRegex(said.output[0], "SYNCLINE_LOCAL_AGGREGATION=1 has no effect on wrap and the DDP hook: it holds for syncline.torch.Optimizer")


if __name__ == "__main__":
    unittest.main()
