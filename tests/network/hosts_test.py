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
