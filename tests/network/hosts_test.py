"""Tests of private networks: addresses, cuts, rates and counters."""

import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from network import hosts

PREFIX = "hosttest"
# Nothing listens at that port, so a reachable host refuses at once.
KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=2)
except ConnectionRefusedError:
    sys.exit(0)
except OSError as error:
    sys.exit(str(error))
"""

# Sends a megabyte to port 10.
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

# Prints the congestion control of its connection. With "-" it listens, otherwise it connects.
ASK = """
import socket, sys, time
own, peer = sys.argv[1:]
if peer == "-":
    called, _ = socket.create_server((own, 11)).accept()
else:
    for attempt in range(300):
        try:
            called = socket.create_connection((peer, 11), timeout=60)
            break
        except OSError:
            time.sleep(0.1)
print(called.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(bytes(1)).decode())
"""
CONTROLS = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


@unittest.skipIf(hosts.missing(PREFIX) is not None, hosts.missing(PREFIX))
class HostsTest(unittest.TestCase):
    def reaches(self, net, network):
        with tempfile.TemporaryFile() as log:
            return net.start("a", [sys.executable, "-c", KNOCK, net.address("b", network)], log).wait(60) == 0

    def test_each_network_has_a_cable_that_can_be_cut_alone(self):
        with hosts.Hosts(PREFIX, ["a", "b"], networks=["control", "data"], rate="100mbit") as net:
            self.assertEqual(net.address("b"), "10.1.0.2")
            self.assertEqual(net.address("b", "data"), "10.2.0.2")
            # This is before the first cut, so that it does not wait for a host that is cut off.
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

    def test_a_thread_may_be_on_a_host(self):
        def addresses():
            return subprocess.run(["ip", "-br", "address"], capture_output=True, text=True, check=True).stdout

        with hosts.Hosts(PREFIX, ["a", "b"]) as net:
            outside = addresses()
            self.assertNotIn(net.address("a"), outside)
            with net.inside("a"):
                self.assertIn(net.address("a"), addresses())
                self.assertNotIn(net.address("b"), addresses())
            self.assertEqual(addresses(), outside)

    def test_bytes_are_counted_where_they_are_sent(self):
        with hosts.Hosts(PREFIX, ["a", "b"]) as net:
            before = net.sent()
            self.assertTrue(self.reaches(net, "data"))
            after = net.sent()
            for host in ("a", "b"):
                self.assertGreaterEqual(after[host] - before[host], 84, host)

    def test_who_calls_and_who_is_called_send_as_they_are_told(self):
        for algorithm in CONTROLS:
            with hosts.Hosts(PREFIX, ["a", "b"], networks=["control", "data"]) as net, tempfile.TemporaryFile() as log:
                net.set_congestion(algorithm)
                here, there = (net.address(host, "data") for host in "ab")
                ask = [sys.executable, "-c", ASK]
                for process in (net.start("b", [*ask, there, "-"], log), net.start("a", [*ask, here, there], log)):
                    self.assertEqual(process.wait(60), 0)
                log.seek(0)
                self.assertEqual(log.read().decode().split(), [algorithm] * 2)

    def test_namespaces_are_gone_afterwards(self):
        with hosts.Hosts(PREFIX, ["a"]):
            self.assertIn("namespaces of another run", hosts.missing(PREFIX))
        self.assertIsNone(hosts.missing(PREFIX))


if __name__ == "__main__":
    unittest.main()
