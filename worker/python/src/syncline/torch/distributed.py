"""The torch.distributed backend "syncline": collective operations, through shared memory on a host and TCP between hosts.

    import syncline.torch
    torch.distributed.init_process_group("syncline")    # under torchrun, or any launcher that sets RANK and so on

It needs no servers and no coordinator: members find each other through torch's own store. Connections between hosts are sealed
by a key that travels through that store; SYNCLINE_GROUP_ADDRESS says by which IP address others reach this host (otherwise the
one that leads to MASTER_ADDR), SYNCLINE_GROUP_SECURITY=plain leaves the seal away. SYNCLINE_GROUP_EXACT_ORDER=1, on all ranks,
sums in the order of ranks: the same bits however ranks are spread over hosts. A member that dies, hangs or calls another operation ends every operation under way on all others with an error
that names its rank (`error.rank`); the group is of no use then.

Tensors are on the CPU, or on GPUs and copied to the host and back (_host_copies.py). Reductions: all of torch's; bitwise ones of integers and booleans, premultiplied sums by one number.
"""
from __future__ import annotations

import datetime
import functools
import inspect
import sys
import threading
from typing import Any, Callable, List, Optional, Sequence, Union

import torch
import torch.distributed as dist

from syncline import _exit, _group
from syncline.torch._completer import Completer
from syncline.torch._fits import check_dense, check_pairs, check_parts, check_types
from syncline.torch._host_copies import HostCopies, Landing
from syncline.torch._meeting import await_key, network, wants_exact_order
from syncline.torch._monitored import await_all, patience_of
from syncline.torch._reconfigure import Meeting, check_size, number_from_zero, reconfigure, reconfigure_handle
from syncline.torch._reductions import TYPES, Reduction, find_reduction
from syncline.torch._starts import Starts
from syncline.torch._tensors import split
from syncline.torch._work import Work, Works, milliseconds

__all__ = ["ProcessGroupSyncline", "monitored_barrier", "reconfigure", "reconfigure_handle"]

NAME = "syncline"

