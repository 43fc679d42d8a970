"""A rank's place in a job whose members are hosts: what a Session is, but gradients go to the host's leader (`_host_hub.py`)."""
from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Optional, Union

import torch

from syncline import _log, _names, _staging, session as sessions
from syncline._calls import Calls
from syncline._durations import seconds_of
from syncline._library import FLOAT32, Options
from syncline._memory import memory_of
from syncline._report import PHASES, Stats
from syncline.errors import DataLoss, DeadlineExceeded, Dropped, Error, FailedPrecondition, InvalidArgument, SessionClosed
from syncline.session import Option, Session, Tensor
from syncline.torch import _host_wire as wire
from syncline.torch._host_door import Door
from syncline.torch._host_hub import Hub, Setup
from syncline.torch._host_listener import Listener, NotWelcome
from syncline.torch._host_place import HostPlace, place_of

_LOOK_AGAIN_S = 0.02
_CLOSED = "the session was closed"
# Of its options, what ranks of a host need not have alike.
_OWN = ("coordinator", "job", "run_id", "rejoin", "rank", "world_size", "tls_cert", "tls_key", "tls_ca", "identities", "codec_threads",
        "failure_timeout", "start_timeout")


def join(settings: Mapping[str, Option], aggregates: bool) -> Session:
    """A session of this process alone or, with local aggregation and several ranks on this host, that of one of these."""
    return _open(settings) if aggregates else Session(**settings)


def close_after(session: Session, error: BaseException) -> None:
    """The end of a session whose program failed."""
    if isinstance(session, HostSession):
        session.close_after(error)
    else:
        session.close()


def _open(settings: Mapping[str, Option]) -> Session:
    """Of the rank that the settings and the environment say."""
    options = Options()
    try:
        for key, value in settings.items():
            if value is not None:
                options[key] = value
        rank, ranks = int(options["rank"]), int(options["world_size"])
        has_servers = settings.get("coordinator") is not None or os.environ.get("SYNCLINE_COORDINATOR")
        if ranks == 1 or not has_servers or (place := place_of(rank, ranks)).hosts == ranks:
            return Session(**settings)  # which says what is missing
        return HostSession(place, settings, options)
    finally:
        options.free()


