#!/usr/bin/env python3
"""Jobs that continue once a quorum of their workers has contributed (docs/modes.md).

    python3 tests/integration/quorum_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import signal

import cluster

STEPS = 300


class Quorum(cluster.LeashedTest):
    """Two of three workers are enough. The third makes only the steps that the leash allows, or none."""

    worker_env = {"SYNCLINE_MODE": "bsp:quorum=2,grace_ms=5"}

    def start_workers(self, *flags):
        free = [self.worker(rank, 3, "--steps", str(STEPS), "--step-ms", "1", *flags) for rank in range(2)]
        return free, self.worker(2, 3, "--steps", str(STEPS), "--leash", self.leash, *flags)

    def assert_goes_on_without_it(self, *flags):
        self.allow(20)
        free, held = self.start_workers(*flags)
        held.await_line(r"^step \d")
        free[0].await_line(rf"^step {STEPS - 50}$")
        status = self.status_of("test")
        self.assertEqual(len(status["members"]), 3, "it is slow, not dead")
        self.assertGreater(status["members"][2]["left_out"], 100)
        for member in status["members"][:2]:  # a busy machine may make one late now and then
            self.assertLess(member["left_out"], 50)
        self.allow(STEPS)
        self.assert_same_end([*free, held])
        # It continues where the others are, and makes no step of its own between the leash and that point.
        steps = [int(line.split()[1]) for _, line in held.lines if line.startswith("step ")]
        self.assertFalse([step for step in steps if 25 < step < STEPS - 60], steps)

    def test_two_do_not_wait_for_the_third(self):
        self.assert_goes_on_without_it()

    def test_what_it_gave_too_late_stays_in_its_error_feedback(self):
        self.assert_goes_on_without_it("--codec", "onebit", "--publish-codec", "onebit", "--elements", "100000")

    def test_clipping_decides_without_it(self):
        self.assert_goes_on_without_it("--clip", "0.5")

    def test_a_stopped_worker_holds_nobody_up(self):
        self.allow(STEPS)
        free, held = self.start_workers()
        held.await_line(r"^step \d")
        held.signal(signal.SIGSTOP)
        self.addCleanup(held.signal, signal.SIGCONT)
        for worker in free:
            worker.await_line(rf"^step {STEPS - 1}$")  # the barrier at the end waits until the third is dropped
            self.assertEqual(worker.wait(), 0, worker.text())

    def test_a_quorum_of_more_than_the_workers_is_refused(self):
        self.worker_env = {"SYNCLINE_MODE": "bsp:quorum=4"}
        self.allow(STEPS)
        free, _ = self.start_workers()
        self.assertEqual(free[0].wait(), 2, free[0].text())
        self.assertRegex(free[0].text(), "quorum is 4, allowed are 1 to 3, the job's workers")


if __name__ == "__main__":
    cluster.main()
