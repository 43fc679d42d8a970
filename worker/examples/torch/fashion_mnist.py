#!/usr/bin/env python3
"""Trains Fashion-MNIST with PyTorch and Syncline. Only the three lines marked (1) to (3) differ from plain torch.

    python fashion_mnist.py                                                    # one process, its own servers
    syncline run --standalone --nproc-per-node 4 -- python fashion_mnist.py    # four workers

The data comes from Debian's package dataset-fashion-mnist, or from its four files in the folder --data.
"""
import argparse
import gzip
import time
from pathlib import Path

import torch
import syncline.torch  # (1)
from torch import nn


def load(folder, part):
    """Returns pictures as 1 x 28 x 28 numbers from 0 to 1, and their classes."""
    def numbers(name, header):
        with gzip.open(folder / f"{part}-{name}-ubyte.gz") as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    return numbers("images-idx3", 16).reshape(-1, 1, 28, 28) / 255, numbers("labels-idx1", 8).long()


def make_model():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(model, pictures, classes):
    model.eval()
    with torch.no_grad():
        right = sum((model(p).argmax(1) == c).sum() for p, c in zip(pictures.split(1000), classes.split(1000)))
    model.train()
    return right.item() / len(classes)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, help="end each epoch after so many")
    parser.add_argument("--batch-size", type=int, default=64, help="of each worker")
    parser.add_argument("--lr", type=float, default=2e-3)
    flags = parser.parse_args()

    torch.manual_seed(0)
    model = make_model()
    optimizer = syncline.torch.Optimizer(model, "adamw", lr=flags.lr)  # (2) torch.optim.AdamW(model.parameters(), …)
    pictures, classes = load(flags.data, "train")
    begin = time.monotonic()
    for epoch in range(flags.epochs):
        order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(epoch))
        order = order[optimizer.rank::optimizer.world_size]  # (3) each worker takes its part, as with a DistributedSampler
        for step, rows in enumerate(order.split(flags.batch_size)[:flags.steps]):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(pictures[rows]), classes[rows])
            loss.backward()
            optimizer.step()
            if step % 100 == 0 and optimizer.rank == 0:
                print(f"epoch {epoch} step {step:4} loss {loss.item():.3f}", flush=True)
    seconds = time.monotonic() - begin
    if optimizer.rank == 0:
        print(f"accuracy {accuracy(model, *load(flags.data, 't10k')):.2%} after {seconds:.0f} s")


if __name__ == "__main__":
    main()
