"""A sampler that makes each sample of an epoch count exactly once, whichever workers join, leave and die."""
from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, Optional, Union

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session, Tensor
from syncline.torch._elastic.books import Books, Page

if TYPE_CHECKING:
    from syncline.torch._optimizer.optimizer import Optimizer

_NAME = "syncline.samples"
_MODE = "bsp:whole=1"


class ExactlyOnceSampler(torch.utils.data.Sampler):
    """Yields batches of indices. Each batch of an epoch counts in exactly one step, by one worker; the servers keep the books.

        sampler = syncline.torch.elastic.ExactlyOnceSampler(dataset, batch_size=32)
        optimizer = syncline.torch.Optimizer(model, "adamw", lr=1e-3, sampler=sampler)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler, num_workers=2)
        while sampler.epoch < 10:
            for inputs, labels in sampler.batches(loader):
                optimizer.zero_grad()
                loss(model(inputs), labels).backward()
                optimizer.step()        # one for each batch

    If a worker read a batch and its gradient came into no step, because the worker died or was too late, another worker trains that
    batch. A worker that joins or comes back takes its share of the remaining batches from the step after its first one on. All workers
    must give the same arguments.

    `data` is the data set, or its length. The last batch of an epoch is smaller if the samples do not divide, or is left out with
    `drop_last`; nothing is padded. In the last steps of an epoch there may be fewer batches than workers; the workers without a batch
    wait. The order is drawn from `seed` and the epoch's number. Ranks must be below `max_workers`.

    With a quorum or mode "bsp:whole=1", which is the Optimizer's default with a sampler, the promise holds for all weights alike. In
    plain "bsp", the batch of a worker that dies in the middle of a step may count in some tensors and not in others.
    """

    def __init__(self, data: Union[Sized, int], batch_size: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False,
                 max_workers: int = 64) -> None:
        self._length = data if isinstance(data, int) else len(data)
        if batch_size < 1 or self._length < (batch_size if drop_last else 1) or max_workers < 1:
            raise InvalidArgument(
                f"{self._length} samples in batches of {batch_size} for up to {max_workers} workers, "
                f"drop_last={drop_last}: there must be at least one batch and one worker")
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._books = Books((self._length if drop_last else self._length + batch_size - 1) // batch_size, max_workers)
        self._optimizer: Optional[Optimizer] = None
        self._tensor: Optional[Tensor] = None
        self._page: Optional[Page] = None  # of the present step; None: not read yet
        self._order: tuple[int, torch.Tensor] = (-1, torch.empty(0))
        self._expected: deque[int] = deque()  # batches that the loader was given and has not returned
        self._has_batch = False  # whether the program has a batch for which step() was not called yet

    # ---- for the Optimizer ----

    @staticmethod
    def settings(settings: Mapping[str, Option]) -> dict[str, Option]:
        """Returns the settings of a session, completed by what the books need."""
        mode = settings.get("mode") or os.environ.get("SYNCLINE_MODE") or _MODE
        if str(mode).partition(":")[0] != "bsp":
            raise InvalidArgument(
                f"mode={mode!r} with sampler=: workers that run ahead cannot know what counted; use {_MODE}, or "
                "ElasticDistributedSampler")
        if int(settings.get("accumulate_steps") or 1) != 1:
            raise InvalidArgument("accumulate_steps with sampler=: a step is one batch; accumulate its parts in no_sync()")
        codecs = {way: f"fp32@{_NAME};{settings.get(way) or 'bf16'}" for way in ("push", "publish")}
        return {**settings, "mode": mode, **codecs}

    def declare(self, optimizer: Optimizer, session: Session) -> None:
        """Declares the books as a tensor of the session."""
        if session.rank >= self._books.workers:
            raise InvalidArgument(f"rank {session.rank}: the sampler has max_workers={self._books.workers}")
        self._optimizer = optimizer
        numbers = self._books.first(min(session.world_size, self._books.workers))
        self._tensor = session.declare(_NAME, numbers, options="mean=1")
        self._page, self._has_batch = None, False

    def push(self, session: Session) -> None:
        """Pushes the books of this step. The Optimizer calls it once all gradients were pushed or skipped."""
        assert self._tensor is not None
        if session.account.codes[self._tensor.id] == [0]:  # in a call of this step that an exception ended
            session.account.note_late([self._tensor.id])
        else:
            page = self._read()
            session.push_pull(self._tensor, self._books.written(page, session.rank, self._has_batch))
        self._page, self._has_batch = None, False

    def pushed(self, session: Session) -> None:
        """The Optimizer knows that it was: the next push is of another step."""
        assert self._tensor is not None
        session.account.codes[self._tensor.id].clear()

    # ---- for the program ----

    @property
    def epoch(self) -> int:
        """The present epoch, from 0. Waits until the step before has ended."""
        return self._read().epoch

    @property
    def left(self) -> int:
        """Number of batches of the present epoch that have not counted yet."""
        return len(self._read().left)

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, of all workers together."""
        return self._books.batches

    def batches(self, loader: torch.utils.data.DataLoader[Any]) -> Iterator[Any]:
        """Yields what `loader` makes of this worker's batches until the epoch ends. Call optimizer.step() after each of them.

        When a worker joins or leaves, batches that the loader's processes have loaded ahead are dropped, and are read again by the
        workers that they belong to then.
        """
        if getattr(loader, "batch_sampler", None) is not self:
            raise InvalidArgument("batches(loader): the loader must use this sampler, DataLoader(data, "
                                  "batch_sampler=sampler)")
        optimizer = self._bound()
        epoch = self.epoch
        self._has_batch = False
        loaded: Iterator[Any] = iter(())
        self._expected.clear()
        while self.epoch == epoch:
            mine = self._read().of(optimizer.rank)
            if not mine:
                optimizer.step_without_gradients()
                continue
            if not self._expected or self._expected[0] != mine[0]:
                loaded = iter(loader)
            batch = next(loaded)
            self._expected.popleft()
            self._has_batch = True
            yield batch
            if self._has_batch:
                raise FailedPrecondition(
                    "the next batch was requested before optimizer.step() had ended the last one; call step() "
                    "once for each batch, without a backward if the batch is left out, and accumulate over "
                    "parts of a batch")

    def __iter__(self) -> Iterator[list[int]]:
        """Yields the indices of this worker's batches, as far as they are known now. The loader calls it."""
        page = self._read()
        mine = page.of(self._bound().rank)
        self._expected = deque(mine)
        order = self._order_of(page.epoch)
        return (order[batch * self._batch_size:(batch + 1) * self._batch_size].tolist() for batch in mine)

    def _bound(self) -> Optimizer:
        if self._optimizer is None:
            raise FailedPrecondition("the sampler belongs to no Optimizer yet: syncline.torch.Optimizer(model, …, sampler=sampler)")
        return self._optimizer

    def _read(self) -> Page:
        session = self._bound().session
        if self._page is None:
            assert self._tensor is not None
            session.wait(self._tensor)
            self._page = self._books.read(self._tensor.weights)
        return self._page

    def _order_of(self, epoch: int) -> torch.Tensor:
        if self._order[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order = torch.randperm(self._length, generator=generator) if self._shuffle else torch.arange(self._length)
            self._order = (epoch, order)
        return self._order[1]
