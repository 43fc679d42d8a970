"""The torch.distributed backend "syncline": collective operations through shared memory, for CPU tensors.

    import syncline.torch.distributed
    torch.distributed.init_process_group("syncline")    # under torchrun, or any launcher that sets RANK and so on

It needs no servers and no coordinator: members find each other through torch's own store, and must be processes of one
host. A member that dies, hangs or calls another operation ends every operation under way on all others with an error
that names its rank (`error.rank`); the group is of no use then.

Tensors are on the CPU. Reductions: sum, average, minimum, maximum, product, and bitwise and/or of booleans.
"""
from __future__ import annotations

import datetime
import inspect
import queue
import threading
from typing import Any, Callable, List, Optional

import torch
import torch.distributed as dist

from syncline import _group
from syncline._library import FOREVER

NAME = "syncline"

_TYPES = {
    torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: _group.FLOAT64, torch.int64: _group.INT64,
    torch.int32: _group.INT32, torch.int8: _group.INT8, torch.uint8: _group.UINT8, torch.bool: _group.UINT8,
}
_REDUCTIONS = {
    dist.ReduceOp.SUM: _group.SUM, dist.ReduceOp.AVG: _group.AVERAGE, dist.ReduceOp.MIN: _group.MIN,
    dist.ReduceOp.MAX: _group.MAX, dist.ReduceOp.PRODUCT: _group.PRODUCT,
}
# Of values that are 0 or 1.
_BOOLEAN_REDUCTIONS = {
    dist.ReduceOp.SUM: _group.MAX, dist.ReduceOp.MAX: _group.MAX, dist.ReduceOp.BOR: _group.MAX,
    dist.ReduceOp.MIN: _group.MIN, dist.ReduceOp.PRODUCT: _group.MIN, dist.ReduceOp.BAND: _group.MIN,
}


def _reduction(op: Any, tensor: torch.Tensor) -> int:
    table = _BOOLEAN_REDUCTIONS if tensor.dtype == torch.bool else _REDUCTIONS
    for known, reduction in table.items():
        if op == known:
            return reduction
    raise NotImplementedError(f"the syncline backend cannot reduce {tensor.dtype} by {op}")


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise NotImplementedError(
                f"the syncline backend takes dense CPU tensors, got one on {tensor.device} with layout {tensor.layout}")


def _milliseconds(timeout: Optional[datetime.timedelta]) -> int:
    if timeout is None:
        return 0
    return max(0, int(timeout.total_seconds() * 1000))


class _Work(dist._Work if hasattr(dist, "_Work") else dist.Work):  # type: ignore[misc]
    """Done when all its operations are; `finish` then puts the results where they belong, once."""

    def __init__(self, group: "ProcessGroupSyncline", handles: List[_group.Handle], result: List[torch.Tensor],
                 finish: Optional[Callable[[], None]]) -> None:
        super().__init__()
        self._group, self._handles, self._result, self._finish = group, handles, result, finish
        self._lock = threading.Lock()
        self._done: torch.futures.Future = torch.futures.Future()
        self._future: Optional[torch.futures.Future] = None

    def _complete(self, timeout_ms: int) -> None:
        for handle in self._handles:
            handle.wait(timeout_ms)
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                with torch.no_grad():
                    finish()
        self._group._forget(self)

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        # No timeout, which torch says as 0: the group's.
        self._complete(_milliseconds(timeout) or FOREVER)
        return True

    def is_completed(self) -> bool:
        return all(handle.done() for handle in self._handles)

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Exception]:
        try:
            self._complete(0)
        except Exception as error:
            return error
        return None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> List[torch.Tensor]:
        return self._result

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._future is not None:
                return self._future
            # An error that is raised here is one for C++, too; DDP's reducer crashes on one that set_exception leaves.
            self._future = self._done.then(lambda _: self._outcome())
            future = self._future
        self._group._complete_later(self)
        return future

    def _outcome(self) -> List[torch.Tensor]:
        self._complete(FOREVER)
        return self._result

    def _complete_future(self) -> None:
        for handle in self._handles:
            try:
                handle.wait()
            except Exception:
                break  # _outcome raises it
        self._done.set_result(None)


