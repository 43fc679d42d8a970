"""Counts the calls into the library that are under way, so that a closed session's handle is freed when the last of them is over."""
from __future__ import annotations

import ctypes
import sys
import threading
import types
from types import TracebackType
from typing import Callable, Optional

from syncline.errors import Dropped, Error, JobOver, JobRefused, SessionClosed, Unavailable


class Call:
    """One call, as a context manager that gives the handle. It is a class, because a generator costs several microseconds a call."""

    __slots__ = ("_calls", "_thread")

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._thread = threading.get_ident()

    def __enter__(self) -> ctypes.c_void_p:
        return self._calls._begin(self._thread, 2)

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        try:
            if isinstance(error, (Dropped, JobRefused, Unavailable)):
                self._calls.is_lost = True
            if isinstance(error, JobOver):
                self._calls.was_in_job = True
            if isinstance(error, Error) and self._calls.why_closed:
                raise SessionClosed(self._calls.why_closed) from None
        finally:
            self._calls._end(self._thread)


class Calls:
    """A session's handle and the threads that use it. Methods may be called by any thread and by signal handlers."""

    def __init__(self) -> None:
        self._free: Callable[[ctypes.c_void_p], None] = _nothing  # set only by close, because it keeps the session alive
        self.handle: Optional[ctypes.c_void_p] = None
        self.why_closed = "the session was not opened"
        self.is_lost = False  # an error has ended the session
        self.was_in_job = False  # the session has started, or its job was over when it came back (JobOver)
        self.has_left = False  # the session was closed, or could not be opened
        self._lock = threading.RLock()  # re-entrant: a signal handler may close the session whose call it interrupted
        self._changed = threading.Condition(self._lock)
        self._under_way: dict[int, list[types.FrameType]] = {}  # by thread: the frames that make calls

    def open(self, handle: ctypes.c_void_p) -> None:
        """Sets the handle. Calls may begin from now on."""
        self.handle, self.why_closed = handle, ""

    def call(self) -> Call:
        """Returns a call to be used as `with calls.call() as handle:`.

        It raises SessionClosed if the session is closed, also in place of an error that closing caused.
        """
        return Call(self)

    def close(self, why: str, say_goodbye: Callable[[ctypes.c_void_p], None],
              free: Callable[[ctypes.c_void_p], None]) -> None:
        """Refuses further calls, calls `say_goodbye`, waits for the calls of other threads, and lets the last call free the handle.

        If it is closed already, waits until the handle is freed. It does not wait within a call, where a signal handler may be: that
        would wait for the call which it interrupted.
        """
        thread = threading.get_ident()
        with self._lock:
            if self.why_closed:
                if thread not in self._under_way:
                    self._changed.wait_for(lambda: self.handle is None)
                return
            self._forget_broken_off()
            handle = self._begin(thread)
            self.why_closed, self._free = why, free
        try:
            say_goodbye(handle)
            with self._lock:
                self._changed.wait_for(lambda: self._under_way.keys() <= {thread})
        finally:
            self._end(thread)

    def _forget_broken_off(self) -> None:
        """Removes calls that are over, but whose end an exception (Ctrl-C) kept from being recorded. They would keep the handle forever.

        The frame of a call in progress is on the stack of its thread, perhaps below that of a signal handler.
        """
        stacks = sys._current_frames()
        for thread, frames in list(self._under_way.items()):
            live = set()
            frame = stacks.get(thread)
            while frame is not None:
                live.add(frame)
                frame = frame.f_back
            frames[:] = [one for one in frames if one in live]
            if not frames:
                del self._under_way[thread]

    def forget(self, why: str) -> None:
        """Drops the handle in a forked child, without freeing it: it belongs to the parent."""
        self.handle, self.why_closed = None, why
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._under_way = {}

    def _begin(self, thread: int, depth: int = 1) -> ctypes.c_void_p:
        """Begins a call. `depth` says which caller makes it (1: the function that calls this one). That caller must call _end before it returns."""
        frame = sys._getframe(depth)
        with self._lock:
            if self.handle is None or self.why_closed:
                raise SessionClosed(self.why_closed)
            self._under_way.setdefault(thread, []).append(frame)
            return self.handle

    def _end(self, thread: int) -> None:
        with self._lock:
            frames = self._under_way[thread]
            frames.pop()
            is_last = bool(self.why_closed) and not frames and len(self._under_way) == 1
            if not frames and not is_last:
                self._under_way.pop(thread, None)  # a signal handler may have closed it before this line
            if self.why_closed:  # only close() waits for this
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
    """Does nothing."""
