"""Tests of local aggregation with ranks that die or hang, and of what it refuses."""
import os
import queue
import signal
import socket
import threading
import unittest
from unittest import mock

import host_support
import numpy
import support
import syncline.torch
import torch
from host_support import COUNT
from syncline.torch import HookState
from syncline.torch._host import wire
from syncline.torch._host.hub import Hub
from syncline.torch._host.listener import Listener
from syncline.torch._host.place import HostPlace
from syncline.torch._host.session import HostSession, join


class WhenRanksDie(host_support.Ranks):
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
        self.assertIn("rank 1 was dropped by the other ranks of its host", leader.text())
        os.kill(other.process.pid, signal.SIGCONT)
        self.assertEqual(other.wait(), 138, other.text())
        self.assertRegex(other.text(), "Dropped: rank 1 was dropped by the other ranks of its host, which had waited 16 s")
        self.assert_counted(out, 100)

    def test_without_its_leader_a_host_ends_and_names_it(self):
        leader, *others = (self.start(rank, 3, 3, steps=10_000, **COUNT)[0] for rank in range(3))
        others[0].await_line("step 20")
        leader.kill()
        for other in others:
            self.assertEqual(other.wait(), 138, other.text())
            self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, is gone")

    def test_without_its_leader_a_rank_that_was_not_let_in_ends(self):
        leader, other = (self.start(rank, 3, 3, **COUNT)[0] for rank in range(2))
        leader.await_line("waiting for rank 2 of this host")
        leader.kill()
        self.assertEqual(other.wait(), 138, other.text())
        self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, ended before it let this rank in")

    def test_with_a_leader_that_is_stopped_a_host_ends(self):
        leader, other = (self.start(rank, 2, 2, steps=10_000, **COUNT)[0] for rank in range(2))
        other.await_line("step 20")
        os.kill(leader.process.pid, signal.SIGSTOP)
        self.assertEqual(other.wait(), 138, other.text())
        self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, has sent nothing for")

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


