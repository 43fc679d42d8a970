"""The session of a rank whose host sends its gradients as one. It works like a Session, but gradients go to the leader (`_host/hub.py`)."""
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

from syncline import _log, _names, _open_sessions, _staging
from syncline._account import Account
from syncline._calls import Calls
from syncline._durations import seconds_of
from syncline._library import FLOAT32, Options
from syncline._memory import memory_of
from syncline._report import PHASES, Progress, Stats
from syncline._tensor import Tensor, check_samples
from syncline.errors import DataLoss, DeadlineExceeded, Dropped, Error, FailedPrecondition, InvalidArgument, SessionClosed
from syncline.session import Option, Session
from syncline.torch._host import wire
from syncline.torch._host.hub import Hub, Setup
from syncline.torch._host.leader_connector import LeaderConnector
from syncline.torch._host.listener import Listener, NotWelcome
from syncline.torch._host.place import HostPlace, place_of

_LOOK_AGAIN_S = 0.02
_CLOSED = "the session was closed"
# Options that may differ between the ranks of a host.
_OWN = ("coordinator", "job", "run_id", "rejoin", "rank", "world_size", "tls_cert", "tls_key", "tls_ca", "identities", "codec_threads",
        "failure_timeout", "start_timeout")


def join(settings: Mapping[str, Option], aggregates: bool) -> Session:
    """Returns a Session of this process alone or, if it `aggregates` and this host has several ranks, a HostSession."""
    return _open(settings) if aggregates else Session(**settings)


def close_after(session: Session, error: BaseException) -> None:
    """Closes a session whose program failed with `error`."""
    if isinstance(session, HostSession):
        session.close_after(error)
    else:
        session.close()


def _open(settings: Mapping[str, Option]) -> Session:
    """Opens the session of the rank that the settings and the environment name."""
    options = Options()
    try:
        for key, value in settings.items():
            if value is not None:
                options[key] = value
        rank, ranks = int(options["rank"]), int(options["world_size"])
        has_servers = settings.get("coordinator") is not None or os.environ.get("SYNCLINE_COORDINATOR")
        if ranks == 1 or not has_servers or (place := place_of(rank, ranks)).hosts == ranks:
            return Session(**settings)  # it reports what is missing
        return HostSession(place, settings, options)
    finally:
        options.free()


