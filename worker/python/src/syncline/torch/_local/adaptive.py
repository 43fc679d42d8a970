"""Rounds whose length follows the worker's speed, so that all workers' rounds take about as long (worker/client/adaptive_rounds.h)."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from ctypes import byref, c_void_p
from typing import Any, Optional

import torch

from syncline._library import check, library
from syncline.errors import InvalidArgument
from syncline.session import Option, Session, Tensor
from syncline.torch._local.decoupled import mode_text
from syncline.torch._local.rhythm import AgreedRhythm, Every, Rhythm

_NAME = "syncline.rounds"
_ELEMENTS = 512  # SYNCLINE_ROUNDS_ELEMENTS

now = time.perf_counter  # seconds


class AdaptiveRhythm(Rhythm):
    """The lengths of this worker's rounds, and the tensor in which the workers tell each other the time of a step.

    `text` is "adaptive:100" or "adaptive:most=100,least=10". `check_steps` raises if a round cannot have that many steps.
    """

    def __init__(self, text: str, fragments: int, check_steps: Callable[[int], Any]) -> None:
        super().__init__(fragments)
        self._handle = c_void_p()
        check(library().syncline_rounds_new(text.encode(), byref(self._handle)))
        self._most = int(library().syncline_rounds_most(self._handle))
        least = int(library().syncline_rounds_least(self._handle))
        try:
            check_steps(least)
        except InvalidArgument as error:
            raise InvalidArgument(f"rounds of {text!r} have {least} steps at least; say adaptive:most=M,least=L: {error}") from None
        self._pushed = _zeros()
        self._devices: set[torch.device] = set()
        # Time of the steps of this round, without that of synchronisation.
        self._seconds, self._timed_steps = 0.0, 0
        self._since: Optional[float] = None  # when the clock began to run; None: it stands still

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            library().syncline_rounds_free(self._handle)

    def steps(self, number: int) -> int:
        return int(library().syncline_rounds_steps(self._handle))

    def done(self, number: int, taken: int, steps: int) -> int:
        """Counts the steps of the fastest worker: this one's count as if its round had as many."""
        return number * self._most + taken * self._most // steps

    def settings(self, settings: Mapping[str, Option]) -> dict[str, Option]:
        mode = mode_text(settings.get("mode"))
        if mode.partition(":")[0] == "asp":
            raise InvalidArgument(f"mode={mode!r} with adaptive rounds: no worker waits for another, so rounds need not take equally long; "
                                  "say sync_every=H, which may differ between the workers")
        codecs = {way: f"fp32@{_NAME};{settings.get(way) or 'fp32'}" for way in ("push", "publish")}
        return {**settings, **codecs}

    def declare(self, session: Session, parameters: Iterable[torch.Tensor]) -> Rider:
        self._devices = {parameter.device for parameter in parameters if parameter.is_cuda}
        return Rider(self, session, session.declare(_NAME, _zeros(), options="mean=1"))

    # ---- the clock ----

    def took_step(self) -> None:
        """Counts a step. The first one after a pause starts the clock and is not measured: it may load or compile anything."""
        if self._since is None:
            self._since = now()
        else:
            self._timed_steps += 1

    def pause(self) -> None:
        """Stops the clock until the end of the next step: what the program does meanwhile says nothing about its speed."""
        self._since = None

    @contextlib.contextmanager
    def synchronizing(self) -> Iterator[None]:
        """Stops the clock while the worker synchronises, which includes waiting for others."""
        if self._since is not None:
            for device in self._devices:
                torch.cuda.synchronize(device)  # steps that are queued only
            self._seconds += now() - self._since
        is_running, self._since = self._since is not None, None  # after an error the clock stands still
        yield
        if is_running:
            self._since = now()

    def end_round(self, rank: int) -> torch.Tensor:
        """Ends the measurement of a round. Returns what this worker pushes for the tensor."""
        if self._timed_steps and self._seconds > 0:
            check(library().syncline_rounds_note(self._handle, self._timed_steps, self._seconds))
        self._seconds, self._timed_steps = 0.0, 0
        check(library().syncline_rounds_write(self._handle, rank, self._pushed.data_ptr(), _ELEMENTS))
        return self._pushed

    def read(self, rank: int, mean: torch.Tensor) -> None:
        """Reads what the servers made of all workers' pushes. The next round depends on it."""
        check(library().syncline_rounds_read(self._handle, rank, mean.data_ptr(), _ELEMENTS))


def _zeros() -> torch.Tensor:
    return torch.zeros(_ELEMENTS, dtype=torch.float32, device="cpu")


class Rider:
    """The tensor of the rhythm, which is synchronised with the last fragment of each round."""

    def __init__(self, rhythm: AdaptiveRhythm, session: Session, tensor: Tensor) -> None:
        self._rhythm, self._session = rhythm, session
        self.tensor = tensor

    def push(self, samples: int) -> None:
        """Sends this worker's time of a step."""
        self._session.push_pull(self.tensor, self._rhythm.end_round(self._session.rank), samples)

    def pull(self) -> None:
        """Waits for everybody's time of a step, and takes it."""
        self._session.wait(self.tensor)
        self._rhythm.read(self._session.rank, self.tensor.weights)


def rhythm_of(every: Every, fragments: int, check_steps: Callable[[int], Any]) -> Rhythm:
    """Returns the rhythm of a `sync_every`: a text is adaptive, a number or a function is the same on all workers."""
    if isinstance(every, str):
        return AdaptiveRhythm(every, fragments, check_steps)
    return AgreedRhythm(every, fragments, check_steps)
