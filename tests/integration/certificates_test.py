#!/usr/bin/env python3
"""A cluster with certificates of `syncline certs`, as docs/tls.md has it, and what each of them may not do.

    python3 tests/integration/certificates_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import argparse
import json
import os
import subprocess
import sys
import unittest
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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default=cluster.BUILD)
    arguments, rest = parser.parse_known_args()
    cluster.BUILD = os.path.abspath(arguments.build)
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
