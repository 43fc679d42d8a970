"""Tensors of GPUs, and the calls of a session about them. Where the GPU runs the session's codecs, the session knows a tensor by
its memory there (_on_device.py). Elsewhere what it reads and writes is a copy in pinned host memory:

    backward's stream   … gradient is there ─┐
    stream up                                └ copy to the host ─┐
    Line, a thread                                               └ push_pull ───── servers ─┐
    the program                                                              wait returns ──┴┐
    stream down                                                             copy to the GPU ─┤
    the program's stream                                                          forward … ─┘

Neither backward nor the program waits for a copy: the thread of a Line does, and makes the calls of a session in the order in
which the program made them. What it hands to the session the GPU is through with, so that the session may write new weights at
once. A gradient is copied by a stream of its own, while backward goes on, and weights by another one, while forward does.
"""
from __future__ import annotations

import functools
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Callable, NamedTuple, Optional, Protocol, Union

from syncline import _log, _on_device
from syncline._library import library
from syncline._memory import Memory, memory_of
from syncline._on_device import OnDevice
from syncline.errors import DeadlineExceeded, InvalidArgument, SessionClosed


class Mark(Protocol):
    """A place in a stream of a GPU."""

    def synchronize(self) -> None:
        """Returns once the GPU has come there."""

    def query(self) -> bool:
        """Whether it has."""


class Device(Protocol):
    """What is needed of a GPU. "The program's stream" is the current one of the thread that calls."""

    @property
    def number(self) -> int:
        """What the session calls it (syncline.h); 0 where its codecs do not run on it."""

    @property
    def why_not(self) -> str:
        """Why its number is 0."""

    def address(self, tensor: Any) -> int:
        """Where a tensor of it begins."""

    def dense(self, tensor: Any) -> Any:
        """Its values, contiguous and aligned: itself, if it is that, otherwise a copy by the program's stream."""

    def host_like(self, tensor: Any) -> Any:
        """Contiguous host memory of its shape and type, which the GPU reads and writes by itself."""

    def mark(self) -> Mark:
        """All that the program's stream was told to do so far."""

    def to_host(self, host: Any, source: Any) -> Mark:
        """Copies, once the program's stream is through with what it was told so far; the mark is behind the copy."""

    def to_device(self, target: Any, host: Any) -> Mark:
        """Copies now, and lets the program's stream wait for it; the mark is behind the copy."""

    def bring(self, target: Any, host: Any, after: Mark) -> Mark:
        """Copies, once the GPU has passed `after`; the mark is behind the copy. No stream of the program waits for it."""

    def follow(self, mark: Mark) -> None:
        """The program's stream goes on behind the mark only."""


class Cuda:
    """A GPU that torch has under "cuda": NVIDIA's, or AMD's with ROCm."""

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
            why = "the session's codecs run on CUDA devices, and this torch is ROCm's"
        elif library().syncline_device_check(number):
            why = str(library().syncline_last_error().decode(errors="replace"))
        else:
            _log.logger.debug("%s: encodes gradients and decodes weights", self._device)
            return ""
        level = logging.WARNING if os.environ.get("SYNCLINE_CUDA_MODULE") else logging.INFO  # somebody wants the GPU's codecs
        _log.logger.log(level, "%s: gradients are copied to host memory and encoded there: %s", self._device, why)
        return why

    @property
    def number(self) -> int:
        """See Device."""
        return 0 if self.why_not else 1 + int(self._torch.device(self._device).index)

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
        event: Mark = self._cuda.Event(blocking=True)  # whoever waits for it sleeps
        event.record(stream)  # type: ignore[attr-defined]
        return event

    def to_host(self, host: Any, source: Any) -> Mark:
        """See Device."""
        self._up.wait_event(self.mark())
        with self._cuda.stream(self._up):
            host.copy_(source.detach(), non_blocking=True)
        source.record_stream(self._up)  # its memory is nobody else's before the copy is made
        return self._mark(self._up)

    def to_device(self, target: Any, host: Any) -> Mark:
        """See Device."""
        with self._cuda.stream(self._down):
            target.copy_(host, non_blocking=True)
        copied = self._mark(self._down)
        self.follow(copied)
        return copied

    def bring(self, target: Any, host: Any, after: Mark) -> Mark:
        """See Device."""
        self._down.wait_event(after)
        with self._cuda.stream(self._down):
            target.copy_(host, non_blocking=True)
        target.record_stream(self._down)  # its memory is nobody else's before the copy is made
        return self._mark(self._down)

    def follow(self, mark: Mark) -> None:
        """See Device."""
        self._cuda.current_stream(self._device).wait_event(mark)


