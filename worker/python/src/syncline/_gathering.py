"""Brings all ranks of a program together for assert_equal, also again after one of them did not come or died.

Each rank announces itself in torch.distributed's store by a token of this attempt. Rank 0 answers all tokens with the name of a new
group (comm/collective). A rank that gives up takes its token back, so no group is made with ranks that are gone.

A rank that ends the group says in the store in which call, before it does. So a rank that notices only in a later call, because it had
all it needed of the earlier one, makes another group with that rank instead of taking it for dead.
"""
from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple, Optional

from syncline import _group
from syncline.errors import DeadlineExceeded, Error, FailedPrecondition, InvalidArgument, Unavailable

_KEYS = "syncline_assert"
_ABSENT = "absent "
_LOOK_AGAIN_S = 0.02
_TELL_S = 2.0  # time that a store may take to hear that a group ends


class Place(NamedTuple):
    rank: int
    ranks: int


class Gathering:
    """The group of all ranks, which is kept from call to call until an error ends it. Not thread-safe."""

    def __init__(self) -> None:
        self._group: Optional[_group.Group] = None
        self._calls = 0  # calls with this group so far, including the present one; each is one of all ranks
        self._name = ""
        self._store_of_group: Any = None
        self._own_store: Any = None  # used if torch.distributed has no default group
        self._serves_store = False
        self._process = os.getpid()
        self._answered: dict[int, str] = {}  # on rank 0: the last token of each rank that was answered
        self._asks = ""
        self._leaves_at_exit = False
        self._is_making = False  # the other ranks make a group with this one
        self.ended = 0  # number of groups that this rank has ended by an error, or by Ctrl-C

    def group(self, place: Place, deadline: float, asks: str) -> _group.Group:
        """Returns the group, and makes one if there is none. `deadline` is a time of time.monotonic().

        Raises DeadlineExceeded if a rank did not come until then; its `rank` names that rank, and its message ends with `asks`.
        """
        if self._process != os.getpid():  # a forked child cannot use its parent's group
            self.__init__()  # type: ignore[misc]
        self._asks = asks
        if self._group is None:
            store = self._store(place, deadline)
            try:
                self._name, self._store_of_group, self._calls = self._meet(store, place, deadline), store, 0
                self._is_making = True
                self._group = self._make(self._name, store, place, deadline)
                self._is_making = False
            except (OSError, RuntimeError) as error:
                if isinstance(error, Error):
                    raise
                raise Unavailable(f"the store by which ranks meet does not answer ({error}): has rank 0 ended?") from error
        self._calls += 1
        return self._group

    def was_over(self) -> bool:
        """Returns whether another rank has ended the group in an earlier call than the present one. If so, the next call makes another."""
        from syncline.torch._backend.meeting import await_key

        if self._group is None:
            return False
        try:
            ended_in = int(await_key(self._store_of_group, self._key_of_end, 0))
        except (OSError, RuntimeError):  # nobody has said so, or the store does not answer
            return False
        if ended_in >= self._calls:
            return False
        self._group.abort()
        self._group = None
        return True

    def drop(self) -> None:
        """Ends the group on all ranks; the next call makes another one."""
        group, self._group = self._group, None
        self.ended += group is not None or self._is_making
        self._is_making = False
        if not self._serves_store:  # a restarted rank 0 has another store
            self._own_store = None
        if group is not None:
            try:
                self._tell_end()
            finally:
                group.abort()

    @property
    def _key_of_end(self) -> str:
        return f"{_KEYS}/ended/{self._name}"

    def _tell_end(self) -> None:
        """Tells the others in which call this rank ends the group, before they notice."""
        def tell(store: Any, key: str, call: int) -> None:
            with contextlib.suppress(OSError, RuntimeError):  # rank 0 may have ended, and the store with it
                store.set(key, str(call))
                _look(store, key)  # the answer says that it has arrived

        if not self._leaves_at_exit:
            self._leaves_at_exit = True
            atexit.register(self._leave)
        # A thread, because a store whose host is gone may not answer.
        telling = threading.Thread(target=tell, args=(self._store_of_group, self._key_of_end, self._calls), daemon=True)
        telling.start()
        telling.join(_TELL_S)

    def _leave(self) -> None:
        """Tells the others that this rank, which ended their group and now ends, makes no other one with them."""
        if self._group is None and self._process == os.getpid():
            with contextlib.suppress(OSError, RuntimeError):
                self._store_of_group.set(self._key_of_end, str(sys.maxsize))

    def _store(self, place: Place, deadline: float) -> Any:
        import torch.distributed as dist

        if not dist.is_available():
            raise FailedPrecondition("ranks find each other with torch.distributed, which this build of torch lacks")
        if dist.is_initialized():
            return dist.distributed_c10d._get_default_store()
        if self._own_store is None:
            address, port = os.environ.get("MASTER_ADDR", ""), number_of("MASTER_PORT", 0)
            if not address or not port:
                raise FailedPrecondition(
                    "ranks find each other at MASTER_ADDR and MASTER_PORT, which are not set: start the program by "
                    "`syncline run` or torchrun, or set them to a host and a free port of rank 0")
            has_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # torchrun's process listens there
            self._serves_store = place.rank == 0 and not has_agent
            try:
                self._own_store = dist.TCPStore(
                    address, port, place.ranks, self._serves_store,
                    datetime.timedelta(milliseconds=_left_ms(deadline)), wait_for_workers=False, multi_tenant=True)
            except (OSError, RuntimeError, ValueError) as error:
                raise self._absent(0, f"it did not open {address}:{port} ({error})") from error
        return self._own_store

    def _meet(self, store: Any, place: Place, deadline: float) -> str:
        """Announces this rank, and returns the name of the group that all ranks make now."""
        token = uuid.uuid4().hex
        store.set(f"{_KEYS}/here/{place.rank}", token)
        try:
            if place.rank:
                name = self._await(store, f"{_KEYS}/name/{token}", deadline, bool) or _absence(_first_absent(store, place))
            else:
                name = self._answer(store, place, token, deadline)
        finally:
            store.set(f"{_KEYS}/here/{place.rank}", "")
        if name.startswith(_ABSENT):
            raise self._absent(int(name[len(_ABSENT):]), "it did not arrive in time, or had given up when this "
                                                         "rank arrived")
        return name

    def _answer(self, store: Any, place: Place, name: str, deadline: float) -> str:
        """Tells all ranks that are here the group's name or, if one is missing, which. Only rank 0 calls it."""
        tokens = {}
        for rank in range(1, place.ranks):
            before = self._answered.get(rank)
            tokens[rank] = self._await(store, f"{_KEYS}/here/{rank}", deadline, lambda said: said != before)
        absent = [rank for rank, token in tokens.items() if not token]
        answer = _absence(absent[0]) if absent else name
        for rank, token in tokens.items():
            if token:
                store.set(f"{_KEYS}/name/{token}", answer)
                self._answered[rank] = token
        return answer

    def _absent(self, rank: int, what: str) -> DeadlineExceeded:
        error = DeadlineExceeded(f"rank {rank} is missing: {what}; {self._asks}")
        error.rank = rank
        return error

    @staticmethod
    def _await(store: Any, key: str, deadline: float, is_fine: Callable[[str], bool]) -> str:
        """Waits for a value of the key that `is_fine` accepts, and returns it; "" after the deadline."""
        while True:
            said = _look(store, key)
            if said and is_fine(said):
                return said
            if time.monotonic() >= deadline:
                return ""
            time.sleep(_LOOK_AGAIN_S)

    @staticmethod
    def _make(name: str, store: Any, place: Place, deadline: float) -> _group.Group:
        from syncline.torch._backend.meeting import await_key, network

        def get(key: str, wait_ms: int) -> bytes:
            return await_key(store, f"{_KEYS}/{name}/{key}", wait_ms)

        def put(key: str, value: bytes) -> None:
            store.set(f"{_KEYS}/{name}/{key}", value.decode("ascii"))

        return _group.Group(f"syncline-assert-{name}", place.rank, place.ranks, put, get, _left_ms(deadline), network())


def number_of(variable: str, otherwise: int) -> int:
    """Returns the number in an environment variable, or `otherwise` if that is empty or not set."""
    value = os.environ.get(variable, "") or str(otherwise)
    if not value.isdecimal():
        raise InvalidArgument(f"{variable} is {value!r}, but must be a number")
    return int(value)


def _look(store: Any, key: str) -> str:
    """Returns the value of a key, or "" while the store does not have it."""
    from syncline.torch._backend.meeting import look

    return (look(store, key) or b"").decode()


def _first_absent(store: Any, place: Place) -> int:
    here = (_look(store, f"{_KEYS}/here/{rank}") or rank == place.rank for rank in range(place.ranks))
    return next((rank for rank, is_here in enumerate(here) if not is_here), 0)


def _absence(rank: int) -> str:
    """Returns the answer that replaces a group's name if `rank` is missing."""
    return f"{_ABSENT}{rank}"


def _left_ms(deadline: float) -> int:
    return max(1, int((deadline - time.monotonic()) * 1000))
