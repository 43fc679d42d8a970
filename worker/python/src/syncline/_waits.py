"""Makes calls into the library that wait, so that Ctrl-C is handled meanwhile."""
from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from typing import Any, Callable, Optional

from syncline._calls import Calls
from syncline._library import check, library
from syncline.errors import SessionClosed

_SLICE_MS = 100  # longest time that a wait keeps Python from handling Ctrl-C
_DEADLINE_EXCEEDED = 4


class Waits:
    """The waiting calls of a session. Thread-safe."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def whole(self, name: str, *arguments: Any) -> None:
        """Makes a call that cannot wait in slices. On the main thread Ctrl-C cancels it."""
        if threading.current_thread() is not threading.main_thread():
            return self._make(name, *arguments)
        failure: list[BaseException] = []
        is_over = threading.Event()  # not Thread.join: before 3.13, once interrupted, it takes the thread for ended

        def run() -> None:
            try:
                self._make(name, *arguments)
            except BaseException as error:  # handed to the thread that waits
                failure.append(error)
            finally:
                is_over.set()

        threading.Thread(target=run, name="syncline-call", daemon=True).start()
        try:
            is_over.wait()
        except BaseException:
            with contextlib.suppress(SessionClosed):  # the interrupting signal handler may have closed the session
                self._cancel_until(is_over)
            raise
        if failure:
            raise failure[0]

    def _make(self, name: str, *arguments: Any) -> None:
        with self._calls.call() as handle:
            check(getattr(library(), f"syncline_{name}")(handle, *arguments))

    def _cancel_until(self, is_over: threading.Event) -> None:
        with self._calls.call() as handle:
            library().syncline_cancel(handle)
            try:
                while not is_over.is_set():
                    with contextlib.suppress(KeyboardInterrupt):  # ignored: the call ends as soon as it can
                        is_over.wait()
            finally:
                library().syncline_uncancel(handle)

    def in_slices(self, call: Callable[[ctypes.c_void_p, int], int], timeout: Optional[float]) -> None:
        """Waits in short calls into the library. Python handles signals between two of them."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = _SLICE_MS if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            with self._calls.call() as handle:
                code = call(handle, min(left, _SLICE_MS))
                if code != _DEADLINE_EXCEEDED or (deadline is not None and left <= _SLICE_MS):
                    return check(code)
