"""Cables of a network of its own: addresses, cuts, rates and what is counted."""

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from network import hosts

PREFIX = "hosttest"
# Nobody listens there: a host that can be reached refuses at once.
KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=2)
except ConnectionRefusedError:
    sys.exit(0)
except OSError as error:
    sys.exit(str(error))
"""

# A megabyte, to whoever listens at port 10.
POUR = """
import socket, sys, time
for attempt in range(300):
    try:
        peer = socket.create_connection((sys.argv[1], 10), timeout=60)
        break
    except OSError:  # not yet, or still thought to be cut off
        time.sleep(0.1)
peer.sendall(bytes(1 << 20))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
"""
SINK = """
import socket, sys
peer, _ = socket.create_server((sys.argv[1], 10)).accept()
while peer.recv(1 << 16):
    pass
"""


@unittest.skipIf(hosts.missing(PREFIX) is not None, hosts.missing(PREFIX))
class HostsTest(unittest.TestCase):
    def reaches(self, net, network):
        with tempfile.TemporaryFile() as log:
            return net.start("a", [sys.executable, "-c", KNOCK, net.address("b", network)], log).wait(60) == 0

    def test_each_network_has_a_cable_that_can_be_cut_alone(self):
        with hosts.Hosts(PREFIX, ["a", "b"], networks=["control", "data"], rate="100mbit") as net:
            self.assertEqual(net.address("b"), "10.1.0.2")
            self.assertEqual(net.address("b", "data"), "10.2.0.2")
            # Before the first cut, so that nobody waits for the answer of a host that was cut off.
            self.assertTrue(self.reaches(net, "data"))
            for direction in ("both", "out", "in"):
                with net.cut("a", "data", direction):
                    self.assertFalse(self.reaches(net, "data"), direction)
                    self.assertTrue(self.reaches(net, "control"), direction)
                self.assertTrue(self.reaches(net, "data"), direction)

    def test_what_a_cut_drops_and_a_slow_cable_delays_is_counted(self):
        with hosts.Hosts(PREFIX, ["a", "b"]) as net, tempfile.TemporaryFile() as log:
            net.start("b", [sys.executable, "-c", SINK, net.address("b")], log)
            with net.cut("a", "data"):
                self.assertFalse(self.reaches(net, "data"))
            self.assertGreater(net.dropped, 0)
            with net.slowed("a", "data", "8mbit"):
                self.assertEqual(net.start("a", [sys.executable, "-c", POUR, net.address("b")], log).wait(60), 0)
            self.assertGreater(net.delayed, 0)

    def test_bytes_are_counted_where_they_are_sent(self):
        with hosts.Hosts(PREFIX, ["a", "b"]) as net:
            before = net.sent()
            self.assertTrue(self.reaches(net, "data"))
            after = net.sent()
            for host in ("a", "b"):
                self.assertGreaterEqual(after[host] - before[host], 84, host)

    def test_namespaces_are_gone_afterwards(self):
        with hosts.Hosts(PREFIX, ["a"]):
            self.assertIn("namespaces of another run", hosts.missing(PREFIX))
        self.assertIsNone(hosts.missing(PREFIX))


if __name__ == "__main__":
    unittest.main()
