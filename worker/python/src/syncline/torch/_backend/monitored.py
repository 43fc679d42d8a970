"""A barrier whose error names the ranks that did not come."""
from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING, NamedTuple, Union

import torch

from syncline import _group
from syncline.torch._backend.host_copies import HostCopies

if TYPE_CHECKING:
    from syncline.torch.distributed import ProcessGroupSyncline


class _Timeout(NamedTuple):
    """Options of an operation that set only the timeout."""

    timeout: datetime.timedelta


def patience_of(timeout: Union[None, float, datetime.timedelta], default: datetime.timedelta) -> datetime.timedelta:
    """Returns `timeout` as a timedelta. A number is in seconds; None means `default`."""
    if timeout is None:
        return default
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float, datetime.timedelta)):
        raise TypeError(f"monitored_barrier: timeout is a datetime.timedelta or a number of seconds, got {timeout!r}")
    patience = timeout if isinstance(timeout, datetime.timedelta) else datetime.timedelta(seconds=timeout)
    if patience <= datetime.timedelta(0):
        raise ValueError(f"monitored_barrier: timeout must be more than 0, got {timeout}")
    return patience


def await_all(group: "ProcessGroupSyncline", patience: datetime.timedelta) -> None:
    """Blocks until all ranks have called it; raises an error that names the missing ones otherwise.

    Rank 0 waits for each of the others, so it knows all that are missing. The others wait for its answer or its error.
    """
    is_first = group.rank() == 0
    own, of_all = (torch.zeros(count, dtype=torch.uint8, device="cpu") for count in (1, group.size()))
    copies = HostCopies()
    calls = [
        group._call(copies, _group.GATHER, _Timeout(patience), source=own, target=of_all, count=1, like=own, algorithm="direct"),
        group._call(copies, _group.BROADCAST, _Timeout(patience if is_first else 2 * patience), target=own, count=1, like=own,
                    algorithm="direct"),
    ]
    for call in calls:
        try:
            group._work(copies, [call], []).wait()
        except Exception as error:
            error.args = (_said_of(str(error), patience),)
            raise


def _said_of(error: str, patience: datetime.timedelta) -> str:
    """Rewords an error in terms of monitored_barrier: the caller does not know the operations that it consists of."""
    seconds = f"{patience.total_seconds():g} s"
    missing = re.search(r"\b(ranks? [\d, ]+) did not take part in .* in time", error)
    if missing is None:
        return f"monitored_barrier of {seconds}: {error}"
    return f"monitored_barrier: {missing.group(1)} did not come within {seconds}"
