"""Whether gradients of one step have norms alike: each rank's beside those of all others, by what ranks usually differ.

What one batch differs from another by is not known before, so the first steps are looked at only. From then on a rank is not as the others
when the logarithm of its norm is more than z standard deviations from the median of all. Both are medians, so that a rank that is broken from
the start moves neither as long as most are not: the deviation of a step comes from the median absolute deviation of its ranks, and the
usual one is the median over recent steps. Every step counts there, whatever was found in it, so that a spread that grows for good becomes usual.
It grows for all ranks at once, and so three ranks or more show it at once: the deviation of each of the last few steps is allowed, too.

Two ranks are as far from their middle as each other, so neither is named.
"""
from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

FEWEST_STEPS = 32  # before that two ranks would know their spread too roughly
_MOST_STEPS = 64
_LAST_STEPS = 4  # of a few ranks a single step shows their spread too roughly
_LEAST_SPREAD = 0.01  # ranks with the same batches differ by rounding only, and that is no reason
_SMALLEST = 1e-300  # of which there is a logarithm
# What the median absolute deviation of so many normal values is to be multiplied with, so that half of all times the standard deviation
# is more than that: 1.4826 of many. Of few by simulation, which check_test.py repeats.
_DEVIATIONS_OF_FEW = {2: 2.097, 3: 2.772, 4: 2.209, 5: 1.985, 6: 1.873, 7: 1.792, 8: 1.746, 9: 1.707}


class Found(NamedTuple):
    rank: Optional[int]  # None: one of two
    what: str


class Norms:
    """The same calls give the same answers on all ranks. Keeps a number of each of the last 64 steps."""

    def __init__(self, z: float) -> None:
        self._z = z
        self._spreads: deque[float] = deque(maxlen=_MOST_STEPS)  # standard deviation of the ranks' logarithms, by step

    @property
    def steps(self) -> int:
        """So many it remembers."""
        return len(self._spreads)

    def keep(self, steps: int) -> None:
        """Forgets all but the last ones: a rank that came later knows no more of them."""
        while len(self._spreads) > steps:
            self._spreads.popleft()

    def judge(self, norms: Sequence[Optional[float]]) -> Optional[Found]:
        """The first rank that is not as the others, if there is one; None as a norm: that rank had no gradient."""
        there = {rank: norm for rank, norm in enumerate(norms) if norm is not None}
        wrong = [rank for rank, norm in there.items() if not math.isfinite(norm)]
        if wrong:
            said = ", ".join(f"rank {rank} has {there[rank]}" for rank in wrong[:9])
            return Found(wrong[0], f"gradient norms are not finite, {said}{', ...' if wrong[9:] else ''}")
        if len(there) < 2:
            return None
        logs = {rank: math.log(max(norm, _SMALLEST)) for rank, norm in there.items()}
        median = statistics.median(logs.values())
        distances = {rank: abs(log - median) for rank, log in logs.items()}
        self._spreads.append(_deviations(len(there)) * statistics.median(distances.values()))
        if len(self._spreads) <= FEWEST_STEPS:
            return None
        spread = max(_LEAST_SPREAD, statistics.median(self._spreads))
        if len(there) == 2:
            return self._found_of_two(there, logs, spread)
        spread = max(spread, *list(self._spreads)[-_LAST_STEPS:])
        wrong = [rank for rank, distance in distances.items() if distance > self._z * spread]
        return self._found(wrong, there, median, spread) if wrong else None

    def _found_of_two(self, norms: dict[int, float], logs: dict[int, float], spread: float) -> Optional[Found]:
        spread *= math.sqrt(2)  # of the difference of two
        (one, first), (other, second) = logs.items()
        if abs(first - second) <= self._z * spread:
            return None
        return Found(None, f"gradient norms differ between ranks, rank {one} has {norms[one]:.4g} and rank {other} has {norms[other]:.4g} (of two it "
                           f"cannot be said which is wrong), {_factor(abs(first - second))}; {self._allowed(spread)}")

    def _found(self, wrong: list[int], norms: dict[int, float], log_median: float, spread: float) -> Found:
        median, distance = _norm_of(log_median), abs(math.log(max(norms[wrong[0]], _SMALLEST)) - log_median)
        return Found(wrong[0], f"gradient norms differ between ranks, rank {wrong[0]} has {norms[wrong[0]]:.4g}, the median of all is {median:.4g}, "
                               f"{_factor(distance)}; {self._allowed(spread)}{_others(wrong)}")

    def _allowed(self, spread: float) -> str:
        return f"allowed is {_factor(self._z * spread)}: {self._z:g} standard deviations, each {_factor(spread)}"


def _factor(logarithm: float) -> str:
    """In the words of errors: how far apart two norms are, whichever is larger."""
    return f"a factor of {math.exp(min(logarithm, 690.0)):.4g}"  # whose digits fit


def _deviations(ranks: int) -> float:
    return _DEVIATIONS_OF_FEW.get(ranks) or 1.4826 * ranks / (ranks - 1.2)


def _norm_of(log: float) -> float:
    return math.exp(log) if log > math.log(_SMALLEST) else 0.0


def _others(ranks: list[int]) -> str:
    return f"; so do ranks {', '.join(map(str, ranks[1:9]))}{', ...' if len(ranks) > 9 else ''}" if ranks[1:] else ""
