"""Tensors on GPUs, and the calls of a session about them.

If the GPU runs the session's codecs, the session uses a tensor's memory on the GPU (_on_device.py). Otherwise it reads and writes a copy
in pinned host memory:

    backward's stream   … gradient is there ─┐
    stream up                                └ copy to the host ─┐
    Line, a thread                                               └ push_pull ───── servers ─┐
    the program                                                              wait returns ──┴┐
    stream down                                                             copy to the GPU ─┤
    the program's stream                                                          forward … ─┘

Neither backward nor the program waits for a copy. The thread of a Line waits, and makes the calls of a session in the order in which the
program made them. The GPU no longer uses what the Line hands to the session, so the session may write new weights at once. One stream
copies gradients while backward goes on; another one copies weights while forward does.
"""
from __future__ import annotations

import functools
import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Callable, Optional, Protocol, Union

from syncline import _log, _on_device
from syncline._library import library
from syncline._line import Line
from syncline._memory import Memory, memory_of
from syncline._on_device import OnDevice
from syncline.errors import InvalidArgument


class Mark(Protocol):
    """A point in a stream of a GPU."""

    def synchronize(self) -> None:
        """Blocks until the GPU has reached it."""

    def query(self) -> bool:
        """Returns whether the GPU has reached it."""


class Device(Protocol):
    """What Syncline needs of a GPU. "The program's stream" is the current stream of the calling thread."""

    @property
    def number(self) -> int:
        """Its number in the session (syncline.h); 0 if the session's codecs do not run on it."""

    @property
    def why_not(self) -> str:
        """Why its number is 0; "" if it is not."""

    @property
    def ordinal(self) -> int:
        """Its number among the GPUs that this process sees."""

    def stream(self) -> int:
        """Returns CUDA's handle of the program's stream."""

    def address(self, tensor: Any) -> int:
        """Returns the address of a tensor on it."""

    def dense(self, tensor: Any) -> Any:
        """Returns the tensor if it is contiguous and aligned, otherwise a copy that is, made on the program's stream."""

    def host_like(self, tensor: Any) -> Any:
        """Returns a contiguous host tensor of the same shape and type, in memory that the GPU reads and writes by itself."""

    def mark(self) -> Mark:
        """Returns a mark behind all work that was queued on the program's stream so far."""

    def to_host(self, host: Any, source: Any) -> Mark:
        """Queues a copy behind all work that was queued on the program's stream so far. The mark is behind the copy."""

    def to_device(self, target: Any, host: Any) -> Mark:
        """Begins a copy at once, and makes the program's stream wait for it. The mark is behind the copy."""

    def bring(self, target: Any, source: Any, after: Mark) -> Mark:
        """Queues a copy from the host or from its own memory behind `after`. The mark is behind the copy.

        No stream of the program waits for it.
        """

    def follow(self, mark: Mark) -> None:
        """Makes the program's stream wait for a mark."""


