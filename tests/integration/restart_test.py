#!/usr/bin/env python3
"""A coordinator is killed and comes back with its state, and the jobs continue.

    python3 tests/integration/restart_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import signal

import cluster
from cluster import FAILURE_TIMEOUT, PATIENCE, ClusterTest, LeashedTest

STEPS = 80
FLAGS = ("--steps", str(STEPS), "--step-ms", "1")


class RestartTest(LeashedTest):
    """The coordinator of a job is killed or stopped, and started again."""

    def start_workers(self, *flags):
        return [self.worker(rank, 2, *FLAGS, "--leash", self.leash, *flags) for rank in range(2)]

    def train(self, disturb, *flags):
        """Trains, and returns the checksum at the end and the workers. Calls `disturb` after 20 steps."""
        self.allow(20)
        workers = self.start_workers(*flags)
        self.await_steps(workers, 20)
        disturb(workers)
        self.allow(STEPS)
        return self.assert_same_end(workers), workers

    def assert_nobody_noticed(self, workers):
        for worker in workers:
            self.assertNotRegex(worker.text(), r"epoch changed .*(joins|connection|heartbeat|came)")
        for server in self.server_processes:
            self.assertIsNone(server.process.poll(), server.text())

    def restart(self):
        self.coordinator.kill()
        self.start_coordinator()
        self.coordinator.await_line(r"came back: job 'test' .* with 2 of 2 members")


def nothing(_):
    pass


class Restart(RestartTest):
    def test_killed_coordinator_comes_back_and_the_weights_are_the_same(self):
        undisturbed, _ = self.train(nothing)

        def disturb(workers):
            self.coordinator.kill()
            self.allow(40)
            self.await_steps(workers, 40)  # this needs no coordinator
            self.start_coordinator()
            self.coordinator.await_line(r"the coordinator came back: job 'test' goes on at step \d+ "
                                        r"in epoch \d+ with 2 of 2 members")  # fmt: skip
            job = self.status_of("test")
            self.assertEqual(job["phase"], "running")
            self.assertEqual(len(job["members"]), 2)
            self.assertGreater(int(job["step"]), 20)

        checksum, workers = self.train(disturb)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_decisions_go_on_after_two_restarts(self):
        undisturbed, _ = self.train(nothing, "--clip", "0.01")

        def disturb(workers):
            for steps in (40, 60):
                self.allow(steps)  # they run, and then wait for a decision
                self.restart()
                self.await_steps(workers, steps)

        checksum, workers = self.train(disturb, "--clip", "0.01")
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_a_coordinator_that_is_stopped_comes_back_too(self):
        undisturbed, _ = self.train(nothing)

        def disturb(_):
            self.coordinator.signal(signal.SIGTERM)
            self.coordinator.wait()
            self.start_coordinator()
            self.coordinator.await_line(r"came back: job 'test' .* 2 of 2 members")

        checksum, workers = self.train(disturb)
        self.assertEqual(checksum, undisturbed)
        self.assert_nobody_noticed(workers)

    def test_a_worker_that_dies_meanwhile_is_dropped(self):
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        self.coordinator.kill()
        workers[1].kill()
        self.start_coordinator()
        self.coordinator.await_line(r"did not come back within 8s")
        self.allow(STEPS)
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
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        self.restart()
        workers[1].kill()
        again = self.worker(1, 2, *FLAGS, "--leash", self.leash)
        again.await_line(r"^joined step=[1-9]")
        self.allow(STEPS)
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
