"""Changes the members of a process group without restarting a process, as in torch's `reconfigure` contract.

Each process has a store of its own, and a handle that says where it is. The process whose handle comes first decides an attempt in its
store: the uuid must be new, and all processes must be there and have the same handles. No process leaves the old group before, so
an attempt that fails leaves it as it was.
"""
from __future__ import annotations

import dataclasses
import datetime
import hashlib
import secrets
import time
from collections.abc import Collection
from typing import Any, List, Optional

import torch.distributed as dist

from syncline.errors import DeadlineExceeded, FailedPrecondition, InvalidArgument, Unavailable
from syncline.torch._backend.meeting import in_time, own_address

_GO = "go"
_LOOK_S = 0.01


@dataclasses.dataclass(frozen=True)
class Options:
    """The arguments of an attempt, named as in torch's ReconfigureOptions."""

    uuid: int
    handles: Collection[str]
    timeout: Optional[datetime.timedelta] = None


@dataclasses.dataclass(frozen=True)
class Place:
    """This process's place in the new group, and the store through which its members meet."""

    rank: int
    ranks: int
    store: dist.Store


def _check(own: str, options: Options) -> List[str]:
    """Returns the handles in the order of ranks. Raises InvalidArgument if one is malformed or `own` is missing."""
    handles = list(options.handles)
    if isinstance(options.handles, (set, frozenset)):
        handles.sort()  # all processes get the same order
    where = f"reconfigure with uuid {options.uuid}"
    if own not in handles:
        raise InvalidArgument(f"{where}: this process is not among the {len(handles)} handles; a process that "
                              "leaves the group must not call reconfigure")
    if len(set(handles)) < len(handles):
        raise InvalidArgument(f"{where}: a handle is given twice")
    for handle in handles:
        if not handle.startswith("syncline:") or handle.count(":") < 3 or not handle.rsplit(":", 1)[1].isdigit():
            raise InvalidArgument(f"{where}: {handle!r} is not a handle; get_reconfigure_handle() makes them")
    return handles


class Meeting:
    """The handle of this process, and the uuids that it has used."""

    def __init__(self) -> None:
        self._store: Optional[dist.TCPStore] = None
        self._handle = ""
        self._used: set[int] = set()

    @property
    def handle(self) -> str:
        """The handle, which stays the same as long as the process group exists. The first call opens the store."""
        if not self._handle:
            address = own_address()
            self._store = dist.TCPStore(address, 0, None, True, datetime.timedelta(seconds=60), False)
            self._handle = f"syncline:{secrets.token_hex(8)}:{address}:{self._store.port}"
        return self._handle

    def meet(self, options: Options, timeout: datetime.timedelta) -> Place:
        """Waits until all processes are there, and returns the place of this one in the new group.

        If it raises, the old group goes on, on all processes; the next attempt needs another uuid.
        """
        handles = _check(self.handle, options)
        if options.uuid in self._used:
            raise InvalidArgument(f"reconfigure: uuid {options.uuid} was already used by this process; each attempt has its own")
        attempt = _Attempt(options.uuid, handles, handles.index(self.handle), timeout)
        try:
            in_time(lambda _: attempt.settle(), timeout.total_seconds())
        except (InvalidArgument, DeadlineExceeded):
            raise
        except TimeoutError as error:
            raise DeadlineExceeded(f"{attempt.what}: rank 0 of the new group, {handles[0]}, does not answer: {error}; this process has "
                                   "not left the old group: try again with another uuid, or without that process") from error
        except RuntimeError as error:
            raise Unavailable(f"{attempt.what}: rank 0 of the new group, {handles[0]}, cannot be reached: {error}") from error
        self._used.add(options.uuid)
        return Place(attempt.rank, len(handles), attempt.group_store())


