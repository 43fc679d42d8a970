"""A thread that copies results back to GPUs and completes the futures of works, even if no caller waits for them."""
from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, List

from syncline.torch._backend.ending import Ending

if TYPE_CHECKING:
    from syncline.torch._backend.work import Work

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0003, 0.008


class Completer(Ending):
    """Completes works in any order: one that waits for a peer holds up no other.

    Thread-safe. It has a thread of its own, from the first work until `end`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: List["Work"] = []
        self._runs = False
        self._moved = time.monotonic()  # time at which a work was last put or completed
        self._is_ended = self._is_stopped = False

    def put(self, work: "Work") -> None:
        with self._changed:
            self._works.append(work)
            self._moved = time.monotonic()
            self._is_ended = False
            self._changed.notify()
            if not self._runs:
                self._runs = True
                self.run_in_thread(threading.Thread(target=self._run, name="syncline-futures", daemon=True))

    def end(self) -> None:
        """Ends the thread once all works that were put are completed."""
        with self._changed:
            self._is_ended = True
            self._changed.notify()

    def stop(self) -> None:
        """See Ending."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while (works := self._take()) is not None:
            left = [work for work in works if not work.complete_if_done()]
            if len(left) < len(works):
                self._moved = time.monotonic()
            # The longer no work was completed, the longer the pause.
            pause = min(max((time.monotonic() - self._moved) / 16, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            count = len(works)
            del works  # so that this thread keeps no completed work alive while it waits
            with self._changed:
                self._works[:count] = left
                del left
                if self._works and not self._is_stopped:
                    self._changed.wait(pause)

    def _take(self) -> "List[Work] | None":
        """Waits until works are under way and returns them; None: the thread must end."""
        with self._changed:
            while not self._works and not self._is_ended and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped or not self._works:
                self._runs = False
                return None
            return list(self._works)
