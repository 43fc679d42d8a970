#!/usr/bin/env python3
"""An attacker between real processes changes their bytes. Weights do not change, and no service ends or hangs.

    python3 tests/integration/tampering_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import re
import time
import urllib.request

import cluster
from cluster import PATIENCE, CertifiedTest, assert_same_end
from relay import DOWN, UP, Plan, Relay

KINDS = ("flip", "cut", "half", "drop", "swap", "repeat")
OF_TWO = ("foreign", "cross")  # kinds that need two connections
# Numbers of records: in the handshake, right after it, and among gradients or weights.
PLACES = (1, 5, 30)
STEPS = ("--steps", "80", "--elements", "60000")
LONG = 4 * PATIENCE  # for many changes one after the other
EXITS = (1, 5, 138)  # with a typed error; docs/errors.md


def plans_of(way):
    alone = [Plan(way, kind, place) for place in PLACES for kind in KINDS]
    return [*alone, *(Plan(way, kind, place) for place in PLACES[1:] for kind in OF_TWO), Plan(way, "replay", 1)]


class TamperingTest(CertifiedTest):
    server_flags = ("--data-plane", "tls", "--engine-threads", "1", "--data-plane-address", "127.0.0.1")

    def setUp(self):
        super().setUp()
        self.start_server()
        admin = self.server.await_line(r"ready control=\S+ admin=(\S+)").group(1)
        self.server_admin = admin

    def relay(self, target, plans=()):
        relay = Relay(target, plans)
        self.addCleanup(relay.close)
        return relay

    def data_port(self):
        (port,) = cluster.listening_ports(self.server.process.pid) - {cluster.port_of(self.server_admin)}
        return port

    def refused(self, admin, door):
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=PATIENCE) as reply:
            counted = re.findall(rf'^syncline_auth_refused_total{{door="{door}",.*}} (\d+)', reply.read().decode(), re.M)
        return sum(map(int, counted))

    def assert_services_are_up(self):
        for service in (self.coordinator, self.server):
            self.assertIsNone(service.process.poll(), service.text())


class DataPlane(TamperingTest):
    """The relay is between workers and a server."""

    def dial_by(self, relay):
        """Returns the variables of a worker that connects through the relay."""
        return {"LD_PRELOAD": f"{cluster.BUILD}/redirect.so", "REDIRECT": f"{relay.target}={relay.port}"}

    def train(self, env=None):
        return [self.worker(rank, 2, *STEPS, env=env) for rank in range(2)]

    def assert_nothing_is_changed(self, way):
        undisturbed = assert_same_end(self, self.train())
        relay = self.relay(self.data_port(), plans_of(way))
        workers = self.train(self.dial_by(relay))
        relay.await_done(LONG)
        self.assertEqual(undisturbed, assert_same_end(self, workers))
        self.assertEqual(relay.survivors, [])
        self.assert_services_are_up()

    def test_what_is_done_to_gradients_changes_no_bit(self):
        self.assert_nothing_is_changed(UP)
        self.assertGreater(self.refused(self.server_admin, "data"), 0)

    def test_what_is_done_to_weights_changes_no_bit(self):
        self.assert_nothing_is_changed(DOWN)

    def test_whose_gradients_never_arrive_ends_with_an_error_and_nobody_else_does(self):
        alone = assert_same_end(self, [self.worker(0, 1, *STEPS)])
        port = self.data_port()
        relay = self.relay(port, (Plan(UP, "flip", 5) for _ in range(10000)))
        honest = self.worker(0, 2, *STEPS)
        cut_off = self.worker(1, 2, *STEPS, env=self.dial_by(relay))
        self.assertEqual(cut_off.wait(), 1, cut_off.text())
        self.assertRegex(cut_off.text(), "error: ABORTED: worker 1 .* was dropped from job 'default': owes step 0 ")
        self.assertEqual(alone, assert_same_end(self, [honest]), "something of it was applied")
        self.assert_services_are_up()


class ControlPlane(TamperingTest):
    """The relay is between a worker and the coordinator: gRPC with certificates of both."""

    # Numbers of records: in the handshake, while the worker joins, and among heartbeats.
    PLACES = (1, 12, 20)

    def setUp(self):
        super().setUp()
        self.leash = self.path("leash")

    def plans_of(self, way):
        # Heartbeats must pass between two failed handshakes, otherwise the member counts as dead.
        alone = [Plan(way, kind, place) for kind in KINDS for place in self.PLACES]
        return [*alone, Plan(way, "foreign", 12), Plan(way, "replay", 1)]

    def allow(self, steps):
        with open(f"{self.leash}.new", "w", encoding="ascii") as file:
            file.write(f"{steps}\n")
        os.rename(f"{self.leash}.new", self.leash)

    def train_by(self, address):
        self.address = address
        return self.worker(0, 1, *STEPS, "--leash", self.leash)

    def assert_nothing_is_changed(self, way):
        self.allow(80)
        undisturbed = assert_same_end(self, [self.train_by(self.address)])
        self.allow(5)
        relay = self.relay(cluster.port_of(self.address), self.plans_of(way))
        address = f"127.0.0.1:{relay.port}"
        worker = self.train_by(address)
        deadline = time.monotonic() + LONG
        while not relay.is_done():
            self.assertLess(time.monotonic(), deadline, relay.left())
            time.sleep(0.1)
            # A worker whose heartbeats were blocked for too long may end, but with a typed error.
            if worker.process.poll() is not None:
                self.assertIn(worker.wait(), EXITS, worker.text())
                self.assertIn("error: ", worker.text())
                worker = self.train_by(address)
        self.allow(80)
        self.assertEqual(undisturbed, assert_same_end(self, [worker]))
        self.assertEqual(relay.survivors, [])
        self.assert_services_are_up()

    def test_what_is_done_to_heartbeats_and_hellos_changes_no_bit(self):
        self.assert_nothing_is_changed(UP)

    def test_what_is_done_to_orders_and_answers_changes_no_bit(self):
        self.assert_nothing_is_changed(DOWN)


if __name__ == "__main__":
    cluster.main()
