"""Operations of a group begin in the order of their calls, on all ranks the same, also where some wait for a GPU."""
from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Callable, List, NamedTuple, Optional, Sequence

from syncline import _group
from syncline._staging import Mark
from syncline.torch._ending import Ending

if TYPE_CHECKING:
    from syncline.torch._work import Work


class _Start(NamedTuple):
    work: "Work"
    marks: Sequence[Mark]
    calls: List[Callable[[], _group.Handle]]


class Starts(Ending):
    """Threads: any may use it. It has one of its own, which begins with the first operation that waits for a GPU."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._left = 0
        self._queue: "queue.SimpleQueue[Optional[_Start]]" = queue.SimpleQueue()
        self._is_ended = False

    def put(self, work: "Work", marks: Sequence[Mark], calls: List[Callable[[], _group.Handle]]) -> None:
        """Begins the work when GPUs have passed the marks, and at once where none is waited for; then an error is raised here."""
        with self._lock:
            if not marks and not self._left:
                return work.begin([call() for call in calls])
            work.postpone()
            self._left += 1
            if self.thread is None or self._is_ended:
                self._is_ended = False
                self.run_in_thread(threading.Thread(target=self._run, args=(self.thread,), name="syncline-starts", daemon=True))
            self._queue.put(_Start(work, marks, calls))

    def end(self) -> None:
        """What was put begins all the same."""
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
            del start  # what it holds is free while the thread waits for the next one
