"""The sessions that are open in this process. They close when the interpreter ends, and in a forked child."""
from __future__ import annotations

import atexit
import gc
import os
import weakref
from typing import TYPE_CHECKING, Any, Optional

from syncline import _staging
from syncline.errors import FailedPrecondition

if TYPE_CHECKING:
    from syncline._report import Stats
    from syncline.session import Session

all_open: weakref.WeakSet[Session] = weakref.WeakSet()

# Objects that a forked child must never free: torch ends a process that frees pinned memory of its parent.
of_parent: list[Any] = []


def stats() -> Stats:
    """Returns the statistics of this process's session. Raises FailedPrecondition unless exactly one is open."""
    return _only_session().stats


def report() -> str:
    """Returns `Session.report` of this process's session. Raises FailedPrecondition unless exactly one is open."""
    return _only_session().report()


def only_session_or_none() -> Optional[Session]:
    """Returns this process's session, or None if none is open. Raises FailedPrecondition if several are."""
    return _only_session() if all_open else None


def _only_session() -> Session:
    sessions = list(all_open)
    if len(sessions) != 1:
        raise FailedPrecondition(f"{len(sessions)} sessions are open in this process; ask the one that is meant (Session.stats)")
    return sessions[0]


@atexit.register
def _close_all() -> None:
    for session in list(all_open):
        session._close_at_end()


def _forget_all() -> None:
    if _staging.Staged.exist:
        gc.freeze()
    for session in list(all_open):
        session._after_fork()


os.register_at_fork(after_in_child=_forget_all)
