"""Chooses the jobs of a program that has several sessions: each session of a rank needs a job of its own.

Examples are a GAN with two Optimizers, and a program that makes a new Optimizer for each fold of its data.
"""
from __future__ import annotations

import itertools
import threading
from typing import Optional

from syncline import _log
from syncline._calls import Calls

EMBEDDED = "its own servers"  # used instead of a coordinator: all embedded servers of a program share a directory of checkpoints

_lock = threading.Lock()  # of take() only: the garbage collector may close sessions inside it, so leave() takes no lock
_held: dict[tuple[str, str], list[tuple[str, Calls]]] = {}  # by coordinator and rank: jobs, and the sessions that are in them
_used: dict[tuple[str, str], set[str]] = {}  # by coordinator and rank: jobs that sessions have left in the regular way


def take(calls: Calls, place: tuple[str, str], job: str, given: Optional[object]) -> str:
    """Returns the job of a session that is about to be opened.

    If the program has `given` a job it is `job`. Otherwise it is the first of `job`, `job-2`, `job-3` … that no session of this process
    with the same coordinator and rank is in or has left in the regular way. All workers make their sessions in the same order, so they
    get the same names, even if some are late. A session that was lost or never started gives its job to the next one.
    """
    with _lock:
        held, used = _held.setdefault(place, []), _used.setdefault(place, set())
        used.update(name for name, other in held if other.has_left and other.was_in_job and not other.is_lost)
        held[:] = [(name, other) for name, other in held if not other.has_left and not other.is_lost]
        name = job
        if given is None:
            taken = used.union(name for name, _ in held)
            names = itertools.chain([job], (f"{job}-{number}" for number in itertools.count(2)))
            name = next(one for one in names if one not in taken)
        held.append((name, calls))
    if name != job and given is None:
        _log.logger.info("this program has been in job %s already: its next session is in job %s", job, name)
    return name


def leave(calls: Calls) -> None:
    """Notes that a session was closed or could not be opened. Takes no lock: the garbage collector may call it at any point."""
    calls.has_left = True
