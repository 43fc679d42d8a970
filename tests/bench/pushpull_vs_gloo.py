#!/usr/bin/env python3
"""Compares Syncline push-pull with gloo all-reduce followed by torch's AdamW, in one run.

Both exchange FP32 gradients of the same number of parameters between the same number of workers on this host, and end
with updated weights in every worker. Prints one JSON object, whose `ratio` says how many times faster Syncline's median
step is. Without torch only Syncline is measured.

    python3 tests/bench/pushpull_vs_gloo.py --syncline build/release/syncline --bytes 268435456
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

TENSOR_BYTES = 16 << 20


def gloo_worker(rank, workers, args, port, results):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    rest = args.bytes // 4
    parameters = []
    while rest > 0:
        elements = min(rest, TENSOR_BYTES // 4)
        parameters.append(torch.nn.Parameter(torch.ones(elements)))
        rest -= elements
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0, fused=args.fused or None)
    seconds = []
    for step in range(args.warmup + args.steps):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.25 * (rank + 1))
        dist.barrier()
        begin = time.perf_counter()
        pending = [dist.all_reduce(p.grad, async_op=True) for p in parameters]
        for work in pending:
            work.wait()
        for parameter in parameters:
            parameter.grad /= workers
        optimizer.step()
        if step >= args.warmup:
            seconds.append(time.perf_counter() - begin)
    expected = 1.0 - 1e-3 * (args.warmup + args.steps)  # AdamW with equal gradients moves by lr
    assert abs(parameters[-1][0].item() - expected) < 1e-4, parameters[-1][0].item()
    if rank == 0:
        results.put(seconds)
    dist.destroy_process_group()


def free_port():
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_gloo(args):
    try:
        import torch
        import torch.multiprocessing as multiprocessing
    except ImportError:
        return None
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = multiprocessing.spawn(
        gloo_worker, (args.workers, args, free_port(), results), nprocs=args.workers, join=False
    )
    seconds = results.get()
    processes.join()
    return {
        "torch": torch.__version__,
        "optimizer": "fused" if args.fused else "default",
        "seconds": {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)},
    }


def run_syncline(args):
    command = [args.syncline, "bench", "pushpull", "--json", "--servers", str(args.servers),
               "--workers", str(args.workers), "--bytes", str(args.bytes),
               "--tensor-bytes", str(TENSOR_BYTES), "--steps", str(args.steps),
               "--warmup", str(args.warmup)]  # fmt: skip
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=600)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--syncline", default="build/release/syncline")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=256 << 20)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--fused", action="store_true", help="torch's fused AdamW instead of its default")
    args = parser.parse_args()
    report = {"syncline": run_syncline(args), "gloo": run_gloo(args)}
    if report["gloo"] is None:
        print("torch is not installed: only Syncline was measured", file=sys.stderr)
    else:
        report["ratio"] = (
            report["gloo"]["seconds"]["median"] / report["syncline"]["seconds"]["median"]
        )
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
