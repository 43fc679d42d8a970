"""Translates torch's options and parameter groups to those of the servers."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NoReturn, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option


def merged(own: Mapping[str, Option], session: Mapping[str, Option]) -> dict[str, Option]:
    """Returns the options of a session: the optimizer's own arguments and those in session={...}. Raises if both give one."""
    for key, value in session.items():
        if own.get(key) is not None and value is not None:
            raise InvalidArgument(f"session={{{key!r}: …}}: the Optimizer has {key}={own[key]} already; give it once")
    return {**own, **{key: value for key, value in session.items() if value is not None}}


# Options that torch gives in pairs, and their names on the servers, which take them one by one.
PAIRS = {"betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"), "step_sizes": ("step_size_min", "step_size_max")}


def option_string(options: Mapping[str, Any]) -> str:
    """Returns options in the servers' form: "beta1=0.9,beta2=0.99,nesterov=1" for {"betas": (0.9, 0.99), "nesterov": True}."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name in PAIRS:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise InvalidArgument(f"option {name}={value!r}: give two values, as in torch: "
                                      f"{name}=({', '.join(PAIRS[name])})")
            values.update(zip(PAIRS[name], value))
        else:
            values[name] = value
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            raise InvalidArgument(f"option {name}={value!r}: an optimizer's options are numbers, True or False; "
                                  f"give an option of the session in session={{{name!r}: {value!r}}}")
    return ",".join(f"{name}={float(value):.17g}" for name, value in values.items())


# Keys that torch's lr_schedulers write to a group. They are not options of an optimizer.
NOTES = ("initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "max_momentum", "base_momentum")


class Group(dict):  # type: ignore[type-arg]
    """A parameter group. The servers hold its options, so it refuses all changes after the start, except of `lr`."""

    is_fixed = False
    # The `lr` that was declared to the servers.
    declared: Any = None
    # Called with a new `lr` before it is stored; may raise.
    take_rate: Callable[[float], None]

    def __setitem__(self, key: str, value: Any) -> None:
        if self.is_fixed and key not in NOTES and (key not in self or self[key] != value):
            if key != "lr":
                _refuse(key)
            if key not in self:
                _refuse_rates()
            self.take_rate(float(value))
        super().__setitem__(key, value)

    def __missing__(self, key: str) -> NoReturn:
        if self.is_fixed and key in ("lr", "initial_lr"):  # torch's lr_schedulers read them, but the group has the servers' default
            _refuse_rates()
        raise KeyError(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Does dict.setdefault with the checks of this class."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        """Does dict.update with the checks of this class."""
        for key, value in dict(*others, **more).items():
            self[key] = value

    def __ior__(self, other: Any) -> Group:  # type: ignore[misc]
        self.update(other)
        return self

    def __delitem__(self, key: str) -> None:
        if self.is_fixed:
            _refuse(key)
        super().__delitem__(key)

    def pop(self, key: str, *default: Any) -> Any:
        """Does dict.pop with the checks of this class."""
        if self.is_fixed and key in self:
            _refuse(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """Does dict.popitem with the checks of this class."""
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """Does dict.clear with the checks of this class."""
        while self:
            self.popitem()


def _refuse_rates() -> NoReturn:
    raise FailedPrecondition(
        "this group has the servers' default learning rate, which torch's lr_schedulers cannot multiply; give the Optimizer an lr")


def _refuse(key: str) -> NoReturn:
    raise FailedPrecondition(f"the servers hold the option {key!r} of this group; give it when you make the Optimizer")


def make_groups(model: torch.nn.Module, params: Optional[Iterable[Any]], defaults: Mapping[str, Any]) -> list[Group]:
    """Returns the groups of `params`; None: one group of all parameters that require gradients.

    Raises InvalidArgument, which names the parameter, if one is there twice or not in the model.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    given = list(params) if params is not None else [p for p in model.parameters() if p.requires_grad]
    if given and not isinstance(given[0], Mapping):
        given = [{"params": given}]
    groups, seen = [], set()
    for entry in given:
        members = entry["params"]
        members = [members] if isinstance(members, torch.Tensor) else list(members)
        for parameter in members:
            name = names.get(id(parameter))
            if name is None:
                raise InvalidArgument(f"params has a tensor of shape {list(parameter.shape)} that is not a "
                                      "parameter of the model")
            if id(parameter) in seen:
                raise InvalidArgument(f"{name}: is given twice in params")
            seen.add(id(parameter))
        groups.append(Group({**defaults, **entry, "params": members}))
    if not seen:
        raise InvalidArgument("the model has no parameter to train")
    return groups


def check_apart(model: torch.nn.Module) -> None:
    """Raises InvalidArgument if two parameters share memory: new weights of both would be written there."""
    placed = sorted(((str(parameter.device), parameter.data_ptr(), _bytes(parameter), name) for name, parameter in model.named_parameters()
                     if parameter.numel()))
    for (device, begin, length, name), (other_device, other_begin, _, other) in zip(placed, placed[1:]):
        if device == other_device and other_begin < begin + length:
            raise InvalidArgument(f"{other}: shares memory with {name}, but is not a tied weight (one parameter "
                                  "in two places): give each its own memory, nn.Parameter(view.clone())")


def _bytes(parameter: torch.nn.Parameter) -> int:
    """Returns the number of bytes from its first element to the end of its last."""
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride()))
    return int((last + 1) * parameter.element_size())
