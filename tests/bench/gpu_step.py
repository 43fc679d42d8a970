#!/usr/bin/env python3
"""Measures a training step on one GPU: torch's fused AdamW, and syncline.torch.Optimizer with servers on this host.

    python3 tests/bench/gpu_step.py --build build/release

Each pair of codecs runs twice, in processes of their own: with SYNCLINE_GPU_CODECS=0 (gradients are copied to host memory
and encoded there) and with 1 (the GPU encodes and decodes). A step is forward, backward, optimizer and all new weights on
the GPU. Prints a line of JSON for each, with the median of the steps, and then a table in Markdown. Needs torch and a GPU;
without a GPU the exit code is 77.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARM_UP = 2
CODECS = (("fp32", "fp32"), ("bf16", "bf16"), ("int8", "int8"), ("onebit", "onebit"), ("topk:ratio=0.01", "topk:ratio=0.05,values=bf16"))
MISSING = 77


def make_model(flags):
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers = [layer for _ in range(flags.layers) for layer in (nn.Linear(flags.width, flags.width), nn.GELU())]
    return nn.Sequential(*layers).cuda()


def train(flags):
    """Runs one process, and prints its result."""
    import torch

    model = make_model(flags)
    session = None
    if flags.worker == "torch":
        optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    else:
        import syncline.torch

        optimizer = syncline.torch.Optimizer(model, "adamw", 1e-4, push=flags.push, publish=flags.publish)
        session = optimizer.session
    inputs = torch.randn(flags.batch, flags.width, device="cuda")
    times, pushed, loss = [], 0, None
    for step in range(WARM_UP + flags.steps):
        if session is not None and step == WARM_UP:
            pushed = session.stats.bytes_pushed
        torch.cuda.synchronize()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = (model(inputs) - inputs).square().mean()
        loss.backward()
        optimizer.step()
        if session is not None:
            optimizer.synchronize()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    result = {"optimizer": flags.worker, "push": flags.push, "publish": flags.publish, "gpu": torch.cuda.get_device_name(),
              "parameters": sum(p.numel() for p in model.parameters()), "batch": flags.batch, "steps": flags.steps,
              "step_seconds": statistics.median(times[WARM_UP:]), "fastest": min(times[WARM_UP:]), "loss": loss.item()}
    if session is not None:
        result.update(gpu_codecs=os.environ["SYNCLINE_GPU_CODECS"], tensors_on_gpu=session.device_codecs, report=session.report(),
                      pushed_bytes_of_a_step=(session.stats.bytes_pushed - pushed) // flags.steps)
        optimizer.close()
    print(json.dumps(result), flush=True)


def run(flags, worker, push="", publish="", codecs=""):
    """Runs a process. Returns its result or its error."""
    command = [sys.executable, __file__, "--worker", worker, "--push", push, "--publish", publish]
    for name in ("layers", "width", "batch", "steps"):
        command += [f"--{name}", str(getattr(flags, name))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "worker/python/src"), "SYNCLINE_GPU_CODECS": codecs or "1",
                   "SYNCLINE_LIBRARY": str(flags.build / "libsyncline.so"), "SYNCLINE_BINARY": str(flags.build / "syncline")}
    for name in ("SYNCLINE_COORDINATOR", "SYNCLINE_JOB", "RANK", "WORLD_SIZE"):
        environment.pop(name, None)
    what = {"optimizer": worker, "push": push, "publish": publish, "gpu_codecs": codecs}
    try:
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=flags.timeout)
    except subprocess.TimeoutExpired:
        return {**what, "error": f"did not end within {flags.timeout} s"}
    said = [line for line in ended.stdout.splitlines() if line.startswith('{"optimizer"')]
    return json.loads(said[-1]) if ended.returncode == 0 and said else {**what, "error": f"ended with {ended.returncode}"}


def row(result, torch_seconds):
    name = "torch, fused AdamW" if result["optimizer"] == "torch" else f"`{result['push']}`, `{result['publish']}`"
    if "error" in result:
        return f"| {name} | `SYNCLINE_GPU_CODECS={result['gpu_codecs']}` | {result['error']} | | |"
    way = {None: "", 0: "on the CPU"}.get(result.get("tensors_on_gpu"), "on the GPU")
    step = result["step_seconds"]
    times = f"{step / torch_seconds:.2f}" if torch_seconds else ""
    sent = f"{result['pushed_bytes_of_a_step'] / 2**20:.1f}" if "pushed_bytes_of_a_step" in result else ""
    return f"| {name} | {way} | {step * 1e3:.1f} | {times} | {sent} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), default=ROOT / "build/release")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--timeout", type=float, default=120, help="seconds that one process may take")
    parser.add_argument("--worker", choices=["torch", "syncline"], help=argparse.SUPPRESS)
    parser.add_argument("--push", default="", help=argparse.SUPPRESS)
    parser.add_argument("--publish", default="", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    try:
        import torch
        has_gpu = torch.cuda.is_available()
    except ImportError:
        has_gpu = False
    if not has_gpu:
        print("skipped: no torch that finds a GPU")
        sys.exit(MISSING)
    if flags.worker:
        return train(flags)
    results = []
    for arguments in [("torch",)] + [("syncline", *pair, codecs) for pair in CODECS for codecs in ("0", "1")]:
        results.append(run(flags, *arguments))
        print(json.dumps(results[-1]), flush=True)
    torch_seconds = results[0].get("step_seconds")
    print("\n| push, publish | encoded | step, ms | times torch's | MiB pushed |\n|---|---|---|---|---|")
    for result in results:
        print(row(result, torch_seconds))
    if any(result.get("gpu_codecs") == "1" and not result.get("tensors_on_gpu") for result in results):
        print("\nSYNCLINE_GPU_CODECS=1 had no codec run on the GPU; SYNCLINE_LOG=debug says why")
    if any("error" in result for result in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
