"""Finds Syncline's reduction for a torch.distributed.ReduceOp and a type of elements."""
from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from syncline import _group

TYPES = {
    torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: _group.FLOAT64, torch.int64: _group.INT64,
    torch.int32: _group.INT32, torch.int8: _group.INT8, torch.uint8: _group.UINT8, torch.bool: _group.UINT8,
}
_ANY = {
    dist.ReduceOp.SUM: _group.SUM, dist.ReduceOp.AVG: _group.AVERAGE, dist.ReduceOp.MIN: _group.MIN,
    dist.ReduceOp.MAX: _group.MAX, dist.ReduceOp.PRODUCT: _group.PRODUCT,
}
_INTEGERS = {
    **_ANY, dist.ReduceOp.BAND: _group.BITWISE_AND, dist.ReduceOp.BOR: _group.BITWISE_OR, dist.ReduceOp.BXOR: _group.BITWISE_XOR,
}
# Booleans are bytes of value 0 or 1.
_BOOLEANS = {
    dist.ReduceOp.SUM: _group.MAX, dist.ReduceOp.MAX: _group.MAX, dist.ReduceOp.BOR: _group.MAX,
    dist.ReduceOp.MIN: _group.MIN, dist.ReduceOp.PRODUCT: _group.MIN, dist.ReduceOp.BAND: _group.MIN,
    dist.ReduceOp.BXOR: _group.BITWISE_XOR,
}


class Reduction(NamedTuple):
    code: int
    factor: float = 1.0  # of a premultiplied sum


def _factor(op: Any) -> float:
    factor = getattr(op, "factor", None)
    if isinstance(factor, torch.Tensor) and factor.numel() == 1:
        factor = factor.item()
    if not isinstance(factor, (int, float)):
        raise NotImplementedError(
            "the syncline backend cannot see the factor of this PREMUL_SUM: give one number, on a torch whose "
            "ReduceOp has 'factor'; or multiply the tensor and reduce it by SUM")
    return float(factor)


def find_reduction(op: Any, tensor: torch.Tensor) -> Reduction:
    if tensor.dtype not in TYPES:
        raise NotImplementedError(f"the syncline backend cannot reduce {tensor.dtype}")
    if tensor.dtype != torch.bool and op == dist.ReduceOp.PREMUL_SUM:
        return Reduction(_group.PREMULTIPLIED_SUM, _factor(op))
    is_integer = not tensor.dtype.is_floating_point and not tensor.dtype.is_complex
    table = _BOOLEANS if tensor.dtype == torch.bool else _INTEGERS if is_integer else _ANY
    for known, code in table.items():
        if op == known:
            return Reduction(code)
    if any(op == bitwise for bitwise in (dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)):
        raise NotImplementedError(f"the syncline backend: bitwise reductions take integers and booleans, got {tensor.dtype}")
    raise NotImplementedError(f"the syncline backend cannot reduce {tensor.dtype} by {op}")
