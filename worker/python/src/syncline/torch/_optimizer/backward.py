"""Notices a backward that an exception broke off, such as one for lack of memory or one of the program's own."""
from __future__ import annotations

import torch

from syncline import _log
from syncline.errors import FailedPrecondition


class Backward:
    """Follows the backwards of one model. If `is_under_way` is True between two of them, the last one was broken off."""

    def __init__(self) -> None:
        self.is_under_way = False

    def goes_on(self) -> None:
        """Notes that backward runs. A hook of autograd calls it. Autograd reports the end, but not one by an exception."""
        if not self.is_under_way:
            self.is_under_way = True
            torch.autograd.Variable._execution_engine.queue_callback(self.is_over)

    def is_over(self) -> None:
        """Notes that backward, or the step that it belongs to, has ended."""
        self.is_under_way = False


def say_what_left(step: int, sent: int, of: int) -> None:
    """To whom it may concern that a part of a batch counts."""
    _log.logger.warning("backward failed after the gradients of %d of %d parameters had been sent: these count "
                        "in step %d, the others are missing from it (docs/pytorch.md#a-backward-that-fails)", sent, of, step)


def cannot_end(error: FailedPrecondition) -> FailedPrecondition:
    """Of optimizers that take no part of a step."""
    return FailedPrecondition("backward failed, and its step cannot be ended with the gradients that had been "
                              f"sent: {error}; if a backward may fail, run it in no_sync(), and step() sends its "
                              "gradients")
