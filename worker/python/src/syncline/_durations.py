"""Lengths of time, as options and the library have them."""
from __future__ import annotations

import re
from typing import Optional

from syncline._library import FOREVER

_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3}


def milliseconds(timeout: Optional[float]) -> int:
    """Of a timeout in seconds, None for any length; the library's."""
    return FOREVER if timeout is None else max(0, int(timeout * 1000))


def seconds_of(duration: str) -> float:
    """90 of "1m30s"."""
    return sum(float(number) * _SECONDS[unit] for number, unit in re.findall(r"([\d.]+)(ms|[hms])", duration))
