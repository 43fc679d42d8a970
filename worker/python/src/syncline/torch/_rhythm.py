"""How many local steps each round has, and after which of them each fragment is pushed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from syncline.errors import InvalidArgument

Every = Union[int, Callable[[int], int]]


class Rhythm:
    """Rounds of as many steps each, or of as many as a function says of their numbers, from 0: the same on all workers.

    `check` raises where a round of so many steps does not do.
    """

    def __init__(self, every: Every, fragments: int, check: Callable[[int], Any]) -> None:
        self._every, self._fragments, self._check = every, fragments, check
        self._ends = [0]  # of the rounds that were asked about so far, all steps counted
        if not callable(every):
            check(every)

    def steps(self, number: int) -> int:
        """Of a round."""
        return self.before(number + 1) - self.before(number)

    def before(self, number: int) -> int:
        """Steps of all rounds before it."""
        if not callable(self._every):
            return number * self._every
        while len(self._ends) <= number:
            self._ends.append(self._ends[-1] + self._of(self._every, len(self._ends) - 1))
        return self._ends[number]

    def dues(self, number: int) -> list[int]:
        """After so many steps of the round each fragment is pushed: at equal distances, the last one at its end."""
        steps = self.steps(number)
        return [(fragment + 1) * steps // self._fragments for fragment in range(self._fragments)]

    def _of(self, every: Callable[[int], int], number: int) -> int:
        steps = every(number)
        try:
            self._check(steps)
        except InvalidArgument as error:
            raise InvalidArgument(f"round {number}: {error}") from None
        return steps
