"""Uses Syncline's optimizer with Hugging Face's Trainer and accelerate.

    optimizer = syncline.torch.Optimizer(model, "adamw", lr=5e-4, gradient="clip_global_norm=1")
    syncline.huggingface.train_alone()      # before TrainingArguments: Syncline connects the workers, not torch.distributed
    arguments = TrainingArguments("out", max_grad_norm=0, …)        # the servers clip
    Trainer(model, arguments, train_dataset=part(optimizer.rank, optimizer.world_size), optimizers=(optimizer, None),
            callbacks=[syncline.huggingface.SynclineCallback(optimizer)]).train()
"""
from __future__ import annotations

import os
from typing import Any, Union

from transformers import TrainerCallback  # type: ignore[import]

from syncline import _log
from syncline.errors import FailedPrecondition
from syncline.torch import LocalSGD, Optimizer

_LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_MIB = 2**20


def train_alone() -> None:
    """Removes the launcher's variables about other processes from the environment.

    Trainer and accelerate would otherwise start torch.distributed with them and wrap the model into DDP. Call it after the optimizer was
    made, and before TrainingArguments or Accelerator.
    """
    for name in _LAUNCHER:
        os.environ.pop(name, None)


class SynclineCallback(TrainerCallback):  # type: ignore[misc]
    """Reports the loss to the servers (`syncline status`, metrics), and adds the bytes that were sent to Trainer's logs."""

    def __init__(self, optimizer: Union[Optimizer, LocalSGD]) -> None:
        self._optimizer = optimizer
        self._began_at = optimizer.steps

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Raises FailedPrecondition for settings that would fail in the first step."""
        if args.world_size > 1:
            raise FailedPrecondition("Trainer has started torch.distributed, whose DDP would average gradients once more; call "
                                     "syncline.huggingface.train_alone() before TrainingArguments")
        if isinstance(self._optimizer, Optimizer) and args.max_grad_norm:
            raise FailedPrecondition(
                f"max_grad_norm={args.max_grad_norm} would clip gradients that are already on their way to the "
                f'servers; give TrainingArguments(max_grad_norm=0), and Optimizer(…, gradient="clip_global_norm={args.max_grad_norm}")')
        if isinstance(self._optimizer, Optimizer) and args.gradient_accumulation_steps > 1:
            raise FailedPrecondition(
                f"gradient_accumulation_steps={args.gradient_accumulation_steps}: Trainer has no no_sync() here; leave it at 1, and give "
                f'Optimizer(…, session={{"accumulate_steps": {args.gradient_accumulation_steps}}}) instead')

        if isinstance(self._optimizer, Optimizer):
            self._optimizer.let_norms_be_read()  # as Trainer does

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        """Reports the loss, and adds the bytes that were sent and the number of workers to Trainer's logs."""
        if logs is None or "loss" not in logs:
            return
        session = self._optimizer.session
        session.report_loss(float(logs["loss"]), max(0, session.step - 1), args.per_device_train_batch_size)
        stats = session.stats
        logs["pushed_mib"] = round(stats.bytes_pushed / _MIB, 3)
        logs["pulled_mib"] = round(stats.bytes_pulled / _MIB, 3)
        logs["workers"] = stats.members

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Logs one line about the run."""
        stats, steps = self._optimizer.session.stats, self._optimizer.steps - self._began_at
        values = sum(parameter.numel() for group in self._optimizer.param_groups for parameter in group["params"])
        dense = 4 * values * steps
        _log.logger.info("%d steps: pushed %.2f MiB, %.1f times less than FP32; pulled %.2f MiB; %d workers at the end", steps,
                         stats.bytes_pushed / _MIB, dense / max(1, stats.bytes_pushed), stats.bytes_pulled / _MIB, stats.members)
