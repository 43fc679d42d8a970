"""Converts an optimizer's state between the form of the servers and the state_dict of torch's optimizer of the same kind."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Optional

import torch

from syncline.errors import FailedPrecondition, InvalidArgument
from syncline.torch._optimizer.groups import PAIRS
from syncline.torch._optimizer.weight import Weight

_CLASSES = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "nadam": "NAdam", "radam": "RAdam", "adagrad": "Adagrad",
            "rmsprop": "RMSprop", "adadelta": "Adadelta", "adamax": "Adamax", "asgd": "ASGD", "rprop": "Rprop"}
# Arrays of a parameter's state, in the order of the servers' slots, for optimizers whose options do not change the arrays.
_ARRAYS = {"adagrad": ("sum",), "adadelta": ("square_avg", "acc_delta"), "adamax": ("exp_avg", "exp_inf"), "asgd": ("ax",),
           "rprop": ("prev", "step_size")}
# Optimizers that torch also has, but with another state.
_KEPT_OTHERWISE = {"adafactor": "row and column factors, which only checkpoints of the servers hold",
                   "lbfgs": "its history for all weights together"}
_HALVES = {half: (name, place) for name, halves in PAIRS.items() for place, half in enumerate(halves)}
# Options that only the servers' optimizers have.
_ONLY_HERE = ("replace", "lookahead_steps", "ema_decay", "swa_start")
_RATE_HERE = {"sgd": 1e-3}  # torch 1 has no default for it


@dataclass(frozen=True)
class Kind:
    """An optimizer that torch also has."""

    name: str
    options: Mapping[str, Any]  # as the Optimizer was given them
    plain: Mapping[str, Any]  # torch's defaults for a parameter group

    def arrays(self, options: Mapping[str, Any]) -> list[str]:
        """Returns torch's names for the arrays of a parameter's state, in the order of the servers' slots."""
        if self.name == "sgd":
            return ["momentum_buffer"] if options["momentum"] else []
        if self.name in _ARRAYS:
            return list(_ARRAYS[self.name])
        if self.name == "rmsprop":
            return ["square_avg"] + ["grad_avg"] * bool(options["centered"]) + ["momentum_buffer"] * bool(options["momentum"])
        return ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(options.get("amsgrad"))

    def group(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all options of a group of torch's optimizer, with torch's names. `own` are the options that were given."""
        group = dict(self.plain)
        for key, value in own.items():
            if key in _HALVES:
                pair, place = _HALVES[key]
                halves = list(group[pair])
                halves[place] = value
                group[pair] = tuple(halves)
            elif key == "decoupled":
                _check_decay(self.name, group, bool(value))
            elif key in _ONLY_HERE or (key == "maximize" and key not in group):  # torch 1 lacks maximize in some
                if value:
                    raise FailedPrecondition(f"torch's {_CLASSES[self.name]} has no {key}, and its state_dict "
                                             "has no place for it; checkpoints of the servers have it: "
                                             "docs/checkpoints.md")
            elif key != "params":
                group[key] = type(group[key])(value) if isinstance(group.get(key), bool) else value
        return group


def kind_of(name: str, options: Mapping[str, Any]) -> Kind:
    """Returns the Kind of an optimizer. Raises FailedPrecondition if torch has none of that kind."""
    if name in _KEPT_OTHERWISE:
        raise FailedPrecondition(f"there is no state_dict of {name!r}: torch's has {_KEPT_OTHERWISE[name]}; checkpoints of the servers have "
                                 "it (docs/checkpoints.md)")
    if name not in _CLASSES:
        raise FailedPrecondition(
            f"torch has no {name!r}, so no state_dict of torch can hold its state; checkpoints of the servers do "
            f"(docs/checkpoints.md), and there is a state_dict for {', '.join(_CLASSES)}")
    constructor = getattr(torch.optim, _CLASSES[name])
    rate = {"lr": _RATE_HERE[name]} if name in _RATE_HERE else {}
    kind = Kind(name, options, constructor([torch.zeros(1)], **rate).defaults)
    return Kind(name, options, kind.group(options))


def fetch(kind: Kind, groups: Sequence[Mapping[str, Any]], weights: Mapping[int, Weight]) -> dict[str, Any]:
    """Returns the state_dict that torch's optimizer of this kind would have now. `weights` are by id of their parameters."""
    state: dict[int, dict[str, Any]] = {}
    packed: list[dict[str, Any]] = []
    seen = 0
    for group in groups:
        options = kind.group(group)
        for number, parameter in enumerate(group["params"], seen):
            if entry := _entry(kind, options, weights[id(parameter)]):
                state[number] = entry
        packed.append({**options, "params": list(range(seen, seen + len(group["params"])))})
        seen += len(group["params"])
    return {"state": state, "param_groups": packed}


def _entry(kind: Kind, options: Mapping[str, Any], weight: Weight) -> dict[str, Any]:
    names = kind.arrays(options)
    entry: dict[str, Any] = {}
    updates = 0
    for number, name in enumerate(names):
        entry[name], updates = weight.pull_state(number)
    if updates == 0 and kind.name != "adagrad":
        return {}
    if kind.name == "adagrad" and updates == 0:
        entry["sum"].fill_(options["initial_accumulator_value"])
    if kind.name != "sgd":
        entry = {"step": torch.tensor(float(updates)), **entry}
    if kind.name == "nadam":
        entry["mu_product"] = torch.tensor(_momenta(updates, options), dtype=torch.float32)
    if kind.name == "asgd":  # torch stores the values for the next update
        rate = options["lr"] / (1 + options["lambd"] * options["lr"] * updates)**options["alpha"]
        entry.update(eta=torch.tensor(float(rate)), mu=torch.tensor(1 / max(1.0, updates - options["t0"])))
    return entry


def _momenta(updates: int, options: Mapping[str, Any]) -> float:
    """Returns the product of nadam's momenta so far (Dozat 2016)."""
    product = 1.0
    for step in range(1, updates + 1):
        product *= options["betas"][0] * (1 - 0.5 * 0.96**(step * options["momentum_decay"]))
    return product


class Given:
    """A state_dict with which the job is to begin. The constructor checks it against the groups of the optimizer."""

    def __init__(self, kind: Kind, groups: Sequence[Mapping[str, Any]], state_dict: Mapping[str, Any]) -> None:
        if "state" not in state_dict or "param_groups" not in state_dict:
            raise InvalidArgument(f"the state_dict has only {list(state_dict)}; that of an optimizer has state "
                                  "and param_groups")
        self._kind, self._state = kind, state_dict["state"]
        self.groups: Sequence[Mapping[str, Any]] = state_dict["param_groups"]
        ours, theirs = ([len(group["params"]) for group in some] for some in (groups, self.groups))
        if ours != theirs:
            raise InvalidArgument(f"state_dict= has groups of {theirs} parameters, but the Optimizer has groups of {ours}; it must be "
                                  "that of the same model, with the same params=")
        self._number = {id(parameter): number
                        for group, saved in zip(groups, self.groups) for parameter, number in zip(group["params"], saved["params"])}
        self._options = {id(parameter): kind.group(group) for group in groups for parameter in group["params"]}

    @property
    def is_empty(self) -> bool:
        """Whether it comes from an optimizer that has not stepped."""
        return not self._state

    def set(self, weight: Weight) -> None:
        """Gives a parameter's state to the session, if there is any."""
        if state := self.of(weight):
            weight.set_state(*state)

    def of(self, weight: Weight) -> Optional[tuple[int, list[torch.Tensor]]]:
        """Returns the number of updates of a parameter's state, and its arrays; None if it has no state.

        Raises InvalidArgument if the state does not fit.
        """
        saved = self._state.get(self._number[id(weight.parameter)])
        names = self._kind.arrays(self._options[id(weight.parameter)])
        if not names or all(value is None for value in (saved or {}).values()):
            return None  # torch has no state of a parameter that never had a gradient
        for name in names:
            if saved.get(name) is None:
                _refuse_kind(self._kind, weight.name, name, saved)
            if saved[name].shape != weight.parameter.shape:
                raise InvalidArgument(f"{weight.name}: {name} in state_dict= has shape "
                                      f"{list(saved[name].shape)}, but the parameter has "
                                      f"{list(weight.parameter.shape)}; it must be that of the same model")
        # SGD has no step count. Its momentum only depends on whether there was a first step.
        updates = int(saved["step"]) if "step" in saved else 1
        return (updates, [saved[name] for name in names]) if updates > 0 else None


def _refuse_kind(kind: Kind, parameter: str, name: str, saved: Mapping[str, Any]) -> NoReturn:
    raise InvalidArgument(f"{parameter}: state_dict= has no {name}, which {_CLASSES[kind.name]} has, but {', '.join(saved)}; it must be "
                          "that of the same optimizer, with the same options")


def _check_decay(name: str, group: dict[str, Any], is_decoupled: bool) -> None:
    if "decoupled_weight_decay" in group and name != "adamw":
        group["decoupled_weight_decay"] = is_decoupled
    elif is_decoupled != (name == "adamw") and group["weight_decay"]:
        raise FailedPrecondition(f"torch's {_CLASSES[name]} has no weight decay of that kind (decoupled={is_decoupled}), so its "
                                 "state_dict would not go on as this one does")


def same(one: Any, other: Any) -> bool:
    """Returns whether two state_dicts have the same contents."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is not None and other is not None and torch.equal(torch.as_tensor(one).double(), torch.as_tensor(other).double())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
