"""Gradients of DDP models that travel encoded between the ranks themselves: no servers, any backend."""
from __future__ import annotations

import collections
import queue
import threading
from typing import Any, Optional

import torch

from syncline import _group
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.torch._meeting import await_key, network

_made: collections.Counter[str] = collections.Counter()  # groups, by their members


class CompressedState:
    """What `syncline.torch.compressed_hook` needs: how gradients travel, and what their encodings have lost so far.

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = syncline.torch.CompressedState("onebit")
        ddp.register_comm_hook(state, syncline.torch.compressed_hook)

    All ranks of `process_group` (torch's default one) make it, in the same order, after `init_process_group` with any backend;
    it waits for the others and opens connections of its own. `codec` is a codec of docs/compression.md: "onebit",
    "topk:ratio=0.01", "int8", "fp32" and so on; "auto", "powersgd" and codecs by vote need servers (`HookState`). What is lost on
    the way to the others, and on the way back, is kept and sent later. What is kept begins anew when DDP cuts its buckets anew,
    which it does once, after the first step.
    """

    def __init__(self, codec: str = "onebit", process_group: Any = None, *, seed: int = 0) -> None:
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise FailedPrecondition("CompressedState needs a process group: call torch.distributed.init_process_group before")
        self._codec, self._seed = codec, seed
        self._group = _connect(process_group)
        # What is wrong with the codec is said now, not in the middle of backward.
        _group.CompressedMean(self._group, codec, 1)
        self._means: dict[int, _group.CompressedMean] = {}
        self._sent_before = 0  # by means of buckets that are no more
        self._buckets: queue.SimpleQueue[Optional[_Work]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._reduce, name="syncline-compressed", daemon=True)
        self._thread.start()

    @property
    def sent_bytes(self) -> int:
        """By this rank, so far. An uncompressed all-reduce sends 8 (ranks - 1) / ranks for each gradient."""
        return self._sent_before + sum(mean.sent_bytes for mean in list(self._means.values()))

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """The future is the bucket with the means of its gradients."""
        work = _Work(bucket.index(), bucket.buffer())
        if work.buffer.device.type == "cpu":
            self._buckets.put(work)
        else:
            self._mean(work)  # on the stream that made the gradients
        # An error that is raised here is one for C++, too; DDP crashes on one that set_exception leaves.
        return work.done.then(lambda _: work.outcome())

    def _reduce(self) -> None:
        while (work := self._buckets.get()) is not None:
            self._mean(work)

    def _mean(self, work: _Work) -> None:
        try:
            values = work.buffer.detach().to("cpu", torch.float32).contiguous()
            mean = self._means.get(work.index)
            if mean is None or mean.count != values.numel():
                self._sent_before += mean.sent_bytes if mean else 0
                mean = _group.CompressedMean(self._group, self._codec, values.numel(), self._seed + work.index)
                self._means[work.index] = mean
            mean.run(values.data_ptr())
            if values.data_ptr() != work.buffer.data_ptr():
                work.buffer.copy_(values)
        except Exception as error:
            work.error = error
        work.done.set_result(None)

    def close(self) -> None:
        """Closes the connections; all ranks, when no more gradients come. At the end of the program it comes by itself."""
        self._buckets.put(None)
        self._thread.join()
        self._means.clear()
        self._group.settle()


class _Work:
    def __init__(self, index: int, buffer: torch.Tensor) -> None:
        self.index, self.buffer = index, buffer
        self.done: torch.futures.Future[None] = torch.futures.Future()
        self.error: Optional[Exception] = None

    def outcome(self) -> torch.Tensor:
        """The bucket, its means in place."""
        if self.error is not None:
            raise self.error
        return self.buffer


def _connect(process_group: Any) -> _group.Group:
    """A group of the same ranks, through torch's store."""
    distributed = torch.distributed
    store = distributed.distributed_c10d._get_default_store()
    rank, ranks = distributed.get_rank(process_group), distributed.get_world_size(process_group)
    if rank < 0:
        raise InvalidArgument("this rank is no member of process_group: let its members only make a CompressedState")
    members = "all" if process_group is None else _ranks_of(process_group)
    name = f"syncline_compressed/{members}/{_made[members]}"
    _made[members] += 1

    def get(key: str, wait_ms: int) -> bytes:
        await_key(store, f"{name}/{key}", wait_ms)
        return bytes(store.get(f"{name}/{key}"))

    def put(key: str, value: bytes) -> None:
        store.set(f"{name}/{key}", value.decode("ascii"))

    return _group.Group("syncline", rank, ranks, put, get, network=network())


def _ranks_of(process_group: Any) -> str:
    distributed = torch.distributed
    if hasattr(distributed, "get_process_group_ranks"):
        ranks = distributed.get_process_group_ranks(process_group)
    else:
        ranks = distributed.distributed_c10d._pg_group_ranks[process_group]
    return "-".join(str(rank) for rank in sorted(ranks))


def compressed_hook(state: CompressedState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: gradients are averaged among the ranks, encoded (see CompressedState)."""
    return state.start(bucket)


# DDP compares annotations with the types themselves.
if torch.distributed.is_available():
    compressed_hook.__annotations__ = {
        "bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
