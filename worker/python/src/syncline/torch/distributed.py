"""The torch.distributed backend "syncline": collective operations for CPU tensors, through shared memory on a host and TCP
between hosts.

    import syncline.torch.distributed
    torch.distributed.init_process_group("syncline")    # under torchrun, or any launcher that sets RANK and so on

It needs no servers and no coordinator: members find each other through torch's own store. Connections between hosts are sealed
by a key that travels through that store; SYNCLINE_GROUP_ADDRESS says by which IP address others reach this host (otherwise the
one that leads to MASTER_ADDR), SYNCLINE_GROUP_SECURITY=plain leaves the seal away. SYNCLINE_GROUP_EXACT_ORDER=1, on all ranks,
sums in the order of ranks: the same bits however ranks are spread over hosts. A member that dies, hangs or calls another operation ends every operation under way on all others with an error
that names its rank (`error.rank`); the group is of no use then.

Tensors are on the CPU. Reductions: all of torch's; bitwise ones of integers and booleans, premultiplied sums by one number.
"""
from __future__ import annotations

import datetime
import functools
import inspect
import queue
import sys
import threading
from typing import Any, Callable, List, Optional, Union

import torch
import torch.distributed as dist

from syncline import _exit, _group
from syncline._library import FOREVER
from syncline.torch._meeting import await_key, network, wants_exact_order
from syncline.torch._monitored import await_all, patience_of
from syncline.torch._reconfigure import Meeting, check_size, number_from_zero, reconfigure, reconfigure_handle
from syncline.torch._reductions import TYPES, Reduction, find_reduction
from syncline.torch._tensors import put_back, split, spread

__all__ = ["ProcessGroupSyncline", "monitored_barrier", "reconfigure", "reconfigure_handle"]

NAME = "syncline"

# References to a work that its process group alone keeps, where it looks: the set and the list that have it, the one that
# was made for what is settled, the loop's variable and the argument.
_KEPT_HERE_ONLY = 5


