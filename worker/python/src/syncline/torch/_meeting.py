"""How the members of a process group find each other: through torch's store, and by addresses between hosts."""
from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import threading
from typing import Dict, List

import torch.distributed as dist

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


def await_key(store: dist.Store, key: str, wait_ms: int) -> None:
    """Until the store has it. In a thread, so that Ctrl-C ends it: a TCPStore that was waited for in slices mixes up answers."""
    failure: List[Exception] = []

    def wait() -> None:
        try:
            store.wait([key], datetime.timedelta(milliseconds=wait_ms))
        except Exception as error:
            failure.append(error)

    waiter = threading.Thread(target=wait, name="syncline-store", daemon=True)
    waiter.start()
    waiter.join()
    if failure:
        raise failure[0]
