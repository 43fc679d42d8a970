"""The leader's view of one rank of its host: a connection, and the messages that still have to be sent on it."""
from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import Optional

from syncline.torch._host.wire import Link, Region


class RankConnection:
    """One connection that the leader has accepted. Its rank is unknown until its HELLO arrives, and its socket does not block.

    Only the hub's listening thread uses it.
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self.rank = -1  # within the host; -1: no HELLO yet
        self.region: Optional[Region] = None  # memory that holds its gradients
        self.came = time.monotonic()
        self.questions = 0  # number of ASKs without an answer yet
        self._unsent: deque[tuple[bytes, tuple[int, ...]]] = deque()

    def answer(self, message: bytes) -> None:
        """Sends the answer to one of its questions."""
        self.questions -= 1
        self.send(message)

    @property
    def unread(self) -> int:
        """Number of messages that wait because the rank reads too slowly."""
        return len(self._unsent)

    @property
    def is_behind(self) -> bool:
        """Whether messages wait because the rank reads too slowly."""
        return bool(self._unsent)

    def send(self, message: bytes, *descriptors: int) -> None:
        """Sends a message after those that already wait. If the rank is gone, the message is dropped."""
        self._unsent.append((message, descriptors))
        self.flush()

    def flush(self) -> None:
        """Sends as many waiting messages as the socket takes."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                try:
                    self.link.send(*self._unsent[0])
                except BlockingIOError:
                    raise
                except OSError:  # it is gone; the listening thread first reads what it had sent, then the end
                    return self._unsent.clear()
                self._unsent.popleft()
