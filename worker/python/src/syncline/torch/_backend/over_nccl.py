"""Runs operations on a GPU's tensors over NCCL, if each rank of the group has a GPU of its own and NCCL can be loaded.

Otherwise the tensors go through host memory (_backend/host_copies.py). All ranks come to the same decision: when their group is formed
they check whether all have GPUs, and the rest when they first call an operation on a GPU's tensors.

An operation runs on a stream of its own, and begins once the program's stream has reached the call. `wait()` blocks the program until
the operation is over, so that nothing uses a result that a rank left half done when it died.
"""
from __future__ import annotations

import ctypes
import itertools
import logging
import os
import threading
from typing import TYPE_CHECKING, Callable, Dict, Optional, Sequence

import torch

from syncline import _group, _log, _staging
from syncline._staging import Device
from syncline.torch._backend.host_copies import HostCopies, dense

if TYPE_CHECKING:
    from syncline.torch._backend.reductions import Reduction
    from syncline.torch._backend.starts import Starts

_VARIABLE = "SYNCLINE_NCCL"


def why_not() -> str:
    """Returns why this rank does not use NCCL; "": it can."""
    value = os.environ.get(_VARIABLE, "")
    if value not in ("", "0", "1"):
        raise ValueError(f"{_VARIABLE} is {value!r}, but must be 1, or 0: tensors of GPUs go by way of the host")
    if value == "0":
        return f"{_VARIABLE}=0"
    if torch.version.hip is not None:
        return "this torch is built for ROCm"
    return "" if torch.cuda.is_available() else "torch finds no GPU"


def _is_possible(group: _group.Group) -> bool:
    """Returns whether all ranks can use NCCL. The answer is the same on all of them."""
    may = ctypes.c_uint8(not why_not())
    group.start(_group.ALL_REDUCE, reduction=_group.MIN, output=ctypes.addressof(may), count=1, label="may have NCCL", keeps=may).wait()
    return bool(may.value)


class OnGpu(HostCopies):
    """The tensors of one call, on the GPU `where`. Those that are there already are used as they are if they are contiguous."""

    def __init__(self, over: _group.NcclGroup, device: Device, where: torch.device) -> None:
        super().__init__()
        self.over, self.stream, self._where = over, device.stream(), where

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """See HostCopies."""
        self._device_of(tensor)
        return dense(tensor.to(self._where))

    room = given

    def empty(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """See HostCopies."""
        self._device_of(like)
        return torch.empty(count, dtype=like.dtype, device=self._where)


class OverNccl:
    """The NCCL groups of a process group, one for each GPU that tensors were on.

    `member(name)` returns the Membership through which the ranks of an NCCL group meet. Thread-safe.
    """

    def __init__(self, group: _group.Group, starts: "Starts", member: Callable[[str], _group.Membership]) -> None:
        self._group, self._starts, self._member = group, starts, member
        self._numbers = itertools.count()
        self._making = threading.Lock()
        self._groups: Dict[Device, Optional[_group.NcclGroup]] = {}
        self._may = _is_possible(group)

    def copies(self, tensors: Sequence[torch.Tensor], *reductions: "Reduction") -> HostCopies:
        """Returns where a call on these tensors, and possibly others, runs: on the GPU of the first one, or in host memory."""
        device = _staging.device_of(tensors[0], "a tensor") if tensors else None
        if device is None or any(one.code > _group.PREMULTIPLIED_SUM for one in reductions):
            return HostCopies()
        over = self._on(device)
        return HostCopies() if over is None else OnGpu(over, device, tensors[0].device)

    def _on(self, device: Device) -> Optional[_group.NcclGroup]:
        with self._making:
            if device not in self._groups:
                self._groups[device] = self._make(device)
            return self._groups[device]

    def _make(self, device: Device) -> Optional[_group.NcclGroup]:
        _log.set_up()
        member = self._member(f"nccl-{next(self._numbers)}")
        said = logging.INFO if member.rank == 0 else logging.DEBUG
        try:
            if not self._may:
                raise NotImplementedError(why_not() or f"another rank has no GPU, or {_VARIABLE}=0")
            self._starts.drain()  # the barrier is an operation of the group, and these begin in the order of their calls
            # Ctrl-C ends this wait while other ranks are missing.
            self._group.start(_group.BARRIER, label="meeting over NCCL").wait()
            made = _group.NcclGroup(self._group, member, device.ordinal)
        except NotImplementedError as why:
            wanted = os.environ.get(_VARIABLE) == "1"
            _log.logger.log(logging.WARNING if wanted else said, "operations on a GPU's tensors go by way of the host: %s", why)
            return None
        _log.logger.log(said, "operations on a GPU's tensors run over NCCL")
        return made

    def abort(self) -> None:
        """Ends all operations under way, on all members."""
        for one in list(self._groups.values()):
            if one is not None:
                one.abort()
