#!/usr/bin/env python3
"""Strangers at the ports of real processes: many at once, and authenticated ones that send nonsense.

    python3 tests/integration/strangers_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import re
import resource
import socket
import ssl
import threading
import time
import urllib.request
from collections import deque

import cluster
from adversary_test import Openings
from cluster import PATIENCE, CertifiedTest, ClusterTest, assert_same_end, listening_ports, port_of

OPENINGS = 1000  # in each test
ELSEWHERE = "127.0.0.9"
DESCRIPTORS = 512  # limit of a coordinator that strangers flood


def refused(admin, door, reason):
    with urllib.request.urlopen(f"http://{admin}/metrics", timeout=PATIENCE) as reply:
        series = rf'^syncline_auth_refused_total{{door="{door}",reason="{reason}"}} (\d+)'
        return int(re.search(series, reply.read().decode(), re.M).group(1))


def descriptors(process):
    return len(os.listdir(f"/proc/{process.process.pid}/fd"))


def mebibytes(process):
    with open(f"/proc/{process.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS")) >> 10


def await_descriptors(process, most):
    deadline = time.monotonic() + PATIENCE
    while descriptors(process) > most and time.monotonic() < deadline:
        time.sleep(0.1)
    return descriptors(process)


class Flood:
    """Connects from another address, sends nothing, and keeps many connections open until it is stopped."""

    def __init__(self, port):
        self.port, self.made = port, 0
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.most = min(10000, hard - 300 if hard != resource.RLIM_INFINITY else 10000)
        self.before = soft, hard
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        kept = deque()
        while not self.is_over.is_set():
            stranger = socket.socket()
            stranger.settimeout(1)
            try:
                stranger.bind((ELSEWHERE, 0))
                stranger.connect(("127.0.0.1", self.port))
            except OSError:  # the listener's queue is full
                stranger.close()
                continue
            self.made += 1
            kept.append(stranger)
            if len(kept) > self.most:
                kept.popleft().close()
        for stranger in kept:
            stranger.close()

    def await_made(self, count):
        deadline = time.monotonic() + 4 * PATIENCE
        while self.made < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"only {self.made} connections")
            time.sleep(0.05)

    def stop(self):
        self.is_over.set()
        self.thread.join(4 * PATIENCE)
        resource.setrlimit(resource.RLIMIT_NOFILE, self.before)


class IdleStrangers(ClusterTest):
    """There are more strangers than the coordinator has descriptors."""

    servers = 1

    def start(self, name, command, env=None):
        few = ["sh", "-c", f'ulimit -n {DESCRIPTORS} && exec "$@"', "sh"] if name == "coordinator" else []
        return super().start(name, [*few, *command], env)

    def train(self):
        return [self.worker(rank, 2, "--steps", "20") for rank in range(2)]

    def test_members_come_in_and_stay_while_thousands_say_nothing_at_the_control_port(self):
        undisturbed = self.assert_same_end(self.train())
        flood = Flood(port_of(self.address))
        self.addCleanup(flood.stop)
        flood.await_made(2 * DESCRIPTORS)
        self.assertEqual(undisturbed, self.assert_same_end(self.train()))
        flood.await_made(4 * DESCRIPTORS)
        self.assertLess(descriptors(self.coordinator), DESCRIPTORS)
        flood.stop()
        self.assertGreater(refused(self.admin, "control", "crowded"), DESCRIPTORS)
        self.coordinator.await_line(f"refused a connection .*have made no call.* peer={ELSEWHERE}")
        self.assertEqual(undisturbed, self.assert_same_end(self.train()), "and afterwards")
        self.assertIsNone(self.coordinator.process.poll(), self.coordinator.text())


class ProvenStrangers(CertifiedTest):
    """They have a certificate or need none, and send nonsense after the handshake."""

    server_flags = ("--data-plane", "tls", "--engine-threads", "1")

    def knock(self, context, port, opening):
        """Sends the opening, and closes. Returns whether the handshake succeeded."""
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
                with context.wrap_socket(plain, server_hostname="localhost") as sealed:
                    sealed.sendall(opening)
                    return True
        except (OSError, ValueError):
            return False

    def context(self, certificate=None):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2"])
        if certificate:
            context.load_cert_chain(self.path(f"certs/{certificate}.crt"), self.path(f"certs/{certificate}.key"))
        return context

    def assert_bears(self, service, port, context):
        """Checks that nonsense after the handshake does not end the service and leaves nothing behind."""
        calm = descriptors(service)
        openings = Openings()
        made = sum(self.knock(context, port, openings.next()) for _ in range(OPENINGS // 10))
        before = mebibytes(service)
        made += sum(self.knock(context, port, openings.next()) for _ in range(OPENINGS - OPENINGS // 10))
        self.assertGreater(made, OPENINGS // 2)
        self.assertIsNone(service.process.poll(), service.text())
        self.assertLessEqual(await_descriptors(service, calm + 4), calm + 4, service.name)
        self.assertLess(mebibytes(service), before + 32, f"{service.name} keeps memory")

    def train(self):
        return assert_same_end(self, [self.worker(rank, 2, "--steps", "20") for rank in range(2)])

    def test_at_the_control_port_with_a_certificate_of_the_job(self):
        self.start_server()
        undisturbed = self.train()
        self.assert_bears(self.coordinator, port_of(self.address), self.context("worker-default"))
        self.assertEqual(undisturbed, self.train())

    def test_at_the_data_port_nobody_gets_so_far_and_all_are_counted(self):
        self.start_server()
        undisturbed = self.train()
        admin = self.server.await_line(r"ready control=\S+ admin=(\S+)").group(1)
        (port,) = listening_ports(self.server.process.pid) - {port_of(admin)}
        calm, context, openings = descriptors(self.server), self.context("server"), Openings()
        for _ in range(OPENINGS):
            self.assertFalse(self.knock(context, port, openings.next()))
        self.assertGreaterEqual(refused(admin, "data", "handshake"), OPENINGS)
        self.assertLessEqual(await_descriptors(self.server, calm + 4), calm + 4)
        self.assertEqual(undisturbed, self.train())

    def test_at_the_port_of_the_authority(self):
        authority = cluster.Process("authority", ["sh", "-c", 'cd "$0" && exec "$@"', self.folder.name,
                                                  f"{cluster.BUILD}/syncline", "certs", "serve", "certs",
                                                  "--listen", "127.0.0.1:0"])  # fmt: skip
        self.addCleanup(authority.kill)
        address = authority.await_line(r"ready join=(\S+)").group(1)
        self.assert_bears(authority, port_of(address), self.context())
        token = self.assert_runs("certs", "token", "certs", "--role", "reader", "--address", address).strip()
        self.assert_runs("certs", "join", token, "--out", "machine")


if __name__ == "__main__":
    cluster.main()
