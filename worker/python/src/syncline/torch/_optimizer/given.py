"""Checks the arguments that a program gives an Optimizer."""
from __future__ import annotations

from typing import Any

import torch

from syncline import _staging
from syncline.errors import InvalidArgument


def check_kinds(model: Any, optimizer: Any) -> None:
    """Raises InvalidArgument unless they are a model and the name of a server optimizer."""
    if not isinstance(model, torch.nn.Module):
        raise InvalidArgument(
            f"the first argument is a {type(model).__name__}; give the model itself, Optimizer(model, …), which names its "
            "parameters; params= says which of them to train")
    if not isinstance(optimizer, str):
        name = getattr(optimizer, "__name__", "adamw").lower()
        raise InvalidArgument(f'the optimizer is {optimizer!r}; give its name in lower case, such as Optimizer(model, "{name}", …)')


def check_devices(model: torch.nn.Module) -> None:
    """Raises unless a session can reach the memory of all parameters."""
    for name, parameter in model.named_parameters():
        _staging.device_of(parameter, name)
