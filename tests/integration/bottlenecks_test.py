#!/usr/bin/env python3
"""`syncline advise` and jobs with a planted bottleneck. The proposed change gives at least half of the promised gain.

    python3 tests/integration/bottlenecks_test.py --build build/release [-v] [TestClass.test_name ...]

advise_test.py has stragglers and codecs that do not pay.
"""

import collections
import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
import unittest

import cluster

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "network"))
import hosts  # noqa: E402

STEM = "advise"
# Elements of one tensor. Cables are so slow that other programs on the machine do not matter.
TWO_BLOCKS, FOUR_BLOCKS, EIGHT_BLOCKS = "262144", "524288", "1048576"


class Bottleneck(unittest.TestCase):
    def assert_pays(self, before, after, bound, change):
        """Checks that the first advice names this bound and change, and gave at least half of its promise."""
        first = before["advice"][0]
        self.assertEqual(first["bound"], bound, before)
        self.assertRegex(first["change"], change)
        saved = 1 - after["step_seconds"] / before["step_seconds"]
        said = f"{bound}: {before['step_seconds']:.3f} s a step, then {after['step_seconds']:.3f}: saved {saved:.2f} of {first['gain']:.2f}"
        print(said, flush=True)
        self.assertGreater(first["gain"], 0.2)
        self.assertGreater(saved, first["gain"] / 2, said)


