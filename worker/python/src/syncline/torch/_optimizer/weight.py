"""One parameter of a model: its tensor in the session, and its state in the present step.

In a step, backward accumulates the parameter's gradient, push sends it, and the next forward waits for the new weights from the servers.
Between push and the end of wait the weights and the gradient belong to the session.
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
from syncline.torch._optimizer.sent import Sent, changed

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
        self.codes = session.account.codes[self._tensor.id]
        """Not empty: `settle` is to be called."""
        # Of the gradient of this step, once it is pushed.
        self._sent: Optional[Sent] = None  # as the program sees it
        self._pushed: Optional[torch.Tensor] = None  # the same as a plain tensor, of which torch tells the version at once
        self._pushed_version = 0
        self._counts_to: Optional[tuple[int, int]] = None  # versions of the parameter, and of ours, with the weights that are taken now
        self.is_pushed = False  # in the present step
        self.is_skipped = False
        self.is_pending = False  # its weights are on their way
        self.is_waited_for = False  # by a hook before the forward of its module
        self.takes_one = False  # see Sent
        self.waits_early = False  # the whole model's hook must wait for it, because no module's hook does
        self.rate_factor = 1.0  # factor of the declared learning rate, from the next push on
        self._sent_factor = 1.0

    @property
    def tensor(self) -> Tensor:
        """The parameter's tensor in the session."""
        return self._tensor

    def pull_state(self, number: int) -> tuple[torch.Tensor, int]:
        """Returns an array of its optimizer's state, laid out like the parameter, and the number of updates that made it."""
        shape = [self.parameter.shape[dimension] for dimension in self._order]
        array = torch.zeros(shape)
        updates = self._session.pull_state(self._tensor, number, array)
        return array.permute([self._order.index(dimension) for dimension in range(len(shape))]), updates

    def set_state(self, updates: int, arrays: Sequence[torch.Tensor]) -> None:
        """Gives the state with which its optimizer begins. Call it before the session starts."""
        ordered = [array.detach().to("cpu", torch.float32).permute(self._order).contiguous() for array in arrays]
        self._session.set_state(self._tensor, updates, ordered)

    @property
    def was_changed(self) -> bool:
        """Whether the program has written to the parameter since the session started."""
        return bool(self.parameter._version != self._version)

    def started(self) -> None:
        """Notes that the session has started: from now on only the session may write to the parameter."""
        self._version = self.parameter._version
        self._quick = quick(self._session, self._tensor)

    def joined_again(self) -> None:
        """Its memory has the job's weights, and of a step that was under way nothing counts any more here."""
        self.codes.clear()
        self.parameter.grad = self._sent = self._pushed = self._counts_to = None
        self.is_pushed = self.is_skipped = self.is_pending = self.is_waited_for = False
        self.started()

    def on_gradient(self, callback: Callable[[], None]) -> Any:
        """Makes autograd call `callback` whenever backward has accumulated the gradient. The caller must keep the result.

        It does nothing for a parameter that requires no gradient yet; step() finds its gradients.
        """
        return watch(self.parameter, callback)

    def push(self, samples: int) -> None:
        """Sends the gradient that backward has left. `settle` follows where anything but an error of ours ends it early, as Ctrl-C."""
        if self.codes:
            self.settle()
        parameter = self.parameter
        gradient: Optional[torch.Tensor] = parameter.grad
        assert gradient is not None
        if self.is_pushed:
            raise FailedPrecondition(
                f"{self.name}: a second gradient before step(); run all but the last backward of a step in no_sync()")
        if self.is_pending:
            raise FailedPrecondition(
                f"{self.name}: was used while its new weights were on their way, because its own module's "
                "forward was not called; call synchronize() before you read weights yourself")
        self._check(gradient)
        self.waits_early = not self.is_waited_for
        ordered = (gradient if self._is_row_major else gradient.permute(self._order)).contiguous()
        if self.rate_factor != self._sent_factor:
            self._session.scale_learning_rate(self._tensor, self.rate_factor)
            self._sent_factor = self.rate_factor
        self._sent = sent = Sent.of(gradient, self.name)
        if self.takes_one:
            sent.takes_one = True
        self._pushed, self._pushed_version = gradient, gradient._version
        dtype = _NUMBERS.get(ordered.dtype)
        if self._quick is not None and dtype is not None and ordered.layout is torch.strided:
            self._quick.push(ordered, ordered.data_ptr(), dtype, samples)
        else:
            self._session.push_pull(self._tensor, ordered, samples)
        self.is_pushed = self.is_pending = True
        parameter.grad = sent
        self.codes.clear()

    def settle(self) -> None:
        """Takes note of a push that was made, where an exception came before push() could."""
        if not self.codes:
            return
        if self.codes[0] == 0:
            self._session.account.note_late([self._tensor.id])
            self.is_pushed = self.is_pending = True
            if self.parameter.grad is self._pushed:
                self.parameter.grad = self._sent
        self.codes.clear()

    @property
    def gradient(self) -> Optional[torch.Tensor]:
        """What was pushed in this step; None: nothing yet."""
        return self._pushed if self.is_pushed else None

    def end_step(self) -> None:
        """Takes the gradient that was pushed, once."""
        if not (self.is_pushed or self.is_skipped):
            return
        gradient = self.parameter.grad
        if gradient is not None:
            if gradient is not self._sent or self._pushed is None or self._pushed._version != self._pushed_version:
                raise changed(self.name)
        self.parameter.grad = self._sent = self._pushed = None
        self.is_pushed = self.is_skipped = False

    def skipped(self) -> None:
        """The session was told that this step has no gradient for it."""
        self.is_skipped = self.is_pending = True

    def wait(self) -> None:
        """Until the new weights are here. What an exception ends early goes on with the next call."""
        if self.codes:
            self.settle()
        if not self.is_pending:
            return
        if self.is_pushed:  # a wait would not end with clip_global_norm before step() has skipped the rest
            raise FailedPrecondition(
                f"{self.name}: its gradient is on its way and its weights are about to change; call step() (or, "
                "after an exception in backward, the optimizer's zero_grad()) before the next forward, "
                "state_dict() or synchronize(), and run all but the last backward of a step in no_sync()")
        if self._quick is not None:
            self._quick.wait()
        else:
            self._session.wait(self._tensor)
        # New values are a change in place: backward through the old ones raises, as with torch's optimizers.
        counts_to = self._counts_to
        if counts_to is None:
            self._counts_to = counts_to = (self.parameter._version + 1, self._version + 1)
        if self.parameter._version < counts_to[0]:
            self._count_change()
        self._version = counts_to[1]
        self._counts_to = None
        self.is_pending = False

    def _check(self, gradient: torch.Tensor) -> None:
        parameter = self.parameter
        if gradient.is_sparse:
            raise InvalidArgument(f"{self.name}: its gradient is sparse, but only dense ones can be sent: use "
                                  "Embedding(sparse=False)")
        if parameter._version != self._version:
            raise FailedPrecondition(
                f"{self.name}: its values were changed in this process, but the servers hold them; load checkpoints and "
                "initialise weights before you make the Optimizer")
        if parameter.data_ptr() != self._address or gradient.shape != self._shape:
            raise FailedPrecondition(
                f"{self.name}: its memory or shape has changed since the Optimizer was made; move (.to(), "
                ".half()) and resize models before that")