class ProcessGroupSyncline(dist.ProcessGroup):
    """What init_process_group("syncline") and new_group(backend="syncline") make."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta]) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size

        def get(key: str, wait_ms: int) -> bytes:
            store.wait([key], datetime.timedelta(milliseconds=wait_ms))
            return bytes(store.get(key))

        def put(key: str, value: bytes) -> None:
            store.set(key, value.decode("ascii"))

        self._native = _group.Group(
            "syncline", rank, size, put, get, _milliseconds(timeout))
        self._alive: set[_Work] = set()  # what C++ holds only by a pointer, and memory that is still in use
        self._alive_lock = threading.Lock()
        self._futures: "queue.SimpleQueue[Optional[_Work]]" = queue.SimpleQueue()
        self._completer: Optional[threading.Thread] = None

    def getBackendName(self) -> str:
        return NAME

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    def abort(self) -> None:
        self._native.abort()

    def shutdown(self) -> None:
        if self._completer is not None:
            self._futures.put(None)

    # ---- how works are made --------------------------------------------------------------------------------------

    def _forget(self, work: _Work) -> None:
        with self._alive_lock:
            self._alive.discard(work)

    def _complete_later(self, work: _Work) -> None:
        if self._completer is None:
            self._completer = threading.Thread(target=self._complete_futures, name="syncline-futures", daemon=True)
            self._completer.start()
        self._futures.put(work)

    def _complete_futures(self) -> None:
        while True:
            work = self._futures.get()
            if work is None:
                return
            work._complete_future()

    def _work(self, handles: List[_group.Handle], result: List[torch.Tensor],
              finish: Optional[Callable[[], None]] = None) -> _Work:
        work = _Work(self, handles, result, finish)
        with self._alive_lock:
            self._alive = {other for other in self._alive if not other.is_completed() or other._finish is not None}
            self._alive.add(work)
        return work

    def _start(self, op: int, opts: Any = None, *, source: Optional[torch.Tensor] = None,
               target: Optional[torch.Tensor] = None, count: int, like: torch.Tensor, reduction: Optional[int] = None,
               counts: Any = None, root: int = 0, sender: int = 0, tag: int = 0) -> _group.Handle:
        """Reductions count elements; everything else moves bytes, and so takes any type."""
        reduces = reduction is not None
        if reduces and like.dtype not in _TYPES:
            raise NotImplementedError(f"the syncline backend cannot reduce {like.dtype}")
        scale = 1 if reduces else like.element_size()
        if counts is not None:
            counts = tuple([part * scale for part in parts] for parts in counts)
        timeout = getattr(opts, "timeout", None)
        # torch says "the group's" by a negative time.
        timeout_ms = _milliseconds(timeout) if isinstance(timeout, datetime.timedelta) else 0
        return self._native.start(
            op, dtype=_TYPES[like.dtype] if reduces else _group.UINT8, reduction=reduction or 0,
            input=0 if source is None else source.data_ptr(), output=0 if target is None else target.data_ptr(),
            count=count * scale, counts=counts, root=root, source=sender, tag=tag,
            timeout_ms=timeout_ms, keeps=(source, target))

    # ---- operations ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        _check(*tensors)
        dense = [tensor.contiguous() for tensor in tensors]
        handles = [
            self._start(_group.ALL_REDUCE, opts, target=own, count=own.numel(), like=own, reduction=_reduction(op, own))
            for own in dense
        ]
        return self._work(handles, tensors, _put_back(tensors, dense))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        _check(*tensors)
        root = getattr(opts, "rootRank", 0)
        dense = [tensor.contiguous() for tensor in tensors]
        handles = [self._start(_group.BROADCAST, opts, target=own, count=own.numel(), like=own, root=root) for own in dense]
        return self._work(handles, tensors, _put_back(tensors, dense))

    def reduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        _check(*tensors)
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), getattr(opts, "rootRank", 0)
        dense = [tensor.contiguous() for tensor in tensors]
        handles = [
            self._start(_group.REDUCE, opts, source=own, target=own, count=own.numel(), like=own, root=root,
                        reduction=_reduction(op, own)) for own in dense
        ]
        return self._work(handles, tensors, _put_back(tensors, dense))

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        handles, staged = [], []
        for parts, own in zip(outputs, inputs):
            _check(own, *parts)
            own = own.contiguous()
            whole = torch.empty(self._size * own.numel(), dtype=own.dtype)
            handles.append(self._start(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
            staged.append((parts, whole))
        return self._work(handles, [part for parts in outputs for part in parts], _spread(staged))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> _Work:
        _check(*outputs, *inputs)
        dense = [output.contiguous() for output in outputs]
        handles = []
        for whole, own in zip(dense, inputs):
            own = own.contiguous()
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"all_gather of {own.numel()} elements into {whole.numel()}, with {self._size} ranks")
            handles.append(self._start(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
        return self._work(handles, outputs, _put_back(outputs, dense))

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> _Work:
        return self.reduce_scatter_tensor_coalesced(
            outputs, [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> _Work:
        _check(*outputs, *inputs)
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        dense = [output.contiguous() for output in outputs]
        handles = []
        for own, whole in zip(dense, inputs):
            whole = whole.contiguous()
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"reduce_scatter of {whole.numel()} elements into {own.numel()}, with {self._size} ranks")
            handles.append(self._start(_group.REDUCE_SCATTER, opts, source=whole, target=own, count=own.numel(), like=own,
                                       reduction=_reduction(op, own)))
        return self._work(handles, outputs, _put_back(outputs, dense))

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        root = getattr(opts, "rootRank", 0)
        _check(*inputs)
        own = inputs[0].contiguous()
        whole = torch.empty(self._size * own.numel(), dtype=own.dtype) if self._rank == root else None
        handle = self._start(_group.GATHER, opts, source=own, target=whole, count=own.numel(), like=own, root=root)
        parts = outputs[0] if whole is not None else []
        return self._work([handle], list(parts), _spread([(parts, whole)]) if whole is not None else None)

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> _Work:
        root = getattr(opts, "rootRank", 0)
        _check(*outputs)
        own = outputs[0].contiguous()
        whole = torch.cat([part.reshape(-1) for part in inputs[0]]) if self._rank == root else None
        handle = self._start(_group.SCATTER, opts, source=whole, target=own, count=own.numel(), like=own, root=root)
        return self._work([handle], outputs, _put_back(outputs, [own]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> _Work:
        _check(output, input)
        out, own = output.contiguous(), input.contiguous()

        def elements(tensor: torch.Tensor, splits: List[int]) -> List[int]:
            if not splits:
                return [tensor.numel() // self._size] * self._size
            row = tensor.numel() // tensor.shape[0] if tensor.shape[0] else 0
            return [rows * row for rows in splits]

        counts = (elements(own, input_splits), elements(out, output_splits))
        if sum(counts[0]) != own.numel() or sum(counts[1]) != out.numel():
            raise ValueError("the split sizes of all_to_all do not add up to the tensors' sizes")
        handle = self._start(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work([handle], [output], _put_back([output], [out]))

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        _check(*outputs, *inputs)
        own = torch.cat([part.reshape(-1) for part in inputs])
        out = torch.empty(sum(part.numel() for part in outputs), dtype=own.dtype)
        counts = ([part.numel() for part in inputs], [part.numel() for part in outputs])
        handle = self._start(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work([handle], outputs, _spread([(outputs, out)]))

    def barrier(self, opts: Any = None) -> _Work:
        nothing = torch.empty(0)
        return self._work([self._start(_group.BARRIER, opts, count=0, like=nothing)], [nothing])

    def send(self, tensors: List[torch.Tensor], destination: int, tag: int = 0) -> _Work:
        _check(*tensors)
        own = tensors[0].contiguous()
        handle = self._start(_group.SEND_RECEIVE, source=own, count=own.numel(), like=own, root=destination, tag=tag,
                             sender=self._rank)
        return self._work([handle], tensors)

    def recv(self, tensors: List[torch.Tensor], source: int, tag: int = 0) -> _Work:
        _check(*tensors)
        own = tensors[0].contiguous()
        handle = self._start(_group.SEND_RECEIVE, target=own, count=own.numel(), like=own, root=self._rank, tag=tag,
                             sender=source)
        return self._work([handle], tensors, _put_back(tensors, [own]))

    # What torch calls the same since 2026.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def _put_back(tensors: List[torch.Tensor], dense: List[torch.Tensor]) -> Optional[Callable[[], None]]:
    """For those that were copied because their elements do not lie side by side."""
    copied = [(tensor, own) for tensor, own in zip(tensors, dense) if own.data_ptr() != tensor.data_ptr()]
    if not copied:
        return None

    def finish() -> None:
        for tensor, own in copied:
            tensor.copy_(own)

    return finish


def _spread(staged: Any) -> Callable[[], None]:
    def finish() -> None:
        for parts, whole in staged:
            first = 0
            for part in parts:
                part.copy_(whole[first:first + part.numel()].view(part.shape))
                first += part.numel()

    return finish


def _create(store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta] = None) -> ProcessGroupSyncline:
    return ProcessGroupSyncline(store, rank, size, timeout)


def _register() -> None:
    register = dist.Backend.register_backend
    if "devices" in inspect.signature(register).parameters:
        register(NAME, _create, devices=["cpu"])
    else:
        register(NAME, _create)


_register()
