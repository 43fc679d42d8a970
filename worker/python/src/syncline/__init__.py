"""Syncline for Python: training with weights that live on parameter servers.

PyTorch programs use `syncline.torch.Optimizer`. It is built on `Session`, which takes any arrays.
"""
from typing import Any

from syncline._asserts import assert_equal
from syncline._library import version
from syncline._open_sessions import report, stats
from syncline._report import Stats
from syncline.errors import (AlreadyExists, Cancelled, DataLoss, DeadlineExceeded, DeviceFailed, Dropped, Error, FailedPrecondition,
                             Internal, InvalidArgument, JobOver, JobRefused, NotEqual, NotFound, PermissionDenied, ResourceExhausted,
                             SessionClosed, Unauthenticated, Unavailable, VersionMismatch)
from syncline.session import Session, Tensor

__all__ = [
    "AlreadyExists", "Cancelled", "DataLoss", "DeadlineExceeded", "DeviceFailed", "Dropped", "Error", "FailedPrecondition",
    "Internal", "InvalidArgument", "JobOver", "JobRefused", "NotEqual", "NotFound", "PermissionDenied", "ResourceExhausted", "Session", "SessionClosed",
    "Stats", "Tensor", "Unauthenticated", "Unavailable", "VersionMismatch", "assert_equal", "report", "stats", "version",
]


def __getattr__(name: str) -> Any:
    """Asks the library for `__version__` on first use, because importing this package does not load the library."""
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
