"""A rank of the host, as its leader sees it: a connection, and messages that it has yet to read."""
from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Optional

from syncline.torch._host_wire import Link, Region


class Guest:
    """Known by no rank until it said hello. Its connection does not block."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rank = -1  # within the host
        self.region: Optional[Region] = None  # where its gradients are
        self.came = time.monotonic()
        self.questions = 0  # that were not answered yet
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def answer(self, message: bytes) -> None:
        """To one of its questions."""
        self.questions -= 1
        self.send(message)

    @property
    def unread(self) -> int:
        """How many messages it has no room for."""
        return len(self._unsent)

    @property
    def is_behind(self) -> bool:
        """Whether there are messages that it has no room for."""
        return bool(self._unsent)

    def send(self, message: bytes, *descriptors: int) -> None:
        """After those that wait; of one that is gone, nothing."""
        self._unsent.append((message, descriptors))
        self.flush()

    def flush(self) -> None:
        """Sends what it has room for."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                try:
                    self.link.send(*self._unsent[0])
                except BlockingIOError:
                    raise
                except OSError:  # what it said before is read yet, and then that it is gone
                    return self._unsent.clear()
                self._unsent.popleft()
