"""Threads that may be inside torch: one that still is when the interpreter ends, ends the process with SIGABRT."""
from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Optional

_PATIENCE_S = 5.0  # of all of them together, with a GPU that hangs

_owners: "weakref.WeakSet[Ending]" = weakref.WeakSet()  # a thread that runs keeps its owner


class Ending:
    """What has such a thread, which runs a method of it."""

    thread: Optional[threading.Thread] = None

    def run_in_thread(self, thread: threading.Thread) -> None:
        self.thread = thread
        _owners.add(self)
        thread.start()

    def stop(self) -> None:
        """The program ends: the thread does, too, once it is through with what it is in."""
        raise NotImplementedError


_process = os.getpid()


@atexit.register
def end_all() -> None:
    if os.getpid() != _process:  # a forked child has none of them, and their locks may be held
        return
    deadline = time.monotonic() + _PATIENCE_S
    owners = list(_owners)
    for owner in owners:
        owner.stop()
    for owner in owners:
        if owner.thread is not None:
            owner.thread.join(max(0.0, deadline - time.monotonic()))
