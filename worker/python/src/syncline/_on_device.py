"""Tensors of a GPU that the session knows by their memory there: its threads have the GPU encode gradients and decode weights.

    backward's stream     … gradient is there ─┐
    Line, a thread                             └ push_pull ─┐
    streams of the session                                  └ encode ─ bytes ─ servers ─ bytes ─ decode ─┐
    the program                                                                              wait returns ┴ forward …

Only what travels crosses the bus. No stream waits for another: the Line waits until the GPU is through with what the session is to
read and to write, and `wait` returns once the GPU has written the weights.

A gradient is the session's until it was waited for, as in host memory: the session keeps it, so that torch's allocator gives its
memory to nobody else, and whoever changes it before is told so (torch/_sent.py). Weights are the session's as long; in `start` and
`pull_state`, too, which therefore wait for what the program's stream does with them.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from syncline._memory import Memory, dtype_of
from syncline.errors import InvalidArgument

if TYPE_CHECKING:
    from syncline._staging import Device, Mark

ALIGNMENT = 16  # of what the GPU's codecs read and write

_VARIABLE = "SYNCLINE_GPU_CODECS"


def is_wanted() -> bool:
    """Unless the environment says that tensors are to be copied to the host and encoded there."""
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise InvalidArgument(f"{_VARIABLE} is '{value}', but must be 1, or 0: gradients are copied to the host and encoded there")
    return value != "0"


def why_not(device: Device, weights: Any) -> str:
    """Why the session cannot know these weights by their memory; empty: it can."""
    if not is_wanted():
        return f"{_VARIABLE}=0"
    if not device.number:
        return device.why_not
    if str(weights.dtype) not in ("torch.float32", "torch.bfloat16", "torch.float16"):
        return str(weights.dtype)
    if not weights.numel():
        return "without elements"
    if not weights.is_contiguous() or device.address(weights) % ALIGNMENT:
        return f"not contiguous, or not aligned to {ALIGNMENT} bytes"
    return ""


class OnDevice:
    """Such a tensor. Threads: one at a time."""

    def __init__(self, device: Device, weights: Any, name: str) -> None:
        self._device = device
        self._weights = weights.data  # whose memory the session knows, should the program give its parameter another one
        self.memory = self._memory(weights, name)
        self.device_name = str(weights.device)

    def is_on(self, device: Device) -> bool:
        """Whether its weights are there."""
        return self._device is device

    def take(self, gradient: Any, name: str) -> tuple[Any, Memory, Mark]:
        """A gradient of this GPU as the session reads it, where that lies, and when the GPU has written it."""
        dtype_of(gradient, name)  # raises
        own = self._device.dense(gradient)
        return own, self._memory(own, name), self._device.mark()

    def _memory(self, tensor: Any, name: str) -> Memory:
        return Memory(self._device.address(tensor), tuple(tensor.shape), dtype_of(tensor, name), self._device.number)

    def mark(self) -> Mark:
        """Behind all that the program uses the weights for."""
        return self._device.mark()

    def await_weights(self) -> None:
        """The session is about to write new weights: where they belong."""

    def lend(self) -> None:
        """Returns once the program's stream is through with the weights."""
        self._device.mark().synchronize()

    def land(self) -> None:
        """They are where they belong."""
