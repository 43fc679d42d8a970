"""Forms the group of the ranks that gossip, and the next group when one of them is gone.

Each process has a store of its own, and all processes know the addresses from the start, so no single store must survive. When a
group ends, the first member that is still there is the leader. The others write their positions into the leader's store; the leader
decides which members continue and from where, and the next group meets in its store. A member whose store refuses connections is
dead. A member that an error names, and that does not come, is left out.

A leader may die when only some members have read its verdict. Each question therefore has a number of its member, and the answer
names the place where the next group meets: members that ask the next leader need not have asked equally often.
"""
from __future__ import annotations

import dataclasses
import datetime
import errno
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any, Optional

import torch.distributed as dist

from syncline import _group
from syncline._gathering import number_of
from syncline.errors import DeadlineExceeded, Dropped, Error, FailedPrecondition, JobRefused, Unavailable
from syncline.torch._backend.meeting import await_key, look, network, own_address

_KEYS = "syncline_gossip"
_LOOK_AGAIN_S = 0.02
_CONNECT_S = 5.0  # time that a live process may take to answer
_PROBE_EVERY_S = 0.5
_GONE = (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EHOSTDOWN)
_made = 0  # number of Circles that this process has made


@dataclasses.dataclass(frozen=True)
class Launch:
    """The rank and the number of ranks with which this process was started, and the store in which all meet first."""

    rank: int
    ranks: int
    store: Any


@dataclasses.dataclass(frozen=True)
class _Verdict:
    members: list[int]
    resume: int
    meets: str  # prefix of the next group's keys in the leader's store


