"""A faster push and wait for one tensor in host memory, without the checks that Session makes because callers may pass anything.

A model has hundreds of small tensors, and each is pushed and waited for in every step, so all that a call needs is looked up once.
Unexpected cases are left to the Session's own methods, which report what is wrong.
"""
from __future__ import annotations

import math
from threading import get_ident
from typing import TYPE_CHECKING, Any, Optional

from syncline._library import check, library, recorded

if TYPE_CHECKING:
    from syncline.session import Session, Tensor

_SLICE_MS = 100  # as in Waits: longest time that Ctrl-C may have to wait
_DEADLINE_EXCEEDED = 4


class Quick:
    """One tensor of a session that has started and has no tensors on GPUs. Only one thread at a time may use it."""

    __slots__ = ("_session", "_tensor", "_number", "_calls", "_gradients", "_begun", "_trained", "_progress", "_elements", "_codes", "_push",
                 "_wait")

    def __init__(self, session: Session, tensor: Tensor) -> None:
        self._session, self._tensor, self._number = session, tensor, tensor.id
        self._calls, self._gradients, self._begun, self._trained = session._calls, session._gradients, session.account.begun, session.account.trained
        self._progress = session._progress
        self._elements = math.prod(tensor.memory.shape)
        self._codes = session.account.codes[tensor.id]
        self._push, self._wait = recorded("syncline_push_pull_from", self._codes), library().syncline_wait

    def push(self, gradient: Any, address: int, dtype: int, samples: int) -> None:
        """Session.push_pull of a gradient that is contiguous there, of the tensor's shape."""
        number, calls, begun, progress, codes = self._number, self._calls, self._begun, self._progress, self._codes
        held = self._gradients.get(number)
        if held or not 1 <= samples < 2**32:
            return self._session.push_pull(self._tensor, gradient, samples)
        codes.clear()
        if len(begun) == self._trained:
            begun.clear()
        is_first = not begun
        self._gradients[number] = [gradient]
        thread = get_ident()
        handle = calls._begin(thread)
        try:
            self._push(handle, number, address, dtype, 0, samples)
            code = codes[0]
            if code:
                codes.clear()
                del self._gradients[number]
                with calls.call():  # it turns errors into SessionClosed if the session was closed
                    check(code)
        finally:
            calls._end(thread)
        begun.add(number)
        progress.elements += self._elements
        if is_first:
            progress.samples += samples
        progress.touch()

    def wait(self) -> None:
        """Does Session.wait."""
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
    """Returns the Quick of a tensor; None for sessions of another class or with tensors on GPUs."""
    from syncline.session import Session

    return Quick(session, tensor) if type(session) is Session and session._stage.is_empty else None