class WhenRanksJoinAgain(host_support.Ranks):
    def test_in_a_job_that_has_run_load_state_dict_keeps_the_jobs_state(self):
        flag, state = self.folder / "go on", self.folder / "state.pt"
        waits = (f"rank == 0 and step == 3 and torch.save(optimizer.state_dict(), {str(state)!r}); "
                 f'exec("while rank < 2 and step == 3 and not os.path.exists({str(flag)!r}): time.sleep(0.01)"); ')
        loads = (f"rank > 1 and step == 3 and (torch.nn.init.zeros_(model.parts[1]), time.sleep(0.3 * (3 - rank)), "
                 f"optimizer.load_state_dict(torch.load({str(state)!r})), print('loaded', flush=True)); ")
        source = {"each_step": waits + loads + "model(step).backward()"}
        started = [self.start(rank, 4, 2, env={"WORLD_SIZE": "2"}, **source) for rank in range(2)]
        for program, _ in started:
            program.await_line("step 2")
        started += [self.start(rank, 4, 2, env={"WORLD_SIZE": "2"}, **source) for rank in (2, 3)]
        for program, _ in started[2:]:
            program.await_line("first step 3 of")
            program.await_line("loaded")
        flag.touch()
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        for _, out in started[1:]:
            self.assert_equal(torch.load(started[0][1]), torch.load(out))

    def test_one_by_one_in_any_order_the_others_of_their_host_stay(self):
        for first in (1, 0):
            with self.subTest(first=first):
                joins = ("exec(\"def wait(one):\\n while not os.path.exists(folder + one): time.sleep(0.01)\"), "
                         f"rank == {first} or wait('{first}'), optimizer.rejoin(), open(folder + str(rank), 'w').close(), wait(str(1 - rank)), "
                         "print('again at step', optimizer.steps, flush=True)")
                source = {**COUNT, "each_step": f"step == 5 and ({joins}); " + COUNT["each_step"],
                          "options": f"samples=(globals().update(folder={str(self.folder / f'{first} is first, ')!r}), 1)[1]"}
                started = [self.start(rank, 2, 2, job=f"{first} first", **source) for rank in range(2)]
                for program, out in started:
                    self.assertEqual(program.wait(), 0, program.text())
                    self.assertIn("again at step 5", program.text())
                    self.assertIn("steps 8 members 1;", program.text())  # of both lives
                    self.assert_counted(out, 8)

    def test_another_thread_that_asks_meanwhile_hears_of_it_and_asks_again(self):
        flag = self.folder / "again"
        joins = f"""if step == 5 and rank == 1:
    is_over, known = threading.Event(), []
    def ask():
        while not is_over.is_set():
            try: known.append(optimizer.session.stats.members)
            except syncline.FailedPrecondition as error: known.append(str(error)[:40])
    asks = threading.Thread(target=ask)
    asks.start()
    for _ in range(20):
        optimizer.rejoin()
    asked = len(known)
    while 1 not in known[asked:]: time.sleep(0.01)
    is_over.set()
    asks.join()
    open({str(flag)!r}, "w").close()
while step == 5 and not os.path.exists({str(flag)!r}): time.sleep(0.01)"""
        source = {**COUNT, "each_step": f"import threading; exec({joins!r}); " + COUNT["each_step"]}
        started = [self.start(rank, 2, 2, **source) for rank in range(2)]
        for program, out in started:
            self.assertEqual(program.wait(), 0, program.text())
            self.assert_counted(out, 8)

    def test_in_the_middle_of_a_step_it_ends_with_the_gradients_that_were_given(self):
        # Each rank gives its gradient of the first part only, and leaves when both have done so.
        gives = ("exec(\"optimizer.synchronize()\\nmodel.parts[0].sum().backward()\\n"
                 "(folder / str(rank)).touch()\\nwhile not (folder / str(1 - rank)).exists(): time.sleep(0.01)\"), optimizer.rejoin(), again.append(1)")
        source = {**COUNT, "each_step": f"step == 5 and not again and ({gives}); " + COUNT["each_step"],
                  "options": f"samples=(globals().update(again=[], folder=__import__('pathlib').Path({str(self.folder)!r})), 1)[1]"}
        started = [self.start(rank, 2, 2, **source) for rank in range(2)]
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        self.assert_equal(torch.load(started[0][1]), torch.load(started[1][1]))

    def test_one_that_joins_while_the_leader_leaves_waits_for_its_next_session(self):
        # The follower continues when no new rank can reach the old session any more, which still answers the follower.
        waits = "exec(\"for _ in range(3000):\\n try: wire.connect(optimizer.session._address).close(); time.sleep(0.01)\\n except OSError: break\")"
        each_step = (f"from syncline.torch._host import wire; "
                     f"step == 5 and again and (again.clear(), rank and ({waits}, optimizer.session.stats), "
                     "rank or optimizer.session.close(), optimizer.rejoin()); "
                     "model(step).backward()")
        started = [self.start(rank, 2, 2, options='samples=(globals().update(again=[1]), 1)[1]', each_step=each_step) for rank in range(2)]
        for program, _ in started:
            self.assertEqual(program.wait(), 0, program.text())
        self.assert_equal(torch.load(started[0][1]), torch.load(started[1][1]))


