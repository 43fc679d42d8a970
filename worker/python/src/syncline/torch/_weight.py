"""One parameter of a model: its tensor in the session, and where it is in the present step.

A step of a parameter: backward accumulates its gradient, push sends it, and the next forward waits for the weights that
the servers make of it. Between push and the end of wait its weights and its gradient belong to the session.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Callable, Optional

import torch

from syncline._library import BFLOAT16, FLOAT16, FLOAT32
from syncline._quick import Quick, quick
from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Session, Tensor
from syncline.torch._sent import Sent, changed

_NUMBERS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}


class Weight:
    """A parameter that the servers hold. `name` is its path in the model."""

    def __init__(self, session: Session, name: str, parameter: torch.nn.Parameter, **options: Any) -> None:
        self.name = name
        self.parameter = parameter
        self._session = session
        self._order = memory_order(parameter)
        self._is_row_major = parameter.is_contiguous()
        self._address = parameter.data_ptr()
        self._tensor: Tensor = session.declare(name, parameter.detach().permute(self._order), **options)
        self._version = parameter._version
        self._shape = parameter.shape
        self._quick: Optional[Quick] = None
        self._count_change = _change_counter(parameter)
        self._sent: Optional[Sent] = None  # the gradient of this step, as the program sees it
        self._pushed: Optional[torch.Tensor] = None  # the same as a plain tensor, of which torch tells the version at once
        self._pushed_version = 0
        self.is_pushed = False  # in the present step
        self.is_pending = False  # its weights are on their way
        self.is_waited_for = False  # by a hook before the forward of its module
        self.takes_one = False  # see Sent
        self.waits_early = False  # by the hook of the whole model: no hook of a module does
        self.rate_factor = 1.0  # what the learning rate it was declared with is multiplied with, from the next push on
        self._sent_factor = 1.0

    @property
    def tensor(self) -> Tensor:
        """What the session calls it."""
        return self._tensor

    def pull_state(self, number: int) -> tuple[torch.Tensor, int]:
        """An array of its optimizer's state, laid out as the parameter is, and of how many updates it is."""
        shape = [self.parameter.shape[dimension] for dimension in self._order]
        array = torch.zeros(shape)
        updates = self._session.pull_state(self._tensor, number, array)
        return array.permute([self._order.index(dimension) for dimension in range(len(shape))]), updates

    def set_state(self, updates: int, arrays: Sequence[torch.Tensor]) -> None:
        """Before the session starts: what its optimizer begins with."""
        ordered = [array.detach().to("cpu", torch.float32).permute(self._order).contiguous() for array in arrays]
        self._session.set_state(self._tensor, updates, ordered)

    @property
    def was_changed(self) -> bool:
        """Whether the program has written values of its own since the session started."""
        return bool(self.parameter._version != self._version)

    def started(self) -> None:
        """From now on its memory is the session's to write, and nobody else's."""
        self._version = self.parameter._version
        self._quick = quick(self._session, self._tensor)

    def joined_again(self) -> None:
        """Its memory has the job's weights, and of a step that was under way nothing counts any more here."""
        self.parameter.grad = self._sent = self._pushed = None
        self.is_pushed = self.is_pending = self.is_waited_for = False
        self.started()

    def on_gradient(self, callback: Callable[[], None]) -> Any:
        """Has `callback` called whenever backward has accumulated the gradient. Keep what this returns.

        Not of a parameter that requires none yet: step() finds its gradients.
        """
        return watch(self.parameter, callback)

    def push(self, samples: int) -> None:
        """Sends the gradient that backward has left."""
        parameter = self.parameter
        gradient: Optional[torch.Tensor] = parameter.grad
        assert gradient is not None
        if self.is_pushed:
            raise FailedPrecondition(
                f"{self.name}: a second gradient before step(); run all but the last backward of a step in no_sync()")
        if self.is_pending:
            raise FailedPrecondition(
                f"{self.name}: was used while its new weights were on their way, as its own module's forward was not called; "
                "call synchronize() before you read weights yourself")
        self._check(gradient)
        self.waits_early = not self.is_waited_for
        ordered = (gradient if self._is_row_major else gradient.permute(self._order)).contiguous()
        if self.rate_factor != self._sent_factor:
            self._session.scale_learning_rate(self._tensor, self.rate_factor)
            self._sent_factor = self.rate_factor
        dtype = _NUMBERS.get(ordered.dtype)
        if self._quick is not None and dtype is not None and ordered.layout is torch.strided:
            self._quick.push(ordered, ordered.data_ptr(), dtype, samples)
        else:
            self._session.push_pull(self._tensor, ordered, samples)
        self.is_pushed = self.is_pending = True
        self._sent = sent = Sent.of(gradient, self.name)
        if self.takes_one:
            sent.takes_one = True
        self._pushed, self._pushed_version = gradient, gradient._version
        parameter.grad = sent

    @property
    def gradient(self) -> Optional[torch.Tensor]:
        """What was pushed in this step; None: nothing yet."""
        return self._pushed

    def end_step(self) -> None:
        """Takes the gradient that was pushed."""
        gradient = self.parameter.grad
        if gradient is not None:
            if gradient is not self._sent or self._pushed is None or self._pushed._version != self._pushed_version:
                raise changed(self.name)
        self.parameter.grad = self._sent = self._pushed = None
        self.is_pushed = False

    def skipped(self) -> None:
        """The session was told that this step has no gradient for it."""
        self.is_pending = True

    def wait(self) -> None:
        """Until the new weights are here."""
        if not self.is_pending:
            return
        if self.is_pushed:  # with clip_global_norm it ends when all gradients are there or skipped, which step() does
            raise FailedPrecondition(
                f"{self.name}: its gradient is on its way and its weights are about to change; call step() (after a backward that an exception "
                "broke off: the optimizer's zero_grad()) before the next forward, state_dict() or synchronize(), and run all but the last "
                "backward of a step in no_sync()")
        if self._quick is not None:
            self._quick.wait()
        else:
            self._session.wait(self._tensor)
        self.is_pending = False
        # New values are a change in place: backward through the old ones raises, as with torch's optimizers.
        self._count_change()
        self._version += 1

    def _check(self, gradient: torch.Tensor) -> None:
        parameter = self.parameter
        if gradient.is_sparse:
            raise InvalidArgument(f"{self.name}: its gradient is sparse, and only dense ones travel: Embedding(sparse=False)")
        if parameter._version != self._version:
            raise FailedPrecondition(
                f"{self.name}: its values were changed in this process, but the servers hold them; load checkpoints and "
                "initialise weights before you make the Optimizer")
        if parameter.data_ptr() != self._address or gradient.shape != self._shape:
            raise FailedPrecondition(
                f"{self.name}: its memory or shape is another than when the Optimizer was made; move (.to(), .half()) and "
                "resize models before")


