"""Keeps account, in a tensor on the servers, of the batches of an epoch that counted.

The tensor is the mean of what the workers of a step pushed (server/optimizer/mean.h). All of them push the same page, as they read it
at the beginning of the step, so its mean is that page again. Each worker also sets a mark of its own, which is above 0 afterwards
exactly if that worker's contribution counted. So the books change in the same step and by the same contributions as the weights. Each
worker that reads them, even one that has just joined, knows which batches are left and which worker trains them.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

import torch

_BITS = torch.arange(8)
_LIMBS = 3  # numbers that hold the epoch, 8 bits in each: more bits would not survive the rounding of a mean


@dataclass(frozen=True)
class Page:
    """The state of an epoch at the beginning of a step."""

    epoch: int
    counted: torch.Tensor  # by batch: whether it has counted
    members: list[int]  # ranks that took part in the step before, in ascending order: they share the next batches
    left: list[int] = field(init=False)  # batches that have not counted, in ascending order

    def __post_init__(self) -> None:
        object.__setattr__(self, "left", (~self.counted).nonzero().flatten().tolist())

    def of(self, rank: int) -> list[int]:
        """Returns the batches that a rank trains until the end of the epoch if the members stay the same; the first is for this step."""
        if rank not in self.members:
            return []
        return self.left[self.members.index(rank)::len(self.members)]

    def batch_of(self, place: int) -> Optional[int]:
        """Returns the batch that the member at this place trains in the present step; None: there are not enough left."""
        return self.left[place] if place < len(self.left) else None


class Books:
    """The layout of the tensor, and its reading and writing.

    First come the epoch, the batches that counted, and the members, with 8 bits in each number. Then come two marks for each worker:
    that it was there, and that it trained its batch.
    """

    def __init__(self, batches: int, workers: int) -> None:
        self.batches, self.workers = batches, workers
        self._members_at = _LIMBS + _bytes(batches)
        self._marks_at = self._members_at + _bytes(workers)
        self.size = self._marks_at + 2 * workers

    def first(self, members: int) -> torch.Tensor:
        """Returns the numbers with which a job begins. The first `members` ranks share the first step."""
        numbers = self._page(Page(0, torch.zeros(self.batches, dtype=torch.bool), []))
        numbers[self._marks_at:self._marks_at + members] = 1
        return numbers

    def written(self, page: Page, rank: int, trained: bool) -> torch.Tensor:
        """Returns what a worker pushes in the step of the page. `trained`: whether it trained its batch."""
        numbers = self._page(page)
        numbers[self._marks_at + rank] = 1
        numbers[self._marks_at + self.workers + rank] = float(trained)
        return numbers

    def read(self, numbers: torch.Tensor) -> Page:
        """Returns the page at the beginning of a step, from the numbers that the step before has left."""
        epoch = sum(int(limb) << 8 * place for place, limb in enumerate(numbers[:_LIMBS].round().tolist()))
        counted = _bits(numbers[_LIMBS:self._members_at], self.batches)
        shared = _bits(numbers[self._members_at:self._marks_at], self.workers).nonzero().flatten().tolist()
        present, trained = (numbers[self._marks_at:] > 0).split(self.workers)
        before = Page(epoch, counted, shared)
        for place, rank in enumerate(shared):
            batch = before.batch_of(place)
            if batch is not None and trained[rank]:
                counted[batch] = True
        if counted.all():
            epoch, counted = epoch + 1, torch.zeros_like(counted)
        return Page(epoch, counted, present.nonzero().flatten().tolist())

    def _page(self, page: Page) -> torch.Tensor:
        members = torch.zeros(self.workers, dtype=torch.bool)
        members[page.members] = True
        epoch = torch.tensor([float(page.epoch >> 8 * place & 255) for place in range(_LIMBS)])
        return torch.cat([epoch, _packed(page.counted), _packed(members), torch.zeros(2 * self.workers)])


def _bytes(bits: int) -> int:
    return (bits + 7) // 8


def _packed(bits: torch.Tensor) -> torch.Tensor:
    padded = torch.nn.functional.pad(bits.long(), (0, -len(bits) % 8))
    return (padded.view(-1, 8) << _BITS).sum(1).float()


def _bits(numbers: torch.Tensor, count: int) -> torch.Tensor:
    return (numbers.round().long()[:, None] >> _BITS & 1).flatten()[:count].bool()
