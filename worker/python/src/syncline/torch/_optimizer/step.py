"""The present step of an Optimizer, and how it ends after an exception between any two lines (Ctrl-C)."""
from __future__ import annotations

from typing import Optional

from syncline.errors import Error
from syncline.session import Session
from syncline.torch._elastic.sampler import ExactlyOnceSampler
from syncline.torch._optimizer.backward import Backward
from syncline.torch._optimizer.check import Check
from syncline.torch._optimizer.weight import Weight


class Step:
    """The step of all weights of a session. It ends when all of them were pushed or skipped. Their gradients are then taken.

    Each action may be repeated without effect, or is checked before. After an exception the next call of `settle` or `end` does the rest.
    """

    def __init__(self, session: Session, weights: list[Weight], backward: Backward, sampler: Optional[ExactlyOnceSampler],
                 check: Optional[Check]) -> None:
        self._session, self._weights, self._backward, self._sampler, self._check = session, weights, backward, sampler, check
        self._skipping: list[Weight] = []
        self.has_ended_one = False
        self.is_ending = False  # a call has begun to end it
        self.is_whole = False  # all tensors were pushed or skipped, and gradients are to be taken
        session.account.skip_codes.clear()

    @property
    def sent(self) -> list[Weight]:
        """The weights whose gradients were pushed."""
        return [weight for weight in self._weights if weight.is_pushed]

    @property
    def is_begun(self) -> bool:
        """Whether any weight was pushed or skipped in it."""
        return any(weight.is_pushed or weight.is_skipped for weight in self._weights)

    def settle(self) -> bool:
        """Records what was done before an exception. Returns True if that completed the step, which then ends."""
        for weight in self._weights:
            if weight.codes:
                weight.settle()
        account = self._session.account
        if account.skip_codes == [0]:
            account.note_late(weight.tensor.id for weight in self._skipping)
            for weight in self._skipping:
                weight.skipped()
        account.skip_codes.clear()
        if not self.is_whole:
            return False
        self.take()
        return True

    def end(self, checked: list[Weight]) -> None:
        """Skips the weights that have no gradient, and ends the step. The check looks at the gradients of `checked`."""
        self.is_ending = True
        self._skipping = rest = [weight for weight in self._weights if not (weight.is_pushed or weight.is_skipped)]
        for weight in rest:
            weight.wait()
        if rest:
            self._session.skip(weight.tensor for weight in rest)
            for weight in rest:
                weight.skipped()
            self._session.account.skip_codes.clear()
        if self._sampler is not None:
            self._sampler.push(self._session)
        if self._check is not None:
            self._check.before_step(self._session, checked)
        self.is_whole = True
        self.take()

    def take(self) -> None:
        """Takes the gradients of a whole step, and lets the check compare."""
        for weight in self._weights:
            weight.end_step()
        if self._sampler is not None:
            self._sampler.pushed(self._session)
        self._backward.is_over()
        self.has_ended_one = True
        self.is_ending = False
        try:
            if self._check is not None:
                self._check.after_step(self._session, self._weights)
        except Error:
            self.is_whole = False
            raise
        self.is_whole = False
