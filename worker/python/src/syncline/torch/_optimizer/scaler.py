"""A GradScaler for an Optimizer whose servers hold the scale."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.torch._optimizer.optimizer import Optimizer


class GradScaler:
    """Replaces torch.amp.GradScaler for an Optimizer with loss_scaling="torch".

        optimizer = syncline.torch.Optimizer(model, "adamw", lr=1e-3, loss_scaling="torch")
        scaler = syncline.torch.GradScaler(optimizer)
        for inputs, labels in batches:
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Gradients leave while backward runs. The servers therefore divide them by the scale, find gradients that are not finite, leave out
    that step on all workers, and change the scale. They follow the rules of torch's GradScaler; growth and backoff are options of
    loss_scaling (docs/training.md). `enabled=False` passes everything through, for an Optimizer without loss_scaling.
    """

    def __init__(self, optimizer: Optimizer, enabled: bool = True) -> None:
        if not isinstance(optimizer, Optimizer):
            raise InvalidArgument(f"the first argument is {optimizer!r}; give the syncline.torch.Optimizer, and use torch's own GradScaler with wrap, LocalSGD "
                                  "and DiLoCo")
        if enabled and not optimizer.scales_loss:
            raise InvalidArgument('the servers have no scale: make the Optimizer with loss_scaling="torch"')
        if not enabled and optimizer.scales_loss:
            raise InvalidArgument("enabled=False, but the servers divide gradients by their scale: make the Optimizer without loss_scaling=")
        self._optimizer = optimizer

    def scale(self, outputs: Any) -> Any:
        """Returns the loss, or each loss of an iterable, multiplied by the servers' scale."""
        if isinstance(outputs, torch.Tensor):
            return self._optimizer.scale(outputs)
        if isinstance(outputs, Iterable):
            scaled = map(self.scale, outputs)
            if isinstance(outputs, tuple) and hasattr(outputs, "_make"):
                return outputs._make(scaled)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise InvalidArgument(f"scale() takes a tensor, or an iterable of them, and not {type(outputs).__name__}")

    def unscale_(self, optimizer: Any) -> None:
        """Raises FailedPrecondition if enabled, because gradients are on their way. The servers have the unscaled ones, and clip them."""
        if self.is_enabled():
            raise FailedPrecondition("gradients are on their way to the servers, which divide them by the scale: leave unscale_() out, and clip there, "
                                     'Optimizer(…, gradient="clip_global_norm=1"), which takes the unscaled ones')

    def step(self, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        """Calls the Optimizer's step. The servers decide for all workers whether it counts."""
        if optimizer is not self._optimizer:
            raise InvalidArgument("this GradScaler is another Optimizer's: each has a scale of its own")
        return optimizer.step(*arguments, **options)

    def update(self, new_scale: Optional[float] = None) -> None:
        """Does nothing, because the servers set the next scale. Raises InvalidArgument for a `new_scale`."""
        if new_scale is not None:
            raise InvalidArgument("update(new_scale): the servers hold the scale; loss_scaling= says what it begins with and how it changes")

    def get_scale(self) -> float:
        """Returns the scale of the present step. After step() it waits for the new weights, which decide whether that step counts."""
        self._optimizer.await_scale()
        return self._optimizer.session.loss_scale

    def is_enabled(self) -> bool:
        """Whether there is a scale."""
        return self._optimizer.scales_loss

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale, for programs that save it. The servers' checkpoints contain it, too."""
        return {"scale": self.get_scale()} if self.is_enabled() else {}

    def load_state_dict(self, state_dict: Any) -> None:
        """Does nothing. A job that continues has its scale, and a new job finds one within a few steps."""
