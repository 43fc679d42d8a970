#!/usr/bin/env python3
"""Servers are killed and restart with their journals. The jobs continue, and no step is lost.

    python3 tests/integration/server_restart_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import os
import shutil
import signal
import subprocess
import time

import cluster
from cluster import FAILURE_TIMEOUT, LeashedTest, SmallDisk

STEPS = 60


class ServerRestartTest(LeashedTest):
    """Servers of a job are killed, and started again with their journals."""

    worker_env = {"SYNCLINE_DURABILITY": "disk"}

    def journal(self, which):
        return os.path.join(self.directory, f"journal{which}")

    def serve(self, name, *flags):
        if name.startswith("server"):
            flags = (*flags, "--journal-dir", self.journal(name[-1]))
        return super().serve(name, *flags)

    def start_server(self, which):
        server = self.serve(f"server{which}", "--role", "server", "--coordinator", self.address, *self.server_flags)
        self.server_processes[which] = server

    def restart(self, *which):
        for one in which:
            self.server_processes[one].kill()
        for one in which:
            self.start_server(one)

    def start_workers(self, *flags):
        return [
            self.worker(rank, 2, "--steps", str(STEPS), "--step-ms", "1", "--leash", self.leash, *flags)
            for rank in range(2)
        ]

    def train(self, disturb, *flags):
        """Trains, and returns the checksum at the end. Calls `disturb` in the middle of steps, after 20 of them."""
        self.allow(20)
        workers = self.start_workers(*flags)
        self.await_steps(workers, 20)
        self.allow(40)
        disturb()
        self.await_steps(workers, 40)
        self.allow(STEPS)
        return self.assert_same_end(workers)

    def assert_same_weights(self, disturb, *flags):
        undisturbed = self.train(lambda: None, *flags)
        self.assertEqual(self.train(disturb, *flags), undisturbed)


class ServerRestart(ServerRestartTest):
    def test_one_of_two_is_killed_and_the_weights_are_the_same(self):
        def disturb():
            self.restart(1)
            self.coordinator.await_line(r"job 'test': server \d+ .* came back at step \d+")

        self.assert_same_weights(disturb)

    def test_one_bit_and_clipping_with_the_same_server_twice(self):
        def disturb():
            self.restart(0)
            self.coordinator.await_line(r"job 'test': server \d+ .* came back at step \d+")
            self.restart(0)

        self.assert_same_weights(disturb, "--codec", "onebit", "--publish-codec", "onebit", "--clip", "0.01")

    def test_all_servers_at_once(self):
        self.assert_same_weights(lambda: self.restart(0, 1), "--codec", "topk")

    def test_servers_and_coordinator_at_once(self):
        def disturb():
            self.coordinator.kill()
            for server in self.server_processes:
                server.kill()
            self.start_coordinator()
            for which in range(2):
                self.start_server(which)

        self.assert_same_weights(disturb)


class ServerRestartOverTls(ServerRestartTest):
    server_flags = ("--data-plane", "tls")

    def test_workers_get_new_keys(self):
        self.assert_same_weights(lambda: self.restart(1))


class ServerWhoseDiskWasFull(SmallDisk, ServerRestartTest):
    """Server 1 has its journal on a small disk."""

    def await_error(self, what):
        """Waits until the status shows this error, which is after the server's next heartbeat."""
        deadline = time.monotonic() + cluster.PATIENCE
        while not any(what in one.get("error", "") for one in self.status_of("test")["records"]):
            self.assertLess(time.monotonic(), deadline, "status does not say that the journal has ended")
            time.sleep(0.1)

    def test_its_journal_begins_anew_and_it_comes_back_from_that(self):
        undisturbed = self.train(lambda: None)
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        filler = self.fill()
        self.allow(30)
        self.await_steps(workers, 30)
        self.server_processes[1].await_line("the journal ends here; the job goes on.*No space left on device")
        self.await_error("No space left")
        os.remove(filler)
        self.server_processes[1].await_line("the journal goes on; the job is durable again")
        self.restart(1)
        self.coordinator.await_line(r"job 'test': server \d+ .* came back at step \d+")
        self.allow(STEPS)
        self.assertEqual(self.assert_same_end(workers), undisturbed)
        names = [name for _, _, files in os.walk(self.disk) for name in files if name.endswith(".journal")]
        self.assertTrue(any("-anew" in name for name in names), names)


