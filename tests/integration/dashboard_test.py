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
        self.open = []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag not in ("meta", "link", "line", "path"):
            self.open.append((tag, dict(attributes).get("id")))

    def handle_endtag(self, tag):
        while self.open and self.open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        for _, name in self.open:
            if name is not None:
                self.words[name] = f"{self.words.get(name, '')} {data.strip()}".strip()


class Browsed(cluster.ClusterTest):
    def look(self, seconds=5):
        """The page after so many seconds of the browser's time, which passes faster than ours."""
        shown = subprocess.run(
            [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--virtual-time-budget={1000 * seconds}", "--dump-dom",
             f"http://{self.admin}/"],
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
