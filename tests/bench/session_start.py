#!/usr/bin/env python3
"""Measures how long a session takes to start: a model of 10 M parameters in 200 tensors, all processes on one host.

    python3 tests/bench/session_start.py --build build/release --workers 2 --servers 1 --runs 3

Prints for each run the times of the slowest rank: `declare` of all tensors, `start` until the worker has joined, and
`wait` until it has all weights of the servers. Workers begin together, once each has made its tensors, because the first
one also waits for the last. Prints the load average, too, because times on a busy machine mean little. Needs numpy.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("declare", "start", "wait")


def meet(folder):
    """Waits until all workers are here."""
    (Path(folder) / os.environ["RANK"]).touch()
    while len(os.listdir(folder)) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.001)


def work(flags):
    import numpy
    import syncline
    drawn = numpy.random.default_rng(0)
    size = flags.parameters // flags.tensors
    tensors = [drawn.standard_normal(size, numpy.float32) for _ in range(flags.tensors)]
    expected = [float(tensor[-1]) for tensor in tensors]
    if int(os.environ["RANK"]) > 0:  # this rank must receive the weights
        tensors = [numpy.zeros(size, numpy.float32) for _ in tensors]
    meet(flags.meet)
    times = [time.monotonic()]
    session = syncline.Session(optimizer="adamw:lr=0.001", publish="fp32")
    declared = [session.declare(f"layer{number}.weight", tensor) for number, tensor in enumerate(tensors)]
    times.append(time.monotonic())
    session.start()
    times.append(time.monotonic())
    for tensor in declared:
        session.wait(tensor)
    times.append(time.monotonic())
    if [float(tensor[-1]) for tensor in tensors] != expected:
        sys.exit("the weights are not those of rank 0")
    seconds = {part: end - begin for part, begin, end in zip(PARTS, times, times[1:])}
    print(json.dumps({"rank": int(os.environ["RANK"]), **seconds}), flush=True)
    session.close()


def run(flags):
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                       "PYTHONPATH": str(ROOT / "worker/python/src"),
                       "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
        command = [flags.build / "syncline", "run", "--standalone", "--servers", flags.servers, "--nproc-per-node", flags.workers,
                   "--tee", 3, "--", sys.executable, Path(__file__).resolve(), "--meet", folder, "--parameters", flags.parameters,
                   "--tensors", flags.tensors]
        ended = subprocess.run([str(part) for part in command], env=environment, text=True, capture_output=True)
    lines = [json.loads(line[line.index("{"):]) for line in ended.stdout.splitlines() if '{"rank"' in line]
    if ended.returncode != 0 or len(lines) != flags.workers:
        sys.exit(f"exit code {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    return max(lines, key=lambda line: sum(line[part] for part in PARTS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--meet", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.meet:
        return work(flags)
    totals = []
    for _ in range(flags.runs):
        slowest = run(flags)
        totals.append(sum(slowest[part] for part in PARTS))
        parts = ", ".join(f"{part} {slowest[part]:.3f} s" for part in PARTS)
        print(f"{totals[-1]:.3f} s ({parts}), load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    print(f"median {statistics.median(totals):.3f} s: {flags.parameters} parameters in {flags.tensors} tensors, {flags.workers} workers, "
          f"{flags.servers} servers")
    return None


if __name__ == "__main__":
    sys.exit(main())