class _Watch:
    """A hook on a node of autograd's graph. It keeps the node alive, because the hook is gone with it."""

    def __init__(self, node: Any, handle: Any) -> None:
        self._node, self._handle = node, handle

    def remove(self) -> None:
        """Removes the hook, as with torch's own handles."""
        self._handle.remove()


def watch(parameter: torch.nn.Parameter, callback: Callable[[], None]) -> Any:
    """Makes autograd call `callback` whenever backward has accumulated the gradient. The caller must keep the result.

    Returns None if the parameter requires no gradient.
    """
    if not parameter.requires_grad:
        return None
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(lambda _: callback())
    node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    return _Watch(node, node.register_hook(lambda *_: callback()))


def _change_counter(parameter: torch.nn.Parameter) -> Callable[[], Any]:
    """Returns a function that counts a change of the parameter's values.

    It takes 0.3 microseconds from torch 2.1 on; before that 0.7, by a write to none of the elements.
    """
    if hasattr(torch.autograd.graph, "increment_version"):
        return functools.partial(torch.autograd.graph.increment_version, parameter)
    return parameter.detach()[None][:0].zero_  # type: ignore[no-any-return]


def memory_order(parameter: torch.nn.Parameter) -> list[int]:
    """Returns the dimensions in their order in memory, the densest one last: not 0, 1, 2, 3 with channels_last."""
    return sorted(range(parameter.dim()), key=lambda d: (-parameter.stride(d), d))


def wait_before_forward(weights: list[Weight]) -> None:
    """Waits until all of them are in place, and notes that forward waits for them."""
    for weight in weights:
        weight.is_waited_for = True
    wait_all(weights)


def wait_all(weights: list[Weight]) -> None:
    """Waits until all of them are in place."""
    for weight in weights:
        weight.wait()