class _Watch:
    """A hook on a node of autograd's graph, which is gone where nobody keeps the node."""

    def __init__(self, node: Any, handle: Any) -> None:
        self._node, self._handle = node, handle

    def remove(self) -> None:
        """As of torch's own handles."""
        self._handle.remove()


def watch(parameter: torch.nn.Parameter, callback: Callable[[], None]) -> Any:
    """Has `callback` called whenever backward has accumulated the gradient; None where none is required. Keep the result."""
    if not parameter.requires_grad:
        return None
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(lambda _: callback())
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return _Watch(node, node.register_hook(lambda *_: callback()))


def _change_counter(parameter: torch.nn.Parameter) -> Callable[[], Any]:
    """What counts a change of its values. Of torch 2.1 on 0.3 microseconds, before 0.7 by writing to none of them."""
    if hasattr(torch.autograd.graph, "increment_version"):
        return functools.partial(torch.autograd.graph.increment_version, parameter)
    return parameter.detach()[None][:0].zero_  # type: ignore[no-any-return]


def memory_order(parameter: torch.nn.Parameter) -> list[int]:
    """The dimensions as they lie in memory, the last one densest: not 0, 1, 2, 3 with channels_last."""
    return sorted(range(parameter.dim()), key=lambda d: (-parameter.stride(d), d))