class HostSession(Listener):
    """A rank's place in a job whose members are hosts. All ranks of a host make one, with the same tensors and options.

    The leader's HostSession holds the session with the servers, and the residuals of lossy codecs for the whole host: save_residuals
    and restore_residuals do nothing on the other ranks.
    """

    members_are = "host"

    def __init__(self, place: HostPlace, settings: Mapping[str, Option], options: Options) -> None:
        self._listen(place, seconds_of(options["failure_timeout"]))
        self._stage = _staging.Stage()
        self._hub: Optional[Hub] = None
        self._inner: Optional[Session] = None  # the session with the servers; None on all ranks but the leader
        self._asked: Optional[Session] = None  # a session that is never started: it checks what each rank declares
        self._declared: list[tuple[Tensor, dict[str, Any]]] = []
        self._given_states: list[tuple[Tensor, int, Iterable[Any]]] = []
        self._rounds = self._earlier_rounds = 0  # number of steps begun with all tensors since the last join, and before it
        self._begun_now: set[int] = set()
        self.account = Account()
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
        _open_sessions.all_open.add(self)
        _log.logger.info("local aggregation: rank %d %s", self.rank, f"sends for the {place.local_ranks} ranks of this host" if place.is_leader
                         else f"gives its gradients to rank {place.rank_of(0)}")

    def _open(self) -> Session:
        """Returns a session in which the host is one member of the job."""
        session = Session(**self._own)
        _open_sessions.all_open.discard(session)  # it is closed with this one
        return session

    # ---- before the first step ----

    def declare(self, name: str, weights: Any, *, learning_rate_scale: float = 1, options: str = "", state: str = "",
                frozen: bool = False) -> Tensor:
        """Works as Session.declare. The tensor must be in host memory; `start` declares it to the servers."""
        asked = self._declaring()
        if getattr(getattr(weights, "device", None), "type", "cpu") != "cpu":
            raise InvalidArgument(f"{name}: is on {weights.device}, but local aggregation needs models in host "
                                  "memory; pass local_aggregation=False, and each rank sends by itself")
        options_of_it: dict[str, Any] = {"learning_rate_scale": learning_rate_scale, "options": options, "state": state, "frozen": frozen}
        tensor = dataclasses.replace(asked.declare(name, weights, **options_of_it), owner=self._calls)
        self._declared.append((tensor, options_of_it))
        self.account.add(tensor.id, frozen)
        if not frozen:
            self._pushed[tensor.id] = self._arrived[tensor.id] = self._taken[tensor.id] = 0
        return tensor

    def _declaring(self) -> Session:
        self._check_open()
        if self._asked is None:
            raise FailedPrecondition("tensors must be declared, and their state given, before the session starts")
        return self._asked

    def set_state(self, tensor: Tensor, updates: int, arrays: Iterable[Any]) -> None:
        """Works as Session.set_state. All ranks give the same state; that of the leader is used."""
        arrays = list(arrays)
        tensor.of(self._calls)
        asked = self._declaring()
        asked.set_state(dataclasses.replace(tensor, owner=asked._calls), updates, arrays)
        self._given_states.append((tensor, updates, arrays))

    def start(self, timeout: Optional[float] = None) -> None:
        """Works as Session.start, and also waits for the other ranks of the host."""
        asked = self._declaring()
        if not self._pushed:
            raise FailedPrecondition("no tensor that is trained was declared")
        self._asked = None
        asked.close()
        self._layout = wire.Layout([tensor.memory for tensor, _ in self._declared])
        if self._place.is_leader:
            self._inner = self._open()
            self._lead(self._inner, self._layout)
        self._join(self._start_timeout if timeout is None else timeout)
        self._calls.was_in_job = True
        self._given_states.clear()

    def join_again(self) -> bool:
        """Leaves the other ranks of the host and joins them again, as a restarted rank does. The host's session goes on.

        First waits, failure_timeout at most, for a step that was pushed with all tensors. Returns False if this session has ended: then
        the caller must make another one.
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
        """Waits until the leader lets this rank in. `leader` is its process, if this rank was connected to it before."""
        deadline = time.monotonic() + timeout
        connector = LeaderConnector(self._address, self._place.rank_of(0), deadline, self._check_hub, leader)
        self._joins = threading.get_ident()
        try:
            while not self._is_let_in(connector, deadline):
                time.sleep(_LOOK_AGAIN_S)
        finally:
            self._joins = None
        self.restore_weights()
        self._began = time.monotonic()

    def _is_let_in(self, connector: LeaderConnector, deadline: float) -> bool:
        self._link, self._is_greeted = connector.connect(), False
        self._gradients_region = wire.Region(self._layout)  # a new one each time: the leader marks an old one as dropped
        hello = wire.record(wire.HELLO, local_rank=self._place.local_rank, digest=self._digest())
        try:
            self._send(hello, self._gradients_region.descriptor)
            self._await(lambda: self._weights_region is not None, deadline, "the host's other ranks, or the job, to begin")
        except NotWelcome:
            self._link.close()
            self._link = None
            if not self._is_greeted:
                connector.forget()
            connector.check("it left")
        return self._weights_region is not None

    def _check_hub(self) -> None:
        """Fails if the hub of this process has ended with an error, as it will not listen again."""
        if self._hub is not None and self._hub.error is not None:
            self._fail(wire.error_in(wire.parse(wire.failure(self._hub.error))[1]))

    def restore_weights(self) -> None:
        """Copies the job's weights into this rank's tensors, whatever they hold. Call it before the rank's first step only: the job
        waits for that step, so the weights do not change."""
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
        """Works as Session.push_pull. Has copied the gradient, converted to the tensor's type, when it returns."""
        memory = memory_of(gradient, tensor.name)
        if memory.shape != tensor.memory.shape:
            raise InvalidArgument(f"{tensor.name}: a gradient of shape {list(memory.shape)} for weights of shape {list(tensor.memory.shape)}")
        check_samples(tensor.name, samples)
        self._check_begins(tensor)
        if memory.dtype == tensor.memory.dtype:
            self._gradients_region.write(tensor.id, memory.address)
        else:
            self._gradients_region.tensor(tensor.id).copy_(torch.as_tensor(gradient))
        self._give(tensor, samples)
        self.account.codes[tensor.id][:] = [0]

    def skip(self, tensors: Iterable[Tensor]) -> None:
        """Works as Session.skip."""
        skipped = list(tensors)
        for tensor in skipped:
            self._check_begins(tensor)
        for tensor in skipped:
            self._give(tensor, 0)
        self.account.skip_codes[:] = [0]

    def _check_begins(self, tensor: Tensor) -> None:
        self._check_open()
        tensor.of(self._calls)
        if tensor.frozen or self._pushed[tensor.id] != self._taken[tensor.id]:
            raise FailedPrecondition(f"{tensor.name}: it is frozen, or wait() was not called for its new weights yet")

    def _give(self, tensor: Tensor, samples: int) -> None:
        step = self._first + self._pushed[tensor.id]
        self._send(wire.give(tensor.id, step, samples, self._factors.get(tensor.id, 1.0)))
        self._pushed[tensor.id] += 1
        self._begun_now.add(tensor.id)
        if len(self._begun_now) == len(self._pushed):
            self._begun_now.clear()
            self._rounds += 1

    def scale_learning_rate(self, tensor: Tensor, factor: float) -> None:
        """Works as Session.scale_learning_rate. If ranks of a host differ, the leader's factor counts."""
        tensor.of(self._calls)
        if not 0 <= factor <= wire.LARGEST_FACTOR:
            raise InvalidArgument(f"{tensor.name}: a learning rate of {factor:g} times its own; allowed are 0 to "
                                  f"{wire.LARGEST_FACTOR:g} times")
        self._factors[tensor.id] = factor

    def wait(self, tensor: Tensor, timeout: Optional[float] = None) -> None:
        """Works as Session.wait."""
        tensor.of(self._calls)
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
            raise FailedPrecondition(f"{tensor.name}: this rank has not joined the others of its host, or has "
                                     "not rejoined them yet")
        weights.read(tensor.id, tensor.memory.address)
        if self._gradients_region.was_dropped:  # the others may have gone on during the copy, which then mixes two steps
            self._read_why()

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """Works as Session.wait_all."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for tensor, _ in self._declared:
            self.wait(tensor, None if deadline is None else max(0.0, deadline - time.monotonic()))

    def is_ready(self, tensor: Tensor) -> bool:
        """Works as Session.is_ready."""
        tensor.of(self._calls)
        if not tensor.frozen and not self._is_there(tensor):
            with contextlib.suppress(DeadlineExceeded):
                self._await(lambda: self._is_there(tensor), time.monotonic(), "")
        return tensor.frozen or self._is_there(tensor)

    def pull_average(self, tensor: Tensor, out: Any, timeout: Optional[float] = None) -> None:
        """Works as Session.pull_average."""
        self._pull("average", tensor, out, timeout)

    def pull_state(self, tensor: Tensor, array: int, out: Any, timeout: Optional[float] = None) -> int:
        """Works as Session.pull_state."""
        return int(self._pull("state", tensor, out, timeout, array=array))

    def _pull(self, what: str, tensor: Tensor, out: Any, timeout: Optional[float], **fields: int) -> Any:
        tensor.of(self._calls)
        memory = self._float32(tensor, out, "optimizer state" if what == "state" else "an average")
        region = wire.Region(wire.array_of(memory))
        answer = self._inquire(what, region.descriptor, timeout=timeout, tensor=tensor.id, **fields)
        region.read(0, memory.address)
        return answer

    # ---- what is going on ----

    @property
    def step(self) -> int:
        """The job's present step, as Session.step."""
        return self._first + self._rounds

    @property
    def loss_scale(self) -> float:
        """The factor for the present step's loss, as Session.loss_scale. Waits for all weights of the step before."""
        if not self._closed:
            self._await(lambda: self._ended >= self._rounds, None, "")
        return self._scale

    @property
    def rank(self) -> int:
        """This process's rank among the ranks of all hosts."""
        return self._place.rank_of(self._place.local_rank)

    @property
    def world_size(self) -> int:
        """The number of ranks, on all hosts, with which the job began."""
        return self._place.ranks

    @property
    def device_codecs(self) -> int:
        """Always 0: no GPU encodes gradients, as the models are in host memory."""
        return 0

    @property
    def stats(self) -> Stats:
        """Statistics so far. The leader counts the bytes of the whole host, the other ranks have 0; `members` is a number of hosts."""
        self._check_open()
        if self._inner is not None:
            return dataclasses.replace(self._inner.stats, steps=self._earlier_rounds + self._rounds)
        said = self._inquire("stats")
        phases = dict.fromkeys(PHASES, 0.0)
        phases["others"] = self._waited_s
        phases["compute"] = max(0.0, time.monotonic() - self._began - self._waited_s)
        return Stats(0, 0, 0, said["epoch"], said["members"], self._earlier_rounds + self._rounds, phases)

    def figures(self) -> tuple[Stats, Progress]:
        """Works as Session.figures: the leader's are those of the whole host, and other ranks count no gradients."""
        return self.stats, Progress() if self._inner is None else self._inner.figures()[1]

    def report_loss(self, loss: float, step: Optional[int] = None, samples: int = 1) -> None:
        """Works as Session.report_loss. The leader reports the mean over the ranks of the host."""
        check_samples("report_loss", samples)
        self._send(wire.record(wire.ASK, what="loss", id=0, loss=loss, step=self.step if step is None else step, samples=samples))

    def save_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Works as Session.save_residuals on the leader; does nothing on other ranks."""
        if self._inner is not None:
            self._inner.save_residuals(path)

    def restore_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Works as Session.restore_residuals on the leader; does nothing on other ranks."""
        if self._inner is not None:
            self._inner.restore_residuals(path)

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Works as Session.barrier, and includes all ranks of the host.

        Threads of one rank take turns, because the leader knows one barrier for each rank.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._one_at_barrier.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            raise DeadlineExceeded("timed out waiting for another thread of this rank, which is at a barrier")
        try:
            self._inquire("barrier", deadline=deadline)
        finally:
            self._one_at_barrier.release()

    # ---- the end ----

    def close(self) -> None:
        """Works as Session.close. The leader first waits, failure_timeout at most, for the host's other ranks to close."""
        self._close(is_clean=True)

    def close_after(self, error: BaseException) -> None:
        """Closes the session of a rank that failed with `error`. A leader waits for no other rank and tells them the error."""
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
            _open_sessions.all_open.discard(self)

    def _close_at_end(self) -> None:
        """Closes when a program ends without close(). Waits for steps that were pushed with all tensors, so that they are not lost."""
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
        """Closes the child's copy, which has neither the connection nor the leader's threads."""
        self._closed = (f"this process was forked from process {os.getppid()}, which holds the session: make the Optimizer after the fork, or "
                        "start children by spawn (multiprocessing.set_start_method('spawn'))")
        self._lock, self._one_at_barrier = threading.RLock(), threading.Lock()  # other threads of the parent may hold the others
        for session in (self._asked, self._inner):
            if session is not None:
                session._after_fork()
