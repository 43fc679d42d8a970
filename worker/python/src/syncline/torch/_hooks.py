"""Hooks on a model that neither copies nor pickles take along: `copy.deepcopy(model)` and `torch.save(model)` work."""
from __future__ import annotations

from typing import Any, Callable


class Hook:
    """Calls `action`; its copies do nothing."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action

    def __call__(self, *_: Any) -> None:
        self._action()

    # torch.compile calls it and does not look inside.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined]

    def __reduce__(self) -> tuple[Any, ...]:
        return Hook, (nothing,)


class ReadHook(Hook):
    """Calls `action` when the model is copied, too: torch.save writes weights once it has seen all of a model."""

    def __reduce__(self) -> tuple[Any, ...]:
        self._action()
        return super().__reduce__()


def nothing() -> None:
    """What a copied hook does."""
