"""Starts the operations of a group in the order of their calls, which is the same on all ranks, even if some wait for a GPU."""
from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Sequence

from syncline import _group
from syncline._staging import Mark
from syncline.torch._backend.ending import Ending

if TYPE_CHECKING:
    from syncline.torch._backend.work import Work


class _Start(NamedTuple):
    work: "Work"
    marks: Sequence[Mark]
    calls: List[Callable[[], _group.Handle]]


class Starts(Ending):
    """Thread-safe. It has a thread of its own, which begins with the first operation that waits for a GPU."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._through = threading.Condition(self._lock)
        self._left = 0
        self._queue: "queue.SimpleQueue[Optional[_Start]]" = queue.SimpleQueue()
        self._is_ended = False

    def put(self, work: "Work", marks: Sequence[Mark], calls: List[Callable[[], _group.Handle]]) -> None:
        """Begins the work once the GPUs have passed the marks and all earlier works have begun.

        If there is nothing to wait for, it begins at once, and an error is raised here; otherwise the error is the work's.
        """
        with self._lock:
            if not marks and not self._left:
                return work.begin([call() for call in calls])
            work.postpone()
            self._left += 1
            if self.thread is None or self._is_ended:
                self._is_ended = False
                self.run_in_thread(threading.Thread(target=self._run, args=(self.thread,), name="syncline-starts", daemon=True))
            self._queue.put(_Start(work, marks, calls))

    def drain(self) -> None:
        """Blocks until all works that were put have begun."""
        with self._lock:
            self._through.wait_for(lambda: not self._left)

    def end(self) -> None:
        """Ends the thread once all works that were put have begun."""
        with self._lock:
            if self.thread is not None and not self._is_ended:
                self._is_ended = True
                self._queue.put(None)

    def stop(self) -> None:
        """See Ending."""
        self.end()

    def _run(self, before: Optional[threading.Thread]) -> None:
        if before is not None:
            before.join()
        while (start := self._queue.get()) is not None:
            try:
                for mark in start.marks:
                    mark.synchronize()
                handles = [call() for call in start.calls]
            except Exception as error:
                start.work.fail(error)
            else:
                start.work.begin(handles)
            with self._lock:
                self._left -= 1
                self._through.notify_all()
            del start  # so that this thread keeps no work alive while it waits for the next one
