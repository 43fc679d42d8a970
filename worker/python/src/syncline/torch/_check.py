"""check=: whether all ranks hold the same weights, or their gradients have norms alike, every so many steps."""
from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Optional

import torch

from syncline._asserts import Caller, check_equal, gather
from syncline._log import logger
from syncline.errors import Error, InvalidArgument, NotEqual
from syncline.session import Option, Session
from syncline.torch._norms import FEWEST_STEPS, Norms
from syncline.torch._weight import Weight

_MOST_STEPS = 1_000_000_000
_MOST_Z = 1000
_STEPS_OF_NORMS = 10  # where the check names no other number
_KINDS = {"weights": '"weights:every=STEPS"', "grad_norm": '"grad_norm:z=NUMBER,every=STEPS"'}  # and how each is written


class Check:
    """Of every so many steps. Both calls come in each step, on all ranks. `name` is what the user wrote."""

    def __init__(self, name: str, every: int) -> None:
        self._caller = Caller(f"check={name!r}", "does it have this check, too, and does it come to as many steps?")
        self._every = every
        self._compared = 0  # the last step that was; while gradients accumulate a step has several calls
        self._calls = every  # so many more until a step may be one to check: none takes less than a call
        self._is_due = False

    def begin(self, session: Session) -> None:
        """Joined the job, at whichever step it is."""
        self._compared = session.step
        self._calls = self._every - self._compared % self._every

    def before_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """All gradients are pushed, and not yet taken."""
        # What step it is, is asked only where it matters: the answer waits for gradients that come from a GPU.
        self._calls -= 1
        if self._calls == 0:
            step = session.step
            self._calls = self._every - step % self._every
            self._is_due = step % self._every == 0 and step != self._compared
            if self._is_due:
                self._compared = step
                self._look(weights)

    def after_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """NotEqual on every rank, once the step that is over is one to check, and ranks differ."""
        if not self._is_due:
            return
        self._is_due = False
        # Of a step in which all ranks are: they come here together then, however long one of them took for it.
        for weight in weights:
            weight.wait()
        self._compare(session, weights)

    def _look(self, weights: Sequence[Weight]) -> None:
        """At gradients of a step that will be compared."""

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        raise NotImplementedError


def check_of(check: Option, settings: Mapping[str, Option]) -> Optional[Check]:
    """What `check` says, in a job of these settings. None: no check."""
    if check is None:
        return None
    try:
        made = _made(str(check), settings)
    except ValueError as error:
        raise InvalidArgument(f"check={check!r}: {error}") from None
    mode = str(settings.get("mode") or os.environ.get("SYNCLINE_MODE") or "bsp")
    if mode != "bsp":
        raise InvalidArgument(f"check={check!r} with mode={mode!r}: there workers may hold weights of different steps; take mode bsp, "
                              "or leave the check out")
    return made


def _made(check: str, settings: Mapping[str, Option]) -> Check:
    """ValueError says what is wrong with which part of it."""
    kind, _, rest = check.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is no check; there are {' and '.join(_KINDS.values())}")
    options = _options_of(kind, rest)
    every = int(options.get("every", _STEPS_OF_NORMS))
    if kind == "weights":
        return WeightCheck(check, every)
    # There the job itself leaves out steps that are not finite, on whichever rank.
    leaves_out = settings.get("loss_scaling") not in (None, "none") or settings.get("nonfinite_steps") == "skip"
    return NormCheck(check, every, Norms(options["z"]), leaves_out)


def _options_of(kind: str, text: str) -> dict[str, float]:
    needed = {"weights": "every", "grad_norm": "z"}[kind]
    allowed = ("every",) if kind == "weights" else ("z", "every")
    options: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in allowed:
            raise ValueError(f"{part!r} is no option of {kind}; write {_KINDS[kind]}")
        if name in options:
            raise ValueError(f"{name} is there twice")
        options[name] = _number(name, value)
    if needed not in options:
        raise ValueError(f"lacks {needed}=; write {_KINDS[kind]}")
    return options


def _number(name: str, value: str) -> float:
    most, form, what = (_MOST_STEPS, r"\d+", "whole number") if name == "every" else (_MOST_Z, r"\d+(\.\d+)?", "number")
    if not re.fullmatch(form, value, re.ASCII) or not 1 <= float(value) <= most:
        raise ValueError(f"{name} is {value!r}, but must be a {what} from 1 to {most:,}")
    return float(value)


class WeightCheck(Check):
    """Compares digests of all weights among all ranks, and where they differ the weights."""

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        digests = torch.tensor([_digest(weight.parameter) for weight in weights], dtype=torch.int64)
        try:
            check_equal(digests, "digests of all weights", self._caller, session)
            return
        except NotEqual as error:
            if error.index is None:
                raise
            first = error.index[0]
        # All ranks have heard of the same one. Other bits may be the same number: 0 and -0.
        for weight in weights[first:]:
            check_equal(weight.parameter, weight.name, self._caller, session)


class NormCheck(Check):
    """Compares the norms of the ranks' own gradients."""

    def __init__(self, name: str, every: int, norms: Norms, leaves_out: bool) -> None:
        super().__init__(name, every)
        self._norms, self._leaves_out = norms, leaves_out
        self._by_device: list[torch.Tensor] = []  # norms of the step that ends; empty: without gradients

    def begin(self, session: Session) -> None:
        """What it remembers is of other steps than what ranks do that stayed."""
        super().begin(session)
        self._norms.keep(0)
        if session.rank == 0:
            first = (self._compared // self._every + FEWEST_STEPS + 1) * self._every
            logger.info("%s judges from step %d on: before, in %d steps, it learns how far the norms of ranks are apart", self._caller.says, first,
                        FEWEST_STEPS)

    def _look(self, weights: Sequence[Weight]) -> None:
        # Their values are asked for later: here that would wait for the GPU.
        norms: dict[torch.device, list[torch.Tensor]] = {}
        for weight in weights:
            if weight.gradient is not None:
                norms.setdefault(weight.gradient.device, []).append(_norm(weight.gradient))
        self._by_device = [torch.linalg.vector_norm(torch.stack(of), dtype=torch.float64) for of in norms.values()]

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        own = math.hypot(*(norm.item() for norm in self._by_device)) if self._by_device else None
        self._by_device = []
        try:
            said = gather([own, self._norms.steps], self._caller, session)
        except Error:
            self._norms.keep(0)  # others may have heard all
            raise
        norms = [norm for norm, _ in said]
        self._norms.keep(min(int(steps or 0) for _, steps in said))
        if self._leaves_out and any(norm is not None and not math.isfinite(norm) for norm in norms):
            return
        found = self._norms.judge(norms)
        if found is None:
            return
        error = NotEqual(f"{self._caller.says} at step {session.step}: {found.what}")
        error.rank, error.step = found.rank, session.step
        raise error


def _norm(gradient: torch.Tensor) -> torch.Tensor:
    # On GPUs without a copy in another type, for which there may be no memory.
    return torch.linalg.vector_norm(gradient, dtype=torch.float64 if gradient.device.type == "cpu" else torch.float32)


def _digest(parameter: torch.nn.Parameter) -> list[int]:
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(values.numpy().data, digest_size=16).digest()
    return [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
