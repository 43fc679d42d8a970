"""Converts durations between the forms of Python, of options, and of the library."""
from __future__ import annotations

import re
from typing import Optional

from syncline._library import FOREVER

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}


def milliseconds(timeout: Optional[float]) -> int:
    """Returns the library's form of a timeout in seconds. None: no limit."""
    return FOREVER if timeout is None else max(0, int(timeout * 1000))


def seconds_of(duration: str) -> float:
    """Returns the seconds of a duration, for example 90 for "1m30s"."""
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[hms])", duration))
