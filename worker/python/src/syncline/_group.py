"""A group of ranks that call collective operations together: the group functions of worker/c/syncline.h, by ctypes.

Every member makes the same calls in the same order. If a member dies, hangs, leaves or makes another call, every operation on all other
members ends with an error whose `rank` names it.
"""
from __future__ import annotations

import atexit
import collections
import ctypes
import dataclasses
import functools
import os
import time
import weakref
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Callable, Mapping, Optional, Sequence

from syncline import _library
from syncline._library import FOREVER, check
from syncline.errors import InvalidArgument

FLOAT64, INT64, INT32, INT8, UINT8 = 3, 4, 5, 6, 7
(ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, REDUCE, GATHER, SCATTER, ALL_TO_ALL, BARRIER,
 SEND_RECEIVE) = range(10)
SUM, AVERAGE, MIN, MAX, PRODUCT, PREMULTIPLIED_SUM, BITWISE_AND, BITWISE_OR, BITWISE_XOR = range(9)

_DEADLINE_EXCEEDED, _UNIMPLEMENTED = 4, 12
_SLICE_MS = 100  # longest time without handling signals

SetFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_void_p, c_size_t)
GetFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_char_p, c_int64, c_void_p, POINTER(c_size_t))


class StoreStruct(ctypes.Structure):
    """syncline_store"""

    _fields_ = [("context", c_void_p), ("set", SetFunction), ("get", GetFunction)]


class GroupOptionsStruct(ctypes.Structure):
    """syncline_group_options"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("rank", c_uint32),
        ("ranks", c_uint32),
        ("store", StoreStruct),
        ("failure_timeout_ms", c_int64),
        ("timeout_ms", c_int64),
        ("start_timeout_ms", c_int64),
        ("address", c_char_p),
        ("host", c_char_p),
        ("security", c_char_p),
        ("exact_order", c_int),
        ("costs", c_char_p),
    ]


class CallStruct(ctypes.Structure):
    """syncline_call"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("op", c_int),
        ("dtype", c_int),
        ("reduction", c_int),
        ("input", c_void_p),
        ("output", c_void_p),
        ("count", c_size_t),
        ("root", c_uint32),
        ("source", c_uint32),
        ("tag", c_uint32),
        ("send_counts", POINTER(c_size_t)),
        ("receive_counts", POINTER(c_size_t)),
        ("algorithm", c_char_p),
        ("timeout_ms", c_int64),
        ("factor", c_double),
        ("label", c_char_p),
    ]


