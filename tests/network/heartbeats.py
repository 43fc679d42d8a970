#!/usr/bin/env python3
"""How late heartbeats come, as their coordinator sees it: asks its admin port until it is stopped.

    tests/network/heartbeats.py http://10.1.0.1:7071/status

A line for each age above all before of the same member: seconds, then whose. Run it where the coordinator is, so that asking takes none of its cable.
"""

import json
import sys
import time
import urllib.request

EVERY_SECONDS = 0.05


def ages(status):
    """Of everybody whose connection holds, with a name."""
    for server in status["servers"]:
        if "lost_seconds" not in server:
            yield server["heartbeat_age_seconds"], f"server {server['server']}"
    for job in status["jobs"]:
        for member in job["members"]:
            yield member["heartbeat_age_seconds"], f"worker {member['rank']}"


def latest(text, but=None):
    """Of what this printed, `but` somebody who was killed: the largest age, and whose; nothing was heard of: 0."""
    lines = [line.partition(" ") for line in text.splitlines()]
    return max(((float(seconds), who) for seconds, _, who in lines if who != but), default=(0.0, "nobody"))


def main():
    worst = {}
    while True:
        try:
            with urllib.request.urlopen(sys.argv[1], timeout=10) as reply:
                seen = list(ages(json.load(reply)))
        except OSError:
            seen = []  # not there yet, or not any more
        for age, who in seen:
            if age > worst.get(who, 0.0):
                worst[who] = age
                print(f"{age:.3f} {who}", flush=True)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
