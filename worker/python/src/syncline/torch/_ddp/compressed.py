"""Averages the gradients of DDP models among the ranks themselves, with compression, without servers, beside any backend."""
from __future__ import annotations

import atexit
import collections
import datetime
import os
import queue
import threading
import weakref
from typing import Any, Optional

import torch

from syncline import _exit, _group
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.torch._backend.meeting import await_key, network
from syncline.torch._ddp.bucket import Bucket
from syncline.torch._host.place import warn_unheeded

_made: collections.Counter[str] = collections.Counter()  # number of groups made so far, by their members
_LEAVE_S = 5.0  # time that an operation under way may still take when the state is closed


class CompressedState:
    """The state of `syncline.torch.compressed_hook`: connections, a codec, and what the codec has lost so far.

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = syncline.torch.CompressedState("int8")
        ddp.register_comm_hook(state, syncline.torch.compressed_hook)

    All ranks of `process_group` (torch's default one; that of the DDP model) make it, in the same order, after
    `init_process_group` with any backend; it waits for the others and opens connections of its own. `codec` is one of
    docs/compression.md: dense ("fp32", "bf16"), a quantizer ("onebit", "int8") or a selector ("topk:ratio=0.01"); "auto",
    "powersgd", codecs by vote and the options `vectors` and `min_elements` are not for buckets. Codecs with memory keep what they
    lose, on the way to the others and back, and send it later; it starts over when DDP cuts its buckets again, which it does once,
    after the first step. It is not converted when a GradScaler changes its scale.

    `codec` is one of docs/compression.md: dense ("fp32", "bf16"), a quantizer ("onebit", "int8") or a selector ("topk:ratio=0.01").
    "auto", "powersgd", codecs by vote and the options `vectors` and `min_elements` do not work on buckets. Codecs with memory keep what
    they lose, on the way to the other ranks and back, and send it later. This memory starts from zero when DDP forms its buckets again,
    which it does once, after the first step. It is not converted when a GradScaler changes its scale.

    `timeout` limits the constructor's wait and each operation. An error of a bucket comes out of backward as torch's RuntimeError;
    `state.error` is the original one, with `rank` (in process_group) if one rank caused it. No rank can use the state then: restart
    all of them.
    """

    error: Optional[Exception] = None

    def __init__(self, codec: str = "int8", process_group: Any = None, *, seed: int = 0,
                 timeout: datetime.timedelta = datetime.timedelta(minutes=30)) -> None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise FailedPrecondition("CompressedState needs a process group: call torch.distributed.init_process_group before")
        _exit.set_up()
        _group.check_codec(codec)
        warn_unheeded("compressed_hook, whose ranks exchange gradients among themselves and send none to servers")
        self._codec, self._seed = codec, seed
        self._group: Optional[_group.Group] = _connect(process_group, timeout)
        self._process = os.getpid()
        self._means: list[_Mean] = []
        self._means_made = 0
        self._sent_bytes = self._plain_bytes = 0
        self._ranks = distributed.get_world_size(process_group)
        self._buckets: _Buckets = queue.SimpleQueue()
        self._thread = threading.Thread(target=_serve, args=(self._buckets,), name="syncline-compressed", daemon=True)
        self._thread.start()
        _open.add(self)

    @property
    def sent_bytes(self) -> int:
        """Number of bytes that this rank has sent so far."""
        return self._sent_bytes

    @property
    def plain_bytes(self) -> int:
        """Number of bytes that a ring of FP32 would have sent: 8 (ranks - 1) / ranks for each element of a gradient."""
        return self._plain_bytes

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Queues a bucket for the thread. The future completes with the bucket's memory, which then holds the means."""
        if self._group is None:
            raise FailedPrecondition("the CompressedState is closed; make a new one and register its hook")
        if self._process != os.getpid():
            raise FailedPrecondition("the CompressedState belongs to the process that forked this one; make a "
                                     "new one here")
        ours = Bucket(bucket)
        self._buckets.put((self, ours))
        return ours.done()

    def reduce(self, bucket: Bucket) -> None:
        """Replaces a bucket by its mean over the ranks. The thread calls it."""
        parameters, buffer = bucket.parameters, bucket.buffer
        if self.error is not None:
            raise self.error
        try:
            values = buffer.detach().to("cpu", torch.float32).contiguous()
            mean = self._mean_of(parameters, values.numel())
            before = mean.sent_bytes
            mean.run(values.data_ptr())
            self._sent_bytes += mean.sent_bytes - before
            self._plain_bytes += 8 * values.numel() * (self._ranks - 1) // self._ranks
            if values.data_ptr() != buffer.data_ptr():
                buffer.copy_(values)
        except Exception as error:
            self.error = error
            raise

    def _mean_of(self, parameters: list[torch.nn.Parameter], count: int) -> _group.CompressedMean:
        """Returns the CompressedMean of a bucket. A codec's memory belongs to the bucket's parameters in their order, not to its number."""
        for known in self._means:
            if known.is_of(parameters):
                return known.mean
        if self._group is None:
            raise FailedPrecondition("the CompressedState is closed")
        ids = {id(parameter) for parameter in parameters}
        self._means = [known for known in self._means if not ids & {id(one) for one in known.parameters}]
        mean = _group.CompressedMean(self._group, self._codec, count, self._seed + self._means_made)
        self._means_made += 1
        self._means.append(_Mean(parameters, mean))
        return mean

    def close(self) -> None:
        """Closes the connections; call it when no more gradients come. The end of the program or of the state does it by itself."""
        group, self._group = self._group, None
        if group is None or self._process != os.getpid():
            return
        self._buckets.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_LEAVE_S)
            if self._thread.is_alive():
                group.abort()
                self._thread.join()
        group.settle()
        self._means.clear()  # before their group, which is freed with its last reference

    def __del__(self) -> None:
        if getattr(self, "_group", None) is not None:
            self.close()