class GossipOptionsStruct(ctypes.Structure):
    """syncline_gossip_options"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("graph", c_char_p),
        ("codec", c_char_p),
        ("gamma", c_double),
        ("seed", c_uint64),
        ("count", c_size_t),
        ("base", c_void_p),
    ]


class NcclOptionsStruct(ctypes.Structure):
    """syncline_nccl_options"""

    _fields_ = [("struct_size", c_size_t), ("group", POINTER(GroupOptionsStruct)), ("device", c_uint64), ("why_not", c_char_p)]


@functools.lru_cache(maxsize=None)
def _typed() -> ctypes.CDLL:
    loaded = _library.library()
    for name, result, arguments in (
        ("syncline_last_error_rank", c_int, []),
        ("syncline_group_create", c_int, [POINTER(GroupOptionsStruct), POINTER(c_void_p)]),
        ("syncline_group_free", None, [c_void_p]),
        ("syncline_group_describe_costs", c_char_p, [c_void_p]),
        ("syncline_group_start", c_int, [c_void_p, POINTER(CallStruct), POINTER(c_void_p)]),
        ("syncline_handle_wait", c_int, [c_void_p, c_int64]),
        ("syncline_handle_is_done", c_int, [c_void_p]),
        ("syncline_handle_free", None, [c_void_p]),
        ("syncline_group_abort", None, [c_void_p]),
        ("syncline_group_settle", None, [c_void_p]),
        ("syncline_nccl_create", c_int, [c_void_p, POINTER(NcclOptionsStruct), POINTER(c_void_p)]),
        ("syncline_nccl_free", None, [c_void_p]),
        ("syncline_nccl_start", c_int, [c_void_p, POINTER(CallStruct), c_void_p, POINTER(c_void_p)]),
        ("syncline_nccl_leave", None, [c_void_p]),
        ("syncline_nccl_abort", None, [c_void_p]),
        ("syncline_compressed_check_codec", c_int, [c_char_p]),
        ("syncline_compressed_create", c_int, [c_void_p, c_char_p, c_size_t, c_uint64, POINTER(c_void_p)]),
        ("syncline_compressed_mean", c_int, [c_void_p, c_void_p, c_size_t]),
        ("syncline_compressed_sent_bytes", c_uint64, [c_void_p]),
        ("syncline_compressed_free", None, [c_void_p]),
        ("syncline_gossip_check", c_int, [POINTER(GossipOptionsStruct), POINTER(c_double)]),
        ("syncline_gossip_create", c_int, [c_void_p, POINTER(GossipOptionsStruct), POINTER(c_void_p)]),
        ("syncline_gossip_exchange", c_int, [c_void_p, c_uint64, c_void_p, c_void_p, c_size_t, POINTER(c_int)]),
        ("syncline_gossip_distance", c_int, [c_void_p, c_void_p, c_size_t, POINTER(c_double)]),
        ("syncline_gossip_sent_bytes", c_uint64, [c_void_p]),
        ("syncline_gossip_kept_bytes", c_uint64, [c_void_p]),
        ("syncline_gossip_free", None, [c_void_p]),
    ):
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def _check(code: int) -> None:
    if not code:
        return
    rank = _typed().syncline_last_error_rank()
    try:
        check(code)
    except Exception as error:
        error.rank = rank if rank >= 0 else None  # type: ignore[attr-defined]
        raise


class Handle:
    """An operation under way. Keeps its group alive, and what `keeps` holds, until the operation is over."""

    def __init__(self, group: Operations, handle: c_void_p, keeps: object) -> None:
        self._group, self._handle, self._keeps = group, handle, keeps

    def wait(self, timeout_ms: int = FOREVER) -> None:
        """Waits until the operation is over and raises its error. Raises DeadlineExceeded if it is not over in time."""
        deadline = None if timeout_ms == FOREVER else time.monotonic() + timeout_ms / 1000
        while True:
            left = _SLICE_MS if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            was_done = self.done()  # if so, the code of wait is the operation's result
            code = _typed().syncline_handle_wait(self._handle, min(left, _SLICE_MS))
            if code != _DEADLINE_EXCEEDED or was_done or (deadline is not None and left <= _SLICE_MS):
                return _check(code)

    def done(self) -> bool:
        return bool(_typed().syncline_handle_is_done(self._handle))

    def free(self) -> None:
        """The operation goes on, or its group ends it; this object is of no use any more."""
        handle, self._handle = self._handle, c_void_p()
        self._group.take_over(handle, self._keeps)

    def __del__(self) -> None:
        self.free()


_all: weakref.WeakSet[Operations] = weakref.WeakSet()


@atexit.register
def settle_all() -> None:
    """Waits until data that this process gave has left it, before the process ends: other members may still need it."""
    for one in list(_all):
        one.settle()


class Membership:
    """The way in which a rank finds the others: through a store that all members share.

    `put(key, bytes)` and `get(key, timeout_ms) -> bytes` reach the store. `network` has address, host, security and costs of
    syncline_group_options.
    """

    def __init__(self, name: str, rank: int, ranks: int, put: Callable[[str, bytes], None], get: Callable[[str, int], bytes],
                 timeout_ms: int = 0, network: Optional[Mapping[str, str]] = None, exact_order: bool = False,
                 start_timeout_ms: int = 0) -> None:
        self.rank, self.ranks = rank, ranks
        self.failure: list[BaseException] = []  # errors of the callbacks, which must not raise

        def on_set(_: object, key: bytes, value: int, size: int) -> int:
            try:
                put(key.decode(), ctypes.string_at(value, size))
                return 0
            except BaseException as error:
                self.failure.append(error)
                return 1

        def on_get(_: object, key: bytes, wait_ms: int, value: int, size: object) -> int:
            try:
                found = get(key.decode(), wait_ms)
                if len(found) > size[0]:  # type: ignore[index]
                    return 1
                ctypes.memmove(value, found, len(found))
                size[0] = len(found)  # type: ignore[index]
                return 0
            except BaseException as error:
                self.failure.append(error)
                return 1

        self.options = GroupOptionsStruct(
            struct_size=ctypes.sizeof(GroupOptionsStruct), name=name.encode(), rank=rank, ranks=ranks,
            store=StoreStruct(None, SetFunction(on_set), GetFunction(on_get)), timeout_ms=timeout_ms,
            start_timeout_ms=start_timeout_ms or timeout_ms, exact_order=exact_order, **{option: value.encode() for option, value in (network or {}).items()})

    def check(self, code: int) -> None:
        for error in self.failure:
            if not isinstance(error, Exception):  # Ctrl-C
                raise error
        try:
            _check(code)
        except Exception as error:
            raise error from (self.failure[0] if self.failure else None)


class Operations:
    """Base of groups: starts operations, and keeps those that no caller waits for until they are over."""

    def __init__(self, ranks: int) -> None:
        self.handle = c_void_p()
        self._ranks, self._process = ranks, os.getpid()
        # Operations under way that no caller waits for. It has no lock, because __del__ adds to it at any point of a program.
        self._orphans: collections.deque[tuple[c_void_p, object]] = collections.deque()
        _all.add(self)

    def _start(self, call: CallStruct, stream: int, handle: c_void_p) -> int:
        raise NotImplementedError

    def settle(self) -> None:
        """Prepares for the end of the process."""
        raise NotImplementedError

    def _free(self) -> None:
        raise NotImplementedError

    def start(self, op: int, *, dtype: int = UINT8, reduction: int = SUM, input: int = 0, output: int = 0, count: int = 0,
              root: int = 0, source: int = 0, tag: int = 0, counts: Optional[tuple[Sequence[int], Sequence[int]]] = None,
              timeout_ms: int = 0, factor: float = 1.0, algorithm: Optional[str] = None, label: str = "", stream: int = 0,
              keeps: object = None) -> Handle:
        """Starts an operation.

        `input` and `output` are addresses; `keeps` holds the objects that keep them valid. `counts` are the numbers of elements to and
        from each rank. `label` says what the elements are to the program, such as their type; it must be the same on all ranks.
        `stream` is the GPU's stream, for an operation on a GPU.
        """
        if counts is not None and not len(counts[0]) == len(counts[1]) == self._ranks:
            raise InvalidArgument(
                f"counts to {len(counts[0])} and from {len(counts[1])} ranks, in a group of {self._ranks}: give one for each rank")
        self._free_orphans()
        call = CallStruct(
            struct_size=ctypes.sizeof(CallStruct), op=op, dtype=dtype, reduction=reduction, input=input or None,
            output=output or None, count=count, root=root, source=source, tag=tag, timeout_ms=timeout_ms,
            factor=factor, algorithm=algorithm.encode() if algorithm else None,
            label=label.encode())
        if counts is not None:
            call.send_counts = (c_size_t * len(counts[0]))(*counts[0])
            call.receive_counts = (c_size_t * len(counts[1]))(*counts[1])
        handle = c_void_p()
        _check(self._start(call, stream, handle))
        return Handle(self, handle, keeps)

    def take_over(self, handle: c_void_p, keeps: object) -> None:
        """Takes over a handle that no caller needs. The operation may still write to what `keeps` holds."""
        if handle and self.handle and self._process == os.getpid():  # a forked child has no operations
            self._orphans.append((handle, keeps))
            self._free_orphans()

    def _free_orphans(self) -> None:
        for _ in range(len(self._orphans)):
            try:
                handle, keeps = self._orphans.popleft()
            except IndexError:  # another thread took it
                return
            if _typed().syncline_handle_is_done(handle):
                _typed().syncline_handle_free(handle)
            else:
                self._orphans.append((handle, keeps))

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Leaves, so that the others go on or hear of it, whoever still refers to this one, as the traceback of an error does.

        Handles are freed before: where this one is not referred to only orphans are left.
        """
        # Freeing the group ends the orphans; what they keep lives until then.
        if not getattr(self, "handle", None):
            return
        if self._process == os.getpid():
            for handle, _ in self._orphans:
                _typed().syncline_handle_free(handle)
        self._free()
        self.handle = c_void_p()


