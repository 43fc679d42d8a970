"""The torch.distributed backend "syncline": collective operations, through shared memory on a host and TCP between hosts.

    import syncline.torch
    torch.distributed.init_process_group("syncline")    # under torchrun, or any launcher that sets RANK and so on

It needs no servers and no coordinator: members find each other through torch's own store. These variables have an effect:

- SYNCLINE_GROUP_ADDRESS: the IP address by which others reach this host; by default the one that leads to MASTER_ADDR.
- SYNCLINE_GROUP_SECURITY=plain: connections between hosts are not sealed. By default a key that travels through the store seals them.
- SYNCLINE_GROUP_EXACT_ORDER=1, on all ranks: sums are made in the order of ranks, so they have the same bits however ranks are spread
  over hosts.
- SYNCLINE_GROUP_COSTS=probe, or a file: the group measures the network, and chooses its algorithms by that. Rank 0's counts. The logger
  "syncline" says what it chooses.

If a member dies, hangs or calls another operation, every operation under way on the other members ends with an error that names its
rank (`error.rank`). The group cannot be used after that.

Tensors are on the CPU or on GPUs. Those on GPUs go over NCCL (_backend/over_nccl.py), or are copied to the host and back
(_backend/host_copies.py). All of torch's reductions work: bitwise ones for integers and booleans, premultiplied sums by one number.
"""
from __future__ import annotations

import datetime
import functools
import inspect
import logging
import os
import sys
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist

from syncline import _exit, _group, _log
from syncline.torch._backend.completer import Completer
from syncline.torch._backend.fits import check_dense, check_pairs, check_parts, check_types
from syncline.torch._backend.host_copies import HostCopies, Landing
from syncline.torch._backend.meeting import await_key, network, wants_exact_order
from syncline.torch._backend.monitored import await_all, patience_of
from syncline.torch._backend.over_nccl import OverNccl
from syncline.torch._backend.reconfigure import Meeting, check_size, number_from_zero, reconfigure, reconfigure_handle
from syncline.torch._backend.reductions import TYPES, Reduction, find_reduction
from syncline.torch._backend.starts import Starts
from syncline.torch._backend.tensors import split
from syncline.torch._backend.work import Work, Works, milliseconds

__all__ = ["ProcessGroupSyncline", "monitored_barrier", "reconfigure", "reconfigure_handle"]

NAME = "syncline"

# sys.getrefcount() of a work in `_work` if only the process group refers to it: the set and the list that have it, the set of settled
# works, the loop's variable and the argument of getrefcount.
_KEPT_HERE_ONLY = 5


