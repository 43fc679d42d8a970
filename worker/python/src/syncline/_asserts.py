"""assert_equal: checks that a tensor is the same on all ranks, and finds the first difference if not.

Ranks compare in a group of their own (_gathering.py). They compare digests first, so that equal tensors cost a few kilobytes, and then
rank 0's values, piece by piece, until one differs.
"""
from __future__ import annotations

import ctypes
import hashlib
import json
import numbers
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from syncline import _group
from syncline._gathering import Gathering, Place, number_of
from syncline._open_sessions import only_session_or_none
from syncline.errors import Error, FailedPrecondition, InvalidArgument, NotEqual
from syncline.session import Session

_PIECE_BYTES = 4 << 20
_RECORD_BYTES = 2048  # of the record in which a rank describes its tensor or a piece of it
_LONGEST_NAME = 200
_PATIENCE_S = 60.0  # of check_equal and gather

_Result = TypeVar("_Result")

_gathering = Gathering()
_lock = threading.Lock()


def assert_equal(tensor: Any, tolerance: float = 0.0, *, name: str = "tensor", timeout: float = 60.0,
                 session: Optional[Session] = None) -> None:
    """Raises NotEqual on every rank unless `tensor` is the same on all of them, and names the first that differs from rank 0.

    All ranks of the job call it at the same place, with a tensor or a NumPy array of the same shape and dtype. Two values are equal if
    they differ by `tolerance` at most, or are both not a number. If a rank does not come within `timeout` seconds, or dies meanwhile,
    all others raise an error that names it. `session` is needed if this process has several.

        optimizer.synchronize()                                  # waits for new weights that are on their way
        syncline.assert_equal(model.head.weight, name="head")

    Ranks meet through torch.distributed's default group if there is one, and at MASTER_ADDR and MASTER_PORT otherwise.
    """
    for option, value in (("tolerance", tolerance), ("timeout", timeout)):
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise InvalidArgument(f"assert_equal({name!r}): {option} is {value!r}, but must be a number")
    if not 0 <= tolerance < float("inf"):
        raise InvalidArgument(f"assert_equal({name!r}): tolerance is {tolerance}, but must be 0 or more, and finite")
    if not 0 < timeout <= 86400:
        raise InvalidArgument(f"assert_equal({name!r}): timeout is {timeout}, but must be more than 0, and 86400 s at most")
    what = _Compared(name[:_LONGEST_NAME], _values_of(tensor, name), tolerance)
    _compare(what, Caller(f"assert_equal({what.name!r})", "does it also call assert_equal, as often as the "
                                                          "others?"), timeout, session)


class Caller(NamedTuple):
    """Texts for errors about the call that compares."""

    says: str  # the call itself
    asks: str  # a question about a rank that does not come


def check_equal(tensor: Any, name: str, caller: Caller, session: Session) -> None:
    """Does assert_equal on behalf of another call, `caller`, which its errors mention instead."""
    _compare(_Compared(name[:_LONGEST_NAME], _values_of(tensor, name), 0.0), caller, _PATIENCE_S, session)


def gather(numbers: Sequence[Optional[float]], caller: Caller, session: Session) -> list[Sequence[Optional[float]]]:
    """Returns the `numbers` of all ranks at this step, by rank. All ranks call it; a missing rank is an error as in assert_equal."""
    with _lock:
        place, step = _place(session)
        if place.ranks == 1:
            return [numbers]
        # Numbers travel as JSON, which keeps their bits.
        comparison = _Comparison(place, step, _Compared(caller.says, None, 0.0), time.monotonic() + _PATIENCE_S)
        return _meet(comparison, caller, lambda group: comparison.gather(group, numbers))


def ended() -> int:
    """Returns how many comparisons this rank has ended by an error or by Ctrl-C on all ranks. The others raise an error then."""
    return _gathering.ended


