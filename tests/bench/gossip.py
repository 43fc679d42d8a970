#!/usr/bin/env python3
"""Compares gossip with synchronous steps on Fashion-MNIST: accuracy after equal samples, bytes, and distance of workers.

    python3 tests/bench/gossip.py --build build/release --workers 8 --seeds 0

Workers train a network of 51,000 parameters with plain SGD, each on its own samples: the samples of a class are on few
workers (--mixed: at random). Rows are an all-reduce of FP32 gradients at each step, and gossip by graph and codec.
Compares the mean of all workers' weights with the result of average(), and prints a table in Markdown. Needs torch and
the data set of the demo.
"""
import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path("/usr/share/datasets/fashion-mnist")
TRAIN, TEST, HIDDEN, BATCH = 40_000, 4_000, 64, 32
ROWS = ["all-reduce", "ring bf16", "exponential bf16", "random bf16", "exponential int8", "exponential topk:ratio=0.05", "alone"]


def images(name, rows):
    import torch
    with gzip.open(DATA / f"{name}-images-idx3-ubyte.gz") as file:
        x = torch.frombuffer(bytearray(file.read(16 + rows * 784)[16:]), dtype=torch.uint8).view(rows, 784)
    with gzip.open(DATA / f"{name}-labels-idx1-ubyte.gz") as file:
        y = torch.frombuffer(bytearray(file.read(8 + rows)[8:]), dtype=torch.uint8).long()
    return x.float() / 255 - 0.28, y


def accuracy(model, test):
    return (model(test[0]).argmax(1) == test[1]).float().mean().item()


def train(row, seed, flags, data, test):
    """Trains one row of one seed on this worker. Returns the result on rank 0."""
    import torch
    import torch.distributed as dist
    import syncline.torch
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(784, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 10))
    inner = torch.optim.SGD(model.parameters(), lr=flags.rate)
    graph, _, push = row.partition(" ")
    gossips = graph in ("ring", "exponential", "random")
    optimizer = syncline.torch.Gossip(model, inner, graph, push=push, seed=seed, every=flags.every) if gossips else inner
    drawn = torch.Generator().manual_seed(seed * 1000 + rank)
    for _ in range(flags.steps):
        rows = torch.randint(len(data[0]), (BATCH,), generator=drawn)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data[0][rows]), data[1][rows]).backward()
        if row == "all-reduce":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        optimizer.step()
    flat = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    own = torch.tensor([accuracy(model, test)])
    mean, worst = flat.clone(), own.clone()
    dist.all_reduce(mean)
    mean /= ranks
    dist.all_reduce(worst, dist.ReduceOp.MIN)
    apart = (flat - mean).square().sum()
    dist.all_reduce(apart)
    apart = (apart / ranks).sqrt().item()
    sent = 8 * flat.numel() * (ranks - 1) // ranks * flags.steps if row == "all-reduce" else 0
    if gossips:
        said = optimizer.measure()
        assert abs(said - apart) < 0.06 * apart + 1e-6, (said, apart)
        sent = optimizer.stats.bytes_sent
        optimizer.average()
        torch.testing.assert_close(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), mean, atol=1e-5, rtol=0)
        optimizer.close()
    torch.nn.utils.vector_to_parameters(mean, model.parameters())
    return {"row": row, "seed": seed, "mean": accuracy(model, test), "worst": worst.item(), "apart": apart, "sent": sent}


def work(flags):
    import torch
    import torch.distributed as dist
    import syncline.torch  # noqa: F401  registers the backend
    torch.set_num_threads(1)
    dist.init_process_group("syncline")
    (x, y), test = images("train", TRAIN), images("t10k", TEST)
    order = torch.arange(TRAIN) if flags.mixed else y.argsort(stable=True)
    own = order.chunk(dist.get_world_size())[dist.get_rank()]
    for seed in flags.seeds:
        for row in flags.rows:
            result = train(row, seed, flags, (x[own], y[own]), test)
            if dist.get_rank() == 0:
                print(json.dumps(result), flush=True)


def table(runs, flags):
    print("| | accuracy of the mean (each seed) | of the worst worker | MB sent by each | apart at the end |\n|---|---|---|---|---|")
    for row in flags.rows:
        own = [run for run in runs if run["row"] == row]
        each = ", ".join(f"{100 * run['mean']:.1f}" for run in own)
        mean = {key: statistics.mean(run[key] for run in own) for key in ("mean", "worst", "sent", "apart")}
        print(f"| {row} | {100 * mean['mean']:.1f} % ({each}) | {100 * mean['worst']:.1f} % | {mean['sent'] / 1e6:.3g} | {mean['apart']:.3g} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=1, help="steps between two exchanges")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--rows", choices=ROWS, nargs="+", default=ROWS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--mixed", action="store_true", help="samples of all classes on each worker")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return work(flags)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "worker/python/src"),
                   "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
    command = [flags.build / "syncline", "run", "--standalone", "--servers", 0, "--nproc-per-node", flags.workers, "--", sys.executable,
               Path(__file__).resolve(), "--worker", *sys.argv[1:]]
    ended = subprocess.run([str(part) for part in command], env=environment, text=True, stdout=subprocess.PIPE)
    runs = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode:
        sys.exit(f"exit code {ended.returncode}\n{ended.stdout[-2000:]}")
    table(runs, flags)


if __name__ == "__main__":
    main()
