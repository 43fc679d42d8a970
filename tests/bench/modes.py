#!/usr/bin/env python3
"""Measures the time to a test accuracy with one slow worker, by the mode of the job.

    python3 tests/bench/modes.py --build build/release --seeds 0 1 2

Four workers train a small network on Fashion-MNIST in plain NumPy, with real gradients. Computing is a pause of
--pause-ms, so that the results show which worker waits for which, under any load of the machine. Slowness is `lasting`
(the last worker takes four times as long at every step) or `passing` (each worker does so at a random one of eight
steps). Rank 0 tests its weights after each of its steps, and reports when they were first good enough. Prints a table in
Markdown. Needs numpy and the data set of the demo.
"""
import argparse
import gzip
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path("/usr/share/datasets/fashion-mnist")
WORKERS, SLOWER, ONE_IN, HIDDEN, BATCH = 4, 4, 8, 64, 32
MODES = {
    "bsp": "bsp",
    "quorum": f"bsp:quorum={WORKERS - 1},grace_ms=5",
    "ssp": "ssp:staleness=3",
    "asp": "asp:age_power=0.5",
}


def images(name, rows):
    import numpy
    files = {"train": "train", "test": "t10k"}
    with gzip.open(DATA / f"{files[name]}-images-idx3-ubyte.gz") as file:
        x = numpy.frombuffer(file.read(16 + rows * 784)[16:], numpy.uint8).reshape(rows, 784)
    with gzip.open(DATA / f"{files[name]}-labels-idx1-ubyte.gz") as file:
        y = numpy.frombuffer(file.read(8 + rows)[8:], numpy.uint8)
    return x.astype(numpy.float32) / 255 - numpy.float32(0.28), y


def work(flags):
    import numpy
    import syncline
    rank = int(os.environ["RANK"])
    draw, drawn = random.Random(flags.seed * 1000 + rank), numpy.random.default_rng(flags.seed * 1000 + rank)
    x, y = images("train", 20_000)
    test_x, test_y = images("test", 1000)
    initial = numpy.random.default_rng(flags.seed)
    shapes = {"w1": (784, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, 10), "b2": (10,)}
    p = {name: (initial.standard_normal(shape) / shape[0] ** 0.5 * (len(shape) > 1)).astype(numpy.float32)
         for name, shape in shapes.items()}
    session = syncline.Session(mode=MODES[flags.mode], optimizer=f"sgd:lr={flags.rate}")
    ids = {name: session.declare(name, values) for name, values in p.items()}
    session.start()
    begin, own, reached = time.monotonic(), 0, None
    while time.monotonic() - begin < flags.seconds:
        is_slow = rank == WORKERS - 1 if flags.slowness == "lasting" else draw.randrange(ONE_IN) == 0
        time.sleep(flags.pause_ms / 1000 * (SLOWER if is_slow else 1))
        rows = drawn.integers(0, len(x), BATCH)
        hidden = numpy.maximum(x[rows] @ p["w1"] + p["b1"], 0)
        scores = hidden @ p["w2"] + p["b2"]
        error = numpy.exp(scores - scores.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[numpy.arange(BATCH), y[rows]] -= 1
        error /= BATCH
        back = (error @ p["w2"].T) * (hidden > 0)
        gradients = {"w1": x[rows].T @ back, "b1": back.sum(0), "w2": hidden.T @ error, "b2": error.sum(0)}
        for name in reversed(p):
            session.push_pull(ids[name], numpy.ascontiguousarray(gradients[name], numpy.float32), samples=BATCH)
        for name in p:
            session.wait(ids[name])
        own += 1
        if rank == 0 and reached is None:
            guess = (numpy.maximum(test_x @ p["w1"] + p["b1"], 0) @ p["w2"] + p["b2"]).argmax(1)
            if (guess == test_y).mean() >= flags.target:
                reached = time.monotonic() - begin
                print(json.dumps({"mode": flags.mode, "slowness": flags.slowness, "seed": flags.seed, "seconds": reached,
                                  "own_steps": own}), flush=True)
                Path(flags.stop).touch()
        if Path(flags.stop).exists():
            break
    os._exit(0)  # does not wait for the others


def run(mode, slowness, seed, flags):
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                       "PYTHONPATH": str(ROOT / "worker/python/src"),
                       "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
        command = [flags.build / "syncline", "run", "--standalone", "--nproc-per-node", WORKERS, "--", sys.executable,
                   Path(__file__).resolve(), "--worker", "--mode", mode, "--slowness", slowness, "--seed", seed,
                   "--rate", flags.rate, "--target", flags.target, "--pause-ms", flags.pause_ms, "--seconds", flags.seconds,
                   "--stop", Path(folder) / "stop"]
        ended = subprocess.run([str(part) for part in command], env=environment, text=True, capture_output=True)
    lines = [line[line.index("{"):] for line in ended.stdout.splitlines() if '{"mode"' in line]
    if not lines:
        sys.exit(f"{mode}, seed {seed}: exit code {ended.returncode}\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
    return {**json.loads(lines[0]), "pause_ms": flags.pause_ms, "target": flags.target}


def table(runs):
    print("| slowness | mode | seconds to the target (each seed) | faster than bsp | steps of rank 0 |\n|---|---|---|---|---|")
    for slowness in ("lasting", "passing"):
        ours = [one for one in runs if one["slowness"] == slowness]
        base = [one["seconds"] for one in ours if one["mode"] == "bsp"]
        for mode in MODES:
            own = [one for one in ours if one["mode"] == mode]
            if not own or not base:
                continue
            mean = statistics.mean(one["seconds"] for one in own)
            each = ", ".join(f"{one['seconds']:.1f}" for one in own)
            print(f"| {slowness} | `{MODES[mode]}` | {mean:.1f} ({each}) | {statistics.mean(base) / mean:.2f}x | "
                  f"{statistics.mean(one['own_steps'] for one in own):.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--log", type=Path, default=Path("modes.jsonl"), help="of runs; a second call goes on where it ends")
    parser.add_argument("--modes", choices=MODES, nargs="+", default=list(MODES))
    parser.add_argument("--slownesses", choices=["lasting", "passing"], nargs="+", default=["lasting", "passing"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--target", type=float, default=0.78, help="test accuracy")
    parser.add_argument("--pause-ms", type=float, default=50, help="that a worker computes")
    parser.add_argument("--rate", type=float, default=0.05, help="learning rate, the same in all modes")
    parser.add_argument("--seconds", type=float, default=120, help="after which a run gives up")
    for hidden in ("--mode", "--slowness", "--stop"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return work(flags)
    flags.log.touch()
    runs = [json.loads(line) for line in flags.log.read_text().splitlines()]
    for seed in flags.seeds:
        for slowness in flags.slownesses:
            for mode in flags.modes:
                if any((one["mode"], one["slowness"], one["seed"]) == (mode, slowness, seed) for one in runs):
                    continue
                runs.append(run(mode, slowness, seed, flags))
                with flags.log.open("a") as log:
                    log.write(json.dumps(runs[-1]) + "\n")
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    table(runs)


if __name__ == "__main__":
    main()
