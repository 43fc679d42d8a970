#!/usr/bin/env python3
"""Real coordinator, server and worker processes on loopback, and their failures.

    python3 tests/integration/integration_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.request

import cluster
from cluster import ClusterTest, FAILURE_TIMEOUT, LeashedTest, PATIENCE, Process


class LentGradients(LeashedTest):
    def test_gradients_that_servers_read_in_place_come_to_the_same(self):
        # There are several tiles, and the bytes of the last one are not a multiple of 64.
        flags = ("--steps", "30", "--codec", "fp32", "--elements", "300001")
        ends = []
        for job, more in (("copied", ()), ("lent", ("--lend",))):
            ends.append(self.assert_same_end([self.worker(rank, 2, *flags, *more, job=job) for rank in range(2)]))
        self.assertEqual(ends[0], ends[1])

    def test_a_killed_worker_whose_gradients_are_read_in_place_harms_nobody(self):
        self.allow(40)  # the others wait there for the restarted worker
        flags = ("--codec", "fp32", "--lend", "--steps", "60", "--leash", self.leash)
        workers = [self.worker(rank, 3, *flags) for rank in range(3)]
        workers[2].await_line(r"^step 10$")
        workers[2].kill()
        again = self.worker(2, 3, *flags)
        again.await_line(r"joined step=")
        self.allow(60)
        self.assert_same_end([*workers[:2], again])


class Training(ClusterTest):
    def test_three_workers_end_with_the_same_weights(self):
        workers = [self.worker(rank, 3, "--steps", "50") for rank in range(3)]
        first = self.assert_same_end(workers)
        again = [self.worker(rank, 3, "--steps", "50", job="again") for rank in range(3)]
        self.assertEqual(first, self.assert_same_end(again), "the same inputs gave other bits")

    def test_random_roundings_repeat_when_a_job_runs_again(self):
        flags = ("--steps", "20", "--codec", "int8-stochastic:vectors=1", "--publish-codec", "bf16-stochastic")
        runs = []
        for job in ("test", "test", "other"):
            runs.append(self.assert_same_end([self.worker(rank, 2, *flags, job=job) for rank in range(2)]))
        self.assertEqual(runs[0], runs[1], "the same job rounded differently the second time")
        self.assertNotEqual(runs[0], runs[2], "nothing was rounded at random")

    def test_clipping_by_global_norm_decides_whole_steps(self):
        sgd = ("--steps", "10", "--optimizer", "sgd")  # AdamW hardly notices the gradient's scale
        plain = [self.worker(rank, 2, *sgd) for rank in range(2)]
        clipped = [self.worker(rank, 2, *sgd, "--clip", "0.01", job="clip") for rank in range(2)]
        self.assertNotEqual(self.assert_same_end(plain), self.assert_same_end(clipped))

    def test_fp16_with_loss_scaling_averages_and_a_frozen_tensor(self):
        flags = ("--steps", "30", "--codec", "fp16", "--loss-scaling", "torch", "--freeze",
                 "--option", "ema_decay=0.9", "--average")  # fmt: skip
        workers = [self.worker(rank, 2, *flags) for rank in range(2)]
        self.assert_same_end(workers)
        averages = {worker.await_line(r"average=(\S+) weight=(\S+)").groups() for worker in workers}
        self.assertEqual(len(averages), 1, averages)
        average, weight = map(float, averages.pop())
        # Weights fall from 0.5 by about lr per step, so their average is higher.
        self.assertTrue(weight < average < 0.5, (weight, average))

    def test_an_average_that_nobody_keeps_is_an_error(self):
        worker = self.worker(0, 1, "--steps", "2", "--average")
        self.assertEqual(worker.wait(), 1)
        self.assertIn("neither ema_decay nor swa_start", worker.text())

    def test_accumulating_on_the_server_or_on_the_workers_comes_to_the_same(self):
        sgd = ("--optimizer", "sgd", "--codec", "fp32", "--accumulate", "4", "--average", "--option", "ema_decay=0.5")
        weights = []
        for job, flags in (("server", ("--steps", "40")), ("worker", ("--steps", "10", "--accumulate-here"))):
            workers = [self.worker(rank, 2, *sgd, *flags, job=job) for rank in range(2)]
            self.assert_same_end(workers)
            weights.append(float(workers[0].await_line(r"average=(\S+)").group(1)))
        self.assertAlmostEqual(weights[0], weights[1], places=4)
        self.assertNotAlmostEqual(weights[0], 0.5, places=3)

    def test_running_job_takes_new_options_and_refuses_nan(self):
        flags = ("--steps", "150", "--step-ms", "20")
        plain = [self.worker(rank, 2, *flags, job="plain") for rank in range(2)]
        workers = [self.worker(rank, 2, *flags) for rank in range(2)]
        workers[0].await_line(r"^step 5$")
        for wrong, message in (("lr=nan", "lr is nan"), ("beta3=0.5", "'beta1'")):
            refused = self.update("--option", wrong)
            self.assertEqual(refused.returncode, 2, refused.stdout)
            self.assertIn(message, refused.stderr)
        self.assertEqual(self.status_of("test")["learning_rate"], 1e-3)
        changed = self.update("--option", "lr=0.01", "--schedule", "cosine", "--schedule-option", "total_steps=200")
        self.assertEqual(changed.returncode, 0, changed.stderr)
        self.assertRegex(changed.stdout, r"^job test: the new options hold from epoch \d+ on\n  lr from 0.001 to 0.01\n"
                                         r"  schedule from constant to cosine:total_steps=200\n$")  # fmt: skip
        status = self.status_of("test")
        self.assertTrue(2e-3 < status["learning_rate"] <= 0.01, status)
        self.assertNotEqual(self.assert_same_end(workers), self.assert_same_end(plain), "nothing changed")

    def test_compressed_both_ways_through_a_death_and_a_birth(self):
        flags = ("--steps", "150", "--step-ms", "20", "--codec", "topk:ratio=0.05,values=int8,vectors=1",
                 "--publish-codec", "onebit:vectors=1")  # fmt: skip
        workers = [self.worker(rank, 3, *flags) for rank in range(3)]
        workers[2].await_line(r"^step 10$")
        workers[2].kill()
        reborn = self.worker(2, 3, *flags)
        reborn.await_line(r"joined step=[1-9]")
        workers[0].await_line(r"^step 100$")
        job = self.status_of("test")
        self.assertEqual(job["push_codec"], flags[5])
        self.assertGreater(min(member["compression"]["ratio"] for member in job["members"]), 30, job)
        self.assertEqual(max(member["compression"]["diverged_blocks"] for member in job["members"]), 0, job)
        self.assert_same_end([*workers[:2], reborn])

    def test_worker_that_leaves_hands_over_what_it_kept(self):
        flags = ("--steps", "120", "--step-ms", "20", "--codec", "topk:ratio=0.01,vectors=1", "--optimizer", "sgd")
        workers = [self.worker(rank, 2, *flags, *(("--leave-at", "20") if rank else ())) for rank in range(2)]
        self.assertEqual(workers[1].wait(), 0, workers[1].text())
        self.assertNotIn("left before", workers[1].text())
        self.assertEqual(workers[0].wait(), 0, workers[0].text())
        self.assertRegex(workers[0].text(), r"epoch changed.*worker 1 .*left")
        self.assertIn("done step=120 members=1", workers[0].text())

    def test_what_compression_kept_survives_a_restart_of_the_job(self):
        path = os.path.join(self.state.name, "rank0.residuals")
        flags = ("--step-ms", "5", "--codec", "onebit:vectors=1", "--optimizer", "sgd")
        saver = self.worker(0, 1, *flags, "--steps", "10", "--save", path)
        self.assertEqual(saver.wait(), 0, saver.text())
        self.assertGreater(os.path.getsize(path), 4 * 200000)
        ends = []
        for job, more in (("with", ("--restore", path)), ("without", ())):
            worker = self.worker(0, 1, *flags, "--steps", "3", *more, job=job)
            self.assertEqual(worker.wait(), 0, worker.text())
            self.assertNotIn("starts without", worker.text())
            ends.append(worker.await_line(r"checksum=(\S+)").group(1))
        self.assertNotEqual(*ends, "what was restored was not used")
        other = self.worker(0, 1, "--steps", "3", "--codec", "int8:vectors=1", "--restore", path, job="other")
        self.assertEqual(other.wait(), 0, other.text())
        self.assertRegex(other.text(), r"starts without the residuals of compression.*tensor0")
        missing = self.worker(0, 1, "--steps", "3", "--restore", path + "x", job="missing")
        self.assertEqual(missing.wait(), 1)
        self.assertIn("No such file", missing.text())

    def test_codec_is_chosen_and_explained(self):
        flags = ("--steps", "100", "--step-ms", "20", "--codec", "auto:vectors=1")
        workers = [self.worker(rank, 2, *flags) for rank in range(2)]
        workers[0].await_line(r"^step 60$")
        for member in self.status_of("test")["members"]:
            self.assertIn("this host", member["compression"]["choice"], member)
        self.assert_same_end(workers)

    def test_codecs_that_cannot_work_are_refused_with_the_reason(self):
        for codec, reason in (("topk:ratio=1.5", r"ratio is 1\.5, but must be in \[1e-06, 1\]"),
                              ("int3", "did you mean 'int"),
                              ("dgc:vectors=1", "the optimizer must be sgd with momentum=0"),
                              ("terngrad:memory=ef", "grow without end")):  # fmt: skip
            worker = self.worker(0, 1, "--steps", "2", "--codec", codec)
            self.assertEqual(worker.wait(), 2, worker.text())
            self.assertRegex(worker.text(), reason)

    def test_killed_worker_is_dropped_and_the_others_go_on(self):
        workers = [self.worker(rank, 3, "--steps", "150", "--step-ms", "20") for rank in range(3)]
        workers[2].await_line(r"^step 10$")
        workers[2].kill()
        # A step that began before the kill may end without a decision; the second one after it cannot.
        last = max(int(m) for m in re.findall(r"^step (\d+)$", workers[0].text(), re.M))
        workers[0].await_line(rf"^step {last + 3}$")
        self.assert_same_end(workers[:2])
        self.assertIn("members=2", workers[0].text())

    def test_killed_worker_comes_back_as_a_new_incarnation(self):
        workers = [self.worker(rank, 2, "--steps", "200", "--step-ms", "20") for rank in range(2)]
        workers[1].await_line(r"^step 10$")
        workers[1].kill()
        again = self.worker(1, 2, "--steps", "200", "--step-ms", "20")
        self.assertGreaterEqual(int(again.await_line(r"joined step=(\d+)").group(1)), 10)
        self.assert_same_end([workers[0], again])

    def test_late_worker_takes_part_from_the_next_step(self):
        workers = [self.worker(rank, 2, "--steps", "200", "--step-ms", "20") for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        late = self.worker(2, 2, "--steps", "200", "--step-ms", "20")
        self.assertGreaterEqual(int(late.await_line(r"joined step=(\d+)").group(1)), 20)
        self.assert_same_end([*workers, late])
        self.assertIn("members=3", late.text())

    def test_stopped_worker_is_dropped_and_told_so_when_it_wakes(self):
        workers = [self.worker(rank, 3, "--steps", "250", "--step-ms", "20") for rank in range(3)]
        workers[1].await_line(r"^step 10$")
        workers[1].signal(signal.SIGSTOP)
        # A step that began before may end without a decision; the second one after it cannot.
        last = max(int(m) for m in re.findall(r"^step (\d+)$", workers[0].text(), re.M))
        workers[0].await_line(rf"^step {last + 3}$")
        workers[1].signal(signal.SIGCONT)
        self.assertEqual(workers[1].wait(), 1)
        self.assertRegex(workers[1].text(), "ABORTED: worker 1 .*was dropped")
        self.assert_same_end([workers[0], workers[2]])

    def test_lost_server_fails_the_job_with_a_clear_error(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "10") for rank in range(2)]
        workers[0].await_line(r"^step 5$")
        self.server_processes[1].kill()
        for worker in workers:
            self.assertEqual(worker.wait(), 138)
            self.assertRegex(worker.text(), r"server \d \(.*\) is lost")

    def test_coordinator_that_stands_still_for_a_moment_ends_nobody(self):
        workers = [self.worker(rank, 2, "--steps", "200", "--step-ms", "20") for rank in range(2)]
        workers[0].await_line(r"^step 10$")
        self.coordinator.signal(signal.SIGSTOP)
        time.sleep(0.4 * FAILURE_TIMEOUT)
        self.coordinator.signal(signal.SIGCONT)
        self.assert_same_end(workers)
        self.assertIn("members=2", workers[0].text())


class BetweenHosts(ClusterTest):
    """The connections between hosts, on loopback."""

    server_flags = ("--data-plane", "tls")

    def lanes(self):
        shown = self.syncline("status", "-o", "json")
        return {server["lanes"] for server in json.loads(shown.stdout)["servers"]}

    def test_workers_train_over_tls_and_a_stranger_harms_nobody(self):
        self.assertEqual(self.lanes(), {"TLS 1.3"})
        port = self.listening(0)
        workers = [self.worker(rank, 3, "--steps", "60", "--step-ms", "10") for rank in range(3)]
        workers[0].await_line(r"^step 5$")
        for opening in (bytes(77), os.urandom(4000), b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + os.urandom(500)):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(opening)
                try:
                    while stranger.recv(4096):
                        pass
                except ConnectionError:
                    pass
        self.assert_same_end(workers)

    def test_a_killed_worker_comes_back_with_new_keys(self):
        workers = [self.worker(rank, 2, "--steps", "150", "--step-ms", "20") for rank in range(2)]
        workers[1].await_line(r"^step 10$")
        workers[1].kill()
        again = self.worker(1, 2, "--steps", "150", "--step-ms", "20")
        self.assert_same_end([workers[0], again])

    def listening(self, server):
        """Returns the port of a server's first engine, from the system's tables."""
        process = self.server_processes[server].process.pid
        sockets = {os.readlink(entry.path) for entry in os.scandir(f"/proc/{process}/fd") if os.path.islink(entry.path)}
        admin = int(self.server_processes[server].await_line(r"admin=\S+:(\d+)").group(1))
        with open(f"/proc/{process}/net/tcp") as table:
            rows = [line.split() for line in table][1:]
        ports = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
        return next(port for port in ports if port != admin)


class PlainTcp(ClusterTest):
    server_flags = ("--data-plane", "plain")

    def test_workers_train_over_tcp_and_status_says_that_nothing_is_sealed(self):
        workers = [self.worker(rank, 2, "--steps", "30") for rank in range(2)]
        self.assert_same_end(workers)
        self.assertIn("neither sealed nor authenticated", self.syncline("status").stdout)


class StartOrder(ClusterTest):
    servers = 0

    def test_workers_and_servers_wait_for_a_coordinator_that_comes_later(self):
        self.coordinator.kill()
        worker = self.worker(0, 1, "--steps", "5")
        server = self.serve("server", "--role", "server", "--coordinator", self.address)
        server.await_line("waiting for coordinator")
        self.serve("coordinator", "--role", "coordinator", "--listen", self.address, "--state-dir", self.state.name)
        self.assert_same_end([worker])


class Memory(ClusterTest):
    server_flags = ("--memory", "64MiB")

    def test_a_job_that_does_not_fit_is_refused_and_harms_nobody(self):
        small = [self.worker(rank, 2, "--steps", "100", "--step-ms", "20") for rank in range(2)]
        small[0].await_line(r"^step 5$")
        large = self.worker(0, 1, "--elements", "100000000", job="large")
        self.assertNotEqual(large.wait(), 0)
        self.assertRegex(large.text(), r"job 'large' needs \S+ [MG]iB on server \S+ \(optimizer state .*"
                                       r"but only \S+ MiB of its memory budget of 64.0 MiB are free: .*--memory")  # fmt: skip
        shown = self.syncline("status")
        self.assertRegex(shown.stdout, r"\S+ MiB of 64.0 MiB")
        self.assertNotIn("job large", shown.stdout)
        self.assert_same_end(small)
        again = self.syncline("status")
        self.assertRegex(again.stdout, r"0 B of 64.0 MiB", "the memory of a job that is over is free again")


class BadInput(ClusterTest):
    def test_another_failure_timeout_is_refused_with_both_values(self):
        worker = self.start("worker", [f"{cluster.BUILD}/steps_worker"], {
            "SYNCLINE_COORDINATOR": self.address, "SYNCLINE_FAILURE_TIMEOUT": "5s", "RANK": "0", "WORLD_SIZE": "1",
        })  # fmt: skip
        self.assertEqual(worker.wait(), 2)
        self.assertRegex(worker.text(), "failure timeout is 5s here and 4s at the coordinator")
        server = self.start("server", [f"{cluster.BUILD}/syncline", "serve", "--admin-listen", "127.0.0.1:0", "--role", "server",
                                       "--failure-timeout", "3s", "--coordinator", self.address])  # fmt: skip
        self.assertEqual(server.wait(), 2)
        self.assertRegex(server.text(), "failure timeout is 3s here and 4s at the coordinator")

    def test_hostile_messages_are_refused_and_change_nothing(self):
        alone = self.worker(0, 1, "--steps", "20", job="alone")
        expected = self.assert_same_end([alone])
        honest = self.worker(0, 2, "--steps", "20")
        hostile = self.worker(1, 2, program="hostile_worker")
        self.assertEqual(hostile.wait(), 0, hostile.text())
        self.assertEqual(expected, self.assert_same_end([honest]), "something of it was applied")
        for server in self.server_processes:
            self.assertIsNone(server.process.poll(), server.text())
            with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
                peak_kib = int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1))
            self.assertLess(peak_kib, 400 << 10, "memory of the server is not bounded")

    def test_worker_with_other_shapes_is_refused(self):
        honest = self.worker(0, 2, "--steps", "5")
        self.await_job("test")
        other = self.worker(1, 2, "--steps", "5", "--wrong-shape")
        self.assertEqual(other.wait(), 7)
        self.assertRegex(other.text(), r"tensor 'tensor0' has shape \[200000\]")
        good = self.worker(1, 2, "--steps", "5")
        self.assert_same_end([honest, good])

    def test_second_job_of_one_name_is_refused(self):
        first = [self.worker(rank, 2, "--steps", "100", "--step-ms", "20") for rank in range(2)]
        first[0].await_line(r"^step 3$")
        second = self.worker(0, 2, "--steps", "100")
        self.assertEqual(second.wait(), 7)
        self.assertRegex(second.text(), "rank 0 of job 'test' is held by")
        self.assert_same_end(first)

    def test_garbage_on_the_control_and_admin_ports_disturbs_nobody(self):
        workers = [self.worker(rank, 2, "--steps", "100", "--step-ms", "10") for rank in range(2)]
        workers[0].await_line(r"^step 3$")
        for address in (self.address, self.admin):
            host, port = address.rsplit(":", 1)
            for garbage in (os.urandom(4096), b"\0" * 64, b"GET / HTTP/9.9\r\n" * 100, b"\xff" * (1 << 20)):
                with socket.create_connection((host, int(port)), timeout=5) as connection:
                    try:
                        connection.sendall(garbage)
                    except OSError:
                        pass  # they may hang up on us
        self.assert_same_end(workers)
        self.assertIsNone(self.coordinator.process.poll())

    def test_admin_port_shows_what_happens(self):
        workers = [self.worker(rank, 2, "--steps", "300", "--step-ms", "10") for rank in range(2)]
        workers[0].await_line(r"^step 10$")
        get = lambda path: urllib.request.urlopen(f"http://{self.admin}{path}", timeout=20).read().decode()
        deadline = time.monotonic() + PATIENCE  # metrics of the coordinator are refreshed every second
        while not re.search(r"(?m)^syncline_members.* 2$", get("/metrics")) and time.monotonic() < deadline:
            time.sleep(0.1)
        self.assertRegex(get("/metrics"), r"(?m)^syncline_members.* 2$")
        self.assertEqual(json.loads(get("/status"))["jobs"][0]["phase"], "running")
        get("/readyz")  # raises unless it answers 200
        status = self.syncline("status")
        self.assertEqual(status.returncode, 0, status.stderr)
        self.assertIn("test", status.stdout)
        self.assert_same_end(workers)


class CommandLine(unittest.TestCase):
    def run_syncline(self, *arguments):
        return subprocess.run([f"{cluster.BUILD}/syncline", *arguments], capture_output=True, text=True,
                              timeout=60, stdin=subprocess.DEVNULL)  # fmt: skip

    def assert_fails(self, code, message, *arguments):
        done = self.run_syncline(*arguments)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertRegex(done.stderr, message)
        self.assertLessEqual(len(done.stderr.strip().splitlines()), 2, done.stderr)

    def test_unknown_flag_names_the_nearest_one(self):
        self.assert_fails(2, "--listen", "serve", "--lisen", "127.0.0.1:0")

    def test_port_in_use_says_so(self):
        with socket.socket() as taken, tempfile.TemporaryDirectory() as state:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            address = f"127.0.0.1:{taken.getsockname()[1]}"
            coordinator = ["serve", "--role", "coordinator", "--state-dir", state]
            self.assert_fails(3, address, *coordinator, "--listen", address, "--admin-listen", "127.0.0.1:0")
            told = "choose another port with --admin-listen"
            self.assert_fails(3, told, *coordinator, "--listen", "127.0.0.1:0", "--admin-listen", address)

    def test_unusable_state_directory_says_so(self):
        with tempfile.NamedTemporaryFile() as file:
            self.assert_fails(4, file.name, "serve", "--role", "coordinator", "--listen", "127.0.0.1:0",
                              "--admin-listen", "127.0.0.1:0", "--state-dir", file.name)  # fmt: skip

    def test_unreachable_coordinator_says_so(self):
        self.assert_fails(5, "127.0.0.1:1", "status", "--coordinator", "127.0.0.1:1")

    def test_listening_for_everybody_needs_tls_or_a_decision(self):
        with tempfile.TemporaryDirectory() as state:
            self.assert_fails(2, "--insecure", "serve", "--role", "coordinator", "--listen", "0.0.0.0:0",
                              "--admin-listen", "127.0.0.1:0", "--state-dir", state)  # fmt: skip

    def test_run_starts_everything_and_leaves_nothing(self):
        run = self.run_syncline("run", "--standalone", "--nproc-per-node", "2", "--servers", "2", "--",
                                f"{cluster.BUILD}/steps_worker", "--steps", "10")  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("done step=10", run.stdout)

    def test_ctrl_c_stops_everything(self):
        mark = f"--elements={100000 + os.getpid()}"
        run = Process("run", [f"{cluster.BUILD}/syncline", "run", "--standalone", "--nproc-per-node", "2", "--servers",
                              "2", "--", f"{cluster.BUILD}/steps_worker", "--steps", "1000000", mark])  # fmt: skip
        self.addCleanup(run.kill)
        run.await_line(r"^step 5$")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130)
        left = subprocess.run(["pgrep", "-f", mark], capture_output=True, text=True)
        self.assertEqual(left.stdout, "", "processes are left behind")

    def test_demo_trains_real_data(self):
        program = f"{cluster.BUILD}/fashion_mnist"
        if not os.path.exists(program):
            self.skipTest("the demo is not built (libtorch-dev is missing)")
        with tempfile.TemporaryDirectory() as reports:
            run = subprocess.run(
                [f"{cluster.BUILD}/syncline", "run", "--standalone", "--nproc-per-node", "4", "--servers", "2", "--",
                 program, "--precision", "bf16", "--steps", "300", "--report", f"{reports}/bf16.json"],
                capture_output=True, text=True, timeout=400, stdin=subprocess.DEVNULL)  # fmt: skip
            self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
            names = os.listdir(reports)
            self.assertTrue(names, run.stdout)
            with open(os.path.join(reports, sorted(names)[0]), encoding="utf-8") as file:
                report = json.load(file)
            self.assertGreater(report["accuracy"], 0.7, report)


if __name__ == "__main__":
    cluster.main()