class Group(Operations):
    """A group whose operations work on host memory. Its arguments are those of Membership."""

    def __init__(self, name: str, rank: int, ranks: int, put: Callable[[str, bytes], None], get: Callable[[str, int], bytes],
                 timeout_ms: int = 0, network: Optional[Mapping[str, str]] = None, exact_order: bool = False,
                 start_timeout_ms: int = 0) -> None:
        super().__init__(ranks)
        member = Membership(name, rank, ranks, put, get, timeout_ms, network, exact_order, start_timeout_ms)
        member.check(_typed().syncline_group_create(byref(member.options), byref(self.handle)))

    def _start(self, call: CallStruct, stream: int, handle: c_void_p) -> int:
        return int(_typed().syncline_group_start(self.handle, byref(call), byref(handle)))

    def describe_costs(self) -> str:
        """Returns a string for the log: the costs by which algorithms are chosen, and examples of choices."""
        return str(_typed().syncline_group_describe_costs(self.handle).decode(errors="replace"))

    def settle(self) -> None:
        """Waits until the data that this rank gave has reached the other members' hosts."""
        if self.handle and self._process == os.getpid():
            _typed().syncline_group_settle(self.handle)

    def abort(self) -> None:
        """Ends all operations under way, on all members, and the group."""
        if self.handle:
            _typed().syncline_group_abort(self.handle)

    def _free(self) -> None:
        _typed().syncline_group_free(self.handle)


