#!/usr/bin/env python3
"""Trains a tiny GPT-2 with random initial weights, with Hugging Face's Trainer. Lines marked (1) to (5) concern Syncline.

    pip install transformers accelerate
    python gpt2_trainer.py                                                                  # one process, its own servers
    syncline run --standalone --nproc-per-node 2 -- python gpt2_trainer.py --push onebit    # two workers

It learns the source of one of Python's modules, byte by byte, and downloads nothing.
"""
import argparse
import inspect

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import syncline.huggingface
import syncline.torch


class Bytes(Dataset):
    """Windows of `length` bytes. This rank takes every `ranks`-th window."""

    def __init__(self, data, length, rank, ranks):
        self.windows = torch.frombuffer(bytearray(data), dtype=torch.uint8).long().unfold(0, length, length // 2)[rank::ranks]

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, number):
        return {"input_ids": self.windows[number], "labels": self.windows[number]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--push", default="bf16", help="how gradients travel: docs/compression.md")
    parser.add_argument("--out", default="gpt2-out")
    flags = parser.parse_args()

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
                                       attn_pdrop=0, bos_token_id=0, eos_token_id=0, use_cache=False))
    optimizer = syncline.torch.Optimizer(model, "adamw", lr=3e-3, push=flags.push, gradient="clip_global_norm=1")  # (1)
    syncline.huggingface.train_alone()                                                                              # (2)
    arguments = TrainingArguments(
        flags.out, max_steps=flags.steps, per_device_train_batch_size=8, logging_steps=10, save_strategy="no", use_cpu=True,
        report_to=[], warmup_steps=10, disable_tqdm=True, max_grad_norm=0)                                          # (3) servers clip
    data = Bytes(inspect.getsource(argparse).encode(), 64, optimizer.rank, optimizer.world_size)                    # (4)
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(optimizer, None),
                      callbacks=[syncline.huggingface.SynclineCallback(optimizer)])                                 # (5)
    trainer.train()
    if optimizer.rank == 0:
        trainer.save_model()
    optimizer.close()


if __name__ == "__main__":
    main()
