"""The objects that operations of torch.distributed return, by which callers wait for them."""
from __future__ import annotations

import datetime
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Sequence

import torch
import torch.distributed as dist

from syncline import _group
from syncline._library import FOREVER
from syncline.errors import DeadlineExceeded
from syncline.torch._backend.host_copies import Landing

if TYPE_CHECKING:
    from syncline.torch.distributed import ProcessGroupSyncline


def milliseconds(timeout: Optional[datetime.timedelta]) -> int:
    """Returns the timeout in milliseconds, 0 for None."""
    if timeout is None:
        return 0
    return max(0, int(timeout.total_seconds() * 1000))


_Base: Any = dist._Work if hasattr(dist, "_Work") else dist.Work


class Work(_Base):
    """One or more operations. It is done when all of them are done and the results are in place.

    `finish` is called once, after the operations. It copies the results to where they belong, and returns the copies that GPUs still
    make. Thread-safe.
    """

    def __init__(self, group: "ProcessGroupSyncline", result: List[torch.Tensor],
                 finish: Optional[Callable[[], Sequence[Landing]]] = None, devices: Sequence[Any] = ()) -> None:
        super().__init__()
        self._group, self._result, self._finish = group, result, finish
        self._lock = threading.RLock()  # reentrant: a future that is already completed calls back at once
        self._handles: List[_group.Handle] = []
        self._begun: Optional[threading.Event] = None  # None: it began at once
        self._landings: Sequence[Landing] = ()
        self._is_settled = False
        self._error: Optional[Exception] = None
        self._done: torch.futures.Future = torch.futures.Future(devices=list(devices)) if devices else torch.futures.Future()
        self._future: Optional[torch.futures.Future] = None

    # ---- how it begins -------------------------------------------------------------------------------------------

    def postpone(self) -> None:
        """Says that another thread will call `begin` or `fail` later."""
        self._begun = threading.Event()

    def begin(self, handles: List[_group.Handle]) -> None:
        self._handles = handles
        if self._begun is not None:
            self._begun.set()

    def fail(self, error: Exception) -> None:
        """Ends the work with an error. Called instead of `begin`."""
        with self._lock:
            self._error, self._finish, self._is_settled = error, None, True
        if self._begun is not None:
            self._begun.set()

    # ---- how it ends ---------------------------------------------------------------------------------------------

    def settle(self) -> bool:
        """Returns whether the results are in place, are being copied there, or will never come. Never blocks."""
        with self._lock:
            if self._is_settled:
                return True
            if self._begun is not None and not self._begun.is_set():
                return False
            if not all(handle.done() for handle in self._handles):
                return False
            try:
                for handle in self._handles:
                    handle.wait(0)
                if self._finish is not None:
                    with torch.no_grad():
                        self._landings = self._finish()
            except Exception as error:
                self._error = error
            self._handles, self._finish = [], None
            self._is_settled = True
            return True

    def forget_result(self) -> None:
        """Releases the result and finished copies. Called when only the process group refers to the work; a future keeps the result."""
        with self._lock:
            if self._future is None:
                self._result = []
            if all(mark.query() for _, mark in self._landings):
                self._landings = ()

    def _await_begin(self, timeout_ms: int) -> int:
        """Waits until the operations have begun. Returns what is left of the timeout."""
        if self._begun is None or self._begun.is_set():
            return timeout_ms
        began = time.monotonic()
        if not self._begun.wait(None if timeout_ms == FOREVER else timeout_ms / 1000):
            raise DeadlineExceeded("a GPU did not produce the input of this operation, or of an earlier one, "
                                   f"within {timeout_ms} ms")
        return timeout_ms if timeout_ms == FOREVER else max(0, timeout_ms - int((time.monotonic() - began) * 1000))

    def _complete(self, timeout_ms: int) -> None:
        timeout_ms = self._await_begin(timeout_ms)
        for handle in tuple(self._handles):
            handle.wait(timeout_ms)
        self.settle()
        self._group._forget(self)
        if self._error is not None:
            raise self._error
        for device, mark in self._landings:
            device.follow(mark)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        # torch passes 0 if there is no timeout; each operation then ends by the group's.
        self._complete(milliseconds(timeout) or FOREVER)
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return self.settle() and all(mark.query() for _, mark in self._landings)

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        """Returns the error; None if there is none or the work is not done yet."""
        return self._error if self.settle() else None

    def result(self) -> List[torch.Tensor]:
        return self._result

    # ---- as a future ---------------------------------------------------------------------------------------------

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            # C++ also sees an error that this callback raises; DDP's reducer crashes on one that set_exception sets.
            self._future = self._done.then(lambda _: self._outcome())
            future = self._future
        self._group._complete_later(self)
        return future

    def _outcome(self) -> List[torch.Tensor]:
        self._complete(FOREVER)
        return self._result

    def complete_if_done(self) -> bool:
        """Completes the future if the work is settled, and returns whether it is. Only the completer's thread calls it."""
        if not self.settle():
            return False
        if not self._done.done():
            self._done.set_result(None)
        return True


class Works(_Base):
    """Several works as one, which a coalescing block returns."""

    def __init__(self, works: List[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        self.wait()

    block_current_stream = synchronize

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Optional[Exception]:
        """Returns the error of the first work that failed; None: none has failed."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def result(self) -> List[torch.Tensor]:
        return [tensor for work in self._works for tensor in work.result()]

    def get_future(self) -> torch.futures.Future:
        futures = [work.get_future() for work in self._works]
        return torch.futures.collect_all(futures).then(lambda all_: [tensor for one in all_.value() for tensor in one.value()])
