#!/usr/bin/env python3
"""The dashboard in a real browser, beside a running job. Skipped without Chromium.

    python3 tests/integration/dashboard_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import http.server
import json
import re
import sys
import threading
import time
import unittest
import urllib.request

import browser
import cluster
import contrast

JOB = "<b>bert</b> & co"  # members choose names
AXE = cluster.in_package("axe_playwright_python/axe.min.js")  # axe-core
NO_CHROMIUM = unittest.skipIf(browser.PROGRAM is None, "no Chromium")


class Browsed(cluster.ClusterTest):
    def setUp(self):
        super().setUp()
        self.browser = browser.Browser()
        self.addCleanup(self.browser.close)

    def look(self, job="", until=lambda page: True):
        """Returns the page of a job, by its number, as soon as it is live and `until` holds."""
        self.browser.open(f"http://{self.admin}/#{job}")
        return self.browser.await_page(lambda page: page.words.get("connection") == "live" and until(page))


def says(part, pattern):
    return lambda page: re.search(pattern, page.words.get(part, ""))


@NO_CHROMIUM
class Dashboard(Browsed):
    servers = 1

    def test_it_shows_a_job_its_members_and_events_as_they_are_named(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "50", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        row = r"0 (computes|waits) (slow )?[\d.]+ ms [\d,]+ \S+ .* 1 (computes|waits) (slow )?[\d.]+ ms [\d,]+ "
        page = self.look(until=lambda page: "path" in page.tags and says("workers", row)(page))
        self.assertEqual(page.words["job-name"], JOB)
        self.assertNotIn("b", page.tags, "a name became markup")
        self.assertRegex(page.words["tiles"], r"Workers 2 of 2")
        self.assertIn("polyline", page.tags, "no worker has a line of its own times")
        # The coordinator sends the history that the page has not seen itself.
        points = "document.querySelector('#workers polyline').getAttribute('points').split(' ').length"
        self.browser.await_page(lambda page: self.browser.value(points) >= 9)
        self.browser.open("about:blank")
        self.look(until=says("workers", row))
        # The newest points may not have been sent yet.
        self.assertGreaterEqual(self.browser.value(points), 6)
        self.assertRegex(page.words["servers"], r"Bytes 0 ")
        self.assertIn("worker 1 (", page.words["events"])
        self.assertRegex(page.words["events"], r"server server 0 \(.*\) attached with \d+ engine threads?")

    def test_it_is_told_what_is_new_and_does_not_ask(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "50", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        self.look()
        asked = "performance.getEntriesByType('resource').filter((one) => /(latest|history|status)$/.test(one.name)).length"
        step = "Number(document.querySelector('#tiles dd').textContent.replaceAll(',', ''))"
        before = self.browser.value(step)
        self.browser.await_page(lambda page: self.browser.value(step) > before + 40)
        self.assertEqual(self.browser.value(asked), 0, "it asked all the same")

    def test_it_says_of_no_step_that_it_is_safe_and_not_made(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")

        def record(server, step, lag=0, error=""):
            return {"server": server, "durable_step": step, "lag_steps": lag, "error": error}

        def shown(**job):
            job = {"checkpoint": {"written": 0, "failed": 0}, "recoveries": {"count": 0}, "step": 40, "durability": "disk", "backups": [],
                   "records": [], "training_servers": 1, **job}
            return self.browser.value(f"""import('/durability.js').then(({{showDurability, stepOf}}) => {{
                const list = document.createElement('ul'), job = {json.dumps(job)};
                showDurability(document.createElement('section'), list, job, String);
                return [stepOf(job), ...[...list.children].map((line) => line.textContent)];
            }})""")

        self.assertEqual(shown(durability="none"), [40])
        # A step that all servers have recorded is made, even if no worker has reported it yet.
        self.assertEqual(shown(records=[record(0, 42)]), [42, "All steps below 42 are on the disks."])
        self.assertEqual(shown(records=[record(0, 40, lag=1)]), [40, "All steps below 40 are on the disks, 1 on the way."])
        self.assertEqual(shown(records=[record(0, 38, lag=1)]),
                         [40, "All steps below 38 were on the disks, 1 on the way at the last heartbeat."])
        self.assertEqual(shown(records=[record(0, 42)], training_servers=2), [40], "nobody knows of the other one")
        ended = [40, "For the other servers, all steps below 42 are on the disks.", "The journal of server 1 has ended: full"]
        self.assertEqual(shown(records=[record(0, 42), record(1, 30, error="full")], training_servers=2), ended)
        backups = [{"server": 0, "holder": "server 1 (b)", "lost": "", "next": ""}, {"server": 1, "holder": "", "lost": "gone", "next": ""}]
        peer = {"durability": "peer", "training_servers": 2}
        self.assertEqual(shown(**peer, records=[record(0, 44), record(1, 42)], backups=backups[:1]),
                         [42, "All steps below 42 are in the backups.", "Server 0's backup is with server 1 (b)."])  # fmt: skip
        self.assertEqual(shown(**peer, records=[record(0, 44)], backups=backups),
                         [40, "For the other servers, all steps below 44 are in the backups.", "Server 0's backup is with server 1 (b).",
                          "Server 1 has no backup: gone"])  # fmt: skip

    def test_goals_say_what_is_met_and_what_may_be_missed_still(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")

        def shown(answers=None, **goal):
            goal = {"goal": "step_p95_ms", "at_least": False, "limit": 150, "now": 132.25, "missed": False, "budget_left": 1, "burn_rate_5m": 0,
                    "missed_in_seconds": None, **goal}
            return self.browser.value(f"""import('/goals.js').then(({{showGoals}}) => {{
                const list = document.createElement('ul'), section = document.createElement('section');
                showGoals(section, list, {{goals: [{json.dumps(goal)}], answers: {json.dumps(answers)}}});
                return [section.hidden, ...[...list.querySelectorAll('p')].map((line) => line.textContent)];
            }})""")

        self.assertEqual(shown(), [False, "p95 step timemet", "132.3 ms at most 150 ms", "100 % of the hour's budget left"])
        self.assertEqual(shown(missed=True, budget_left=0, burn_rate_5m=22.4, now=163)[1:],
                         ["p95 step timemissed", "163 ms at most 150 ms", "the hour's budget is spent, burns at 22.4 times the allowed rate"])
        self.assertEqual(shown(now=163)[1], "p95 step timemissed just now")
        self.assertEqual(shown(missed_in_seconds=540)[1], "p95 step timemissed in 9 min")
        self.assertEqual(shown(now=None)[1:3], ["p95 step timeno value yet", "– at most 150 ms"])
        answers = {"setting": "exclude_straggler", "state": "all wait for worker 1", "last": "", "last_age_seconds": 0}
        self.assertEqual(shown(answers)[4:], ["Answers: exclude_straggler", "all wait for worker 1"])
        self.assertEqual(shown({**answers, "last": "it was slow", "last_age_seconds": 130})[6], "The last one, 2 min ago: it was slow")

    def test_what_changes_a_curve_is_marked_in_the_charts(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")
        kinds = ("join", "epoch", "settings", "codec", "stall", "recovery", "checkpoint", "goal", "answer")
        events = [{"job": 1, "number": number, "time": number, "step": 1, "kind": kind, "what": kind} for number, kind in enumerate(kinds, 1)]
        marked = self.browser.value(f"""import('/events.js').then(({{Events}}) => {{
            const all = new Events();
            all.take({json.dumps(events)});
            return all.marks(1).map((event) => event.kind);
        }})""")
        self.assertEqual(marked, ["epoch", "settings", "stall", "recovery", "goal", "answer"])

    def test_advice_says_why_there_is_none_and_who_is_left_out(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")

        def shown(**found):
            advice = {"jobs": [{"job": 1, "why_not": "", "without_a_step": [], "advice": [], **found}]}
            return self.browser.value(f"""import('/advice.js').then(({{showAdvice}}) => {{
                const list = document.createElement('ul'), section = document.createElement('section');
                showAdvice(section, list, {json.dumps(advice)}, {{job: 1}});
                return [section.hidden, ...[...list.children].map((line) => line.textContent)];
            }})""")

        nothing = "Nothing takes 15 % of a step or more besides computing."
        self.assertEqual(shown(), [False, nothing])
        self.assertEqual(shown(why_not="it made no step in 5s"), [False, "No advice: it made no step in 5s."])
        self.assertEqual(shown(without_a_step=[2, 7]), [False, nothing, "No recent step, and left out: worker 2, 7."])
        self.assertEqual(shown(without_a_step=[*range(9)])[2], "9 workers made no recent step, and are left out.")

    def test_one_long_step_makes_no_other_line_flat(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")
        heights = self.browser.value("""import('/spark.js').then(({Sparks}) => {
            const sparks = new Sparks(), seconds = [0, 0];
            for (let steps = 1; steps <= 30; ++steps) {
              seconds[0] += steps === 5 ? 2 : 0.1;  // once it took 20 times as long
              seconds[1] += 0.2;
              sparks.look({job: 1, members: seconds.map((sum, rank) => ({rank, incarnation: 1, phases: {steps, seconds:
                  {compute: sum, encode: 0, push: 0, decode: 0}}}))});
            }
            return [0, 1].map((rank) => sparks.of(rank).querySelector('polyline').getAttribute('points').split(' ').map(
                (point) => Number(point.split(',')[1])));
        })""")
        self.assertLess(max(heights[1]), 12, "the line of the slower one is in the lower half")
        self.assertEqual(min(heights[0]), 1, "the long step is not shown")
        self.assertGreater(heights[0][-1], heights[1][-1])

    def test_rates_are_right_where_steps_take_longer_than_looks_are_apart_and_forget_who_is_gone(self):
        self.browser.open(f"http://{self.admin}/")
        self.browser.await_page(lambda page: page.words.get("connection") == "live")

        def speeds(steps):
            points = [{"time": time, "step": step} for time, step in enumerate(steps)]
            return [rate and round(rate, 4) for _, rate in self.browser.value(
                f"import('/rates.js').then(({{speeds}}) => speeds({json.dumps(points)}, 'step')"
                ".map(([time, rate]) => [time, Number.isNaN(rate) ? null : rate]))")]  # fmt: skip

        slow = speeds([second // 18 for second in range(100)])
        self.assertEqual(slow[40:], [round(1 / 18, 4)] * 59, "between two steps it is as fast as it was")
        self.assertEqual(speeds([10 * second for second in range(20)])[2:], [10.0] * 17)
        stands = speeds([10 * min(second, 20) for second in range(40)])
        self.assertEqual((stands[18], stands[-1]), (10.0, 0.0))
        self.assertEqual(speeds([5, 5, 5]), [0, 0])
        # The page starts in the middle of a step, and a checkpoint restarts the job in the middle of one.
        self.assertEqual(speeds([(second + 17) // 18 for second in range(40)]), [None] * 18 + [round(1 / 18, 4)] * 21)
        anew = speeds([10 * min(second, 20) if second < 30 else 100 + (second - 30 + 16) // 18 for second in range(70)])
        self.assertEqual(anew[29:], [0, 0] + [None] * 18 + [round(1 / 18, 4)] * 20)
        kept = self.browser.value("""import('/rates.js').then(({Rates}) => {
            const rates = new Rates(), told = [];
            for (const keys of [["a", "b"], ["a"], ["a", "b"]]) {
              rates.begin();
              told.push(keys.map((key) => rates.measure(key, told.length, 7 * told.length)));
              told.at(-1).push(rates.now.size);
            }
            return told.map((one) => one.map(String));
        })""")
        self.assertEqual(kept, [["NaN", "NaN", "2"], ["7", "1"], ["7", "NaN", "2"]])

    def test_an_address_that_names_no_job_shows_the_newest(self):
        worker = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", "--clip", "1", job=JOB)
        worker.await_line(r"^step 60$")
        page = self.look("%", until=says("tiles", r"Steps a second \d.* Samples a second \d.* Gradient norm \d"))
        self.assertEqual(page.words["job-name"], JOB)
        self.assertIn("Samples a second", page.words["charts"])

    def test_where_no_stream_comes_through_it_asks(self):
        worker = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job=JOB)
        worker.await_line(r"^step 20$")
        self.browser.call("Network.enable")
        self.browser.call("Network.setBlockedURLs", urls=["*/stream"])
        self.look(until=says("tiles", r"Workers 1 of 1"))
        self.assertEqual(self.browser.value("document.getElementById('connection').title"),
                         "requested every second, because no stream comes through")  # fmt: skip

    def test_it_goes_on_when_the_coordinator_is_started_again(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "20", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        self.look(until=says("tiles", r"Workers 2 of 2"))
        self.browser.value("window.isTheSamePage = true")
        self.coordinator.kill()
        self.browser.await_page(says("connection", "^no answer; trying again$"))
        self.coordinator_flags = (*self.coordinator_flags, "--admin-listen", self.admin)
        self.start_coordinator()
        page = self.browser.await_page(lambda page: page.words["connection"] == "live" and says("tiles", r"Workers 2 of 2")(page)
                                       and says("events", "the coordinator was restarted")(page))  # fmt: skip
        self.assertEqual(page.words["job-name"], JOB)
        self.assertTrue(self.browser.value("window.isTheSamePage"), "it was loaded again")
        self.browser.await_page(lambda page: self.browser.value("document.getElementById('connection').title.startsWith('sent')"))

    def test_it_shows_where_the_time_of_a_step_goes(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "5", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        self.look(until=says("phases", r"worker 0 [\d.]+ ms worker 1 [\d.]+ ms Server 0: hold .*ms, decide 0.00 ms, step "))

    def test_without_a_job_it_says_how_to_start_one(self):
        self.assertIn("syncline run", self.look().words["no-job"])

    def test_nothing_but_its_own_files_may_run(self):
        with urllib.request.urlopen(f"http://{self.admin}/", timeout=5) as reply:
            self.assertIn("default-src 'self'", reply.headers["Content-Security-Policy"])


@NO_CHROMIUM
class DashboardOfJobs(Browsed):
    servers = 1

    def test_what_happened_to_one_job_is_not_shown_with_another_whatever_its_name(self):
        first = self.worker(0, 1, "--steps", "120", "--step-ms", "50", job=JOB)
        other = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job="other")
        first.await_line(r"^step 60$")  # after three seconds, so that the charts have points by now
        self.assertEqual(self.syncline("update", JOB, "--option", "lr=0.25").returncode, 0)
        numbers = {name: self.status_of(name)["job"] for name in (JOB, "other")}
        self.assertEqual(first.wait(), 0, first.text())
        page = self.look(numbers[JOB], says("events", r"the job is over: all workers left"))
        self.assertIn("lr from 0.001 to 0.25", page.words["events"])
        # The first epoch is before the first point of the charts; the update's epoch is in them.
        self.assertIn("event settings", page.marks)

        next_one = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job=JOB)
        next_one.await_line(r"^step 40$")
        self.assertNotEqual(self.status_of(JOB)["job"], numbers[JOB])
        for job, name in ((self.status_of(JOB)["job"], JOB), (numbers["other"], "other")):
            page = self.look(job, lambda page, name=name: page.words.get("job-name") == name and says("events", r"the job begins")(page))
            for of_the_first in ("lr from", "the job is over"):
                self.assertNotIn(of_the_first, page.words["events"])
            self.assertNotIn("event settings", page.marks)
        self.assertIsNone(other.process.poll())


@NO_CHROMIUM
class DashboardOfBackups(Browsed):
    servers = 2
    worker_env = {"SYNCLINE_DURABILITY": "peer"}

    def test_it_shows_what_is_left_when_something_dies(self):
        workers = [self.worker(rank, 2, "--steps", "100000", "--step-ms", "20", job=JOB) for rank in range(2)]
        workers[0].await_line(r"^step 20$")
        # Servers report the state of their backups with heartbeats.
        self.look(until=says("durability-list", r"All steps below [\d,]+ (are|were) in the backups.* Server 0's backup is with server 1 \("))


class Crowd(http.server.BaseHTTPRequestHandler):
    """Serves the coordinator's pages, with a stream in which the job has many more members, the last one slow."""

    admin = None  # of the real one
    members = 64
    failure_timeout = 120
    ages = {1: 30, 2: 37}  # of heartbeats, by rank: the second is late

    def do_GET(self):
        if self.path == "/stream":
            return self.tell()
        with urllib.request.urlopen(f"http://{self.admin}{self.path}", timeout=10) as reply:
            self.send_response(200)
            self.send_header("Content-Type", reply.headers["Content-Type"])
            self.end_headers()
            self.wfile.write(reply.read())

    def ask(self, name):
        with urllib.request.urlopen(f"http://{self.admin}/{name}", timeout=10) as reply:
            return json.load(reply)

    def say(self, name, data):
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    def tell(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        status = self.ask("status")
        (job,) = status["jobs"]
        one = job["members"][0]
        status["failure_timeout_seconds"] = self.failure_timeout
        job["goals"], job["gradient_norm"] = self.goals(), 1.5
        job["expected_workers"] = self.members + 1
        self.say("history", self.ask("history"))
        self.say("events", {"events": self.events(job["job"])})
        self.say("advice", {"jobs": [{"job": job["job"], "why_not": "", "without_a_step": [5], "advice": [
            {"bound": "straggler", "share": 0.4, "gain": 0.4, "sure": "very", "what": "worker 63 is slow", "change": "its host"}]}]})  # fmt: skip
        for step in range(1, 1000):
            job["members"] = [{**one, "rank": rank, "name": f"host-{rank}.example:7", "step": step, "waiting": rank % 3 > 0,
                               "heartbeat_age_seconds": self.ages.get(rank, 1.0),
                               "phases": self.phases(step, 0.02 if rank == self.members - 1 else 0.01)}
                              for rank in range(self.members)]  # fmt: skip
            try:
                self.say("status", status)
            except OSError:
                return  # the page is closed
            time.sleep(0.1)

    def phases(self, steps, seconds):
        each = {"compute": seconds, "encode": 0.001, "push": 0.001, "others": 0.025 - seconds, "publish": 0.001, "decode": 0.001}
        return {"steps": steps, "seconds": {phase: steps * of_a_step for phase, of_a_step in each.items()}}

    def goals(self):
        goal = {"goal": "step_p95_ms", "at_least": False, "limit": 150, "now": 132, "missed": False, "budget_left": 1, "burn_rate_5m": 0,
                "missed_in_seconds": None}  # fmt: skip
        return [goal, {**goal, "missed": True, "budget_left": 0, "burn_rate_5m": 9.0}, {**goal, "missed_in_seconds": 540}]

    def events(self, job):
        kinds = ("join", "leave", "death", "exit", "epoch", "settings", "codec", "checkpoint", "recovery", "stall", "backup", "goal")
        return [{"job": job, "number": number, "time": time.time() - 12 + number, "step": number, "kind": kind, "what": f"a {kind}"}
                for number, kind in enumerate(kinds, 1)]  # fmt: skip

    def log_message(self, *_):
        pass


@NO_CHROMIUM
class DashboardOfManyMembers(Browsed):
    servers = 1

    # Elements whose contents overflow can be scrolled by keys; pictures, fields and tables have labels.
    FAULTS = """[
      ...[...document.querySelectorAll('body *')].filter((one) => one.tabIndex < 0 &&
        ((one.scrollHeight > one.clientHeight + 1 && /auto|scroll/.test(getComputedStyle(one).overflowY)) ||
         (one.scrollWidth > one.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(one).overflowX)))),
      ...[...document.querySelectorAll('[role=img], meter, section, [role=region]')].filter((one) =>
        one.checkVisibility() && !one.ariaLabel && !document.getElementById(one.getAttribute('aria-labelledby'))?.textContent),
      ...[...document.querySelectorAll('svg')].filter((one) => one.checkVisibility() && !one.ariaLabel && one.ariaHidden !== 'true'),
    ].map((one) => one.outerHTML.slice(0, 100))"""

    SPLIT = """[...document.querySelectorAll('#phases .legend span')].filter((one) => one.getClientRects().length > 1)
      .map((one) => one.textContent)"""

    def setUp(self):
        super().setUp()
        worker = self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job=JOB)
        worker.await_line(r"^step 60$")
        crowd = type("OfThis", (Crowd,), {"admin": self.admin})
        self.crowd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), crowd)
        self.crowd.daemon_threads = True
        threading.Thread(target=self.crowd.serve_forever, daemon=True).start()
        self.addCleanup(self.crowd.server_close)
        self.addCleanup(self.crowd.shutdown)

    def test_it_shows_64_members_and_who_is_slow_also_on_a_phone(self):
        tab = self.browser
        tab.open(f"http://127.0.0.1:{self.crowd.server_address[1]}/")
        tab.await_page(says("workers", r"63 computes slow [\d.]+ ms [\d,]+ host-63.example:7"))
        self.assertEqual(tab.value("document.querySelectorAll('#workers tbody tr').length"), 64)
        tab.await_page(lambda page: tab.value("document.querySelectorAll('#phases .bar').length") == 64)
        slow = "[...document.querySelectorAll('#workers .slow')].map((mark) => mark.closest('tr').firstChild.textContent)"
        self.assertEqual(tab.value(slow), ["63"])
        self.assertEqual(tab.value("document.getElementById('slow-ones').textContent"), "slow: 63")
        self.assertEqual(tab.value("document.querySelector('#tiles .few').textContent"), "64 of 65")
        tab.await_page(lambda page: tab.value("document.querySelector('#workers polyline').getAttribute('points').split(' ').length") >= 20)
        late = "[...document.querySelectorAll('#workers .silent')].map((mark) => mark.closest('tr').firstChild.textContent)"
        self.assertEqual(tab.value(late), ["2"], "what is late follows from the failure timeout")
        for width, height in ((1280, 900), (390, 844), (320, 568)):
            tab.size(width, height, mobile=width < 500)
            self.assertLessEqual(tab.value("document.documentElement.scrollWidth"), width, "the page is wider than the screen")
            self.assertEqual(tab.value(self.FAULTS), [])
            self.assertEqual(tab.value(self.SPLIT), [], "a colour of the legend is on another line than its name")

    def test_all_of_it_can_be_read_in_light_and_dark(self):
        tab = self.browser
        tab.size(1280, 900)
        tab.open(f"http://127.0.0.1:{self.crowd.server_address[1]}/")
        tab.await_page(says("workers", r"63 computes slow [\d.]+ ms [\d,]+ host-63.example:7"))
        tab.await_page(lambda page: tab.value("document.querySelectorAll('#phases .bar').length") == 64 and "path" in page.tags)
        grounds = []
        for wanted in (False, True):
            tab.dark(wanted)
            grounds.append(tab.value("getComputedStyle(document.body).backgroundColor"))
            seen = tab.value(contrast.FAULTS)
            self.assertGreater(seen["looked"], 500)
            self.assertEqual(seen["faults"], [], "dark" if wanted else "light")
        self.assertNotEqual(*grounds)


    @unittest.skipIf(AXE is None, "axe-core is not installed (deploy/install-deps.sh)")
    def test_axe_finds_nothing_in_light_and_dark_on_a_screen_and_a_phone(self):
        tab = self.browser
        tab.open(f"http://127.0.0.1:{self.crowd.server_address[1]}/")
        tab.await_page(lambda page: tab.value("document.querySelectorAll('#phases .bar').length") == 64 and "path" in page.tags)
        with open(AXE, encoding="utf-8") as file:
            tab.value(file.read())
        found = "axe.run(document).then((all) => [all.passes.length, all.violations.map((one) => [one.id, one.nodes[0].html])])"
        for wanted, width, height in ((False, 1280, 900), (True, 390, 844)):
            tab.dark(wanted)
            tab.size(width, height, mobile=width < 500)
            kept, broken = tab.value(found)
            self.assertEqual(broken, [])
            self.assertGreater(kept, 30, "it looked at nothing")
        tab.value("document.getElementById('job').insertAdjacentHTML('beforeend', '<img src=x>')")
        self.assertEqual([name for name, _ in tab.value(found)[1]], ["image-alt"], "it finds no fault")


