"""check=: whether all ranks hold the same weights, or their gradients have norms alike, every so many steps."""
from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Optional

import torch

from syncline._asserts import assert_equal, gather_number
from syncline.errors import InvalidArgument, NotEqual
from syncline.session import Option, Session
from syncline.torch._norms import Norms
from syncline.torch._weight import Weight

_MOST_STEPS = 1_000_000_000
_MOST_Z = 1000
_WEIGHTS = re.compile(r"weights:every=(?P<every>\d+)", re.ASCII)
_NORMS = re.compile(r"grad_norm:z=(?P<z>\d+(?:\.\d+)?)(?:,every=(?P<every>\d+))?", re.ASCII)


class Check:
    """Of every so many steps. Both calls come in each step, on all ranks."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._compared = 0  # the last step that was; while gradients accumulate a step has several calls

    def before_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """All gradients are pushed, and not yet taken."""

    def after_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """NotEqual on every rank, once the step that is over is one to check, and ranks differ."""
        if self._is_due(session):
            self._compared = session.step
            self._compare(session, weights)

    def _is_due(self, session: Session) -> bool:
        return session.step % self._every == 0 and session.step != self._compared

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        raise NotImplementedError


def check_of(check: Option, settings: Mapping[str, Option]) -> Optional[Check]:
    """What `check` says, in a job of these settings. None: no check."""
    if check is None:
        return None
    made = _made(str(check), settings)
    if made is None:
        raise InvalidArgument(f"check={check!r}, but must be \"weights:every=STEPS\" or \"grad_norm:z=NUMBER,every=STEPS\", "
                              f"with 1 to {_MOST_STEPS:,} steps and a number from 1 to {_MOST_Z:,}")
    mode = str(settings.get("mode") or os.environ.get("SYNCLINE_MODE") or "bsp")
    if mode != "bsp":
        raise InvalidArgument(f"check={check!r} with mode={mode!r}: there workers may hold weights of different steps; take mode bsp, "
                              "or leave the check out")
    return made


def _made(check: str, settings: Mapping[str, Option]) -> Optional[Check]:
    """None when it cannot be read."""
    given = _WEIGHTS.fullmatch(check) or _NORMS.fullmatch(check)
    if given is None:
        return None
    every = int(given["every"] or 1)
    if not 1 <= every <= _MOST_STEPS:
        return None
    if given.re is _WEIGHTS:
        return WeightCheck(every)
    z = float(given["z"])
    # There the job itself leaves out steps that are not finite, on whichever rank.
    leaves_out = settings.get("loss_scaling") not in (None, "none") or settings.get("nonfinite_steps") == "skip"
    return NormCheck(every, Norms(z), leaves_out) if 1 <= z <= _MOST_Z else None


class WeightCheck(Check):
    """Compares digests of all weights among all ranks, and where they differ the weights."""

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
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


class NormCheck(Check):
    """Compares the norms of the ranks' own gradients."""

    def __init__(self, every: int, norms: Norms, leaves_out: bool) -> None:
        super().__init__(every)
        self._norms, self._leaves_out = norms, leaves_out
        self._norm: Optional[float] = None  # of the step that ends; None: without gradients

    def before_step(self, session: Session, weights: Sequence[Weight]) -> None:
        if not self._is_due(session):
            return
        norms = [torch.linalg.vector_norm(weight.gradient, dtype=torch.float64) for weight in weights if weight.gradient is not None]
        self._norm = math.hypot(*(norm.item() for norm in norms)) if norms else None

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        norms = gather_number(self._norm, "gradient norms", session)
        if self._leaves_out and any(norm is not None and not math.isfinite(norm) for norm in norms):
            return
        found = self._norms.judge(norms)
        if found is None:
            return
        error = NotEqual(f"gradient norms differ between ranks at step {session.step}: {found.what}")
        error.rank, error.step = found.rank, session.step
        raise error


def _digest(parameter: torch.nn.Parameter) -> list[int]:
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(values.numpy().data, digest_size=16).digest()
    return [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
