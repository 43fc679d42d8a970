"""Tensors of a GPU. What the session reads and writes is a copy of them in pinned host memory.

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

import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from typing import Any, Callable, NamedTuple, Optional, Protocol

from syncline.errors import DeadlineExceeded, InvalidArgument, SessionClosed


class Mark(Protocol):
    """A place in a stream of a GPU."""

    def synchronize(self) -> None:
        """Returns once the GPU has come there."""


class Device(Protocol):
    """What staging needs of a GPU. "The program's stream" is the current one of the thread that calls."""

    def host_like(self, tensor: Any) -> Any:
        """Contiguous host memory of its shape and type, which the GPU reads and writes by itself."""

    def mark(self) -> Mark:
        """All that the program's stream was told to do so far."""

    def to_host(self, host: Any, source: Any) -> Mark:
        """Copies, once the program's stream is through with what it was told so far; the mark is behind the copy."""

    def to_device(self, target: Any, host: Any) -> Mark:
        """Copies now, and lets the program's stream wait for it; the mark is behind the copy."""


class Cuda:
    """A GPU that torch has under "cuda": NVIDIA's, or AMD's with ROCm."""

    def __init__(self, device: Any) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._empty = torch.empty
        self._device = device
        self._up = torch.cuda.Stream(device)
        self._down = torch.cuda.Stream(device)

    def host_like(self, tensor: Any) -> Any:
        """See Device."""
        return self._empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

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
        self._cuda.current_stream(self._device).wait_event(copied)
        return copied


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

    def __init__(self, device: Device, weights: Any) -> None:
        self._device = device
        self._weights = weights.data  # to be written without a word to autograd, as the session writes host memory
        self.host = device.host_like(weights)
        self.host.copy_(self._weights)
        self._gradient: Any = None
        self._landed: Optional[Mark] = None
        self._is_awaited = True

    def is_on(self, device: Device) -> bool:
        """Whether its weights are there."""
        return self._device is device

    def to_host(self, gradient: Any) -> tuple[Any, Mark]:
        """A copy of a gradient, and when it is there. In memory that is used again once the gradient was waited for."""
        own = self._gradient
        if own is None or self._is_awaited or own.shape != gradient.shape or own.dtype != gradient.dtype:
            own = self._gradient = self._device.host_like(gradient)
        return own, self._device.to_host(own, gradient)

    def mark(self) -> Mark:
        """Behind all that the program uses the weights for."""
        return self._device.mark()

    def await_weights(self) -> None:
        """The session is about to write new weights."""
        self._is_awaited = True

    def settle(self) -> None:
        """Returns once the GPU no longer reads what the session wrote last."""
        if self._landed is not None:
            self._landed.synchronize()

    def land(self) -> None:
        """Copies new weights to the GPU, if there are any."""
        if self._is_awaited:
            self._is_awaited = False
            self._landed = self._device.to_device(self._weights, self.host)


def staged(weights: Any, name: str) -> Optional[Staged]:
    """None for weights in host memory, which need none of this."""
    device = device_of(weights, name)
    return None if device is None else Staged(device, weights)


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
    """The tensors of a session that are on GPUs. Without any, calls are made at once, and nothing is waited for."""

    def __init__(self) -> None:
        self._line = Line()
        self._staged: dict[int, Staged] = {}  # by what the session calls them

    def add(self, tensor: int, staged: Staged) -> None:
        """Before the session starts."""
        self._staged[tensor] = staged

    def to_host(self, tensor: int, name: str, gradient: Any) -> tuple[Any, list[Mark]]:
        """The gradient in host memory, and when it is there."""
        if not self._staged or (device := device_of(gradient, name)) is None:
            return gradient, []
        staged = self._staged.get(tensor)
        if staged is None or not staged.is_on(device):
            raise InvalidArgument(f"{name}: a gradient on {gradient.device}, where its weights are not: give .cpu() of it")
        host, copied = staged.to_host(gradient)
        return host, [copied]

    def in_order(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None]) -> None:
        """Makes a call that begins a step of the tensors, when GPUs have passed the marks and need their weights no more."""
        if not self._staged:
            return make()
        staged = self._of(tensors)
        for one in staged:
            one.await_weights()
        # A gradient's copy comes behind what its weights were used for.
        self._line.put(tensors, marks or [one.mark() for one in staged], make)

    def settle(self, tensor: Optional[int] = None, timeout: Optional[float] = None) -> Optional[float]:
        """Until the calls for the tensor (for all) were made; what is left of `timeout`. Raises the error of one that failed."""
        return self._line.wait(tensor, timeout) if self._staged else timeout

    def is_settled(self, tensor: int) -> bool:
        """Whether all calls for the tensor were made."""
        return not self._line.holds(tensor)

    def land(self, tensors: Optional[Sequence[int]] = None) -> None:
        """New weights, which the session has written, go to the GPU: of these tensors, or of all."""
        for staged in self._of(self._staged if tensors is None else tensors):
            staged.land()

    def lend(self, tensor: int) -> None:
        """The session may write the weights outside of a step; `land` follows."""
        for staged in self._of([tensor]):
            staged.settle()
            staged.await_weights()

    def end(self) -> None:
        """No call follows."""
        self._line.end()

    def _of(self, tensors: Iterable[int]) -> list[Staged]:
        return [self._staged[tensor] for tensor in tensors if tensor in self._staged]
