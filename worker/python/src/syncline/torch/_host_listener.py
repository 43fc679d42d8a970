"""What a rank hears of its host's leader, and says to it (`_host_session.py` is all of its session)."""
from __future__ import annotations

import socket
import threading
import time
from typing import Any, Optional

from syncline._calls import Calls
from syncline.errors import DataLoss, DeadlineExceeded, Dropped, Error, FailedPrecondition, SessionClosed
from syncline.session import Session
from syncline.torch import _host_wire as wire
from syncline.torch._host_hub import PATIENCE
from syncline.torch._host_place import HostPlace

_SLICE_S = 0.1


class NotWelcome(Exception):
    """The leader's connection ended before it let this rank in: it has died, or is about to leave, and another one may come."""


class Listener(Session):
    """The part of a HostSession that reads messages, whichever of its threads waits for one."""

    def _listen(self, place: HostPlace, patience: float) -> None:
        self._place, self._patience = place, patience
        self._calls = Calls()
        self._calls.why_closed = "with local aggregation a session has no such call"
        self._layout = wire.Layout([])
        self._link: Optional[wire.Link] = None
        self._is_greeted = False  # by whoever leads now
        self._weights_region: Optional[wire.Region] = None
        self._life = 0  # how often it has left the others of its host
        self._joins: Optional[int] = None  # the thread that waits to be let in: until then messages are its business alone
        self._closed = ""
        self._failure: Optional[Error] = None
        self._first = 0  # the step that this rank joined at
        self._arrived: dict[int, int] = {}  # by tensor: steps since then whose weights are there
        self._ended, self._scale = 0, 1.0  # steps whose weights all have arrived; the loss scale after them
        self._questions, self._answers = 0, dict[int, Any]()
        self._lock = threading.RLock()  # who reads messages

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed(self._closed)
        if self._failure is not None:
            raise self._failure.with_traceback(None)

    def _check_joined(self, life: int) -> None:
        """What is asked for and waited for ends with the life in which it was."""
        if life != self._life or self._joins not in (None, threading.get_ident()):
            raise FailedPrecondition("another thread has this rank join the others of its host meanwhile (start() or rejoin()): call again once it "
                                     "has joined")

    def _fail(self, error: Error) -> None:
        raise self._failed(error)

    def _failed(self, error: Error) -> Error:
        self._failure = error
        self._calls.is_lost = True
        return error

    def _send(self, message: bytes, *descriptors: int) -> None:
        life, link = self._life, self._link  # a later one of another thread is closed, or has let this rank in
        self._check_open()
        self._check_joined(life)
        if link is None:
            raise FailedPrecondition("the session is not started")
        heard = time.monotonic()
        while True:
            try:
                return link.send(message, descriptors)
            except socket.timeout:  # the leader does not read now
                is_over = False
            except OSError:
                is_over = True
            # Outside of the handlers: how the pipe broke says nobody anything.
            if is_over:
                return self._read_why(life)
            with self._lock:
                self._check_joined(life)
                heard = time.monotonic() if self._read() else heard
            self._check_heard(heard)

    def _await(self, is_there: Any, deadline: Optional[float], what: str, life: Optional[int] = None) -> None:
        """Reads messages until it is there. So that Python handles signals, no call blocks for long."""
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
                raise DeadlineExceeded(f"waited in vain for {what}")
            self._check_heard(heard)

    def _check_heard(self, last: float) -> None:
        silent = time.monotonic() - last
        if silent > PATIENCE * self._patience:
            self._fail(Dropped(f"rank {self._place.rank_of(0)}, which sends for all ranks of this host, has said nothing for {silent:.0f} s: it hangs, "
                               "or was stopped; start this rank again"))

    def _read_why(self, life: Optional[int] = None) -> None:
        """The connection is over, or is about to be: the last message says why."""
        self._await(lambda: False, time.monotonic() + PATIENCE * self._patience, "what the host's leader has to say of its end", life)

    def _read(self) -> bool:
        """One message, if one comes soon."""
        if self._link is None:
            raise FailedPrecondition("the session is not started")
        try:
            if not self._link.has_news(_SLICE_S):
                return False
            message, descriptors = self._link.receive()
        except DataLoss as error:
            self._fail(error)
        except (OSError, ValueError):
            self._check_open()  # a handler of a signal may have closed the session meanwhile
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
            if error is self._failure:  # which the message brought
                raise
            self._fail(DataLoss(f"a message of rank {self._place.rank_of(0)}, which sends for all ranks of this host, is none of ours: {error!r}"))
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
