"""Averages gradients by servers that keep no weights, for optimizers and DDP models that stay as they are."""
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
from syncline.torch._ddp.bucket import Bucket
from syncline.torch._host.place import is_wanted
from syncline.torch._host.session import close_after, join
from syncline.torch._optimizer.groups import merged

# With this optimizer the servers replace the weights by minus the mean gradient of the step (server/optimizer/README.md).
_MEAN = "sgd:lr=1,replace=1"
# The other codecs publish the difference between two steps, but the gradients of two steps have nothing in common.
_PUBLISHED = ("fp32", "bf16", "fp16")
_MODE = "bsp"


class Averager:
    """A job whose tensors are gradients. Different threads may use it for different parameters at the same time."""

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
                # Until the first mean arrives, the tensor holds the values of the worker that came first.
                start = parameter.detach().float().clone(memory_format=torch.contiguous_format)
                self._tensors[id(parameter)] = self.session.declare(name, start)
            self.session.start()
            if self.session.step > 0:
                raise FailedPrecondition(
                    f"the job has run for {self.session.step} steps without this worker, and its servers keep no "
                    "weights with which it could begin; start all workers again, or use "
                    "syncline.torch.Optimizer or LocalSGD, whose workers come and go")
        except BaseException as error:
            close_after(self.session, error)
            raise

    def __contains__(self, parameter: torch.nn.Parameter) -> bool:
        return id(parameter) in self._tensors

    def initial(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns the values with which all workers begin. Call it before the first push."""
        weights: torch.Tensor = self._tensors[id(parameter)].weights
        return weights

    def codes(self, parameter: torch.nn.Parameter) -> list[int]:
        """As those of Session.account, of its gradient."""
        return self.session.account.codes[self._tensors[id(parameter)].id]

    def note(self, parameter: torch.nn.Parameter) -> None:
        """Its gradient was pushed, where an exception came before push could say so."""
        self.session.account.note_late([self._tensors[id(parameter)].id])

    def push(self, parameter: torch.nn.Parameter, gradient: torch.Tensor, samples: int) -> None:
        """Sends a gradient. The caller must not change it before `take`."""
        tensor = self._tensors[id(parameter)]
        if gradient.is_sparse:
            raise InvalidArgument(f"{tensor.name}: its gradient is sparse, but only dense ones can be sent: use "
                                  "Embedding(sparse=False)")
        self.session.push_pull(tensor, gradient.contiguous(), samples)

    def take(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Waits for minus the mean over all workers; it stays as it is until the next push."""
        tensor = self._tensors[id(parameter)]
        self.session.wait(tensor)
        negative: torch.Tensor = tensor.weights
        return negative


def _check_mode(given: Option) -> None:
    mode = given or os.environ.get("SYNCLINE_MODE") or _MODE
    if mode != _MODE:
        source = "" if given else " (of SYNCLINE_MODE, which `syncline run --mode` sets)"
        raise InvalidArgument(
            f"mode={mode!r}{source}: every worker has its own weights, and all must step with the mean of all "
            "gradients, which is mode \"bsp\"; for other modes use syncline.torch.Optimizer or LocalSGD, whose "
            "weights are on the servers")


class HookState:
    """The state of `syncline.torch.hook`: a session with servers that average the gradients of a DDP model.

        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = syncline.torch.HookState(ddp, push="topk:ratio=0.01")
        ddp.register_comm_hook(state, syncline.torch.hook)

    All ranks make it, after the DDP model; the constructor waits for the others. `push` is the encoding of gradients on their way to
    the servers (docs/compression.md), `publish` that of the means: "fp32", "bf16" or "fp16". `gradient` is what the servers do to the
    mean, for example clip_global_norm=1. `samples` is the number of samples of which a gradient is the mean; set it when batches
    differ. By default all ranks count the same, as without a hook. `mode` must be "bsp". `local_aggregation` is that of wrap. `session`
    has further options of syncline.Session.
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
        """The session, for example for its statistics: `state.session.stats`."""
        return self._averager.session

    def start(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Sends the gradients of one of DDP's buckets. The future completes with the bucket's memory, which then holds the means."""
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
            gradient.copy_(self._averager.take(parameter)).neg_()

    def close(self) -> None:
        """Leaves the job. This happens by itself at the end of the program."""
        self._buckets.put(None)
        self._taker.join()
        self.session.close()

    def __enter__(self) -> HookState:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is not None:
            close_after(self.session, error)  # before close(): the thread may wait for means that will never come
        self.close()


def hook(state: HookState, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """A communication hook of DistributedDataParallel: gradients are averaged by Syncline's servers (see HookState)."""
    return state.start(bucket)


# DDP compares the hook's annotations with types; with `from __future__ import annotations` they would be strings.
if torch.distributed.is_available():
    hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
