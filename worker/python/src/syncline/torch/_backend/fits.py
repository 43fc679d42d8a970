"""Checks that an operation accepts the given tensors, and that they fit each other."""
from __future__ import annotations

from typing import Any, List

import torch


def check_dense(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.device.type not in ("cpu", "cuda") or tensor.layout != torch.strided:
            raise NotImplementedError(
                f"the syncline backend takes dense tensors of CPUs and CUDA devices, got one on {tensor.device} with layout {tensor.layout}")


def check_types(name: str, *tensors: torch.Tensor) -> None:
    """Raises unless all tensors, the inputs and outputs of one operation, are dense and of one type."""
    check_dense(*tensors)
    types = sorted({str(tensor.dtype) for tensor in tensors})
    if len(types) > 1:
        raise ValueError(f"{name}: the tensors have the types {' and '.join(types)}; all inputs and outputs must "
                         "have the same type")


def check_parts(name: str, ranks: int, parts: List[torch.Tensor], own: torch.Tensor) -> None:
    """Raises unless there is one part for each rank, with as many elements as `own`."""
    check_types(name, own, *parts)
    if len(parts) != ranks:
        raise ValueError(f"{name}: {len(parts)} parts for {ranks} ranks; give one for each rank")
    for rank, part in enumerate(parts):
        if part.numel() != own.numel():
            raise ValueError(f"{name}: the part of rank {rank} has {part.numel()} elements, but all must have {own.numel()}")


def check_pairs(name: str, outputs: List[Any], inputs: List[Any]) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"{name}: {len(outputs)} outputs for {len(inputs)} inputs")