class ServersOfALauncher(ServerRestartTest):
    """`syncline run --servers` restarts its servers and its coordinator."""

    def setUp(self):
        self.run_number = 0
        super().setUp()

    def launch(self, *flags):
        self.run_number += 1
        logs = os.path.join(self.directory, f"logs{self.run_number}")
        run = self.start("run", [f"{cluster.BUILD}/syncline", "run", "--standalone", "--servers", "2",
                                 "--nproc-per-node", "2", "--job", "launched", "--failure-timeout",
                                 f"{FAILURE_TIMEOUT}s", "--log-dir", logs, *flags, "--",
                                 f"{cluster.BUILD}/steps_worker", "--steps", str(STEPS), "--step-ms", "1",
                                 "--leash", self.leash])  # fmt: skip
        return run, logs

    def await_logged(self, logs, pattern):
        """Waits for a line in the log of worker 1. Worker 0 writes to the terminal."""
        log = os.path.join(logs, "worker1.log")
        tail = self.start("tail", ["tail", "-n", "+1", "--retry", "-f", log])
        return tail.await_line(pattern)

    def kill_server(self, run, which):
        """Kills a live server, by its index (kill -9)."""
        self.kill(run, "server", which)

    def kill(self, run, role, which=0):
        found = subprocess.run(["pgrep", "-P", str(run.process.pid), "-f", f"serve --role {role}"],
                               capture_output=True, text=True, check=True)  # fmt: skip
        os.kill(int(found.stdout.split()[which]), signal.SIGKILL)

    def train_launched(self, disturb, has_journal=True):
        """Trains, and returns the checksum at the end and the launcher's output."""
        self.allow(20)
        journal = os.path.join(self.directory, f"launched{self.run_number}")
        run, logs = self.launch(*(["--durability", "disk", "--journal-dir", journal] if has_journal else []))
        run.await_line(r"^step 19$")
        self.allow(40)
        disturb(run)
        run.await_line(r"^step 39$")
        self.allow(STEPS)
        self.assertEqual(run.wait(), 0, run.text())
        checksum = r"done step=\d+ members=\d+ checksum=(\w+)"
        mine = run.await_line(checksum).group(1)
        self.assertEqual(self.await_logged(logs, checksum).group(1), mine)
        return mine, run.text()

    def test_a_killed_server_is_started_again_and_the_weights_are_the_same(self):
        undisturbed, said = self.train_launched(lambda run: None)
        self.assertNotIn("starting it again", said)
        disturbed, said = self.train_launched(lambda run: self.kill_server(run, 1))
        self.assertEqual(disturbed, undisturbed)
        self.assertRegex(said, r"server 1 died with signal 9 .*/server1.log; starting it again with its journal in ")
        self.assertIn("server 2 is here in place of server 1; its log is ", said)

    def test_a_killed_coordinator_is_started_again_and_the_weights_are_the_same(self):
        def disturb(run):
            self.kill(run, "coordinator")
            run.await_line(r"coordinator died with signal 9 .*; starting it again with the state that it had stored")

        undisturbed, _ = self.train_launched(lambda run: None, has_journal=False)
        disturbed, said = self.train_launched(disturb, has_journal=False)
        self.assertEqual(disturbed, undisturbed)
        self.assertNotIn("server", "".join(line for line in said.splitlines() if "died" in line))

    def test_server_and_coordinator_are_killed_at_once(self):
        def disturb(run):
            self.kill_server(run, 0)
            self.kill(run, "coordinator")

        undisturbed, _ = self.train_launched(lambda run: None)
        disturbed, said = self.train_launched(disturb)
        self.assertEqual(disturbed, undisturbed)
        self.assertEqual(said.count("starting it again"), 2, said)

    def test_a_run_that_was_killed_whole_goes_on_from_its_journal(self):
        undisturbed, _ = self.train_launched(lambda run: None)
        self.allow(20)
        flags = ("--durability", "disk", "--journal-dir", os.path.join(self.directory, "whole"))
        run, _ = self.launch(*flags)
        run.await_line(r"^step 19$")
        run.kill()  # its processes end with it
        self.allow(STEPS)
        again = self.await_unlocked(flags)
        self.assertIn("did not finish: with --checkpoint-dir DIR this command goes on", again)
        kept = ("--checkpoint-dir", os.path.join(self.directory, "kept"))
        run, _ = self.launch(*flags, *kept)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"goes on from step (19|20|21), the last that the journal has")
        self.assertEqual(run.await_line(r"done step=\d+ members=\d+ checksum=(\w+)").group(1), undisturbed)
        # The job has ended without a checkpoint, so only the journal has its last step.
        run, _ = self.launch(*flags, *kept)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), rf"joined step={STEPS}\n")
        run, _ = self.launch(*flags, "--resume", "never")
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"joined step=0\n")
        run, _ = self.launch(*flags)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"joined step=0\n")

    def test_a_job_of_mode_asp_has_no_step_to_go_on_from(self):
        self.allow(STEPS)
        kept = ("--checkpoint-dir", os.path.join(self.directory, "kept"))
        flags = ("--mode", "asp", "--durability", "disk", "--journal-dir", os.path.join(self.directory, "asp"))
        for more in (kept, kept, (), ()):
            run, _ = self.launch(*flags, *more)
            self.assertEqual(run.wait(), 0, run.text())

    def test_a_job_that_does_not_wait_ends_and_the_same_command_goes_on(self):
        self.allow(20)
        flags = ("--mode", "ssp:staleness=1", "--max-restarts", "3", "--durability", "disk",
                 "--journal-dir", os.path.join(self.directory, "ssp"),
                 "--checkpoint-dir", os.path.join(self.directory, "kept"))  # fmt: skip
        run, _ = self.launch(*flags)
        run.await_line(r"^step 19$")
        self.kill_server(run, 1)
        self.assertEqual(run.wait(), 138, run.text())
        self.assertRegex(run.text(), r"ssp:staleness=1 do not wait for a server: .*the same command goes on from the last one")
        self.assertEqual(run.text().count("joined step="), 1, "workers that start over would be worse")
        self.allow(STEPS)
        run, _ = self.launch(*flags)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertRegex(run.text(), r"goes on from step \d+, the last that the journal has")

    def await_unlocked(self, flags):
        """Starts a launcher until the servers of the previous one are gone. Returns its output."""
        while True:
            run, _ = self.launch(*flags)
            code = run.wait()
            if "has not ended" in run.text():
                self.assertEqual(code, 4, run.text())
                continue
            self.assertEqual(code, 2, run.text())
            return run.text()

    def test_without_a_journal_the_job_ends_and_says_what_to_set(self):
        self.allow(20)
        run, _ = self.launch()
        run.await_line(r"^step 19$")
        self.kill_server(run, 1)
        self.assertEqual(run.wait(), 138, run.text())
        self.assertRegex(run.text(), r"server \d died with signal 9 .*with --durability disk and --journal-dir DIR")