@NO_CHROMIUM
class DashboardBehindTls(cluster.CertifiedTest):
    coordinator_flags = ("--admin-listen", "0.0.0.0:0", "--admin-token-file", "token")
    TOKEN = "a-token-of-some-length-0123456789"

    def serve(self, name, *flags):
        with open(self.path("token"), "w") as file:
            file.write(f"{self.TOKEN}\n")
        return super().serve(name, *flags)

    def log_in(self, tab, token):
        tab.value(f"document.getElementById('token').value = '{token}'; document.forms[0].requestSubmit()")

    def test_it_lets_in_whoever_knows_the_token(self):
        tab = browser.Browser()
        self.addCleanup(tab.close)
        tab.open(f"https://127.0.0.1:{self.admin.rsplit(':', 1)[1]}/")
        tab.await_page(lambda page: "form" in page.tags)
        self.log_in(tab, "wrong-token-0123456789")
        tab.await_page(lambda page: tab.value("document.querySelector('[role=alert]')?.textContent") == "The token is wrong.")
        self.log_in(tab, self.TOKEN)
        tab.await_page(says("connection", "^live$"))
        self.assertEqual(tab.value("document.cookie"), "", "a script sees the cookie")
        # With another token, viewers have to log in again.
        with open(self.path("token"), "w") as file:
            file.write("another-token-0123456789\n")
        tab.await_page(lambda page: "form" in page.tags)


if __name__ == "__main__":
    sys.exit(cluster.main())
