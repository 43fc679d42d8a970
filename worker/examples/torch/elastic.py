#!/usr/bin/env python3
"""Trains while workers join, leave and die. Start two workers in one terminal:

    syncline run --standalone --nproc-per-node 2 --max-restarts 3 -- python elastic.py

Then try this in another one:

- Kill a worker (`kill -9`). The launcher starts it again, and it joins the running job.
- Add a worker: run this with RANK=2 WORLD_SIZE=2, and with the SYNCLINE_COORDINATOR, SYNCLINE_JOB and SYNCLINE_RUN_ID of the others.
- Stop a worker (`kill -STOP`) until it is dropped, and let it continue (`kill -CONT`). It joins again.
"""
import argparse
import time
from pathlib import Path

import torch
from torch import nn

import syncline.torch
from syncline.torch.elastic import ElasticDistributedSampler

SAMPLES = 2000


def make_data():
    generator = torch.Generator().manual_seed(1)
    rows = torch.rand(SAMPLES, 8, generator=generator)
    return torch.utils.data.TensorDataset(rows, rows.sort(1).values)


@syncline.torch.elastic.run
def train(state, flags, data):
    loader = torch.utils.data.DataLoader(data, batch_sampler=state.sampler)
    while state.sampler.epoch < flags.epochs and not flags.until.exists():
        epoch = state.sampler.epoch
        for rows, labels in loader:  # a worker that joins in the middle gets the rest of the epoch
            state.optimizer.zero_grad()
            loss = nn.functional.mse_loss(state.model(rows), labels)
            loss.backward()
            state.optimizer.step()
            state.best = min(state.best, loss.item())
            state.commit()
            time.sleep(flags.pause)
        members = state.optimizer.session.stats.members
        print(f"rank {state.optimizer.rank} epoch {epoch} step {state.step} loss {loss.item():.4f} workers {members}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--until", type=Path, default=Path("elastic-stop"), help="end early once there is this file")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds between steps, to watch it")
    flags = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = syncline.torch.Optimizer(model, "adamw", lr=5e-3)
    sampler = ElasticDistributedSampler(SAMPLES, optimizer, batch_size=50)
    state = syncline.torch.State(model, optimizer, sampler, best=float("inf"))
    print(f"rank {optimizer.rank} begins at epoch {sampler.epoch}, step {state.step}", flush=True)
    train(state, flags, make_data())
    optimizer.close()
    print(f"rank {optimizer.rank} ends at step {state.step}, best loss {state.best:.4f}", flush=True)


if __name__ == "__main__":
    main()
