"""Connects a rank to the leader of its host. It tries until the leader accepts it, the leader is known to have ended, or time is up."""
from __future__ import annotations

import time
from typing import Callable, Optional

from syncline import _log
from syncline.errors import DeadlineExceeded, Dropped
from syncline.torch._host import wire

_LOOK_AGAIN_S = 0.02
_SAY_AFTER_S, _SAY_EVERY_S = 3.0, 10.0
_SEND_AGAIN_S = 1.0


class WaitLog:
    """Logs from time to time what this process is waiting for, as sessions do: first after three seconds, then every `say_every_s`."""

    def __init__(self, say_every_s: float = _SAY_EVERY_S) -> None:
        self._every = say_every_s
        self._began = time.monotonic()
        self._next = self._began + min(_SAY_AFTER_S, say_every_s)

    def say(self, what: str) -> None:
        """Logs `what` if the next line is due, and does nothing otherwise."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._every
            _log.logger.info("local aggregation: waiting for %s, %.0f s", what, now - self._began)


class LeaderConnector:
    """Connects one rank to the leader of its host. `leader` is the leader's rank in the job.

    `known` is the leader's process if this rank was connected to it before. `check_hub` raises if this process is itself the leader
    and no longer listens.
    """

    def __init__(self, address: bytes, leader: int, deadline: float, check_hub: Callable[[], None] = lambda: None,
                 known: Optional[wire.Process] = None) -> None:
        self._address, self._leader, self._deadline, self._check_hub = address, leader, deadline, check_hub
        self._met = [] if known is None else [known]  # the process that accepted the last connection; empty: none is known
        self._waits = WaitLog()

    def connect(self) -> wire.Link:
        """Waits until the leader accepts a connection, and returns it.

        Raises Dropped if a leader that was met has ended, DeadlineExceeded after the deadline.
        """
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
        """Forgets the leader that was met. It closed the connection without a message, so it may be an old leader that was about to
        exit, whose end says nothing about the present one."""
        self._met.clear()

    def check(self, why: str) -> None:
        """Returns if the rank should try again after an attempt that failed because of `why`; raises as `connect` does otherwise."""
        self._check_hub()
        if any(process.has_ended for process in self._met):
            raise Dropped(f"rank {self._leader}, which sends for all ranks of this host, ended before it let this rank in: see its output "
                          "(process {}); start this rank again, as `syncline run --max-restarts` does".format(self._met[0].number))
        if time.monotonic() > self._deadline:
            raise DeadlineExceeded(f"rank {self._leader}, which sends for all ranks of this host, could not be "
                                   f"reached in time ({why}): has its process ended, or does it run without "
                                   "local aggregation?")
        self._waits.say(f"rank {self._leader}, which sends for all ranks of this host ({why})")
