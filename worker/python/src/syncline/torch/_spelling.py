"""Options that are misspelt. What a class does not take itself it gives to the servers' optimizer, whose error would name the
wrong options."""
from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

from syncline.errors import InvalidArgument

# A name is a slip of another one from this similarity on. Further apart is what two options of different things may be:
# swa_every, of each optimizer, and sync_every have 0.74.
_SLIP = 0.8


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """"; did you mean 'sync_every'?"; empty when none is near."""
    near = difflib.get_close_matches(name, list(known), 1, _SLIP)
    return f"; did you mean {near[0]!r}?" if near else ""


def own_options(of: type) -> list[str]:
    """By name, what the constructors of a class take here, beside the model and the optimizer."""
    own: dict[str, None] = {}
    for base in of.__mro__:
        if not base.__module__.startswith("syncline."):
            continue
        for name, parameter in inspect.signature(base).parameters.items():
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in ("model", "optimizer"):
                own[name] = None
    return list(own)


def check_spelling(of: type, options: Iterable[str]) -> None:
    """InvalidArgument when one of `options` is a slip of one that the class takes itself."""
    own = own_options(of)
    for name in options:
        if name not in own and (hint := did_you_mean(name, own)):
            raise InvalidArgument(f"{of.__name__} has no option {name!r}; it has {', '.join(own)}, and those of the servers' optimizer{hint}")
