"""Samplers and state for jobs whose workers come and go."""
from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, Optional, Union

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.torch._elastic.sampler import ExactlyOnceSampler
from syncline.torch._elastic.state import State, run
from syncline.torch._local.local_sgd import LocalSGD
from syncline.torch._optimizer.optimizer import Optimizer

__all__ = ["ElasticDistributedSampler", "ExactlyOnceSampler", "State", "run"]


class ElasticDistributedSampler(torch.utils.data.Sampler):
    """Yields batches of indices: this worker's part of an epoch, from the job's present step on.

        optimizer = syncline.torch.Optimizer(model, "adamw", lr=1e-3)
        sampler = syncline.torch.elastic.ElasticDistributedSampler(dataset, optimizer, batch_size=32)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
        while sampler.epoch < 10:
            for inputs, labels in loader:       # a worker that joins in the middle gets the rest of the epoch
                ...
                optimizer.step()

    It replaces DistributedSampler, set_epoch, and a checkpoint of the place within an epoch: a worker that was killed and restarted
    continues where the others are. All workers cut the same order, drawn from `seed` and the epoch, into batches of `batch_size` for
    each of `world_size` workers. All have the same number of batches. The last batch of an epoch may be smaller, or larger by one
    sample, and may differ by one sample between workers. `data` is the data set, or its length.

    What a worker would have read while it was away is not read in that epoch; with ExactlyOnceSampler other workers read it. A `rank`
    of world_size or more takes the part of rank % world_size.
    """

    def __init__(self, data: Union[Sized, int], optimizer: Union[Optimizer, LocalSGD], batch_size: int, *, shuffle: bool = True,
                 seed: int = 0, rank: Optional[int] = None, world_size: Optional[int] = None) -> None:
        if isinstance(optimizer, LocalSGD) and optimizer.is_adaptive:
            raise InvalidArgument("the workers of adaptive rounds take different numbers of steps, but this sampler cuts the data into "
                                  "equal parts; let each worker draw from all data (RandomSampler), with a seed of its own")
        self._length = data if isinstance(data, int) else len(data)
        self._optimizer = optimizer
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._world_size = optimizer.world_size if world_size is None else world_size
        self._rank = (optimizer.rank if rank is None else rank) % self._world_size
        if batch_size < 1 or self._length < self._world_size:
            raise InvalidArgument(
                f"{self._length} samples in batches of {batch_size} for {self._world_size} workers: each worker "
                "needs at least one")
        # In the last batch of an epoch each worker has one sample at least.
        self._batches = max(1, self._length // (self._world_size * batch_size))
        if self._length - self._batches * self._world_size * batch_size >= self._world_size:
            self._batches += 1

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch."""
        return self._batches

    @property
    def epoch(self) -> int:
        """The present epoch, from 0."""
        return self._steps() // self._batches

    @property
    def batch(self) -> int:
        """The number of the next batch in the present epoch, from 0."""
        return self._steps() % self._batches

    def _steps(self) -> int:
        if isinstance(self._optimizer, LocalSGD) and self._optimizer.was_cut_short:
            raise FailedPrecondition(
                f"synchronize() was called in the middle of a round, so that `steps`, {self._optimizer.steps}, "
                "is more than was trained, and batches would be skipped: call it after the last epoch or, "
                "without fragments, where `steps` is a multiple of `sync_every`")
        return self._optimizer.steps

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the rest of the present epoch."""
        epoch, first = self.epoch, self.batch
        order: Any = torch.arange(self._length)
        if self._shuffle:
            order = torch.randperm(self._length, generator=torch.Generator().manual_seed(self._seed * 1_000_003 + epoch))
        whole = self._world_size * self._batch_size
        for batch in range(first, self._batches):
            of_all = order[batch * whole:] if batch == self._batches - 1 else order[batch * whole:(batch + 1) * whole]
            yield of_all[self._rank::self._world_size].tolist()
