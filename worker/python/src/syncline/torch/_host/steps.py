"""The state machine that decides when all members of a host have given their gradient of a tensor.

It does no I/O and takes times as arguments. In a step of a tensor each member gives its gradient or says that it has none; what was
given is handed to the servers; then new weights arrive. A process joins between two steps of all tensors. The others do not wait for a
process that has left; what it gave counts once.
"""
from __future__ import annotations

from typing import NamedTuple


class Given(NamedTuple):
    """What a member said about a tensor in a step. `samples` 0: it has no gradient."""

    samples: int
    rate_factor: float


class _Tensor:
    def __init__(self, step: int) -> None:
        self.step = step  # the step whose gradients are collected or were handed on
        self.is_handed = False  # whether they were handed on
        self.given: dict[int, Given] = {}  # by rank within the host
        self.since = 0.0  # time at which the first of `given` came


class Steps:
    """The steps of `tensors` trained tensors, from step `first` on. Not thread-safe; the hub's listening thread owns it."""

    def __init__(self, tensors: int, first: int) -> None:
        self._tensors = [_Tensor(first) for _ in range(tensors)]
        self._moved: dict[int, float] = {}  # by member: time of its last gradient or of the last arrival of weights
        self._waiting: set[int] = set()  # ranks that want to join

    @property
    def members(self) -> list[int]:
        """The ranks whose gradients a step needs, in ascending order."""
        return sorted(self._moved)

    def step(self, tensor: int) -> int:
        """Returns the tensor's present step, whose gradients are collected or were handed on."""
        return self._tensors[tensor].step

    def ask_to_join(self, rank: int) -> None:
        """Notes that a rank wants to join; a later `admit` takes it in."""
        self._waiting.add(rank)

    def remove(self, rank: int) -> None:
        """Removes a rank that is gone. Its gradients that were not handed on yet stay, and count."""
        self._moved.pop(rank, None)
        self._waiting.discard(rank)

    @property
    def holds_back(self) -> bool:
        """Whether gradients of the next step wait until all weights of this one have arrived, because a rank wants to join."""
        return bool(self._waiting)

    def admit(self, now: float) -> list[int]:
        """Makes the waiting ranks members if all tensors are between two steps. Returns the ranks that were taken in."""
        if not self._waiting or not self.is_between_steps:
            return []
        admitted = sorted(self._waiting)
        for rank in admitted:
            self._moved[rank] = now
            for tensor in self._tensors:
                tensor.given.pop(rank, None)  # of an earlier life of it, which gives the same step again
        self._waiting.clear()
        return admitted

    @property
    def is_between_steps(self) -> bool:
        """Whether all weights of one step have arrived and no gradient of the next one was handed on."""
        first = self._tensors[0].step
        return all(tensor.step == first and not tensor.is_handed for tensor in self._tensors)

    def give(self, rank: int, number: int, step: int, given: Given, now: float) -> bool:
        """Takes a rank's gradient. Returns False if it may not give it: it is not a member, the step is another one, or it gave already."""
        tensor = self._tensors[number]
        if rank not in self._moved or step != tensor.step or tensor.is_handed or rank in tensor.given:
            return False
        if not tensor.given:
            tensor.since = now
        tensor.given[rank] = given
        self._moved[rank] = now
        return True

    def is_whole(self, number: int) -> bool:
        """Returns whether all members have given a tensor, and it is not held back for a rank that wants to join.

        If no member is left, the step that they were in is finished with what they gave, so that a rank that comes can join. A tensor
        is then whole if another one is further on.
        """
        tensor = self._tensors[number]
        if not self._moved:
            return not tensor.is_handed and any(other.step > tensor.step or (other.step == tensor.step and other.is_handed)
                                                for other in self._tensors)
        if tensor.is_handed or not self._moved.keys() <= tensor.given.keys():
            return False
        return not self._waiting or all(tensor.step <= other.step for other in self._tensors)

    def hand(self, number: int) -> list[tuple[int, Given]]:
        """Marks a tensor as handed to the servers. Returns what was given by each rank, in the order of ranks."""
        tensor = self._tensors[number]
        tensor.is_handed = True
        return sorted(tensor.given.items())

    def arrive(self, number: int, now: float) -> None:
        """Notes that the new weights of a tensor that was handed on have arrived: its next step begins."""
        tensor = self._tensors[number]
        tensor.step, tensor.is_handed, tensor.given = tensor.step + 1, False, {}
        for rank in self._moved:
            self._moved[rank] = now

    def late(self, now: float, patience: float) -> list[int]:
        """Returns the members for whose gradient others have waited longer than `patience` seconds."""
        return [rank for rank, moved in sorted(self._moved.items())
                if any(not tensor.is_handed and rank not in tensor.given and now - max(moved, tensor.since) > patience
                       and not self._moved.keys().isdisjoint(tensor.given) for tensor in self._tensors)]
