"""A barrier that names who does not come."""
from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, NamedTuple

import torch

from syncline import _group

if TYPE_CHECKING:
    from syncline.torch.distributed import ProcessGroupSyncline


class _Timeout(NamedTuple):
    """Options of an operation that say nothing else."""

    timeout: datetime.timedelta


def await_all(group: "ProcessGroupSyncline", patience: datetime.timedelta) -> None:
    """Rank 0 waits for each of the others, and so knows all that are missing; they wait for its word, or its error."""
    is_first = group.rank() == 0
    own, of_all = torch.zeros(1, dtype=torch.uint8), torch.zeros(group.size(), dtype=torch.uint8)
    calls = [
        group._call(_group.GATHER, _Timeout(patience), source=own, target=of_all, count=1, like=own, algorithm="direct"),
        group._call(_group.BROADCAST, _Timeout(patience if is_first else 2 * patience), target=own, count=1, like=own,
                    algorithm="direct"),
    ]
    for call in calls:
        try:
            group._work([call], []).wait()
        except Exception as error:
            error.args = (f"monitored_barrier of {patience.total_seconds():g} s: {error}",)
            raise
