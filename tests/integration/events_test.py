#!/usr/bin/env python3
"""What happened to a job is said once, with its cause, and is still known when the coordinator was killed.

    python3 tests/integration/events_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import json
import re
import sys
import time

import cluster

KINDS = json.load(open(cluster.SCHEMA))["definitions"]["event"]["properties"]["kind"]["enum"]


class EventsTest(cluster.LeashedTest):
    servers = 1

    def events(self, *arguments):
        shown = self.syncline("events", *arguments, "--json")
        self.assertEqual(shown.returncode, 0, shown.stderr)
        return [json.loads(line) for line in shown.stdout.splitlines()]

    def await_event(self, kind, pattern, job="test"):
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            # Before the first ones are stored there are none of such a job.
            lines = self.syncline("events", job, "--json").stdout.splitlines()
            for event in map(json.loads, lines):
                if event["kind"] == kind and re.search(pattern, event["what"]):
                    return event
            time.sleep(0.05)
        self.fail(f"no {kind} event says /{pattern}/: {self.events(job)}")


class Events(EventsTest):
    def test_they_have_causes_and_outlive_the_coordinator(self):
        self.allow(20)
        workers = [self.worker(rank, 3, "--steps", "1000", "--leash", self.leash) for rank in range(3)]
        self.await_steps(workers, 20)
        follow = self.start("follow", [f"{cluster.BUILD}/syncline", "events", "test", "--follow",
                                       "--coordinator", self.address])  # fmt: skip
        follow.await_line(r"epoch 1 with 3 members: the job begins")
        self.assertEqual(self.update("--option", "lr=0.0005").returncode, 0)
        self.await_event("settings", r"^lr from 0\.001 to 0\.0005$")
        workers[2].kill()
        death = self.await_event("death", r"^worker 2 \(.*\) was dropped: its connection broke")
        # Ten steps and more were made, by the word of a heartbeat.
        self.assertGreaterEqual(death["step"], 10)
        self.await_event("epoch", r"^epoch 3 with 2 members: worker 2 ")
        before = self.events("test")
        self.coordinator.kill()
        self.start_coordinator()
        recovery = self.await_event("recovery", r"^goes on .* s after the loss of the coordinator$")
        self.assertGreater(recovery["seconds"], 0)
        after = self.events("test")
        self.assertEqual(after[: len(before)], before)
        self.assertEqual([event["number"] for event in after], list(range(1, len(after) + 1)))
        self.assertTrue({event["kind"] for event in after} <= set(KINDS))
        self.assertEqual([event["kind"] for event in before[:4]], ["join", "join", "join", "epoch"])
        # Followed through the restart, each once.
        follow.await_line(r"recovery .* after the loss of the coordinator")
        self.assertEqual(len(re.findall(r"was dropped", follow.text())), 1, follow.text())
        # The cluster's own.
        cluster_events = [event["what"] for event in self.events() if event["job"] == 0]
        self.assertRegex(cluster_events[0], r"the coordinator began")
        self.assertTrue([what for what in cluster_events if "was started anew, life 2; 1 job goes on" in what], cluster_events)
        # The last ones in the status, too, by its schema.
        self.assertEqual(self.status_of("test")["events"], after[-10:])

    def test_a_job_that_is_over_still_has_them_and_a_wrong_name_is_met_with_the_right_one(self):
        self.allow(1000)
        workers = [self.worker(0, 1, "--steps", "5", "--leash", self.leash)]
        self.assert_same_end(workers)
        self.await_event("end", r"^the job is over: all workers left$")
        refused = self.syncline("events", "tests")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("did you mean 'test'?", refused.stderr)


if __name__ == "__main__":
    sys.exit(cluster.main())
