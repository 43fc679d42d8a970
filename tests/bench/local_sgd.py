#!/usr/bin/env python3
"""Compares synchronous steps, 1-bit steps, DiLoCo, SparseLoCo and DeMo on a character transformer: loss after equal tokens, and
bytes on the wire.

    python3 tests/bench/local_sgd.py --build build/release --seeds 0 1 2

Trains worker/examples/torch/characters.py in each mode with servers of its own, and prints a table in Markdown. Each line
of the --log file is one run, so that a second call continues an interrupted one. Needs torch.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODES = {
    "bsp": "each step, BF16 both ways",
    "onebit": "each step, onebit both ways",
    "diloco": "DiLoCo, H = 100, FP32 both ways",
    "diloco-int4": "DiLoCo, H = 100, int4 up, int8 down",
    "sparseloco": "SparseLoCo, H = 100, 64 of 4,096 up, 128 down",
    "demo": "DeMo, each step, 32 of 4,096 coefficients up, onebit down",
}


def train(mode, seed, flags):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "worker/python/src"),
                   "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
    command = [flags.build / "syncline", "run", "--standalone", "--nproc-per-node", flags.workers, "--", sys.executable,
               ROOT / "worker/examples/torch/characters.py", "--mode", mode, "--seed", seed, "--steps", flags.steps,
               "--batch-size", flags.batch_size]
    ended = subprocess.run([str(part) for part in command], env=environment, text=True, capture_output=True)
    lines = [line[line.index("{"):] for line in ended.stdout.splitlines() if '{"mode"' in line]
    if ended.returncode or not lines:
        sys.exit(f"{mode}, seed {seed}: exit code {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
    return {**json.loads(lines[0]), "steps": flags.steps, "workers": flags.workers, "batch_size": flags.batch_size}


def table(runs):
    """Makes the table. It excludes the bytes of the initial weights, which the first worker sends in FP32."""
    def mean_of(mode, key):
        values = [run[key] - 4 * run["parameters"] * (key != "loss") for run in runs if run["mode"] == mode]
        return statistics.mean(values) if values else None

    def fewer(mode, than):
        ours, theirs = ([mean_of(name, key) for key in ("pushed", "pulled")] for name in (mode, than))
        return "" if None in theirs else f"{sum(theirs) / sum(ours):.3g}x"

    print("| | loss (each seed) | pushed MB | pulled MB | fewer than BF16 steps | fewer than DiLoCo |\n|---|---|---|---|---|---|")
    for mode, meaning in MODES.items():
        own = [run for run in runs if run["mode"] == mode]
        if not own:
            continue
        mean = {key: mean_of(mode, key) for key in ("loss", "pushed", "pulled")}
        losses = ", ".join(f"{run['loss']:.3f}" for run in own)
        print(f"| {meaning} | {mean['loss']:.3f} ({losses}) | {mean['pushed'] / 1e6:.3g} | {mean['pulled'] / 1e6:.3g} | "
              f"{fewer(mode, 'bsp')} | {fewer(mode, 'diloco')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--log", type=Path, default=Path("local_sgd.jsonl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=4, help="of each worker")
    flags = parser.parse_args()
    flags.log.touch()
    runs = [json.loads(line) for line in flags.log.read_text().splitlines()]
    for seed in flags.seeds:
        for mode in flags.modes:
            if any(run["mode"] == mode and run["seed"] == seed for run in runs):
                continue
            runs.append(train(mode, seed, flags))
            with flags.log.open("a") as log:
                log.write(json.dumps(runs[-1]) + "\n")
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    table(runs)


if __name__ == "__main__":
    main()
