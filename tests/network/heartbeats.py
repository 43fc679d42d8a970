#!/usr/bin/env python3
"""Measures how late heartbeats arrive at a coordinator. Asks its admin port until it is stopped.

    tests/network/heartbeats.py http://10.1.0.1:7071/status

Prints a line, seconds and name, for each age that is a member's largest so far. Run it on the coordinator's host, so that
its requests do not use the cable.
"""

import json
import sys
import time
import urllib.request

EVERY_SECONDS = 0.05


def ages(status):
    """Yields the heartbeat age and the name of each connected member."""
    for server in status["servers"]:
        if "lost_seconds" not in server:
            yield server["heartbeat_age_seconds"], f"server {server['server']}"
    for job in status["jobs"]:
        for member in job["members"]:
            yield member["heartbeat_age_seconds"], f"worker {member['rank']}"


def latest(text, but=None):
    """Returns the largest age in this program's output, and its member, except member `but`, which was killed. 0: none."""
    lines = [line.partition(" ") for line in text.splitlines()]
    return max(((float(seconds), who) for seconds, _, who in lines if who != but), default=(0.0, "nobody"))


def main():
    worst = {}
    while True:
        try:
            with urllib.request.urlopen(sys.argv[1], timeout=10) as reply:
                seen = list(ages(json.load(reply)))
        except OSError:
            seen = []  # the coordinator is not there
        for age, who in seen:
            if age > worst.get(who, 0.0):
                worst[who] = age
                print(f"{age:.3f} {who}", flush=True)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
