"""Finds misspelt options. An option that a class does not take itself goes to the servers' optimizer, whose error would name the wrong
options."""
from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterable

from syncline.errors import InvalidArgument

# From this similarity on a name counts as a misspelling of another. Below it, two names may be different options: swa_every, an option
# of each optimizer, and sync_every have 0.74.
_SLIP = 0.8


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint such as "; did you mean 'sync_every'?", or "" if no known name is similar."""
    near = difflib.get_close_matches(name, list(known), 1, _SLIP)
    return f"; did you mean {near[0]!r}?" if near else ""


def own_options(of: type) -> list[str]:
    """Returns the names of the options that a class and its bases in this package take, beside the model and the optimizer."""
    own: dict[str, None] = {}
    for base in of.__mro__:
        if not base.__module__.startswith("syncline."):
            continue
        for name, parameter in inspect.signature(base).parameters.items():
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in ("model", "optimizer"):
                own[name] = None
    return list(own)


def check_spelling(of: type, options: Iterable[str]) -> None:
    """Raises InvalidArgument if one of `options` is a misspelling of one that the class takes itself."""
    own = own_options(of)
    for name in options:
        if name not in own and (hint := did_you_mean(name, own)):
            raise InvalidArgument(f"{of.__name__} has no option {name!r}; it has {', '.join(own)}, and those of the servers' optimizer{hint}")
