#!/usr/bin/env python3
"""Measures a training step on slow networks: torch DDP over gloo with its hooks, and several settings of Syncline.

    sudo build/venv/bin/python tests/bench/ddp_network.py --build build/release --workers 4 --rates none 1gbit 100mbit

All train a transformer of 10 million parameters (worker/examples/torch/characters.py, wider) with AdamW on the same
batches. Every process is a host of its own: a network namespace with one cable of the given rate, both ways
(tests/network). A step is forward, backward, exchange and update, and ends when the next forward could begin. "Bytes" is
the traffic of a worker's cable per step, both ways. "Memory" is a worker's peak beyond that of torch and the model. Prints
tables in Markdown. Needs root, iproute2 and torch.
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
from network import hosts  # noqa: E402

PREFIX = "ddpnet"
CONTROL_PORT = 7070
WARM_UP = 4  # DDP forms new buckets after the first step, and PowerSGD begins after the second
# The title of each contender, and how it trains: (process group, communication hook) or (None, codec both ways).
CONTENDERS = {
    "ddp": ("DDP over gloo, FP32", "gloo", None),
    "ddp-fp16": ("DDP over gloo, torch's fp16 hook", "gloo", "fp16"),
    "ddp-powersgd": ("DDP over gloo, torch's PowerSGD hook, rank 4", "gloo", "powersgd"),
    "backend": ("DDP over syncline, FP32", "syncline", None),
    "hook-int8": ("DDP, `compressed_hook`, `int8`", "gloo", "int8"),
    "hook-onebit": ("DDP, `compressed_hook`, `onebit`", "gloo", "onebit"),
    "fp32": ("`syncline.torch.Optimizer`, FP32 both ways", None, "fp32"),
    "bf16": ("`syncline.torch.Optimizer`, BF16 both ways", None, "bf16"),
    "onebit": ("`syncline.torch.Optimizer`, `onebit` both ways", None, "onebit"),
    "topk": ("`syncline.torch.Optimizer`, `topk:ratio=0.01` both ways", None, "topk:ratio=0.01"),
}


def register(net, hook):
    if hook == "fp16":  # torch's hook for BF16 needs NCCL
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        net.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        net.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif hook is not None:
        import syncline.torch

        net.register_comm_hook(syncline.torch.CompressedState(hook), syncline.torch.compressed_hook)


def make_model():
    import torch

    sys.path.insert(0, str(ROOT / "worker/examples/torch"))
    import characters

    characters.WIDTH, characters.LAYERS, characters.HEADS = 320, 8, 8
    torch.manual_seed(0)
    return characters.Transformer(100), characters.CONTEXT


def train(flags):
    """Runs one worker. The first one writes its results."""
    import torch
    from torch import nn

    _, group, way = CONTENDERS[flags.worker]
    torch.set_num_threads(1)
    model, context = make_model()
    taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if group is not None:
        if group == "syncline":
            from syncline.torch import distributed  # noqa: F401  registers it
        torch.distributed.init_process_group(group)
        # Over gloo, torch's PowerSGD confuses the all-reduces of several buckets, so there is only one.
        net = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1000 if way == "powersgd" else 25)
        register(net, way)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    else:
        import syncline.torch

        net, optimizer = model, syncline.torch.Optimizer(model, "adamw", 1e-3, push=way, publish=way)
    batch = torch.randint(100, (1, context + 1))
    times = []
    for step in range(WARM_UP + flags.steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimizer.step()
        if group is None:
            optimizer.synchronize()
        times.append(time.perf_counter() - begin)
        if step + 1 == WARM_UP:
            pathlib.Path(flags.folder, f"warm{os.environ['RANK']}").touch()
            while not pathlib.Path(flags.folder, "go").exists():  # the bytes so far are read now
                time.sleep(0.01)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - taken
    pathlib.Path(flags.folder, f"done{os.environ['RANK']}").write_text(
        json.dumps({"step_s": statistics.median(times[WARM_UP:]), "memory": memory * 1024}), encoding="utf-8")


def await_files(folder, name, workers, processes, deadline):
    while not all((folder / f"{name}{rank}").exists() for rank in range(workers)):
        if any(process.poll() for process in processes) or time.monotonic() > deadline:
            raise RuntimeError(f"a process failed, or is not '{name}' in time")
        time.sleep(0.02)


def start_servers(flags, network, folder, log):
    """Starts servers. Returns the environment of their workers."""
    control = f"{network.address('server0')}:{CONTROL_PORT}"
    program = [pathlib.Path(flags.build) / "syncline", "serve", "--insecure", "--role"]
    network.start("server0", [*program, "coordinator", "--listen", control, "--admin-listen", "127.0.0.1:0", "--state-dir",
                              folder / "state", "--servers", flags.servers], log)
    for server in range(flags.servers):
        name = f"server{server}"
        network.start(name, [*program, "server", "--coordinator", control, "--listen", f"{network.address(name)}:{CONTROL_PORT + 1}",
                             "--admin-listen", "127.0.0.1:0", "--engine-threads", 1], log)
    return {"SYNCLINE_COORDINATOR": control, "SYNCLINE_JOB": "ddp-network", "SYNCLINE_RUN_ID": "1"}


def measure(flags, rate, contender):
    """Measures one contender."""
    workers = [f"worker{rank}" for rank in range(flags.workers)]
    with_servers = CONTENDERS[contender][1] is None
    names = workers + ([f"server{server}" for server in range(flags.servers)] if with_servers else [])
    deadline = time.monotonic() + flags.timeout
    with tempfile.TemporaryDirectory() as name, hosts.Hosts(PREFIX, names, rate=None if rate == "none" else rate) as network:
        network.set_congestion(flags.congestion)
        folder = pathlib.Path(name)
        with open(folder / "log", "w+", encoding="utf-8") as log:
            environment = {
                "MASTER_ADDR": network.address("worker0"), "MASTER_PORT": "29400", "WORLD_SIZE": str(flags.workers),
                "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", "PYTHONPATH": str(ROOT / "worker/python/src"),
                "SYNCLINE_LIBRARY": str(pathlib.Path(flags.build).resolve() / "libsyncline.so")}
            if with_servers:
                environment.update(start_servers(flags, network, folder, log))
            command = [sys.executable, __file__, "--worker", contender, "--steps", flags.steps, "--folder", folder]
            processes = [
                network.start(host, command, log, {**environment, "RANK": str(rank), "LOCAL_RANK": "0",
                                                   "SYNCLINE_GROUP_HOST": host}.items()) for rank, host in enumerate(workers)]
            try:
                await_files(folder, "warm", flags.workers, processes, deadline)
                before = network.sent()
                (folder / "go").touch()
                await_files(folder, "done", flags.workers, processes, deadline)
                after = network.sent()
            except RuntimeError as error:
                log.seek(0)
                raise SystemExit(f"{contender} at {rate}: {error}\n{log.read()[-3000:]}") from error
        figures = [json.loads((folder / f"done{rank}").read_text(encoding="utf-8")) for rank in range(flags.workers)]
    sent = sum(after.values()) - sum(before.values())
    # All sent bytes are received. With servers, workers receive half of them.
    return {"step_s": max(one["step_s"] for one in figures), "memory": max(one["memory"] for one in figures),
            "bytes": sent * (1 if with_servers else 2) / flags.workers / flags.steps}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--rates", nargs="+", default=["none", "1gbit", "100mbit"], help="of each cable, as tc writes it, or none")
    parser.add_argument("--congestion", default="reno", help="TCP's congestion control of all hosts")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each line of a table")
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    for hidden in ("--worker", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.worker:
        return train(flags)
    if problem := hosts.missing(PREFIX):
        raise SystemExit(problem)
    for rate in flags.rates:
        print(f"\n{flags.workers} workers, {flags.servers} servers, cables of {rate}; median of {flags.steps} steps\n")
        print("| | s/step | times DDP's steps | MB of a worker's cable | MB of memory |\n|---|---|---|---|---|", flush=True)
        first = None
        for contender in flags.only:
            figures = measure(flags, rate, contender)
            first = figures["step_s"] if contender == "ddp" else first
            times = f"{first / figures['step_s']:.1f}" if first else ""
            print(f"| {CONTENDERS[contender][0]} | {figures['step_s']:.3f} | {times} | "
                  f"{figures['bytes'] / 1e6:.2f} | {figures['memory'] / 1e6:.0f} |", flush=True)
    return None


if __name__ == "__main__":
    main()
