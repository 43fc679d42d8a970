"""Helps the members of a process group find each other: through torch's store, and by addresses between hosts."""
from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from typing import Dict, List, Optional, Union

import torch.distributed as dist

_NOBODYS = "syncline: no such key"  # a value that no key has
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.1  # a store is one thread: a thousand ranks that wait ask it ten thousand times a second
_ANSWER_S = 1.0  # time that a store which is reachable may take to answer
_ANYWHERE = "192.0.2.1"  # an address for documentation (RFC 5737), on no host


def network() -> Dict[str, str]:
    """Returns the options of a group that come from the environment and are texts: `address`, `host`, `security` and `costs`."""
    options = ("address", "host", "security", "costs")
    asked = {option: os.environ.get(f"SYNCLINE_GROUP_{option.upper()}", "") for option in options}
    return {**asked, "address": asked["address"] or _address_towards(os.environ.get("MASTER_ADDR", ""))}


def own_address() -> str:
    """Returns the address by which other processes reach this one: 127.0.0.1 if this host has no other."""
    return network()["address"] or _address_towards(_ANYWHERE) or "127.0.0.1"


def wants_exact_order() -> bool:
    """Returns whether sums must have the same bits however ranks are spread over hosts (SYNCLINE_GROUP_EXACT_ORDER)."""
    asked = os.environ.get("SYNCLINE_GROUP_EXACT_ORDER", "")
    if asked not in ("", "0", "1"):
        raise ValueError(f"SYNCLINE_GROUP_EXACT_ORDER is {asked!r}, but must be 1 or 0")
    return asked == "1"


def _address_towards(name: str) -> str:
    """Returns the address from which packets to `name` would be sent; sends nothing.

    Returns "" if `name` is this host itself or cannot be resolved.
    """
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
    """Returns the value of a key, or None while the store does not have it. Does not wait for the key.

    It uses compare_set, which the stores of every torch have, and which changes nothing if the value is not the expected one. `wait`
    cannot be used: after a timeout, a TCPStore of torch 1 takes the late answer as the answer to its next request.
    """
    said = bytes(store.compare_set(key, _NOBODYS, _NOBODYS))
    return None if said == _NOBODYS.encode() else said


def await_key(store: dist.Store, key: str, wait_ms: int) -> bytes:
    """Waits until the store has a key and returns its value. Raises TimeoutError after `wait_ms`, also if the store does not answer."""
    found: List[Union[bytes, Exception]] = []
    is_over = threading.Event()
    deadline = time.monotonic() + wait_ms / 1000

    def ask() -> None:
        pause = _FIRST_PAUSE_S
        while True:
            try:
                said = look(store, key)
            except Exception as error:
                found.append(error)
                return
            if said is not None:
                found.append(said)
                return
            left = deadline - time.monotonic()
            if left <= 0 or is_over.wait(min(pause, left)):
                return
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)

    # A thread asks, so that Ctrl-C works even if the store's host is gone.
    asking = threading.Thread(target=ask, name="syncline-store", daemon=True)
    asking.start()
    try:
        asking.join(wait_ms / 1000 + _ANSWER_S)
    finally:
        is_over.set()
    if not found:
        raise TimeoutError(f"the store had no key {key!r} within {wait_ms / 1000:g} s")
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]
