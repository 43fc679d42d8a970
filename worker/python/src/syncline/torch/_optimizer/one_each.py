"""Keeps a parameter from having two optimizers with hooks: each would send its gradients, and write its weights or its `.grad`."""
from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import torch

from syncline.errors import FailedPrecondition

if TYPE_CHECKING:
    from syncline.session import Session


class Hooked(Protocol):
    """An Optimizer, or what wrap() returns."""

    @property
    def session(self) -> Session:
        """Its session."""

    def _remove_hooks(self) -> None: ...


# Those that have hooks: what an error calls them, and the names of their parameters by id.
_hooked: weakref.WeakKeyDictionary[Hooked, tuple[str, Mapping[int, str]]] = weakref.WeakKeyDictionary()


def note_hooks(optimizer: Hooked, what: str, names: Mapping[int, str]) -> None:
    """Notes that the optimizer, which errors call `what`, trains the parameters of these ids from now on until it is closed."""
    _hooked[optimizer] = what, names


def check_only_one(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Raises FailedPrecondition if one of the parameters has hooks of an optimizer that was not closed.

    If only its session was closed or lost, the hooks that it left on the model are removed, and the new optimizer takes its place.
    """
    asked = {id(parameter) for parameter in parameters}
    for other, (what, names) in list(_hooked.items()):
        shared = [name for number, name in names.items() if number in asked]
        if not shared:
            continue
        calls = other.session._calls
        if not calls.has_left and not calls.is_lost:
            raise FailedPrecondition(
                f"{shared[0]}: another {what} trains it, in job {other.session.job}, and is still open; call that one's close() "
                "first, or make it in a `with` statement, which does so at its end")
        other._remove_hooks()
        del _hooked[other]
