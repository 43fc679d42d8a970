"""What `parameter.grad` is between backward and step(): a gradient that is on its way, to be read and not to be changed."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, Optional

import torch

from syncline.errors import FailedPrecondition

_Plain = getattr(torch._C, "DisableTorchFunctionSubclass", None) or torch._C.DisableTorchFunction  # torch 2; torch 1


_CLIPS_THERE = ('clip on the servers instead: Optimizer(…, gradient="clip_global_norm=1"), or change it in no_sync(), where step() '
                'sends it')
SCALES_THERE = ("torch's GradScaler and the servers would both scale: give the Optimizer loss_scaling=\"torch\" and call "
                "optimizer.scale(loss).backward() and optimizer.step() without a GradScaler")


def changed(name: str, advice: str = _CLIPS_THERE) -> FailedPrecondition:
    """The error of anyone who changes a gradient that was pushed."""
    return FailedPrecondition(f"{name}: its gradient was changed after it was pushed; {advice}")


class Sent(torch.Tensor):
    """Shares the gradient's memory. Calls that would change it raise, through .data and other views of it, too."""

    name = ""
    advice = _CLIPS_THERE
    # Whether a product with 1 is let pass, which changes nothing: of programs that clip to infinity, to read the norm.
    takes_one = False

    @staticmethod
    def of(gradient: torch.Tensor, name: str, advice: str = _CLIPS_THERE) -> Sent:
        """`gradient` of the parameter `name`; `advice` for those who change it."""
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