def _compare(what: _Compared, caller: Caller, timeout: float, session: Optional[Session]) -> None:
    with _lock:
        place, step = _place(session)
        if place.ranks == 1:
            return
        comparison = _Comparison(place, step, what, time.monotonic() + timeout)
        _meet(comparison, caller, comparison.run)


def _meet(comparison: _Comparison, caller: Caller, call: Callable[[_group.Group], _Result]) -> _Result:
    """Runs `call` with the group of all ranks. If it fails, the group ends, so that all ranks notice."""
    try:
        while True:
            group = _gathering.group(comparison.place, comparison.deadline, caller.asks)
            try:
                return call(group)
            except NotEqual:
                raise
            except Error:
                if not _gathering.was_over():  # a new group never was
                    raise
    except NotEqual:
        raise
    except Error as error:
        _gathering.drop()
        again = type(error)(f"{caller.says}{comparison.at_step}: {error}")
        again.rank, again.exit_code = error.rank, error.exit_code
        raise again from error
    except BaseException:  # Ctrl-C: ending the group tells the others
        _gathering.drop()
        raise


def _place(session: Optional[Session]) -> tuple[Place, Optional[int]]:
    """Returns this process's rank and number of ranks, and the step of its session; None: it has no session."""
    of = session or only_session_or_none()
    if of is not None:
        return Place(of.rank, of.world_size), of.step
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return Place(dist.get_rank(), dist.get_world_size()), None
    return Place(number_of("RANK", 0), number_of("WORLD_SIZE", 1)), None


def _values_of(tensor: Any, name: str) -> Any:
    """Returns the values as a contiguous torch tensor in host memory."""
    try:
        import torch
    except ImportError as error:
        raise FailedPrecondition("assert_equal needs torch, with which ranks find each other") from error
    try:
        values = tensor if isinstance(tensor, torch.Tensor) else torch.from_numpy(_contiguous(tensor))
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"assert_equal({name!r}): neither a torch tensor nor a NumPy array of a type that "
                              f"torch knows: {error}") from error
    if values.layout != torch.strided or values.is_quantized:
        raise InvalidArgument(f"assert_equal({name!r}): the tensor is {values.layout} of {values.dtype}; give a dense one")
    return values.detach().cpu().contiguous()


def _contiguous(array: Any) -> Any:
    import numpy

    if not isinstance(array, numpy.ndarray):
        raise TypeError(f"it is a {type(array).__qualname__}")
    return numpy.ascontiguousarray(array).reshape(array.shape)


class _Compared(NamedTuple):
    name: str
    values: Any
    tolerance: float


