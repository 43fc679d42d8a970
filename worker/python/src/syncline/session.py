"""Session: a training process's place in a job. It declares tensors, pushes their gradients and receives weights.

    weights = numpy.zeros(1000, numpy.float32)
    with syncline.Session(optimizer="adamw:lr=0.1") as session:
        w = session.declare("w", weights)
        session.start()                       # waits for the other workers, fills the weights
        while session.step < 100:
            session.push_pull(w, weights - 3, samples=1)
            session.wait(w)                   # just before the weights are read

In every step, each trained tensor needs one push_pull or one skip. A tensor's weights and gradient belong to the session between
push_pull and the end of wait.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from ctypes import byref
from types import TracebackType
from typing import Any, Callable, Optional, Union

from syncline import _account, _exit, _lent, _log, _names, _open_sessions, _staging
from syncline._calls import Calls
from syncline._durations import milliseconds, seconds_of
from syncline._embedded import EmbeddedServers, check_options
from syncline._library import (FLOAT32, LogFunction, Options, TensorStruct, check, library)
from syncline._memory import Memory, is_writable, memory_of
from syncline._report import Progress, Stats, report as report_of, stats_of, summary
from syncline._tensor import Tensor as Tensor, check_samples, encoded_name  # the Tensor for others, too
from syncline._waits import Waits
from syncline.errors import Error, InvalidArgument, SessionClosed

_AFTER_CLOSE = ("step", "rank", "world_size")

Option = Union[str, int, float, None]


class Session(_lent.Allocator):
    """A process's place in a job. Thread-safe, but only one thread at a time may use the same tensor.

    Options are strings or numbers:

    - The job, and this process's place in it: coordinator ("HOST:PORT"), job, run_id, rank, world_size, tls_cert, tls_key, tls_ca, and
      rejoin (1: this rank was in the run before; raises `JobOver` if the others have left it).
    - Training: optimizer ("adamw:lr=0.001"), state, schedule ("cosine:total_steps=1000"), gradient ("clip_global_norm=1"), loss_scaling
      ("torch"), nonfinite_steps ("skip"), accumulate_steps, accumulate_on, aggregation, mode ("ssp:3", "bsp:quorum=3").
    - Encodings: push ("topk:ratio=0.01"), publish ("int8"), preset ("sparseloco": sets optimizer, push and publish), codec_threads
      (threads that encode and decode beside the one that sends; "auto": half of the cores, 4 at most; 0: none).
    - Checkpoints: checkpoint_every ("500 steps"), durability ("disk").
    - Timeouts: failure_timeout ("10s"), start_timeout ("10m").
    - The other settings that must be the same on all workers of a job (docs/settings.md).

    Options that are not given come from the environment that `syncline run`, torchrun, Slurm, Kubernetes and Open MPI set.

    A program may have several sessions. If no job is named, the job of the second one is the environment's name with "-2", and so on;
    the attribute `job` has the name.

    Without a coordinator, neither as an option nor in SYNCLINE_COORDINATOR, the session starts its own servers as a child process,
    which ends with this one.
    """

    steps_are = "steps"
    """What the summary calls them, and what is counted as samples."""
    samples_are = "samples"
    members_are = "worker"

    def __init__(self, **options: Option) -> None:
        self._calls = Calls()
        self._waits = Waits(self._calls)
        self._servers: Optional[EmbeddedServers] = None
        self._tensors: list[Tensor] = []
        self._log = LogFunction(_log.log)
        # By tensor: arrays that the session may still read, from push_pull until wait has returned.
        self._gradients: dict[int, list[Any]] = {}
        self._last: dict[str, Any] = {}  # values that stay readable after close
        self._states: list[Any] = []  # arrays of set_state, kept until start has returned
        self._stage = _staging.Stage()  # the tensors that are on GPUs
        self._progress = Progress()
        self.account = _account.Account()
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
            place = settings["coordinator"] if self._servers is None else _names.EMBEDDED, settings["rank"]
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
        _open_sessions.all_open.add(self)

    def _start_servers(self, settings: Options) -> None:
        workers = settings["world_size"]
        if workers != "1":
            raise InvalidArgument(
                f"there are {workers} workers (WORLD_SIZE) but no servers: set SYNCLINE_COORDINATOR=HOST:PORT, or let "
                f"`syncline run --standalone --nproc-per-node {workers} -- python …` start both")
        certificates = [key for key in ("tls_cert", "tls_key", "tls_ca", "identities") if settings[key]]
        if certificates:
            raise InvalidArgument(
                f"{certificates[0]} is set (SYNCLINE_{certificates[0].upper()}) but no coordinator: set "
                "SYNCLINE_COORDINATOR=HOST:PORT, or unset it: the servers that a program starts for itself, on "
                "loopback, have no certificates")
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
            _open_sessions.all_open.discard(self)
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
        """Declares a tensor: a contiguous NumPy array or torch tensor of float32, bfloat16 or float16.

        A torch tensor may be on a GPU, which encodes and decodes it if it can (docs/pytorch.md). `weights` holds the initial values
        now, and new weights from `start` on. Every worker declares the same tensors in the same order, front layers first. `options`
        replace those of the job's optimizer ("weight_decay=0"). A frozen tensor is received once and never pushed.
        """
        placed = _staging.placed(weights, name)
        memory = memory_of(weights, name) if placed is None else placed.memory
        if not learning_rate_scale > 0:  # in the library 0 means "not set"
            raise InvalidArgument(f"{name}: a learning rate of {learning_rate_scale:g} times the job's; freeze it instead")
        if not is_writable(weights):
            raise InvalidArgument(f"{name}: the array is read-only, so new weights could not be written to it")
        shape = (ctypes.c_uint64 * len(memory.shape))(*memory.shape)
        struct = TensorStruct(
            ctypes.sizeof(TensorStruct), encoded_name(name), len(memory.shape), shape, memory.dtype, memory.address,
            learning_rate_scale, options.encode() or None, state.encode() or None, int(frozen), memory.device)
        number = ctypes.c_uint32()
        self._do("declare", byref(struct), byref(number))
        tensor = Tensor(number.value, name, weights, memory, frozen, self._calls)
        if placed is not None:
            self._stage.add(tensor.id, placed)
            self.account.is_of_line = True
        self._tensors.append(tensor)
        self.account.add(tensor.id, frozen)
        return tensor

    def set_state(self, tensor: Tensor, updates: int, arrays: Iterable[Any]) -> None:
        """Gives the state with which the tensor's optimizer begins if the job has none yet: all its arrays after `updates` updates.

        Arrays are float32 of the tensor's shape, in the order of the optimizer's slots (server/optimizer). Call it before `start`, with
        the same values on all workers.
        """
        tensor.of(self._calls)
        memories = [self._float32(tensor, array, "optimizer state") for array in arrays]
        addresses = (ctypes.c_void_p * len(memories))(*(memory.address for memory in memories))
        self._states.append(arrays)
        self._do("set_state", tensor.id, updates, addresses, len(memories))

    def _float32(self, tensor: Tensor, array: Any, what: str) -> Memory:
        tensor.of(self._calls)
        memory = memory_of(array, tensor.name)
        if memory.shape != tensor.memory.shape or memory.dtype != FLOAT32:
            raise InvalidArgument(f"{tensor.name}: {what} is float32 of shape {list(tensor.memory.shape)}")
        return memory

    def start(self, timeout: Optional[float] = None) -> None:
        """Joins the job and waits until all weights hold its values. The job begins with the first worker's values.

        `timeout` is in seconds, here and in all methods. None: no limit but the option start_timeout.
        """
        self._stage.lend()
        self._waits.whole("start", milliseconds(timeout))
        self._states.clear()
        self._calls.was_in_job = True
        self._stage.take_back()
        self._progress = Progress(self.stats)

    # ---- steps ----

    def push_pull(self, tensor: Tensor, gradient: Any, samples: int = 1) -> None:
        """Hands over the gradient of one step, the mean over `samples` samples, and returns at once.

        `gradient` has the tensor's shape, and is on the device of the weights or in host memory. The caller must not change it before
        `wait` has returned; the session keeps a reference until then.
        """
        tensor.of(self._calls)
        gradient, memory, marks = self._stage.take(tensor.id, tensor.name, gradient)
        if memory.shape != tensor.memory.shape:
            raise InvalidArgument(
                f"{tensor.name}: a gradient of shape {list(memory.shape)} for weights of shape {list(tensor.memory.shape)}")
        check_samples(tensor.name, samples)
        codes = self.account.codes[tensor.id]
        codes.clear()
        if self._stage.is_empty:
            return self._push(tensor, gradient, memory, samples, codes)
        # An error is raised by the wait.
        self._stage.in_order([tensor.id], marks, functools.partial(self._push, tensor, gradient, memory, samples, []), codes)

    def _push(self, tensor: Tensor, gradient: Any, memory: Memory, samples: int, codes: list[int]) -> None:
        held = self._gradients.setdefault(tensor.id, [])
        held.append(gradient)
        is_first = self.account.is_between_steps()
        try:
            _account.call(self._calls, "push_pull_from", codes, tensor.id, memory.address, memory.dtype, memory.device, samples)
        except Error:
            held.pop()
            raise
        self.account.note([tensor.id])
        del held[:-1]
        self._progress.push(memory.shape, samples if is_first else 0)  # the first one's are the step's

    def scale_learning_rate(self, tensor: Tensor, factor: float) -> None:
        """Sets the factor by which the servers multiply the tensor's learning rate, from its next push_pull on: 0 to 1e6.

        It is for schedules that the program computes. The factor travels with the gradient and must be the same on all workers; if
        not, the worker that joined the job first decides. Do not call it between push_pull and wait.
        """
        tensor.of(self._calls)
        self._do("scale_learning_rate", tensor.id, factor)

    def skip(self, tensors: Iterable[Tensor]) -> None:
        """Says that these tensors have no gradient in this step. Replaces push_pull. An error means that none was skipped."""
        ids = [tensor.of(self._calls) for tensor in tensors]
        codes = self.account.skip_codes
        codes.clear()
        if self._stage.is_empty:
            return self._skip(ids, codes)
        self._stage.in_order(ids, [], functools.partial(self._skip, ids, []), codes)

    def _skip(self, ids: list[int], codes: list[int]) -> None:
        self.account.is_between_steps()
        _account.call(self._calls, "skip", codes, (ctypes.c_uint32 * len(ids))(*ids), len(ids))
        self.account.note(ids)

    def undeclare(self, tensor: Tensor) -> None:
        """Ends this worker's part in a tensor, and lets go of its arrays. Call it between two steps, after the tensor's `wait`.

        The weights stay as they are. The session skips the tensor in every step from now on; the other workers go on with it. Raises
        FailedPrecondition in the middle of a step, for the last trained tensor, in modes other than bsp, and with a quorum.
        """
        tensor.of(self._calls)
        self._stage.settle(tensor.id)
        self._do("undeclare", tensor.id)
        self._stage.remove(tensor.id)
        self.account.remove(tensor.id, tensor.frozen)
        self._gradients.pop(tensor.id, None)
        self._tensors.remove(tensor)

    def wait(self, tensor: Tensor, timeout: Optional[float] = None) -> None:
        """Blocks until the weights include every member's contribution to the step that was pushed last."""
        tensor.of(self._calls)
        timeout = self._stage.settle(tensor.id, timeout)
        self._waits.in_slices(lambda handle, ms: int(library().syncline_wait(handle, tensor.id, ms)), timeout)
        if self._gradients.pop(tensor.id, None):
            self._progress.touch()
        self._stage.land([tensor.id])

    def wait_all(self, timeout: Optional[float] = None) -> None:
        """Does `wait` for all tensors."""
        timeout = self._stage.settle(timeout=timeout)
        self._waits.in_slices(lambda handle, ms: int(library().syncline_wait_all(handle, ms)), timeout)
        if self._gradients:
            self._progress.touch()
        self._gradients.clear()
        self._stage.land()

    def is_ready(self, tensor: Tensor) -> bool:
        """Whether `wait` would return at once."""
        if not self._stage.is_settled(tensor.of(self._calls)):
            return False
        with self._calls.call() as handle:
            return bool(library().syncline_is_ready(handle, tensor.id) == 1)

    def pull_average(self, tensor: Tensor, out: Any, timeout: Optional[float] = None) -> None:
        """Reads the averaged weights (ema_decay, swa_start) of a tensor into `out`, a float32 array of its shape."""
        memory = self._float32(tensor, out, "an average")
        timeout = self._stage.settle(tensor.id, timeout)
        self._waits.whole("pull_average", tensor.id, memory.address, milliseconds(timeout))

    def pull_state(self, tensor: Tensor, array: int, out: Any, timeout: Optional[float] = None) -> int:
        """Reads an array of the tensor's optimizer state into `out`, a float32 array of its shape.

        Returns the number of updates that made it. `array` numbers the optimizer's slots; adam has the mean in 0 and the variance in 1.
        The state is that after all steps which this worker has pushed. In mode ssp it waits until the other workers have come to them,
        and the weights are of that step afterwards. Raises FailedPrecondition in mode asp.
        """
        memory = self._float32(tensor, out, "optimizer state")
        updates = ctypes.c_uint64()
        timeout = self._stage.settle(timeout=timeout)
        self._stage.lend([tensor.id])
        self._waits.whole("pull_state", tensor.id, array, memory.address, byref(updates), milliseconds(timeout))
        self._stage.take_back([tensor.id])
        return int(updates.value)

    # ---- what is going on ----

    @property
    def step(self) -> int:
        """The number of the step that this worker computes now. It does not begin at 0 in a running job. After close: the last one."""
        if not self._calls.why_closed:
            self._stage.settle()
        return int(self._ask("step"))

    @property
    def loss_scale(self) -> float:
        """The factor by which to multiply the loss of this step; 1 without loss scaling."""
        return float(self._ask("loss_scale"))

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return int(self._ask("rank"))

    @property
    def world_size(self) -> int:
        """The number of workers with which the job began."""
        return int(self._ask("world_size"))

    @property
    def device_codecs(self) -> int:
        """Number of tensors that a GPU encodes and decodes in its own memory. Tensors that are copied to host memory do not count."""
        return self._stage.on_device

    @property
    def stats(self) -> Stats:
        """Statistics so far."""
        with self._calls.call() as handle:
            return stats_of(handle, self._stage.why_copied)

    def figures(self) -> tuple[Stats, Progress]:
        """Returns the statistics, and what the program has pushed since `start`, for progress bars."""
        return self.stats, self._progress

    def report(self) -> str:
        """Returns lines to print: how long a step took on this worker, and where the time went."""
        return report_of(self.rank, self.stats)

    def report_loss(self, loss: float, step: Optional[int] = None, samples: int = 1) -> None:
        """Reports the loss for `syncline status`, metrics and `syncline lr-range`. `step` is by default the present one."""
        check_samples("report_loss", samples)
        number = self.step if step is None else step
        with self._calls.call() as handle:
            library().syncline_report_loss(handle, number, loss, samples)

    def save_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the residuals that lossy encodings keep of this worker's gradients to a file. Best called after wait_all."""
        self._stage.settle()
        self._do("save_residuals", os.fsencode(path))

    def restore_residuals(self, path: Union[str, os.PathLike[str]]) -> None:
        """Reads what save_residuals wrote. Call it after `start` and before the first push."""
        self._do("restore_residuals", os.fsencode(path))

    def barrier(self, timeout: Optional[float] = None) -> None:
        """Blocks until every member is in a barrier. Does not wait for members that die meanwhile."""
        timeout = self._stage.settle(timeout=timeout)
        self._stage.lend()  # in some modes new weights come at any time; now they may land
        self._waits.whole("barrier", milliseconds(timeout))
        self._stage.take_back()

    # ---- the end ----

    def close(self) -> None:
        """Leaves the job in the regular way: the other workers go on at once. May be called again, by any thread.

        Waits, failure_timeout at most, for a step that was pushed with all tensors. Call wait_all before if you need the last weights.
        Calls of other threads end with SessionClosed. An error that already ended the session is not raised again.
        """
        self._settle_at_end()
        self._stage.end()
        self._calls.close("the session was closed", self._say_goodbye, self._free)

    def _settle_at_end(self) -> None:
        """Waits for gradients that are still to come from GPUs. Ignores errors, also torch's: closing must go on."""
        with contextlib.suppress(Exception):
            self._stage.settle(timeout=self._patience)
            self._stage.lend()  # the last views may land

    def _say_goodbye(self, handle: ctypes.c_void_p) -> None:
        self._summarise(handle)
        self._last = {name: getattr(library(), f"syncline_{name}")(handle) for name in _AFTER_CLOSE}
        library().syncline_cancel(handle)
        if library().syncline_leave(handle):
            _log.logger.debug("could not say goodbye to the coordinator: %s", library().syncline_last_error().decode(errors="replace"))

    def _summarise(self, handle: ctypes.c_void_p) -> None:
        """Logs one line about the run, on rank 0 only. Logs nothing if the program dies, so that its error comes last."""
        if library().syncline_rank(handle) or not _log.logger.isEnabledFor(logging.INFO) or hasattr(sys, "last_type"):
            return
        stats = stats_of(handle, self._stage.why_copied)
        if stats.steps:
            _log.logger.info("%s", summary(stats, self._progress, self.steps_are, self.samples_are))

    def _close_at_end(self) -> None:
        """Closes when a program ends without close(). Waits for steps that were pushed with all tensors, so that they are not lost."""
        try:
            # It does not wait if the program dies of an exception or the session was lost, nor for a step that was begun in
            # part, which would never end.
            if not hasattr(sys, "last_type") and not self._calls.is_lost:
                self._settle_at_end()
                begun = set() if self.account.is_between_steps() else self.account.begun
                self._finish([tensor for tensor in self._tensors if tensor.id in self._gradients.keys() - begun])
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
        """Closes the session in a forked child, which has no threads of the library: it must not call the library or free the handle."""
        self._calls.forget(
            f"this process was forked from process {os.getppid()}, which holds the session: open sessions after the fork, "
            "or start children by spawn (multiprocessing.set_start_method('spawn'))")
        _open_sessions.of_parent.append((self._stage, self._gradients))
        self._stage, self._gradients = _staging.Stage(), {}  # the child has pushed nothing that could be lost
        if self._servers is not None:
            self._servers.forget()
            self._servers = None