class _Attempt:
    def __init__(self, uuid: int, handles: List[str], rank: int, timeout: datetime.timedelta) -> None:
        self.what, self.rank = f"reconfigure with uuid {uuid}", rank
        # Keys name processes, not ranks: a process with other handles may take itself for another rank.
        self._processes, self._timeout = [handle.split(":")[1] for handle in handles], timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._digest = hashlib.sha256("\n".join(handles).encode()).hexdigest()
        address, port = handles[0].split(":", 2)[2].rsplit(":", 1)
        self._first, self._prefix = (address, int(port)), f"reconfigure/{uuid}"
        self._store: Any = None

    def group_store(self) -> dist.Store:
        return dist.PrefixStore("group", self._store)

    def settle(self) -> None:
        """Returns when all processes are there; raises otherwise, on all processes that it can reach."""
        client = dist.TCPStore(*self._first, None, False, self._timeout, False)
        self._store = dist.PrefixStore(self._prefix, client)
        if self.rank == 0 and self._store.add("claims", 1) > 1:
            raise InvalidArgument(f"{self.what}: the uuid was already used; each attempt has its own")
        own = self._processes[self.rank]
        self._store.set(f"handles/{own}", self._digest)
        self._store.add(f"here/{own}", 1)
        verdict = self._decide(self._gather() if self.rank == 0 else self._await())
        if verdict != _GO:
            raise DeadlineExceeded(f"{self.what}: {verdict}; no process has left the old group: try again with "
                                   "another uuid")

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _is_decided(self) -> bool:
        return bool(self._store.add(f"{self._digest}/decided", 0))

    def _decide(self, verdict: str) -> str:
        """Proposes a verdict and returns the one that counts: the first that a process with these handles proposed."""
        if self._store.add(f"{self._digest}/decided", 1) == 1:
            self._store.set(f"{self._digest}/verdict", verdict)
        return bytes(self._store.get(f"{self._digest}/verdict")).decode()

    def _await(self) -> str:
        while not self._is_decided():
            if self._is_here(0) and self._has_other_handles(0):
                raise InvalidArgument(f"{self.what}: rank 0 was given different handles, or in another order")
            if self._is_late():
                return f"rank {self.rank} of the new group waited {self._timeout} for the others"
            time.sleep(_LOOK_S)
        return ""

    def _gather(self) -> str:
        for rank in range(1, len(self._processes)):
            while not self._is_here(rank):
                if self._is_late():
                    return f"rank {rank} of the new group did not arrive within {self._timeout}"
                if self._is_decided():
                    return ""
                time.sleep(_LOOK_S)
            if self._has_other_handles(rank):
                return f"rank {rank} of the new group was given different handles from rank 0, or in another order"
        # A store that answers late may find that this process has given up.
        return f"rank 0 of the new group heard of the others only after {self._timeout}" if self._is_late() else _GO

    def _is_here(self, rank: int) -> bool:
        return bool(self._store.add(f"here/{self._processes[rank]}", 0))

    def _has_other_handles(self, rank: int) -> bool:
        return bytes(self._store.get(f"handles/{self._processes[rank]}")).decode() != self._digest


class _Probe(dist.ProcessGroup):
    def __init__(self) -> None:
        super().__init__(0, 1)

    def getSize(self) -> int:
        return 2


def check_size(before: int, after: int) -> None:
    """Raises FailedPrecondition if the number of ranks changes and torch's C++, in which DDP divides by it, would not notice."""
    if before != after and dist.ProcessGroup.size(_Probe()) != 2:
        raise FailedPrecondition(
            f"reconfigure from {before} to {after} ranks: the C++ part of this torch would keep {before} as the "
            "number of ranks, by which DDP divides; install torch 2, or make the process group again "
            "(destroy_process_group, init_process_group)")


def number_from_zero(group: Any, ranks: int) -> None:
    """Corrects torch's tables, which have the ranks of the old group: the ranks of the new one are 0 to `ranks` - 1."""
    tables = getattr(dist.distributed_c10d, "_world", None)
    if tables is not None and group in tables.pg_group_ranks:
        tables.pg_group_ranks[group] = {rank: rank for rank in range(ranks)}


def reconfigure_handle(group: Any = None) -> str:
    """Returns a handle that says where this process is (torch's dist._get_reconfigure_handle).

    All processes that are to form a group need the handles of all, in the order of ranks.
    """
    return str((group or dist.distributed_c10d._get_default_group()).get_reconfigure_handle())


def reconfigure(uuid: int, handles: Collection[str], group: Any = None, timeout: Optional[datetime.timedelta] = None) -> Any:
    """Makes the processes of `handles` the members of `group`, without restarting one (torch's dist._reconfigure).

    All of them call it, with the same handles and a `uuid` that was never used. The order of a list sets the ranks; for a set this
    function chooses them. Operations under way in the old group end. An error before all are there leaves the old group as it was.
    """
    return (group or dist.distributed_c10d._get_default_group()).reconfigure(Options(uuid, handles, timeout))
