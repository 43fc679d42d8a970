"""Any of torch's optimizers, stepping on the worker with gradients that the servers have averaged."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session
from syncline.torch._average import Averager
from syncline.torch._host_session import close_after
from syncline.torch._sent import Sent, changed
from syncline.torch._weight import watch


_WAIT_FIRST = "call optimizer.synchronize() first, then clip or unscale, then step()"


class _Averaged(torch.optim.Optimizer):
    """What wrap() returns: the optimizer, with averages for gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, averager: Averager, names: Mapping[int, str], samples: int) -> None:
        self._inner, self._averager, self._names = optimizer, averager, names
        self.samples = samples
        self._pushes = True  # not inside no_sync
        # By id of the parameter: what was pushed, its version, and what the program sees of it. Not all that changes a tensor
        # changes its version: a GradScaler does not.
        self._sent: dict[int, tuple[torch.Tensor, int, Sent]] = {}
        self._is_averaged = False
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(averager.initial(parameter))
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self._watches = [watch(parameter, functools.partial(self._on_gradient, parameter)) for parameter in self._parameters]

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        if self._is_averaged:
            raise FailedPrecondition(f"{self._name(parameter)}: a backward between synchronize() and step(); call step() first")
        if self._pushes and not self._is_closed:
            self._push(parameter)

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return self._names[id(parameter)]

    def _push(self, parameter: torch.nn.Parameter) -> None:
        if id(parameter) in self._sent:
            raise FailedPrecondition(f"{self._name(parameter)}: a second gradient before step(); run all but the last backward of a "
                                     "step in no_sync()")
        # Of a parameter without a gradient: nothing, which counts, as with DistributedDataParallel.
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        self._averager.push(parameter, gradient, self.samples)
        sent = Sent.of(gradient, self._name(parameter), _WAIT_FIRST)
        self._sent[id(parameter)] = (gradient, gradient._version, sent)
        if parameter.grad is not None:
            parameter.grad = sent

    # ---- what torch's optimizers have ----

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """A step of the optimizer with everybody's mean gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._is_averaged:
            self.synchronize()
        self._is_averaged = False
        self._inner.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's, between step() and backward."""
        if self._sent:
            raise FailedPrecondition("gradients are on their way already, and part of the others' means; call step() first, after a backward that an "
                                     "exception broke off, too, or weights would differ between workers; or run a backward whose gradients may be "
                                     "thrown away in no_sync()")
        self._is_averaged = False
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's, which is on this worker."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """The optimizer's."""
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """All groups are the optimizer's when it is wrapped: the servers know the tensors of a job from its start."""
        if hasattr(self, "_watches"):
            raise FailedPrecondition("the tensors of a job are declared when it starts; add all groups before wrap()")
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises: for copy, deepcopy and pickle."""
        raise FailedPrecondition("a wrapped optimizer cannot be copied or pickled, as its place in the job is this one's; save its "
                                 "state_dict()")

    # ---- what they have not ----

    def synchronize(self) -> None:
        """Waits until `.grad` of all parameters is everybody's mean: between backward and step(), to clip or look at it."""
        if self._is_averaged:
            return
        for parameter in self._parameters:
            if id(parameter) not in self._sent:
                self._push(parameter)
        for parameter in self._parameters:
            gradient, version, sent = self._sent[id(parameter)]
            if parameter.grad is not None and (parameter.grad is not sent or gradient._version != version):
                raise changed(self._name(parameter), _WAIT_FIRST)
        with torch.no_grad():
            for parameter in self._parameters:
                mean = self._averager.take(parameter)
                if parameter.grad is not None:
                    parameter.grad = self._sent[id(parameter)][0].copy_(mean)
                elif mean.any():  # otherwise nobody had a gradient
                    parameter.grad = mean.to(parameter.dtype, copy=True)
        self._sent.clear()
        self._is_averaged = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward inside only accumulates gradients; a later backward outside, or step(), sends the sum."""
        before, self._pushes = self._pushes, False
        try:
            yield
        finally:
            self._pushes = before

    def report_loss(self, loss: Any) -> None:
        """The loss of this step, for `syncline status`. Between backward and step()."""
        self.session.report_loss(float(loss), samples=self.samples)

    @property
    def session(self) -> Session:
        """For its figures: `optimizer.session.stats`."""
        return self._averager.session

    @property
    def steps(self) -> int:
        """The number of the present step, from 0."""
        return self.session.step

    @property
    def rank(self) -> int:
        """Which worker this is."""
        return self.session.rank

    @property
    def world_size(self) -> int:
        """With how many workers the job began."""
        return self.session.world_size

    _is_closed = False

    def close(self) -> None:
        """Leaves the job. At the end of the program it comes by itself."""
        self._is_closed = True
        self.session.close()

    def __enter__(self) -> _Averaged:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is None:
            return self.close()
        self._is_closed = True
        close_after(self.session, error)


def wrap(optimizer: torch.optim.Optimizer, model: Optional[torch.nn.Module] = None, *, push: Option = "fp32",
         publish: Option = "fp32", gradient: Option = None, mode: Option = None, samples: int = 1,
         local_aggregation: Optional[bool] = None, session: Optional[Mapping[str, Option]] = None) -> _Averaged:
    """Any of torch's optimizers as it is, on this worker, with gradients that the servers average over all workers.

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = syncline.torch.wrap(optimizer, model, push="topk:ratio=0.01")
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()     # sends each gradient as soon as it is there
            optimizer.step()                                    # waits for the means

    It joins the job and gives all workers the weights of the first. Weights and state are then each worker's own, and the same
    on all, so that no worker may join later: for that there are syncline.torch.Optimizer and LocalSGD. To clip gradients call
    optimizer.synchronize() before. `model` names parameters in errors and `syncline status`. `push` is any codec
    (docs/compression.md), `publish` "fp32", "bf16" or "fp16", `gradient` what servers do to the mean (clip_global_norm=1).
    `mode` is "bsp", which a program says that is not to follow `syncline run --mode`: in other modes workers take different means,
    and their weights drift apart. With `local_aggregation` the ranks of a host send one gradient for all of them
    (docs/pytorch.md#one-gradient-for-each-host).
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "session"):
        raise InvalidArgument(f"the optimizer is {optimizer!r}; give one of torch's, as torch.optim.AdamW(model.parameters(), …)")
    names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
    named = []
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            named.append((names.get(id(parameter), f"group{number}.{position}"), parameter))
    averager = Averager(named, push=push, publish=publish, gradient=gradient, mode=mode, session=session,
                        local_aggregation=local_aggregation)
    return _Averaged(optimizer, averager, {id(parameter): name for name, parameter in named}, samples)
