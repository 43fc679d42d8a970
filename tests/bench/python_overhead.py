#!/usr/bin/env python3
"""Measures the cost of a tensor for the program's thread in each step: CPU time of the main thread with
syncline.torch.Optimizer, minus that of forward and backward alone.

    build/venv/bin/python tests/bench/python_overhead.py --build build/release

One worker with servers of its own trains many small layers without bias, with and without the exchange in turns. CPU time
excludes waiting, and the work of servers and session threads on other cores. Prints a line for each way in which weights
and gradients are sent. Needs torch.
"""
import argparse
import cProfile
import os
import pstats
import statistics
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_model(tensors, width):
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(tensors))), torch.randn(8, width)


def seconds_of(work):
    """Returns the CPU time of this thread for `work`."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


class Turns:
    """Two equal models: one steps alone, the other with the exchange."""

    def __init__(self, flags, codec):
        import syncline.torch

        self.alone, self.inputs = make_model(flags.tensors, flags.width)
        self.model, _ = make_model(flags.tensors, flags.width)
        self.optimizer = syncline.torch.Optimizer(self.model, flags.optimizer, 1e-3, push=codec, publish=codec, session={"job": codec})

    def without(self):
        self.alone(self.inputs).square().mean().backward()
        for parameter in self.alone.parameters():
            parameter.grad = None

    def step(self):
        """Makes a step as in a training loop: the next forward waits for the new weights."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()


def measure(flags, codec):
    turns = Turns(flags, codec)
    alone, with_exchange = [], []
    for step in range(flags.warm_up + flags.steps):
        seconds = seconds_of(turns.without), seconds_of(turns.step)
        if step >= flags.warm_up:
            alone.append(seconds[0])
            with_exchange.append(seconds[1])
    before, after = statistics.median(alone), statistics.median(with_exchange)
    print(f"{codec}: {1e6 * (after - before) / flags.tensors:.1f} us a tensor and step ({1e3 * before:.2f} ms alone, {1e3 * after:.2f} ms with)", flush=True)
    if flags.profile:
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        for _ in range(flags.steps):
            turns.step()
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    turns.optimizer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--warm-up", type=int, default=20)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--codecs", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--profile", action="store_true", help="and where the time goes, by cProfile")
    flags = parser.parse_args()
    os.environ.update(SYNCLINE_LIBRARY=str(flags.build / "libsyncline.so"), SYNCLINE_BINARY=str(flags.build / "syncline"), SYNCLINE_LOG="warning",
                      OMP_NUM_THREADS="1")
    sys.path.insert(0, str(ROOT / "worker/python/src"))
    import torch

    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}, {flags.tensors} tensors of {flags.width} x {flags.width}, load "
          f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores as it began", flush=True)
    for codec in flags.codecs:
        measure(flags, codec)


if __name__ == "__main__":
    main()
