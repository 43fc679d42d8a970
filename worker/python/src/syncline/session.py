"""Session: a training process's place in a job. It declares tensors, pushes their gradients and receives weights.

    weights = numpy.zeros(1000, numpy.float32)
    with syncline.Session(optimizer="adamw:lr=0.1") as session:
        w = session.declare("w", weights)
        session.start()                       # waits for the other workers, fills the weights
        while session.step < 100:
            session.push_pull(w, weights - 3, samples=1)
            session.wait(w)                   # just before the weights are read

Every step takes, of every trained tensor, one push_pull or one skip. A tensor's weights and gradient belong to the
session between push_pull and the end of wait.
"""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable
from ctypes import byref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Optional, Union

from syncline import _exit, _lent, _log, _names, _staging
from syncline._calls import Calls
from syncline._durations import milliseconds, seconds_of
from syncline._embedded import EmbeddedServers, check_options
from syncline._library import (FLOAT32, LogFunction, Options, TensorStruct, check, library)
from syncline._memory import Memory, is_writable, memory_of
from syncline._report import Progress, Stats, report as report_of, stats_of, summary
from syncline._waits import Waits
from syncline.errors import Error, FailedPrecondition, InvalidArgument, SessionClosed

_MAX_SAMPLES = 2**32 - 1
_AFTER_CLOSE = ("step", "rank", "world_size")

Option = Union[str, int, float, None]


@dataclass(frozen=True)
class Tensor:
    """A declared tensor. `weights` is the array that was declared: the session writes into it."""

    id: int
    name: str
    weights: Any
    memory: Memory
    frozen: bool