_devices: dict[Any, Device] = {}
_making = threading.Lock()


def device_of(array: Any, name: str) -> Optional[Device]:
    """Of a torch tensor, unless it is in host memory. InvalidArgument names `name` where it is on something else than a GPU."""
    if not hasattr(array, "data_ptr") or array.device.type == "cpu":
        return None
    if array.device.type != "cuda":
        raise InvalidArgument(f"{name}: is on {array.device}; only host memory and CUDA devices (ROCm's, too) are supported")
    with _making:
        if array.device not in _devices:
            _devices[array.device] = Cuda(array.device)
        return _devices[array.device]


class Staged:
    """A tensor of a GPU, and the host memory that the session knows it by. Threads: one at a time."""

    exist = False  # once one was made in this process

    def __init__(self, device: Device, weights: Any, name: str, why: str) -> None:
        self.why = why  # it is not known by its memory there
        self._device = device
        self._weights = weights.data  # to be written without a word to autograd, as the session writes host memory
        self._host = device.host_like(weights)
        Staged.exist = True
        self._host.copy_(self._weights)
        self.memory = memory_of(self._host, name)
        self.device_name = str(weights.device)
        self._gradient: Any = None
        self._landed: Optional[Mark] = None
        self._is_awaited = True

    def is_on(self, device: Device) -> bool:
        """Whether its weights are there."""
        return self._device is device

    def take(self, gradient: Any, name: str) -> tuple[Any, Memory, Mark]:
        """A copy of a gradient of this GPU, where that lies, and when it is there. The memory is used again once it was waited for."""
        own = self._gradient
        if own is None or self._is_awaited or own.shape != gradient.shape or own.dtype != gradient.dtype:
            own = self._gradient = self._device.host_like(gradient)
        return own, memory_of(own, name), self._device.to_host(own, gradient)

    def mark(self) -> Mark:
        """Behind all that the program uses the weights for."""
        return self._device.mark()

    def await_weights(self) -> None:
        """The session is about to write new weights."""
        self._is_awaited = True

    def lend(self) -> None:
        """The session may write new weights: returns once the GPU no longer reads those that it wrote last."""
        if self._landed is not None:
            self._landed.synchronize()
        self._is_awaited = True

    def land(self) -> None:
        """Copies new weights to the GPU, if there are any."""
        if self._is_awaited:
            self._is_awaited = False
            self._landed = self._device.to_device(self._weights, self._host)


Placed = Union[Staged, OnDevice]


def check_settings() -> None:
    """What the environment says must make sense wherever tensors are: the same program may meet a GPU elsewhere."""
    _on_device.is_wanted()  # raises


def placed(weights: Any, name: str) -> Optional[Placed]:
    """None for weights in host memory, which need none of this."""
    device = device_of(weights, name)
    if device is None:
        return None
    why_not = _on_device.why_not(device, weights)
    return Staged(device, weights, name, why_not) if why_not else OnDevice(device, weights, name)


class _Call(NamedTuple):
    tensors: Sequence[int]
    marks: Sequence[Mark]
    make: Callable[[], None]


