"""Rounds that a quorum of the workers ends. A worker that pushes too late keeps what it pushed and sends it with its next round.

This follows decoupled DiLoCo (arXiv 2604.21428): no worker waits for slow ones, and the tokens of the slow ones count nevertheless.
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
    "asp": "makes each worker's push an outer step of its own at the full rate, although a round should be one "
           "step with the mean of all: with W workers the weights would move W times as far",
    "ssp": "lets a worker go on with weights that lack its own last round, and they would replace what it has "
           "trained since",
}


def has_quorum(mode: Option, fragments: int, momentum_every: float = 1) -> bool:
    """Returns whether a quorum ends the rounds of a job with this mode. None: the mode that the environment gives.

    Raises InvalidArgument for modes that do not work in rounds. In mode asp each push must be a part of an outer step, which the outer
    optimizer's `momentum_every` makes it.
    """
    text = mode_text(mode)
    name, _, values = text.partition(":")
    if name == "asp" and momentum_every > 1:
        return False
    reason = _REASONS.get(name)
    if reason is not None:
        of_parts = ", or momentum_every=W, with which W pushes make one outer step" if name == "asp" else ""
        raise InvalidArgument(f"mode={text!r} {reason}; take bsp, or bsp:quorum=K, which waits for K workers and loses nothing of the "
                              f"others{of_parts} (docs/local_sgd.md)")
    numbers = {key: float(number) for key, _, number in (one.partition("=") for one in values.split(",") if one)}
    if not any(numbers.get(key) for key in ("quorum", "whole")):
        return False
    if fragments > 1:
        what = "a quorum counts" if numbers.get("quorum") else "whole=1 is a quorum of all, which counts"
        raise InvalidArgument(f"fragments={fragments} with mode={text!r}: {what} pushes of the whole model, and fragments are "
                              "pushed one by one; leave fragments at 1")
    return True


def mode_text(mode: Option) -> str:
    """Returns the mode in the library's normal form, NAME:KEY=NUMBER,... without short forms."""
    options = Options()  # holds the settings of the environment
    try:
        if mode is not None:
            options["mode"] = mode
        return options["mode"]
    finally:
        options.free()


class LateRounds:
    """Notices rounds that the quorum has ended without this worker."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._seen = 0

    def was_late(self) -> bool:
        """Returns whether a round was missed since the last call. Call it between the wait for a round and the next push."""
        struct = StatsStruct(struct_size=ctypes.sizeof(StatsStruct))
        self._session._do("get_stats", byref(struct))
        before, self._seen = self._seen, int(struct.late_steps)
        return self._seen > before


class Kept:
    """What was pushed too late of one tensor."""

    def __init__(self, session: Session, tensor: Tensor) -> None:
        self._session, self._tensor = session, tensor
        self._kept: Optional[torch.Tensor] = None
        self._given: Optional[torch.Tensor] = None  # pushed in the round under way

    def join(self, moved: torch.Tensor, share: float) -> torch.Tensor:
        """Returns what to push: the mean of `moved` and of what is kept. The latter has the weight `share`, from 0 to 1."""
        if self._kept is None:
            self._given = moved
            return moved
        self._given = torch.lerp(moved, self._kept, share)
        # With error feedback the session has kept it as well, and adds it to what is pushed.
        return self._given - self._kept if self._session_keeps() else self._given

    def end(self, was_late: bool) -> None:
        """Ends a round: keeps what was pushed in it if that was too late, and forgets it otherwise."""
        self._kept, self._given = (self._given if was_late else None), None

    def _session_keeps(self) -> bool:
        with self._session._calls.call() as handle:
            return bool(library().syncline_keeps_late(handle, self._tensor.id) == 1)