class Cuda:
    """A GPU that torch calls "cuda": one of NVIDIA, or of AMD with ROCm."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch: Any = torch
        self._cuda: Any = torch.cuda
        self._device = device
        self._up = torch.cuda.Stream(device)
        self._down = torch.cuda.Stream(device)

    @functools.cached_property
    def why_not(self) -> str:
        """See Device."""
        number = 1 + int(self._torch.device(self._device).index)
        if self._torch.version.hip is not None:
            why = "the session's codecs run on CUDA devices, but this torch is built for ROCm"
        elif library().syncline_device_check(number):
            why = str(library().syncline_last_error().decode(errors="replace"))
        else:
            _log.logger.debug("%s: encodes gradients and decodes weights", self._device)
            return ""
        level = logging.WARNING if os.environ.get("SYNCLINE_CUDA_MODULE") else logging.INFO  # the user wants the GPU's codecs
        _log.logger.log(level, "%s: gradients are copied to host memory and encoded there: %s", self._device, why)
        return why

    @property
    def number(self) -> int:
        """See Device."""
        return 0 if self.why_not else 1 + int(self._torch.device(self._device).index)

    @property
    def ordinal(self) -> int:
        """See Device."""
        return int(self._torch.device(self._device).index)

    def stream(self) -> int:
        """See Device."""
        return int(self._cuda.current_stream(self._device).cuda_stream)

    def address(self, tensor: Any) -> int:
        """See Device."""
        return int(tensor.data_ptr())

    def dense(self, tensor: Any) -> Any:
        """See Device."""
        dense = tensor.detach().contiguous()
        return dense.clone() if self.address(dense) % _on_device.ALIGNMENT else dense

    def host_like(self, tensor: Any) -> Any:
        """See Device."""
        Staged.exist = True
        return self._torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)

    def mark(self) -> Mark:
        """See Device."""
        return self._mark(self._cuda.current_stream(self._device))

    def _mark(self, stream: Any) -> Mark:
        event: Mark = self._cuda.Event(blocking=True)  # a thread that waits for it sleeps
        event.record(stream)  # type: ignore[attr-defined]
        return event

    def _on(self, stream: Any, queue: Callable[[], Any]) -> None:
        """Calls `queue` with `stream` as the current stream. An exception between any two lines leaves the program's streams current."""
        # set_stream makes the stream's GPU the current one, too, so the last one of these is that of the present GPU.
        before = (self._cuda.current_stream(self._device), self._cuda.current_stream())
        try:
            try:
                self._cuda.set_stream(stream)
                queue()
            finally:
                self._set(before)
        finally:
            self._set(before)  # again: the exception may have come in the lines above

    def _set(self, streams: Iterable[Any]) -> None:
        for stream in streams:
            self._cuda.set_stream(stream)

    def to_host(self, host: Any, source: Any) -> Mark:
        """See Device."""
        self._up.wait_event(self.mark())
        self._on(self._up, functools.partial(host.copy_, source.detach(), non_blocking=True))
        source.record_stream(self._up)  # torch must not reuse its memory before the copy is made
        return self._mark(self._up)

    def to_device(self, target: Any, host: Any) -> Mark:
        """See Device."""
        self._on(self._down, functools.partial(target.copy_, host, non_blocking=True))
        copied = self._mark(self._down)
        self.follow(copied)
        return copied

    def bring(self, target: Any, source: Any, after: Mark) -> Mark:
        """See Device."""
        self._down.wait_event(after)
        self._on(self._down, functools.partial(target.copy_, source, non_blocking=True))
        for one in (target, source):
            if one.is_cuda:
                one.record_stream(self._down)  # torch must not reuse its memory before the copy is made
        return self._mark(self._down)

    def follow(self, mark: Mark) -> None:
        """See Device."""
        self._cuda.current_stream(self._device).wait_event(mark)


_devices: dict[Any, Device] = {}


def device_of(array: Any, name: str) -> Optional[Device]:
    """Returns the GPU of a torch tensor, or None for arrays in host memory.

    Raises InvalidArgument, which names `name`, for tensors on any other device.
    """
    if not hasattr(array, "data_ptr") or array.device.type == "cpu":
        return None
    if array.device.type != "cuda":
        raise InvalidArgument(f"{name}: is on {array.device}; only host memory and CUDA devices (ROCm's, too) are supported")
    return _devices.get(array.device) or _devices.setdefault(array.device, Cuda(array.device))


class Staged:
    """A tensor on a GPU, and the host memory that the session uses instead. Not thread-safe."""

    exist = False  # whether one was ever made in this process

    def __init__(self, device: Device, weights: Any, name: str, why: str) -> None:
        self.why = why  # reason why the session does not use its memory on the GPU
        self._device = device
        self._weights = weights.data  # autograd does not notice writes to .data, as with host memory
        self._host = device.host_like(weights)
        Staged.exist = True
        self._host.copy_(self._weights)
        self.memory = memory_of(self._host, name)
        self.device_name = str(weights.device)
        self._gradient: Any = None
        self._landed: Optional[Mark] = None
        self._is_in_step = False  # from a call that begins one to the end of its wait
        self._is_awaited = True  # the session may have written weights that have not landed

    def is_on(self, device: Device) -> bool:
        """Returns whether its weights are on `device`."""
        return self._device is device

    def take(self, gradient: Any, name: str) -> tuple[Any, Memory, Mark]:
        """Begins to copy a gradient of this GPU to host memory. Returns the copy, its memory, and the mark behind the copy.

        Its memory is used again for the next gradient once new weights have landed.
        """
        own = self._gradient
        if own is None or self._is_awaited or own.shape != gradient.shape or own.dtype != gradient.dtype:
            own = self._gradient = self._device.host_like(gradient)
        return own, memory_of(own, name), self._device.to_host(own, gradient)

    def mark(self) -> Mark:
        """Returns a mark behind all uses of the weights by the program so far."""
        return self._device.mark()

    def await_weights(self) -> None:
        """Notes that the session is about to write new weights."""
        self._is_in_step = self._is_awaited = True

    def lend(self) -> None:
        """Lets the session write new weights: blocks until the GPU no longer reads those that it wrote last."""
        if self._landed is not None:
            self._landed.synchronize()
        self._is_awaited = True

    def land(self) -> None:
        """Copies new weights to the GPU, if the session may have written any."""
        if self._is_awaited:
            self._landed = self._device.to_device(self._weights, self._host)
            self._is_in_step = self._is_awaited = False  # not before: after an exception the next call copies them

    def take_back(self) -> None:
        """Ends `lend`: does `land`, but weights of a step under way are still to come."""
        if self._is_awaited:
            self._landed = self._device.to_device(self._weights, self._host)
            self._is_awaited = self._is_in_step


