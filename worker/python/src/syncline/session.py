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
import os
import threading
import time
import weakref
from collections.abc import Iterable
from ctypes import byref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Optional, Union

from syncline import _log
from syncline._embedded import EmbeddedServers
from syncline._library import (FLOAT32, FOREVER, LogFunction, Options, StatsStruct, TensorStruct, check, library)
from syncline._memory import Memory, is_writable, memory_of
from syncline.errors import Error, InvalidArgument, SessionClosed

_SLICE_MS = 100  # how long a wait may keep Python from handling Ctrl-C
_DEADLINE_EXCEEDED = 4

Option = Union[str, int, float, None]


@dataclass(frozen=True)
class Tensor:
    """A declared tensor. `weights` is the array that was declared: the session writes into it."""

    id: int
    name: str
    weights: Any
    memory: Memory
    frozen: bool


@dataclass(frozen=True)
class Stats:
    """What a session has sent and received so far, and who is in the job now."""

    bytes_pushed: int
    bytes_pulled: int
    resent_blocks: int
    epoch: int
    members: int


class Session:
    """A process's place in a job. Methods may be called by any thread, for each tensor by one at a time.

    Options, all of them strings or numbers: coordinator ("HOST:PORT"), job, run_id, rank, world_size, optimizer
    ("adamw:lr=0.001"), state, schedule ("cosine:total_steps=1000"), gradient ("clip_global_norm=1"), loss_scaling
    ("torch"), nonfinite_steps ("skip"), accumulate_steps, accumulate_on, aggregation, push ("topk:ratio=0.01"),
    publish ("int8"), failure_timeout ("10s"), start_timeout ("10m"), tls_cert, tls_key, tls_ca. What is not given
    comes from the environment that `syncline run`, torchrun, Slurm, Kubernetes and Open MPI set.

    Without a coordinator, neither as an option nor in SYNCLINE_COORDINATOR, the session starts servers of its own as
    a child process, which ends with this one.
    """

    def __init__(self, **options: Option) -> None:
        self._handle: Optional[ctypes.c_void_p] = None
        self._why_closed = "the session was not opened"
        self._servers: Optional[EmbeddedServers] = None
        self._tensors: list[Tensor] = []
        self._log = LogFunction(_log.log)
        self._lock = threading.Lock()  # only for close
        _log.set_up()
        settings = Options()
        try:
            for key, value in options.items():
                if value is not None:
                    settings[key] = value
            if options.get("coordinator") is None and not os.environ.get("SYNCLINE_COORDINATOR"):
                self._start_servers(settings)
            library().syncline_options_set_log(settings.handle, self._log, None)
            handle = ctypes.c_void_p()
            check(library().syncline_session_create(settings.handle, byref(handle)))
        except BaseException:
            self._stop_servers()
            raise
        finally:
            settings.free()
        self._handle = handle
        _open_sessions.add(self)

    def _start_servers(self, settings: Options) -> None:
        workers = settings["world_size"]
        if workers != "1":
            raise InvalidArgument(
                f"there are {workers} workers (WORLD_SIZE) but no servers: set SYNCLINE_COORDINATOR=HOST:PORT, or let "
                f"`syncline run --standalone --nproc-per-node {workers} -- python …` start both")
        self._servers = EmbeddedServers(settings["failure_timeout"])
        settings["coordinator"] = self._servers.address
        _log.logger.info("no SYNCLINE_COORDINATOR: started servers for this process, %s, status on http://%s",
                         self._servers.address, self._servers.admin)

    def _stop_servers(self) -> None:
        if self._servers is not None:
            self._servers.stop()
            self._servers = None

    def _open(self) -> ctypes.c_void_p:
        if self._handle is None:
            raise SessionClosed(self._why_closed)
        return self._handle

    # ---- before the first step ----

    def declare(self, name: str, weights: Any, *, learning_rate_scale: float = 1, options: str = "", state: str = "",
                frozen: bool = False) -> Tensor:
        """Declares a tensor: a NumPy array or a torch tensor in host memory, contiguous, float32, bfloat16 or float16.

        It holds the initial values now, and new weights from `start` on. Every worker declares the same tensors in
        the same order, front layers first. `options` stand in place of the job's ("weight_decay=0"). A frozen tensor
        is received once and never pushed.
        """
        handle = self._open()
        memory = memory_of(weights, name)
        if not learning_rate_scale > 0:  # the library takes 0 for "not set"
            raise InvalidArgument(f"{name}: a learning rate of {learning_rate_scale:g} times the job's; freeze it instead")
        if not is_writable(weights):
            raise InvalidArgument(f"{name}: the array is read-only, and new weights could not land in it")
        shape = (ctypes.c_uint64 * len(memory.shape))(*memory.shape)
        struct = TensorStruct(
            ctypes.sizeof(TensorStruct), name.encode(), len(memory.shape), shape, memory.dtype, memory.address,
            learning_rate_scale, options.encode() or None, state.encode() or None, int(frozen))
        number = ctypes.c_uint32()
        check(library().syncline_declare(handle, byref(struct), byref(number)))
        tensor = Tensor(number.value, name, weights, memory, frozen)
        self._tensors.append(tensor)
        return tensor

    def start(self, timeout: Optional[float] = None) -> None:
        """Joins the job and waits until all weights hold its values. The first worker's values are the job's.

        `timeout` in seconds, here and everywhere; None: as long as it takes (and the option start_timeout allows).
        """
        handle = self._open()
        self._interruptible(lambda: check(library().syncline_start(handle, _milliseconds(timeout))))

    # ---- steps ----

    def push_pull(self, tensor: Tensor, gradient: Any, samples: int = 1) -> None:
        """Hands over the gradient of one step, the mean over `samples` samples, and returns at once.

        `gradient` has the tensor's shape and stays unchanged until `wait` has returned.
        """
        memory = memory_of(gradient, tensor.name)
        if memory.shape != tensor.memory.shape:
            raise InvalidArgument(
                f"{tensor.name}: a gradient of shape {list(memory.shape)} for weights of shape {list(tensor.memory.shape)}")
        check(library().syncline_push_pull(self._open(), tensor.id, memory.address, memory.dtype, samples))

    def skip(self, tensors: Iterable[Tensor]) -> None:
        """Instead of push_pull: no gradient of these tensors in this step. All of them or, after an error, none."""
        ids = [tensor.id for tensor in tensors]
        check(library().syncline_skip(self._open(), (ctypes.c_uint32 * len(ids))(*ids), len(ids)))

    def wait(self, tensor: Tensor, timeout: Optional[float] = None) -> None:
        """Blocks until the weights include every member's contribution to the step that was pushed last."""
        handle = self._open()
        _in_slices(lambda ms: int(library().syncline_wait(handle, tensor.id, ms)), timeout)

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """`wait` for all tensors."""
        handle = self._open()
        _in_slices(lambda ms: int(library().syncline_wait_all(handle, ms)), timeout)

    def is_ready(self, tensor: Tensor) -> bool:
        """Whether `wait` would return at once."""
        return bool(library().syncline_is_ready(self._open(), tensor.id) == 1)

    def pull_average(self, tensor: Tensor, out: Any, timeout: Optional[float] = None) -> None:
        """Reads the averaged weights (ema_decay, swa_start) of a tensor into `out`, a float32 array of its shape."""
        handle, memory = self._open(), memory_of(out, tensor.name)
        if memory.shape != tensor.memory.shape or memory.dtype != FLOAT32:
            raise InvalidArgument(f"{tensor.name}: averages are float32 of shape {list(tensor.memory.shape)}")
        self._interruptible(lambda: check(
            library().syncline_pull_average(handle, tensor.id, memory.address, _milliseconds(timeout))))

    # ---- what is going on ----

    @property
    def step(self) -> int:
        """The number of the step that this worker computes now; of a running job that it joined, not 0."""
        return int(library().syncline_step(self._open()))

    @property
    def loss_scale(self) -> float:
        """What to multiply the loss of this step with; 1 without loss scaling."""
        return float(library().syncline_loss_scale(self._open()))

    @property
    def rank(self) -> int:
        """Which worker this is."""
        return int(library().syncline_rank(self._open()))

    @property
    def world_size(self) -> int:
        """With how many workers the job began."""
        return int(library().syncline_world_size(self._open()))

    @property
    def stats(self) -> Stats:
        """Figures so far."""
        struct = StatsStruct(struct_size=ctypes.sizeof(StatsStruct))
        check(library().syncline_get_stats(self._open(), byref(struct)))
        return Stats(struct.bytes_pushed, struct.bytes_pulled, struct.resent_blocks, struct.epoch, struct.members)

    def report_loss(self, loss: float, step: Optional[int] = None, samples: int = 1) -> None:
        """For `syncline status`, metrics and `syncline lr-range`. `step` is the present one unless given."""
        number = self.step if step is None else step
        library().syncline_report_loss(self._open(), number, loss, samples)

    def save_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes what lossy encodings keep of this worker's gradients; best after wait_all."""
        check(library().syncline_save_residuals(self._open(), os.fsencode(path)))

    def restore_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Reads what save_residuals wrote: after `start` and before the first push."""
        check(library().syncline_restore_residuals(self._open(), os.fsencode(path)))

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Blocks until every member is in a barrier. Members that die meanwhile are not waited for."""
        handle = self._open()
        self._interruptible(lambda: check(library().syncline_barrier(handle, _milliseconds(timeout))))

    # ---- the end ----

    def close(self) -> None:
        """A clean goodbye: the other workers go on without this one at once. Safe to call again.

        What is on its way is not waited for: call wait_all before, if the last weights are wanted. An error that
        already ended the session is not raised again.
        """
        with self._lock:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            self._why_closed = "the session was closed"
            try:
                if library().syncline_leave(handle):
                    _log.logger.debug("left without a goodbye: %s", library().syncline_last_error().decode(errors="replace"))
            finally:
                library().syncline_session_free(handle)
                self._stop_servers()
                _open_sessions.discard(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            with contextlib.suppress(Error):
                self.close()

    def _interruptible(self, call: Callable[[], None]) -> None:
        """Runs a call that cannot wait in slices. Ctrl-C cancels it."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        failure: list[BaseException] = []
        is_over = threading.Event()  # Thread.join takes a thread for ended once Ctrl-C has interrupted it (before 3.13)

        def run() -> None:
            try:
                call()
            except BaseException as error:  # handed to the thread that waits
                failure.append(error)
            finally:
                is_over.set()

        threading.Thread(target=run, name="syncline-call", daemon=True).start()
        try:
            is_over.wait()
        except BaseException:
            library().syncline_cancel(self._handle)
            while not is_over.is_set():
                with contextlib.suppress(KeyboardInterrupt):  # a second one: the call ends as soon as it can
                    is_over.wait()
            library().syncline_uncancel(self._handle)
            raise
        if failure:
            raise failure[0]

    def _after_fork(self) -> None:
        """In the child, which has none of the library's threads: nothing of it may be called, nor freed."""
        self._handle = None
        self._why_closed = (
            f"this process was forked from process {os.getppid()}, which holds the session: open sessions after the fork, "
            "or start children by spawn (multiprocessing.set_start_method('spawn'))")
        if self._servers is not None:
            self._servers.forget()
            self._servers = None


def _milliseconds(timeout: Optional[float]) -> int:
    return FOREVER if timeout is None else max(0, int(timeout * 1000))


def _in_slices(call: Callable[[int], int], timeout: Optional[float]) -> None:
    """Waits so that Python handles signals meanwhile: between two calls into the library."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = _SLICE_MS if deadline is None else max(0, int((deadline - time.monotonic()) * 1000))
        code = call(min(left, _SLICE_MS))
        if code != _DEADLINE_EXCEEDED or (deadline is not None and left <= _SLICE_MS):
            return check(code)


_open_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for session in list(_open_sessions):
        session.close()


def _forget_all() -> None:
    for session in list(_open_sessions):
        session._after_fork()


os.register_at_fork(after_in_child=_forget_all)
