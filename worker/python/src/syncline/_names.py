"""The jobs of a program that has several sessions, as a GAN that has two Optimizers: each session of one rank is in a job of its own."""
from __future__ import annotations

import itertools
import threading
import weakref
from typing import Optional

from syncline import _log
from syncline._calls import Calls

_lock = threading.Lock()
_held: weakref.WeakKeyDictionary[Calls, tuple[tuple[str, str], str]] = weakref.WeakKeyDictionary()  # (coordinator, rank), job


def take(calls: Calls, place: tuple[str, str], job: str, given: Optional[object]) -> str:
    """The job of a session that is about to be opened: `given` one, otherwise the environment's, unless this process is this rank in it
    already. Then one beside it: the same for all workers, as they make their sessions in the same order."""
    with _lock:
        name = job
        if given is None:
            taken = {held for other, (where, held) in _held.items() if where == place and not other.is_lost}
            names = itertools.chain([job], (f"{job}-{number}" for number in itertools.count(2)))
            name = next(one for one in names if one not in taken)
        _held[calls] = (place, name)
    if name != job:
        _log.logger.info("this program is in job %s already: its next session is in job %s", job, name)
    return name


def leave(calls: Calls) -> None:
    """The session is closed, or was not opened."""
    with _lock:
        _held.pop(calls, None)
