#!/usr/bin/env python3
"""`syncline diagnose` beside a healthy job, and while one of its processes stands still or is gone.

    python3 tests/integration/diagnose_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import os
import signal
import sys
import time
import unittest

import cluster

# A member that stands still is late after 0.2 F and dropped after 0.6 F: long enough to ask in between.
cluster.FAILURE_TIMEOUT = 60.0
SCHEMA = os.path.join(os.path.dirname(__file__), "../../docs/diagnose.schema.json")


class Diagnose(cluster.ClusterTest):
    def ask(self, *arguments):
        return self.syncline("diagnose", "--watch", "1s", "--failure-timeout", f"{cluster.FAILURE_TIMEOUT}s", "--admin",
                             self.admin, *arguments)  # fmt: skip

    def diagnose(self, *arguments):
        """Returns its exit code and its output."""
        asked = self.ask("--json", *arguments)
        said = json.loads(asked.stdout)
        if cluster.jsonschema:
            with open(SCHEMA) as file:
                cluster.jsonschema.validate(said, json.load(file))
        return asked.returncode, said

    def await_report(self, expected):
        """Waits for an answer with a link that `expected` accepts. Returns the answer and the link."""
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            code, said = self.diagnose()
            for link in said["links"]:
                if expected(link):
                    return code, said, link
        self.fail(f"never said what was expected, but:\n{json.dumps(said, indent=1)}")

    def test_it_looks_at_every_link_and_names_the_worker_that_stands_still(self):
        workers = [self.worker(rank, 2, "--steps", "1000000", "--step-ms", "20") for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        is_own_time = lambda link: link["check"] == "own_time" and link["seconds"] is not None
        code, said, _ = self.await_report(is_own_time)
        looked_at = [(link["check"], link["role"], link["number"]) for link in said["links"]]
        for check, role, numbers in (("control", "coordinator", [None]), ("admin", "coordinator", [None]),
                                     ("heartbeat", "server", [0, 1]), ("progress", "job", [None]),
                                     ("heartbeat", "worker", [0, 1]), ("own_time", "worker", [0, 1])):  # fmt: skip
            for number in numbers:
                self.assertIn((check, role, number), looked_at)
        self.assertEqual(code, 1 if said["result"] == "fail" else 0, said)
        workers[1].signal(signal.SIGSTOP)
        is_late = lambda link: (link["check"], link["number"], link["role"]) == ("heartbeat", 1, "worker") and link["change"]
        _, _, link = self.await_report(is_late)
        self.assertIn("no heartbeat for", link["what"])
        workers[1].signal(signal.SIGCONT)

    def test_it_names_the_server_that_stands_still(self):
        number = int(self.server_processes[1].await_line(r"ready control=.* server=(\d+)").group(1))
        self.server_processes[1].signal(signal.SIGSTOP)
        is_late = lambda link: (link["check"], link["number"]) == ("heartbeat", number) and link["change"]
        _, said, link = self.await_report(is_late)
        self.server_processes[1].signal(signal.SIGCONT)
        self.assertEqual(link["role"], "server")
        self.assertIn("no heartbeat for", link["what"])
        others = [link["result"] for link in said["links"] if link["check"] == "control"]
        self.assertIn(others, (["ok"], ["warn"]))

    def test_without_a_coordinator_it_says_why_in_the_form_that_was_asked_for(self):
        self.coordinator.kill()
        code, said = self.diagnose()
        self.assertEqual(code, 5)
        self.assertEqual([link["check"] for link in said["links"]], ["control", "admin"])
        self.assertIn("nothing listens there", said["links"][0]["what"])
        asked = self.ask()
        self.assertEqual(asked.returncode, 5)
        self.assertRegex(asked.stdout, r"fail +here -> coordinator ")
        self.assertLessEqual(max(map(len, asked.stdout.splitlines())), 80)

    def test_it_tries_the_ports_that_are_named(self):
        code, said = self.diagnose("--reach", self.address, "--reach", "127.0.0.1:1")
        self.assertEqual(code, 1)
        ports = {link["to"]: link["result"] for link in said["links"] if link["check"] == "port"}
        self.assertEqual(ports.pop("127.0.0.1:1"), "fail")
        self.assertIn(ports[self.address], ("ok", "warn"))

    def test_what_makes_no_sense_is_refused_with_the_reason(self):
        for arguments, reason in ((("--watch", "10ms"), "must be in [1s, 1h]"), (("--reach", "10.0.0.1"), "must be HOST:PORT"),
                                  (("--failure-timeout", "1ms"), "500")):  # fmt: skip
            asked = self.syncline("diagnose", *arguments)
            self.assertEqual(asked.returncode, 2, asked.stderr)
            self.assertIn(reason, asked.stderr)


if __name__ == "__main__":
    sys.exit(cluster.main())
