"""Computes how many local steps each round has, and after which of them each fragment is pushed."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Union

from syncline.errors import InvalidArgument

Every = Union[int, Callable[[int], int]]


class Rhythm:
    """The lengths of rounds, the same on all workers. Rounds and steps are counted from 0.

    `every` is the number of steps of all rounds, or a function that returns it from the number of a round. `check` raises if a round
    cannot have that many steps.
    """

    def __init__(self, every: Every, fragments: int, check: Callable[[int], Any]) -> None:
        self._every, self._fragments, self._check = every, fragments, check
        self._ends = [0]  # [n]: number of steps before round n, as far as computed
        if not callable(every):
            check(every)

    def steps(self, number: int) -> int:
        """Returns the number of steps of a round."""
        return self.before(number + 1) - self.before(number)

    def before(self, number: int) -> int:
        """Returns the number of steps of all rounds before round `number`."""
        if not callable(self._every):
            return number * self._every
        while len(self._ends) <= number:
            self._ends.append(self._ends[-1] + self._of(self._every, len(self._ends) - 1))
        return self._ends[number]

    def dues(self, number: int) -> list[int]:
        """Returns, for each fragment, the number of steps of the round after which it is pushed.

        Fragments are pushed at equal distances, the last one at the end of the round.
        """
        steps = self.steps(number)
        return [(fragment + 1) * steps // self._fragments for fragment in range(self._fragments)]

    def _of(self, every: Callable[[int], int], number: int) -> int:
        steps = every(number)
        try:
            self._check(steps)
        except InvalidArgument as error:
            raise InvalidArgument(f"round {number}: {error}") from None
        return steps
