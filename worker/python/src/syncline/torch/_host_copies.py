"""Operations take host memory. Tensors of a GPU are copied to pinned host memory before, and results back after:

    the program's stream … what is given is there ─┐                                            ┌ goes on behind a wait()
    stream up                                      └ copy to the host ─┐                        │
    Starts, a thread                                                   └ start                  │
    the network                                                            └ operation ─┐       │
    stream down                                                                         └ copy ─┘

Neither the program nor its stream waits for a copy to the host; `wait()` waits for the network, and lets the stream of whoever calls it
wait for the copy back, as NCCL's does.
"""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch

from syncline import _staging
from syncline._staging import Device, Mark

Landing = Tuple[Device, Mark]  # a copy to a GPU, and what is behind it

_Pairs = List[Tuple[torch.Tensor, torch.Tensor]]  # where values belong, and where they are


class HostCopies:
    """Of the tensors of one call. Those in host memory are taken as they are, unless their elements do not lie side by side."""

    def __init__(self) -> None:
        self.marks: List[Mark] = []  # behind the copies to the host
        self.devices: Dict[Any, Device] = {}  # by what torch calls them
        self._before: Dict[Any, Mark] = {}  # behind what the program's streams did before the call

    def _device_of(self, tensor: torch.Tensor) -> Optional[Device]:
        device = _staging.device_of(tensor, "a tensor")
        if device is not None and tensor.device not in self.devices:
            self.devices[tensor.device] = device
            self._before[tensor.device] = device.mark()
        return device

    def given(self, tensor: torch.Tensor) -> torch.Tensor:
        """Its values."""
        device = self._device_of(tensor)
        if device is None:
            return tensor.contiguous()
        host: torch.Tensor = device.host_like(tensor)
        self.marks.append(device.to_host(host, tensor))
        return host

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """For values that it is to have."""
        device = self._device_of(tensor)
        host: torch.Tensor = tensor.contiguous() if device is None else device.host_like(tensor)
        return host

    def empty(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """For values that other tensors, where `like` is, are to have."""
        device = self._device_of(like)
        if device is None:
            return torch.empty(count, dtype=like.dtype, device="cpu")  # whatever the program's default is
        host: torch.Tensor = device.host_like(torch.empty(count, dtype=like.dtype, device="meta"))
        return host

    def put_back(self, tensors: List[torch.Tensor], dense: List[torch.Tensor]) -> Optional[Callable[[], Sequence[Landing]]]:
        """To be called when `dense`, of given() or room(), has the values."""
        copied = [(tensor, own) for tensor, own in zip(tensors, dense) if own.data_ptr() != tensor.data_ptr()]
        return (lambda: self._copy(copied)) if copied else None

    def spread(self, staged: List[Tuple[List[torch.Tensor], torch.Tensor]]) -> Callable[[], Sequence[Landing]]:
        """Slices of what was received as one."""

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
        landings: Dict[Any, Landing] = {}  # the last of each device: its copies are made one after the other
        for tensor, host in pairs:
            device = self.devices.get(tensor.device)
            if device is None:
                tensor.copy_(host)
            elif tensor.numel():
                with torch.inference_mode(tensor.is_inference()):  # also in another thread than that of the call
                    landings[tensor.device] = device, device.bring(tensor, host, self._before[tensor.device])
        return list(landings.values())