class NcclGroup(Operations):
    """A group whose operations work on the memory of CUDA device number `device`, over NCCL. All members of `group` must make one."""

    def __init__(self, group: Group, member: Membership, device: int, why_not: str = "") -> None:
        """Raises NotImplementedError on all members, with the reason, if there can be no such group.

        `why_not` is the reason why this member does not want one; empty: it does.
        """
        super().__init__(member.ranks)
        options = NcclOptionsStruct(
            struct_size=ctypes.sizeof(NcclOptionsStruct), group=ctypes.pointer(member.options), device=device + 1,
            why_not=why_not.encode() if why_not else None)
        code = _typed().syncline_nccl_create(group.handle, byref(options), byref(self.handle))
        if code == _UNIMPLEMENTED:
            raise NotImplementedError(_typed().syncline_last_error().decode(errors="replace"))
        member.check(code)

    def _start(self, call: CallStruct, stream: int, handle: c_void_p) -> int:
        return int(_typed().syncline_nccl_start(self.handle, byref(call), stream or None, byref(handle)))

    def settle(self) -> None:
        """Ends the group, because no thread may call CUDA when the process ends."""
        if self.handle and self._process == os.getpid():
            _typed().syncline_nccl_leave(self.handle)

    def abort(self) -> None:
        """Ends all operations under way, on all members, and the group."""
        if self.handle:
            _typed().syncline_nccl_abort(self.handle)

    def _free(self) -> None:
        _typed().syncline_nccl_free(self.handle)