def find_launch(timeout: datetime.timedelta) -> Launch:
    """Returns the place in torch.distributed's default group if there is one, otherwise the place that the launcher gives."""
    if not dist.is_available():
        raise FailedPrecondition("ranks find each other with torch.distributed, which this build of torch lacks")
    if dist.is_initialized():
        return Launch(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
    rank, ranks = number_of("RANK", 0), number_of("WORLD_SIZE", 1)
    if ranks == 1:
        return Launch(0, 1, dist.HashStore())
    address, port = os.environ.get("MASTER_ADDR", ""), number_of("MASTER_PORT", 0)
    if not address or not port:
        raise FailedPrecondition(f"there are {ranks} workers (WORLD_SIZE), which find each other at MASTER_ADDR and MASTER_PORT, and these are not set: "
                                 "start the program by `syncline run` or torchrun, or set them to a host and a free port of rank 0")
    has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's process listens there
    try:
        store = dist.TCPStore(address, port, ranks, rank == 0 and not has_agent, timeout, wait_for_workers=False, multi_tenant=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise Unavailable(f"rank {rank} does not reach rank 0 at {address}:{port}, where workers meet: {error}") from error
    return Launch(rank, ranks, store)


class Circle:
    """One process's part in forming groups. Not thread-safe."""

    def __init__(self, launch: Launch, timeout: datetime.timedelta) -> None:
        global _made
        self._timeout = timeout
        self._number = launch.rank  # for good; ranks are those of the present group
        self._asked = self._led = 0  # number of questions that this member has asked, and of verdicts that it has given
        self._answered: dict[int, int] = {}  # by member: the last of its questions that was answered here
        self._launch = launch  # keeps the store that others may still read
        self._own: Any = None
        # torchrun keeps its store when it restarts all workers, so the number of restarts becomes part of the name.
        again = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "0"
        name, _made = f"{_KEYS}/{again}/{_made}", _made + 1
        self._places: list[tuple[str, int]] = []
        if launch.ranks > 1:
            self._introduce(dist.PrefixStore(name, launch.store))
        self.members = list(range(launch.ranks))
        self.group = self._form(dist.PrefixStore(name, launch.store))

    def _introduce(self, store: Any) -> None:
        if store.add(f"joined/{self._number}", 1) > 1:
            raise JobRefused(f"the others have started with another process as rank {self._number}, and workers "
                             "cannot join a running gossip: start all of them again")
        address = own_address()
        self._own = dist.TCPStore(address, 0, None, True, datetime.timedelta(seconds=60), False)
        store.set(f"place/{self._number}", f"{address}:{self._own.port}")
        for rank in range(self._launch.ranks):
            try:
                said = await_key(store, f"place/{rank}", int(self._timeout.total_seconds() * 1000))
            except (TimeoutError, RuntimeError) as error:
                raise DeadlineExceeded(f"rank {rank} did not arrive within {self._timeout}: {error}") from error
            host, port = said.decode().rsplit(":", 1)
            self._places.append((host, int(port)))

    @property
    def rank(self) -> int:
        """This process's rank in the present group."""
        return self.members.index(self._number)

    def _form(self, store: Any) -> _group.Group:
        milliseconds = int(self._timeout.total_seconds() * 1000)

        def get(key: str, wait_ms: int) -> bytes:
            return await_key(store, f"group/{key}", wait_ms)

        def put(key: str, value: bytes) -> None:
            store.set(f"group/{key}", value.decode("ascii"))

        return _group.Group("syncline-gossip", self.rank, len(self.members), put, get, milliseconds, network())

    def reform(self, error: Error, position: int) -> int:
        """Forms the next group after an error that ended this one. Returns the furthest position of its members.

        Raises Dropped if the others went on without this process. `position` is the number of actions that this process has done; all
        members count the same actions.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        while True:
            if error.rank is not None and error.rank < len(self.members) and self.members[error.rank] == self._number:
                raise Dropped(f"the others have gone on without this worker, number {self._number}, which did not run or answer for a while: {error}") from error
            gone = [] if error.rank is None else [self.members[error.rank]]
            verdict, store = self._agree(gone, position, deadline, error)
            if self._number not in verdict.members:
                raise Dropped(f"the others have gone on without this worker, number {self._number}: {error}") from error
            self.members = verdict.members
            try:
                self.group = self._form(dist.PrefixStore(verdict.meets, store))
                return verdict.resume
            except (Error, RuntimeError) as failure:
                if time.monotonic() >= deadline:
                    raise
                error = failure if isinstance(failure, Error) else Unavailable(str(failure))

    def _agree(self, gone: Sequence[int], position: int, deadline: float, error: Error) -> tuple[_Verdict, Any]:
        for leader in self.members:
            if leader == self._number:
                return self._lead(gone, position, deadline), self._own
            if leader in gone or not self._is_there(leader):
                continue
            host, port = self._places[leader]
            try:
                store = dist.TCPStore(host, port, None, False, datetime.timedelta(seconds=_CONNECT_S), False)
                return self._follow(store, gone, position, deadline), store
            except RuntimeError as failure:
                if isinstance(failure, Error):
                    raise
                continue  # it has ended meanwhile
        raise Unavailable(f"no other worker can be reached: {error}")

    def _lead(self, gone: Sequence[int], position: int, deadline: float) -> _Verdict:
        store = self._own
        self._led += 1
        here, blamed = {self._number: position}, set(gone)
        questions: dict[int, int] = {}
        waits_for = [member for member in self.members if member != self._number]
        probe_at = 0.0
        while waits_for:
            probes = time.monotonic() >= probe_at
            probe_at = time.monotonic() + _PROBE_EVERY_S if probes else probe_at
            for member in list(waits_for):
                word = json.loads(look(store, f"here/{member}") or '{"question": 0}')
                if word["question"] > self._answered.get(member, 0):
                    here[member], questions[member] = word["position"], word["question"]
                    blamed.update(word["gone"])
                    waits_for.remove(member)
                elif probes and not self._is_there(member):
                    waits_for.remove(member)
            if all(member in blamed for member in waits_for):
                break
            if time.monotonic() >= deadline:
                late = [member for member in waits_for if member not in blamed]
                raise DeadlineExceeded(f"workers {late} are alive, but did not form a new group within "
                                       f"{self._timeout}: they have gone on without this one, or need more time "
                                       "to compute; raise timeout=")
            time.sleep(_LOOK_AGAIN_S)
        verdict = _Verdict([member for member in self.members if member in here], max(here.values()), f"next/{self._led}")
        said = json.dumps(dataclasses.asdict(verdict))
        for member, question in questions.items():
            store.set(f"verdict/{member}/{question}", said)
        self._answered.update(questions)
        store.set("verdict", said)  # for those who come too late
        return verdict

    def _follow(self, store: Any, gone: Sequence[int], position: int, deadline: float) -> _Verdict:
        self._asked += 1
        store.set(f"here/{self._number}", json.dumps({"question": self._asked, "position": position, "gone": list(gone)}))
        while (said := look(store, f"verdict/{self._number}/{self._asked}")) is None:
            last = look(store, "verdict")
            if last is not None and self._number not in (verdict := _Verdict(**json.loads(last))).members:
                return verdict
            if time.monotonic() >= deadline:
                raise DeadlineExceeded(f"the remaining workers did not form a new group within {self._timeout}; "
                                       "raise timeout=")
            time.sleep(_LOOK_AGAIN_S)
        return _Verdict(**json.loads(said))

    def _is_there(self, member: int) -> bool:
        """Returns False if a member's host says that the process is gone, or does not answer; True otherwise."""
        try:
            socket.create_connection(self._places[member], _CONNECT_S).close()
        except OSError as error:  # others, such as too many open files here, say nothing about the member
            return not (isinstance(error, (ConnectionError, socket.timeout)) or error.errno in _GONE)
        return True

    def end(self) -> None:
        """Leaves the group, once what this rank sent has left. Nothing else of the group may be in use."""
        self.group.settle()
        self.group.close()
        self._own = None  # members that probe this one find it gone, although its process lives on


def servers_of_the_run() -> Optional[str]:
    """Returns a text about servers of the run, which a program without servers would leave idle; None: there are none."""
    said = os.environ.get("SYNCLINE_RUN_SERVERS", "")
    if said == "elsewhere" or (not said and os.environ.get("SYNCLINE_COORDINATOR")):
        return f"the run's coordinator, {os.environ.get('SYNCLINE_COORDINATOR', '')}, has its own servers"
    if said not in ("", "0"):
        return f"the run has started {said} server{'s' if said != '1' else ''}"
    return None
