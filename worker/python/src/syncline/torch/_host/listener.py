"""The messages between a rank and its host's leader, from the rank's side. `_host/session.py` builds the rank's session on them."""
from __future__ import annotations

import socket
import threading
import time
from typing import Any, Optional

from syncline._calls import Calls
from syncline.errors import DataLoss, DeadlineExceeded, Dropped, Error, FailedPrecondition, JobOver, SessionClosed
from syncline.session import Session
from syncline.torch._host import wire
from syncline.torch._host.hub import PATIENCE
from syncline.torch._host.place import HostPlace

_SLICE_S = 0.1


class NotWelcome(Exception):
    """The leader closed the connection before it let this rank in: it has ended or is about to leave, and another leader may follow."""


class Listener(Session):
    """The part of a HostSession that sends and reads messages. Any thread that waits for a message reads for all threads."""

    def _listen(self, place: HostPlace, patience: float) -> None:
        self._place, self._patience = place, patience
        self._calls = Calls()
        self._calls.why_closed = "with local aggregation a session has no such call"
        self._layout = wire.Layout([])
        self._link: Optional[wire.Link] = None
        self._is_greeted = False  # whether the present leader has sent anything yet
        self._weights_region: Optional[wire.Region] = None
        self._life = 0  # number of times that this rank has left the others of its host to join them again
        self._joins: Optional[int] = None  # thread that is joining: meanwhile no other one may send or read; None: none is
        self._closed = ""
        self._failure: Optional[Error] = None
        self._first = 0  # the step in which this rank joined
        self._arrived: dict[int, int] = {}  # by tensor: number of steps since _first whose weights are there
        self._ended, self._scale = 0, 1.0  # number of steps since _first whose weights are all there; the loss scale after them
        self._questions, self._answers = 0, dict[int, Any]()
        self._lock = threading.RLock()  # held by the thread that reads messages

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(self._closed)
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_joined(self, life: int) -> None:
        """Raises if this rank has left the others since `life` was read, or if another thread is joining: waiting is then in vain."""
        if life != self._life or self._joins not in (None, threading.get_ident()):
            raise FailedPrecondition("another thread is joining this rank to the others of its host (start() or "
                                     "rejoin()): call again once it has joined")

    def _fail(self, error: Error) -> None:
        raise self._failed(error)

    def _failed(self, error: Error) -> Error:
        self._failure = error
        is_over = isinstance(error, JobOver)  # then the job's name is over for the whole program (_names.py)
        self._calls.is_lost, self._calls.was_in_job = not is_over, self._calls.was_in_job or is_over
        return error

    def _send(self, message: bytes, *descriptors: int) -> None:
        life, link = self._life, self._link  # another thread may rejoin meanwhile; this link is closed then
        self._check_open()
        self._check_joined(life)
        if link is None:
            raise FailedPrecondition("the session is not started")
        heard = time.monotonic()
        while True:
            try:
                return link.send(message, descriptors)
            except socket.timeout:  # the leader is not reading at the moment
                is_over = False
            except OSError:
                is_over = True
            # Outside of the handlers, so that the broken pipe does not appear as the error's context.
            if is_over:
                return self._read_why(life)
            with self._lock:
                self._check_joined(life)
                heard = time.monotonic() if self._read() else heard
            self._check_heard(heard)

    def _await(self, is_there: Any, deadline: Optional[float], what: str, life: Optional[int] = None) -> None:
        """Reads messages until `is_there` returns True. No single call blocks for long, so that Python can handle signals.

        Raises DeadlineExceeded after `deadline` (None: none), and Dropped if the leader has been silent for too long.
        """
        heard = time.monotonic()
        life = self._life if life is None else life
        while True:
            with self._lock:
                self._check_open()
                self._check_joined(life)
                if is_there():
                    return
                if self._read():
                    heard = time.monotonic()
                    continue
            if deadline is not None and time.monotonic() >= deadline:
                raise DeadlineExceeded(f"timed out waiting for {what}")
            self._check_heard(heard)

    def _check_heard(self, last: float) -> None:
        silent = time.monotonic() - last
        if silent > PATIENCE * self._patience:
            self._fail(Dropped(f"rank {self._place.rank_of(0)}, which sends for all ranks of this host, has sent "
                               f"nothing for {silent:.0f} s: it hangs, or was stopped; start this rank again"))

    def _read_why(self, life: Optional[int] = None) -> None:
        """The connection is over, or is about to be: the last message says why."""
        self._await(lambda: False, time.monotonic() + PATIENCE * self._patience, "the reason why the host's leader ended", life)

    def _read(self) -> bool:
        """Reads one message and returns True, or returns False if none comes within _SLICE_S."""
        if self._link is None:
            raise FailedPrecondition("the session is not started")
        try:
            if not self._link.has_news(_SLICE_S):
                return False
            message, descriptors = self._link.receive()
        except DataLoss as error:
            self._fail(error)
        except (OSError, ValueError):
            self._check_open()  # a signal handler may have closed the session meanwhile
            message, descriptors = b"", []
        if not message and self._weights_region is None:
            raise NotWelcome
        if not message:
            self._fail(Dropped(f"rank {self._place.rank_of(0)}, which sends for all ranks of this host, is gone, and its session with it: start "
                               "this rank again, as `syncline run --max-restarts` does"))
        self._is_greeted = True
        try:
            self._take(message, descriptors)
        except (LookupError, TypeError, ValueError, ArithmeticError, DataLoss) as error:
            if error is self._failure:  # the message was a FAILED
                raise
            self._fail(DataLoss(f"rank {self._place.rank_of(0)}, which sends for all ranks of this host, sent an "
                                f"invalid message: {error!r}"))
        finally:
            wire.close_all(descriptors)
        return True

    def _take(self, message: bytes, descriptors: list[int]) -> None:
        kind, said = wire.parse(message)
        if kind == wire.VIEW:
            self._arrived[said[0]] = said[1] + 1 - self._first
        elif kind == wire.END:
            self._ended, self._scale = said[0] + 1 - self._first, said[1]
        elif kind == wire.WELCOME:
            self._first, self._scale = int(said["step"]), float(said["loss_scale"])
            self._weights_region = wire.Region(self._layout, descriptors.pop())
        elif kind == wire.ANSWER:
            self._answers[said["id"]] = said
        elif kind == wire.FAILED:
            raise self._failed(wire.error_in(said))

    def _inquire(self, what: str, *descriptors: int, timeout: Optional[float] = None, deadline: Optional[float] = None, **fields: Any) -> Any:
        with self._lock:
            self._questions += 1
            number, life = self._questions, self._life
        self._send(wire.record(wire.ASK, what=what, id=number, timeout=timeout, **fields), *descriptors)
        answer: Any = None

        def is_answered() -> bool:
            nonlocal answer
            answer = self._answers.pop(number, None)
            return answer is not None

        self._await(is_answered, deadline, f"the {what} of all ranks of this host and the other hosts", life)
        if answer["error"] is not None:
            raise wire.error_in(wire.parse(bytes([wire.FAILED]) + answer["error"].encode())[1])
        return answer["value"]
