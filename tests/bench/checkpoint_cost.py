#!/usr/bin/env python3
"""Measures the cost of a checkpoint: its bandwidth and the disk's, and steps during a save and before it.

    python3 tests/bench/checkpoint_cost.py --build build/release --dir /var/tmp [--elements 50000000] [--checkpoints 5]

There is one worker and one server, with AdamW in FP32: 12 bytes per parameter. The disk's bandwidth is measured with the
same number of bytes, written in pieces of 4 MiB and synced, once before and once after.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../integration"))
from cluster import Process  # noqa: E402

PIECE = 4 << 20


def probe(folder, count):
    """Returns the bytes per second of writing and syncing a new file."""
    path = os.path.join(folder, "probe")
    piece = os.urandom(PIECE)
    began = time.monotonic()
    with open(path, "wb", buffering=0) as file:
        for _ in range(count // PIECE):
            file.write(piece)
        os.fsync(file.fileno())
    took = time.monotonic() - began
    os.unlink(path)
    return count / took


def ends_of_steps(worker):
    return [when for when, line in worker.lines if line.startswith("step ")]


def steps_in(ends, begin, end):
    """Returns the seconds of each step that is completely in this time."""
    return [b - a for a, b in zip(ends, ends[1:]) if begin <= a and b <= end]


def steps_that_touch(ends, begin, end):
    """Returns the seconds of each step that overlaps this time, because a save may be shorter than a step."""
    return [b - a for a, b in zip(ends, ends[1:]) if a < end and b > begin]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--dir", default=None, help="on the disk to measure")
    parser.add_argument("--elements", type=int, default=50_000_000)
    parser.add_argument("--step-ms", type=int, default=200, help="what a step computes")
    parser.add_argument("--checkpoints", type=int, default=5)
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        disk = [probe(folder, 12 * options.elements)]
        serve = Process("serve", [f"{build}/syncline", "serve", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
                                  "--state-dir", f"{folder}/state", "--checkpoint-dir", f"{folder}/checkpoints",
                                  "--failure-timeout", "60s"])  # fmt: skip
        worker = None
        try:
            address = serve.await_line(r"ready control=(\S+)").group(1)
            environment = {"SYNCLINE_COORDINATOR": address, "SYNCLINE_JOB": "cost", "RANK": "0", "WORLD_SIZE": "1",
                           "SYNCLINE_CHECKPOINT_KEEP": "1", "SYNCLINE_FAILURE_TIMEOUT": "60s"}  # fmt: skip
            worker = Process("worker", [f"{build}/steps_worker", "--steps", "1000000", "--step-ms", str(options.step_ms),
                                        "--elements", str(options.elements)], environment)  # fmt: skip
            worker.await_line("^step 3$", timeout=300)
            rows = []
            for _ in range(options.checkpoints):
                quiet = time.monotonic()
                time.sleep(10)
                begin = time.monotonic()
                subprocess.run([f"{build}/syncline", "checkpoint", "create", "cost", "--coordinator", address], check=True)
                end = time.monotonic()
                shown = subprocess.run([f"{build}/syncline", "status", "--coordinator", address, "-o", "json"],
                                       check=True, capture_output=True, text=True)  # fmt: skip
                saved = json.loads(shown.stdout)["jobs"][0]["checkpoint"]
                worker.await_line(r"^step \d", after=end, timeout=300)
                ends = ends_of_steps(worker)
                rows.append({"bytes_per_second": saved["bytes"] / saved["seconds"], "save_seconds": saved["seconds"],
                             "step_before": statistics.mean(steps_in(ends, quiet, begin)),
                             "step_during": statistics.mean(steps_that_touch(ends, begin, end))})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
        finally:
            for process in (worker, serve):
                if process is not None:
                    process.kill()
        disk.append(probe(folder, 12 * options.elements))
    median = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(json.dumps({"disk_bytes_per_second": disk, **median, "share_of_disk": median["bytes_per_second"] / max(disk),
                      "step_ratio": median["step_during"] / median["step_before"], "cores": os.cpu_count()}))  # fmt: skip


if __name__ == "__main__":
    main()