class WhenTheLeaderLeaves(host_support.Ranks):
    def test_after_an_error_the_others_hear_of_it(self):
        each_step = 'exec("if rank == 0 and step == 20:\\n with optimizer: raise OSError(\'the disk is full\')"); ' + COUNT["each_step"]
        for optimizer in (host_support.OPTIMIZER, "syncline.torch.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)"):
            with self.subTest(optimizer=optimizer):
                source = {**COUNT, "optimizer": optimizer, "each_step": each_step, "steps": 10_000}
                leader, other = (self.start(rank, 2, 2, job=optimizer[15:19], **source)[0] for rank in range(2))
                self.assertEqual(leader.wait(), 1, leader.text())
                self.assertEqual(other.wait(), 138, other.text())
                self.assertRegex(other.text(), "Dropped: rank 0, which sends for all ranks of this host, has left the job after OSError: the disk is full")

    def test_after_an_error_the_hook_of_ddp_waits_for_no_mean(self):
        is_left = threading.Event()
        session = mock.Mock(spec=HostSession)
        session.close_after.side_effect = lambda error: is_left.set()
        state = HookState.__new__(HookState)
        state._averager, state._buckets = mock.Mock(session=session), queue.SimpleQueue()
        state._taker = threading.Thread(target=lambda: is_left.wait(support.PATIENCE), daemon=True)  # as one that waits for means
        state._taker.start()
        error = OSError("the disk is full")
        with self.assertRaises(OSError), state:
            raise error
        session.close_after.assert_called_once_with(error)
        self.assertTrue(is_left.is_set())

    def test_others_are_told_that_it_left_and_not_of_later_errors(self):
        hub = Hub.__new__(Hub)
        hub._of, hub._handed, hub._is_closing, hub._is_over, hub._left_after = mock.Mock(), queue.SimpleQueue(), threading.Event(), False, None
        hub.error = None
        connection = mock.Mock()
        hub._connections, hub._ranks = {1: connection}, {1: connection}
        hub._is_closing.set()
        hub._end(syncline.SessionClosed("the session was closed"))
        self.assertIsInstance(wire.error_in(wire.parse(connection.link.send.call_args.args[0])[1]), syncline.Dropped)


