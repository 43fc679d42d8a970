"""Keeps a parameter from having two Optimizers: each would send its gradients, and write the weights of its own job."""
from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from syncline.errors import FailedPrecondition
from syncline.torch._optimizer.groups import Group

if TYPE_CHECKING:
    from syncline.torch._optimizer.optimizer import Optimizer

_hooked: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # those that have hooks on a model


def note_hooks(optimizer: Optimizer) -> None:
    """Notes that the optimizer trains its parameters from now on, until it is closed."""
    _hooked.add(optimizer)


def check_only_one(groups: Iterable[Group]) -> None:
    """Raises FailedPrecondition if an Optimizer that was not closed trains one of these parameters.

    If only its session was closed or lost, the hooks that it left on the model are removed, and the new Optimizer takes its place.
    """
    asked = {id(parameter) for group in groups for parameter in group["params"]}
    for other in list(_hooked):
        shared = [weight.name for weight in other._weights if id(weight.parameter) in asked]
        if not shared:
            continue
        calls = other.session._calls
        if not calls.has_left and not calls.is_lost:
            raise FailedPrecondition(
                f"{shared[0]}: another Optimizer trains it, in job {other.session.job}, and is still open; call that one's close() first, "
                "or make it in a `with` statement, which does so at its end")
        other._remove_hooks()
        _hooked.discard(other)
