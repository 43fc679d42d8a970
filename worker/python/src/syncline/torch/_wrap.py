"""Wraps an optimizer of torch: it steps on the worker, with gradients that the servers have averaged."""
from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option, Session
from syncline.torch._ddp.average import Averager
from syncline.torch._host.session import close_after
from syncline.torch._optimizer.one_each import check_only_one, note_hooks
from syncline.torch._optimizer.sent import Sent, changed
from syncline.torch._optimizer.weight import watch


_WAIT_FIRST = "call optimizer.synchronize() first, then clip or unscale, then step()"


class _Averaged(torch.optim.Optimizer):
    """The optimizer that wrap() returns. It steps with averaged gradients."""

    def __init__(self, optimizer: torch.optim.Optimizer, averager: Averager, names: Mapping[int, str], samples: int) -> None:
        self._inner, self._averager, self._names = optimizer, averager, names
        self.samples = samples
        self._pushes = True  # not inside no_sync
        # By id of the parameter: the gradient that was pushed, its version, and the tensor that the program sees instead. The version
        # alone does not show all changes: a GradScaler makes some that it does not count.
        self._sent: dict[int, tuple[torch.Tensor, int, Sent]] = {}
        self._sending = dict(self._sent)  # what _sent becomes once it is pushed
        self._is_averaged = False
        self._is_taking = False  # means, which an exception ended in the middle
        self._is_stepping = False  # step() was called, and the optimizer has not stepped
        self._stepped: list[Any] = []  # what the optimizer's step returned, until the step has ended
        self._parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        with torch.no_grad():
            for parameter in self._parameters:
                parameter.copy_(averager.initial(parameter))
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self._watches = [watch(parameter, functools.partial(self._on_gradient, parameter)) for parameter in self._parameters]
        note_hooks(self, "wrapped optimizer", names)

    def _on_gradient(self, parameter: torch.nn.Parameter) -> None:
        self._end_step()
        if self._is_averaged:
            raise FailedPrecondition(f"{self._name(parameter)}: a backward between synchronize() and step(); call step() first")
        if self._pushes:
            self._push(parameter)

    def _name(self, parameter: torch.nn.Parameter) -> str:
        return self._names[id(parameter)]

    def _push(self, parameter: torch.nn.Parameter) -> None:
        codes = self._averager.codes(parameter)
        if codes:
            self._settle(parameter, codes)
        if id(parameter) in self._sent:
            raise FailedPrecondition(f"{self._name(parameter)}: a second gradient before step(); run all but the last backward of a "
                                     "step in no_sync()")
        # A parameter without a gradient pushes zeros, which count in the mean, as with DistributedDataParallel.
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        sent = Sent.of(gradient, self._name(parameter), _WAIT_FIRST)
        self._sending[id(parameter)] = (gradient, gradient._version, sent)
        self._averager.push(parameter, gradient, self.samples)
        self._pushed(parameter, codes)

    def _pushed(self, parameter: torch.nn.Parameter, codes: list[int]) -> None:
        gradient, _, sent = self._sent[id(parameter)] = self._sending[id(parameter)]
        if parameter.grad is gradient:
            parameter.grad = sent
        codes.clear()

    def _settle(self, parameter: torch.nn.Parameter, codes: list[int]) -> None:
        """Takes note of a push that was made, where an exception came before _push could, as Ctrl-C."""
        if codes[0] == 0:
            self._averager.note(parameter)
            self._pushed(parameter, codes)
        codes.clear()

    # ---- the interface of torch's optimizers ----

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Takes a step of the optimizer with the means of all workers' gradients."""
        if self._end_step():  # an exception ended the last call when it had made its step
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._is_stepping = True
        try:
            self.synchronize()
            # One call, so that Ctrl-C cannot come between the step and the record of it.
            self._stepped.extend(map(operator.methodcaller("step"), [self._inner]))
        except Exception:
            self._is_stepping = False
            raise
        self._end_step()
        return loss

    def _end_step(self) -> bool:
        """Ends the step if the optimizer has stepped. Returns whether it has."""
        if not self._stepped:
            return False
        self._is_averaged = self._is_stepping = False
        self._stepped.clear()
        return True

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The optimizer's, between step() and backward."""
        self._end_step()
        if self._is_stepping:
            raise FailedPrecondition("an exception ended step() before the optimizer had stepped; call step() again, "
                                     "otherwise weights would differ between workers")
        if self._is_averaged:
            self._is_taking = False
            self._sent.clear()
        if self._sent or any(self._averager.codes(parameter) for parameter in self._parameters):
            raise FailedPrecondition("gradients are already on their way and part of the means of other "
                                     "workers; call step() first, also after an exception in backward, "
                                     "otherwise weights would differ between workers; or run a backward whose "
                                     "gradients may be thrown away in no_sync()")
        self._is_averaged = False
        self._inner.zero_grad(set_to_none=set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the optimizer, which is on this worker."""
        state: dict[str, Any] = self._inner.state_dict()
        return state

    def load_state_dict(self, state_dict: Any) -> None:
        """Loads the state of the optimizer."""
        self._inner.load_state_dict(state_dict)
        self.param_groups, self.state = self._inner.param_groups, self._inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises FailedPrecondition: a job's tensors are set when it starts, so the optimizer must have all groups when it is wrapped."""
        if hasattr(self, "_watches"):
            raise FailedPrecondition("the tensors of a job are declared when it starts; add all groups before wrap()")
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises: for copy, deepcopy and pickle."""
        raise FailedPrecondition("a wrapped optimizer cannot be copied or pickled, because it stands for this "
                                 "worker in the job; save its state_dict()")

    # ---- beyond the interface of torch's optimizers ----

    def synchronize(self) -> None:
        """Waits until `.grad` of all parameters is everybody's mean: between backward and step(), to clip or look at it."""
        if not self._is_averaged:
            if not self._is_taking:
                self._send_rest()
            self._take_means()
        # After an exception between two of these lines the next call goes on here.
        self._is_taking = False
        self._sent.clear()

    def _send_rest(self) -> None:
        for parameter in self._parameters:
            if codes := self._averager.codes(parameter):
                self._settle(parameter, codes)
            if id(parameter) not in self._sent:
                self._push(parameter)
        for parameter in self._parameters:
            gradient, version, sent = self._sent[id(parameter)]
            if parameter.grad is not None and (parameter.grad is not sent or gradient._version != version):
                raise changed(self._name(parameter), _WAIT_FIRST)
        self._is_taking = True

    def _take_means(self) -> None:
        # No torch.no_grad(): an exception on its way out of that leaves it on.
        for parameter in self._parameters:
            negative = self._averager.take(parameter)
            if parameter.grad is not None:
                gradient = self._sent[id(parameter)][0]
                gradient.detach().copy_(negative).neg_()
                parameter.grad = gradient
            elif negative.any():  # otherwise nobody had a gradient
                parameter.grad = negative.to(parameter.dtype, copy=True).neg_()
        self._is_averaged = True

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Returns a context in which backward only accumulates gradients. A later backward outside, or step(), sends the sum."""
        before = self._pushes
        try:
            self._pushes = False
            yield
        finally:
            self._pushes = before

    def report_loss(self, loss: Any) -> None:
        """Reports the loss of this step, for `syncline status`. Call it between backward and step()."""
        self.session.report_loss(float(loss), samples=self.samples)

    @property
    def session(self) -> Session:
        """The session, for example for its statistics: `optimizer.session.stats`."""
        return self._averager.session

    @property
    def steps(self) -> int:
        """The number of the present step, from 0."""
        return self.session.step

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self.session.rank

    @property
    def world_size(self) -> int:
        """The number of workers with which the job began."""
        return self.session.world_size

    def close(self) -> None:
        """Leaves the job. This happens by itself at the end of the program."""
        self._remove_hooks()
        self.session.close()

    def _remove_hooks(self) -> None:
        for one in self._watches:
            if one is not None:
                one.remove()
        self._watches = []

    def __enter__(self) -> _Averaged:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException],
                 traceback: Optional[TracebackType]) -> None:
        if error is None:
            return self.close()
        self._remove_hooks()
        close_after(self.session, error)


def wrap(optimizer: torch.optim.Optimizer, model: Optional[torch.nn.Module] = None, *, push: Option = "fp32",
         publish: Option = "fp32", gradient: Option = None, mode: Option = None, samples: int = 1,
         local_aggregation: Optional[bool] = None, session: Optional[Mapping[str, Option]] = None) -> _Averaged:
    """Returns an optimizer that steps on this worker as `optimizer` does, with gradients that the servers average over all workers.

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        optimizer = syncline.torch.wrap(optimizer, model, push="topk:ratio=0.01")
        for inputs, labels in batches:
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()     # sends each gradient as soon as it is there
            optimizer.step()                                    # waits for the means

    It joins the job and gives all workers the weights of the first. From then on each worker has its own weights and state, which are
    the same on all; so no worker can join later. Use syncline.torch.Optimizer or LocalSGD for that. To clip gradients, call
    optimizer.synchronize() before. A second wrap() of one of the parameters is refused until the first is closed.

    `model` gives parameters their names in errors and `syncline status`. `push` is any codec (docs/compression.md), `publish` is
    "fp32", "bf16" or "fp16", and `gradient` is what the servers do to the mean (clip_global_norm=1). `mode` must be "bsp"; give it if
    the program must not follow `syncline run --mode`. In other modes workers take different means, and their weights drift apart. With
    `local_aggregation` the ranks of a host send one gradient for all of them (docs/pytorch.md#one-gradient-for-each-host).
    """
    if not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "session"):
        raise InvalidArgument(f"the optimizer is {optimizer!r}; give one of torch's, as torch.optim.AdamW(model.parameters(), …)")
    check_only_one(parameter for group in optimizer.param_groups for parameter in group["params"])
    names = {id(parameter): name for name, parameter in model.named_parameters()} if model is not None else {}
    named = []
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            named.append((names.get(id(parameter), f"group{number}.{position}"), parameter))
    averager = Averager(named, push=push, publish=publish, gradient=gradient, mode=mode, session=session,
                        local_aggregation=local_aggregation)
    return _Averaged(optimizer, averager, {id(parameter): name for name, parameter in named}, samples)
