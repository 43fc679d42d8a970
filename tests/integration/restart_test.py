#!/usr/bin/env python3
"""A coordinator that is killed and comes back with its state: the jobs go on.

    python3 tests/integration/restart_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import re
import signal

import cluster
from cluster import FAILURE_TIMEOUT, PATIENCE, ClusterTest

STEPS = 150
FLAGS = ("--steps", str(STEPS), "--step-ms", "20")


class RestartTest(ClusterTest):
    def train(self, disturb=None, flags=FLAGS):
        """The checksum at the end, and the workers."""
        workers = [self.worker(rank, 2, *flags) for rank in range(2)]
        workers[0].await_line(r"^step 10$")
        if disturb is not None:
            disturb(workers)
        return self.assert_same_end(workers), workers

    def last_step(self, worker):
        return max(int(m) for m in re.findall(r"^step (\d+)$", worker.text(), re.M))

    def assert_nobody_noticed(self, workers):
        for worker in workers:
            self.assertNotRegex(worker.text(), r"epoch changed .*(joins|connection|heartbeat|came)")
        for server in self.server_processes:
            self.assertIsNone(server.process.poll(), server.text())

    def restart(self):
        self.coordinator.kill()
        self.start_coordinator()
        self.coordinator.await_line(r"came back: job 'test' .* with 2 of 2 members")


class Restart(RestartTest):
    def test_killed_coordinator_comes_back_and_the_weights_are_the_same(self):
        undisturbed, _ = self.train()

        def disturb(workers):
            self.coordinator.kill()
            step = self.last_step(workers[0])
            workers[0].await_line(rf"^step {step + 10}$")  # nobody is needed for that
            self.start_coordinator()
            self.coordinator.await_line(r"the coordinator came back: job 'test' goes on at step \d+ "
                                        r"in epoch \d+ with 2 of 2 members")  # fmt: skip
            job = self.status_of("test")
            self.assertEqual(job["phase"], "running")
            self.assertEqual(len(job["members"]), 2)
            self.assertGreater(int(job["step"]), step)

        checksum, workers = self.train(disturb)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_decisions_go_on_after_two_restarts(self):
        flags = (*FLAGS, "--clip", "0.01")
        undisturbed, _ = self.train(flags=flags)

        def disturb(workers):
            for _ in range(2):
                self.restart()
                step = self.last_step(workers[0])
                workers[0].await_line(rf"^step {step + 10}$")

        checksum, workers = self.train(disturb, flags)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_a_coordinator_that_is_stopped_comes_back_too(self):
        undisturbed, _ = self.train()

        def disturb(_):
            self.coordinator.signal(signal.SIGTERM)
            self.coordinator.wait()
            self.start_coordinator()
            self.coordinator.await_line(r"came back: job 'test' .* 2 of 2 members")

        checksum, workers = self.train(disturb)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_a_worker_that_dies_meanwhile_is_dropped(self):
        workers = [self.worker(rank, 2, *FLAGS) for rank in range(2)]
        workers[0].await_line(r"^step 10$")
        self.coordinator.kill()
        workers[1].kill()
        self.start_coordinator()
        self.coordinator.await_line(r"did not come back within 8s")
        self.assertEqual(workers[0].wait(), 0, workers[0].text())
        self.assertIn("members=1", workers[0].text())

    def test_a_server_that_dies_meanwhile_fails_the_job(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "10") for rank in range(2)]
        workers[0].await_line(r"^step 5$")
        self.coordinator.kill()
        self.server_processes[1].kill()
        self.start_coordinator()
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"server \d \(.*\) did not come back within 8s")


class RestartOverTls(RestartTest):
    server_flags = ("--data-plane", "tls")

    def test_keys_outlive_the_coordinator(self):
        workers = [self.worker(rank, 2, *FLAGS) for rank in range(2)]
        workers[1].await_line(r"^step 10$")
        self.restart()
        workers[1].kill()
        again = self.worker(1, 2, *FLAGS)
        again.await_line(r"^joined step=[1-9]")
        self.assert_same_end([workers[0], again])


class NobodyComesBack(ClusterTest):
    worker_env = {"SYNCLINE_PATIENCE": f"{1.5 * FAILURE_TIMEOUT}s"}

    def test_lost_coordinator_ends_workers_with_a_reason_to_retry(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "10") for rank in range(2)]
        workers[0].await_line(r"^step 5$")
        self.coordinator.kill()
        for worker in workers:
            self.assertEqual(worker.wait(timeout=PATIENCE), 138)
            self.assertRegex(worker.text(), "the coordinator at .* is away; waiting for it for 6s")
            self.assertRegex(worker.text(), "lost the coordinator at")


if __name__ == "__main__":
    cluster.main()
