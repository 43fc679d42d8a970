#!/usr/bin/env python3
"""Tests that faults_seen.py can fail: signs of faults, rules over scrapes, and the table.

    python3 tests/chaos/faults_seen_test.py [-v] [Class.test_name ...]
"""

import copy
import types
import unittest

import alert_times
import fault_signs as signs
import faults_seen
import places


def healthy():
    """Returns a look with four workers that push equally long, and a goal that is met."""
    members = [{"rank": rank, "heartbeat_age_seconds": 0.2, "phases": {"steps": 100, "seconds": {"push": 1.0}}} for rank in range(4)]
    status = {"job": 1, "name": "seen", "members": members, "learning_rate": 0.1, "events": [], "goals": [{"goal": "step_p95_ms", "missed": False}]}
    metrics = {"syncline_members": [({}, 4.0)], "syncline_learning_rate": [({}, 0.1)],
               "syncline_epoch_changes_total": [({"cause": "death"}, 0.0)], "syncline_goal_missed_windows": [({"goal": "step_p95_ms"}, 0.0)],
               "syncline_worker_heartbeat_age_seconds": [({"rank": str(rank)}, 0.2) for rank in range(4)],
               "syncline_step_phase_seconds_total": [({"rank": str(rank), "phase": "push"}, 1.0) for rank in range(4)]}  # fmt: skip
    top = "> seen running 4 of 4 100\n  learning rate 0.1\n  goals: step_p95_ms<=100 met, 50 now\n"
    top += "".join(f"     {rank} vm:{rank}   100   0   20.0   1.0 MB   50%   0.2s ##\n" for rank in range(4))
    top += "".join(f"     {rank}     50.0    20.0   1.0   10.0   5.00   10.0   4.00  cc\n" for rank in range(4))
    data = {"events": {"events": []}, "status": {"jobs": [status]}, "advice": {"jobs": [{"job": 1, "advice": []}]}}
    page = {"marks": [], "events": "", "tiles": "Workers 4 of 4 Learning rate 0.1", "silent": [], "slow": [], "advice-list": "", "goals-list": ""}
    return places.Look(at=0.0, events=[], status=status, failure_timeout=6.0, metrics=metrics, top=top, advise={"advice": []}, data=data, page=page)


FAULTS = (signs.learning_rate(0.05), signs.killed(2, 4), signs.silent(1), signs.stopped(1, 4), signs.slow_link(3))


class Signs(unittest.TestCase):
    def test_of_a_healthy_job_there_are_none(self):
        for fault in FAULTS:
            for place, sign in fault.signs.items():
                if place != signs.ALERTS:
                    self.assertFalse(sign(healthy(), healthy()), f"{fault.name} at {place}")

    def test_what_was_there_before_is_no_sign(self):
        look = healthy()
        look.events = [{"number": 1, "kind": "death", "what": "worker 2 (vm:2) was dropped: its connection broke"}]
        sign = signs.killed(2, 4).signs[signs.EVENTS]
        self.assertTrue(sign(look, healthy()))
        self.assertFalse(sign(look, copy.deepcopy(look)))

    def test_who_died_and_why_must_be_right(self):
        look = healthy()
        for what in ("worker 1 (vm:1) was dropped: its connection broke", "worker 2 (vm:2) was dropped: no heartbeat for 3.6s"):
            look.events = [{"number": 1, "kind": "death", "what": what}]
            self.assertFalse(signs.killed(2, 4).signs[signs.EVENTS](look, healthy()), what)

    def test_a_slow_link_is_that_of_one_worker(self):
        before, look = healthy(), healthy()
        look.status["goals"][0]["missed"] = True
        for member in look.status["members"]:
            member["phases"] = {"steps": 110, "seconds": {"push": 2.0}}
        sign = signs.slow_link(3).signs[signs.STATUS]
        self.assertFalse(sign(look, before), "all are slow")
        look.status["members"][3]["phases"]["seconds"]["push"] = 5.0
        self.assertTrue(sign(look, before))
        look.top = look.top.replace("     3     50.0    20.0   1.0   10.0", "     3     90.0    20.0   1.0   60.0").replace("met,", "missed,")
        self.assertTrue(signs.slow_link(3).signs[signs.TOP](look, before))
        self.assertFalse(signs.slow_link(2).signs[signs.TOP](look, before))


@unittest.skipIf(alert_times.PROMTOOL is None, "no promtool")
class Alerts(unittest.TestCase):
    def firing(self, members):
        scrapes = alert_times.Scrapes()
        for there in members:
            scrapes.begin()
            scrapes.add({"instance": "c", "component": "coordinator"}, f'# HELP x\nsyncline_members{{job_name="b"}} {there}\n')
        return alert_times.firing(scrapes, faults_seen.RULES, every=15)

    def test_a_worker_that_is_away_for_six_minutes_is_told_after_five(self):
        fires = self.firing([4] * 8 + [3] * 24)
        self.assertEqual(fires.get("SynclineWorkersLost"), list(range(8 * 15 + 300, 32 * 15, 15)))
        self.assertNotIn("SynclineWorkersLost", self.firing([4] * 8 + [3] * 8 + [4] * 16))

    def test_one_that_still_fires_for_the_fault_before_does_not_begin(self):
        self.assertEqual(alert_times.begins([30, 45, 60, 120, 135]), [30, 120])

    def test_who_does_not_answer_is_down(self):
        scrapes = alert_times.Scrapes()
        for _ in range(20):
            scrapes.begin()
            scrapes.add({"instance": "s", "component": "server"}, None)
        self.assertIn("SynclineServerDown", alert_times.firing(scrapes, faults_seen.RULES, every=15))


class Table(unittest.TestCase):
    def test_says_what_was_not_seen(self):
        fault = signs.learning_rate(0.05)
        times = {place: 2.0 for place in fault.signs if place not in (signs.TOP, signs.PAGE)}
        run = types.SimpleNamespace(seen=[(fault, times, 0, 1)], places=types.SimpleNamespace(tab=None))
        shown, missing = faults_seen.table(run)
        self.assertEqual(missing, ["learning rate set to 0.05 at top"])
        self.assertIn("| 2 s | 2 s | NOT SEEN | 2 s | – | 2 s | not tried | – |", shown)


if __name__ == "__main__":
    unittest.main()