class _Mean:
    def __init__(self, parameters: list[torch.nn.Parameter], mean: _group.CompressedMean) -> None:
        self.parameters, self.mean = list(parameters), mean

    def is_of(self, parameters: list[torch.nn.Parameter]) -> bool:
        """Whether these are its parameters, in this order."""
        return len(parameters) == len(self.parameters) and all(one is other for one, other in zip(parameters, self.parameters))


_Buckets = queue.SimpleQueue[Optional[tuple[CompressedState, Bucket]]]


def _serve(buckets: _Buckets) -> None:
    """Runs the thread of a CompressedState. It does not keep the state alive while it waits."""
    while (given := buckets.get()) is not None:
        state, bucket = given
        bucket.run(state.reduce)
        del given, state, bucket


_open: weakref.WeakSet[CompressedState] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends the threads: one that is inside torch when the interpreter ends would end the process with SIGABRT."""
    for state in list(_open):
        state.close()


def _connect(process_group: Any, timeout: datetime.timedelta) -> _group.Group:
    """Returns a group of the same ranks, which meet through torch's store."""
    distributed = torch.distributed
    store = distributed.distributed_c10d._get_default_store()
    rank, ranks = distributed.get_rank(process_group), distributed.get_world_size(process_group)
    if rank < 0:
        raise InvalidArgument("this rank is not a member of process_group: make a CompressedState on its members only")
    members = "all" if process_group is None else _ranks_of(process_group)
    name = f"syncline_compressed/{members}/{_made[members]}"
    _made[members] += 1

    def get(key: str, wait_ms: int) -> bytes:
        return await_key(store, f"{name}/{key}", wait_ms)

    def put(key: str, value: bytes) -> None:
        store.set(f"{name}/{key}", value.decode("ascii"))

    return _group.Group("syncline", rank, ranks, put, get, int(timeout.total_seconds() * 1000), network())


def _ranks_of(process_group: Any) -> str:
    distributed = torch.distributed
    if hasattr(distributed, "get_process_group_ranks"):
        ranks = distributed.get_process_group_ranks(process_group)
    else:
        ranks = distributed.distributed_c10d._pg_group_ranks[process_group]
    return "-".join(str(rank) for rank in sorted(ranks))


def compressed_hook(state: CompressedState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel that averages compressed gradients among the ranks (see CompressedState)."""
    if not isinstance(state, CompressedState):
        raise InvalidArgument(f"the state of compressed_hook is {state!r}, expected a CompressedState: CompressedState(\"int8\")")
    return state.start(bucket)


# DDP compares the hook's annotations with types; with `from __future__ import annotations` they would be strings.
if torch.distributed.is_available():
    compressed_hook.__annotations__ = {
        "bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
