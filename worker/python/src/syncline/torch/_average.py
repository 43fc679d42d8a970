"""Servers that average gradients and keep nothing: for optimizers and DDP models that stay as they are."""
from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Optional

import torch

from syncline import _exit
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session, Tensor
from syncline.torch._bucket import Bucket
from syncline.torch._groups import merged
from syncline.torch._host_place import is_wanted
from syncline.torch._host_session import close_after, join

# Weights become minus the mean gradient of the step, whatever they were (server/optimizer/README.md).
_MEAN = "sgd:lr=1,replace=1"
# The others publish what changes between two steps, of which gradients have nothing in common.
_PUBLISHED = ("fp32", "bf16", "fp16")
_MODE = "bsp"


class Averager:
    """A job whose tensors are gradients. Threads: each parameter by one at a time."""

    def __init__(self, named: Iterable[tuple[str, torch.nn.Parameter]], *, push: Option, publish: Option, gradient: Option,
                 mode: Option, session: Optional[Mapping[str, Option]], local_aggregation: Optional[bool]) -> None:
        _exit.set_up()
        if str(publish).partition(":")[0] not in _PUBLISHED:
            raise InvalidArgument(f"publish={publish!r}: a mean gradient comes as {', '.join(_PUBLISHED)}; push= may be any codec")
        settings = merged({"optimizer": _MEAN, "push": push, "publish": publish, "gradient": gradient, "mode": mode}, session or {})
        _check_mode(settings["mode"])
        self.session = join(settings, is_wanted(local_aggregation))
        self._tensors: dict[int, Tensor] = {}
        try:
            for name, parameter in named:
                # Until the first mean is here: the values of the worker that came first.
                start = parameter.detach().float().clone(memory_format=torch.contiguous_format)
                self._tensors[id(parameter)] = self.session.declare(name, start)
            self.session.start()
            if self.session.step > 0:
                raise FailedPrecondition(
                    f"the job has run for {self.session.step} steps without this worker, and its servers keep no weights that this one "
                    "could begin with; start all workers again, or use syncline.torch.Optimizer or LocalSGD, whose workers come and go")
        except BaseException as error:
            close_after(self.session, error)
            raise

    def __contains__(self, parameter: torch.nn.Parameter) -> bool:
        return id(parameter) in self._tensors

    def initial(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Before the first push: the values that all workers begin with."""
        weights: torch.Tensor = self._tensors[id(parameter)].weights
        return weights

    def push(self, parameter: torch.nn.Parameter, gradient: torch.Tensor, samples: int) -> None:
        """Sends a gradient, which stays as it is until `take`."""
        tensor = self._tensors[id(parameter)]
        if gradient.is_sparse:
            raise InvalidArgument(f"{tensor.name}: its gradient is sparse, and only dense ones travel: Embedding(sparse=False)")
        self.session.push_pull(tensor, gradient.contiguous(), samples)

    def take(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Waits for the mean over all workers; it is the caller's until the next push."""
        tensor = self._tensors[id(parameter)]
        self.session.wait(tensor)
        mean: torch.Tensor = tensor.weights
        return mean.neg_()


def _check_mode(given: Option) -> None:
    mode = given or os.environ.get("SYNCLINE_MODE") or _MODE
    if mode != _MODE:
        source = "" if given else " (of SYNCLINE_MODE, which `syncline run --mode` sets)"
        raise InvalidArgument(
            f"mode={mode!r}{source}: every worker has weights of its own, and all must step with the mean of all gradients, which is "
            "mode \"bsp\"; for others take syncline.torch.Optimizer or LocalSGD, whose weights are on the servers")


class HookState:
    """What `syncline.torch.hook` needs: the servers' place for each gradient of a DDP model.

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = syncline.torch.HookState(ddp, push="topk:ratio=0.01")
        ddp.register_comm_hook(state, syncline.torch.hook)

    All ranks make it, after the DDP model; it waits for the others. `push` says how gradients travel to the servers
    (docs/compression.md), `publish` how means come back: "fp32", "bf16" or "fp16". `gradient` is what the servers do to the
    mean, as clip_global_norm=1. `samples` says of how many samples a gradient is the mean; set it when batches differ. By
    default all ranks count the same, as without a hook. `mode` is "bsp", `local_aggregation` as of wrap. `session` has further options of
    syncline.Session.
    """

    def __init__(self, model: torch.nn.Module, *, push: Option = "fp32", publish: Option = "fp32", gradient: Option = None,
                 mode: Option = None, samples: int = 1, local_aggregation: Optional[bool] = None,
                 session: Optional[Mapping[str, Option]] = None) -> None:
        self.samples = samples
        inner = getattr(model, "module", model)
        self._averager = Averager(((name, p) for name, p in inner.named_parameters() if p.requires_grad), push=push,
                                  publish=publish, gradient=gradient, mode=mode, session=session, local_aggregation=local_aggregation)
        self._buckets: queue.SimpleQueue[Optional[Bucket]] = queue.SimpleQueue()
        self._taker = threading.Thread(target=self._take, name="syncline-ddp", daemon=True)
        self._taker.start()

    @property
    def session(self) -> Session:
        """For its figures: `state.session.stats`."""
        return self._averager.session

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Sends the gradients of a bucket of DDP's; the future is the bucket with their means."""
        ours = Bucket(bucket)
        for parameter, gradient in zip(ours.parameters, ours.gradients):
            self._averager.push(parameter, gradient, self.samples)
        self._buckets.put(ours)
        return ours.done()

    def _take(self) -> None:
        while (bucket := self._buckets.get()) is not None:
            bucket.run(self._take_means)

    def _take_means(self, bucket: Bucket) -> None:
        for parameter, gradient in zip(bucket.parameters, bucket.gradients):
            gradient.copy_(self._averager.take(parameter))

    def close(self) -> None:
        """Leaves the job. At the end of the program it comes by itself."""
        self._buckets.put(None)
        self._taker.join()
        self.session.close()

    def __enter__(self) -> HookState:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is not None:
            close_after(self.session, error)  # first: the thread may wait for means that will not come
        self.close()


def hook(state: HookState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: gradients are averaged by Syncline's servers (see HookState)."""
    return state.start(bucket)


# DDP compares annotations with the types themselves.
if torch.distributed.is_available():
    hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
