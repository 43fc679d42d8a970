#!/usr/bin/env python3
"""Measures the cost of durability=disk and durability=peer, relative to none in the same run: bare push-pull, and the
Fashion-MNIST demo at its normal speed, on two servers.

    python3 tests/bench/durability.py --build build/release --dir /var/tmp [--rounds 3] [--steps 400] [--bytes 67108864]

All take turns, `--rounds` times, and the median of the ratios of each round counts. Journals are below `--dir`: name a
folder on the disk that servers would have, or /dev/shm for the cost of a journal without a disk.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time


def probe(folder):
    """Returns the milliseconds of writing and syncing 1 MiB, and the bytes per second of 256 MiB in pieces of 16 MiB."""
    path = os.path.join(folder, "probe")
    piece = os.urandom(16 << 20)
    with open(path, "wb", buffering=0) as file:
        syncs = []
        for _ in range(20):
            began = time.monotonic()
            file.write(piece[: 1 << 20])
            os.fdatasync(file.fileno())
            syncs.append(time.monotonic() - began)
        began = time.monotonic()
        for _ in range(16):
            file.write(piece)
            os.fdatasync(file.fileno())
        took = time.monotonic() - began
    os.unlink(path)
    return {"sync_ms": 1e3 * statistics.median(syncs), "bytes_per_second": (256 << 20) / took}


def run(command):
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


KINDS = ("none", "disk", "peer", "disk+peer")


def flags(durability, journal):
    return ["--durability", durability, *(["--journal-dir", journal] if durability.startswith("disk") else [])]


def push_pull(options, codec, durable):
    """Returns the seconds of a step, from the workers of `syncline bench pushpull`."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        run([f"{options.build}/syncline", "run", "--standalone", "--servers", "2", "--nproc-per-node", "2",
             *durable, "--", f"{options.build}/syncline", "bench", "pushpull-worker", "--bytes",
             str(options.bytes), "--tensor-bytes", str(16 << 20), "--warmup", "3", "--steps",
             str(options.push_pull_steps), "--codec", codec, "--optimizer", "adamw", "--report", report])  # fmt: skip
        with open(report) as file:
            return statistics.median(json.load(file)["seconds"])


def demo(options, precision, durable):
    """Runs the demo. Returns the seconds of a step."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        run([f"{options.build}/syncline", "run", "--standalone", "--servers", "2", "--nproc-per-node",
             str(options.workers), *durable, "--", f"{options.build}/fashion_mnist", "--precision", precision, "--steps",
             str(options.steps), "--report", report])  # fmt: skip
        with open(report) as file:
            return json.load(file)["seconds"] / options.steps


def compare(options, name, measure):
    rows = []
    for _ in range(options.rounds):
        row = {}
        for durability in KINDS:
            with tempfile.TemporaryDirectory(prefix="journal", dir=options.dir) as journal:
                row[durability] = measure(flags(durability, journal))
        rows.append(row)
    report = {"what": name}
    for durability in KINDS:
        report[f"{durability}_ms"] = 1e3 * statistics.median(row[durability] for row in rows)
    for durability in KINDS[1:]:
        ratios = [row[durability] / row["none"] for row in rows]
        report[f"{durability}_ratio"] = statistics.median(ratios)
        report[f"{durability}_ratios"] = ratios
    print(json.dumps(report), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--dir", default=None, help="where journals go")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=4, help="of the demo")
    parser.add_argument("--steps", type=int, default=400, help="of the demo")
    parser.add_argument("--bytes", type=int, default=64 << 20, help="FP32 bytes of push-pull")
    parser.add_argument("--push-pull-steps", type=int, default=60)
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    options.dir = options.dir or tempfile.gettempdir()
    print(json.dumps({"dir": options.dir, "cores": os.cpu_count(), **probe(options.dir)}), flush=True)
    for codec in ("fp32", "bf16"):
        compare(options, f"push-pull {codec}", lambda durable, codec=codec: push_pull(options, codec, durable))
    if not os.path.exists(f"{options.build}/fashion_mnist"):
        raise SystemExit(f"{options.build}/fashion_mnist is not built (LibTorch): no training was measured")
    for precision in ("fp32", "bf16"):
        compare(options, f"demo {precision}", lambda durable, precision=precision: demo(options, precision, durable))


if __name__ == "__main__":
    main()
