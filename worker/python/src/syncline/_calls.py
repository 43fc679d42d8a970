"""Calls into the library that are under way: the handle they use is freed when it is closed and the last of them is over."""
from __future__ import annotations

import ctypes
import threading
from types import TracebackType
from typing import Callable, Optional

from syncline.errors import Dropped, Error, JobRefused, SessionClosed, Unavailable


class Call:
    """One of them, as a context that gives the handle. A class, because a generator costs several microseconds a call."""

    __slots__ = ("_calls", "_thread")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._thread = threading.get_ident()

    def __enter__(self) -> ctypes.c_void_p:
        return self._calls._begin(self._thread)

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            if isinstance(error, (Dropped, JobRefused, Unavailable)):
                self._calls.is_lost = True
            if isinstance(error, Error) and self._calls.why_closed:
                raise SessionClosed(self._calls.why_closed) from None
        finally:
            self._calls._end(self._thread)


class Calls:
    """A session's handle and who uses it. Methods may be called by any thread, and by handlers of signals."""

    def __init__(self) -> None:
        self._free: Callable[[ctypes.c_void_p], None] = _nothing  # set by close: before, it would keep the session alive
        self.handle: Optional[ctypes.c_void_p] = None
        self.why_closed = "the session was not opened"
        self.is_lost = False  # by an error that ends a session
        self._lock = threading.RLock()  # re-entrant: the handler of a signal may close what it interrupted
        self._changed = threading.Condition(self._lock)
        self._under_way: dict[int, int] = {}  # by thread

    def open(self, handle: ctypes.c_void_p) -> None:
        """From now on there may be calls."""
        self.handle, self.why_closed = handle, ""

    def call(self) -> Call:
        """`with calls.call() as handle:`; SessionClosed once it is closed, also of an error that closing caused."""
        return Call(self)

    def close(self, why: str, say_goodbye: Callable[[ctypes.c_void_p], None],
              free: Callable[[ctypes.c_void_p], None]) -> None:
        """Refuses further calls, says goodbye, waits for the calls of other threads, and has the last of all free the handle.

        If it is closed already, waits until the handle is freed; not in a call, as the handler of a signal may be: it cannot
        wait for what it interrupted.
        """
        thread = threading.get_ident()
        with self._lock:
            if self.why_closed:
                if thread not in self._under_way:
                    self._changed.wait_for(lambda: self.handle is None)
                return
            handle = self._begin(thread)
            self.why_closed, self._free = why, free
        try:
            say_goodbye(handle)
            with self._lock:
                self._changed.wait_for(lambda: self._under_way.keys() <= {thread})
        finally:
            self._end(thread)

    def forget(self, why: str) -> None:
        """After a fork, in the child: the handle belongs to the parent."""
        self.handle, self.why_closed = None, why
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way = {}

    def _begin(self, thread: int) -> ctypes.c_void_p:
        with self._lock:
            if self.handle is None or self.why_closed:
                raise SessionClosed(self.why_closed)
            self._under_way[thread] = self._under_way.get(thread, 0) + 1
            return self.handle

    def _end(self, thread: int) -> None:
        with self._lock:
            left = self._under_way[thread] - 1
            is_last = bool(self.why_closed) and not left and len(self._under_way) == 1
            if left:
                self._under_way[thread] = left
            elif not is_last:
                del self._under_way[thread]
            if self.why_closed:  # only close waits for calls
                self._changed.notify_all()
        if is_last:
            self._free_handle()

    def _free_handle(self) -> None:
        assert self.handle is not None
        try:
            self._free(self.handle)
        finally:
            with self._lock:
                self.handle, self._free = None, _nothing
                self._under_way.clear()
                self._changed.notify_all()


def _nothing(handle: ctypes.c_void_p) -> None:
    """Frees nothing."""
