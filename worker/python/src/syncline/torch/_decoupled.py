"""Rounds that a quorum ends: a worker that pushed too late keeps what it pushed, and it goes with its next round.

As decoupled DiLoCo has it (arXiv 2604.21428): nobody waits for the slow ones, and their tokens count all the same.
"""
from __future__ import annotations

import ctypes
from ctypes import byref
from typing import Optional

import torch

from syncline._library import Options, StatsStruct, library
from syncline.errors import InvalidArgument
from syncline.session import Option, Session, Tensor

_REASONS = {
    "asp": "takes each worker's push for an outer step of its own, at the full rate, where a round is one step of the mean of all: "
           "with W workers the weights would go W times as far",
    "ssp": "lets a worker go on with weights that lack its own last round, and they would take the place of what it trained since",
}


def has_quorum(mode: Option, fragments: int) -> bool:
    """Whether a quorum ends the rounds of a job of this mode; that of the environment where none is given.

    InvalidArgument for modes whose steps are no rounds.
    """
    text = _as_the_library_reads_it(mode)
    name, _, values = text.partition(":")
    reason = _REASONS.get(name)
    if reason is not None:
        raise InvalidArgument(f"mode={text!r} {reason}; take bsp, or bsp:quorum=K, which waits for K workers and loses nothing of the "
                              "others (docs/local_sgd.md)")
    numbers = {key: float(number) for key, _, number in (one.partition("=") for one in values.split(",") if one)}
    if not any(numbers.get(key) for key in ("quorum", "whole")):
        return False
    if fragments > 1:
        what = "a quorum counts" if numbers.get("quorum") else "whole=1 is a quorum of all, which counts"
        raise InvalidArgument(f"fragments={fragments} with mode={text!r}: {what} pushes of the whole model, and fragments are "
                              "pushed one by one; leave fragments at 1")
    return True


def _as_the_library_reads_it(mode: Option) -> str:
    """NAME:KEY=NUMBER,...: other ways to write numbers, and short forms, are gone."""
    options = Options()  # which has what the environment says
    try:
        if mode is not None:
            options["mode"] = mode
        return options["mode"]
    finally:
        options.free()


class LateRounds:
    """Counts the rounds that a session's quorum has ended without this worker."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen = 0

    def was_late(self) -> bool:
        """Whether there is one more since the last call. Between the wait for a round and the next push."""
        struct = StatsStruct(struct_size=ctypes.sizeof(StatsStruct))
        self._session._do("get_stats", byref(struct))
        before, self._seen = self._seen, int(struct.late_steps)
        return self._seen > before


class Kept:
    """Of one tensor: what was pushed too late."""

    def __init__(self, session: Session, tensor: Tensor) -> None:
        self._session, self._tensor = session, tensor
        self._kept: Optional[torch.Tensor] = None
        self._given: Optional[torch.Tensor] = None  # in the round under way

    def join(self, moved: torch.Tensor, share: float) -> torch.Tensor:
        """What to push: the mean of `moved` and of what is kept, which counts for `share` of the samples of both."""
        if self._kept is None:
            self._given = moved
            return moved
        self._given = torch.lerp(moved, self._kept, share)
        # With error feedback the session has kept it, too, and adds it to what it is given.
        return self._given - self._kept if self._session_keeps() else self._given

    def end(self, was_late: bool) -> None:
        """The round is over."""
        self._kept, self._given = (self._given if was_late else None), None

    def _session_keeps(self) -> bool:
        with self._session._calls.call() as handle:
            return bool(library().syncline_keeps_late(handle, self._tensor.id) == 1)
