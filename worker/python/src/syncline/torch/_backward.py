"""Whether backward came to its end, or an exception broke it off: of memory that ran out, or the program's own."""
from __future__ import annotations

import torch

from syncline import _log
from syncline.errors import FailedPrecondition


class Backward:
    """Of one model. Between two backwards `is_under_way` means that the last one was broken off."""

    def __init__(self) -> None:
        self.is_under_way = False

    def goes_on(self) -> None:
        """In a hook of autograd, which tells of the end, and of no end that an exception makes."""
        if not self.is_under_way:
            self.is_under_way = True
            torch.autograd.Variable._execution_engine.queue_callback(self.is_over)

    def is_over(self) -> None:
        """The step that it belongs to is, or it is itself."""
        self.is_under_way = False


def say_what_left(step: int, sent: int, of: int) -> None:
    """To whom it may concern that a part of a batch counts."""
    _log.logger.warning("backward was broken off when the gradients of %d of %d parameters had left: they count in step %d, and of the others there is "
                        "none in it (docs/pytorch.md#a-backward-that-fails)", sent, of, step)


def cannot_end(error: FailedPrecondition) -> FailedPrecondition:
    """Of optimizers that take no part of a step."""
    return FailedPrecondition(f"backward was broken off, and its step cannot be ended with what had left: {error}; where a backward may fail, run it in "
                              "no_sync(), and step() sends its gradients")