@unittest.skipIf(hosts.missing(STEM), hosts.missing(STEM))
class SlowCables(Bottleneck):
    """Each process is on a host of its own, and all cables are equally fast."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        hosts.delete_those_of_the_dead(STEM)

    def path(self, name):
        return os.path.join(self.folder, name)

    def text(self, name):
        with open(self.path(name)) as log:
            return log.read()

    def await_text(self, name, wanted):
        deadline = time.monotonic() + 2 * cluster.PATIENCE
        while wanted not in self.text(name):
            if time.monotonic() > deadline:
                self.fail(f"{name} never printed '{wanted}', but {self.text(name)}")
            time.sleep(0.1)

    def advice(self, servers, workers, rate, *flags):
        """Returns the advice for a job on cables of this rate."""
        serving, working = [f"server{i}" for i in range(servers)], [f"worker{i}" for i in range(workers)]
        with hosts.Hosts(f"{STEM}{os.getpid()}", ["coordinator", *serving, *working], rate=rate) as net, contextlib.ExitStack() as logs:
            syncline, address = f"{cluster.BUILD}/syncline", f"{net.address('coordinator')}:7070"

            def start(host, name, command, **environment):
                return net.start(host, command, logs.enter_context(open(self.path(name), "w")), environment.items())

            serve = [syncline, "serve", "--admin-listen", "127.0.0.1:0", "--failure-timeout", "8s", "--insecure", "--role"]
            state = tempfile.mkdtemp(dir=self.folder)
            start("coordinator", "coordinator", [*serve, "coordinator", "--servers", servers, "--listen", address, "--state-dir", state])
            for name in serving:
                start(name, name, [*serve, "server", "--coordinator", address, "--listen", f"{net.address(name)}:7070"])
            for rank, name in enumerate(working):
                start(name, name, [f"{cluster.BUILD}/steps_worker", "--steps", "100000", "--step-ms", "10", *flags],
                      SYNCLINE_COORDINATOR=address, SYNCLINE_JOB="test", RANK=str(rank), WORLD_SIZE=str(workers),
                      SYNCLINE_FAILURE_TIMEOUT="8s")  # fmt: skip
            self.await_text("worker0", "step 4\n")
            asked = start("coordinator", "advice", [syncline, "advise", "test", "--coordinator", address, "--watch", "10s", "-o", "json"])
            self.assertEqual(asked.wait(cluster.PATIENCE), 0, self.text("advice"))
        return json.loads(self.text("advice"))

    def test_an_uplink_is_wider_with_fewer_bytes_up(self):
        job = ("--elements", TWO_BLOCKS, "--publish-codec", "bf16", "--codec")
        before, after = (self.advice(2, 2, "10mbit", *job, codec) for codec in ("fp32", "int8"))
        self.assert_pays(before, after, "uplink", "push=int8")

    def test_a_downlink_is_wider_with_fewer_bytes_down(self):
        # With a decision, no view is sent before everything is pushed. Otherwise acknowledgements would wait behind
        # views (docs/advise.md).
        job = ("--elements", EIGHT_BLOCKS, "--clip", "1", "--codec", "int8", "--publish-codec")
        before, after = (self.advice(2, 2, "40mbit", *job, codec) for codec in ("fp32", "int8"))
        self.assert_pays(before, after, "downlink", "publish=int8")

    def test_a_server_that_carries_the_bytes_of_four_workers_is_too_few(self):
        job = ("--elements", FOUR_BLOCKS, "--codec", "bf16", "--publish-codec", "fp32")
        before, after = (self.advice(servers, 4, "80mbit", *job) for servers in (1, 4))
        self.assert_pays(before, after, "few_servers", "^4 servers")


class FarAway:
    """A relay to a port of this host that delays all bytes, both ways, by `delay_s`, which may change."""

    def __init__(self, target, delay_s):
        self.target, self.delay_s, self.ends = target, delay_s, []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:{}".format(self.listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)  # otherwise accept would continue
        self.listener.close()
        for end in self.ends:
            end.close()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return  # closed
            far = socket.create_connection(("127.0.0.1", self.target))
            self.ends += (near, far)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((near, far), (far, near)):
                self._carry(source, sink)

    def _carry(self, source, sink):
        on_the_way, changed = collections.deque(), threading.Condition()

        def take():
            read = b"."
            while read:
                try:
                    read = source.recv(1 << 16)
                except OSError:
                    read = b""
                with changed:
                    on_the_way.append((time.monotonic(), read))
                    changed.notify()

        def give():
            while True:
                with changed:
                    changed.wait_for(lambda: on_the_way)
                    since, read = on_the_way.popleft()
                time.sleep(max(0.0, since + self.delay_s - time.monotonic()))
                try:
                    if not read:
                        return sink.shutdown(socket.SHUT_RDWR)
                    sink.sendall(read)
                except OSError:
                    return  # it has gone

        for act in (take, give):
            threading.Thread(target=act, daemon=True).start()


class Throttle:
    """A control group that limits a process to a tenth of a core."""

    PERIOD_US, QUOTA_US = 10000, 1000
    V1, V2 = "/sys/fs/cgroup/cpu", "/sys/fs/cgroup"

    def __init__(self, process):
        parent = self.V1 if os.path.exists(f"{self.V1}/cpu.cfs_quota_us") else self.V2
        self.group, self.process = os.path.join(parent, f"{STEM}-{process.process.pid}"), process
        os.mkdir(self.group)
        try:
            if parent == self.V1:
                self._write("cpu.cfs_period_us", self.PERIOD_US)
                self._write("cpu.cfs_quota_us", self.QUOTA_US)
            else:
                self._write("cpu.max", f"{self.QUOTA_US} {self.PERIOD_US}")
            self._write("cgroup.procs", process.process.pid)
        except OSError:
            os.rmdir(self.group)
            raise

    def _write(self, name, value):
        with open(os.path.join(self.group, name), "r+") as file:
            file.write(str(value))

    def end(self):
        self.process.kill()
        for _ in range(50):  # the kernel may still see the process there
            with contextlib.suppress(OSError):
                return os.rmdir(self.group)
            time.sleep(0.1)


class OneHost(cluster.ClusterTest, Bottleneck):
    servers = 0

    def start_server(self, coordinator=None):
        server = self.serve("server", "--role", "server", "--coordinator", coordinator or self.address, "--engine-threads", "1")
        server.await_line(r"ready control=")
        return server

    def advice(self, job, workers, *flags):
        started = [self.worker(rank, workers, "--steps", "100000", *flags, job=job) for rank in range(workers)]
        started[0].await_line(r"^step 10$")
        shown = self.syncline("advise", job, "--watch", "6s", "-o", "json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        for worker in started:
            worker.kill()
        return json.loads(shown.stdout)

    def throttle(self, process):
        try:
            self.addCleanup(Throttle(process).end)
        except OSError as error:
            self.skipTest(f"no control groups for CPU here: {error}")

    def test_a_coordinator_far_from_the_servers_holds_up_decisions(self):
        way = FarAway(cluster.port_of(self.address), delay_s=0.04)
        self.addCleanup(way.close)
        self.start_server(way.address)
        flags = ("--step-ms", "20", "--clip", "1")
        before = self.advice("far", 2, *flags)
        way.delay_s = 0
        self.assert_pays(before, self.advice("near", 2, *flags), "decision", "a coordinator near the servers")

    def test_a_server_without_enough_of_a_core_is_helped_by_another_one(self):
        flags = ("--step-ms", "1", "--elements", "4000000", "--same-gradient", "--optimizer", "adamw")
        self.throttle(self.start_server())
        before = self.advice("one", 1, *flags)
        self.throttle(self.start_server())
        self.assert_pays(before, self.advice("two", 1, *flags), "server_cpu", "twice as many servers")


if __name__ == "__main__":
    sys.exit(cluster.main())
