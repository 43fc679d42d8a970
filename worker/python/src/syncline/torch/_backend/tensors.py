"""Divides the elements of tensors among ranks."""
from __future__ import annotations

from typing import List

import torch


def split(tensor: torch.Tensor, rows: List[int], ranks: int) -> List[int]:
    """Returns the number of elements that go to or come from each rank. `rows`: the number of rows of each; empty: equal parts."""
    if not rows:
        if tensor.numel() % ranks:
            raise ValueError(f"all_to_all: {tensor.numel()} elements do not divide by {ranks} ranks; give split sizes")
        return [tensor.numel() // ranks] * ranks
    if len(rows) != ranks or min(rows) < 0 or sum(rows) != tensor.shape[0]:
        raise ValueError(f"all_to_all: split sizes {list(rows)} of a tensor of {tensor.shape[0]} rows for {ranks} ranks; give "
                         "one for each rank, which add up to the rows")
    row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
    return [part * row for part in rows]
