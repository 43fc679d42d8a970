"""The exceptions of Syncline, one class for each kind of failure (docs/errors.md).

Every message says in one line what happened, where, and what to do. `exit_code` is the code with which a training program should end,
so that launchers and job controllers know whether a restart helps: after 138 it does, after 2 and 7 it does not.
"""
from __future__ import annotations

import collections
import re
from typing import Optional


class Error(RuntimeError):
    """Any failure of Syncline."""

    exit_code: int = 1
    # In collective operations: the rank of the process that caused the error; None: it is not known.
    rank: Optional[int] = None


class Cancelled(Error):
    """The call was cancelled from another thread; the session goes on."""


class InvalidArgument(Error, ValueError):
    """An option, a name, a shape or a gradient makes no sense; nothing has happened."""

    exit_code = 2


class DeadlineExceeded(Error, TimeoutError):
    """The call's timeout is over. The session goes on, unless it was `start`."""

    exit_code = 5


class NotFound(Error):
    """There is no such file, job or tensor."""


class AlreadyExists(Error):
    """Two tensors have the same name, or another process has this one's place."""


class PermissionDenied(Error):
    """The certificate does not allow it."""


class ResourceExhausted(Error, MemoryError):
    """This process or a server lacks memory; the message says which."""


class FailedPrecondition(Error):
    """Calls came in the wrong order, or asked for something that the job does not have."""


class JobRefused(FailedPrecondition):
    """The job does not take this worker: another one has its rank or name, or tensors and settings differ."""

    exit_code = 7


class JobOver(FailedPrecondition):
    """This worker was away, and the others have left the job meanwhile, so nothing is left to do."""

    exit_code = 144


class VersionMismatch(FailedPrecondition):
    """Worker and coordinator speak different protocols: install the same version on both sides."""

    exit_code = 6


class SessionClosed(FailedPrecondition):
    """The session was closed, or belongs to the process that this one was forked from."""


class Dropped(Error):
    """This worker was dropped because it was silent or made no progress for too long. A new session joins again."""

    exit_code = 138


class Unavailable(Error):
    """The servers or the coordinator cannot be reached, or were lost. A new session may succeed."""

    exit_code = 5


class DeviceFailed(Unavailable):
    """A GPU of this process or a program on it failed, and ended the session. A new process may succeed; this one cannot use the GPU."""

    exit_code = 8


class DataLoss(Error):
    """A file or a message is damaged; nothing of it was used."""


class Unauthenticated(Error):
    """The coordinator does not know this worker's certificate."""


class NotEqual(Error, AssertionError):
    """`assert_equal` or a `check=` found that ranks differ.

    `rank` is the first that differs from rank 0, or from most others; None: it is not known which.
    """

    tensor: str = ""
    """Empty where it is not about a tensor."""
    index: Optional[tuple[int, ...]] = None
    """Where, in the tensor's shape; None where what differs is its shape, dtype or step."""
    step: Optional[int] = None
    """The session's; None without one."""


class Internal(Error):
    """A bug of Syncline."""


_BY_CODE: dict[int, type[Error]] = {
    1: Cancelled,
    3: InvalidArgument,
    4: DeadlineExceeded,
    5: NotFound,
    6: AlreadyExists,
    7: PermissionDenied,
    8: ResourceExhausted,
    9: FailedPrecondition,
    10: Dropped,
    11: InvalidArgument,
    13: Internal,
    14: Unavailable,
    15: DataLoss,
    16: Unauthenticated,
}
# Messages about two jobs of one name mention only the command line's --job; a program chooses its job in these ways.
_OTHER_JOB = ' (choose a job by SYNCLINE_JOB, Session(job=…) or Optimizer(…, session={"job": …}))'
_BY_EXIT_CODE: dict[int, type[Error]] = {kind.exit_code: kind for kind in (JobRefused, JobOver, VersionMismatch, DeviceFailed)}


def error_of(code: int, message: str, exit_code: int) -> Error:
    """Returns the exception for a syncline_code, its message and its exit code."""
    kind = _BY_EXIT_CODE.get(exit_code, _BY_CODE.get(code, Error))
    names_job = kind is JobRefused and re.search("another (--job|job of this name)", message)
    error = kind(message + _OTHER_JOB if names_job else message)
    if exit_code > 1:  # 1 is general: the class has a better one
        error.exit_code = exit_code
    # A copy without the traceback, which would keep alive all that the frames refer to.
    memo = type(error)(*error.args)
    memo.__dict__ = error.__dict__
    _latest.append(memo)
    return error


_latest: collections.deque[Error] = collections.deque(maxlen=16)


def behind(error: BaseException) -> Optional[Error]:
    """Returns the Syncline error that `error` is or was made from, or None. Torch turns errors inside DDP into RuntimeErrors.

        try:
            loss.backward()
        except RuntimeError as error:
            if (cause := syncline.errors.behind(error)) is not None:
                print("lost", cause.rank)
    """
    if isinstance(error, Error):
        return error
    for one in reversed(_latest if isinstance(error, RuntimeError) else ()):
        if str(one) and str(one) in str(error):
            return one
    return None
