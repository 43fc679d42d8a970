"""Parameters that train on the worker for several steps, and the global values that the servers hold of them."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

import torch

from syncline.errors import InvalidArgument
from syncline.session import Session, Tensor
from syncline.torch._local.decoupled import Kept, LateRounds

if TYPE_CHECKING:
    from syncline.torch._local.adaptive import Rider


class Replica:
    """One parameter: the worker's own values, and a copy in host memory of the global values from which they started."""

    def __init__(self, session: Session, name: str, parameter: torch.nn.Parameter) -> None:
        self.name = name
        self.elements = parameter.numel()
        self._parameter = parameter
        self._global = _on_host(parameter).clone().contiguous()
        self._tensor = session.declare(name, self._global, frozen=not parameter.requires_grad)
        self.kept = Kept(session, self._tensor)

    @property
    def tensor(self) -> Tensor:
        """The parameter's tensor in the session."""
        return self._tensor

    def moved(self) -> torch.Tensor:
        """Returns the start of the round minus the present values, which an optimizer takes for a gradient.

        The start is rounded to the parameter's type: the rounding of a BF16 parameter does not count as movement.
        """
        start = self._global.to(self._parameter.dtype).float()  # of an FP32 parameter the session's own memory: read only
        return (start - _on_host(self._parameter)).contiguous()

    def take(self, alpha: float) -> None:
        """Sets the parameter to (1 - `alpha`) times the global values plus `alpha` times its own."""
        own = self._parameter.detach()
        if alpha:
            own.lerp_(self._global.to(own.device, own.dtype), 1 - alpha)
        else:
            own.copy_(self._global)


class Fragment:
    """Replicas that are synchronised together. With `late`, values that were pushed too late go with the next push."""

    def __init__(self, session: Session, replicas: Sequence[Replica], late: Optional[LateRounds]) -> None:
        self._session = session
        self._replicas = replicas
        self._tensors = [replica.tensor for replica in replicas]
        self._late = late
        self.samples = 0  # number of samples trained since the last push
        self.kept_samples = 0  # number of samples in what was pushed too late and is kept
        self._given_samples = 0  # number of samples in the push under way
        self.is_under_way = False  # pushed, and not pulled yet
        self.age = 0  # number of steps since the last push
        self._rider: Optional[Rider] = None

    def carry(self, rider: Rider) -> None:
        """Synchronises another tensor, which is not a parameter, with the replicas."""
        self._rider = rider
        self._tensors.append(rider.tensor)

    def took_step(self, samples: int) -> None:
        """Notes that the worker has trained a step on `samples` samples."""
        self.samples += samples
        self.age += 1

    def push(self) -> None:
        """Sends how far the worker has moved; skips if it has trained nothing."""
        self._given_samples = self.samples + self.kept_samples
        if self._given_samples:
            for replica in self._replicas:
                self._session.push_pull(replica.tensor, self._gradient(replica), self._given_samples)
            if self._rider is not None:
                self._rider.push(self._given_samples)
        else:
            self._session.skip(self._tensors)
        self.samples = self.age = 0
        self.is_under_way = True

    def _gradient(self, replica: Replica) -> torch.Tensor:
        if self._late is None:
            return replica.moved()
        return replica.kept.join(replica.moved(), self.kept_samples / self._given_samples)

    def pull(self, alpha: float = 0) -> None:
        """Waits for the new global values, which the servers make of all workers' pushes, and takes them (see Replica.take)."""
        for replica in self._replicas:
            self._session.wait(replica.tensor)
            replica.take(alpha)
        if self._rider is not None:
            self._rider.pull()
        self.is_under_way = False
        if self._late is not None:
            was_late = self._late.was_late() and self._given_samples > 0
            self.kept_samples = self._given_samples if was_late else 0
            for replica in self._replicas:
                replica.kept.end(was_late)


def cut(session: Session, replicas: Sequence[Replica], count: int, late: Optional[LateRounds] = None) -> list[Fragment]:
    """Returns `count` fragments of neighbouring parameters, of about equal size."""
    if not 1 <= count <= len(replicas):
        raise InvalidArgument(f"fragments={count}: a model of {len(replicas)} trained parameters is cut into 1 to {len(replicas)}")
    total = sum(replica.elements for replica in replicas)
    parts: list[list[Replica]] = [[]]
    seen = 0
    for number, replica in enumerate(replicas):
        is_full = seen * count >= total * len(parts)
        left = len(replicas) - number
        if parts[-1] and len(parts) < count and (is_full or left == count - len(parts)):
            parts.append([])
        parts[-1].append(replica)
        seen += replica.elements
    return [Fragment(session, part, late) for part in parts]


def _on_host(parameter: torch.nn.Parameter) -> torch.Tensor:
    return parameter.detach().to("cpu", torch.float32)