# References to a work that its process group alone keeps, where it looks: the set and the list that have it, the one that
# was made for what is settled, the loop's variable and the argument.
_KEPT_HERE_ONLY = 5


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
        # until it was waited for. Those under way, those whose results somebody may ask for, and the others that only wait for that:
        self._alive: set[Work] = set()
        self._unread: set[Work] = set()
        self._settled: set[Work] = set()
        self._alive_lock = threading.Lock()
        self._starts = Starts()
        self._block: Optional[List[Work]] = None  # what began in a coalescing block
        self._completer = Completer()

    def _form(self, name: str, store: dist.Store, rank: int, size: int, patience: datetime.timedelta) -> _group.Group:
        def get(key: str, wait_ms: int) -> bytes:
            return await_key(store, key, wait_ms)

        def put(key: str, value: bytes) -> None:
            store.set(key, value.decode("ascii"))

        return _group.Group(
            name, rank, size, put, get, milliseconds(self._timeout), network(), wants_exact_order(), milliseconds(patience))

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

    # ---- what torch asks the backend of a device, which this class is itself ---------------------------------------

    supports_splitting = supports_coalescing = supports_time_estimate = supports_tensor_alloc = False

    def _get_backend(self, device: Any) -> "ProcessGroupSyncline":
        return self

    @property
    def _device_types(self) -> List[torch.device]:
        return [torch.device("cpu"), torch.device("cuda")] if torch.cuda.is_available() else [torch.device("cpu")]

    def _start_coalescing(self, device: Any = None) -> None:
        self._block = []

    def _end_coalescing(self, device_or_works: Any = None) -> Works:
        """Operations begin as they are called, in a block, too; this is done when all are."""
        works, self._block = self._block or [], None
        return Works(works)

    # ---- other members -------------------------------------------------------------------------------------------

    supports_reconfigure = True

    def get_reconfigure_handle(self) -> str:
        return self._meeting.handle

    def reconfigure(self, opts: Any) -> Work:
        check_size(self._size, len(opts.handles))
        patience = opts.timeout or self._timeout
        place = self._meeting.meet(opts, patience)
        self._native.abort()
        self._native = self._form(f"syncline-{opts.uuid}", place.store, place.rank, place.ranks, patience)
        self._rank, self._size = place.rank, place.ranks
        number_from_zero(self, place.ranks)
        return Work(self, [])

    def abort(self) -> None:
        self._native.abort()

    def shutdown(self) -> None:
        self._completer.end()
        self._starts.end()

    # ---- how works are made --------------------------------------------------------------------------------------

    def _forget(self, work: Work) -> None:
        with self._alive_lock:
            for works in (self._alive, self._unread, self._settled):
                works.discard(work)

    def _complete_later(self, work: Work) -> None:
        self._completer.put(work)

    def _work(self, copies: HostCopies, calls: List[Callable[[], _group.Handle]], result: List[torch.Tensor],
              finish: Optional[Callable[[], Sequence[Landing]]] = None) -> Work:
        """Starts the calls, all of which were checked, when the copies are there that they read."""
        gpus = [device for device in copies.devices if device.type == "cuda"]
        if gpus:
            self._check_gpus_are_ours()
        work = Work(self, result, finish, gpus)
        self._starts.put(work, copies.marks, calls)
        with self._alive_lock:
            others = [*self._alive, *self._unread]
            self._alive.add(work)
        if copies.devices:
            self._complete_later(work)
        if self._block is not None:
            self._block.append(work)
        settled, forgotten = set(), []
        for other in others:
            if not other.settle():
                continue
            settled.add(other)
            if sys.getrefcount(other) <= _KEPT_HERE_ONLY:
                other.forget_result()
                forgotten.append(other)
        with self._alive_lock:
            settled &= self._alive | self._unread  # somebody may have waited meanwhile
            self._alive -= settled
            self._unread |= settled
            for other in forgotten:
                if other in self._unread:
                    self._unread.discard(other)
                    self._settled.add(other)
        return work

    def _check_gpus_are_ours(self) -> None:
        """Torch makes a group of one backend alone where that is a Python class, whatever was asked for beside it."""
        configs = getattr(getattr(dist.distributed_c10d, "_world", None), "pg_backend_config", {})
        config = str(configs.get(self, ""))
        for part in config.split(","):
            device, _, backend = part.partition(":")
            if device == "cuda" and backend != NAME:
                raise NotImplementedError(
                    f"the group is of {config!r}, but torch makes no {backend} beside the syncline backend: give it CPU tensors, and "
                    f"make a group of its own for those of GPUs, dist.new_group(backend={backend!r})")

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
        timeout_ms = milliseconds(timeout if isinstance(timeout, datetime.timedelta) else None) or milliseconds(self._timeout)
        return functools.partial(
            self._native.start, op, dtype=_group.UINT8 if reduction is None else TYPES[like.dtype],
            reduction=0 if reduction is None else reduction.code, factor=1.0 if reduction is None else reduction.factor,
            algorithm=algorithm, label=str(like.dtype).rpartition(".")[2],
            input=0 if source is None else source.data_ptr(), output=0 if target is None else target.data_ptr(),
            count=count * scale, counts=counts, root=root, source=sender, tag=tag,
            timeout_ms=timeout_ms, keeps=(source, target))

    # ---- operations ----------------------------------------------------------------------------------------------

    def allreduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        op = getattr(opts, "reduceOp", dist.ReduceOp.SUM)
        check_dense(*tensors)
        copies = HostCopies()
        dense = [copies.given(tensor) for tensor in tensors]
        calls = [
            self._call(_group.ALL_REDUCE, opts, target=own, count=own.numel(), like=own, reduction=find_reduction(op, own))
            for own in dense
        ]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense))

    def allreduce_coalesced(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        check_dense(*tensors)
        root = getattr(opts, "rootRank", 0)
        copies = HostCopies()
        dense = [copies.given(tensor) if self._rank == root else copies.room(tensor) for tensor in tensors]
        calls = [self._call(_group.BROADCAST, opts, target=own, count=own.numel(), like=own, root=root) for own in dense]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense) if self._rank != root else None)

    def reduce(self, tensors: List[torch.Tensor], opts: Any = None) -> Work:
        check_dense(*tensors)
        op, root = getattr(opts, "reduceOp", dist.ReduceOp.SUM), getattr(opts, "rootRank", 0)
        copies = HostCopies()
        dense = [copies.given(tensor) for tensor in tensors]
        calls = [
            self._call(_group.REDUCE, opts, source=own, target=own, count=own.numel(), like=own, root=root,
                       reduction=find_reduction(op, own)) for own in dense
        ]
        return self._work(copies, calls, tensors, copies.put_back(tensors, dense) if self._rank == root else None)

    def allgather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        check_pairs("all_gather", outputs, inputs)
        copies, calls, staged = HostCopies(), [], []
        for parts, own in zip(outputs, inputs):
            check_parts("all_gather", self._size, parts, own)
            whole = copies.empty(self._size * own.numel(), like=own)
            own = copies.given(own)
            calls.append(self._call(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
            staged.append((parts, whole))
        return self._work(copies, calls, [part for parts in outputs for part in parts], copies.spread(staged))

    def _allgather_base(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> Work:
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor],
                                        opts: Any = None) -> Work:
        check_pairs("all_gather", outputs, inputs)
        copies = HostCopies()
        dense = [copies.room(output) for output in outputs]
        calls = []
        for whole, own in zip(dense, inputs):
            check_types("all_gather", whole, own)
            own = copies.given(own)
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"all_gather of {own.numel()} elements into {whole.numel()}, with {self._size} ranks")
            calls.append(self._call(_group.ALL_GATHER, opts, source=own, target=whole, count=own.numel(), like=own))
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
        copies = HostCopies()
        dense = [copies.room(output) for output in outputs]
        calls = []
        for own, whole in zip(dense, inputs):
            check_types("reduce_scatter", own, whole)
            whole = copies.given(whole)
            if whole.numel() != self._size * own.numel():
                raise ValueError(f"reduce_scatter of {whole.numel()} elements into {own.numel()}, with {self._size} ranks")
            calls.append(self._call(_group.REDUCE_SCATTER, opts, source=whole, target=own, count=own.numel(), like=own,
                                    reduction=find_reduction(op, own)))
        return self._work(copies, calls, outputs, copies.put_back(outputs, dense))

    def gather(self, outputs: List[List[torch.Tensor]], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)
        check_dense(*inputs)
        if len(inputs) != 1 or len(outputs) != (1 if self._rank == root else 0):
            raise ValueError(f"gather: {len(outputs)} lists of outputs for {len(inputs)} inputs; the root gives one, others none")
        copies = HostCopies()
        own = copies.given(inputs[0])
        if self._rank != root:
            call = self._call(_group.GATHER, opts, source=own, count=own.numel(), like=own, root=root)
            return self._work(copies, [call], [])
        parts = outputs[0]
        check_parts("gather", self._size, parts, own)
        whole = copies.empty(self._size * own.numel(), like=parts[0])
        call = self._call(_group.GATHER, opts, source=own, target=whole, count=own.numel(), like=own, root=root)
        return self._work(copies, [call], list(parts), copies.spread([(parts, whole)]))

    def scatter(self, outputs: List[torch.Tensor], inputs: List[List[torch.Tensor]], opts: Any = None) -> Work:
        root = getattr(opts, "rootRank", 0)
        check_dense(*outputs)
        if len(outputs) != 1 or len(inputs) != (1 if self._rank == root else 0):
            raise ValueError(f"scatter: {len(inputs)} lists of inputs for {len(outputs)} outputs; the root gives one, others none")
        copies = HostCopies()
        own, whole = copies.room(outputs[0]), None
        if self._rank == root:
            check_parts("scatter", self._size, inputs[0], own)
            whole = copies.given(torch.cat([part.reshape(-1) for part in inputs[0]]))
        call = self._call(_group.SCATTER, opts, source=whole, target=own, count=own.numel(), like=own, root=root)
        return self._work(copies, [call], outputs, copies.put_back(outputs, [own]))

    def alltoall_base(self, output: torch.Tensor, input: torch.Tensor, output_splits: List[int], input_splits: List[int],
                      opts: Any = None) -> Work:
        check_types("all_to_all", output, input)
        copies = HostCopies()
        out, own = copies.room(output), copies.given(input)
        counts = (split(own, input_splits, self._size), split(out, output_splits, self._size))
        call = self._call(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work(copies, [call], [output], copies.put_back([output], [out]))

    def alltoall(self, outputs: List[torch.Tensor], inputs: List[torch.Tensor], opts: Any = None) -> Work:
        check_types("all_to_all", *outputs, *inputs)
        if not len(outputs) == len(inputs) == self._size:
            raise ValueError(
                f"all_to_all: {len(inputs)} inputs and {len(outputs)} outputs for {self._size} ranks; give one for each rank")
        copies = HostCopies()
        own = copies.given(torch.cat([part.reshape(-1) for part in inputs]))
        out = copies.empty(sum(part.numel() for part in outputs), like=outputs[0])
        counts = ([part.numel() for part in inputs], [part.numel() for part in outputs])
        call = self._call(_group.ALL_TO_ALL, opts, source=own, target=out, count=0, like=own, counts=counts)
        return self._work(copies, [call], outputs, copies.spread([(outputs, out)]))

    def barrier(self, opts: Any = None) -> Work:
        nothing = torch.empty(0, dtype=torch.uint8, device="cpu")  # whatever the defaults of the program are
        return self._work(HostCopies(), [self._call(_group.BARRIER, opts, count=0, like=nothing)], [nothing])

    def monitored_barrier(self, timeout: Union[None, float, datetime.timedelta] = None, wait_all_ranks: bool = False) -> None:
        """See the function of that name."""
        await_all(self, patience_of(timeout, self._timeout))

    def send(self, tensors: List[torch.Tensor], destination: int, tag: int = 0) -> Work:
        check_dense(*tensors)
        copies = HostCopies()
        own = copies.given(tensors[0])
        call = self._call(_group.SEND_RECEIVE, source=own, count=own.numel(), like=own, root=destination, tag=tag,
                          sender=self._rank)
        return self._work(copies, [call], tensors)

    def recv(self, tensors: List[torch.Tensor], source: int, tag: int = 0) -> Work:
        check_dense(*tensors)
        copies = HostCopies()
        own = copies.room(tensors[0])
        call = self._call(_group.SEND_RECEIVE, target=own, count=own.numel(), like=own, root=self._rank, tag=tag,
                          sender=source)
        return self._work(copies, [call], tensors, copies.put_back(tensors, [own]))

    def recv_anysource(self, tensors: List[torch.Tensor], tag: int = 0) -> Work:
        raise NotImplementedError("the syncline backend receives from one rank that is named: recv(tensor, src=RANK)")

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
        register(NAME, _create, devices=["cpu", "cuda"])
    else:
        register(NAME, _create)


_register()
