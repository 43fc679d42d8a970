"""A group of ranks that call collective operations together: worker/c/syncline.h as ctypes sees it.

Every member makes the same calls in the same order. A member that dies, hangs, leaves or calls something else ends
every operation on all others with an error whose `rank` names it.
"""
from __future__ import annotations

import atexit
import collections
import ctypes
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

_DEADLINE_EXCEEDED = 4
_SLICE_MS = 100  # after so long Python handles signals

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


@functools.lru_cache(maxsize=None)
def _typed() -> ctypes.CDLL:
    loaded = _library.library()
    for name, result, arguments in (
        ("syncline_last_error_rank", c_int, []),
        ("syncline_group_create", c_int, [POINTER(GroupOptionsStruct), POINTER(c_void_p)]),
        ("syncline_group_free", None, [c_void_p]),
        ("syncline_group_start", c_int, [c_void_p, POINTER(CallStruct), POINTER(c_void_p)]),
        ("syncline_handle_wait", c_int, [c_void_p, c_int64]),
        ("syncline_handle_is_done", c_int, [c_void_p]),
        ("syncline_handle_free", None, [c_void_p]),
        ("syncline_group_abort", None, [c_void_p]),
        ("syncline_group_settle", None, [c_void_p]),
        ("syncline_compressed_check_codec", c_int, [c_char_p]),
        ("syncline_compressed_create", c_int, [c_void_p, c_char_p, c_size_t, c_uint64, POINTER(c_void_p)]),
        ("syncline_compressed_mean", c_int, [c_void_p, c_void_p, c_size_t]),
        ("syncline_compressed_sent_bytes", c_uint64, [c_void_p]),
        ("syncline_compressed_free", None, [c_void_p]),
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
    """An operation under way. Keeps its group alive, and what `keeps` holds until the operation is over."""

    def __init__(self, group: Group, handle: c_void_p, keeps: object) -> None:
        self._group, self._handle, self._keeps = group, handle, keeps

    def wait(self, timeout_ms: int = FOREVER) -> None:
        """Raises what went wrong; DeadlineExceeded also when the time is over first."""
        deadline = None if timeout_ms == FOREVER else time.monotonic() + timeout_ms / 1000
        while True:
            left = _SLICE_MS if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
            was_done = self.done()  # then what wait says is the operation's result
            code = _typed().syncline_handle_wait(self._handle, min(left, _SLICE_MS))
            if code != _DEADLINE_EXCEEDED or was_done or (deadline is not None and left <= _SLICE_MS):
                return _check(code)

    def done(self) -> bool:
        return bool(_typed().syncline_handle_is_done(self._handle))

    def __del__(self) -> None:
        self._group.take_over(self._handle, self._keeps)


_all: weakref.WeakSet[Group] = weakref.WeakSet()


@atexit.register
def settle_all() -> None:
    """The others may still need what this process gave: it must not end before that has left."""
    for group in list(_all):
        group.settle()


class Group:
    """`put(key, bytes)` and `get(key, timeout_ms) -> bytes` reach a store that all members share. `network` has address, host
    and security of syncline_group_options."""

    def __init__(self, name: str, rank: int, ranks: int, put: Callable[[str, bytes], None],
                 get: Callable[[str, int], bytes], timeout_ms: int = 0,
                 network: Optional[Mapping[str, str]] = None, exact_order: bool = False,
                 start_timeout_ms: int = 0) -> None:
        self.handle = c_void_p()
        _all.add(self)
        self._ranks, self._process = ranks, os.getpid()
        # Operations under way that nobody waits for any more. No lock: they come from __del__, in the middle of anything.
        self._orphans: collections.deque[tuple[c_void_p, object]] = collections.deque()
        failure: list[BaseException] = []  # of the callbacks, which must return

        def on_set(_: object, key: bytes, value: int, size: int) -> int:
            try:
                put(key.decode(), ctypes.string_at(value, size))
                return 0
            except BaseException as error:
                failure.append(error)
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
                failure.append(error)
                return 1

        options = GroupOptionsStruct(
            struct_size=ctypes.sizeof(GroupOptionsStruct), name=name.encode(), rank=rank, ranks=ranks,
            store=StoreStruct(None, SetFunction(on_set), GetFunction(on_get)), timeout_ms=timeout_ms,
            start_timeout_ms=start_timeout_ms or timeout_ms, exact_order=exact_order, **{option: value.encode() for option, value in (network or {}).items()})
        code = _typed().syncline_group_create(byref(options), byref(self.handle))
        for error in failure:
            if not isinstance(error, Exception):  # Ctrl-C
                raise error
        try:
            _check(code)
        except Exception as error:
            raise error from (failure[0] if failure else None)

    def start(self, op: int, *, dtype: int = UINT8, reduction: int = SUM, input: int = 0, output: int = 0, count: int = 0,
              root: int = 0, source: int = 0, tag: int = 0, counts: Optional[tuple[Sequence[int], Sequence[int]]] = None,
              timeout_ms: int = 0, factor: float = 1.0, algorithm: Optional[str] = None, label: str = "",
              keeps: object = None) -> Handle:
        """`input` and `output` are addresses, which `keeps` keeps valid; `counts` are those to and from each rank; `label` is what the
        elements are to the program."""
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
        _check(_typed().syncline_group_start(self.handle, byref(call), byref(handle)))
        return Handle(self, handle, keeps)

    def take_over(self, handle: c_void_p, keeps: object) -> None:
        """A handle that nobody needs any more: the operation may still write to what `keeps` holds."""
        if handle and self.handle and self._process == os.getpid():  # a forked child has no operations
            self._orphans.append((handle, keeps))
            self._free_orphans()

    def _free_orphans(self) -> None:
        for _ in range(len(self._orphans)):
            try:
                handle, keeps = self._orphans.popleft()
            except IndexError:  # another thread had it
                return
            if _typed().syncline_handle_is_done(handle):
                _typed().syncline_handle_free(handle)
            else:
                self._orphans.append((handle, keeps))

    def settle(self) -> None:
        """Waits until what this rank gave has reached the others' hosts."""
        if self.handle and self._process == os.getpid():
            _typed().syncline_group_settle(self.handle)

    def abort(self) -> None:
        """Ends everything under way, on all members, and the group."""
        if self.handle:
            _typed().syncline_group_abort(self.handle)

    def __del__(self) -> None:
        # Handles hold their group: only orphans are left. Freeing the group ends them; what they keep lives until then.
        if not getattr(self, "handle", None):
            return
        if self._process == os.getpid():
            for handle, _ in self._orphans:
                _typed().syncline_handle_free(handle)
        _typed().syncline_group_free(self.handle)
        self.handle = c_void_p()


def check_codec(codec: str) -> None:
    """Raises what is wrong with a codec of CompressedMean."""
    _check(_typed().syncline_compressed_check_codec(codec.encode()))


class CompressedMean:
    """The mean of one FP32 tensor over a group, of values that travel encoded; what an encoding loses is kept for the next."""

    def __init__(self, group: Group, codec: str, count: int, seed: int = 0) -> None:
        self._group, self._process, self.count = group, os.getpid(), count
        self._handle = c_void_p()
        _check(_typed().syncline_compressed_create(group.handle, codec.encode(), count, seed, byref(self._handle)))

    def run(self, values: int) -> None:
        """Replaces the values at that address. Every rank calls it; nothing else uses the group meanwhile."""
        _check(_typed().syncline_compressed_mean(self._handle, values, self.count))

    @property
    def sent_bytes(self) -> int:
        """So far, by this rank."""
        return int(_typed().syncline_compressed_sent_bytes(self._handle))

    def __del__(self) -> None:
        # Before its group, which it keeps; in a child it can only be forgotten.
        if getattr(self, "_handle", None) and self._process == os.getpid():
            _typed().syncline_compressed_free(self._handle)
            self._handle = c_void_p()
