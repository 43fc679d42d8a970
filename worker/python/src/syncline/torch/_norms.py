"""Whether gradients of one step have norms alike: each rank's beside those of all others, by what they usually differ.

What one batch differs from another by is not known before: so the first steps are looked at only. From then on a rank is not as the
others when the logarithm of its norm is more than z standard deviations from the median of all. The deviation is that of ranks in the
steps before, since a single step does not say what is usual: of n values none is farther than (n - 1) / sqrt(n) standard deviations
from their mean.
"""
from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Optional

FEWEST_STEPS = 16
_MOST_STEPS = 256
_LEAST_SPREAD = 0.01  # ranks with the same batches differ by rounding only, and that is no reason
_MOST_DISTANCE = math.log(4)  # that counts as usual, so that one wild step does not hide the next
_SMALLEST = 1e-300  # of which there is a logarithm


class Found(NamedTuple):
    rank: int
    what: str


class Norms:
    """The same calls give the same answers on all ranks. Keeps a number of each of the last 256 steps."""

    def __init__(self, z: float) -> None:
        self._z = z
        self._variances: deque[float] = deque(maxlen=_MOST_STEPS)  # variance of the ranks, by step
        self._median: Optional[float] = None  # of the last step that was as usual

    def judge(self, norms: Sequence[Optional[float]]) -> Optional[Found]:
        """The first rank that is not as the others, if there is one; None as a norm: that rank had no gradient."""
        there = {rank: norm for rank, norm in enumerate(norms) if norm is not None}
        wrong = [rank for rank, norm in there.items() if not math.isfinite(norm)]
        if wrong:
            return Found(wrong[0], f"rank {wrong[0]} has {there[wrong[0]]}{_others(wrong)}")
        if len(there) < 2:
            return None
        logs = {rank: math.log(max(norm, _SMALLEST)) for rank, norm in there.items()}
        median = statistics.median(logs.values())
        distances = {rank: abs(log - median) for rank, log in logs.items()}
        if len(self._variances) >= FEWEST_STEPS:
            spread = max(_LEAST_SPREAD, math.sqrt(statistics.fmean(self._variances)))
            wrong = [rank for rank, distance in distances.items() if distance > self._z * spread]
            if wrong:
                return self._found(wrong, there, logs, spread)
        self._variances.append(math.fsum(min(distance, _MOST_DISTANCE) ** 2 for distance in distances.values()) / (len(there) - 1))
        self._median = median
        return None

    def _found(self, wrong: list[int], norms: dict[int, float], logs: dict[int, float], spread: float) -> Found:
        if len(norms) == 2:  # both are as far from the middle: the one that is farther from what was before
            before = self._median or 0.0
            wrong = [max(norms, key=lambda rank: abs(logs[rank] - before))]
        rank = wrong[0]
        median = statistics.median(logs.values())
        return Found(rank, f"rank {rank} has {norms[rank]:.4g}, the median of all is {math.exp(median):.4g}; their standard deviation is "
                           f"{_percent(spread)}, allowed are {self._z:g} times that{_others(wrong)}")


def _percent(spread: float) -> str:
    return f"{100 * math.expm1(spread):.3g} %"


def _others(ranks: list[int]) -> str:
    return f"; so do ranks {', '.join(map(str, ranks[1:9]))}{', ...' if len(ranks) > 9 else ''}" if ranks[1:] else ""
