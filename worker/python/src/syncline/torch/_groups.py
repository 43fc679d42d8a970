"""From torch's way of naming options and parameter groups to that of the servers."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NoReturn, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.session import Option


def merged(own: Mapping[str, Option], session: Mapping[str, Option]) -> dict[str, Option]:
    """Options of a session: what the optimizer was given itself, and its session={...}."""
    for key, value in session.items():
        if own.get(key) is not None and value is not None:
            raise InvalidArgument(f"session={{{key!r}: …}}: the Optimizer has {key}={own[key]} already; give it once")
    return {**own, **{key: value for key, value in session.items() if value is not None}}


# What torch gives in pairs, and the servers one by one.
PAIRS = {"betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"), "step_sizes": ("step_size_min", "step_size_max")}


def option_string(options: Mapping[str, Any]) -> str:
    """ "beta1=0.9,beta2=0.99,nesterov=1" of {"betas": (0.9, 0.99), "nesterov": True}."""
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name in PAIRS:
            if not isinstance(value, (tuple, list)) or len(value) != 2:
                raise InvalidArgument(f"option {name}={value!r}: there are two, as in torch: {name}=({', '.join(PAIRS[name])})")
            values.update(zip(PAIRS[name], value))
        else:
            values[name] = value
    for name, value in values.items():
        if not isinstance(value, (int, float)):
            raise InvalidArgument(f"option {name}={value!r}: an optimizer's options are numbers, or True and False; "
                                  f"one of the session is given in session={{{name!r}: {value!r}}}")
    return ",".join(f"{name}={float(value):.17g}" for name, value in values.items())


# Notes that torch's lr_schedulers make in a group; no options of an optimizer.
NOTES = ("initial_lr", "max_lr", "min_lr", "base_lr", "swa_lr", "max_momentum", "base_momentum")


class Group(dict):  # type: ignore[type-arg]
    """A parameter group. Its options are the servers' from the start, but for `lr`: any other change is refused."""

    is_fixed = False
    # `lr` as the servers were told of it.
    declared: Any = None
    # Takes a new `lr` before it is stored.
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
        if self.is_fixed and key in ("lr", "initial_lr"):  # torch's lr_schedulers, where the servers' default is taken
            _refuse_rates()
        raise KeyError(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """dict's."""
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        """dict's."""
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
        """dict's."""
        if self.is_fixed and key in self:
            _refuse(key)
        return super().pop(key, *default)

    def popitem(self) -> tuple[str, Any]:
        """dict's."""
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        """dict's."""
        while self:
            self.popitem()


def _refuse_rates() -> NoReturn:
    raise FailedPrecondition(
        "this group has the servers' default learning rate, which torch's lr_schedulers cannot multiply; give the Optimizer an lr")


def _refuse(key: str) -> NoReturn:
    raise FailedPrecondition(f"the servers hold the option {key!r} of this group; give it when you make the Optimizer")


def make_groups(model: torch.nn.Module, params: Optional[Iterable[Any]], defaults: Mapping[str, Any]) -> list[Group]:
    """Groups of `params`, or one of all that is trained. Names the parameter that is there twice or not in the model."""
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
                raise InvalidArgument(f"params has a tensor of shape {list(parameter.shape)} that is no parameter of the model")
            if id(parameter) in seen:
                raise InvalidArgument(f"{name}: is in params twice")
            seen.add(id(parameter))
        groups.append(Group({**defaults, **entry, "params": members}))
    if not seen:
        raise InvalidArgument("the model has no parameter to train")
    return groups


def check_apart(model: torch.nn.Module) -> None:
    """InvalidArgument names two parameters that have memory in common, into which each one's new weights would be written."""
    placed = sorted(((str(parameter.device), parameter.data_ptr(), _bytes(parameter), name) for name, parameter in model.named_parameters()
                     if parameter.numel()))
    for (device, begin, length, name), (other_device, other_begin, _, other) in zip(placed, placed[1:]):
        if device == other_device and other_begin < begin + length:
            raise InvalidArgument(f"{other}: shares memory with {name}, and is no tied weight, which is one parameter in two places: give each memory "
                                  "of its own, nn.Parameter(view.clone())")


def _bytes(parameter: torch.nn.Parameter) -> int:
    """From its first element to its last."""
    last = sum((size - 1) * stride for size, stride in zip(parameter.shape, parameter.stride()))
    return int((last + 1) * parameter.element_size())