class ProcessGroupSyncline(dist.ProcessGroup):
    """The process group that init_process_group("syncline") and new_group(backend="syncline") make."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta]) -> None:
        super().__init__(rank, size)
        self._rank, self._size, self._name = rank, size, ""
        self._timeout = timeout or datetime.timedelta(minutes=30)
        self._meeting = Meeting()
        _exit.set_up()
        self._starts, self._completer = Starts(), Completer()
        self._process = os.getpid()
        self._native, self._nccl = self._form("syncline", store, rank, size, self._timeout)
        # C++ (DDP, functional collectives) may hold a Work by a pointer that does not keep its Python half alive. So the group keeps
        # each work until it was waited for.
        self._alive: set[Work] = set()  # works under way
        self._unread: set[Work] = set()  # settled works whose results a caller may ask for
        self._settled: set[Work] = set()  # settled works that only C++ may still refer to, and whose results were released
        self._alive_lock = threading.Lock()
        # Works of the present coalescing block that were not waited for, in order; None outside a block. A work that was waited for
        # is removed, because a block that an exception leaves never ends.
        self._block: Optional[Dict[Work, None]] = None

    def _form(self, name: str, store: dist.Store, rank: int, size: int, patience: datetime.timedelta) -> Tuple[_group.Group, OverNccl]:
        def get(key: str, wait_ms: int) -> bytes:
            return await_key(store, key, wait_ms)

        def put(key: str, value: bytes) -> None:
            store.set(key, value.decode("ascii"))

        place = (rank, size, put, get, milliseconds(self._timeout), network(), wants_exact_order(), milliseconds(patience))
        group = _group.Group(name, *place)
        if rank == 0:
            is_asked = bool(os.environ.get("SYNCLINE_GROUP_COSTS"))
            if is_asked:
                _log.set_up()
            _log.logger.log(logging.INFO if is_asked else logging.DEBUG, "group %r of %d ranks: %s", name, size, group.describe_costs())
        return group, OverNccl(group, self._starts, lambda own: _group.Membership(f"{name}/{own}", *place))

    def getBackendName(self) -> str:
        return NAME

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank

    # The names that torch's C++ uses.
    getSize, getRank = size, rank

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        """Sets the timeout of operations that begin from now on."""
        self._timeout = timeout

    # ---- its name, which torch's C++ class would keep otherwise ----------------------------------------------------

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupName(self) -> str:
        return self._name

    _set_group_name = setGroupName

    @property
    def group_name(self) -> str:
        return self._name

    # ---- what torch asks the backend of a device, which this class is itself ---------------------------------------

    supports_splitting = supports_coalescing = supports_time_estimate = supports_tensor_alloc = False

    def _get_backend(self, device: Any) -> "ProcessGroupSyncline":
        return self

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    def _start_coalescing(self, device: Any = None) -> None:
        self._block = {}

    def _end_coalescing(self, device_or_works: Any = None) -> Works:
        """Returns a work that is done when all operations of the block are. They have begun already, each when it was called."""
        works, self._block = self._block or {}, None
        return Works(list(works))

    # ---- other members -------------------------------------------------------------------------------------------

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        return self._meeting.handle

    def reconfigure(self, opts: Any) -> Work:
        check_size(self._size, len(opts.handles))
        patience = opts.timeout or self._timeout
        place = self._meeting.meet(opts, patience)
        self.abort()
        self._native, self._nccl = self._form(f"syncline-{opts.uuid}", place.store, place.rank, place.ranks, patience)
        self._rank, self._size = place.rank, place.ranks
        number_from_zero(self, place.ranks)
        return Work(self, [])

    def abort(self) -> None:
        self._nccl.abort()
        self._native.abort()

    def shutdown(self) -> None:
        self._completer.end()
        self._starts.end()

    _process = 0  # of a group whose constructor has raised

    def __del__(self) -> None:
        # Older versions of torch (1.13) drop a group in destroy_process_group, and do not call shutdown. A forked child has no threads
        # of the group.
        if self._process == os.getpid():
            self.shutdown()

    # ---- how works are made --------------------------------------------------------------------------------------

    def _forget(self, work: Work) -> None:
        with self._alive_lock:
            for works in (self._alive, self._unread, self._settled):
                works.discard(work)
            if self._block is not None:
                self._block.pop(work, None)

    def _complete_later(self, work: Work) -> None:
        self._completer.put(work)

    def _work(self, copies: HostCopies, calls: List[Callable[[], _group.Handle]], result: List[torch.Tensor],
              finish: Optional[Callable[[], Sequence[Landing]]] = None) -> Work:
        """Starts the calls, which were checked before, once the copies that they read are there."""
        gpus = [device for device in copies.devices if device.type == "cuda"]
        if gpus:
            self._check_gpus_are_ours()
        work = Work(self, result, finish, gpus)
        if copies.over is not None:  # NCCL keeps an order of its own
            work.begin([call() for call in calls])
        else:
            self._starts.put(work, copies.marks, calls)
        with self._alive_lock:
            others = [*self._alive, *self._unread]
            self._alive.add(work)
        if copies.devices:
            self._complete_later(work)
        if self._block is not None:
            self._block[work] = None
        settled, forgotten = set(), []
        for other in others:
            if not other.settle():
                continue
            settled.add(other)
            if sys.getrefcount(other) <= _KEPT_HERE_ONLY:
                other.forget_result()
                forgotten.append(other)
        with self._alive_lock:
            settled &= self._alive | self._unread  # other threads may have waited for some meanwhile
            self._alive -= settled
            self._unread |= settled
            for other in forgotten:
                if other in self._unread:
                    self._unread.discard(other)
                    self._settled.add(other)
        return work

    def _check_gpus_are_ours(self) -> None:
        """Raises if the program asked for another backend for GPUs: beside a backend that is a Python class torch makes no other."""
        configs = getattr(getattr(dist.distributed_c10d, "_world", None), "pg_backend_config", {})
        config = str(configs.get(self, ""))
        for part in config.split(","):
            device, _, backend = part.partition(":")
            if device == "cuda" and backend != NAME:
                raise NotImplementedError(
                    f"the group is of {config!r}, but torch makes no {backend} beside the syncline backend: give "
                    "it CPU tensors, and make a separate group for GPU tensors, "
                    f"dist.new_group(backend={backend!r})")

    def _call(self, copies: HostCopies, op: int, opts: Any = None, *, source: Optional[torch.Tensor] = None,
              target: Optional[torch.Tensor] = None, count: int, like: torch.Tensor, reduction: Optional[Reduction] = None,
              counts: Any = None, root: int = 0, sender: int = 0, tag: int = 0,
              algorithm: Optional[str] = None) -> Callable[[], _group.Handle]:
        """Returns a function that starts one operation. Reductions count elements; all others move bytes, so they take any type."""
        scale = 1 if reduction is not None else like.element_size()
        if counts is not None:
            counts = tuple([part * scale for part in parts] for parts in counts)
        timeout = getattr(opts, "timeout", None)
        # A negative time is torch's way to ask for the group's timeout.
        timeout_ms = milliseconds(timeout if isinstance(timeout, datetime.timedelta) else None) or milliseconds(self._timeout)
        return functools.partial(
            (copies.over or self._native).start, op, stream=copies.stream, dtype=_group.UINT8 if reduction is None else TYPES[like.dtype],
            reduction=0 if reduction is None else reduction.code, factor=1.0 if reduction is None else reduction.factor,
            algorithm=algorithm, label=str(like.dtype).rpartition(".")[2],
            input=0 if source is None else source.data_ptr(), output=0 if target is None else target.data_ptr(),
            count=count * scale, counts=counts, root=root, source=sender, tag=tag,
            timeout_ms=timeout_ms, keeps=(source, target))

    # ---- operations ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        check_dense(*tensors)
        reductions = [find_reduction(op, tensor) for tensor in tensors]
        copies = self._nccl.copies(tensors, *reductions)
        dense = [copies.given(tensor) for tensor in tensors]
        calls = [
            self._call(copies, _group.ALL_REDUCE, opts, target=own, count=own.numel(), like=own, reduction=reduction)
            for own, reduction in zip(dense, reductions)
        ]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        check_dense(*tensors)
        root = getattr(opts, "rootRank", 0)
        copies = self._nccl.copies(tensors)
        dense = [copies.given(tensor) if self._rank == root else copies.room(tensor) for tensor in tensors]
        calls = [self._call(copies, _group.BROADCAST, opts, target=own, count=own.numel(), like=own, root=root) for own in dense]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense) if self._rank != root else None)

    def reduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        check_dense(*tensors)
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), getattr(opts, "rootRank", 0)
        reductions = [find_reduction(op, tensor) for tensor in tensors]
        copies = self._nccl.copies(tensors, *reductions)
        dense = [copies.given(tensor) for tensor in tensors]
        calls = [
            self._call(copies, _group.REDUCE, opts, source=own, target=own, count=own.numel(), like=own, root=root,
                       reduction=reduction) for own, reduction in zip(dense, reductions)
        ]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense) if self._rank == root else None)

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        check_pairs("all_gather", outputs, inputs)
        copies, calls, staged = self._nccl.copies(inputs), [], []
        for parts, own in zip(outputs, inputs):
            check_parts("all_gather", self._size, parts, own)
            whole = copies.empty(self._size * own.numel(), like=own)
            own = copies.given(own)
            calls.append(self._call(copies, _group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
            staged.append((parts, whole))
        return self._work(copies, calls, [part for parts in outputs for part in parts], copies.spread(staged))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> Work:
        check_pairs("all_gather", outputs, inputs)
        copies = self._nccl.copies(inputs)
        dense = [copies.room(output) for output in outputs]
        calls = []
        for whole, own in zip(dense, inputs):
            check_types("all_gather", whole, own)
            own = copies.given(own)
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"all_gather of {own.numel()} elements into {whole.numel()}, with {self._size} ranks")
            calls.append(self._call(copies, _group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
        return self._work(copies, calls, outputs, copies.put_back(outputs, dense))

    def reduce_scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> Work:
        check_pairs("reduce_scatter", outputs, inputs)
        for own, parts in zip(outputs, inputs):
            check_parts("reduce_scatter", self._size, parts, own)
        return self.reduce_scatter_tensor_coalesced(
            outputs, [torch.cat([part.reshape(-1) for part in parts]) for parts in inputs], opts)

    def _reduce_scatter_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_tensor_coalesced([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> Work:
        check_pairs("reduce_scatter", outputs, inputs)
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        reductions = [find_reduction(op, output) for output in outputs]
        copies = self._nccl.copies(inputs, *reductions)
        dense = [copies.room(output) for output in outputs]
        calls = []
        for own, whole, reduction in zip(dense, inputs, reductions):
            check_types("reduce_scatter", own, whole)
            whole = copies.given(whole)
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"reduce_scatter of {whole.numel()} elements into {own.numel()}, with {self._size} ranks")
            calls.append(self._call(copies, _group.REDUCE_SCATTER, opts, source=whole, target=own, count=own.numel(), like=own,
                                    reduction=reduction))
        return self._work(copies, calls, outputs, copies.put_back(outputs, dense))

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)
        check_dense(*inputs)
        if len(inputs) != 1 or len(outputs) != (1 if self._rank == root else 0):
            raise ValueError(f"gather: {len(outputs)} lists of outputs for {len(inputs)} inputs; the root gives one, others none")
        copies = self._nccl.copies(inputs)
        own = copies.given(inputs[0])
        if self._rank != root:
            call = self._call(copies, _group.GATHER, opts, source=own, count=own.numel(), like=own, root=root)
            return self._work(copies, [call], [])
        parts = outputs[0]
        check_parts("gather", self._size, parts, own)
        whole = copies.empty(self._size * own.numel(), like=parts[0])
        call = self._call(copies, _group.GATHER, opts, source=own, target=whole, count=own.numel(), like=own, root=root)
        return self._work(copies, [call], list(parts), copies.spread([(parts, whole)]))

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)
        check_dense(*outputs)
        if len(outputs) != 1 or len(inputs) != (1 if self._rank == root else 0):
            raise ValueError(f"scatter: {len(inputs)} lists of inputs for {len(outputs)} outputs; the root gives one, others none")
        copies = self._nccl.copies(outputs)
        own, whole = copies.room(outputs[0]), None
        if self._rank == root:
            check_parts("scatter", self._size, inputs[0], own)
            whole = copies.given(torch.cat([part.reshape(-1) for part in inputs[0]]))
        call = self._call(copies, _group.SCATTER, opts, source=whole, target=own, count=own.numel(), like=own, root=root)
        return self._work(copies, [call], outputs, copies.put_back(outputs, [own]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> Work:
        check_types("all_to_all", output, input)
        copies = self._nccl.copies([input])
        out, own = copies.room(output), copies.given(input)
        counts = (split(own, input_splits, self._size), split(out, output_splits, self._size))
        call = self._call(copies, _group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work(copies, [call], [output], copies.put_back([output], [out]))

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        check_types("all_to_all", *outputs, *inputs)
        if not len(outputs) == len(inputs) == self._size:
            raise ValueError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self._size} ranks; give one for each rank")
        copies = self._nccl.copies(inputs)
        own = copies.given(torch.cat([part.reshape(-1) for part in inputs]))
        out = copies.empty(sum(part.numel() for part in outputs), like=outputs[0])
        counts = ([part.numel() for part in inputs], [part.numel() for part in outputs])
        call = self._call(copies, _group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work(copies, [call], outputs, copies.spread([(outputs, out)]))

    def barrier(self, opts: Any = None) -> Work:
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")  # not the program's default device and type
        copies = HostCopies()
        return self._work(copies, [self._call(copies, _group.BARRIER, opts, count=0, like=nothing)], [nothing])

    def monitored_barrier(self, timeout: Union[None, float, datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
        """See the module's function monitored_barrier."""
        await_all(self, patience_of(timeout, self._timeout))

    def send(self, tensors: List[torch.Tensor], destination: int, tag: int = 0) -> Work:
        check_dense(*tensors)
        copies = HostCopies()
        own = copies.given(tensors[0])
        call = self._call(copies, _group.SEND_RECEIVE, source=own, count=own.numel(), like=own, root=destination, tag=tag,
                          sender=self._rank)
        return self._work(copies, [call], tensors)

    def recv(self, tensors: List[torch.Tensor], source: int, tag: int = 0) -> Work:
        check_dense(*tensors)
        copies = HostCopies()
        own = copies.room(tensors[0])
        call = self._call(copies, _group.SEND_RECEIVE, target=own, count=own.numel(), like=own, root=self._rank, tag=tag,
                          sender=source)
        return self._work(copies, [call], tensors, copies.put_back(tensors, [own]))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0) -> Work:
        raise NotImplementedError("the syncline backend receives from one named rank only: recv(tensor, src=RANK)")

    # The names that torch has for them since 2026.
    all_gather_single = _allgather_base
    reduce_scatter_single = _reduce_scatter_base
    all_to_all_single = alltoall_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced


def monitored_barrier(group: Optional[dist.ProcessGroup] = None, timeout: Union[None, float, datetime.timedelta] = None,
                      wait_all_ranks: bool = False) -> None:
    """Blocks until all ranks have come, or raises an error that names all ranks that have not.

    It stands in for torch.distributed.monitored_barrier, which takes only the gloo backend. Rank 0 raises `timeout` after it came (a
    number is in seconds; None: the group's timeout). The error always names all missing ranks, as with `wait_all_ranks`. The group
    cannot be used after an error.
    """
    group = group or dist.distributed_c10d._get_default_group()
    if not isinstance(group, ProcessGroupSyncline):
        raise ValueError(f"monitored_barrier: the group is of {type(group).__name__}, expected one of backend 'syncline'")
    group.monitored_barrier(timeout, wait_all_ranks)


def _create(store: dist.Store, rank: int, size: int, timeout: Optional[datetime.timedelta] = None) -> ProcessGroupSyncline:
    return ProcessGroupSyncline(store, rank, size, timeout)


def _register() -> None:
    register = dist.Backend.register_backend
    if "devices" in inspect.signature(register).parameters:
        register(NAME, _create, devices=["cpu", "cuda"])
    else:
        register(NAME, _create)


_register()