class _Comparison:
    """One call of assert_equal. All ranks see the same records, so they come to the same result."""

    def __init__(self, place: Place, step: Optional[int], what: _Compared, deadline: float) -> None:
        self.place, self._step, self.deadline = place, step, deadline
        self.name, self._values, self._tolerance = what
        self._is_tensor = self._values is not None

    @property
    def at_step(self) -> str:
        return "" if self._step is None else f" at step {self._step}"

    def run(self, group: _group.Group) -> None:
        count = self._values.numel() * self._values.element_size()
        digest = hashlib.blake2b(ctypes.string_at(self._values.data_ptr(), count), digest_size=16).hexdigest()
        said = self._exchange(group, {
            "name": self.name, "shape": list(self._values.shape), "dtype": str(self._values.dtype).replace("torch.", ""),
            "tolerance": self._tolerance, "step": self._step, "digest": digest})
        self._check_same(said, ("step", "name", "shape", "dtype", "tolerance"))
        if any(other["digest"] != said[0]["digest"] for other in said):
            self._find(group)

    def gather(self, group: _group.Group, numbers: Sequence[Optional[float]]) -> list[Sequence[Optional[float]]]:
        said = self._exchange(group, {"name": self.name, "step": self._step, "numbers": numbers})
        self._check_same(said, ("step", "name"))
        return [other["numbers"] for other in said]

    def _check_same(self, said: list[Any], fields: Iterable[str]) -> None:
        first = said[0]
        for rank, other in enumerate(said):
            for what in fields:
                # A record of another kind of call may lack the field.
                if other.get(what) != first.get(what):
                    self.name, self._step, self._is_tensor = first["name"], first["step"], "numbers" not in first  # all ranks say the same
                    raise self._error(rank, None, f"rank {rank} compares one of {what} {other.get(what)}, rank 0 one of {first.get(what)}")

    def _find(self, group: _group.Group) -> None:
        flat = self._values.reshape(-1)
        length = max(1, _PIECE_BYTES // flat.element_size())
        for begin in range(0, flat.numel(), length):
            own = flat[begin:begin + length]
            reference = own.clone()
            self._wait(group.start(
                _group.BROADCAST, output=reference.data_ptr(), count=reference.numel() * reference.element_size(), root=0,
                timeout_ms=self._left_ms(), keeps=reference))
            differs = _first_difference(own, reference, self._tolerance)
            found = {} if differs is None else {
                "index": begin + differs, "has": str(own[differs].item()), "first": str(reference[differs].item())}
            said = self._exchange(group, found)
            ranks = [rank for rank, other in enumerate(said) if other]
            if ranks:
                self._raise_difference(said, ranks)

    def _raise_difference(self, said: list[Any], ranks: list[int]) -> None:
        found = said[ranks[0]]
        index = _index(found["index"], self._values.shape)
        others = f"; so do ranks {', '.join(map(str, ranks[1:9]))}{', ...' if len(ranks) > 9 else ''}" if ranks[1:] else ""
        raise self._error(ranks[0], index, f"rank {ranks[0]} has {found['has']} at {list(index)}, rank 0 has {found['first']} "
                                           f"(tolerance {self._tolerance:g}){others}")

    def _error(self, rank: int, index: Optional[tuple[int, ...]], what: str) -> NotEqual:
        subject = f"tensor {self.name!r}" if self._is_tensor else self.name
        error = NotEqual(f"{subject} differs between ranks{self.at_step}: {what}")
        error.rank, error.tensor, error.index, error.step = rank, self.name if self._is_tensor else "", index, self._step
        return error

    def _exchange(self, group: _group.Group, record: dict[str, Any]) -> list[Any]:
        """Sends this rank's record to all others. Returns the records of all ranks, by rank."""
        own = json.dumps(record).encode()
        if len(own) > _RECORD_BYTES:
            raise InvalidArgument(f"the name or the shape is too long: {len(own)} bytes")
        given = ctypes.create_string_buffer(own.ljust(_RECORD_BYTES), _RECORD_BYTES)
        taken = ctypes.create_string_buffer(self.place.ranks * _RECORD_BYTES)
        self._wait(group.start(
            _group.ALL_GATHER, input=ctypes.addressof(given), output=ctypes.addressof(taken), count=_RECORD_BYTES,
            timeout_ms=self._left_ms(), keeps=(given, taken)))
        raw = taken.raw
        return [json.loads(raw[at:at + _RECORD_BYTES]) for at in range(0, len(raw), _RECORD_BYTES)]

    def _wait(self, handle: _group.Handle) -> None:
        # The operation's own timeout ends first; its error names the rank that is missing.
        handle.wait(self._left_ms() + 10_000)

    def _left_ms(self) -> int:
        return max(1, int((self.deadline - time.monotonic()) * 1000))


def _first_difference(own: Any, reference: Any, tolerance: float) -> Optional[int]:
    """Returns the first index at which `own` differs from `reference` by more than `tolerance`; None: nowhere."""
    import torch

    equal = own == reference
    if own.is_floating_point() or own.is_complex():
        equal |= own.isnan() & reference.isnan()
    if tolerance > 0:
        wide = torch.complex128 if own.is_complex() else torch.float64
        equal |= (own.to(wide) - reference.to(wide)).abs() <= tolerance
    wrong = (~equal).nonzero()
    return int(wrong[0].item()) if len(wrong) else None


def _index(flat: int, shape: Any) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        flat, at = divmod(flat, size)
        index.insert(0, at)
    return tuple(index)