Placed = Union[Staged, OnDevice]


def check_settings() -> None:
    """Raises InvalidArgument for wrong settings in the environment, even without a GPU: the program may meet one elsewhere."""
    _on_device.is_wanted()


def placed(weights: Any, name: str) -> Optional[Placed]:
    """Returns how the session uses weights on a GPU; None for weights in host memory."""
    device = device_of(weights, name)
    if device is None:
        return None
    why_not = _on_device.why_not(device, weights)
    return Staged(device, weights, name, why_not) if why_not else OnDevice(device, weights, name)


class Stage:
    """The tensors of a session that are on GPUs. Without any, calls are made at once, and no method waits."""

    def __init__(self) -> None:
        self._line: Optional[Line] = None  # from the first tensor on
        self._placed: dict[int, Placed] = {}  # by the session's number of the tensor

    def add(self, tensor: int, placed: Placed) -> None:
        """Adds a tensor that is on a GPU. Call it before the session starts."""
        self._line = self._line or Line()
        self._placed[tensor] = placed

    def remove(self, tensor: int) -> None:
        """Forgets a tensor of which no call is under way."""
        self._placed.pop(tensor, None)

    @property
    def is_empty(self) -> bool:
        """Whether all tensors that the session was given are in host memory."""
        return self._line is None

    @property
    def on_device(self) -> int:
        """Number of tensors whose memory on a GPU the session uses."""
        return sum(isinstance(one, OnDevice) for one in self._placed.values())

    @property
    def why_copied(self) -> Counter[str]:
        """Reasons why the others are copied to host memory, and the number of tensors for each."""
        return Counter(one.why for one in self._placed.values() if isinstance(one, Staged))

    def take(self, tensor: int, name: str, gradient: Any) -> tuple[Any, Memory, list[Mark]]:
        """Returns a gradient as the session reads it, its memory, and the marks behind the writes to it.

        The caller keeps the gradient until it was waited for.
        """
        if not self._placed or (device := device_of(gradient, name)) is None:
            return gradient, memory_of(gradient, name), []
        placed = self._placed.get(tensor)
        if placed is None or not placed.is_on(device):
            there = placed.device_name if placed else "the host"
            raise InvalidArgument(f"{name}: a gradient on {gradient.device} for weights on {there}: pass one "
                                  "that is there, or its .cpu()")
        taken, memory, mark = placed.take(gradient, name)
        return taken, memory, [mark]

    def in_order(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None], codes: list[int]) -> None:
        """Makes a call that begins a step of the tensors, once GPUs have passed the marks and no longer use their weights.

        There must be tensors on GPUs. `codes` is not empty from the moment on from which the call will be made.
        """
        assert self._line is not None
        placed = self._of(tensors)
        for one in placed:
            one.await_weights()
        # The mark of a gradient lies behind all uses of its weights.
        self._line.put(tensors, marks or [one.mark() for one in placed], make, codes)

    def settle(self, tensor: Optional[int] = None, timeout: Optional[float] = None) -> Optional[float]:
        """Blocks until all calls for the tensor were made (None: for all tensors). Returns what is left of `timeout`.

        Raises the error of a call that failed.
        """
        return self._line.wait(tensor, timeout) if self._line else timeout

    def is_settled(self, tensor: int) -> bool:
        """Returns whether all calls for the tensor were made."""
        return self._line is None or not self._line.holds(tensor)

    def land(self, tensors: Optional[Sequence[int]] = None) -> None:
        """Brings new weights that the session has written to the GPU. None: of all tensors."""
        for placed in self._of(self._placed if tensors is None else tensors):
            placed.land()

    def lend(self, tensors: Optional[Sequence[int]] = None) -> None:
        """Lets the session read and write weights outside a step, until `take_back`. None: of all tensors."""
        for placed in self._of(self._placed if tensors is None else tensors):
            placed.lend()

    def take_back(self, tensors: Optional[Sequence[int]] = None) -> None:
        """Ends `lend`, and brings new weights to the GPU. A step under way may write others until its wait. None: of all tensors."""
        for placed in self._of(self._placed if tensors is None else tensors):
            placed.take_back()

    def end(self) -> None:
        """Ends the thread. No call may follow."""
        if self._line is not None:
            self._line.end()

    def _of(self, tensors: Iterable[int]) -> list[Placed]:
        return [self._placed[tensor] for tensor in tensors if tensor in self._placed]
