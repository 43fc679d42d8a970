"""Parts of tensors, and how results of operations get back to where they belong."""
from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch


def split(tensor: torch.Tensor, rows: List[int], ranks: int) -> List[int]:
    """How many elements go to or come from each rank."""
    if not rows:
        if tensor.numel() % ranks:
            raise ValueError(f"all_to_all: {tensor.numel()} elements do not divide by {ranks} ranks; give split sizes")
        return [tensor.numel() // ranks] * ranks
    if len(rows) != ranks or min(rows) < 0 or sum(rows) != tensor.shape[0]:
        raise ValueError(f"all_to_all: split sizes {list(rows)} of a tensor of {tensor.shape[0]} rows for {ranks} ranks; give "
                         "one for each rank, which add up to the rows")
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return [part * row for part in rows]


def put_back(tensors: List[torch.Tensor], dense: List[torch.Tensor]) -> Optional[Callable[[], None]]:
    """For those that were copied because their elements do not lie side by side."""
    copied = [(tensor, own) for tensor, own in zip(tensors, dense) if own.data_ptr() != tensor.data_ptr()]
    if not copied:
        return None

    def finish() -> None:
        for tensor, own in copied:
            tensor.copy_(own)

    return finish


def spread(staged: Any) -> Callable[[], None]:
    """Slices of what was received as one."""

    def finish() -> None:
        for parts, whole in staged:
            first = 0
            for part in parts:
                part.copy_(whole[first:first + part.numel()].view(part.shape))
                first += part.numel()

    return finish
