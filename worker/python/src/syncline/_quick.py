"""A push and a wait of one tensor in host memory, without what Session looks at because its callers may give it anything.

A model has hundreds of small tensors, and each is pushed and waited for in every step: what is called for it is looked up once. What does
not go as expected is left to the Session's own methods, which say what is wrong.
"""
from __future__ import annotations

import math
from threading import get_ident
from typing import TYPE_CHECKING, Any, Optional

from syncline._library import check, library

if TYPE_CHECKING:
    from syncline.session import Session, Tensor

_SLICE_MS = 100  # as Waits: how long Ctrl-C may have to wait
_DEADLINE_EXCEEDED = 4


class Quick:
    """Of a session that has started, and has no tensors on GPUs. Threads as Session: each tensor by one at a time."""

    __slots__ = ("_session", "_tensor", "_number", "_calls", "_gradients", "_begun", "_trained", "_progress", "_elements", "_push", "_wait")

    def __init__(self, session: Session, tensor: Tensor) -> None:
        self._session, self._tensor, self._number = session, tensor, tensor.id
        self._calls, self._gradients, self._begun, self._trained = session._calls, session._gradients, session._begun, session._trained
        self._progress = session._progress
        self._elements = math.prod(tensor.memory.shape)
        self._push, self._wait = library().syncline_push_pull_from, library().syncline_wait

    def push(self, gradient: Any, address: int, dtype: int, samples: int) -> None:
        """Session.push_pull of a gradient that is contiguous there, of the tensor's shape."""
        number, calls, begun, progress = self._number, self._calls, self._begun, self._progress
        held = self._gradients.get(number)
        if held or not 1 <= samples < 2**32:
            return self._session.push_pull(self._tensor, gradient, samples)
        self._gradients[number] = [gradient]
        thread = get_ident()
        handle = calls._begin(thread)
        try:
            code = self._push(handle, number, address, dtype, 0, samples)
            if code:
                del self._gradients[number]
                with calls.call():  # which makes of an error what it is to callers
                    check(code)
        finally:
            calls._end(thread)
        progress.elements += self._elements
        if not begun:
            progress.samples += samples
        progress.touch()
        begun.add(number)
        if len(begun) == self._trained:
            begun.clear()

    def wait(self) -> None:
        """Session.wait."""
        calls = self._calls
        thread = get_ident()
        handle = calls._begin(thread)
        try:
            code = self._wait(handle, self._number, _SLICE_MS)
            if code and code != _DEADLINE_EXCEEDED:
                with calls.call():
                    check(code)
        finally:
            calls._end(thread)
        if code:
            return self._session.wait(self._tensor)
        if self._gradients.pop(self._number, None):
            self._progress.touch()


def quick(session: Any, tensor: Any) -> Optional[Quick]:
    """None for sessions of another kind, and with GPUs."""
    from syncline.session import Session

    return Quick(session, tensor) if type(session) is Session and session._stage.is_empty else None
