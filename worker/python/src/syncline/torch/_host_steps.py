"""Which gradients of a host are whole: whose are there, tensor by tensor. No I/O: times are given.

A step of a tensor: each member gives its gradient, or says that it has none; what was given is handed to the servers; new weights
arrive. A process joins between two steps of all tensors. One that leaves is not waited for any more: what it gave counts, once.
"""
from __future__ import annotations

from typing import NamedTuple


class Given(NamedTuple):
    """What a member said of a tensor in a step. No samples: it has no gradient."""

    samples: int
    rate_factor: float


class _Tensor:
    def __init__(self, step: int) -> None:
        self.step = step  # the one that is collected, or was handed on
        self.is_handed = False
        self.given: dict[int, Given] = {}  # by rank within the host
        self.since = 0.0  # when the first of them came


class Steps:
    """Of `tensors` that are trained, from step `first` on."""

    def __init__(self, tensors: int, first: int) -> None:
        self._tensors = [_Tensor(first) for _ in range(tensors)]
        self._moved: dict[int, float] = {}  # by member: when it gave something last, or had to wait for weights
        self._waiting: set[int] = set()  # to join

    @property
    def members(self) -> list[int]:
        """Who is waited for, in order."""
        return sorted(self._moved)

    def step(self, tensor: int) -> int:
        """The one that is collected, or was handed on."""
        return self._tensors[tensor].step

    def ask_to_join(self, rank: int) -> None:
        """`admit` will say when."""
        self._waiting.add(rank)

    def remove(self, rank: int) -> None:
        """It is gone. What it gave to steps that were not handed on yet stays."""
        self._moved.pop(rank, None)
        self._waiting.discard(rank)

    @property
    def holds_back(self) -> bool:
        """Whether gradients of the next step wait until all weights of this one are there, as somebody wants to join."""
        return bool(self._waiting)

    def admit(self, now: float) -> list[int]:
        """Takes in those who asked, if this is the moment between two steps; they are members then."""
        if not self._waiting or not self.is_between_steps:
            return []
        admitted = sorted(self._waiting)
        for rank in admitted:
            self._moved[rank] = now
            for tensor in self._tensors:
                tensor.given.pop(rank, None)  # of an earlier life of it, which gives the same step anew
        self._waiting.clear()
        return admitted

    @property
    def is_between_steps(self) -> bool:
        """Whether all weights of one step have arrived, and no gradient of the next one was handed on."""
        first = self._tensors[0].step
        return all(tensor.step == first and not tensor.is_handed for tensor in self._tensors)

    def give(self, rank: int, number: int, step: int, given: Given, now: float) -> bool:
        """False for what no member may say: not a member, another step, twice."""
        tensor = self._tensors[number]
        if rank not in self._moved or step != tensor.step or tensor.is_handed or rank in tensor.given:
            return False
        if not tensor.given:
            tensor.since = now
        tensor.given[rank] = given
        self._moved[rank] = now
        return True

    def is_whole(self, number: int) -> bool:
        """Whether all have given, and it is not held back for one who wants to join between two steps.

        Where all are gone, who comes finds the step that they were in as they left it: what was not given is left out.
        """
        tensor = self._tensors[number]
        if not self._moved:
            return not tensor.is_handed and any(other.step > tensor.step or (other.step == tensor.step and other.is_handed)
                                                for other in self._tensors)
        if tensor.is_handed or not self._moved.keys() <= tensor.given.keys():
            return False
        return not self._waiting or all(tensor.step <= other.step for other in self._tensors)

    def hand(self, number: int) -> list[tuple[int, Given]]:
        """What goes to the servers, in the order of ranks."""
        tensor = self._tensors[number]
        tensor.is_handed = True
        return sorted(tensor.given.items())

    def arrive(self, number: int, now: float) -> None:
        """New weights of a tensor that was handed on are there."""
        tensor = self._tensors[number]
        tensor.step, tensor.is_handed, tensor.given = tensor.step + 1, False, {}
        for rank in self._moved:
            self._moved[rank] = now

    def late(self, now: float, patience: float) -> list[int]:
        """Members that have not moved for so long although others wait for a gradient of theirs."""
        return [rank for rank, moved in sorted(self._moved.items())
                if any(not tensor.is_handed and rank not in tensor.given and now - max(moved, tensor.since) > patience
                       and not self._moved.keys().isdisjoint(tensor.given) for tensor in self._tensors)]
