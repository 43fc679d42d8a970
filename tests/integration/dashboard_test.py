#!/usr/bin/env python3
"""The dashboard in a real browser, beside a job that runs. Skipped where there is no Chromium.

    python3 tests/integration/dashboard_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import html.parser
import re
import shutil
import subprocess
import sys
import time
import unittest
import urllib.request

import cluster

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
JOB = "<b>bert</b> & co"  # members choose names


class Page(html.parser.HTMLParser):
    """What a page says: its tags, and the words inside the element of each id."""

    def __init__(self, source):
        super().__init__()
        self.tags = set()
        self.words = {}
        self.marks = []  # classes of the marks in charts
        self.open = []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        given = dict(attributes)
        if tag == "line" and "event" in given.get("class", ""):
            self.marks.append(given["class"])
        if tag not in ("meta", "link"):
            self.open.append((tag, given.get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            if name is not None:
                self.words[name] = f"{self.words.get(name, '')} {data.strip()}".strip()


class Browsed(cluster.ClusterTest):
    def look(self, seconds=5, job=""):
        """The page of a job, by its number, after so many seconds of the browser's time, which passes faster than ours."""
        shown = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={1000 * seconds}", "--dump-dom",
             f"http://{self.admin}/#{job}"],
            capture_output=True, text=True, timeout=cluster.PATIENCE,
        )  # fmt: skip
        return Page(shown.stdout)


@unittest.skipIf(BROWSER is None, "no Chromium")
class Dashboard(Browsed):
    servers = 1

    def test_it_shows_a_job_its_members_and_events_as_they_are_named(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "50", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        page = self.look()
        self.assertEqual(page.words["connection"], "live", page.words)
        self.assertEqual(page.words["job-name"], JOB)
        self.assertNotIn("b", page.tags, "a name became markup")
        self.assertIn("path", page.tags, "no chart has a line")
        self.assertRegex(page.words["tiles"], r"Workers 2 of 2")
        self.assertRegex(page.words["workers"], r"Codec 0 \S+ \d+ (computes|waits) .* 1 \S+ \d+ (computes|waits) ")
        self.assertRegex(page.words["servers"], r"Bytes 0 ")
        self.assertIn("worker 1 (", page.words["events"])
        self.assertRegex(page.words["events"], r"server server 0 \(.*\) attached with \d+ engine threads")

    def test_it_shows_where_the_time_of_a_step_goes(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "5", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        wanted = r"worker 0 [\d.]+ ms worker 1 [\d.]+ ms Server 0: hold .*ms, decide 0.00 ms, step "
        deadline = time.monotonic() + cluster.PATIENCE
        # Phases are of what was done between two looks, so that it has to look before a heartbeat and after it.
        while not re.search(wanted, shown := self.look(seconds=60).words["phases"]):
            self.assertLess(time.monotonic(), deadline, shown)

    def test_without_a_job_it_says_how_to_start_one(self):
        page = self.look()
        self.assertEqual(page.words["connection"], "live")
        self.assertIn("syncline run", page.words["no-job"])

    def test_nothing_but_its_own_files_may_run(self):
        with urllib.request.urlopen(f"http://{self.admin}/", timeout=5) as reply:
            self.assertIn("default-src 'self'", reply.headers["Content-Security-Policy"])


@unittest.skipIf(BROWSER is None, "no Chromium")
class DashboardOfJobs(Browsed):
    servers = 1

    def await_words(self, job, pattern):
        deadline = time.monotonic() + cluster.PATIENCE
        while not re.search(pattern, (page := self.look(job=job)).words.get("events", "")):
            self.assertLess(time.monotonic(), deadline, page.words)
        return page

    def test_what_happened_to_one_job_is_not_shown_with_another_whatever_its_name(self):
        first = self.worker(0, 1, "--steps", "120", "--step-ms", "50", job=JOB)
        other = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job="other")
        first.await_line(r"^step 60$")  # after three seconds, so that the charts have points by now
        self.assertEqual(self.syncline("update", JOB, "--option", "lr=0.25").returncode, 0)
        numbers = {name: self.status_of(name)["job"] for name in (JOB, "other")}
        self.assertEqual(first.wait(), 0, first.text())
        page = self.await_words(numbers[JOB], r"the job is over: all workers left")
        self.assertIn("lr from 0.001 to 0.25", page.words["events"])
        # The epoch of the beginning is before the first point of the charts, that of the update is in them.
        self.assertIn("event settings", page.marks)

        next_one = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job=JOB)
        next_one.await_line(r"^step 40$")
        self.assertNotEqual(self.status_of(JOB)["job"], numbers[JOB])
        for job, name in ((self.status_of(JOB)["job"], JOB), (numbers["other"], "other")):
            page = self.await_words(job, r"the job begins")
            self.assertEqual(page.words["job-name"], name)
            for of_the_first in ("lr from", "the job is over"):
                self.assertNotIn(of_the_first, page.words["events"])
            self.assertNotIn("event settings", page.marks)
        self.assertIsNone(other.process.poll())


@unittest.skipIf(BROWSER is None, "no Chromium")
class DashboardOfBackups(Browsed):
    servers = 2
    worker_env = {"SYNCLINE_DURABILITY": "peer"}

    def test_it_shows_what_is_left_when_something_dies(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "20", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        # Servers say with their heartbeats how far their backups are.
        deadline = time.monotonic() + cluster.PATIENCE
        while len(self.status_of(JOB)["records"]) < self.servers:
            self.assertLess(time.monotonic(), deadline, "not all servers say how far their backups are")
            time.sleep(0.05)
        said = self.look().words["durability-list"]
        self.assertRegex(said, r"All steps below [\d,]+ are in the backups.* Server 0's backup is with server 1 \(")


if __name__ == "__main__":
    sys.exit(cluster.main())
