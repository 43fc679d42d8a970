#!/usr/bin/env python3
"""Trains with DistributedDataParallel and a hook, marked (1), by which Syncline's servers average the gradients.

    syncline run --standalone --nproc-per-node 2 -- python ddp_hook.py --push onebit
    syncline run --standalone --nproc-per-node 2 -- python ddp_hook.py --push none      # DDP's own all-reduce

The model learns to sort rows of numbers. At the end the program prints how many bytes the gradients took.
"""
import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import syncline.torch


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 8))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--push", default="onebit", help="how gradients travel, docs/compression.md; none: as DDP does")
    flags = parser.parse_args()

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(make_model())
    state = None
    if flags.push != "none":
        state = syncline.torch.HookState(model, push=flags.push, publish="bf16")
        model.register_comm_hook(state, syncline.torch.hook)  # (1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1 + rank)
    for step in range(flags.steps):
        rows = torch.rand(64, 8, generator=generator)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(rows), rows.sort(1).values)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 50 == 49:
            print(f"step {step + 1:4} loss {loss.item():.4f}", flush=True)
    if state is not None:
        pushed = state.session.stats.bytes_pushed
        dense = 4 * flags.steps * sum(p.numel() for p in model.parameters())
        if rank == 0:
            print(f"gradients took {pushed / 2**20:.1f} MiB, {dense / pushed:.1f} times less than FP32")
        state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
