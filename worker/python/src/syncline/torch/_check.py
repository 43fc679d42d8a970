"""check=: whether all workers hold the same weights, every so many steps."""
from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from typing import Optional

import torch

from syncline._asserts import assert_equal
from syncline.errors import InvalidArgument, NotEqual
from syncline.session import Option, Session
from syncline.torch._weight import Weight

_MOST_STEPS = 1_000_000_000


class WeightCheck:
    """Compares digests of all weights among all ranks, and where they differ the weights."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._compared = 0  # the last step that was; while gradients accumulate a step has several calls

    @staticmethod
    def of(check: Option, mode: Option) -> Optional[WeightCheck]:
        """What `check` says, in a job of that mode; that of the environment where none is given. None: no check."""
        if check is None:
            return None
        every = re.fullmatch(r"weights:every=(\d+)", str(check))
        if every is None or not 1 <= int(every.group(1)) <= _MOST_STEPS:
            raise InvalidArgument(f"check={check!r}, but must be \"weights:every=STEPS\", with 1 to {_MOST_STEPS:,} steps")
        known = str(mode or os.environ.get("SYNCLINE_MODE") or "bsp")
        if known != "bsp":
            raise InvalidArgument(f"check={check!r} with mode={known!r}: there workers may hold weights of different steps; take mode bsp, "
                                  "or leave the check out")
        return WeightCheck(int(every.group(1)))

    def after_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """NotEqual on every rank, once the step that is over is one to check, and a rank holds other weights than rank 0."""
        if session.step % self._every or session.step == self._compared:
            return
        self._compared = session.step
        for weight in weights:
            weight.wait()
        digests = torch.tensor([_digest(weight.parameter) for weight in weights], dtype=torch.int64)
        try:
            assert_equal(digests, name="digests of all weights", session=session)
            return
        except NotEqual as error:
            if error.index is None:
                raise
            first = error.index[0]
        # All ranks have heard of the same one. Other bits may be the same number: 0 and -0.
        for weight in weights[first:]:
            assert_equal(weight.parameter, name=weight.name, session=session)


def _digest(parameter: torch.nn.Parameter) -> list[int]:
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(values.numpy().data, digest_size=16).digest()
    return [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
