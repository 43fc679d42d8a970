"""Computes how many local steps each round has, and after which of them each fragment is pushed."""
from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ContextManager, Optional, Union

import torch

from syncline.errors import InvalidArgument
from syncline.session import Option, Session

if TYPE_CHECKING:
    from syncline.torch._local.adaptive import Rider

Every = Union[int, str, Callable[[int], int]]


class Rhythm(abc.ABC):
    """The lengths of this worker's rounds. Rounds and steps are counted from 0.

    The worker calls took_step after each step, and keeps to synchronizing() while it pushes and pulls, so that a rhythm may measure it.
    """

    def __init__(self, fragments: int) -> None:
        self._fragments = fragments

    @abc.abstractmethod
    def steps(self, number: int) -> int:
        """Returns the number of steps of round `number`, which begins now."""

    @abc.abstractmethod
    def done(self, number: int, taken: int, steps: int) -> int:
        """Returns how far the job is, in steps, when this worker has taken `taken` of the `steps` steps of round `number`."""

    def dues(self, number: int) -> list[int]:
        """Returns, for each fragment, the number of steps of the round after which it is pushed.

        Fragments are pushed at equal distances, the last one at the end of the round.
        """
        steps = self.steps(number)
        return [(fragment + 1) * steps // self._fragments for fragment in range(self._fragments)]

    def settings(self, settings: Mapping[str, Option]) -> dict[str, Option]:
        """Returns the settings of a session, completed by what the rhythm needs."""
        return dict(settings)

    def declare(self, session: Session, parameters: Iterable[torch.Tensor]) -> Optional[Rider]:
        """Declares a tensor that travels with the last fragment of each round, if the rhythm needs one."""
        del session, parameters
        return None

    def took_step(self) -> None:
        """Notes that a step has ended."""

    def synchronizing(self) -> ContextManager[None]:
        """Returns the context in which the worker pushes and pulls."""
        return contextlib.nullcontext()

    def pause(self) -> None:
        """Notes that what the program does until the next step is not part of that step."""


class AgreedRhythm(Rhythm):
    """Lengths that are the same on all workers.

    `every` is the number of steps of all rounds, or a function that returns it from the number of a round. `check` raises if a round
    cannot have that many steps.
    """

    def __init__(self, every: Union[int, Callable[[int], int]], fragments: int, check: Callable[[int], Any]) -> None:
        super().__init__(fragments)
        self._every, self._check = every, check
        self._ends = [0]  # [n]: number of steps before round n, as far as computed
        if not callable(every):
            check(every)

    def steps(self, number: int) -> int:
        return self._before(number + 1) - self._before(number)

    def done(self, number: int, taken: int, steps: int) -> int:
        return self._before(number) + taken

    def _before(self, number: int) -> int:
        """Returns the number of steps of all rounds before round `number`."""
        if not callable(self._every):
            return number * self._every
        while len(self._ends) <= number:
            self._ends.append(self._ends[-1] + self._of(self._every, len(self._ends) - 1))
        return self._ends[number]

    def _of(self, every: Callable[[int], int], number: int) -> int:
        steps = every(number)
        try:
            self._check(steps)
        except InvalidArgument as error:
            raise InvalidArgument(f"round {number}: {error}") from None
        return steps