class HostSession(Listener):
    """All ranks of the host make one, with the same tensors and options. Its leader's holds the session with the servers.

    What lossy encodings keep is the host's, and with its leader: save_residuals and restore_residuals do nothing on the others.
    """

    def __init__(self, place: HostPlace, settings: Mapping[str, Option], options: Options) -> None:
        self._listen(place, seconds_of(options["failure_timeout"]))
        self._stage = _staging.Stage()
        self._hub: Optional[Hub] = None
        self._inner: Optional[Session] = None  # the leader's
        self._asked: Optional[Session] = None  # never started: it checks what is declared, on each rank
        self._declared: list[tuple[Tensor, dict[str, Any]]] = []
        self._given_states: list[tuple[Tensor, int, Iterable[Any]]] = []
        self._rounds = self._earlier_rounds = 0  # of this life, and of those before
        self._begun_now: set[int] = set()
        self._pushed: dict[int, int] = {}  # by tensor: steps that it was pushed or skipped in
        self._taken: dict[int, int] = {}  # and after which the new weights are in place
        self._factors: dict[int, float] = {}
        self._one_at_barrier = threading.Lock()
        self._waited_s, self._began = 0.0, time.monotonic()
        coordinator, job = options["coordinator"], options["job"]
        self._start_timeout = seconds_of(options["start_timeout"])
        self.job = _names.take(self._calls, (coordinator, options["rank"]), job, settings.get("job"))
        self._address = wire.address_of(coordinator, self.job, options["run_id"], place.host)
        self._same = sorted((key, str(value)) for key, value in settings.items() if value is not None and key not in _OWN)
        self._own: dict[str, Option] = {**settings, "job": self.job, "rank": place.host, "world_size": place.hosts, "ranks": place.ranks}
        try:
            self._asked = self._open()
        except BaseException:
            _names.leave(self._calls)
            raise
        sessions._open_sessions.add(self)
        _log.logger.info("local aggregation: rank %d %s", self.rank, f"sends for the {place.local_ranks} ranks of this host" if place.is_leader
                         else f"gives its gradients to rank {place.rank_of(0)}")

    def _open(self) -> Session:
        """As the member of the job that the host is."""
        session = Session(**self._own)
        sessions._open_sessions.discard(session)  # it is closed with this one
        return session

    # ---- before the first step ----

    def declare(self, name: str, weights: Any, *, learning_rate_scale: float = 1, options: str = "", state: str = "",
                frozen: bool = False) -> Tensor:
        """As Session's, in host memory. It is declared to the servers by `start`."""
        asked = self._declaring()
        if getattr(getattr(weights, "device", None), "type", "cpu") != "cpu":
            raise InvalidArgument(f"{name}: is on {weights.device}, and local aggregation is for models in host memory; pass "
                                  "local_aggregation=False, and each rank sends by itself")
        options_of_it: dict[str, Any] = {"learning_rate_scale": learning_rate_scale, "options": options, "state": state, "frozen": frozen}
        tensor = asked.declare(name, weights, **options_of_it)
        self._declared.append((tensor, options_of_it))
        if not frozen:
            self._pushed[tensor.id] = self._arrived[tensor.id] = self._taken[tensor.id] = 0
        return tensor

    def _declaring(self) -> Session:
        self._check_open()
        if self._asked is None:
            raise FailedPrecondition("tensors are declared, and their state is given, before the session starts")
        return self._asked

    def set_state(self, tensor: Tensor, updates: int, arrays: Iterable[Any]) -> None:
        """As Session's. The leader's counts, and all give the same."""
        arrays = list(arrays)
        self._declaring().set_state(tensor, updates, arrays)
        self._given_states.append((tensor, updates, arrays))

    def start(self, timeout: Optional[float] = None) -> None:
        """As Session's: waits for the host's other ranks, too."""
        asked = self._declaring()
        if not self._pushed:
            raise FailedPrecondition("no tensor is declared that is trained")
        self._asked = None
        asked.close()
        self._layout = wire.Layout([tensor.memory for tensor, _ in self._declared])
        if self._place.is_leader:
            self._inner = self._open()
            self._lead(self._inner, self._layout)
        self._join(self._start_timeout if timeout is None else timeout)
        self._given_states.clear()

    def join_again(self) -> bool:
        """Leaves the other ranks of the host and joins them again, as a rank that was started again does; the host's session goes on.

        A step that was pushed whole is waited for, failure_timeout at most. False where this session has ended: another one is to be made.
        """
        if self._closed or self._failure is not None:
            return False
        with contextlib.suppress(Error):
            self._await_whole_steps()
        with self._lock:
            if self._closed or self._failure is not None or self._link is None or self._link.is_gone:
                return False
            self._life, self._joins = self._life + 1, threading.get_ident()
            leader = wire.Process(self._link.process)
            with contextlib.suppress(OSError):
                self._link.send(wire.record(wire.BYE))
            self._link.close()
            self._link = self._weights_region = None
            self._earlier_rounds += self._rounds
            self._ended = self._rounds = 0
            self._waited_s = 0.0
            self._begun_now.clear()
            self._answers.clear()
            for counts in (self._pushed, self._arrived, self._taken):
                counts.update(dict.fromkeys(counts, 0))
        self._join(self._start_timeout, leader)
        return True

    def _join(self, timeout: float, leader: Optional[wire.Process] = None) -> None:
        """`leader`: the one that it knows."""
        deadline = time.monotonic() + timeout
        door = Door(self._address, self._place.rank_of(0), deadline, self._check_hub, leader)
        self._joins = threading.get_ident()
        try:
            while not self._is_let_in(door, deadline):
                time.sleep(_LOOK_AGAIN_S)
        finally:
            self._joins = None
        self.restore_weights()
        self._began = time.monotonic()

    def _is_let_in(self, door: Door, deadline: float) -> bool:
        self._link, self._is_greeted = door.connect(), False
        self._gradients_region = wire.Region(self._layout)  # a new one each time: a leader that goes on without it writes so there
        hello = wire.record(wire.HELLO, local_rank=self._place.local_rank, digest=self._digest())
        try:
            self._send(hello, self._gradients_region.descriptor)
            self._await(lambda: self._weights_region is not None, deadline, "the host's other ranks, or the job, to begin")
        except NotWelcome:
            self._link.close()
            self._link = None
            if not self._is_greeted:
                door.forget()
            door.check("it left")
        return self._weights_region is not None

    def _check_hub(self) -> None:
        """That of this process does not open again after an error."""
        if self._hub is not None and self._hub.error is not None:
            self._fail(wire.error_in(wire.parse(wire.failure(self._hub.error))[1]))

    def restore_weights(self) -> None:
        """Before this rank's first step, which the job waits for: its tensors hold the job's weights again, whatever was written there."""
        for tensor, _ in self._declared:
            self._land(tensor)

    def _lead(self, inner: Session, layout: wire.Layout) -> None:
        inner.steps_are, inner.samples_are = self.steps_are, self.samples_are
        weights = wire.Region(layout)
        shared = []
        for tensor, options in self._declared:
            weights.write(tensor.id, tensor.memory.address)
            shared.append(inner.declare(tensor.name, weights.tensor(tensor.id), **options))
        for tensor, updates, arrays in self._given_states:
            inner.set_state(shared[tensor.id], updates, arrays)
        self._hub = Hub(self._address, Setup(self._place, inner, shared, layout, weights, self._digest(), self._patience, self._start_timeout))

    def _digest(self) -> str:
        declared = [(tensor.name, tensor.memory.shape, tensor.memory.dtype, sorted(options.items())) for tensor, options in self._declared]
        return hashlib.blake2b(repr((self._same, declared)).encode(), digest_size=16).hexdigest()

    # ---- steps ----

    def push_pull(self, tensor: Tensor, gradient: Any, samples: int = 1) -> None:
        """As Session's. The gradient was copied when it returns, to the tensor's own type."""
        memory = memory_of(gradient, tensor.name)
        if memory.shape != tensor.memory.shape:
            raise InvalidArgument(f"{tensor.name}: a gradient of shape {list(memory.shape)} for weights of shape {list(tensor.memory.shape)}")
        sessions._check_samples(tensor.name, samples)
        self._check_begins(tensor)
        if memory.dtype == tensor.memory.dtype:
            self._gradients_region.write(tensor.id, memory.address)
        else:
            self._gradients_region.tensor(tensor.id).copy_(torch.as_tensor(gradient))
        self._give(tensor, samples)

    def skip(self, tensors: Iterable[Tensor]) -> None:
        """As Session's."""
        skipped = list(tensors)
        for tensor in skipped:
            self._check_begins(tensor)
        for tensor in skipped:
            self._give(tensor, 0)

    def _check_begins(self, tensor: Tensor) -> None:
        self._check_open()
        if tensor.frozen or self._pushed[tensor.id] != self._taken[tensor.id]:
            raise FailedPrecondition(f"{tensor.name}: it is frozen, or its new weights were not waited for yet")

    def _give(self, tensor: Tensor, samples: int) -> None:
        step = self._first + self._pushed[tensor.id]
        self._send(wire.give(tensor.id, step, samples, self._factors.get(tensor.id, 1.0)))
        self._pushed[tensor.id] += 1
        self._begun_now.add(tensor.id)
        if len(self._begun_now) == len(self._pushed):
            self._begun_now.clear()
            self._rounds += 1

    def scale_learning_rate(self, tensor: Tensor, factor: float) -> None:
        """As Session's; of the ranks of a host the leader's counts."""
        if not 0 <= factor <= wire.LARGEST_FACTOR:
            raise InvalidArgument(f"{tensor.name}: a learning rate of {factor:g} times its own, but must be 0 to {wire.LARGEST_FACTOR:g} times that")
        self._factors[tensor.id] = factor

    def wait(self, tensor: Tensor, timeout: Optional[float] = None) -> None:
        """As Session's."""
        if tensor.frozen or self._taken[tensor.id] == self._pushed[tensor.id]:
            return self._check_open()
        began = time.monotonic()
        deadline = None if timeout is None else began + timeout
        self._await(lambda: self._is_there(tensor), deadline, f"the new weights of {tensor.name}")
        self._land(tensor)
        self._taken[tensor.id] = self._pushed[tensor.id]
        self._waited_s += time.monotonic() - began

    def _is_there(self, tensor: Tensor) -> bool:
        return self._arrived[tensor.id] >= self._pushed[tensor.id]

    def _land(self, tensor: Tensor) -> None:
        if (weights := self._weights_region) is None:
            raise FailedPrecondition(f"{tensor.name}: this rank is not, or not yet again, among those of its host")
        weights.read(tensor.id, tensor.memory.address)
        if self._gradients_region.was_dropped:  # then others may have gone on meanwhile, and these weights are of two steps
            self._read_why()

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """As Session's."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for tensor, _ in self._declared:
            self.wait(tensor, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def is_ready(self, tensor: Tensor) -> bool:
        """As Session's."""
        if not tensor.frozen and not self._is_there(tensor):
            with contextlib.suppress(DeadlineExceeded):
                self._await(lambda: self._is_there(tensor), time.monotonic(), "")
        return tensor.frozen or self._is_there(tensor)

    def pull_average(self, tensor: Tensor, out: Any, timeout: Optional[float] = None) -> None:
        """As Session's."""
        self._pull("average", tensor, out, timeout)

    def pull_state(self, tensor: Tensor, array: int, out: Any, timeout: Optional[float] = None) -> int:
        """As Session's."""
        return int(self._pull("state", tensor, out, timeout, array=array))

    def _pull(self, what: str, tensor: Tensor, out: Any, timeout: Optional[float], **fields: int) -> Any:
        memory = self._float32(tensor, out, "optimizer state" if what == "state" else "an average")
        region = wire.Region(wire.array_of(memory))
        answer = self._inquire(what, region.descriptor, timeout=timeout, tensor=tensor.id, **fields)
        region.read(0, memory.address)
        return answer

    # ---- what is going on ----

    @property
    def step(self) -> int:
        """As Session's."""
        return self._first + self._rounds

    @property
    def loss_scale(self) -> float:
        """As Session's, once the weights of the step before are there."""
        if not self._closed:
            self._await(lambda: self._ended >= self._rounds, None, "")
        return self._scale

    @property
    def rank(self) -> int:
        """Which of all ranks this is, on all hosts."""
        return self._place.rank_of(self._place.local_rank)

    @property
    def world_size(self) -> int:
        """With how many ranks, on all hosts, the job began."""
        return self._place.ranks

    @property
    def device_codecs(self) -> int:
        """None."""
        return 0

    @property
    def stats(self) -> Stats:
        """Figures so far. Bytes and members are those of the host: bytes on its leader, and 0 on the others; members are hosts."""
        self._check_open()
        if self._inner is not None:
            return dataclasses.replace(self._inner.stats, steps=self._earlier_rounds + self._rounds)
        said = self._inquire("stats")
        phases = dict.fromkeys(PHASES, 0.0)
        phases["others"] = self._waited_s
        phases["compute"] = max(0.0, time.monotonic() - self._began - self._waited_s)
        return Stats(0, 0, 0, said["epoch"], said["members"], self._earlier_rounds + self._rounds, phases)

    def report_loss(self, loss: float, step: Optional[int] = None, samples: int = 1) -> None:
        """As Session's: the mean over the ranks of the host is reported."""
        sessions._check_samples("report_loss", samples)
        self._send(wire.record(wire.ASK, what="loss", id=0, loss=loss, step=self.step if step is None else step, samples=samples))

    def save_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """As Session's, on the leader."""
        if self._inner is not None:
            self._inner.save_residuals(path)

    def restore_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """As Session's, on the leader."""
        if self._inner is not None:
            self._inner.restore_residuals(path)

    def barrier(self, timeout: Optional[float] = None) -> None:
        """As Session's, of all ranks of the host, too. Of several threads one after the other, as the leader knows one for each rank."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._one_at_barrier.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise DeadlineExceeded("waited in vain for another thread of this rank, which is at a barrier")
        try:
            self._inquire("barrier", deadline=deadline)
        finally:
            self._one_at_barrier.release()

    # ---- the end ----

    def close(self) -> None:
        """As Session's. The leader waits for the host's other ranks to close, as long as failure_timeout."""
        self._close(is_clean=True)

    def close_after(self, error: BaseException) -> None:
        """The end of a rank that failed: its leader waits for nobody, and the host's other ranks hear of it."""
        self._close(is_clean=False, error=error)

    def _close(self, is_clean: bool, error: Optional[BaseException] = None) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = _CLOSED
        try:
            if self._link is not None:
                with contextlib.suppress(OSError):
                    self._link.send(wire.record(wire.BYE))
                self._link.close()
            if self._hub is not None:
                self._hub.close(is_clean and self._failure is None, error or self._failure)
        finally:
            for session in (self._asked, self._inner):
                if session is not None:
                    session.close()
            _names.leave(self._calls)
            sessions._open_sessions.discard(self)

    def _close_at_end(self) -> None:
        """For programs that just end: the steps that were begun with all tensors are not lost."""
        dies = hasattr(sys, "last_type")
        try:
            if not dies and not self._closed:
                self._await_whole_steps()
        except Error as error:
            _log.logger.warning("left before the last step had ended, and its gradients may be lost: %s; call close() at the end of the "
                                "program", error)
        finally:
            self._close(is_clean=not dies)

    def _await_whole_steps(self) -> None:
        deadline = time.monotonic() + self._patience
        for tensor, _ in self._declared:
            if not tensor.frozen and tensor.id not in self._begun_now:
                self.wait(tensor, max(0.0, deadline - time.monotonic()))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._close(is_clean=error is None, error=error)

    def __del__(self) -> None:
        if getattr(self, "_closed", _CLOSED) == "":
            with contextlib.suppress(Error):
                self._close_at_end()

    def _after_fork(self) -> None:
        """In the child, which has neither the connection nor the leader's threads."""
        self._closed = (f"this process was forked from process {os.getppid()}, which holds the session: make the Optimizer after the fork, or "
                        "start children by spawn (multiprocessing.set_start_method('spawn'))")
        self._lock, self._one_at_barrier = threading.RLock(), threading.Lock()  # other threads of the parent may hold the others
        for session in (self._asked, self._inner):
            if session is not None:
                session._after_fork()