class WhenProgramsAreInterrupted(unittest.TestCase):
    def session(self, **attributes):
        session = HostSession.__new__(HostSession)
        parts = {"_lock": threading.RLock(), "_closed": "", "_failure": None, "_link": None, "_inner": mock.Mock(), "_asked": None, "_hub": mock.Mock(), "_calls": mock.Mock(),
                 "_weights_region": object(), **attributes}
        for name, value in parts.items():
            setattr(session, name, value)
        self.addCleanup(setattr, session, "_closed", "over")
        return session

    def test_during_close_the_session_is_closed_nevertheless(self):
        session = self.session()
        session._hub.close.side_effect = KeyboardInterrupt
        with self.assertRaises(KeyboardInterrupt):
            session.close()
        session._inner.close.assert_called_once_with()

    def test_while_a_hub_waits_for_others_it_leaves_nevertheless(self):
        hub = Hub.__new__(Hub)
        with mock.patch.object(hub, "_await_leaving", side_effect=KeyboardInterrupt), mock.patch.object(hub, "_leave") as left:
            with self.assertRaises(KeyboardInterrupt):
                hub.close(is_clean=True)
        left.assert_called_once_with()

    def test_and_close_the_session_a_read_raises_session_closed(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.addCleanup(theirs.close)
        link = wire.Link(ours)
        link.close()
        with self.assertRaises(syncline.SessionClosed):
            self.session(_link=link, _closed="the session was closed")._read()


class WhenProgramsFork(host_support.Ranks):
    def test_while_another_thread_waits_children_hear_that_they_have_no_session(self):
        source = """
            import os, signal, threading, time, torch, syncline, syncline.torch
            optimizer = syncline.torch.Optimizer(torch.nn.Linear(2, 2), "sgd", lr=0.1)
            session = optimizer.session
            if optimizer.rank == 0:
                is_held, is_over = threading.Event(), threading.Event()

                def hold():
                    with session._lock:
                        is_held.set()
                        is_over.wait()

                threading.Thread(target=hold, daemon=True).start()
                is_held.wait()
                child = os.fork()
                if child == 0:
                    signal.alarm(60)
                    for call in (session.barrier, session.wait_all, lambda: session.stats, lambda: session.skip(t for t, _ in session._declared)):
                        try:
                            call()
                        except syncline.SessionClosed:
                            continue
                        os._exit(1)
                    session.close()
                    os._exit(0)
                print("child", os.waitpid(child, 0)[1], flush=True)
                is_over.set()
            session.barrier()
            print("done", flush=True)
        """
        place = {"LOCAL_WORLD_SIZE": "2", "SYNCLINE_LOCAL_AGGREGATION": "1"}
        started = [self.program(source, {**self.environment(rank, 2), **place, "LOCAL_RANK": str(rank)}) for rank in range(2)]
        for program in started:
            self.assertEqual(program.wait(), 0, program.text())
        self.assertIn("child 0", started[0].text())


class WhatIsRefused(host_support.Ranks):
    def test_ranks_that_differ(self):
        for what, options in (("momentum", "momentum=(0.5, 0.9)[rank]"), ("tensors", "params=list(model.parts)[rank:]")):
            with self.subTest(differ=what):
                leader, other = (self.start(rank, 2, 2, job=what, name="sgd", options=options)[0] for rank in range(2))
                self.assertEqual(other.wait(), 7, other.text())
                self.assertRegex(other.text(), "JobRefused: rank 1 declares different tensors or options from rank 0")
                leader.kill()

    def test_a_second_process_of_a_rank(self):
        leader = self.start(0, 2, 2, steps=10_000, **COUNT)[0]
        self.start(1, 2, 2, steps=10_000, **COUNT)
        leader.await_line("step 1")
        second = self.start(1, 2, 2, **COUNT)[0]
        self.assertEqual(second.wait(), 7, second.text())
        self.assertRegex(second.text(), r"JobRefused: process \d+ claims to be rank 1, which another process of this host is")

    def test_a_rank_that_does_not_come(self):
        leader = self.start(0, 2, 2, options='session={"start_timeout": "2s"}')[0]
        self.assertEqual(leader.wait(), 5, leader.text())
        self.assertRegex(leader.text(), "DeadlineExceeded: of the 2 ranks of this host rank 1 did not arrive within 2 s")
        other = self.start(1, 2, 2, options='session={"start_timeout": "2s"}')[0]
        self.assertEqual(other.wait(), 5, other.text())
        self.assertRegex(other.text(), "DeadlineExceeded: rank 0, which sends for all ranks of this host, could not be reached in time")

    def test_what_does_not_go_together(self):
        sampler = syncline.torch.elastic.ExactlyOnceSampler(8, 2)
        for options, environment, why in (
                ({"local_aggregation": 2}, {}, "local_aggregation is 2, but must be True or False"),
                ({}, {"SYNCLINE_LOCAL_AGGREGATION": "yes"}, "SYNCLINE_LOCAL_AGGREGATION is 'yes', but must be 1 or 0"),
                ({}, {"LOCAL_RANK": ""}, "LOCAL_RANK and LOCAL_WORLD_SIZE do not say which"),
                ({}, {"LOCAL_RANK": "2"}, "rank 1 of 2 cannot be number 2 of 2 on its host"),
                ({}, {"LOCAL_WORLD_SIZE": "3"}, "rank 1 of 2 is number 1 of 3 on its host, so other hosts have a different number of ranks"),
                ({}, {"WORLD_SIZE": "5"}, "other hosts have a different number of ranks, but GROUP_RANK and GROUP_WORLD_SIZE do not say"),
                ({}, {"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, "GROUP_RANK and GROUP_WORLD_SIZE say that this is host 1 of 2"),
                ({}, {"RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2"},
                 "GROUP_RANK and GROUP_WORLD_SIZE say that this is host 0 of 2, which contradicts its 2 ranks from rank 2 on, of 4"),
                ({"session": {"accumulate_steps": 2}}, {}, "accumulate in no_sync\\(\\)"),
                ({"mode": "ssp:2"}, {}, "mode is ssp.*, but local aggregation needs bsp"),
                ({"mode": "bsp:quorum=1"}, {}, "mode is bsp:quorum=1.*, but local aggregation needs bsp without a quorum"),
                ({"sampler": sampler}, {}, "pass local_aggregation=False, or use an ElasticDistributedSampler")):
            place = {**self.environment(1, 2), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "SYNCLINE_LOCAL_AGGREGATION": "1", **environment}
            with self.subTest(why=why), mock.patch.dict(os.environ, place), self.assertRaisesRegex(syncline.InvalidArgument, why):
                syncline.torch.Optimizer(torch.nn.Linear(1, 1), "sgd", lr=0.1, **options)

    def test_what_sends_nothing_to_servers_says_that_it_does_not_heed_it(self):
        store = torch.distributed.FileStore(str(self.folder / "store"), 1)
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)
        with mock.patch.dict(os.environ, {"SYNCLINE_LOCAL_AGGREGATION": "1"}), self.assertLogs("syncline", "WARNING") as said:
            syncline.torch.CompressedState("int8").close()
        self.assertRegex(said.output[0], "SYNCLINE_LOCAL_AGGREGATION=1 has no effect on compressed_hook, whose ranks exchange gradients among themselves")

    def test_what_no_session_takes(self):
        read_only = numpy.zeros(4, numpy.float32)
        read_only.flags.writeable = False
        wrong = ({"name": "a"}, {"name": ""}, {"name": "x" * 2000}, {"weights": torch.zeros(2, 2).t()[:1]}, {"weights": torch.zeros(2, dtype=torch.int64)},
                 {"weights": read_only}, {"weights": [1.0]}, {"learning_rate_scale": 0}, {"weights": torch.zeros(2).to_sparse()})
        place = {**self.environment(1, 2), "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
        with mock.patch.dict(os.environ, place), syncline.Session(job="alone", rank=0, world_size=1) as alone:
            settings = {"optimizer": "sgd:lr=1"}
            one_of_two = join(settings, aggregates=True)
            self.addCleanup(one_of_two.close)
            self.assertIsInstance(one_of_two, HostSession)
            for session in (alone, one_of_two):
                session.declare("a", torch.zeros(2))
            for tensor in wrong:
                tensor = {"name": "b", "weights": torch.zeros(2), **tensor}
                with self.subTest(tensor=tensor):
                    said = []
                    for session in (alone, one_of_two):
                        with self.assertRaises(syncline.Error) as refused:
                            session.declare(**tensor)
                        said.append((type(refused.exception), str(refused.exception)))
                    self.assertEqual(*said)
            with self.assertRaisesRegex(syncline.InvalidArgument, "optimizer state"):
                one_of_two.set_state(one_of_two.declare("c", torch.zeros(2)), 1, [torch.zeros(3)])

    def test_hosts_that_count_their_ranks_otherwise(self):
        first = self.start(0, 2, 1, job="counts")[0]
        first.await_line("waiting for worker 2 of 2")
        others = [self.start(rank, 4, 2, env={"SYNCLINE_JOB": f"{self.id()}counts1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"})[0] for rank in (2, 3)]
        for other in others:
            self.assertEqual(other.wait(), 7, other.text())
            self.assertRegex(other.text(), "JobRefused: job '.*' has workers that each push for themselves, not hosts that each push for 4 ranks: 'syncline run' needs")
        first.kill()


class LeaderThatIsGone(unittest.TestCase):
    def test_a_rank_that_sends_to_it_gets_dropped_and_no_broken_pipe(self):
        class Broken:
            def send(self, *_):
                raise BrokenPipeError(32, "Broken pipe")

            def has_news(self, _):
                return True

            def receive(self):
                raise ConnectionResetError(104, "Connection reset by peer")

        listener = Listener.__new__(Listener)
        listener._listen(HostPlace(1, 2, 0, 1, 0, 2), patience=1.0)
        listener._link, listener._weights_region = Broken(), object()
        with self.assertRaisesRegex(syncline.Dropped, "rank 0, which sends for all ranks of this host, is gone") as raised:
            listener._send(b"a gradient")
        self.assertIsNone(raised.exception.__context__)
        listener._link = None


if __name__ == "__main__":
    unittest.main()
