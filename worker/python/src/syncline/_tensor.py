"""A session's tensors, and checks of arguments before the library is called."""
from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

from syncline._memory import Memory
from syncline.errors import InvalidArgument

_MAX_SAMPLES = 2**32 - 1


@dataclass(frozen=True)
class Tensor:
    """A declared tensor. `weights` is the array that was declared: the session writes into it."""

    id: int
    name: str
    weights: Any
    memory: Memory
    frozen: bool
    owner: Any = field(default=None, compare=False, repr=False)  # the session's Calls, which no other session has

    def of(self, owner: Any) -> int:
        """Returns the tensor's number. Raises InvalidArgument if another session declared it, where the number has no such meaning."""
        if self.owner is not owner:
            raise InvalidArgument(f"{self.name}: the tensor was declared by another session; pass what declare() "
                                  "of this session returned")
        return self.id


def encoded_name(name: str) -> bytes:
    """Returns a name as the library reads it. Raises InvalidArgument if it is not text or has a NUL, which would end it."""
    if not isinstance(name, str) or "\0" in name:
        raise InvalidArgument(f"the name of a tensor is {name!r}; give a string without NUL characters")
    try:
        return name.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"the name of a tensor is {name!r}, which cannot be encoded in UTF-8; give another "
                              "one") from None


def check_samples(what: str, samples: int) -> None:
    """Raises InvalidArgument unless `samples` is an integer from 1 to 2^32 - 1."""
    try:
        operator.index(samples)  # accepts NumPy's integers
    except TypeError:
        raise InvalidArgument(f"{what}: samples is {samples!r}; give an integer") from None
    if not 1 <= samples <= _MAX_SAMPLES:
        raise InvalidArgument(f"{what}: samples is {samples}, but must be 1 to {_MAX_SAMPLES}")
