#!/usr/bin/env python3
"""Measures the longest gap between steps of a small job while a large one joins the same servers, trains and leaves.

    python3 tests/bench/neighbour.py --build build/release --elements 268435456

A pulse, a process that sleeps for 5 ms again and again, runs beside both. Its longest gap is caused by the machine itself,
so the small job cannot be better. Prints one JSON object.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

STEP_MS = 5
PULSE = f"""
import time
while True:
    time.sleep({STEP_MS / 1000})
    print("step", flush=True)
"""


class Child:
    """A process whose lines are kept with their times."""

    def __init__(self, command, **environment):
        self.lines = []
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    def when(self, pattern, seconds):
        """Waits for the first matching line. Returns its time and match, or raises an error."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            alive = self.process.poll() is None
            for at, line in list(self.lines):
                if match := re.search(pattern, line):
                    return at, match
            if not alive and not self.reader.is_alive():
                break
            time.sleep(0.02)
        sys.exit("nothing matched /%s/ in:\n%s" % (pattern, "\n".join(line for _, line in self.lines[-20:])))

    def gaps(self, begin, end):
        """Returns the seconds between steps from `begin` to `end`."""
        times = [at for at, line in list(self.lines) if line.startswith("step") and begin <= at <= end]
        return [later - earlier for earlier, later in zip(times, times[1:])]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def figures(gaps):
    return {
        "steps": len(gaps) + 1,
        "median_ms": round(1000 * sorted(gaps)[len(gaps) // 2], 2),
        "longest_ms": round(1000 * max(gaps), 1),
    }


def worker(args, coordinator, job, elements, steps):
    return Child(
        [f"{args.build}/steps_worker", f"--elements={elements}", f"--steps={steps}", f"--step-ms={STEP_MS}",
         f"--optimizer={args.optimizer}"],
        SYNCLINE_COORDINATOR=coordinator, SYNCLINE_JOB=job, RANK="0", WORLD_SIZE="1",
    )  # fmt: skip


def measure(args, children):
    state = tempfile.TemporaryDirectory()
    children.append(serve := Child(
        [f"{args.build}/syncline", "serve", "--listen=127.0.0.1:0", "--admin-listen=127.0.0.1:0",
         f"--state-dir={state.name}"]
    ))  # fmt: skip
    coordinator = serve.when(r"ready control=(\S+)", 20)[1].group(1)
    children.append(small := worker(args, coordinator, "small", 200_000, 10**9))
    children.append(pulse := Child([sys.executable, "-c", PULSE]))
    small.when(r"^step 100$", 30)
    alone = time.monotonic()
    time.sleep(args.alone)
    begin = time.monotonic()
    children.append(large := worker(args, coordinator, "large", args.elements, args.steps))
    joined = large.when(r"^joined", 300)[0]
    done = large.when(r"^done", 600)[0]
    time.sleep(1)  # the servers free its memory
    end = time.monotonic()
    phases = {"alone": (alone, begin), "joins": (begin, joined), "trains": (joined, done), "leaves": (done, end)}
    return {
        "elements": args.elements,
        "optimizer": args.optimizer,
        "seconds_to_join": round(joined - begin, 1),
        "seconds_per_step": round((done - joined) / args.steps, 2),
        "small_job": {name: figures(small.gaps(*phase)) for name, phase in phases.items()},
        "pulse": {name: figures(pulse.gaps(*phase)) for name, phase in phases.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/release", help="where syncline and steps_worker are")
    parser.add_argument("--elements", type=int, default=1 << 28, help="parameters of the large job")
    parser.add_argument("--steps", type=int, default=2, help="steps of the large job")
    parser.add_argument("--optimizer", default="adamw", help="of both jobs")
    parser.add_argument("--alone", type=float, default=5, help="seconds before the large job comes")
    children = []
    try:
        print(json.dumps(measure(parser.parse_args(), children), indent=2))
    finally:
        for child in reversed(children):
            child.stop()


if __name__ == "__main__":
    main()
