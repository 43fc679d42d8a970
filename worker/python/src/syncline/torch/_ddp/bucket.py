"""A bucket of gradients that DDP gives to a communication hook, and that a thread of Syncline works on."""
from __future__ import annotations

from typing import Any, Callable, Optional

import torch

from syncline import _staging


class Bucket:
    """One bucket. The hook makes it and returns `done()` to DDP; the thread then calls `run` with what is to be done to it."""

    def __init__(self, bucket: Any) -> None:
        self.parameters: list[torch.nn.Parameter] = list(bucket.parameters())
        self.gradients: list[torch.Tensor] = list(bucket.gradients())
        self.buffer: torch.Tensor = bucket.buffer()
        device = _staging.device_of(self.buffer, "a bucket of gradients")
        self._computed = None if device is None else device.mark()
        # On a GPU, what DDP does next waits for the work that the thread queued on the GPU before it completed the future.
        self._done: torch.futures.Future[None] = torch.futures.Future(devices=None if device is None else [self.buffer.device])
        self._error: Optional[Exception] = None

    def run(self, work: Callable[[Bucket], None]) -> None:
        """Waits until the gradients are computed, calls `work`, and completes the future. The thread calls it."""
        try:
            if self._computed is not None:
                self._computed.synchronize()
            work(self)
        except Exception as error:
            self._error = error
        self._done.set_result(None)

    def done(self) -> torch.futures.Future[torch.Tensor]:
        """Returns a future of the bucket's memory. It completes after `run`, or fails with the error of `work`."""
        # C++ also sees an error that this callback raises; DDP crashes on one that set_exception sets.
        return self._done.then(lambda _: self._outcome())

    def _outcome(self) -> torch.Tensor:
        if self._error is not None:
            raise self._error
        return self.buffer
