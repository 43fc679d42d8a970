"""Tests of reading a status, and the output of heartbeats.py."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from network import heartbeats


class Heartbeats(unittest.TestCase):
    def test_are_those_of_everybody_whose_connection_holds(self):
        status = {
            "servers": [
                {"server": 0, "heartbeat_age_seconds": 0.5},
                {"server": 1, "heartbeat_age_seconds": 9.0, "lost_seconds": 9.0},
            ],
            "jobs": [{"members": [{"rank": 3, "heartbeat_age_seconds": 0.7}]}, {"members": []}],
        }
        self.assertEqual(list(heartbeats.ages(status)), [(0.5, "server 0"), (0.7, "worker 3")])

    def test_the_oldest_is_not_that_of_the_one_that_was_killed(self):
        text = "0.9 server 0\n1.1 worker 1\n1.0 worker 0\n6.0 worker 1\n"
        self.assertEqual(heartbeats.latest(text), (6.0, "worker 1"))
        self.assertEqual(heartbeats.latest(text, but="worker 1"), (1.0, "worker 0"))
        self.assertEqual(heartbeats.latest(""), (0.0, "nobody"))


if __name__ == "__main__":
    unittest.main()
