"""The tensor that `parameter.grad` is between backward and step(): its gradient was sent, so it may be read and not changed."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

import torch

from syncline.errors import FailedPrecondition

_Plain = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction  # torch 2; torch 1


_CLIPS_THERE = ('clip on the servers instead: Optimizer(…, gradient="clip_global_norm=1"), or change it in no_sync(), where step() '
                'sends it')
SCALES_THERE = ("torch's GradScaler would unscale gradients that are on their way: give the Optimizer loss_scaling=\"torch\", and take "
                "syncline.torch.GradScaler(optimizer) in place of torch's; or train in BF16 without one")


def changed(name: str, advice: str = _CLIPS_THERE) -> FailedPrecondition:
    """Returns the error for a program that changes a gradient after it was pushed."""
    return FailedPrecondition(f"{name}: its gradient was changed after it was pushed; {advice}")


class Sent(torch.Tensor):
    """Shares the gradient's memory. Calls that would change it raise, also on views of it and .data."""

    name = ""
    advice = _CLIPS_THERE
    # Whether it allows a product with 1, which changes nothing. Programs that clip to infinity, to read the norm, need it.
    takes_one = False

    @staticmethod
    def of(gradient: torch.Tensor, name: str, advice: str = _CLIPS_THERE) -> Sent:
        """Returns a Sent for `gradient` of the parameter `name`. `advice` is part of the error for a program that changes it."""
        sent: Sent = gradient.as_subclass(Sent)
        sent.name = name
        if advice is not _CLIPS_THERE:
            sent.advice = advice
        return sent

    @classmethod
    def __torch_function__(cls, function: Callable[..., Any], types: Iterable[type], arguments: tuple[Any, ...] = (),
                           options: Optional[Mapping[str, Any]] = None) -> Any:
        sent = _first_of(arguments[:1])
        if sent is not None and _changes_its_first(function):
            if sent.takes_one and getattr(function, "__name__", "") == "mul_" and bool((torch.as_tensor(arguments[1]) == 1).all()):
                return sent
            scales = sent.advice is _CLIPS_THERE and "_amp_" in getattr(function, "__name__", "")
            raise changed(sent.name, SCALES_THERE if scales else sent.advice)
        with _Plain():
            result = function(*arguments, **(options or {}))
            if sent is None or type(result) is not torch.Tensor or result.is_sparse:
                return result
            return Sent.of(result, sent.name, sent.advice) if _memory(result) == _memory(sent) else result


def _memory(tensor: torch.Tensor) -> int:
    storage = getattr(tensor, "untyped_storage", tensor.storage)  # torch 2; torch 1
    return int(storage().data_ptr())


def _first_of(values: Any) -> Optional[Sent]:
    for value in values:
        found = _first_of(value) if isinstance(value, (list, tuple)) else value
        if isinstance(found, Sent):
            return found
    return None


def _changes_its_first(function: Callable[..., Any]) -> bool:
    name = getattr(function, "__name__", "")
    return name in _OPERATORS or (name.endswith("_") and not name.endswith("__"))


_OPERATORS = {f"__{name}__" for name in (
    "set", "setitem", "iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "ilshift", "irshift")}
