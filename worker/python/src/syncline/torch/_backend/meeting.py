"""Helps the members of a process group find each other: through torch's store, and by addresses between hosts."""
from __future__ import annotations

import ipaddress
import os
import socket
import threading
import time
from typing import Callable, Dict, List, Optional, TypeVar

import torch.distributed as dist

_T = TypeVar("_T")

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


def in_time(call: Callable[[threading.Event], _T], seconds: float) -> _T:
    """Returns what `call` returns. Raises TimeoutError if it does not return in time; the event that it was given is then set.

    It runs in a thread, so that Ctrl-C works even if the store's host is gone. A store's calls cannot be ended: the thread may go on.
    """
    found: List[_T] = []
    errors: List[Exception] = []
    is_over = threading.Event()

    def run() -> None:
        try:
            found.append(call(is_over))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="syncline-store", daemon=True)
    thread.start()
    try:
        thread.join(seconds + _ANSWER_S)
    finally:
        is_over.set()
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return found[0]


def await_key(store: dist.Store, key: str, wait_ms: int) -> bytes:
    """Waits until the store has a key and returns its value. Raises TimeoutError after `wait_ms`, also if the store does not answer."""
    deadline = time.monotonic() + wait_ms / 1000

    def ask(is_over: threading.Event) -> bytes:
        pause = _FIRST_PAUSE_S
        while (said := look(store, key)) is None:
            left = deadline - time.monotonic()
            if left <= 0 or is_over.wait(min(pause, left)):
                raise TimeoutError(f"the store had no key {key!r} within {wait_ms / 1000:g} s")
            pause = min(pause * 1.5, _LONGEST_PAUSE_S)
        return said

    return in_time(ask, wait_ms / 1000)
