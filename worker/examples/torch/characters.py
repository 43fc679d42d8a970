#!/usr/bin/env python3
"""Trains a transformer of 1.3 M parameters to write Python's documentation, character by character.

    python characters.py                                                                      # one process, its own servers
    syncline run --standalone --nproc-per-node 2 -- python characters.py --mode diloco         # synchronises every 100 steps
"""
import argparse
import json
import time
from pydoc_data import topics

import torch
import syncline.torch
from torch import nn
from torch.nn import functional as F

CONTEXT, WIDTH, LAYERS, HEADS = 64, 160, 4, 4


def load():
    """Returns the text of Python's help() (Debian: libpython3-stdlib) as numbers, for training and validation, and its characters."""
    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = sorted(set(text))
    number = {character: i for i, character in enumerate(characters)}
    data = torch.tensor([number[character] for character in text])
    return data[:-40000], data[-40000:], characters


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.register_buffer("future", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, x):
        rows, length, _ = x.shape
        query, key, value = (part.view(rows, length, HEADS, -1).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, 2))
        scores = (query @ key.transpose(2, 3)) / (WIDTH // HEADS) ** 0.5
        seen = scores.masked_fill(self.future[:length, :length], float("-inf")).softmax(3) @ value
        x = x + self.out(seen.transpose(1, 2).reshape(rows, length, WIDTH))
        return x + self.think(self.after(x))


class Transformer(nn.Module):
    def __init__(self, characters):
        super().__init__()
        self.character, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x):
        x = self.character(x) + self.place(torch.arange(x.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def make_optimizer(model, flags):
    """Returns the optimizer of the mode. The modes differ in nothing else."""
    options = {"lr": flags.lr, "weight_decay": 0.1, "betas": (0.9, 0.99)}
    if flags.mode.startswith("diloco"):
        codecs = {"push": "int4", "publish": "int8"} if flags.mode == "diloco-int4" else {}
        return syncline.torch.DiLoCo(model, torch.optim.AdamW(model.parameters(), **options), flags.sync_every, **codecs)
    if flags.mode == "sparseloco":
        return syncline.torch.LocalSGD.preset("sparseloco", model, torch.optim.AdamW(model.parameters(), **options), sync_every=flags.sync_every)
    if flags.mode == "demo":  # the momentum is on the workers
        return syncline.torch.Optimizer(model, "signsgd", push="demo", publish="onebit", lr=flags.lr, weight_decay=0.1)
    codec = {"bsp": "bf16", "onebit": "onebit"}[flags.mode]
    return syncline.torch.Optimizer(model, "adamw", push=codec, publish=codec, **options)


def loss_of(model, data, starts, autocast=False):
    windows = torch.stack([data[start:start + CONTEXT + 1] for start in starts.tolist()])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        characters = model(windows[:, :-1])
    return F.cross_entropy(characters.float().flatten(0, 1), windows[:, 1:].flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=["bsp", "onebit", "diloco", "diloco-int4", "sparseloco", "demo"], default="bsp")
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=8, help="of each worker")
    parser.add_argument("--sync-every", type=int, default=100, help="steps of a round of diloco")
    parser.add_argument("--validation", type=int, default=625, help="windows of the validation text")
    parser.add_argument("--lr", type=float, help="default: 2e-3; of demo, which steps by signs, 5e-4")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--autocast", action="store_true", help="compute in BF16; parameters stay FP32")
    flags = parser.parse_args()
    flags.lr = flags.lr or (5e-4 if flags.mode == "demo" else 2e-3)
    torch.manual_seed(flags.seed)
    train, validation, characters = load()
    model = Transformer(len(characters))
    begin = time.monotonic()
    with make_optimizer(model, flags) as optimizer:
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, flags.lr, flags.steps, pct_start=0.05, cycle_momentum=False)
        random = torch.Generator().manual_seed(flags.seed * 1000 + optimizer.rank)  # each worker reads other parts
        for step in range(flags.steps):
            optimizer.zero_grad()
            starts = torch.randint(len(train) - CONTEXT, (flags.batch_size,), generator=random)
            loss = loss_of(model, train, starts, flags.autocast)
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 100 == 0 and optimizer.rank == 0:
                print(f"step {step:4} loss {loss.item():.3f}", flush=True)
        optimizer.synchronize()
        seconds = time.monotonic() - begin
        with torch.no_grad():
            starts = torch.arange(0, len(validation) - CONTEXT, CONTEXT)[:flags.validation]
            loss = torch.stack([loss_of(model, validation, part) for part in starts.split(100)]).mean().item()
        stats = optimizer.session.stats
        if optimizer.rank == 0:
            print(json.dumps({"mode": flags.mode, "seed": flags.seed, "loss": loss, "seconds": seconds,
                              "pushed": stats.bytes_pushed, "pulled": stats.bytes_pulled,
                              "parameters": sum(p.numel() for p in model.parameters())}))


if __name__ == "__main__":
    main()
