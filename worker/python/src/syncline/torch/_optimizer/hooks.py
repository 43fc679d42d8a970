"""Hooks on a model that do nothing in copies and pickles of it, so that `copy.deepcopy(model)` and `torch.save(model)` work."""
from __future__ import annotations

from typing import Any, Callable


class Hook:
    """Calls `action`; its copies do nothing."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self, *_: Any) -> None:
        self._action()

    # torch.compile calls it and does not trace it.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (nothing,)


class ReadHook(Hook):
    """Also calls `action` when the model is copied or pickled: torch.save writes weights only after it has seen the whole model."""

    def __reduce__(self) -> tuple[Any, ...]:
        self._action()
        return super().__reduce__()


class OutputHook(Hook):
    """Calls `action` with what a module's forward has returned; its copies do nothing."""

    def __init__(self, action: Callable[[Any], None]) -> None:
        self._take = action
        super().__init__(nothing)

    def __call__(self, *said: Any) -> None:
        self._take(said[-1])

    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]


def nothing() -> None:
    """Does nothing: the action of a copied hook."""
