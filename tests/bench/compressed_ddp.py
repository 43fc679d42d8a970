#!/usr/bin/env python3
"""Seconds of a DDP step where the network is the bottleneck, with each way of averaging gradients that needs no servers.

    sudo build/venv/bin/python tests/bench/compressed_ddp.py --build build/release --ranks 4 --rate 1gbit --parameters 16

Every rank is a host of its own, a network namespace with a cable of the given rate, both ways (tests/network). All train the same
model on the same batches; a step is forward, backward with the exchange, and SGD. Bytes are counted on the cables and given for each rank and
step. Prints a table in Markdown. Needs root, iproute2 and torch. A rate of "none" leaves the cables without a limit.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from network import hosts  # noqa: E402

WARM_UP = 3  # DDP cuts its buckets anew after the first step; PowerSGD begins after the second
CONTENDERS = {
    "gloo": ("DDP over gloo, FP32", "gloo", None),
    "gloo-fp16": ("DDP over gloo, torch's fp16 hook", "gloo", "fp16"),
    "gloo-powersgd": ("DDP over gloo, torch's PowerSGD hook, rank 4", "gloo", "powersgd"),
    "syncline": ("DDP over syncline, FP32", "syncline", None),
    "int8": ("DDP with compressed_hook, `int8`", "gloo", "int8"),
    "onebit": ("DDP with compressed_hook, `onebit`", "gloo", "onebit"),
    "topk": ("DDP with compressed_hook, `topk:ratio=0.01`", "gloo", "topk:ratio=0.01"),
}


def register(net, codec):
    """The hook of that contender."""
    if codec == "fp16":  # the one of bf16 is for NCCL only
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif codec == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif codec is not None:
        import syncline.torch

        net.register_comm_hook(syncline.torch.CompressedState(codec), syncline.torch.compressed_hook)


def train(flags):
    """One rank; the first writes its times."""
    import torch
    from torch import nn

    _, backend, codec = CONTENDERS[flags.worker]
    if backend == "syncline":
        from syncline.torch import distributed  # noqa: F401  registers it
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.distributed.init_process_group(backend)
    width = 1024
    layers = max(1, round(flags.parameters * 1e6 / width**2))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    # Over gloo, torch's PowerSGD mixes up the all-reduces of several buckets.
    net = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1000 if codec == "powersgd" else 25)
    register(net, codec)
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    inputs = torch.randn(4, width)
    times = []
    for step in range(WARM_UP + flags.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        net(inputs).square().mean().backward()
        optimizer.step()
        times.append(time.perf_counter() - begin)
        if step + 1 == WARM_UP:
            torch.distributed.barrier()
            pathlib.Path(flags.mark + os.environ["RANK"]).touch()
    if os.environ["RANK"] == "0":
        pathlib.Path(flags.result).write_text(json.dumps({"step_s": statistics.median(times[WARM_UP:])}), encoding="utf-8")
    torch.distributed.barrier()


def await_all(paths, processes):
    while not all(path.exists() for path in paths):
        if any(process.poll() for process in processes):
            raise RuntimeError("a rank failed")
        time.sleep(0.02)


def sent(network):
    return sum(network.sent().values())


def run(flags, contender):
    """What one contender takes."""
    names = [f"rank{rank}" for rank in range(flags.ranks)]
    with tempfile.TemporaryDirectory() as folder, hosts.Hosts(
            "ddpnet", names, rate=None if flags.rate == "none" else flags.rate) as network:
        environment = {
            "MASTER_ADDR": network.address("rank0"), "MASTER_PORT": "29400", "WORLD_SIZE": str(flags.ranks), "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0", "SYNCLINE_LIBRARY": str(pathlib.Path(flags.build).resolve() / "libsyncline.so"),
            "PYTHONPATH": str(ROOT / "worker/python/src")}
        with open(f"{folder}/log", "w+", encoding="utf-8") as log:
            command = [sys.executable, __file__, "--worker", contender, "--parameters", str(flags.parameters), "--steps",
                       str(flags.steps), "--result", f"{folder}/result", "--mark", f"{folder}/mark"]
            processes = [network.start(name, command, log, {**environment, "RANK": str(rank), "SYNCLINE_GROUP_HOST": name}.items())
                         for rank, name in enumerate(names)]
            try:
                await_all([pathlib.Path(f"{folder}/mark{rank}") for rank in range(flags.ranks)], processes)
                before = sent(network)
                for process in processes:
                    if process.wait(flags.timeout) != 0:
                        raise RuntimeError("a rank failed")
                after = sent(network)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                log.seek(0)
                raise SystemExit(f"{contender}: {error}\n{log.read()[-3000:]}") from error
        result = json.loads(pathlib.Path(f"{folder}/result").read_text(encoding="utf-8"))
    return {**result, "bytes": (after - before) / flags.ranks / flags.steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of each cable, as tc writes it, or none")
    parser.add_argument("--parameters", type=float, default=16, help="in millions")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("--only", nargs="*", choices=list(CONTENDERS), default=list(CONTENDERS))
    for hidden in ("--worker", "--result", "--mark"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return train(flags)
    if problem := hosts.missing("ddpnet"):
        raise SystemExit(problem)
    print(f"{flags.ranks} ranks, cables of {flags.rate}, {flags.parameters:g} M parameters, median of {flags.steps} steps\n")
    print("| | s/step | times faster than gloo | MB sent by a rank in a step |\n|---|---|---|---|")
    first = None
    for contender in flags.only:
        figures = run(flags, contender)
        first = first or figures["step_s"]
        print(f"| {CONTENDERS[contender][0]} | {figures['step_s']:.3f} | {first / figures['step_s']:.1f} | "
              f"{figures['bytes'] / 1e6:.2f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