def check_codec(codec: str) -> None:
    """Raises if CompressedMean does not take a codec."""
    _check(_typed().syncline_compressed_check_codec(codec.encode()))


class CompressedMean:
    """Computes the mean of one FP32 tensor over a group, with encoded values. What an encoding loses goes with the next mean."""

    def __init__(self, group: Group, codec: str, count: int, seed: int = 0) -> None:
        self._group, self._process, self.count = group, os.getpid(), count
        self._handle = c_void_p()
        _check(_typed().syncline_compressed_create(group.handle, codec.encode(), count, seed, byref(self._handle)))

    def run(self, values: int) -> None:
        """Replaces the values at the address `values` by their mean. Every rank calls it; nothing else may use the group meanwhile."""
        _check(_typed().syncline_compressed_mean(self._handle, values, self.count))

    @property
    def sent_bytes(self) -> int:
        """Number of bytes that this rank has sent so far."""
        return int(_typed().syncline_compressed_sent_bytes(self._handle))

    def __del__(self) -> None:
        # It is freed before its group, which it keeps alive. A forked child cannot free it.
        if getattr(self, "_handle", None) and self._process == os.getpid():
            _typed().syncline_compressed_free(self._handle)
            self._handle = c_void_p()


@dataclasses.dataclass(frozen=True)
class GossipSettings:
    """The settings that must be the same on all ranks that gossip."""

    graph: str
    codec: str
    gamma: float  # 0: the codec's default
    seed: int
    count: int

    def checked(self) -> GossipSettings:
        """Returns the settings with the gamma that will be used. Raises if one of them is wrong."""
        gamma = c_double()
        _check(_typed().syncline_gossip_check(byref(self.struct()), byref(gamma)))
        return dataclasses.replace(self, gamma=gamma.value)

    def struct(self, base: int = 0) -> GossipOptionsStruct:
        """Returns the library's struct. `base` is an address; 0: none."""
        return GossipOptionsStruct(struct_size=ctypes.sizeof(GossipOptionsStruct), graph=self.graph.encode(), codec=self.codec.encode(),
                                   gamma=self.gamma, seed=self.seed, count=self.count, base=base or None)


class PairGossip:
    """Averages in pairs within a group. Nothing else may send or receive in the group meanwhile. Not thread-safe."""

    def __init__(self, group: Group, settings: GossipSettings, base: int) -> None:
        self._group, self._process, self._count = group, os.getpid(), settings.count
        self._handle = c_void_p()
        _check(_typed().syncline_gossip_create(group.handle, byref(settings.struct(base)), byref(self._handle)))

    def exchange(self, number: int, values: int, delta: int) -> Optional[int]:
        """Does round `number`: writes to the address `delta` what to add to `values`. Returns the partner's rank; None: it had none."""
        partner = c_int()
        _check(_typed().syncline_gossip_exchange(self._handle, number, values, delta, self._count, byref(partner)))
        return partner.value if partner.value >= 0 else None

    def distance(self, values: int) -> float:
        """Returns sqrt(mean over ranks of |values - mean|^2), within 4 %. All ranks call it."""
        distance = c_double()
        _check(_typed().syncline_gossip_distance(self._handle, values, self._count, byref(distance)))
        return distance.value

    @property
    def sent_bytes(self) -> int:
        """Number of bytes that this rank has sent so far."""
        return int(_typed().syncline_gossip_sent_bytes(self._handle))

    @property
    def kept_bytes(self) -> int:
        """Number of bytes of memory that this rank keeps for its partners."""
        return int(_typed().syncline_gossip_kept_bytes(self._handle))

    def close(self) -> None:
        """Lets go of its group, too."""
        # As CompressedMean's.
        if getattr(self, "_handle", None) and self._process == os.getpid():
            _typed().syncline_gossip_free(self._handle)
            self._handle = c_void_p()

    def __del__(self) -> None:
        self.close()
