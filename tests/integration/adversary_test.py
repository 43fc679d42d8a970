#!/usr/bin/env python3
"""Attacks on real processes by strangers and thieves, and renewed certificates (docs/tls.md, SECURITY.md).

    python3 tests/integration/adversary_test.py --build build/release [-v] [TestClass.test_name ...]

SYNCLINE_OPENINGS is the total number of malformed openings that are sent; default: 100,000.
"""

import json
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import time
import unittest
import urllib.request
from collections import Counter, deque
from unittest import mock

import cluster
from cluster import PATIENCE, CertifiedTest, LeashedTest, assert_same_end, listening_ports, port_of

OPENINGS = int(os.environ.get("SYNCLINE_OPENINGS", "100000"))
SEED = 9
ENGINES = 2
# The first message of UCX's TCP transport, then a request for a connection that claims a length of 64. These 77 bytes
# end a process that listens with UCX 1.13 (an assertion, tcp_cm.c:688). Zeros after the first 8 bytes do not.
UCX_OPENING = struct.pack("<QBIB", 0xCAFEBABE12345678, 32, 64, 1) + b"\x00" * 63


HTTP2_SETTINGS, HTTP2_PING = 4, 6


def http2_frame(kind, flags=0, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + bytes(4) + payload


class PortScan(cluster.ClusterTest):
    """Which ports are open, according to the kernel's tables and to connection attempts."""

    servers = 1

    def start_server(self, *flags):
        server = self.serve("another", "--role", "server", "--coordinator", self.address,
                            "--engine-threads", str(ENGINES), *flags)  # fmt: skip
        admin = server.await_line(r"ready control=\S+ admin=(\S+)").group(1)
        return server, {port_of(admin)}

    def assert_data_ports(self, server, count, others):
        ports = listening_ports(server.process.pid) - others
        self.assertEqual(len(ports), count, server.text())
        for port in ports:
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as stranger:
                stranger.sendall(UCX_OPENING)
                try:
                    self.assertEqual(stranger.recv(1), b"", "something answers UCX's opening")
                except ConnectionResetError:
                    pass
        self.assertIsNone(server.process.poll(), server.text())

    def test_inside_a_host_no_data_port_is_open(self):
        for flags in ((), ("--data-plane", "auto")):
            server, others = self.start_server(*flags)
            self.assert_data_ports(server, 0, others)

    def test_inside_a_host_ucx_tls_opens_none_either(self):
        # Clusters often set this variable globally, for MPI.
        for wanted in ("all", "tcp,self", "tcp,self,posix"):
            with mock.patch.dict(os.environ, UCX_TLS=wanted):
                server, others = self.start_server()
                worker = self.worker(0, 1, "--steps", "3", job=wanted.replace(",", "-"))
                worker.await_line("^joined")
                self.assertEqual(listening_ports(worker.process.pid), set())
            self.assert_data_ports(server, 0, others)
            self.assertEqual(server.text().count("UCX_TLS names more than shared memory"), 1, server.text())
            self.assertEqual(worker.wait(), 0, worker.text())

    def test_tls_opens_a_port_for_each_engine_and_none_of_ucx(self):
        server, others = self.start_server("--data-plane", "tls")
        self.assert_data_ports(server, ENGINES, others)

    def test_plain_tcp_is_none_of_ucx_either(self):
        server, others = self.start_server("--data-plane", "plain")
        self.assert_data_ports(server, ENGINES, others)

    def test_between_hosts_shared_memory_opens_none_beside_tls(self):
        server = self.serve("far", "--role", "all", "--listen", "0.0.0.0:0", "--insecure", "--engine-threads", str(ENGINES),
                            "--data-plane-address", "127.0.0.1",
                            "--state-dir", os.path.join(self.state.name, "far"))  # fmt: skip
        server.await_line("shared memory in a host, TLS 1.3 between hosts")
        control, admin = server.await_line(r"ready control=(\S+) admin=(\S+)").groups()
        self.assert_data_ports(server, ENGINES, {port_of(control), port_of(admin)})

    @unittest.skipIf(os.path.exists("/sys/class/infiniband"), "an RDMA device may be here")
    def test_rdma_is_refused_where_no_device_is(self):
        server = self.serve("rdma", "--role", "server", "--coordinator", self.address,
                            "--data-plane", "rdma", "--rdma-fabric", "isolated")  # fmt: skip
        self.assertNotEqual(server.wait(), 0, server.text())
        self.assertRegex(server.text(), "no RDMA device .*--data-plane tls")
        self.assertNotIn("ready", server.text())

    def test_the_status_says_which_way_is_used_and_why(self):
        self.start_server("--data-plane", "tls")
        shown = self.syncline("status").stdout
        self.assertRegex(shown, r"TLS 1\.3 \(--data-plane tls\)\n")
        self.assertRegex(shown, r"shared memory of this host \(the coordinator is at 127\.0\.0\.1\)\n")

    def test_workers_listen_nowhere(self):
        worker = self.worker(0, 1, "--steps", "3")
        worker.await_line("^joined")
        self.assertEqual(listening_ports(worker.process.pid), set())
        self.assertEqual(worker.wait(), 0, worker.text())


class HostileWorker(cluster.ClusterTest):
    """A member that misbehaves on the network. integration_test.py has the same in shared memory."""

    server_flags = ("--data-plane", "tls")

    def test_over_tls_its_messages_are_refused_and_change_nothing(self):
        alone = self.worker(0, 1, "--steps", "20", job="alone")
        expected = self.assert_same_end([alone])
        honest = self.worker(0, 2, "--steps", "20")
        hostile = self.worker(1, 2, program="hostile_worker")
        self.assertEqual(hostile.wait(), 0, hostile.text())
        for name in ("wrong-incarnation", "wrong-rank", "wrong-job"):
            self.assertIn(f"turned away {name}", hostile.text())
        self.assertEqual(expected, self.assert_same_end([honest]), "something of it was applied")
        for server in self.server_processes:
            self.assertIsNone(server.process.poll(), server.text())


class CertificatesUnderWay(CertifiedTest):
    """Certificates change while a job runs over TLS."""

    coordinator_flags = ("--revoked", "certs/revoked")
    server_flags = ("--data-plane", "tls")

    def setUp(self):
        super().setUp()
        self.leash = self.path("leash")

    def allow(self, steps):
        with open(f"{self.leash}.new", "w", encoding="ascii") as file:
            file.write(f"{steps}\n")
        os.rename(f"{self.leash}.new", self.leash)

    def start_workers(self, steps, certificates=("worker-default", "worker-default")):
        return [
            self.worker(rank, 2, "--steps", str(steps), "--leash", self.leash, certificate=certificate)
            for rank, certificate in enumerate(certificates)
        ]

    def test_their_renewal_changes_no_bit(self):
        self.start_server()
        self.allow(40)
        undisturbed = assert_same_end(self, self.start_workers(40))
        self.allow(10)
        workers = self.start_workers(40)
        for end, role in ((20, "coordinator"), (30, "server"), (40, "worker")):
            for worker in workers:
                worker.await_line(rf"^step {end - 11}$")
            job = ("--job", "default") if role == "worker" else ()
            self.assert_runs("certs", "issue", "certs", "--role", role, *job, "--overwrite")
            self.allow(end)
        self.assertEqual(undisturbed, assert_same_end(self, workers))

    def train_for_some_seconds(self):
        """Trains, and returns the checksum at the end."""
        steps = ("--steps", "100", "--step-ms", "100", "--elements", "300000")
        return assert_same_end(self, [self.worker(rank, 2, *steps) for rank in range(2)])

    def test_new_keys_under_load_change_no_bit_and_end_no_connection(self):
        self.start_server()
        undisturbed = self.train_for_some_seconds()
        self.server.signal(signal.SIGTERM)
        self.server.wait()
        log = self.path("rekeyed")
        with mock.patch.dict(os.environ, LD_PRELOAD=f"{cluster.BUILD}/rekey.so", REKEY_LOG=log):
            self.start_server()
            self.assertEqual(undisturbed, self.train_for_some_seconds())
        with open(log, encoding="ascii") as file:
            renewed = Counter(int(line) for line in file)
        self.assertEqual(len(renewed), 3, "the server and both workers have renewed keys")
        self.assertGreaterEqual(min(renewed.values()), 3, renewed)
        # Each worker has one connection, from its beginning to its end.
        self.assertLessEqual(self.server.text().count("lost the connection"), 2, self.server.text())
        self.assertNotIn("too many requests", self.server.text())

    def issue_for(self, seconds, *flags):
        self.assert_runs("certs", "issue", "certs", "--role", "worker", "--job", "default",
                         "--hours", str(seconds / 3600), *flags)  # fmt: skip

    def test_their_end_is_no_end_of_members_that_have_new_ones(self):
        self.start_server()
        self.allow(20)
        undisturbed = assert_same_end(self, self.start_workers(20))
        self.issue_for(10, "--overwrite")
        self.allow(10)
        workers = self.start_workers(20)
        for worker in workers:
            worker.await_line("^step 9$")
        self.issue_for(3600, "--overwrite")
        for _ in workers:
            self.coordinator.await_line("refused a member .*worker of job 'default'.* has expired")
        self.allow(20)
        self.assertEqual(undisturbed, assert_same_end(self, workers))

    def test_a_worker_whose_certificate_is_taken_back_is_gone_and_stays_out(self):
        self.assert_runs("certs", "issue", "certs", "--role", "worker", "--job", "default", "--out", "certs/thief")
        self.start_server()
        self.allow(5)
        honest, thief = self.start_workers(20, ("worker-default", "thief"))
        for worker in (honest, thief):
            worker.await_line("^step 4$")
        self.assert_runs("certs", "revoke", "certs", "certs/thief.crt")
        self.coordinator.await_line("revoked")
        self.allow(20)
        self.assertNotEqual(thief.wait(), 0, thief.text())
        self.assertEqual(honest.wait(), 0, honest.text())
        self.assertRegex(honest.text(), "done step=20 members=1")
        again = self.worker(1, 2, "--steps", "1", certificate="thief")
        self.assertNotEqual(again.wait(), 0, again.text())
        self.assertNotIn("joined", again.text())

    def test_keys_of_a_certificate_that_is_taken_back_open_nothing(self):
        self.assert_runs("certs", "issue", "certs", "--role", "worker", "--job", "default", "--out", "certs/thief")
        self.start_server()
        honest = self.worker(0, 2, "--steps", "20", certificate="worker-default")
        thief = self.worker(1, 2, "--stay", program="hostile_worker", certificate="thief")
        thief.await_line("^in$")
        self.assert_runs("certs", "revoke", "certs", "certs/thief.crt")
        self.assertEqual(thief.wait(), 0, thief.text())
        self.assertEqual(thief.text().count("turned away old-key"), 3, thief.text())
        self.assertEqual(honest.wait(), 0, honest.text())
        self.assertRegex(honest.text(), "done step=20 members=1")

    def test_an_expired_certificate_opens_nothing(self):
        self.start_server()
        seconds = 2
        self.issue_for(seconds, "--out", "certs/late")
        over = time.time() + seconds + 1
        while time.time() < over:
            time.sleep(0.1)
        late = self.worker(0, 1, "--steps", "1", certificate="late")
        self.assertNotEqual(late.wait(), 0, late.text())
        self.assertIn("expired", late.text())
        self.assertNotIn("joined", late.text())

    def replace(self, name, contents):
        with open(self.path(f"{name}.new"), "wb") as file:
            file.write(contents)
        os.rename(self.path(f"{name}.new"), self.path(name))

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def trust_both_authorities(self):
        """Trusts a second authority of the same name and cluster, too."""
        self.assert_runs("certs", "init", "new")
        self.assert_runs("certs", "issue", "new", "--role", "worker", "--job", "default")
        self.replace("certs/ca.crt", self.read("certs/ca.crt") + self.read("new/ca.crt"))
        self.coordinator.await_line("read the list of trusted authorities")

    def move_to_the_new_authority(self):
        for name in ("coordinator", "server", "worker-default"):
            for end in ("key", "crt"):
                self.replace(f"certs/{name}.{end}", self.read(f"new/{name}.{end}"))

    def await_members(self, count):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{self.admin}/status", timeout=PATIENCE) as reply:
                (job,) = json.load(reply)["jobs"]
            if len(job["members"]) == count:
                return
            time.sleep(0.1)
        self.fail(f"the job never had {count} members")

    def trust_the_new_authority_alone(self):
        self.replace("certs/ca.crt", self.read("new/ca.crt"))

    def test_another_authority_takes_over_and_no_bit_changes(self):
        self.start_server()
        self.allow(40)
        undisturbed = assert_same_end(self, self.start_workers(40))
        self.allow(10)
        workers = self.start_workers(40)
        changes = (self.trust_both_authorities, self.move_to_the_new_authority, self.trust_the_new_authority_alone)
        for end, change in zip((20, 30, 40), changes, strict=True):
            for worker in workers:
                worker.await_line(rf"^step {end - 11}$")
            change()
            if end < 40:
                self.allow(end)
        for who in ("server", "worker of job 'default'"):
            self.coordinator.await_line(rf"refused a member .*certificate of this {who}.* is not trusted")
        self.allow(40)
        self.assertEqual(undisturbed, assert_same_end(self, workers))

    def test_a_worker_of_an_authority_that_is_gone_is_cut_off(self):
        self.assert_runs("certs", "issue", "certs", "--role", "worker", "--job", "default", "--out", "certs/thief")
        self.start_server()
        self.allow(5)
        honest, thief = self.start_workers(20, ("worker-default", "thief"))
        for worker in (honest, thief):
            worker.await_line("^step 4$")
        self.trust_both_authorities()
        self.move_to_the_new_authority()
        self.trust_the_new_authority_alone()
        self.coordinator.await_line("refused a member .*worker of job 'default'.* is not trusted")
        self.coordinator.await_line("a TLS handshake was refused")  # the thief tries again
        self.await_members(1)
        self.allow(20)
        self.assertEqual(honest.wait(), 0, honest.text())
        self.assertRegex(honest.text(), "done step=20 members=1")
        self.assertNotIn("done", thief.text())

    def data_ports(self):
        return listening_ports(self.server.process.pid) - {port_of(self.server_admin())}

    def server_admin(self):
        return self.server.await_line(r"ready control=\S+ admin=(\S+)").group(1)

    def assert_no_older_tls(self, port):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(self.path("certs/ca.crt"))
        context.load_cert_chain(self.path("certs/operator.crt"), self.path("certs/operator.key"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
            # The cause must not be a missing cipher: TLS 1.2 has none without a certificate of the listener.
            with self.assertRaisesRegex(ssl.SSLError, "alert protocol version"):
                with context.wrap_socket(plain) as sealed:
                    sealed.sendall(b"x")
                    sealed.recv(1)

    def test_no_listener_of_data_speaks_an_older_tls_or_plain_text(self):
        self.start_server()
        ports = self.data_ports()
        self.assertTrue(ports)
        for port in ports:
            self.assert_no_older_tls(port)
            with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
                plain.sendall(b"\x00" * 200)
                try:
                    # The answer is at most a TLS alert, and then the connection ends.
                    self.assertLess(len(plain.recv(100)), 8)
                except ConnectionResetError:
                    pass
        self.assertIsNone(self.server.process.poll(), self.server.text())

    def test_a_known_peer_that_calls_nothing_is_hung_up_on(self):
        context = ssl.create_default_context(cafile=self.path("certs/ca.crt"))
        context.check_hostname = False
        context.load_cert_chain(self.path("certs/operator.crt"), self.path("certs/operator.key"))
        context.set_alpn_protocols(["h2"])
        with socket.create_connection(("127.0.0.1", port_of(self.address)), timeout=PATIENCE) as plain:
            with context.wrap_socket(plain) as idle:
                idle.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(HTTP2_SETTINGS))
                # For keepalive, a peer that answers pings is alive.
                deadline = time.monotonic() + PATIENCE
                frames = idle.makefile("rb")
                while len(head := frames.read(9)) == 9:
                    payload = frames.read(int.from_bytes(head[:3], "big"))
                    if head[3] == HTTP2_PING and not head[4]:
                        idle.sendall(http2_frame(HTTP2_PING, 1, payload))
                    self.assertLess(time.monotonic(), deadline, "it may stay forever")

    def test_the_control_port_speaks_no_plain_text(self):
        plain = cluster.Process("plain", [f"{cluster.BUILD}/syncline", "status", "--coordinator", self.address])
        self.addCleanup(plain.kill)
        self.assertNotEqual(plain.wait(), 0)
        self.assertIn("seems to speak TLS", plain.text())


class Openings:
    """Makes malformed first bytes of connections: random ones, and damaged ones of every protocol in use."""

    def __init__(self):
        self.random = random.Random(SEED)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        hello = ssl.MemoryBIO()
        try:
            context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
        except ssl.SSLWantReadError:
            pass
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
        frame = struct.pack("<IHH", 0, 64, 0) + b"SYNC" + b"\x00" * 60
        self.models = [hello.read(), UCX_OPENING, preface, frame,
                       b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n"]  # fmt: skip

    def next(self):
        draw = self.random
        if draw.random() < 0.2:
            return draw.randbytes(draw.randrange(1, 400))
        bytes_ = bytearray(draw.choice(self.models))
        for _ in range(draw.randrange(1, 8)):
            bytes_[draw.randrange(len(bytes_))] = draw.randrange(256)
        how = draw.random()
        if how < 0.3:
            del bytes_[draw.randrange(1, len(bytes_)) :]
        elif how < 0.4:
            bytes_ += draw.randbytes(draw.randrange(1, 2000))
        elif how < 0.5:
            other = draw.choice(self.models)
            bytes_[draw.randrange(len(bytes_)) :] = other[draw.randrange(len(other)) :]
        return bytes(bytes_)


def knock(port, opening, source):
    """Connects from an address of its own, so that ports do not run out, and sends. Returns the socket."""
    stranger = socket.socket()
    stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stranger.settimeout(PATIENCE)
    stranger.bind((source, 0))
    try:
        stranger.connect(("127.0.0.1", port))
        stranger.sendall(opening)
    except OSError:
        pass  # it was turned away while it sent
    return stranger


class MalformedOpenings(LeashedTest):
    """Many malformed openings at every port of a running job's services, and of their certificate authority."""

    servers = 1
    server_flags = ("--data-plane", "tls", "--engine-threads", str(ENGINES))

    def certs(self, *arguments):
        run = subprocess.run([f"{cluster.BUILD}/syncline", "certs", *arguments], cwd=self.directory,
                             capture_output=True, text=True, timeout=PATIENCE)  # fmt: skip
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout.strip()

    def start_authority(self):
        authority = os.path.join(self.directory, "certs")
        self.certs("init", authority)
        self.authority = self.start("authority", [f"{cluster.BUILD}/syncline", "certs", "serve", authority,
                                                  "--listen", "127.0.0.1:0"])  # fmt: skip
        return self.authority.await_line(r"ready join=(\S+)").group(1)

    def knock_often(self, ports, count, openings):
        waiting = deque()
        for i in range(count):
            waiting.append(knock(ports[i % len(ports)], openings.next(), f"127.0.1.{1 + i // 20000 % 200}"))
            # Some connections stay open for a while, and others must get in meanwhile.
            if len(waiting) > 40:
                waiting.popleft().close()
        for stranger in waiting:
            stranger.close()

    def figures(self, process):
        with open(f"/proc/{process.process.pid}/status", encoding="ascii") as status:
            resident = next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))
        return len(os.listdir(f"/proc/{process.process.pid}/fd")), resident >> 10

    def await_descriptors(self, process, limit):
        deadline = time.monotonic() + PATIENCE
        while self.figures(process)[0] > limit and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.figures(process)[0]

    def test_end_no_service_and_take_neither_descriptors_nor_memory(self):
        address = self.start_authority()
        services = [self.coordinator, *self.server_processes, self.authority]
        ports = sorted(set().union(*(listening_ports(service.process.pid) for service in services)))
        self.assertEqual(len(ports), 4 + ENGINES, "control, two of admin, the authority's, and the engines'")
        self.assertIn(port_of(address), ports)
        self.allow(5)
        workers = [self.worker(rank, 2, "--steps", "20", "--leash", self.leash) for rank in range(2)]
        self.await_steps(workers, 5)
        descriptors = [self.figures(service)[0] for service in services]
        openings = Openings()
        self.knock_often(ports, OPENINGS // 10, openings)  # what services allocate for the first ones, they keep
        mebibytes = [self.figures(service)[1] for service in services]
        self.knock_often(ports, OPENINGS - OPENINGS // 10, openings)
        for service, calm, before in zip(services, descriptors, mebibytes, strict=True):
            self.assertIsNone(service.process.poll(), service.text())
            self.assertLessEqual(self.await_descriptors(service, calm + 4), calm + 4, service.name)
            self.assertLess(self.figures(service)[1], before + 32, f"{service.name} keeps memory")
        self.allow(20)
        self.assert_same_end(workers)
        with urllib.request.urlopen(f"http://{self.admin}/status", timeout=PATIENCE) as reply:
            self.assertEqual(reply.status, 200)
        token = self.certs("token", "certs", "--role", "reader", "--address", address)
        self.certs("join", token, "--out", "machine")


if __name__ == "__main__":
    cluster.main()
