"""Reports when a model's forward and backward begin and end, for `syncline trace` (docs/traces.md)."""
from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from threading import get_ident
from typing import Any, Callable

import torch

from syncline._library import library
from syncline.errors import SessionClosed
from syncline.session import Session
from syncline.torch._optimizer.hooks import Hook, OutputHook

FORWARD, BACKWARD = 1, 2
_DEPTH = 3  # levels of containers in what a model returns that are searched for tensors


class Passes:
    """The passes of one model. `begin` returns whether a trace is open. While none is, only `begin` is called, once for each forward.

    Backward lasts from the first gradient of what forward has returned to autograd's end. A backward that an exception breaks off is
    not reported.
    """

    def __init__(self, begin: Callable[[int], bool], end: Callable[[], None]) -> None:
        self._begin, self._end = begin, end
        self._is_traced = self._is_in_backward = False

    def watch(self, model: torch.nn.Module) -> list[Any]:
        """Adds hooks to a model and returns them. The caller must remove them."""
        before = model.register_forward_pre_hook(Hook(self._forward_begins))
        model._forward_pre_hooks.move_to_end(before.id, last=False)  # waiting for weights belongs to forward
        return [before, model.register_forward_hook(OutputHook(self._forward_ends))]

    def _forward_begins(self) -> None:
        self._is_in_backward = False
        self._is_traced = self._begin(FORWARD)

    def _forward_ends(self, output: Any) -> None:
        if not self._is_traced:
            return
        self._is_traced = False
        self._end()
        for tensor in _tensors(output, _DEPTH):
            if tensor.grad_fn is not None:  # a hook on a parameter would stay
                tensor.register_hook(self._backward_goes_on)

    def _backward_goes_on(self, _: torch.Tensor) -> None:
        if self._is_in_backward:
            return
        self._is_in_backward = True
        if self._begin(BACKWARD):
            torch.autograd.Variable._execution_engine.queue_callback(self._backward_ends)

    def _backward_ends(self) -> None:
        self._is_in_backward = False
        self._end()


def watch_passes(session: Any, model: torch.nn.Module) -> list[Any]:
    """Adds hooks that report the model's passes to the session. Adds none for a HostSession, which has no traces of single ranks."""
    if type(session) is not Session:
        return []
    calls, begins, ends = session._calls, library().syncline_begin_pass, library().syncline_end_pass

    def call(function: Callable[..., Any], *arguments: Any) -> bool:
        thread = get_ident()
        with contextlib.suppress(SessionClosed):  # the model may be used after the session
            handle = calls._begin(thread)
            try:
                return bool(function(handle, *arguments) == 1)
            finally:
                calls._end(thread)
        return False

    def end() -> None:
        call(ends)

    return Passes(lambda which: call(begins, which), end).watch(model)


def _tensors(output: Any, depth: int) -> Iterator[torch.Tensor]:
    """Yields the tensors in what a model returns: in tuples, lists, dictionaries and data classes."""
    if isinstance(output, torch.Tensor):
        yield output
        return
    if isinstance(output, Mapping):
        parts = list(output.values())
    elif isinstance(output, (tuple, list)):
        parts = list(output)
    elif dataclasses.is_dataclass(output):
        parts = list(vars(output).values())
    else:
        return
    for part in parts if depth > 0 else ():
        yield from _tensors(part, depth - 1)