class Line:
    """Calls that are made in their order, each when the GPU has passed its marks. After one has failed, none is made.

    Threads: any may use it. The calls are made by one of its own, which begins with the first.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Optional[_Call]] = SimpleQueue()
        self._changed = threading.Condition()
        self._left: Counter[int] = Counter()  # by tensor
        self._error: Optional[Exception] = None
        self._is_ended = False
        self._thread: Optional[threading.Thread] = None

    def put(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None]) -> None:
        """`make` is called behind the marks, on behalf of these tensors. SessionClosed after `end`."""
        with self._changed:
            if self._is_ended:
                raise SessionClosed("the session was closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="syncline-line", daemon=True)
                self._thread.start()
            self._left.update(tensors)
            self._calls.put(_Call(tensors, marks, make))

    def holds(self, tensor: int) -> bool:
        """Whether a call on behalf of the tensor was not made yet."""
        with self._changed:
            return self._left[tensor] > 0

    def wait(self, tensor: Optional[int], timeout: Optional[float]) -> Optional[float]:
        """Until all calls on behalf of the tensor were made (None: of all tensors); what is left of `timeout`.

        Raises the error of the first call that failed, whatever it was about.
        """
        began = time.monotonic()
        with self._changed:
            is_made = self._changed.wait_for(lambda: self._error is not None or not self._holds(tensor), timeout)
            if self._error is not None:
                raise self._error.with_traceback(None)  # not also where it was raised before
        if not is_made:
            raise DeadlineExceeded(f"the GPU did not finish what was to be pushed within {timeout:g} s")
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - began))

    def _holds(self, tensor: Optional[int]) -> bool:
        return self._left[tensor] > 0 if tensor is not None else any(self._left.values())

    def end(self) -> None:
        """Its thread ends with the calls that were put so far."""
        with self._changed:
            self._is_ended = True
            self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                for mark in call.marks:
                    mark.synchronize()
                if self._error is None:
                    call.make()
            except Exception as error:  # whoever waits is told; its frames would keep the session
                self._error = error.with_traceback(None)
            with self._changed:
                self._left.subtract(call.tensors)
                self._changed.notify_all()
            del call  # what it holds, the session among it, is free while the thread waits for the next one


class Stage:
    """Those tensors of a session that are on GPUs. Without any, calls are made at once, and nothing is waited for."""

    def __init__(self) -> None:
        self._line = Line()
        self._placed: dict[int, Placed] = {}  # by what the session calls them

    def add(self, tensor: int, placed: Placed) -> None:
        """Before the session starts."""
        self._placed[tensor] = placed

    @property
    def is_empty(self) -> bool:
        """Whether all tensors of the session are in host memory."""
        return not self._placed

    @property
    def on_device(self) -> int:
        """How many of them the session knows by their memory on a GPU."""
        return sum(isinstance(one, OnDevice) for one in self._placed.values())

    @property
    def why_copied(self) -> Counter[str]:
        """Why the others are known by copies in host memory, and how many of them."""
        return Counter(one.why for one in self._placed.values() if isinstance(one, Staged))

    def take(self, tensor: int, name: str, gradient: Any) -> tuple[Any, Memory, list[Mark]]:
        """A gradient as the session reads it, to be kept until it was waited for, where that lies, and when it is there."""
        if not self._placed or (device := device_of(gradient, name)) is None:
            return gradient, memory_of(gradient, name), []
        placed = self._placed.get(tensor)
        if placed is None or not placed.is_on(device):
            there = placed.device_name if placed else "the host"
            raise InvalidArgument(f"{name}: a gradient on {gradient.device} for weights on {there}: give one that is there, or .cpu() of it")
        taken, memory, mark = placed.take(gradient, name)
        return taken, memory, [mark]

    def in_order(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None]) -> None:
        """Makes a call that begins a step of the tensors, when GPUs have passed the marks and need their weights no more."""
        if not self._placed:
            return make()
        placed = self._of(tensors)
        for one in placed:
            one.await_weights()
        # A gradient's mark comes behind what its weights were used for.
        self._line.put(tensors, marks or [one.mark() for one in placed], make)

    def settle(self, tensor: Optional[int] = None, timeout: Optional[float] = None) -> Optional[float]:
        """Until the calls for the tensor (for all) were made; what is left of `timeout`. Raises the error of one that failed."""
        return self._line.wait(tensor, timeout) if self._placed else timeout

    def is_settled(self, tensor: int) -> bool:
        """Whether all calls for the tensor were made."""
        return not self._line.holds(tensor)

    def land(self, tensors: Optional[Sequence[int]] = None) -> None:
        """New weights, which the session has written, are to be on the GPU: of these tensors, or of all."""
        for placed in self._of(self._placed if tensors is None else tensors):
            placed.land()

    def lend(self, tensors: Optional[Sequence[int]] = None) -> None:
        """The session may read and write the weights outside of a step, of these tensors, or of all; `land` follows."""
        for placed in self._of(self._placed if tensors is None else tensors):
            placed.lend()

    def end(self) -> None:
        """No call follows."""
        self._line.end()

    def _of(self, tensors: Iterable[int]) -> list[Placed]:
        return [self._placed[tensor] for tensor in tensors if tensor in self._placed]