class Session(_lent.Allocator):
    """A process's place in a job. Methods may be called by any thread, for each tensor by one at a time.

    Options, all of them strings or numbers: coordinator ("HOST:PORT"), job, run_id, rejoin (1: this rank was in the run before; `JobOver` where
    the others have left it), rank, world_size, optimizer ("adamw:lr=0.001"), state, schedule ("cosine:total_steps=1000"), gradient
    ("clip_global_norm=1"), loss_scaling ("torch"), nonfinite_steps ("skip"), accumulate_steps, accumulate_on, aggregation, mode ("ssp:3",
    "bsp:quorum=3"), push ("topk:ratio=0.01"), publish ("int8"), preset ("sparseloco": sets optimizer, push and publish), codec_threads (threads
    that encode and decode beside the one that sends; "auto": half of the cores, 4 at most; 0: none), checkpoint_every ("500 steps"), durability
    ("disk") and the other settings that all workers of a job say alike (docs/settings.md), failure_timeout ("10s"), start_timeout ("10m"),
    tls_cert, tls_key, tls_ca. What is not given comes from the environment that `syncline run`, torchrun, Slurm, Kubernetes and Open MPI set.

    A program may have several sessions: where no job is named, the second one's is the environment's name and "-2", and so on. `job`
    says which it is.

    Without a coordinator, neither as an option nor in SYNCLINE_COORDINATOR, the session starts servers of its own as
    a child process, which ends with this one.
    """

    steps_are = "steps"
    """What the summary calls them, and what is counted as samples."""
    samples_are = "samples"

    def __init__(self, **options: Option) -> None:
        self._calls = Calls()
        self._waits = Waits(self._calls)
        self._servers: Optional[EmbeddedServers] = None
        self._tensors: list[Tensor] = []
        self._trained = 0  # so many of them are not frozen
        self._log = LogFunction(_log.log)
        # What the session may still read, by tensor: from push_pull until wait has returned.
        self._gradients: dict[int, list[Any]] = {}
        self._last: dict[str, Any] = {}  # what may be asked after close, too
        self._states: list[Any] = []  # of optimizers, until start has returned
        self._stage = _staging.Stage()  # of tensors on GPUs
        self._progress = Progress()
        self._begun: set[int] = set()  # tensors that were pushed or skipped in a step that others have yet to begin
        _log.set_up()
        _exit.set_up()
        _staging.check_settings()
        settings = Options()
        try:
            for key, value in options.items():
                if value is not None:
                    settings[key] = value
            if options.get("coordinator") is None and not os.environ.get("SYNCLINE_COORDINATOR"):
                self._start_servers(settings)
            place = settings["coordinator"], settings["rank"]
            self.job = settings["job"] = _names.take(self._calls, place, settings["job"], options.get("job"))
            library().syncline_options_set_log(settings.handle, self._log, None)
            handle = ctypes.c_void_p()
            check(library().syncline_session_create(settings.handle, byref(handle)))
            self._patience = seconds_of(settings["failure_timeout"])
        except BaseException:
            _names.leave(self._calls)
            self._stop_servers()
            raise
        finally:
            settings.free()
        self._calls.open(handle)
        _open_sessions.add(self)

    def _start_servers(self, settings: Options) -> None:
        workers = settings["world_size"]
        if workers != "1":
            raise InvalidArgument(
                f"there are {workers} workers (WORLD_SIZE) but no servers: set SYNCLINE_COORDINATOR=HOST:PORT, or let "
                f"`syncline run --standalone --nproc-per-node {workers} -- python …` start both")
        certificates = [key for key in ("tls_cert", "tls_key", "tls_ca", "identities") if settings[key]]
        if certificates:
            raise InvalidArgument(
                f"{certificates[0]} is set (SYNCLINE_{certificates[0].upper()}) but no coordinator: set SYNCLINE_COORDINATOR="
                "HOST:PORT, or unset it, as servers of the program's own, on loopback, have no certificates")
        check_options(settings)
        self._servers = EmbeddedServers(settings["failure_timeout"])
        settings["coordinator"] = self._servers.address
        _log.logger.info("no SYNCLINE_COORDINATOR: started servers for this process, %s, status on http://%s",
                         self._servers.address, self._servers.admin)

    def _stop_servers(self) -> None:
        if self._servers is not None:
            self._servers.stop()
            self._servers = None

    # ---- calls into the library ----

    def _free(self, handle: ctypes.c_void_p) -> None:
        try:
            library().syncline_session_free(handle)
            self._stop_servers()
        finally:
            _names.leave(self._calls)
            _open_sessions.discard(self)
            self._gradients.clear()

    def _ask(self, name: str) -> Any:
        if self._calls.why_closed and name in self._last:
            return self._last[name]
        with self._calls.call() as handle:
            return getattr(library(), f"syncline_{name}")(handle)

    def _do(self, name: str, *arguments: Any) -> None:
        with self._calls.call() as handle:
            check(getattr(library(), f"syncline_{name}")(handle, *arguments))

    # ---- before the first step ----

    def declare(self, name: str, weights: Any, *, learning_rate_scale: float = 1, options: str = "", state: str = "",
                frozen: bool = False) -> Tensor:
        """Declares a tensor: a NumPy array or a torch tensor, contiguous, float32, bfloat16 or float16; torch's may be on a GPU,
        which encodes and decodes it where it can (docs/pytorch.md).

        It holds the initial values now, and new weights from `start` on. Every worker declares the same tensors in
        the same order, front layers first. `options` stand in place of the job's ("weight_decay=0"). A frozen tensor
        is received once and never pushed.
        """
        placed = _staging.placed(weights, name)
        memory = memory_of(weights, name) if placed is None else placed.memory
        if not learning_rate_scale > 0:  # the library takes 0 for "not set"
            raise InvalidArgument(f"{name}: a learning rate of {learning_rate_scale:g} times the job's; freeze it instead")
        if not is_writable(weights):
            raise InvalidArgument(f"{name}: the array is read-only, and new weights could not land in it")
        shape = (ctypes.c_uint64 * len(memory.shape))(*memory.shape)
        struct = TensorStruct(
            ctypes.sizeof(TensorStruct), name.encode(), len(memory.shape), shape, memory.dtype, memory.address,
            learning_rate_scale, options.encode() or None, state.encode() or None, int(frozen), memory.device)
        number = ctypes.c_uint32()
        self._do("declare", byref(struct), byref(number))
        tensor = Tensor(number.value, name, weights, memory, frozen)
        if placed is not None:
            self._stage.add(tensor.id, placed)
        self._tensors.append(tensor)
        self._trained += not frozen
        return tensor

    def set_state(self, tensor: Tensor, updates: int, arrays: Iterable[Any]) -> None:
        """What the tensor's optimizer begins with where the job has nothing yet: all its arrays after so many updates.

        Arrays are float32 of the tensor's shape, in the order of the optimizer's slots (server/optimizer). Before `start`,
        by all workers the same.
        """
        memories = [self._float32(tensor, array, "optimizer state") for array in arrays]
        addresses = (ctypes.c_void_p * len(memories))(*(memory.address for memory in memories))
        self._states.append(arrays)
        self._do("set_state", tensor.id, updates, addresses, len(memories))

    def _float32(self, tensor: Tensor, array: Any, what: str) -> Memory:
        memory = memory_of(array, tensor.name)
        if memory.shape != tensor.memory.shape or memory.dtype != FLOAT32:
            raise InvalidArgument(f"{tensor.name}: {what} is float32 of shape {list(tensor.memory.shape)}")
        return memory

    def start(self, timeout: Optional[float] = None) -> None:
        """Joins the job and waits until all weights hold its values. The first worker's values are the job's.

        `timeout` in seconds, here and everywhere; None: as long as it takes (and the option start_timeout allows).
        """
        self._stage.lend()
        self._waits.whole("start", milliseconds(timeout))
        self._states.clear()
        self._stage.land()
        self._progress = Progress(self.stats)

    # ---- steps ----

    def push_pull(self, tensor: Tensor, gradient: Any, samples: int = 1) -> None:
        """Hands over the gradient of one step, the mean over `samples` samples, and returns at once.

        `gradient` has the tensor's shape and stays unchanged until `wait` has returned. The session keeps it so long. It is where
        the weights are, or in host memory.
        """
        gradient, memory, marks = self._stage.take(tensor.id, tensor.name, gradient)
        if memory.shape != tensor.memory.shape:
            raise InvalidArgument(
                f"{tensor.name}: a gradient of shape {list(memory.shape)} for weights of shape {list(tensor.memory.shape)}")
        _check_samples(tensor.name, samples)
        self._stage.in_order([tensor.id], marks, functools.partial(self._push, tensor, gradient, memory, samples))

    def _push(self, tensor: Tensor, gradient: Any, memory: Memory, samples: int) -> None:
        held = self._gradients.setdefault(tensor.id, [])
        held.append(gradient)
        try:
            self._do("push_pull_from", tensor.id, memory.address, memory.dtype, memory.device, samples)
        except Error:
            held.pop()
            raise
        del held[:-1]
        self._progress.push(memory.shape, 0 if self._begun else samples)  # the first one's are the step's
        self._begin([tensor.id])

    def scale_learning_rate(self, tensor: Tensor, factor: float) -> None:
        """What the servers multiply the tensor's learning rate with, from its next push_pull on: 0 to 1e6.

        For schedules that the program computes. It travels with the gradient and is the same on all workers; where it is
        not, the one that joined the job first decides. Not between push_pull and wait.
        """
        self._do("scale_learning_rate", tensor.id, factor)

    def skip(self, tensors: Iterable[Tensor]) -> None:
        """Instead of push_pull: no gradient of these tensors in this step. All of them or, after an error, none."""
        ids = [tensor.id for tensor in tensors]
        self._stage.in_order(ids, [], functools.partial(self._skip, ids))

    def _skip(self, ids: list[int]) -> None:
        self._do("skip", (ctypes.c_uint32 * len(ids))(*ids), len(ids))
        self._begin(ids)

    def _begin(self, ids: list[int]) -> None:
        self._begun.update(ids)
        if len(self._begun) == self._trained:
            self._begun.clear()  # of the step after: nothing yet

    def wait(self, tensor: Tensor, timeout: Optional[float] = None) -> None:
        """Blocks until the weights include every member's contribution to the step that was pushed last."""
        timeout = self._stage.settle(tensor.id, timeout)
        self._waits.in_slices(lambda handle, ms: int(library().syncline_wait(handle, tensor.id, ms)), timeout)
        if self._gradients.pop(tensor.id, None):
            self._progress.touch()
        self._stage.land([tensor.id])

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """`wait` for all tensors."""
        timeout = self._stage.settle(timeout=timeout)
        self._waits.in_slices(lambda handle, ms: int(library().syncline_wait_all(handle, ms)), timeout)
        if self._gradients:
            self._progress.touch()
        self._gradients.clear()
        self._stage.land()

    def is_ready(self, tensor: Tensor) -> bool:
        """Whether `wait` would return at once."""
        if not self._stage.is_settled(tensor.id):
            return False
        with self._calls.call() as handle:
            return bool(library().syncline_is_ready(handle, tensor.id) == 1)

    def pull_average(self, tensor: Tensor, out: Any, timeout: Optional[float] = None) -> None:
        """Reads the averaged weights (ema_decay, swa_start) of a tensor into `out`, a float32 array of its shape."""
        memory = self._float32(tensor, out, "an average")
        timeout = self._stage.settle(tensor.id, timeout)
        self._waits.whole("pull_average", tensor.id, memory.address, milliseconds(timeout))

    def pull_state(self, tensor: Tensor, array: int, out: Any, timeout: Optional[float] = None) -> int:
        """Reads an array of the tensor's optimizer state into `out`, a float32 array of its shape, and returns of how many
        updates it is. Of adam 0 is the mean and 1 the variance. It is that after all steps that this worker has pushed: in mode
        ssp it waits until others have come to them, and the weights are of that step afterwards. FailedPrecondition in mode asp.
        """
        memory = self._float32(tensor, out, "optimizer state")
        updates = ctypes.c_uint64()
        timeout = self._stage.settle(timeout=timeout)
        self._stage.lend([tensor.id])
        self._waits.whole("pull_state", tensor.id, array, memory.address, byref(updates), milliseconds(timeout))
        self._stage.land([tensor.id])
        return int(updates.value)

    # ---- what is going on ----

    @property
    def step(self) -> int:
        """The number of the step that this worker computes now; of a running job that it joined, not 0. After close the last."""
        if not self._calls.why_closed:
            self._stage.settle()
        return int(self._ask("step"))

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss of this step with; 1 without loss scaling."""
        return float(self._ask("loss_scale"))

    @property
    def rank(self) -> int:
        """Which worker this is."""
        return int(self._ask("rank"))

    @property
    def world_size(self) -> int:
        """With how many workers the job began."""
        return int(self._ask("world_size"))

    @property
    def device_codecs(self) -> int:
        """How many tensors are known by their memory on a GPU, which encodes and decodes them; 0 where copies in host memory are."""
        return self._stage.on_device

    @property
    def stats(self) -> Stats:
        """Figures so far."""
        with self._calls.call() as handle:
            return stats_of(handle, self._stage.why_copied)

    def report(self) -> str:
        """What a step took on this worker and where the time went, in lines to print."""
        return report_of(self.rank, self.stats)

    def report_loss(self, loss: float, step: Optional[int] = None, samples: int = 1) -> None:
        """For `syncline status`, metrics and `syncline lr-range`. `step` is the present one unless given."""
        _check_samples("report_loss", samples)
        number = self.step if step is None else step
        with self._calls.call() as handle:
            library().syncline_report_loss(handle, number, loss, samples)

    def save_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes what lossy encodings keep of this worker's gradients; best after wait_all."""
        self._stage.settle()
        self._do("save_residuals", os.fsencode(path))

    def restore_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Reads what save_residuals wrote: after `start` and before the first push."""
        self._do("restore_residuals", os.fsencode(path))

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Blocks until every member is in a barrier. Members that die meanwhile are not waited for."""
        timeout = self._stage.settle(timeout=timeout)
        self._stage.lend()  # in modes in which views come at any time they land now
        self._waits.whole("barrier", milliseconds(timeout))
        self._stage.land()

    # ---- the end ----

    def close(self) -> None:
        """A clean goodbye: the other workers go on without this one at once. Safe to call again, by any thread.

        A step that was pushed whole is waited for, failure_timeout at most; call wait_all before, if the last weights are
        wanted. Calls of other threads end with SessionClosed. An error that already ended the session is not raised again.
        """
        self._settle_at_end()
        self._stage.end()
        self._calls.close("the session was closed", self._say_goodbye, self._free)

    def _settle_at_end(self) -> None:
        """What comes from GPUs is waited for. An error, torch's too, has been raised by a wait, or will be, and keeps nothing open."""
        with contextlib.suppress(Exception):
            self._stage.settle(timeout=self._patience)
            self._stage.lend()  # the last views may land

    def _say_goodbye(self, handle: ctypes.c_void_p) -> None:
        self._summarise(handle)
        self._last = {name: getattr(library(), f"syncline_{name}")(handle) for name in _AFTER_CLOSE}
        library().syncline_cancel(handle)
        if library().syncline_leave(handle):
            _log.logger.debug("left without a goodbye: %s", library().syncline_last_error().decode(errors="replace"))

    def _summarise(self, handle: ctypes.c_void_p) -> None:
        """One line of one worker, unless the program dies: then its error comes last."""
        if library().syncline_rank(handle) or not _log.logger.isEnabledFor(logging.INFO) or hasattr(sys, "last_type"):
            return
        stats = stats_of(handle, self._stage.why_copied)
        if stats.steps:
            _log.logger.info("%s", summary(stats, self._progress, self.steps_are, self.samples_are))

    def _close_at_end(self) -> None:
        """For programs that just end: the steps that were begun with all tensors are not lost."""
        try:
            # Not of a program that dies of an exception, nor of a step that was begun in part: it would never end.
            if not hasattr(sys, "last_type"):
                self._settle_at_end()
                self._finish([tensor for tensor in self._tensors if tensor.id in self._gradients.keys() - self._begun])
        finally:
            self.close()

    def _finish(self, tensors: list[Tensor]) -> None:
        deadline = time.monotonic() + self._patience
        try:
            for tensor in tensors:
                self.wait(tensor, max(0.0, deadline - time.monotonic()))
        except Error as error:
            _log.logger.warning("left before the last step had ended, and its gradients may be lost: %s; call wait_all() (of a "
                                "syncline.torch.Optimizer: close()) at the end of the program", error)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        calls = getattr(self, "_calls", None)
        if calls is not None and calls.handle is not None:
            with contextlib.suppress(Error):
                self._close_at_end()

    def _after_fork(self) -> None:
        """In the child, which has none of the library's threads: nothing of it may be called, nor freed."""
        self._calls.forget(
            f"this process was forked from process {os.getppid()}, which holds the session: open sessions after the fork, "
            "or start children by spawn (multiprocessing.set_start_method('spawn'))")
        _of_parent.append(self._stage)
        self._stage = _staging.Stage()
        if self._servers is not None:
            self._servers.forget()
            self._servers = None


