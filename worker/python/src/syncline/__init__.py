"""Syncline for Python: a training process's place in a job whose weights live on parameter servers.

`syncline.torch.Optimizer` is what PyTorch programs want; `Session` is what lies under it, for any arrays.
"""
from typing import Any

from syncline._asserts import assert_equal
from syncline._library import version
from syncline._report import Stats
from syncline.errors import (AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, DeviceFailed, Dropped, Error, FailedPrecondition,
                             Internal, InvalidArgument, JobOver, JobRefused, NotEqual, NotFound, PermissionDenied, ResourceExhausted,
                             SessionClosed, Unauthenticated, Unavailable, VersionMismatch)
from syncline.session import Session, Tensor, report, stats

__all__ = [
    "AlreadyExists", "Cancelled", "DataLoss", "DeadlineExceeded", "DeviceFailed", "Dropped", "Error", "FailedPrecondition",
    "Internal", "InvalidArgument", "JobOver", "JobRefused", "NotEqual", "NotFound", "PermissionDenied", "ResourceExhausted", "Session", "SessionClosed",
    "Stats", "Tensor", "Unauthenticated", "Unavailable", "VersionMismatch", "assert_equal", "report", "stats", "version",
]


def __getattr__(name: str) -> Any:
    """`__version__` is asked of the library once somebody wants it: importing loads none."""
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
