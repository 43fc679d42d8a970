"""How the members of a process group find each other: through torch's store, and by addresses between hosts."""
from __future__ import annotations

import ipaddress
import os
import socket
import time
from typing import Dict, Optional

import torch.distributed as dist

_NOBODYS = "syncline: no such key"  # what no key is
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1  # so that a thousand ranks that wait ask a store ten thousand times a second
_ANYWHERE = "192.0.2.1"  # RFC 5737: nobody's


def network() -> Dict[str, str]:
    """How members of other hosts reach this one."""
    asked = {option: os.environ.get(f"SYNCLINE_GROUP_{option.upper()}", "") for option in ("address", "host", "security")}
    return {**asked, "address": asked["address"] or _address_towards(os.environ.get("MASTER_ADDR", ""))}


def own_address() -> str:
    """By which others reach this process; on a host without any other address, only itself."""
    return network()["address"] or _address_towards(_ANYWHERE) or "127.0.0.1"


def wants_exact_order() -> bool:
    """Whether sums have the same bits however ranks are spread over hosts."""
    asked = os.environ.get("SYNCLINE_GROUP_EXACT_ORDER", "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"SYNCLINE_GROUP_EXACT_ORDER is {asked!r}, but must be 1 or 0")
    return asked == "1"


def _address_towards(name: str) -> str:
    """From which packets to it would come; nothing is sent. Nothing where that is this host itself: by its own name."""
    if not name:
        return ""
    try:
        family, kind, protocol, _, there = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(there)
            found = str(probe.getsockname()[0])
    except OSError:
        return ""
    return "" if ipaddress.ip_address(found.split("%")[0]).is_loopback else found


def look(store: dist.Store, key: str) -> Optional[bytes]:
    """What the key is; None while the store has no such key. Does not wait.

    By compare_set, which every store of every torch has, and which changes nothing where the key is not what was expected. `wait` is of
    no use: a TCPStore of torch 1 whose wait timed out takes the late answer for that of the next question.
    """
    said = bytes(store.compare_set(key, _NOBODYS, _NOBODYS))
    return None if said == _NOBODYS.encode() else said


def await_key(store: dist.Store, key: str, wait_ms: int) -> bytes:
    """What the key is once the store has it; TimeoutError after that time."""
    deadline = time.monotonic() + wait_ms / 1000
    pause = _FIRST_PAUSE_S
    while True:
        said = look(store, key)
        if said is not None:
            return said
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the store had no key {key!r} within {wait_ms / 1000:g} s")
        time.sleep(min(pause, left))
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