class NoServerComesBack(ServerRestartTest):
    coordinator_flags = ("--patience", "5s")

    def test_the_job_says_for_whom_it_waits_and_ends(self):
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        self.allow(STEPS)
        self.server_processes[1].kill()
        for worker in workers:
            worker.await_line(r"waits for server \d \(.*\), \d+ s of 5 s")
        self.assertEqual(self.status_of("test")["phase"], "waiting")
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"server \d \(.*\) did not come back within 5s")

    def test_a_damaged_journal_is_refused_by_name(self):
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        self.server_processes[1].kill()
        for folder, _, names in os.walk(self.journal(1)):
            for name in names:
                path = os.path.join(folder, name)
                if not name.endswith(".journal"):
                    continue
                with open(path, "r+b") as file:
                    file.seek(os.path.getsize(path) // 2)
                    file.write(bytes(64))
        self.start_server(1)
        self.allow(STEPS)
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"cannot go on from the journal of server \d: .*\.journal is damaged")

    def test_without_its_journal_a_server_takes_no_place(self):
        self.allow(20)
        workers = self.start_workers()
        self.await_steps(workers, 20)
        self.server_processes[1].kill()
        shutil.rmtree(self.journal(1))
        self.start_server(1)
        self.allow(STEPS)
        for worker in workers:
            self.assertEqual(worker.wait(), 138, worker.text())
            self.assertRegex(worker.text(), r"server \d \(.*\) did not come back within 5s")


if __name__ == "__main__":
    cluster.main()
