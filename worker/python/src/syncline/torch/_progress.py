"""A progress bar around the batches of a training loop, with figures of the session. It uses tqdm if that is installed."""
from __future__ import annotations

import contextlib
import operator
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, Optional, Protocol, TypeVar

from syncline._report import Pace
from syncline.errors import SessionClosed
from syncline.session import Session

Batch = TypeVar("Batch")

_LOOK_EVERY_S = 1.0  # how often a bar's figures are read
_FIRST_LINE_S, _LONGEST_PAUSE_S = 5.0, 300.0


class Joined(Protocol):
    """An Optimizer, a LocalSGD or what wrap() returns."""

    @property
    def session(self) -> Session:
        """Its session."""

    @property
    def steps(self) -> int:
        """The job's step."""

    @property
    def rank(self) -> int:
        """This worker's rank."""


def progress(batches: Iterable[Batch], optimizer: Joined, show: Optional[bool] = None) -> Iterator[Batch]:
    """Yields the batches, and shows on rank 0 how far the loop is, on standard error.

        for inputs, labels in syncline.torch.progress(loader, optimizer):
            ...

    Beside the number of batches it shows the job's step; samples per second of this worker, if `samples=` says how many a step has; how
    much smaller pushes are than FP32; the share of the time in which this worker waits for the others; and for which worker they wait,
    if one has been slower than the others for some time.

    In a terminal or a notebook this is a bar if tqdm is installed, otherwise lines at growing intervals. `show` is None: nothing is shown
    if standard error is anything else. True: lines are printed there, too. False: nothing is shown.
    """
    is_watched = sys.stderr.isatty() or "ipykernel" in sys.modules
    if optimizer.rank != 0 or not (is_watched if show is None else show):
        yield from batches
        return
    total = operator.length_hint(batches) or None
    shown = (_bar(optimizer, total) if is_watched else None) or _Lines(optimizer, total)
    try:
        for batch in batches:
            yield batch
            shown.advance()
        shown.look()  # not where the program leaves the loop, perhaps by an exception, whose message is the last thing to be seen
    finally:
        shown.close()


class _Figures:
    """The session's figures in words."""

    def __init__(self, optimizer: Joined) -> None:
        self._optimizer = optimizer
        self._pace = Pace(*optimizer.session.figures(), optimizer.session.members_are)

    def words(self) -> str:
        """Returns the figures since the last call; "" once the session is closed."""
        with contextlib.suppress(SessionClosed):
            return f"step {self._optimizer.steps}{self._pace.words(*self._optimizer.session.figures())}"
        return ""


class _Lines:
    """Prints lines: the first after five seconds, the next ones after half of the time that has passed, five minutes at most."""

    def __init__(self, optimizer: Joined, total: Optional[int]) -> None:
        self._figures = _Figures(optimizer)
        self._of = "" if total is None else f" of {total}"
        self._count = 0
        self._began = time.monotonic()
        self._next = self._began + _FIRST_LINE_S

    def advance(self) -> None:
        """Counts a batch."""
        self._count += 1
        if time.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Prints a line."""
        now = time.monotonic()
        parts = [f"batch {self._count}{self._of} after {now - self._began:.0f} s", self._figures.words()]
        print("syncline:", ", ".join(filter(None, parts)), file=sys.stderr, flush=True)
        self._next = now + min(max(_FIRST_LINE_S, (now - self._began) / 2), _LONGEST_PAUSE_S)

    def close(self) -> None:
        """Does nothing."""


class _Bar:
    """A bar of tqdm."""

    def __init__(self, optimizer: Joined, bar: Any) -> None:
        self._figures, self._bar = _Figures(optimizer), bar
        self._next = time.monotonic() + _LOOK_EVERY_S

    def advance(self) -> None:
        """Counts a batch."""
        if time.monotonic() >= self._next:
            self.look()
        self._bar.update()

    def look(self) -> None:
        """Shows the figures."""
        self._bar.set_postfix_str(self._figures.words())
        self._next = time.monotonic() + _LOOK_EVERY_S

    def close(self) -> None:
        """Leaves the bar where it is."""
        self._bar.close()


def _bar(optimizer: Joined, total: Optional[int]) -> Optional[_Bar]:
    try:
        from tqdm.auto import tqdm  # type: ignore[import]
    except ImportError:
        return None
    return _Bar(optimizer, tqdm(total=total, unit="batch", dynamic_ncols=True))
