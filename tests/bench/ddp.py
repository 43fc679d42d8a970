#!/usr/bin/env python3
"""Measures a training step on this host: torch DDP over gloo with AdamW in each worker, and syncline.torch.Optimizer.

    python3 tests/bench/ddp.py --build build/release --workers 2 --rounds 3

Both train the same models on the same batches, in turns. "overhead" is the time of a step minus that of the forward and
backward without exchange before it (median of the differences). Prints a table in Markdown. Needs torch.
"""
import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 5


def make_model(name):
    """Returns the model, and a function for its loss on a batch."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if name == "small":  # 40 tensors of at most 4096 elements, which show the overhead per tensor
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20)))
        inputs = torch.randn(8, 64)
        return model, lambda net: net(inputs).square().mean()
    sys.path.insert(0, str(ROOT / "worker/examples/torch"))
    import characters

    if name == "10m":
        characters.WIDTH, characters.LAYERS, characters.HEADS = 320, 8, 8
    model = characters.Transformer(100)
    windows = torch.randint(100, (1 if name == "10m" else 4, characters.CONTEXT + 1))
    return model, lambda net: nn.functional.cross_entropy(net(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def train(flags):
    """Runs one worker of either kind. Rank 0 prints its times."""
    import torch

    torch.set_num_threads(1)
    model, loss_of = make_model(flags.model)
    if flags.worker == "ddp":
        torch.distributed.init_process_group("gloo")
        net = torch.nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    else:
        import syncline.torch

        net, optimizer = model, syncline.torch.Optimizer(model, "adamw", 1e-3, push=flags.codec, publish=flags.codec)
    alone, times = [], []
    for _ in range(WARM_UP + flags.steps):
        # Both are measured in turns, because the load of the machine varies.
        begin = time.perf_counter()
        with (net if flags.worker == "ddp" else optimizer).no_sync():
            loss_of(net).backward()
        alone.append(time.perf_counter() - begin)
        optimizer.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        loss = loss_of(net)
        loss.backward()
        optimizer.step()
        if flags.worker != "ddp":
            optimizer.synchronize()
        times.append(time.perf_counter() - begin)
    norm = sum(parameter.detach().square().sum().item() for parameter in model.parameters())
    if os.environ["RANK"] == "0":
        over = statistics.median(step - without for step, without in list(zip(times, alone))[WARM_UP:])
        median = [statistics.median(series[WARM_UP:]) for series in (alone, times)]
        print(json.dumps({"alone": median[0], "step": median[1], "overhead": over, "loss": loss.item(), "norm": norm}), flush=True)


def run(flags, kind, model):
    worker, codec = ("ddp", "fp32") if kind == "ddp" else ("syncline", kind)
    command = [sys.executable, __file__, "--worker", worker, "--codec", codec, "--model", model, "--steps", str(flags.steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "worker/python/src"),
                   "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
    if worker == "syncline":
        programs = [subprocess.Popen([flags.build / "syncline", "run", "--standalone", "--nproc-per-node", str(flags.workers), "--",
                                      *command], env=environment, stdout=subprocess.PIPE, text=True)]
    else:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            environment.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(listener.getsockname()[1]), WORLD_SIZE=str(flags.workers))
        programs = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
                    for rank in range(flags.workers)]
    said = [program.communicate()[0] for program in programs]
    if any(program.returncode for program in programs):
        sys.exit(f"{kind} of {model} failed:\n" + "\n".join(said))
    return json.loads(next(line[line.index("{"):] for line in said[0].splitlines() if '{"alone"' in line))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--models", nargs="+", choices=["small", "transformer", "10m"], default=["small", "transformer"])
    parser.add_argument("--worker", choices=["ddp", "syncline"], help=argparse.SUPPRESS)
    parser.add_argument("--codec", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return train(flags)
    kinds = {"ddp": "DDP over gloo, torch AdamW", "fp32": "Syncline, FP32 both ways", "bf16": "Syncline, BF16 both ways"}
    print(f"{flags.workers} workers, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores as it began\n")
    print("| model | | forward and backward alone, ms | step, ms | overhead, ms |\n|---|---|---|---|---|")
    for model in flags.models:
        results = {kind: [] for kind in kinds}
        for _ in range(flags.rounds):
            for kind in kinds:
                results[kind].append(run(flags, kind, model))
        exact = [run["norm"] for kind in ("ddp", "fp32") for run in results[kind]]
        if max(exact) - min(exact) > 1e-3 * max(exact):
            sys.exit(f"{model}: the weights differ, so the two do not do the same: {exact}")
        for kind, meaning in kinds.items():
            alone, step = (statistics.median(run[key] for run in results[kind]) * 1e3 for key in ("alone", "step"))
            over = sorted(run["overhead"] * 1e3 for run in results[kind])
            print(f"| {model} | {meaning} | {alone:.1f} | {step:.1f} | {statistics.median(over):.1f} ({over[0]:.1f} to {over[-1]:.1f}) |", flush=True)


if __name__ == "__main__":
    main()
