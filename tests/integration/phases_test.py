#!/usr/bin/env python3
"""The coordinator reports where the time of steps goes, for workers that are not equally fast.

    python3 tests/integration/phases_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import sys
import time
import urllib.request

import cluster

SLOW_MS = 300  # computing time of the slow worker per step; the other one waits for it


class Phases(cluster.ClusterTest):
    servers = 2

    def of_a_step(self, first, last, key, number):
        """Returns the milliseconds of each phase per step between two statuses."""
        before, after = (next(one for one in status if one[key] == number) for status in (first, last))
        before, after = before.get("phases", before), after.get("phases", after)
        steps = after["steps"] - before["steps"]
        self.assertGreater(steps, 0)
        return {phase: 1000 * (after["seconds"][phase] - seconds) / steps for phase, seconds in before["seconds"].items()}

    def await_status(self, steps):
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            status = self.status_of("test")
            done = [member["phases"]["steps"] for member in status["members"]]
            if len(done) == 2 and min(done) >= steps and len(status["server_phases"]) == 2:
                return status
            time.sleep(0.1)
        self.fail(f"no status with {steps} steps in the phases, but {status}")

    def test_the_slow_worker_computes_and_the_other_waits_for_it(self):
        workers = [self.worker(0, 2, "--steps", "100000", "--step-ms", "1"),
                   self.worker(1, 2, "--steps", "100000", "--step-ms", str(SLOW_MS))]  # fmt: skip
        workers[0].await_line(r"^step 5$")
        began = time.monotonic()
        first = self.await_status(5)
        last = self.await_status(5 + 12)
        passed = time.monotonic() - began
        fast = self.of_a_step(first["members"], last["members"], "rank", 0)
        slow = self.of_a_step(first["members"], last["members"], "rank", 1)
        # Neither bound depends on the speed of the machine.
        self.assertGreater(slow["compute"], SLOW_MS * 0.98)
        self.assertGreater(fast["others"], fast["compute"])
        self.assertGreater(fast["others"], 0.5 * SLOW_MS)
        self.assertGreater(fast["others"], 3 * slow["others"])
        # The phases of each worker add up to the time that has passed, except for a heartbeat.
        steps = last["members"][0]["phases"]["steps"] - first["members"][0]["phases"]["steps"]
        for phases in (fast, slow):
            self.assertLess(abs(sum(phases.values()) * steps / 1000 - passed), 0.25 * passed + 1.0)
        for server in (0, 1):
            phases = self.of_a_step(first["server_phases"], last["server_phases"], "server", first["server_phases"][server]["server"])
            self.assertGreater(phases["hold"], 0.5 * SLOW_MS)
            self.assertGreater(phases["step"], 0)
            self.assertEqual(phases["decide"], 0, "nothing is decided in this job")

    def test_prometheus_has_them_of_workers_and_servers(self):
        worker = self.worker(0, 1, "--steps", "100000", "--step-ms", "5")
        worker.await_line(r"^step 50$")
        self.assertRegex(self.await_metric(self.admin, "step_phase_steps_total"), r'job_name="test",rank="0"')
        admin = self.server_processes[0].await_line(r"ready control=\S+ admin=(\S+)").group(1)
        self.assertRegex(self.await_metric(admin, "server_phase_steps_total"), r'job_name="test"')

    def await_metric(self, admin, name):
        """Waits for and returns the first line of the metric that is not zero."""
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as reply:
                lines = reply.read().decode().splitlines()
            for line in lines:
                if line.startswith(f"syncline_{name}{{") and float(line.split()[-1]) > 0:
                    return line
            time.sleep(0.1)
        self.fail(f"{name} never appeared in:\n" + "\n".join(lines))


if __name__ == "__main__":
    sys.exit(cluster.main())
