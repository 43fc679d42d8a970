"""The checks of `check=`: every few steps they test that all ranks hold the same weights, or have gradients of similar norms."""
from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Optional

import torch

from syncline._asserts import Caller, check_equal, ended, gather
from syncline._log import logger
from syncline.errors import Error, InvalidArgument, NotEqual
from syncline.session import Option, Session
from syncline.torch._optimizer.norms import FEWEST_STEPS, Norms
from syncline.torch._optimizer.weight import Weight

_MOST_STEPS = 1_000_000_000
_MOST_Z = 1000
_STEPS_OF_NORMS = 10  # default of grad_norm's `every`
_KINDS = {"weights": '"weights:every=STEPS"', "grad_norm": '"grad_norm:z=NUMBER,every=STEPS"'}  # kinds, and how each is written


class Check:
    """A check that runs every `every` steps. All ranks call before_step and after_step in each step. `name` is what the user wrote."""

    def __init__(self, name: str, every: int) -> None:
        self._caller = Caller(f"check={name!r}", "does it have the same check, and does it make as many steps?")
        self._every = every
        self._compared = 0  # the last step that was compared; a step has several calls while gradients accumulate
        self._calls = every  # number of calls until a step may be due for a check: each step takes at least one call
        self._is_due = False

    def begin(self, session: Session) -> None:
        """Starts counting at the job's present step, after this worker has joined."""
        self._compared = session.step
        self._calls = self._every - self._compared % self._every

    def before_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """Looks at the gradients if the step is due. Called when all gradients are pushed and still in place."""
        # The step's number is asked for only when it matters, because the answer waits for gradients that come from a GPU.
        self._calls -= 1
        if self._calls <= 0 or self._is_due:  # less, or due already, where an exception came between
            step = session.step
            if not self._is_due:
                self._is_due = step % self._every == 0 and step != self._compared
            if self._is_due:
                self._compared = step
                self._look(weights)
            self._calls = self._every - step % self._every

    def after_step(self, session: Session, weights: Sequence[Weight]) -> None:
        """Compares after a step that is due. Raises NotEqual on every rank if ranks differ."""
        if not self._is_due:
            return
        # All ranks take part in this step, so they come here together, even if one takes long.
        for weight in weights:
            weight.wait()
        before = ended()
        try:
            self._compare(session, weights)
        except BaseException as error:
            # After Ctrl-C others may wait for this rank, whose next call of the step compares; but not if it has told them.
            self._is_due = not isinstance(error, Error) and ended() == before
            raise
        self._is_due = False

    def _look(self, weights: Sequence[Weight]) -> None:
        """Notes what it needs of the gradients of a step that will be compared. Does nothing by default."""

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        raise NotImplementedError


def check_of(check: Option, settings: Mapping[str, Option]) -> Optional[Check]:
    """Returns the check that `check` describes, for a job of these settings. None: no check."""
    if check is None:
        return None
    try:
        made = _made(str(check), settings)
    except ValueError as error:
        raise InvalidArgument(f"check={check!r}: {error}") from None
    mode = str(settings.get("mode") or os.environ.get("SYNCLINE_MODE") or "bsp")
    if mode != "bsp":
        raise InvalidArgument(f"check={check!r} with mode={mode!r}: in this mode workers may hold weights of "
                              "different steps; use mode bsp, or leave out the check")
    return made


def _made(check: str, settings: Mapping[str, Option]) -> Check:
    """Parses a check. Raises ValueError that says which part is wrong."""
    kind, _, rest = check.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a check; there are {' and '.join(_KINDS.values())}")
    options = _options_of(kind, rest)
    every = int(options.get("every", _STEPS_OF_NORMS))
    if kind == "weights":
        return WeightCheck(check, every)
    # With these settings the job itself skips steps with values that are not finite, on any rank.
    leaves_out = settings.get("loss_scaling") not in (None, "none") or settings.get("nonfinite_steps") == "skip"
    return NormCheck(check, every, Norms(options["z"]), leaves_out)


def _options_of(kind: str, text: str) -> dict[str, float]:
    needed = {"weights": "every", "grad_norm": "z"}[kind]
    allowed = ("every",) if kind == "weights" else ("z", "every")
    options: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        if name not in allowed:
            raise ValueError(f"{part!r} is not an option of {kind}; write {_KINDS[kind]}")
        if name in options:
            raise ValueError(f"{name} is given twice")
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
    """Compares digests of all weights among all ranks and, if digests differ, the weights themselves."""

    def _compare(self, session: Session, weights: Sequence[Weight]) -> None:
        digests = torch.tensor([_digest(weight.parameter) for weight in weights], dtype=torch.int64)
        try:
            check_equal(digests, "digests of all weights", self._caller, session)
            return
        except NotEqual as error:
            if error.index is None:
                raise
            first = error.index[0]
        # All ranks got the same index. A digest may differ although the numbers are equal: 0 and -0.
        for weight in weights[first:]:
            check_equal(weight.parameter, weight.name, self._caller, session)


class NormCheck(Check):
    """Compares the norms of the ranks' own gradients."""

    def __init__(self, name: str, every: int, norms: Norms, leaves_out: bool) -> None:
        super().__init__(name, every)
        self._norms, self._leaves_out = norms, leaves_out
        self._by_device: list[torch.Tensor] = []  # norms of the step that ends, one for each device; empty: no gradients

    def begin(self, session: Session) -> None:
        """See Check. Forgets what it has learned: ranks that stayed in the job have learned from other steps."""
        super().begin(session)
        self._norms.keep(0)
        if session.rank == 0:
            first = (self._compared // self._every + FEWEST_STEPS + 1) * self._every
            logger.info("%s checks from step %d on: in %d steps before that, it learns how much the norms of "
                        "ranks differ", self._caller.says, first,
                        FEWEST_STEPS)

    def _look(self, weights: Sequence[Weight]) -> None:
        # The values are read later: reading them here would wait for the GPU.
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
            self._norms.keep(0)  # other ranks may have received all norms
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
    # On GPUs float64 would need a copy, for which there may be no memory.
    return torch.linalg.vector_norm(gradient, dtype=torch.float64 if gradient.device.type == "cpu" else torch.float32)


def _digest(parameter: torch.nn.Parameter) -> list[int]:
    values = parameter.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    digest = hashlib.blake2b(values.numpy().data, digest_size=16).digest()
    return [int.from_bytes(half, "little", signed=True) for half in (digest[:8], digest[8:])]
