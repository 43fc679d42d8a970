"""Line: a thread that makes the calls of a session about tensors on GPUs, in the order in which the program made them.

The program's threads take no lock here. Python may raise KeyboardInterrupt between any two lines of the program's main thread, those of
Python's own library included, and a lock that stayed held would stop the Line for good. One call of C code therefore adds a call to the
Line and says so in the program's account, and what a waiting thread waits for is known to it and to the Line only.
"""
from __future__ import annotations

import collections
import operator
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Callable, Optional

from syncline.errors import DeadlineExceeded, SessionClosed

if TYPE_CHECKING:
    from syncline._staging import Mark


class Ordered:
    """A call that a Line makes, for these tensors, once the GPU has passed the marks."""

    __slots__ = ("tensors", "marks", "make", "is_made", "bells")

    def __init__(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None]) -> None:
        self.tensors, self.marks, self.make = tensors, marks, make
        self.is_made = False
        self.bells: list[SimpleQueue[None]] = []  # each of a thread that waits for it


class Line:
    """Makes calls in the order in which they were put, each once the GPU has passed its marks. After one has failed, it makes no more.

    Thread-safe. An exception may end any method but `end` between any two lines: `codes` then says whether the call was put.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Optional[Ordered]] = SimpleQueue()
        self._left: collections.deque[Ordered] = collections.deque()  # calls that were put, and not made yet
        self._error: Optional[Exception] = None
        self._is_ended = False
        self._is_over = False  # the thread makes no more calls
        self._thread = threading.Thread(target=self._run, name="syncline-line", daemon=True)
        self._thread.start()

    def put(self, tensors: Sequence[int], marks: Sequence[Mark], make: Callable[[], None], codes: list[int]) -> None:
        """Queues `make`, to be called for these tensors once the GPU has passed the marks. Raises SessionClosed after `end`.

        Puts 0 into `codes` at the same moment: no exception comes between.
        """
        if self._is_ended:
            raise SessionClosed("the session was closed")
        call = [Ordered(tensors, marks, make)]
        # Both functions return None; `None is not None` is False, which is 0.
        codes.extend(map(operator.is_not, map(self._left.append, call), map(self._calls.put, call)))

    def holds(self, tensor: int) -> bool:
        """Returns whether a call for the tensor was not made yet."""
        return self._last_of(tensor) is not None

    def wait(self, tensor: Optional[int], timeout: Optional[float]) -> Optional[float]:
        """Blocks until all calls for the tensor were made (None: for all tensors). Returns what is left of `timeout`.

        Raises the error of the first call that failed, for whichever tensor that was.
        """
        began = time.monotonic()
        call = self._last_of(tensor)
        is_made = call is None or self._await(call, timeout)
        if self._error is not None:
            raise self._error.with_traceback(None)  # without the frames of an earlier raise
        if not is_made:
            raise DeadlineExceeded(f"the GPU did not finish the gradients to be pushed within {timeout:g} s")
        return None if timeout is None else max(0.0, timeout - (time.monotonic() - began))

    def _last_of(self, tensor: Optional[int]) -> Optional[Ordered]:
        for call in reversed(self._left.copy()) if self._left else ():
            if tensor is None or tensor in call.tensors:
                return call
        return None

    def _await(self, call: Ordered, timeout: Optional[float]) -> bool:
        bell: SimpleQueue[None] = SimpleQueue()
        call.bells.append(bell)  # before the look at what has happened, so that nothing is missed
        if not (call.is_made or self._is_over):
            try:
                bell.get(timeout=timeout)
            except Empty:
                return False
        return True

    def end(self) -> None:
        """Ends the thread after the calls that were put so far. May be called again."""
        self._is_ended = True
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                for mark in call.marks:
                    mark.synchronize()
                if self._error is None:
                    call.make()
            except Exception as error:  # wait() raises it; its frames would keep the session alive
                self._error = error.with_traceback(None)
            call.is_made = True
            self._left.remove(call)
            _ring(call)
            del call  # so that this thread does not keep the session alive while it waits for the next call
        self._is_over = True
        for call in self._left.copy():  # put while another thread ended it
            _ring(call)


def _ring(call: Ordered) -> None:
    for bell in call.bells:
        bell.put(None)
