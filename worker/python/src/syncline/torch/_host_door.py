"""Where the leader of a host listens, as its ranks come there: until it takes one in, or is known not to do so any more."""
from __future__ import annotations

import time
from typing import Callable, Optional

from syncline import _log
from syncline.errors import DeadlineExceeded, Dropped
from syncline.torch import _host_wire as wire

_LOOK_AGAIN_S = 0.02
_SAY_AFTER_S, _SAY_EVERY_S = 3.0, 10.0
_SEND_AGAIN_S = 1.0


class Waits:
    """Says now and then what is waited for, as sessions do."""

    def __init__(self, say_every_s: float = _SAY_EVERY_S) -> None:
        self._every = say_every_s
        self._began = time.monotonic()
        self._next = self._began + min(_SAY_AFTER_S, say_every_s)

    def say(self, what: str) -> None:
        """Where it is time to."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            _log.logger.info("local aggregation: waiting for %s, %.0f s", what, now - self._began)


class Door:
    """Of one rank that wants to be let in. `leader` is the leader's rank in the job, `known` its process, where that was met in an earlier life.

    `check_hub` raises where the leader is this process, and listens no more.
    """

    def __init__(self, address: bytes, leader: int, deadline: float, check_hub: Callable[[], None] = lambda: None,
                 known: Optional[wire.Process] = None) -> None:
        self._address, self._leader, self._deadline, self._check_hub = address, leader, deadline, check_hub
        self._met = [] if known is None else [known]  # who opened it last
        self._waits = Waits()

    def connect(self) -> wire.Link:
        """Waits for the leader. Dropped where one that was met has died meanwhile, DeadlineExceeded where none comes in time."""
        while True:
            try:
                link = wire.connect(self._address)
                link.socket.settimeout(_SEND_AGAIN_S)
                self._met = [wire.Process(link.process)]
                return link
            except OSError as error:
                self.check(str(error))
            time.sleep(_LOOK_AGAIN_S)

    def forget(self) -> None:
        """Who was met has said nothing: it may have been about to die, as the one whose end is known already."""
        self._met.clear()

    def check(self, why: str) -> None:
        """Whether to come again: it was shut for that reason."""
        self._check_hub()
        if any(process.has_ended for process in self._met):
            raise Dropped(f"rank {self._leader}, which sends for all ranks of this host, ended before it had let this rank in: see what it said "
                          "(process {}); start this rank again, as `syncline run --max-restarts` does".format(self._met[0].number))
        if time.monotonic() > self._deadline:
            raise DeadlineExceeded(f"rank {self._leader}, which sends for all ranks of this host, was not met in time ({why}): has its process "
                                   "ended, or does it run without local aggregation?")
        self._waits.say(f"rank {self._leader}, which sends for all ranks of this host ({why})")
