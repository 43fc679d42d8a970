"""The settings of published methods of local SGD, by name. worker/client/presets.cc has the same settings for C and C++."""
from __future__ import annotations

from typing import Any

from syncline.errors import InvalidArgument
from syncline.torch._optimizer.spelling import did_you_mean

_NESTEROV = {"outer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


def _each_then_every_32nd(round_number: int) -> int:
    return 1 if round_number < 1000 else 32


PRESETS: dict[str, dict[str, Any]] = {
    # Douillard et al. 2023, arXiv 2311.08105.
    "diloco": {"sync_every": 100, **_NESTEROV},
    # Douillard et al. 2025, arXiv 2501.18512: parts of the model take turns, are pulled five steps after their push, and use 4 bits up.
    "streaming-diloco": {"sync_every": 100, "fragments": 4, "overlap": 5, "alpha": 0.5, "push": "int4", "publish": "int8", **_NESTEROV},
    # Sarfi et al. 2025, arXiv 2508.15706: error feedback, which is part of the push codec, replaces the outer momentum.
    "sparseloco": {"sync_every": 30, "outer": "sgd", "lr": 1.0, "push": "sparseloco", "publish": "sparseloco:ratio=0.03125"},
    # Lin et al. 2018, arXiv 1808.07217: synchronises each step at first, and takes local steps later.
    "post-local-sgd": {"sync_every": _each_then_every_32nd, "outer": "sgd", "lr": 1.0},
    # Peng et al. 2024, arXiv 2411.19870: the momentum is part of the push codec, and weights change by plus or minus the rate.
    "demo": {"sync_every": 1, "outer": "signsgd", "lr": 1e-3, "push": "demo", "publish": "onebit"},
}


def settings_of(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of LocalSGD for a preset; `changes` replace those of the preset."""
    if name not in PRESETS:
        raise InvalidArgument(f"{name!r} is not a preset; there are "
                              f"{', '.join(PRESETS)}{did_you_mean(name, PRESETS)}")
    settings = dict(PRESETS[name])
    if changes.get("outer", settings["outer"]) != settings["outer"]:
        for option in ("momentum", "nesterov"):  # options of sgd only
            settings.pop(option, None)
    return {**settings, **changes}
