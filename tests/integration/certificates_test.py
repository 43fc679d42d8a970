#!/usr/bin/env python3
"""A cluster with certificates of `syncline certs` (docs/tls.md), and actions that each of them must not allow.

    python3 tests/integration/certificates_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.request

import cluster
from cluster import FAILURE_TIMEOUT


class Certificates(cluster.CertifiedTest):
    def launch(self, *flags, job="default"):
        program = [f"{cluster.BUILD}/steps_worker", "--steps", "10"]
        return self.run_syncline("run", "--coordinator", self.address, "--run-id", "first", "--job", job,
                                 "--nproc-per-node", "2", "--failure-timeout", f"{FAILURE_TIMEOUT}s",
                                 *flags, "--", *program)  # fmt: skip

    def assert_refused(self, run, *words):
        self.assertNotEqual(run.returncode, 0, run.stdout)
        for word in words:
            self.assertIn(word, run.stderr + run.stdout)

    def test_a_job_trains_and_is_shown_to_those_who_may_see_it(self):
        self.start_server()
        run = self.launch(*self.files("worker-default"))
        self.assertEqual(run.returncode, 0, run.stderr + run.stdout)
        self.assertIn("done step=10", run.stdout)
        for who in ("operator", "worker-default"):
            self.assertIn("default", self.assert_runs("status", "--coordinator", self.address, *self.files(who)))

    def audit(self, message):
        with open(self.path("audit"), encoding="utf-8") as file:
            return [line for line in map(json.loads, file) if line["msg"] == message]

    def test_what_happens_at_the_door_is_written_down(self):
        self.start_server()
        self.launch(*self.files("worker-default"))
        self.run_syncline("update", "default", "--option", "lr=1", "--coordinator", self.address,
                          *self.files("worker-default"))  # fmt: skip
        self.assertEqual(os.stat(self.path("audit")).st_mode & 0o777, 0o600)
        admitted = [(line["as"], line["job"], line["identity"]) for line in self.audit("admitted")]
        worker = ("worker", "default", "worker of job 'default'")
        self.assertEqual(sorted(admitted), [("server", "", "server"), worker, worker])
        (refused,) = self.audit("refused")
        shown = self.assert_runs("certs", "show", "certs/worker-default.crt")
        self.assertIn(refused["serial"], shown)
        self.assertIn("which may not change job 'default'", refused["reason"])
        self.assertRegex(refused["peer"], r"^ipv4:127\.0\.0\.1:\d+$")
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=10) as reply:
            self.assertIn('syncline_auth_refused_total{door="control",reason="role"} 1', reply.read().decode())

    def test_certificates_open_only_their_own_doors(self):
        self.start_server()
        update = ("update", "default", "--option", "lr=1", "--coordinator", self.address)
        self.assert_refused(self.run_syncline(*update, *self.files("worker-default")),
                            "worker of job 'default', which may not change job 'default'", "--role operator")  # fmt: skip
        self.assert_refused(self.run_syncline(*update, *self.files("server")), "may not change job")
        self.assert_refused(self.run_syncline(*update, *self.files("operator")), "no job 'default' is running")
        self.assert_refused(self.launch(*self.files("worker-default"), job="other"), "--role worker --job other")
        thief = self.serve("thief", "--role", "server", "--coordinator", self.address, *self.files("worker-default"))
        self.assertEqual(thief.wait(), 2, thief.text())
        self.assertIn("may not attach as a server", thief.text())
        self.assertIn("refused", self.coordinator.text())

    def test_members_believe_a_coordinator_only(self):
        false = self.serve("false coordinator", "--role", "coordinator", "--listen", "127.0.0.1:0",
                           "--state-dir", "other", *self.files("server"))  # fmt: skip
        self.assertEqual(false.wait(), 2, false.text())
        self.assertIn("is that of the server", false.text())

    def test_renewed_certificates_are_served_without_a_restart(self):
        self.start_server()
        for role in ("coordinator", "operator"):
            self.assert_runs("certs", "issue", "certs", "--role", role, "--overwrite")
        self.assert_runs("status", "--coordinator", self.address, *self.files("operator"))


class Joining(cluster.CertifiedTest):
    """A new machine joins, without a copied key."""

    def answer(self, listen="127.0.0.1:0"):
        process = cluster.Process("authority", ["sh", "-c", 'cd "$0" && exec "$@"', self.folder.name,
                                                f"{cluster.BUILD}/syncline", "certs", "serve", "certs",
                                                "--listen", listen])  # fmt: skip
        self.addCleanup(process.kill)
        self.authority = process
        return process.await_line(r"ready join=(\S+) authority=[0-9a-f]{64}").group(1)

    def token(self, address, *flags):
        run = self.run_syncline("certs", "token", "certs", "--address", address, *flags)
        self.assertEqual(run.returncode, 0, run.stderr)
        (line,) = run.stdout.splitlines()
        return line

    def join(self, token, machine):
        return subprocess.run([f"{cluster.BUILD}/syncline", "certs", "join", "-", "--out", machine], cwd=self.folder.name,
                              input=token, capture_output=True, text=True, timeout=120)  # fmt: skip

    def test_it_trains_with_what_one_token_gives_and_no_other_machine_does(self):
        self.start_server()
        address = self.answer()
        token = self.token(address, "--role", "worker", "--job", "default")
        joined = self.join(token, "machine")
        self.assertEqual(joined.returncode, 0, joined.stderr)
        self.assertIn("--tls-cert machine/worker-default.crt", joined.stdout)
        self.assertEqual(os.stat(self.path("machine/worker-default.key")).st_mode & 0o777, 0o600)
        worker = self.worker(0, 1, "--steps", "5", certificate="../machine/worker-default")
        self.assertEqual(worker.wait(), 0, worker.text())
        self.authority.signal(2)
        self.assertEqual(self.authority.wait(), 130, self.authority.text())
        self.answer(address)  # the restarted authority remembers
        late = self.join(token, "another")
        self.assertNotEqual(late.returncode, 0, late.stdout)
        self.assertIn("was used once", late.stderr)
        self.assertFalse(os.path.exists(self.path("another/worker-default.key")))
        with open(self.path("certs/audit.log"), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        self.assertEqual([line["msg"] for line in lines], ["issued", "made a token", "issued", "refused"])
        self.assertIn(lines[2]["serial"], self.assert_runs("certs", "show", "machine/worker-default.crt"))

    def test_what_it_got_is_for_that_job_and_role_alone_and_can_be_taken_back(self):
        token = self.token(self.answer(), "--role", "worker", "--job", "other")
        self.assertEqual(self.join(token, "machine").returncode, 0)
        thief = self.worker(0, 1, "--steps", "1", certificate="../machine/worker-other")
        self.assertNotEqual(thief.wait(), 0, thief.text())
        self.assertIn("which may not attach as a worker of job 'default'", thief.text())
        self.assert_runs("certs", "revoke", "certs", "machine/worker-other.crt")

    def serial(self, path):
        return re.search(r"serial +(\S+)", self.assert_runs("certs", "show", path)).group(1)

    def renew(self, path, address):
        return self.run_syncline("certs", "renew", path, address)

    def test_it_trains_on_with_what_it_renewed_and_a_thief_is_noticed(self):
        self.start_server()
        address = self.answer()
        token = self.token(address, "--role", "worker", "--job", "default")
        self.assertEqual(self.join(token, "machine").returncode, 0)
        shutil.copytree(self.path("machine"), self.path("thief"))
        first = self.serial("machine/worker-default.crt")
        run = self.renew("machine/worker-default.crt", address)
        self.assertEqual(run.returncode, 0, run.stderr)
        second = self.serial("machine/worker-default.crt")
        self.assertNotEqual(second, first)
        worker = self.worker(0, 1, "--steps", "5", certificate="../machine/worker-default")
        self.assertEqual(worker.wait(), 0, worker.text())
        thief = self.renew("thief/worker-default.crt", address)
        self.assertNotEqual(thief.returncode, 0, thief.stdout)
        self.assertIn("its key was stolen", thief.stderr)
        self.assert_runs("certs", "revoke", "certs", "--serial", first)
        with open(self.path("certs/revoked"), encoding="utf-8") as file:
            self.assertIn(second, file.read())
        late = self.renew("machine/worker-default.crt", address)
        self.assertIn("was revoked", late.stderr)

    def test_one_that_watches_renews_in_time_and_ends_once_it_is_taken_back(self):
        address = self.answer()
        token = self.token(address, "--role", "worker", "--job", "default", "--hours", "0.01")
        self.assertEqual(self.join(token, "machine").returncode, 0)
        path = "machine/worker-default.crt"
        first = self.serial(path)
        watch = cluster.Process("watch", ["sh", "-c", 'cd "$0" && exec "$@"', self.folder.name, f"{cluster.BUILD}/syncline",
                                          "certs", "renew", path, address, "--watch"])  # fmt: skip
        self.addCleanup(watch.kill)
        watch.await_line("is renewed in time")
        deadline = time.monotonic() + cluster.PATIENCE
        while self.serial(path) == first and time.monotonic() < deadline:
            time.sleep(0.2)
        self.assertNotEqual(self.serial(path), first, watch.text())
        self.assert_runs("certs", "revoke", "certs", path)
        self.assertEqual(watch.wait(), 1, watch.text())
        self.assertIn("was revoked", watch.text())

    def test_nothing_of_a_good_token_is_said_to_another_authority(self):
        self.assert_runs("certs", "init", "false")
        token = self.token("127.0.0.1:1", "--role", "server")
        liar = cluster.Process("liar", ["sh", "-c", 'cd "$0" && exec "$@"', self.folder.name, f"{cluster.BUILD}/syncline",
                                        "certs", "serve", "false", "--listen", "127.0.0.1:0"])  # fmt: skip
        self.addCleanup(liar.kill)
        address = liar.await_line(r"ready join=(\S+)").group(1)
        run = self.join(token.replace("127.0.0.1:1", address), "machine")
        self.assertNotEqual(run.returncode, 0, run.stdout)
        self.assertIn("the token was not sent to it", run.stderr)
        self.assertEqual(os.stat(self.path("false/audit.log")).st_size, 0)


if __name__ == "__main__":
    cluster.main()
