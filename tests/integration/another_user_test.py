#!/usr/bin/env python3
"""Another user of the host may do nothing to a coordinator on loopback without TLS, unless that allows it."""

import json
import os
import shutil
import subprocess
import tempfile
import time

import cluster
from cluster import PATIENCE


class AnotherUserOfTheHost(cluster.ClusterTest):
    """Without TLS, on loopback, the coordinator is for its own user."""

    servers = 0
    NOBODY = 65534

    def as_nobody(self, *command):
        if os.getuid() != 0:
            self.skipTest("only root can be another user")
        folder = tempfile.mkdtemp(prefix="syncline-nobody-")
        self.addCleanup(shutil.rmtree, folder)
        os.chmod(folder, 0o755)
        binary = shutil.copy(f"{cluster.BUILD}/syncline", folder)
        os.chmod(binary, 0o755)
        return subprocess.run([binary, *command], user=self.NOBODY, group=self.NOBODY, extra_groups=[], cwd=folder,
                              capture_output=True, text=True, timeout=PATIENCE, check=False)  # fmt: skip

    def await_refusal(self, log):
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with open(log, encoding="utf-8") as lines:
                for line in lines:
                    if line.endswith("\n") and json.loads(line)["msg"] == "refused":
                        return json.loads(line)
            time.sleep(0.05)
        self.fail("no refusal in the audit log")

    def test_it_is_refused_and_told_how_to_be_let_in(self):
        log = os.path.join(self.state.name, "audit")
        self.coordinator.kill()
        self.coordinator_flags = ("--audit-log", log)
        self.start_coordinator()
        self.assertEqual(self.syncline("status").returncode, 0, "root is")
        stranger = self.as_nobody("status", "--coordinator", self.address)
        self.assertNotEqual(stranger.returncode, 0, stranger.stdout)
        self.assertIn(f"you are user {self.NOBODY} of this host", stranger.stderr)
        self.assertIn("--insecure", stranger.stderr)
        self.assertIn(f"user {self.NOBODY}", self.await_refusal(log)["reason"])

    def test_insecure_lets_it_in(self):
        self.coordinator.kill()
        self.coordinator_flags = ("--insecure",)
        self.start_coordinator()
        let_in = self.as_nobody("status", "--coordinator", self.address)
        self.assertEqual(let_in.returncode, 0, let_in.stderr)


if __name__ == "__main__":
    cluster.main()