def _check_samples(what: str, samples: int) -> None:
    if not 1 <= samples <= _MAX_SAMPLES:
        raise InvalidArgument(f"{what}: samples is {samples}, but must be 1 to {_MAX_SAMPLES}")


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def stats() -> Stats:
    """The figures of this process's session, whoever opened it. FailedPrecondition unless there is exactly one."""
    return _only_session().stats


def report() -> str:
    """`Session.report` of this process's session: where the time of its steps went."""
    return _only_session().report()


def only_session_or_none() -> Optional[Session]:
    """None where none is open; FailedPrecondition where there are several."""
    return _only_session() if _open_sessions else None


def _only_session() -> Session:
    sessions = list(_open_sessions)
    if len(sessions) != 1:
        raise FailedPrecondition(f"{len(sessions)} sessions are open in this process; ask the one that is meant (Session.stats)")
    return sessions[0]


@atexit.register
def _close_all() -> None:
    for session in list(_open_sessions):
        session._close_at_end()


# In a forked child: torch ends a process that frees pinned memory of its parent, be it by the garbage collector.
_of_parent: list[_staging.Stage] = []


def _forget_all() -> None:
    if _staging.Staged.exist:
        gc.freeze()
    for session in list(_open_sessions):
        session._after_fork()


os.register_at_fork(after_in_child=_forget_all)
