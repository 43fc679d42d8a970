"""Finds ranks whose gradient norms are unlike those of the other ranks, compared with how far the norms usually differ.

How much batches differ is not known at first, so the first steps only serve to learn it. After them a rank is reported if the logarithm
of its norm is more than z standard deviations from the median of all ranks. The deviation of a step comes from the median absolute
deviation of its ranks, and the usual deviation is the median over recent steps. Both are medians, so a rank that is broken from the
start does not move them as long as most ranks are sound.

Every step counts for the usual deviation, whatever was found in it, so that a lasting growth of the deviation becomes usual. Such a
growth affects all ranks at once, so three or more ranks show it within one step. Therefore the deviation of each of the last few steps
is also allowed.

With two ranks, both are equally far from their middle, so neither is named.
"""
from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

FEWEST_STEPS = 32  # steps to learn from; with fewer, the spread of two ranks is known too roughly
_MOST_STEPS = 64  # steps that are remembered
_LAST_STEPS = 4  # with few ranks, a single step shows their spread too roughly
_LEAST_SPREAD = 0.01  # ranks with the same batches differ only by rounding, which must not count
_SMALLEST = 1e-300  # smallest norm whose logarithm is taken
# By number of ranks: the factor by which to multiply the median absolute deviation of that many normal values, so that the standard
# deviation is above the product in half of all cases. It is 1.4826 for many values. For few it comes from a simulation, which
# check_test.py repeats.
_DEVIATIONS_OF_FEW = {2: 2.097, 3: 2.772, 4: 2.209, 5: 1.985, 6: 1.873, 7: 1.792, 8: 1.746, 9: 1.707}


class Found(NamedTuple):
    rank: Optional[int]  # None: one of two ranks, it is not known which
    what: str


class Norms:
    """Judges norms, with the same result on all ranks for the same calls. Keeps one number for each of the last 64 steps."""

    def __init__(self, z: float) -> None:
        self._z = z
        self._spreads: deque[float] = deque(maxlen=_MOST_STEPS)  # by step: standard deviation of the logarithms of the ranks' norms

    @property
    def steps(self) -> int:
        """Number of steps that it remembers."""
        return len(self._spreads)

    def keep(self, steps: int) -> None:
        """Forgets all but the last `steps` steps, which a rank that came later also knows."""
        while len(self._spreads) > steps:
            self._spreads.popleft()

    def judge(self, norms: Sequence[Optional[float]]) -> Optional[Found]:
        """Returns the first rank that is unlike the others, or None. A norm of None: that rank had no gradient."""
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
        spread *= math.sqrt(2)  # standard deviation of the difference of two
        (one, first), (other, second) = logs.items()
        if abs(first - second) <= self._z * spread:
            return None
        return Found(None, f"gradient norms differ between ranks, rank {one} has {norms[one]:.4g} and rank "
                           f"{other} has {norms[other]:.4g} (with two ranks it is unknown which one is wrong), "
                           f"{_factor(abs(first - second))}; {self._allowed(spread)}")

    def _found(self, wrong: list[int], norms: dict[int, float], log_median: float, spread: float) -> Found:
        median, distance = _norm_of(log_median), abs(math.log(max(norms[wrong[0]], _SMALLEST)) - log_median)
        return Found(wrong[0], f"gradient norms differ between ranks, rank {wrong[0]} has {norms[wrong[0]]:.4g}, the median of all is {median:.4g}, "
                               f"{_factor(distance)}; {self._allowed(spread)}{_others(wrong)}")

    def _allowed(self, spread: float) -> str:
        return f"allowed is {_factor(self._z * spread)}: {self._z:g} standard deviations, each {_factor(spread)}"


def _factor(logarithm: float) -> str:
    """Returns the distance of two norms in words, for errors."""
    return f"a factor of {math.exp(min(logarithm, 690.0)):.4g}"  # below the largest float64


def _deviations(ranks: int) -> float:
    return _DEVIATIONS_OF_FEW.get(ranks) or 1.4826 * ranks / (ranks - 1.2)


def _norm_of(log: float) -> float:
    return math.exp(log) if log > math.log(_SMALLEST) else 0.0


def _others(ranks: list[int]) -> str:
    return f"; so do ranks {', '.join(map(str, ranks[1:9]))}{', ...' if len(ranks) > 9 else ''}" if ranks[1:] else ""
