"""Copies tensors between GPUs and host memory, for operations that do not run over NCCL (_backend/over_nccl.py).

A GPU's tensors are copied to pinned host memory before the operation, and the results are copied back after it:

    the program's stream … what is given is there ─┐                                            ┌ goes on behind a wait()
    stream up                                      └ copy to the host ─┐                        │
    Starts, a thread                                                   └ start                  │
    the network                                                            └ operation ─┐       │
    stream down                                                                         └ copy ─┘

Neither the program nor its stream waits for a copy to the host. `wait()` waits for the network, and makes the caller's stream wait for
the copy back, as NCCL's does.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from syncline import _group, _staging
from syncline._staging import Device, Mark

Landing = Tuple[Device, Mark]  # the GPU of a copy, and the mark behind the copy

_Pairs = List[Tuple[torch.Tensor, torch.Tensor]]  # where values belong, and the host tensor that has them


class HostCopies:
    """The tensors of one call, in host memory. Those that are there already are used as they are if they are contiguous."""

    over: Optional[_group.NcclGroup] = None  # the group that runs the call; None: it runs in host memory
    stream = 0  # the stream of the program that the call waits for, if it runs over NCCL

    def __init__(self) -> None:
        self.marks: List[Mark] = []  # behind the copies to the host
        self.devices: Dict[Any, Device] = {}  # by torch.device
        self._before: Dict[Any, Mark] = {}  # by torch.device: behind what the program's stream had to do before the call

    def _device_of(self, tensor: torch.Tensor) -> Optional[Device]:
        device = _staging.device_of(tensor, "a tensor")
        if device is not None and tensor.device not in self.devices:
            self.devices[tensor.device] = device
            self._before[tensor.device] = device.mark()
        return device

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a host tensor with the values of `tensor`. They are there once the GPUs have passed `marks`."""
        device = self._device_of(tensor)
        if device is None:
            return dense(tensor)
        host: torch.Tensor = device.host_like(tensor)
        self.marks.append(device.to_host(host, tensor))
        return host

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a host tensor for values that `tensor` is to receive."""
        device = self._device_of(tensor)
        host: torch.Tensor = dense(tensor) if device is None else device.host_like(tensor)
        return host

    def empty(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """Returns a host tensor of `count` elements, for values that tensors on the device of `like` are to receive."""
        device = self._device_of(like)
        if device is None:
            return torch.empty(count, dtype=like.dtype, device="cpu")  # not the program's default device
        host: torch.Tensor = device.host_like(torch.empty(count, dtype=like.dtype, device="meta"))
        return host

    def put_back(self, tensors: List[torch.Tensor], dense: List[torch.Tensor]) -> Optional[Callable[[], Sequence[Landing]]]:
        """Returns a function that copies `dense`, from given() or room(), to `tensors`. Call it once `dense` has the results.

        Returns None if there is nothing to copy.
        """
        copied = [(tensor, own) for tensor, own in zip(tensors, dense) if own.data_ptr() != tensor.data_ptr()]
        return (lambda: self._copy(copied)) if copied else None

    def spread(self, staged: List[Tuple[List[torch.Tensor], torch.Tensor]]) -> Callable[[], Sequence[Landing]]:
        """Returns a function that copies the slices of each whole tensor that was received to its parts."""

        def pairs() -> _Pairs:
            found = []
            for parts, whole in staged:
                first = 0
                for part in parts:
                    found.append((part, whole[first:first + part.numel()].view(part.shape)))
                    first += part.numel()
            return found

        return lambda: self._copy(pairs())

    def _copy(self, pairs: _Pairs) -> Sequence[Landing]:
        landings: Dict[Any, Landing] = {}  # the last copy of each device, which makes them one after the other
        for tensor, host in pairs:
            device = self.devices.get(tensor.device)
            if device is None:
                tensor.copy_(host)
            elif tensor.numel():
                with torch.inference_mode(tensor.is_inference()):  # this may be another thread than that of the call
                    landings[tensor.device] = device, device.bring(tensor, host, self._before[tensor.device])
        return list(landings.values())


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with contiguous elements in memory, or the tensor itself if it is like that.

    The memory of a view by .conj() or .imag may hold other numbers than the view, so such views are resolved.
    """
    return tensor.resolve_conj().resolve_neg().contiguous()