def _check(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise NotImplementedError(
                f"the syncline backend takes dense CPU tensors, got one on {tensor.device} with layout {tensor.layout}")


def _check_types(name: str, *tensors: torch.Tensor) -> None:
    """Of all inputs and outputs of one operation."""
    _check(*tensors)
    types = sorted({str(tensor.dtype) for tensor in tensors})
    if len(types) > 1:
        raise ValueError(f"{name}: the tensors are of types {' and '.join(types)}; all inputs and outputs must be of one")


def _check_parts(name: str, ranks: int, parts: List[torch.Tensor], own: torch.Tensor) -> None:
    """A part for each rank, as large as this rank's own."""
    _check_types(name, own, *parts)
    if len(parts) != ranks:
        raise ValueError(f"{name}: {len(parts)} parts for {ranks} ranks; give one for each rank")
    for rank, part in enumerate(parts):
        if part.numel() != own.numel():
            raise ValueError(f"{name}: the part of rank {rank} has {part.numel()} elements, but all must have {own.numel()}")


def _check_pairs(name: str, outputs: List[Any], inputs: List[Any]) -> None:
    if len(outputs) != len(inputs):
        raise ValueError(f"{name}: {len(outputs)} outputs for {len(inputs)} inputs")


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
        self._is_settled = False
        self._error: Optional[Exception] = None
        self._done: torch.futures.Future = torch.futures.Future()
        self._future: Optional[torch.futures.Future] = None

    def _settle(self) -> bool:
        """Whether the results are where they belong, or will never be; never blocks."""
        with self._lock:
            if self._is_settled:
                return True
            if not all(handle.done() for handle in self._handles):
                return False
            try:
                for handle in self._handles:
                    handle.wait(0)
                if self._finish is not None:
                    with torch.no_grad():
                        self._finish()
            except Exception as error:
                self._error = error
            self._handles, self._finish = [], None
            self._is_settled = True
            return True

    def _forget_result(self) -> None:
        """Nobody can ask for it any more but for a future, which is not there yet."""
        with self._lock:
            if self._future is None:
                self._result = []

    def _complete(self, timeout_ms: int) -> None:
        for handle in tuple(self._handles):
            handle.wait(timeout_ms)
        self._settle()
        self._group._forget(self)
        if self._error is not None:
            raise self._error

    def wait(self, timeout: Optional[datetime.timedelta] = None) -> bool:
        # No timeout, which torch says as 0: the group's.
        self._complete(_milliseconds(timeout) or FOREVER)
        return True

    def is_completed(self) -> bool:
        return self._settle()

    def is_success(self) -> bool:
        return self._settle() and self._error is None

    def exception(self) -> Optional[Exception]:
        """None while it is not completed, too."""
        return self._error if self._settle() else None

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
        for handle in tuple(self._handles):
            try:
                handle.wait()
            except Exception:
                break  # _outcome raises it
        self._done.set_result(None)


class ProcessGroupSyncline(dist.ProcessGroup):
    """What init_process_group("syncline") and new_group(backend="syncline") make."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta]) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, ""
        self._timeout = timeout or datetime.timedelta(minutes=30)
        self._meeting = Meeting()
        _exit.set_up()
        self._native = self._form("syncline", store, rank, size, self._timeout)
        # C++ (DDP, functional collectives) may hold a Work by a pointer alone, which does not keep its Python half: each is kept
        # until it was waited for. Those under way, and those that only wait for that:
        self._alive: set[_Work] = set()
        self._settled: set[_Work] = set()
        self._alive_lock = threading.Lock()
        self._futures: "queue.SimpleQueue[Optional[_Work]]" = queue.SimpleQueue()
        self._completer: Optional[threading.Thread] = None

    def _form(self, name: str, store: dist.Store, rank: int, size: int, patience: datetime.timedelta) -> _group.Group:
        def get(key: str, wait_ms: int) -> bytes:
            return await_key(store, key, wait_ms)

        def put(key: str, value: bytes) -> None:
            store.set(key, value.decode("ascii"))

        return _group.Group(
            name, rank, size, put, get, _milliseconds(self._timeout), network(), wants_exact_order(), _milliseconds(patience))

    def getBackendName(self) -> str:
        return NAME

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    # By which torch's C++ asks.
    getSize, getRank = size, rank

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Of operations from now on."""
        self._timeout = timeout

    # ---- its name, which torch's C++ keeps in what this class is in place of ---------------------------------------

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        return self._name

    # ---- other members -------------------------------------------------------------------------------------------

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        return self._meeting.handle

    def reconfigure(self, opts: Any) -> _Work:
        check_size(self._size, len(opts.handles))
        patience = opts.timeout or self._timeout
        place = self._meeting.meet(opts, patience)
        self._native.abort()
        self._native = self._form(f"syncline-{opts.uuid}", place.store, place.rank, place.ranks, patience)
        self._rank, self._size = place.rank, place.ranks
        number_from_zero(self, place.ranks)
        return _Work(self, [], [], None)

    def abort(self) -> None:
        self._native.abort()

    def shutdown(self) -> None:
        with self._alive_lock:
            completer, self._completer = self._completer, None
        if completer is not None:
            self._futures.put(None)

    # ---- how works are made --------------------------------------------------------------------------------------

    def _forget(self, work: _Work) -> None:
        with self._alive_lock:
            self._alive.discard(work)
            self._settled.discard(work)

    def _complete_later(self, work: _Work) -> None:
        with self._alive_lock:
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

    def _work(self, calls: List[Callable[[], _group.Handle]], result: List[torch.Tensor],
              finish: Optional[Callable[[], None]] = None) -> _Work:
        """Starts the calls, all of which were checked."""
        work = _Work(self, [call() for call in calls], result, finish)
        with self._alive_lock:
            others = list(self._alive)
            self._alive.add(work)
        settled = set()
        for other in others:
            if not other._settle():
                continue
            settled.add(other)
            if sys.getrefcount(other) <= _KEPT_HERE_ONLY:
                other._forget_result()
        with self._alive_lock:
            self._settled |= settled & self._alive
            self._alive -= settled
        return work

    def _call(self, op: int, opts: Any = None, *, source: Optional[torch.Tensor] = None,
              target: Optional[torch.Tensor] = None, count: int, like: torch.Tensor, reduction: Optional[Reduction] = None,
              counts: Any = None, root: int = 0, sender: int = 0, tag: int = 0,
              algorithm: Optional[str] = None) -> Callable[[], _group.Handle]:
        """Reductions count elements; everything else moves bytes, and so takes any type."""
        if reduction is not None and like.dtype not in TYPES:
            raise NotImplementedError(f"the syncline backend cannot reduce {like.dtype}")
        scale = 1 if reduction is not None else like.element_size()
        if counts is not None:
            counts = tuple([part * scale for part in parts] for parts in counts)
        timeout = getattr(opts, "timeout", None)
        # torch says "the group's" by a negative time.
        timeout_ms = _milliseconds(timeout if isinstance(timeout, datetime.timedelta) else None) or _milliseconds(self._timeout)
        return functools.partial(
            self._native.start, op, dtype=_group.UINT8 if reduction is None else TYPES[like.dtype],
            reduction=0 if reduction is None else reduction.code, factor=1.0 if reduction is None else reduction.factor,
            algorithm=algorithm,
            input=0 if source is None else source.data_ptr(), output=0 if target is None else target.data_ptr(),
            count=count * scale, counts=counts, root=root, source=sender, tag=tag,
            timeout_ms=timeout_ms, keeps=(source, target))

    # ---- operations ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        _check(*tensors)
        dense = [tensor.contiguous() for tensor in tensors]
        calls = [
            self._call(_group.ALL_REDUCE, opts, target=own, count=own.numel(), like=own, reduction=find_reduction(op, own))
            for own in dense
        ]
        return self._work(calls, tensors, put_back(tensors, dense))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        _check(*tensors)
        root = getattr(opts, "rootRank", 0)
        dense = [tensor.contiguous() for tensor in tensors]
        calls = [self._call(_group.BROADCAST, opts, target=own, count=own.numel(), like=own, root=root) for own in dense]
        return self._work(calls, tensors, put_back(tensors, dense))

    def reduce(self, tensors: List[torch.Tensor], opts: Any = None) -> _Work:
        _check(*tensors)
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), getattr(opts, "rootRank", 0)
        dense = [tensor.contiguous() for tensor in tensors]
        calls = [
            self._call(_group.REDUCE, opts, source=own, target=own, count=own.numel(), like=own, root=root,
                       reduction=find_reduction(op, own)) for own in dense
        ]
        return self._work(calls, tensors, put_back(tensors, dense))

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        _check_pairs("all_gather", outputs, inputs)
        calls, staged = [], []
        for parts, own in zip(outputs, inputs):
            _check_parts("all_gather", self._size, parts, own)
            own = own.contiguous()
            whole = torch.empty(self._size * own.numel(), dtype=own.dtype)
            calls.append(self._call(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
            staged.append((parts, whole))
        return self._work(calls, [part for parts in outputs for part in parts], spread(staged))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> _Work:
        _check_pairs("all_gather", outputs, inputs)
        dense = [output.contiguous() for output in outputs]
        calls = []
        for whole, own in zip(dense, inputs):
            _check_types("all_gather", whole, own)
            own = own.contiguous()
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"all_gather of {own.numel()} elements into {whole.numel()}, with {self._size} ranks")
            calls.append(self._call(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
        return self._work(calls, outputs, put_back(outputs, dense))

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> _Work:
        _check_pairs("reduce_scatter", outputs, inputs)
        for own, parts in zip(outputs, inputs):
            _check_parts("reduce_scatter", self._size, parts, own)
        return self.reduce_scatter_tensor_coalesced(
            outputs, [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> _Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> _Work:
        _check_pairs("reduce_scatter", outputs, inputs)
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        dense = [output.contiguous() for output in outputs]
        calls = []
        for own, whole in zip(dense, inputs):
            _check_types("reduce_scatter", own, whole)
            whole = whole.contiguous()
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"reduce_scatter of {whole.numel()} elements into {own.numel()}, with {self._size} ranks")
            calls.append(self._call(_group.REDUCE_SCATTER, opts, source=whole, target=own, count=own.numel(), like=own,
                                    reduction=find_reduction(op, own)))
        return self._work(calls, outputs, put_back(outputs, dense))

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        root = getattr(opts, "rootRank", 0)
        _check(*inputs)
        if len(inputs) != 1 or len(outputs) != (1 if self._rank == root else 0):
            raise ValueError(f"gather: {len(outputs)} lists of outputs for {len(inputs)} inputs; the root gives one, others none")
        own = inputs[0].contiguous()
        if self._rank != root:
            call = self._call(_group.GATHER, opts, source=own, count=own.numel(), like=own, root=root)
            return self._work([call], [])
        parts = outputs[0]
        _check_parts("gather", self._size, parts, own)
        whole = torch.empty(self._size * own.numel(), dtype=own.dtype)
        call = self._call(_group.GATHER, opts, source=own, target=whole, count=own.numel(), like=own, root=root)
        return self._work([call], list(parts), spread([(parts, whole)]))

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> _Work:
        root = getattr(opts, "rootRank", 0)
        _check(*outputs)
        if len(outputs) != 1 or len(inputs) != (1 if self._rank == root else 0):
            raise ValueError(f"scatter: {len(inputs)} lists of inputs for {len(outputs)} outputs; the root gives one, others none")
        own, whole = outputs[0].contiguous(), None
        if self._rank == root:
            _check_parts("scatter", self._size, inputs[0], own)
            whole = torch.cat([part.reshape(-1) for part in inputs[0]])
        call = self._call(_group.SCATTER, opts, source=whole, target=own, count=own.numel(), like=own, root=root)
        return self._work([call], outputs, put_back(outputs, [own]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> _Work:
        _check_types("all_to_all", output, input)
        out, own = output.contiguous(), input.contiguous()
        counts = (split(own, input_splits, self._size), split(out, output_splits, self._size))
        call = self._call(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work([call], [output], put_back([output], [out]))

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> _Work:
        _check_types("all_to_all", *outputs, *inputs)
        if not len(outputs) == len(inputs) == self._size:
            raise ValueError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self._size} ranks; give one for each rank")
        own = torch.cat([part.reshape(-1) for part in inputs])
        out = torch.empty(sum(part.numel() for part in outputs), dtype=own.dtype)
        counts = ([part.numel() for part in inputs], [part.numel() for part in outputs])
        call = self._call(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work([call], outputs, spread([(outputs, out)]))

    def barrier(self, opts: Any = None) -> _Work:
        nothing = torch.empty(0)
        return self._work([self._call(_group.BARRIER, opts, count=0, like=nothing)], [nothing])

    def monitored_barrier(self, timeout: Union[None, float, datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
        """See the function of that name."""
        await_all(self, patience_of(timeout, self._timeout))

    def send(self, tensors: List[torch.Tensor], destination: int, tag: int = 0) -> _Work:
        _check(*tensors)
        own = tensors[0].contiguous()
        call = self._call(_group.SEND_RECEIVE, source=own, count=own.numel(), like=own, root=destination, tag=tag,
                          sender=self._rank)
        return self._work([call], tensors)

    def recv(self, tensors: List[torch.Tensor], source: int, tag: int = 0) -> _Work:
        _check(*tensors)
        own = tensors[0].contiguous()
        call = self._call(_group.SEND_RECEIVE, target=own, count=own.numel(), like=own, root=self._rank, tag=tag,
                          sender=source)
        return self._work([call], tensors, put_back(tensors, [own]))

    # What torch calls the same since 2026.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def monitored_barrier(group: Optional[dist.ProcessGroup] = None, timeout: Union[None, float, datetime.timedelta] = None,
                      wait_all_ranks: bool = False) -> None:
    """torch.distributed.monitored_barrier, which takes no other backend than gloo: ends on all ranks when all have come, and
    otherwise with an error that names those that have not, on rank 0 `timeout` after it came (a number is in seconds; None is
    the group's). The error is always about all
    that are missing, as with `wait_all_ranks`, and the group is of no use then."""
    group = group or dist.distributed_c10d._get_default_group()
    if not isinstance(group, ProcessGroupSyncline):
        raise ValueError(f"monitored_barrier: the group is of {type(group).__name__}, expected one of backend 'syncline'")
    group.monitored_barrier(timeout, wait_all_ranks)


def _create(store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta] = None) -> ProcessGroupSyncline:
    return ProcessGroupSyncline(store, rank, size, timeout)


def _register() -> None:
    register = dist.Backend.register_backend
    if "devices" in inspect.signature(register).parameters:
        register(NAME, _create, devices=["cpu"])
    else:
        register(NAME, _create)


_register()
