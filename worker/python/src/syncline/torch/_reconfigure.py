"""How a process group gets other members without a new process, as torch's `reconfigure` contract has it.

Each process has a store of its own, and a handle that says where. The process whose handle is first settles an attempt in its
store: the number was never used, all are there, all were given the same handles. Nobody leaves the group before: an attempt
that fails leaves it as it was.
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
from syncline.torch._meeting import own_address

_GO = "go"
_LOOK_S = 0.01


@dataclasses.dataclass(frozen=True)
class Options:
    """As torch's ReconfigureOptions."""

    uuid: int
    handles: Collection[str]
    timeout: Optional[datetime.timedelta] = None


@dataclasses.dataclass(frozen=True)
class Place:
    """In the new group, and the store through which its members meet."""

    rank: int
    ranks: int
    store: dist.Store


def _check(own: str, options: Options) -> List[str]:
    """The handles, in the order of ranks."""
    handles = list(options.handles)
    if isinstance(options.handles, (set, frozenset)):
        handles.sort()  # all processes number themselves alike
    where = f"reconfigure with uuid {options.uuid}"
    if own not in handles:
        raise InvalidArgument(f"{where}: this process is not among the {len(handles)} handles; a process that is to leave a group "
                              "does not call it")
    if len(set(handles)) < len(handles):
        raise InvalidArgument(f"{where}: a handle is there twice")
    for handle in handles:
        if not handle.startswith("syncline:") or handle.count(":") < 3 or not handle.rsplit(":", 1)[1].isdigit():
            raise InvalidArgument(f"{where}: {handle!r} is no handle; get_reconfigure_handle() makes them")
    return handles


class Meeting:
    """Of one process: its handle, and the numbers that it has used."""

    def __init__(self) -> None:
        self._store: Optional[dist.TCPStore] = None
        self._handle = ""
        self._used: set[int] = set()

    @property
    def handle(self) -> str:
        """The same for as long as the process group lives."""
        if not self._handle:
            address = own_address()
            self._store = dist.TCPStore(address, 0, None, True, datetime.timedelta(seconds=60), False)
            self._handle = f"syncline:{secrets.token_hex(8)}:{address}:{self._store.port}"
        return self._handle

    def meet(self, options: Options, timeout: datetime.timedelta) -> Place:
        """Until all are there. Whatever it raises, the group that there was goes on, on all; take another uuid then."""
        handles = _check(self.handle, options)
        if options.uuid in self._used:
            raise InvalidArgument(f"reconfigure: uuid {options.uuid} was already used by this process; each attempt has its own")
        attempt = _Attempt(options.uuid, handles, handles.index(self.handle), timeout)
        try:
            attempt.settle()
        except (InvalidArgument, DeadlineExceeded):
            raise
        except RuntimeError as error:
            raise Unavailable(f"{attempt.what}: rank 0 of the new group, {handles[0]}, is not reached: {error}") from error
        self._used.add(options.uuid)
        return Place(attempt.rank, len(handles), attempt.group_store())


class _Attempt:
    def __init__(self, uuid: int, handles: List[str], rank: int, timeout: datetime.timedelta) -> None:
        self.what, self.rank = f"reconfigure with uuid {uuid}", rank
        # By process, not by rank: whoever has other handles may take itself for another rank.
        self._processes, self._timeout = [handle.split(":")[1] for handle in handles], timeout
        self._deadline = time.monotonic() + timeout.total_seconds()
        self._digest = hashlib.sha256("\n".join(handles).encode()).hexdigest()
        address, port = handles[0].split(":", 2)[2].rsplit(":", 1)
        self._first, self._prefix = (address, int(port)), f"reconfigure/{uuid}"
        self._store: Any = None

    def group_store(self) -> dist.Store:
        return dist.PrefixStore("group", self._store)

    def settle(self) -> None:
        """Returns when all are there; raises otherwise, on all that it reaches."""
        client = dist.TCPStore(*self._first, None, False, self._timeout, False)
        self._store = dist.PrefixStore(self._prefix, client)
        if self.rank == 0 and self._store.add("claims", 1) > 1:
            raise InvalidArgument(f"{self.what}: the uuid was already used; each attempt has its own")
        own = self._processes[self.rank]
        self._store.set(f"handles/{own}", self._digest)
        self._store.add(f"here/{own}", 1)
        verdict = self._decide(self._gather() if self.rank == 0 else self._await())
        if verdict != _GO:
            raise DeadlineExceeded(f"{self.what}: {verdict}; nobody has left the old group: try again with another uuid")

    def _is_late(self) -> bool:
        return time.monotonic() >= self._deadline

    def _is_decided(self) -> bool:
        return bool(self._store.add(f"{self._digest}/decided", 0))

    def _decide(self, verdict: str) -> str:
        """The first one counts, for all who have these handles."""
        if self._store.add(f"{self._digest}/decided", 1) == 1:
            self._store.set(f"{self._digest}/verdict", verdict)
        return bytes(self._store.get(f"{self._digest}/verdict")).decode()

    def _await(self) -> str:
        while not self._is_decided():
            if self._is_here(0) and self._has_other_handles(0):
                raise InvalidArgument(f"{self.what}: rank 0 was given other handles, or in another order")
            if self._is_late():
                return f"rank {self.rank} of the new group waited {self._timeout} for the others"
            time.sleep(_LOOK_S)
        return ""

    def _gather(self) -> str:
        for rank in range(1, len(self._processes)):
            while not self._is_here(rank):
                if self._is_late():
                    return f"rank {rank} of the new group did not come within {self._timeout}"
                if self._is_decided():
                    return ""
                time.sleep(_LOOK_S)
            if self._has_other_handles(rank):
                return f"rank {rank} of the new group was given other handles, or in another order, than rank 0"
        return _GO

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
    """Torch's C++, in which DDP divides by the number of ranks, must hear of a new one."""
    if before != after and dist.ProcessGroup.size(_Probe()) != 2:
        raise FailedPrecondition(
            f"reconfigure from {before} to {after} ranks: this torch's C++ would go on with {before}, by which DDP divides; "
            "install torch 2, or make the process group anew (destroy_process_group, init_process_group)")


def number_from_zero(group: Any, ranks: int) -> None:
    """For torch's tables, which have the ranks of the old group: a group's ranks are its own from now on."""
    tables = getattr(dist.distributed_c10d, "_world", None)
    if tables is not None and group in tables.pg_group_ranks:
        tables.pg_group_ranks[group] = {rank: rank for rank in range(ranks)}


def reconfigure_handle(group: Any = None) -> str:
    """What says where this process is; the others need it, in the order of ranks (torch's dist._get_reconfigure_handle)."""
    return str((group or dist.distributed_c10d._get_default_group()).get_reconfigure_handle())


def reconfigure(uuid: int, handles: Collection[str], group: Any = None, timeout: Optional[datetime.timedelta] = None) -> Any:
    """Makes `group` one of the processes whose handles these are, without a new process (torch's dist._reconfigure).

    All of them call it, with the same handles and a `uuid` that was never used. A list gives the ranks; a set leaves them to this.
    What is under way in the old group ends. An error before all are there leaves the old group as it was.
    """
    return (group or dist.distributed_c10d._get_default_group()).reconfigure(Options(uuid, handles, timeout))
