"""Requests of a host's ranks that their leader passes to the servers: optimizer state, averages, statistics, barriers and losses."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable

import torch

from syncline.errors import DataLoss, ResourceExhausted
from syncline.session import Session, Tensor
from syncline.torch._host import wire
from syncline.torch._host.rank_connection import RankConnection

Post = Callable[[Callable[[], None]], None]
_MOST_QUESTIONS = 256  # unanswered questions of one rank; each takes a thread


def _raise(error: Exception) -> None:
    raise error


class Requests:
    """Answers the questions of the ranks. `post` runs a function on the hub's listening thread.

    Requests that may block run on threads of their own, and their answers are sent through `post`. All methods are called on the
    listening thread.
    """

    def __init__(self, session: Session, tensors: Sequence[Tensor], post: Post) -> None:
        self._session, self._tensors, self._post = session, tensors, post
        self._losses: dict[int, tuple[float, int]] = {}  # by rank, all of step _losses_step: loss and samples
        self._losses_step = -1
        self._at_barrier: dict[int, tuple[RankConnection, int]] = {}  # by rank: its connection, and the number of its question

    def take(self, connection: RankConnection, said: Any, descriptors: list[int]) -> None:
        """Takes a question. Raises DataLoss for a malformed one. Removes from `descriptors` those that it takes over."""
        what, number = said["what"], said["id"]
        if what == "loss":
            return self._take_loss(connection.rank, said)
        if connection.questions >= _MOST_QUESTIONS:
            raise DataLoss(f"a rank of this host asks {connection.questions} questions at once")
        if what == "barrier":
            self._at_barrier[connection.rank] = (connection, number)
            return
        if what == "stats":
            return self._in_thread([(connection, number)], self._stats)
        if what not in ("state", "average") or len(descriptors) != 1:
            raise DataLoss(f"a rank of this host asks for {str(what)[:50]!r}, which does not exist")
        tensor = self._tensors[said["tensor"]]
        out = wire.Region(wire.array_of(tensor.memory), descriptors.pop())
        self._in_thread([(connection, number)], lambda: self._pull(said, tensor, out.tensor(0)))

    def look(self, ranks: Sequence[int]) -> None:
        """Passes on the barrier if all `ranks` are at it, and reports the loss if all `ranks` have told theirs."""
        if self._at_barrier and all(rank in self._at_barrier for rank in ranks):
            waiting, self._at_barrier = list(self._at_barrier.values()), {}
            self._in_thread(waiting, lambda: self._session.barrier())
        if self._losses and all(rank in self._losses for rank in ranks):
            self.tell_loss()

    def forget(self, rank: int) -> None:
        """Removes a rank that is gone from the barrier."""
        self._at_barrier.pop(rank, None)

    def tell_loss(self) -> None:
        """Reports the mean loss, weighted by samples, of the ranks that have told theirs."""
        known, self._losses = list(self._losses.values()), {}
        total = sum(samples for _, samples in known)
        if total:
            mean = sum(loss * samples for loss, samples in known) / total
            self._session.report_loss(mean, self._losses_step, min(total, 2**32 - 1))

    def _take_loss(self, rank: int, said: Any) -> None:
        loss, step, samples = float(said["loss"]), int(said["step"]), int(said["samples"])
        if not (0 <= step < 2**64 and 0 < samples < 2**32):
            raise DataLoss(f"a rank of this host reports the loss of {samples} samples in step {step}")
        if step != self._losses_step or rank in self._losses:
            self.tell_loss()
        self._losses_step = step
        self._losses[rank] = (loss, samples)

    def _stats(self) -> dict[str, int]:
        stats = self._session.stats
        return {"epoch": stats.epoch, "members": stats.members}

    def _pull(self, said: Any, tensor: Tensor, out: torch.Tensor) -> Any:
        if said["what"] == "average":
            return self._session.pull_average(tensor, out, said["timeout"])
        return self._session.pull_state(tensor, said["array"], out, said["timeout"])

    def _in_thread(self, asking: list[tuple[RankConnection, int]], work: Callable[[], Any]) -> None:
        for connection, _ in asking:
            connection.questions += 1

        def run(work: Callable[[], Any]) -> None:
            try:
                answer, error = work(), None
            except Exception as failed:
                answer, error = None, wire.failure(failed)[1:].decode()
            for connection, number in asking:
                message = wire.record(wire.ANSWER, id=number, value=answer, error=error)
                self._post(lambda connection=connection, message=message: connection.answer(message))  # type: ignore[misc]

        try:
            threading.Thread(target=run, args=(work,), name="syncline-host-request", daemon=True).start()
        except RuntimeError as failed:  # too many threads; the question fails, the host goes on
            reason = ResourceExhausted(f"the leader of this host cannot ask the servers: {failed}")
            run(lambda: _raise(reason))
