"""Stops threads that may be inside torch at the end of the program: one that is inside then ends the process with SIGABRT."""
from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Optional

_PATIENCE_S = 5.0  # for all threads together, if a GPU hangs

_owners: "weakref.WeakSet[Ending]" = weakref.WeakSet()  # weak: a running thread keeps its owner alive


class Ending:
    """Base of a class whose method runs in such a thread."""

    thread: Optional[threading.Thread] = None

    def run_in_thread(self, thread: threading.Thread) -> None:
        self.thread = thread
        _owners.add(self)
        thread.start()

    def stop(self) -> None:
        """Asks the thread to end after its present piece of work. Called at the end of the program; does not wait."""
        raise NotImplementedError


_process = os.getpid()


@atexit.register
def end_all() -> None:
    if os.getpid() != _process:  # a forked child has no such threads, and their locks may be held forever
        return
    deadline = time.monotonic() + _PATIENCE_S
    owners = list(_owners)
    for owner in owners:
        owner.stop()
    for owner in owners:
        if owner.thread is not None:
            owner.thread.join(max(0.0, deadline - time.monotonic()))
