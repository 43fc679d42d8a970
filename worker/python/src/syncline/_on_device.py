"""Tensors whose memory on a GPU the session uses directly: the GPU encodes their gradients and decodes their weights.

    backward's stream     … gradient is there ─┐
    Line, a thread                             └ push_pull ─┐
    streams of the session                                  └ encode ─ bytes ─ servers ─ bytes ─ decode ─┐
    the program                                                                              wait returns ┴ forward …

Only encoded values cross the bus. No stream waits for another: the Line waits until the GPU no longer uses the memory that the session
will read and write, and `wait` returns once the GPU has written the weights.

A gradient belongs to the session until it was waited for, as in host memory. The session keeps a reference, so that torch's allocator
does not give the memory away, and a program that changes the gradient too early gets an error (torch/_optimizer/sent.py). Weights
belong to the session for the same time, and also during `start` and `pull_state`, which therefore wait for the program's stream.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from syncline._memory import Memory, dtype_of
from syncline.errors import InvalidArgument

if TYPE_CHECKING:
    from syncline._staging import Device, Mark

ALIGNMENT = 16  # bytes; of the memory that the GPU's codecs read and write

_VARIABLE = "SYNCLINE_GPU_CODECS"


def is_wanted() -> bool:
    """Returns False if the environment asks to copy tensors to the host and encode them there, and True otherwise."""
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise InvalidArgument(f"{_VARIABLE} is '{value}', but must be 1, or 0: gradients are copied to the host and encoded there")
    return value != "0"


def why_not(device: Device, weights: Any) -> str:
    """Returns why the session cannot use the memory of these weights on the GPU; "": it can."""
    if not is_wanted():
        return f"{_VARIABLE}=0"
    if not device.number:
        return device.why_not
    if str(weights.dtype) not in ("torch.float32", "torch.bfloat16", "torch.float16"):
        return str(weights.dtype)
    if not weights.numel():
        return "it has no elements"
    if not weights.is_contiguous() or device.address(weights) % ALIGNMENT:
        return f"not contiguous, or not aligned to {ALIGNMENT} bytes"
    return ""


class OnDevice:
    """A tensor whose memory on a GPU the session uses. Not thread-safe."""

    def __init__(self, device: Device, weights: Any, name: str) -> None:
        self._device = device
        self._weights = weights.data  # kept, because the session uses this memory even if the parameter gets another
        self.memory = self._memory(weights, name)
        self.device_name = str(weights.device)

    def is_on(self, device: Device) -> bool:
        """Returns whether its weights are on `device`."""
        return self._device is device

    def take(self, gradient: Any, name: str) -> tuple[Any, Memory, Mark]:
        """Returns a gradient as the session reads it, its memory, and the mark behind the GPU's writes to it."""
        dtype_of(gradient, name)  # raises
        own = self._device.dense(gradient)
        return own, self._memory(own, name), self._device.mark()

    def _memory(self, tensor: Any, name: str) -> Memory:
        return Memory(self._device.address(tensor), tuple(tensor.shape), dtype_of(tensor, name), self._device.number)

    def mark(self) -> Mark:
        """Returns a mark behind all uses of the weights by the program so far."""
        return self._device.mark()

    def await_weights(self) -> None:
        """Does nothing: the session writes new weights in place."""

    def lend(self) -> None:
        """Returns once the program's stream no longer uses the weights."""
        self._device.mark().synchronize()

    def land(self) -> None:
        """Does nothing: new weights are in place already."""

    def take_back(self) -> None:
        """Does nothing, as `land`."""
