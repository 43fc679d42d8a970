"""A bucket of gradients that DDP gives to a communication hook, on its way through a thread of ours."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from syncline import _staging


class Bucket:
    """Made in the hook; the thread runs what is to be done to it, and `done` of the hook tells DDP."""

    def __init__(self, bucket: Any) -> None:
        self.parameters: list[torch.nn.Parameter] = list(bucket.parameters())
        self.gradients: list[torch.Tensor] = list(bucket.gradients())
        self.buffer: torch.Tensor = bucket.buffer()
        device = _staging.device_of(self.buffer, "a bucket of gradients")
        self._computed = None if device is None else device.mark()
        # On a GPU what DDP does next waits for what the thread that sets it had the GPU do.
        self._done: torch.futures.Future[None] = torch.futures.Future(devices=None if device is None else [self.buffer.device])
        self._error: Optional[Exception] = None

    def run(self, work: Callable[[Bucket], None]) -> None:
        """In the thread, once the gradients are computed."""
        try:
            if self._computed is not None:
                self._computed.synchronize()
            work(self)
        except Exception as error:
            self._error = error
        self._done.set_result(None)

    def done(self) -> torch.futures.Future[torch.Tensor]:
        """The bucket's memory, after `run`; or its error."""
        # An error that is raised here is one for C++, too; DDP crashes on one that set_exception leaves.
        return self._done.then(lambda _: self._outcome())

    def _outcome(self) -> torch.Tensor:
        if self._error is not None:
            raise self._error
        return self.buffer
