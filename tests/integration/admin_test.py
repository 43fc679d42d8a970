#!/usr/bin/env python3
"""Tests of the admin port beyond loopback: TLS, the readers' token, streams (docs/tls.md).

    python3 tests/integration/admin_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import cluster

TOKEN = "a-token-of-some-length-0123456789"


class AdminPort(cluster.CertifiedTest):
    coordinator_flags = ("--admin-listen", "0.0.0.0:0", "--admin-token-file", "token")

    def setUp(self):
        super().setUp()
        self.port = int(self.admin.rsplit(":", 1)[1])

    def serve(self, name, *flags):
        self.write_token(TOKEN)
        return super().serve(name, *flags)

    def write_token(self, token):
        with open(self.path("token.new"), "w") as file:
            file.write(f"{token}\n")
        os.rename(self.path("token.new"), self.path("token"))

    def ask(self, path, token=TOKEN, scheme="https", ca="certs/ca.crt"):
        """Returns status and body."""
        request = urllib.request.Request(f"{scheme}://127.0.0.1:{self.port}{path}")
        if token:
            request.add_header("Authorization", f"Bearer {token}")
        context = ssl.create_default_context(cafile=self.path(ca))
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def await_answer(self, wanted, *arguments):
        deadline = time.monotonic() + cluster.PATIENCE
        while (answer := self.ask(*arguments)[0]) != wanted:
            self.assertLess(time.monotonic(), deadline, f"{arguments} is answered with {answer}, not {wanted}")

    def serial(self):
        context = ssl.create_default_context(cafile=self.path("certs/ca.crt"))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=10, context=context)
        connection.connect()
        try:
            self.assertEqual(connection.sock.version(), "TLSv1.3")
            return connection.sock.getpeercert()["serialNumber"]
        finally:
            connection.close()

    def test_it_is_sealed_and_read_by_those_who_have_the_token(self):
        status, body = self.ask("/status")
        self.assertEqual((status, json.loads(body)["jobs"]), (200, []))
        self.assertIn("syncline_build_info", self.ask("/metrics")[1])
        for path in ("/", "/status", "/metrics", "/history", "/events", "/stream", "/nothing"):
            self.assertEqual(self.ask(path, token=None)[0], 401, path)
            self.assertEqual(self.ask(path, token=TOKEN[:-1])[0], 401, path)
            self.assertEqual(self.ask(path, scheme="http")[0], 400, path)
        for scheme in ("https", "http"):
            self.assertEqual(self.ask("/livez", token=None, scheme=scheme), (200, "alive\n"))
            self.assertEqual(self.ask("/readyz", token=None, scheme=scheme), (200, "ready\n"))
        self.assert_runs("certs", "init", "foreign")
        with self.assertRaisesRegex(urllib.error.URLError, "CERTIFICATE_VERIFY_FAILED"):
            self.ask("/livez", ca="foreign/ca.crt")
        self.assertNotIn(TOKEN[:-1], self.coordinator.text())

    def test_certificate_and_token_are_replaced_without_a_restart(self):
        before = self.serial()
        self.assert_runs("certs", "issue", "certs", "--role", "coordinator", "--overwrite")
        deadline = time.monotonic() + cluster.PATIENCE
        while self.serial() == before:
            self.assertLess(time.monotonic(), deadline, "the old certificate is still shown")
        self.write_token("another-token-0123456789")
        self.await_answer(200, "/status", "another-token-0123456789")
        self.assertEqual(self.ask("/status")[0], 401)
        self.assertIsNone(self.coordinator.process.poll())

    def test_a_server_shows_its_own_certificate(self):
        self.assert_runs("certs", "issue", "certs", "--role", "server", "--host", "127.0.0.1", "--overwrite")
        server = self.serve("server", "--role", "server", "--coordinator", self.address, "--admin-listen", "0.0.0.0:0",
                            *self.files("server"))  # fmt: skip
        self.port = int(server.await_line(r"ready control=\S+ admin=\S+:(\d+)").group(1))
        server.await_line(r"anyone who can reach the admin port may read it")
        self.assertIn("syncline_server_memory_bytes", self.ask("/metrics", token=None)[1])

    def test_curl_and_a_stream(self):
        if shutil.which("curl") is None:
            self.skipTest("no curl")
        read = subprocess.run(
            ["curl", "-sN", "--max-time", "12", "--cacert", self.path("certs/ca.crt"), "-H", f"Authorization: Bearer {TOKEN}",
             f"https://127.0.0.1:{self.port}/stream"], stdout=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
        self.assertEqual(read.returncode, 28, "the stream ended by itself")
        events = [event.splitlines() for event in read.stdout.split("\n\n")[:-1]]  # the last one is cut off
        names = [event[0].removeprefix("event: ") for event in events]
        self.assertEqual(names[:4], ["history", "events", "advice", "status"])
        self.assertGreaterEqual(names.count("latest"), 3, names)
        self.assertGreaterEqual(names.count("advice"), 2, names)
        for event in events:
            json.loads("\n".join(line.removeprefix("data: ") for line in event[1:]))


class AdminPortRefused(unittest.TestCase):
    def test_beyond_loopback_it_wants_tls_or_a_word(self):
        serve = [f"{cluster.BUILD}/syncline", "serve", "--role", "server", "--coordinator", "127.0.0.1:1"]
        refused = subprocess.run([*serve, "--admin-listen", "0.0.0.0:0"], capture_output=True, text=True, timeout=60)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        for word in ("--admin-listen 0.0.0.0:0", "--tls-cert", "--admin-plain"):
            self.assertIn(word, refused.stderr)
        plain = cluster.Process("plain", [*serve, "--admin-listen", "0.0.0.0:0", "--admin-plain"])
        self.addCleanup(plain.kill)
        port = plain.await_line(r"plain text, and answers anyone.*admin=\S+:(\d+)").group(1)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/livez", timeout=10) as reply:
            self.assertEqual(reply.read(), b"alive\n")


class Cardinality(cluster.ClusterTest):
    """A coordinator has the number of series that server/admin/README.md says."""

    servers = 0
    MEMBERS = 200

    def of_readme(self):
        with open(os.path.join(os.path.dirname(__file__), "../../server/admin/README.md")) as file:
            text = " ".join(file.read().split())
        found = re.search(r"A process has (\d+) series of its own;.* a coordinator (\d+), .* those of workers, (\d+) for each member", text)
        self.assertTrue(found, "the README no longer says how many series there are")
        own, of_a_job, of_a_member = map(int, found.groups())
        return own + of_a_job + self.MEMBERS * of_a_member

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as reply:
            return reply.read().decode()

    def test_it_is_bounded_as_documented(self):
        members = self.start("members", [f"{cluster.BUILD}/syncline", "bench", "control", "--scenario", "steady", "--seconds", "120",
                                         "--coordinator", self.address, "--workers", str(self.MEMBERS), "--servers", "1",
                                         "--failure-timeout", str(cluster.FAILURE_TIMEOUT)])  # fmt: skip
        deadline = time.monotonic() + cluster.PATIENCE
        while (text := self.metrics()).count("syncline_worker_heartbeat_age_seconds{") < self.MEMBERS:
            self.assertIsNone(members.process.poll(), members.text())
            self.assertLess(time.monotonic(), deadline, "not all members are there")
            time.sleep(0.1)
        series = [line for line in text.splitlines() if line and not line.startswith("#")]
        self.assertEqual(len(series), self.of_readme())
        self.assertEqual(len({line.rsplit(" ", 1)[0] for line in series}), len(series), "a series is there twice")
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
            self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == "__main__":
    sys.exit(cluster.main())
