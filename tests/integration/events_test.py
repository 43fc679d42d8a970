#!/usr/bin/env python3
"""Events of a job are reported once, with their cause, and survive a crash of the coordinator.

    python3 tests/integration/events_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import fcntl
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.request

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
            # Before its first events are stored, the job has none.
            lines = self.syncline("events", job, "--json").stdout.splitlines()
            for event in map(json.loads, lines):
                if event["kind"] == kind and re.search(pattern, event["what"]):
                    return event
            time.sleep(0.05)
        self.fail(f"no {kind} event says /{pattern}/: {self.events(job)}")

    def metrics_of(self, admin):
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=5) as reply:
            return reply.read().decode()


class Events(EventsTest):
    def test_they_have_causes_and_outlive_the_coordinator(self):
        self.allow(20)
        follow = self.start("follow", [f"{cluster.BUILD}/syncline", "events", "test", "--follow",
                                       "--coordinator", self.address])  # fmt: skip
        follow.await_line(r"there is no job 'test'.*; retrying")
        workers = [self.worker(rank, 3, "--steps", "1000", "--leash", self.leash) for rank in range(3)]
        self.await_steps(workers, 20)
        follow.await_line(r"epoch 1 with 3 members: the job begins")
        self.assertEqual(self.update("--option", "lr=0.0005").returncode, 0)
        self.await_event("settings", r"^lr from 0\.001 to 0\.0005$")
        workers[2].kill()
        death = self.await_event("death", r"^worker 2 \(.*\) was dropped: its connection broke")
        self.coordinator.await_line(r" warning worker 2 \(.*\) was dropped from job 'test'")
        # A heartbeat has reported that ten steps or more were made.
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
        # `events --follow` continues through the restart, and shows each event once.
        follow.await_line(r"recovery .* after the loss of the coordinator")
        self.assertEqual(len(re.findall(r"was dropped", follow.text())), 1, follow.text())
        # Events of the cluster itself.
        cluster_events = [event["what"] for event in self.events() if event["job"] == 0]
        self.assertRegex(cluster_events[0], r"the coordinator was started")
        self.assertTrue([what for what in cluster_events if "was restarted, life 2; 1 job goes on" in what], cluster_events)
        # The status has the last events, too, according to its schema.
        self.assertEqual(self.status_of("test")["events"], after[-10:])

    def test_a_status_that_watches_waits_for_its_job(self):
        self.allow(5)
        watch = self.start("status", [f"{cluster.BUILD}/syncline", "status", "test", "--watch", "--coordinator", self.address])
        watch.await_line(r"there is no job 'test'.*; waiting for it$")
        workers = [self.worker(0, 1, "--steps", "1000", "--leash", self.leash)]
        self.await_steps(workers, 5)
        watch.await_line(r"^job test: running, ")
        self.assertEqual(len(re.findall("waiting for it", watch.text())), 1, watch.text())

    def announce(self, run, address, job):
        """Announces the coordinator as `syncline run` does, until the file is closed."""
        os.makedirs(f"{self.directory}/syncline/runs", exist_ok=True)
        file = open(f"{self.directory}/syncline/runs/{run}", "w")
        self.addCleanup(file.close)
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(f"{address}\n{job}\n")
        file.flush()
        return file

    def test_who_watches_a_job_follows_it_to_another_coordinator(self):
        with socket.socket() as default:
            if default.connect_ex(("127.0.0.1", 7070)) == 0:
                self.skipTest("somebody listens on 127.0.0.1:7070, and is asked first")
        self.announce("first", self.address, "other")
        home = {"XDG_STATE_HOME": self.directory}
        watch = self.start("status", [f"{cluster.BUILD}/syncline", "status", "test", "--watch"], home)
        follow = self.start("events", [f"{cluster.BUILD}/syncline", "events", "test", "--follow"], home)
        watch.await_line(r"there is no job 'test'.*; waiting for it$")
        follow.await_line(r"there is no job 'test'.*; retrying$")
        for life in ("second", "third"):
            begin = time.monotonic()
            directory = f"{self.directory}/{life}"
            run = self.serve("run", "--role", "all", "--listen", "127.0.0.1:0", "--state-dir", directory)
            self.address = run.await_line(r"ready control=(\S+)").group(1)
            self.allow(1000)
            worker = self.worker(0, 1, "--steps", "100000", "--leash", self.leash)
            self.await_steps([worker], 5)
            announced = self.announce(life, self.address, "test")
            watch.await_line(rf"^coordinator {self.address},")
            follow.await_line(r" join ", after=begin)
            announced.close()
            run.kill()
            worker.kill()
            watch.await_line(rf"cannot reach {self.address} .*; waiting for it$")

    def test_a_job_that_is_over_still_has_them_and_a_wrong_name_is_met_with_the_right_one(self):
        self.allow(1000)
        workers = [self.worker(0, 1, "--steps", "5", "--leash", self.leash)]
        self.assert_same_end(workers)
        self.await_event("end", r"^the job is over: all workers left$")
        self.assertIn('"test"', self.syncline("status", "test", "--json").stdout)
        for command in ("events", "status", "top", "diagnose", "advise"):
            with self.subTest(command):
                refused = self.syncline(command, "tests")
                self.assertEqual((refused.returncode, refused.stdout), (1, ""))
                self.assertIn("there is no job 'tests'; did you mean 'test'?", refused.stderr)


class Launched(EventsTest):
    def test_a_launcher_says_how_its_worker_died(self):
        self.allow(20)
        kill = os.path.join(self.directory, "kill")
        trainer = f"{cluster.BUILD}/steps_worker --steps 40 --leash {self.leash}"
        # The first process of rank 1 is killed once the file exists, like a process that uses too much memory.
        program = f"""[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] || exec {trainer}
            {trainer} & while [ ! -e {kill} ]; do sleep 0.05; done; kill -9 $! $$"""
        run = self.start("run", [f"{cluster.BUILD}/syncline", "run", "--coordinator", self.address, "--servers", "0", "--job", "test",
                                 "--nproc-per-node", "2", "--max-restarts", "1", "--failure-timeout", f"{cluster.FAILURE_TIMEOUT}s",
                                 "--", "/bin/sh", "-c", program])  # fmt: skip
        run.await_line(r"^step 19$")
        open(kill, "w").close()
        self.await_event("exit", r"^rank 1 died: signal 9 \(Killed\), started again \(1 of 1\)")
        self.await_event("death", r"^worker 1 ")
        self.allow(1000)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(len([event for event in self.events("test") if event["kind"] == "exit"]), 1)

    def test_workers_that_all_died_and_came_back_too_late_begin_no_run_of_their_own(self):
        self.allow(20)
        trainer = f"{cluster.BUILD}/steps_worker --steps 40 --leash {self.leash}"
        # The second process of rank 2 ends the job alone. Then rank 0 comes back, and the others after rank 0.
        program = f"""cd {self.directory}
            if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then
                {trainer} & while [ ! -e kill$RANK ]; do sleep 0.05; done; kill -9 $! $$
            fi
            touch back$RANK
            case $RANK in
                2) {trainer} && touch over;;
                0) while [ ! -e over ]; do sleep 0.05; done; {trainer}; code=$?; touch late; exit $code;;
                *) while [ ! -e late ]; do sleep 0.05; done; exec {trainer};;
            esac"""
        run = self.start("run", [f"{cluster.BUILD}/syncline", "run", "--coordinator", self.address, "--servers", "0", "--job", "test",
                                 "--nproc-per-node", "4", "--max-restarts", "1", "--failure-timeout", f"{cluster.FAILURE_TIMEOUT}s",
                                 "--", "/bin/sh", "-c", program])  # fmt: skip
        run.await_line(r"^step 19$")
        for rank in range(4):
            open(f"{self.directory}/kill{rank}", "w").close()
            self.await_file(f"{self.directory}/back{rank}")
        self.allow(1000)
        self.assertEqual(run.wait(), 0, run.text())
        self.assertEqual(sorted(re.findall(r"worker (\d) came back when the others had left", run.text())), ["0", "1", "3"])
        self.await_event("end", r"^the job is over: all workers left$")

    def await_file(self, path):
        deadline = time.monotonic() + cluster.PATIENCE
        while not os.path.exists(path):
            self.assertLess(time.monotonic(), deadline, path)
            time.sleep(0.05)

    def run_job(self, name, *flags):
        trainer = [f"{cluster.BUILD}/steps_worker", "--leash", self.leash, *flags]
        return self.start(name, [f"{cluster.BUILD}/syncline", "run", "--coordinator", self.address, "--servers", "0", "--job", "test",
                                 "--nproc-per-node", "2", "--failure-timeout", f"{cluster.FAILURE_TIMEOUT}s", "--", *trainer])  # fmt: skip

    def test_a_launcher_that_is_told_to_end_says_so_and_frees_the_name(self):
        self.allow(20)
        run = self.run_job("run", "--steps", "1000")
        run.await_line(r"^step 19$")
        run.signal(signal.SIGINT)
        self.assertEqual(run.wait(), 128 + signal.SIGINT, run.text())
        self.await_event("exit", r"^ranks 0, 1 are being stopped: SIGINT \(Ctrl-C\) to the launcher at \S+, run \w+$")
        # Without the launcher's report this would be "the job has failed: no worker was connected for 20s".
        self.await_event("end", r"^the job is over: stopped by SIGINT \(Ctrl-C\) to the launcher at ")
        self.assertNotIn("death", [event["kind"] for event in self.events("test")])
        self.allow(1000)
        again = self.run_job("again", "--steps", "5")
        self.assertEqual(again.wait(), 0, again.text())

    def test_status_says_what_became_of_the_run_before_also_when_the_coordinator_was_started_anew(self):
        self.allow(20)
        run = self.run_job("run", "--steps", "1000")
        run.await_line(r"^step 19$")
        self.server_processes[0].kill()
        self.allow(1000)
        self.assertNotEqual(run.wait(), 0, run.text())
        self.allow(20)
        self.await_event("end", r"^the job has failed: server 0 \(.*\) is lost")
        self.coordinator.kill()
        self.start_coordinator()
        ended = self.status_of("test")
        self.assertEqual(ended["phase"], "failed")
        self.assertRegex(ended["reason"], r"^server 0 \(.*\) is lost")
        self.assertRegex(self.syncline("status").stdout, r"test: failed at step \d+, \d+ s ago: server 0 ")
        self.serve("server", "--role", "server", "--coordinator", self.address).await_line(r"ready control=")
        again = self.run_job("again", "--steps", "1000")
        again.await_line(r"^step 19$")
        before = self.status_of("test")["before"]
        self.assertEqual((before["job"], before["phase"], before["reason"]), (ended["job"], "failed", ended["reason"]))
        self.assertRegex(self.syncline("status").stdout, r"the run before: failed at step \d+, \d+ s ago: server 0 ")


class Metrics(EventsTest):
    def test_of_two_jobs_at_once_of_which_one_ends_never_mix(self):
        server_admin = self.server_processes[0].await_line(r"ready control=\S+ admin=(\S+)").group(1)
        self.allow(1000)
        long = self.worker(0, 1, "--steps", "1000000", "--step-ms", "5", job="long")
        short = self.worker(0, 1, "--steps", "40", "--step-ms", "5", job="short")
        long.await_line(r"^step 20$")
        self.await_event("epoch", "the job begins", job="short")

        def count(text, name, **labels):
            for line in text.splitlines():
                if line.startswith(f"{name}{{") and all(f'{key}="{value}"' in line for key, value in labels.items()):
                    return float(line.split()[-1])
            return None

        self.assertEqual(short.wait(), 0, short.text())
        deadline = time.monotonic() + cluster.PATIENCE
        while time.monotonic() < deadline:
            on_server, here = self.metrics_of(server_admin), self.metrics_of(self.admin)
            if "short" not in on_server and "short" not in here and "long" in here:
                break
            time.sleep(0.1)
        self.assertNotIn("short", on_server)
        self.assertNotIn("short", here)
        self.assertGreaterEqual(count(on_server, "syncline_step_seconds_count", job_name="long"), 20)
        self.assertGreater(count(on_server, "syncline_pushed_bytes_total", job_name="long"), 0)
        self.assertEqual(count(here, "syncline_participants", job_name="long"), 1)
        self.assertEqual(count(here, "syncline_attached_servers", job_name="long"), 1)
        self.assertEqual(count(here, "syncline_epoch_changes_total", job_name="long", cause="begin"), 1)
        self.assertGreater(count(here, "syncline_gradient_bytes_total", job_name="long", form="fp32"), 0)


if __name__ == "__main__":
    sys.exit(cluster.main())
