"""What ranks of a host ask the servers for through their leader: states, averages, figures, a barrier, and that their loss be told."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Callable

import torch

from syncline.errors import DataLoss, ResourceExhausted
from syncline.session import Session, Tensor
from syncline.torch import _host_wire as wire
from syncline.torch._host_guest import Guest

Post = Callable[[Callable[[], None]], None]
_MOST_QUESTIONS = 256  # of a rank, each of them a thread


def _raise(error: Exception) -> None:
    raise error


class Requests:
    """Those that may block run in threads of their own; answers are sent by the thread that `post` hands them to."""

    def __init__(self, session: Session, tensors: Sequence[Tensor], post: Post) -> None:
        self._session, self._tensors, self._post = session, tensors, post
        self._losses: dict[int, tuple[float, int]] = {}  # by rank, of one step
        self._losses_step = -1
        self._at_barrier: dict[int, tuple[Guest, int]] = {}  # by rank: who, and the number of its question

    def take(self, guest: Guest, said: Any, descriptors: list[int]) -> None:
        """A question. DataLoss for one that nobody asks. What it takes of the descriptors is gone from the list."""
        what, number = said["what"], said["id"]
        if what == "loss":
            return self._take_loss(guest.rank, said)
        if guest.questions >= _MOST_QUESTIONS:
            raise DataLoss(f"a rank of this host asks {guest.questions} questions at once")
        if what == "barrier":
            self._at_barrier[guest.rank] = (guest, number)
            return
        if what == "stats":
            return self._in_thread([(guest, number)], self._stats)
        if what not in ("state", "average") or len(descriptors) != 1:
            raise DataLoss(f"a rank of this host asks for {str(what)[:50]!r}, which there is not")
        tensor = self._tensors[said["tensor"]]
        out = wire.Region(wire.array_of(tensor.memory), descriptors.pop())
        self._in_thread([(guest, number)], lambda: self._pull(said, tensor, out.tensor(0)))

    def look(self, ranks: Sequence[int]) -> None:
        """Ends the barrier and tells the loss, if all these ranks have come to it."""
        if self._at_barrier and all(rank in self._at_barrier for rank in ranks):
            waiting, self._at_barrier = list(self._at_barrier.values()), {}
            self._in_thread(waiting, lambda: self._session.barrier())
        if self._losses and all(rank in self._losses for rank in ranks):
            self.tell_loss()

    def forget(self, rank: int) -> None:
        """It is gone."""
        self._at_barrier.pop(rank, None)

    def tell_loss(self) -> None:
        """That of the step of which some are known: the mean of all samples."""
        known, self._losses = list(self._losses.values()), {}
        total = sum(samples for _, samples in known)
        if total:
            mean = sum(loss * samples for loss, samples in known) / total
            self._session.report_loss(mean, self._losses_step, min(total, 2**32 - 1))

    def _take_loss(self, rank: int, said: Any) -> None:
        loss, step, samples = float(said["loss"]), int(said["step"]), int(said["samples"])
        if not (0 <= step < 2**64 and 0 < samples < 2**32):
            raise DataLoss(f"a rank of this host tells the loss of {samples} samples in step {step}")
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

    def _in_thread(self, asking: list[tuple[Guest, int]], work: Callable[[], Any]) -> None:
        for guest, _ in asking:
            guest.questions += 1

        def run(work: Callable[[], Any]) -> None:
            try:
                answer, error = work(), None
            except Exception as failed:
                answer, error = None, wire.failure(failed)[1:].decode()
            for guest, number in asking:
                message = wire.record(wire.ANSWER, id=number, value=answer, error=error)
                self._post(lambda guest=guest, message=message: guest.answer(message))  # type: ignore[misc]

        try:
            threading.Thread(target=run, args=(work,), name="syncline-host-request", daemon=True).start()
        except RuntimeError as failed:  # there are too many; that is no reason to end the host
            reason = ResourceExhausted(f"the leader of this host cannot ask the servers: {failed}")
            run(lambda: _raise(reason))
