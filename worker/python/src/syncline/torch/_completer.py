"""A thread that brings results of GPUs to where they belong and fulfils futures, whoever waits for them."""
from __future__ import annotations

import threading
from typing import TYPE_CHECKING, List

from syncline.torch._ending import Ending

if TYPE_CHECKING:
    from syncline.torch._work import Work

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.0005, 0.008


class Completer(Ending):
    """Works may be done in any order: one that waits for a peer holds up no other.

    Threads: any may use it. It has one of its own, from the first work until `end`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._works: List["Work"] = []
        self._runs = False
        self._is_ended = self._is_stopped = False

    def put(self, work: "Work") -> None:
        with self._changed:
            self._works.append(work)
            self._is_ended = False
            self._changed.notify()
            if not self._runs:
                self._runs = True
                self.run_in_thread(threading.Thread(target=self._run, name="syncline-futures", daemon=True))

    def end(self) -> None:
        """What was put is completed all the same."""
        with self._changed:
            self._is_ended = True
            self._changed.notify()

    def stop(self) -> None:
        """See Ending."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()

    def _run(self) -> None:
        pause = _FIRST_PAUSE_S
        while (works := self._take()) is not None:
            left = [work for work in works if not work.complete_if_done()]
            pause = _FIRST_PAUSE_S if len(left) < len(works) else min(2 * pause, _LONGEST_PAUSE_S)
            count = len(works)
            del works  # what it holds is free while the thread waits
            with self._changed:
                self._works[:count] = left
                del left
                if self._works and not self._is_stopped:
                    self._changed.wait(pause)

    def _take(self) -> "List[Work] | None":
        """Those under way, once there are any; None: the thread ends."""
        with self._changed:
            while not self._works and not self._is_ended and not self._is_stopped:
                self._changed.wait()
            if self._is_stopped or not self._works:
                self._runs = False
                return None
            return list(self._works)
