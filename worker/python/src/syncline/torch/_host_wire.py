"""What the ranks of a host tell each other, and the memory that they share.

A Unix socket without a file (it is gone with its process) carries short messages; gradients and weights lie in memory without a
name, whose descriptors go through the socket. Only processes of the same user are heard.
"""
from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import select
import socket
import struct
import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from syncline import errors
from syncline._library import BFLOAT16, FLOAT16, FLOAT32
from syncline._memory import Memory
from syncline.errors import DataLoss, Error, PermissionDenied

(HELLO, GIVE, ASK, BYE, WELCOME, VIEW, END, BEAT, ANSWER, FAILED) = range(10)
_GIVE, _VIEW, _END = struct.Struct("<BIQId"), struct.Struct("<BIQ"), struct.Struct("<BQf")
_LONGEST = 1 << 16
_LONGEST_MESSAGE = 8000  # of an error
LARGEST_FACTOR = 1e6  # of a learning rate, as for all sessions
_ALIGNMENT = 64
_SEALS = 2 | 4  # fcntl's F_SEAL_SHRINK and F_SEAL_GROW; not every Python was built with headers that have them
_ADD_SEALS, _GET_SEALS = 1033, 1034
_HEADER_BYTES = 4096  # of a member's memory: whether it was dropped
_TYPES = {FLOAT32: (torch.float32, 4), BFLOAT16: (torch.bfloat16, 2), FLOAT16: (torch.float16, 2)}


class GiveMessage(NamedTuple):
    """A member's gradient of a step is in its memory; with no samples, it has none."""

    tensor: int
    step: int
    samples: int
    rate_factor: float


def give(tensor: int, step: int, samples: int, rate_factor: float) -> bytes:
    """A GIVE."""
    return _GIVE.pack(GIVE, tensor, step, samples, rate_factor)


def view(tensor: int, step: int) -> bytes:
    """The weights that a step has made of a tensor are there."""
    return _VIEW.pack(VIEW, tensor, step)


def end(step: int, loss_scale: float) -> bytes:
    """All weights of a step are there; what the loss of the next one is multiplied with."""
    return _END.pack(END, step, loss_scale)


def record(kind: int, /, **fields: Any) -> bytes:
    """Any other message."""
    return bytes([kind]) + json.dumps(fields).encode()


def parse(message: bytes) -> tuple[int, Any]:
    """Its kind, and its fields. DataLoss for what is none."""
    try:
        kind = message[0]
        if kind == GIVE:
            return kind, GiveMessage(*_GIVE.unpack(message)[1:])
        if kind in (VIEW, END):
            return kind, (_VIEW if kind == VIEW else _END).unpack(message)[1:]
        fields = json.loads(message[1:] or b"{}")
        if not isinstance(fields, dict):
            raise ValueError("its fields have no names")
        return kind, fields
    except (IndexError, struct.error, ValueError, RecursionError) as error:
        raise DataLoss(f"a message of another rank of this host is none of ours: {error}") from error


def failure(error: BaseException) -> bytes:
    """FAILED, by which an error gets to another process."""
    known = error if isinstance(error, Error) else errors.Internal(f"{type(error).__name__}: {error}")
    return record(FAILED, kind=type(known).__name__, message=str(known)[:_LONGEST_MESSAGE], exit_code=known.exit_code)


def error_in(fields: Any) -> Error:
    """That of a FAILED."""
    kind = getattr(errors, str(fields["kind"]), Error)
    error: Error = (kind if isinstance(kind, type) and issubclass(kind, Error) else Error)(str(fields["message"]))
    error.exit_code = int(fields["exit_code"])
    return error


class Link:
    """One end of a connection. A child that is forked has none of it: the other side hears when this process ends."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        peer = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        self.process, user = peer[0], peer[1]
        if user != os.getuid():
            connected.close()
            raise PermissionDenied(f"process {self.process} of user {user} has the place of a rank of this host; this is user {os.getuid()}")
        _sockets.add(connected)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """OSError when the other side is gone; BlockingIOError when it does not read, and this side does not block."""
        socket.send_fds(self.socket, [message], list(descriptors))

    def receive(self) -> tuple[bytes, list[int]]:
        """Nothing when the other side is gone. What it sends along is the caller's to close. DataLoss for what is too long."""
        try:
            message, descriptors, flags, _ = socket.recv_fds(self.socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it ended without having read all; what it had said before comes after this error
            message, descriptors, flags, _ = socket.recv_fds(self.socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise DataLoss("a message of another rank of this host is longer than any of ours, or brings more descriptors than "
                           "may be open here")
        return message, list(descriptors)

    def has_news(self, timeout_s: float) -> bool:
        """Whether there is a message, or the other side is gone; waits so long for it. Of any descriptor, as select is not."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def is_gone(self) -> bool:
        """Whether the other side has closed, though what it said may not be read yet."""
        poll = select.poll()
        poll.register(self.socket, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Safe to call again."""
        _sockets.discard(self.socket)
        self.socket.close()


_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


no_fork = threading.RLock()  # held while there is a socket that is not among those yet


def _close_all_in_child() -> None:
    no_fork.release()
    for one in list(_sockets):
        one.close()


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_close_all_in_child)


class Process:
    """Another one of this host, which may end. Where the kernel cannot tell, it has not."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._descriptor = -1
        with contextlib.suppress(OSError, ValueError, AttributeError):  # of another namespace, or ended; or Python does not have the call
            self._descriptor = os.pidfd_open(number)
            weakref.finalize(self, _close, self._descriptor).atexit = False

    @property
    def has_ended(self) -> bool:
        """Though nobody may have collected its exit code yet."""
        if self._descriptor < 0:
            return not os.path.exists(f"/proc/{self.number}") if self.number > 0 else False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))


def address_of(*names: object) -> bytes:
    """Where the leader of a host listens, which all its ranks derive from the job. No file: the first byte says so."""
    digest = hashlib.blake2b(repr((os.getuid(), *names)).encode(), digest_size=16).hexdigest()
    return f"\0syncline-host-{digest}".encode()


def listen(address: bytes) -> socket.socket:
    """OSError where somebody does already."""
    with no_fork:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(address)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        listener.setblocking(False)
        _sockets.add(listener)
        return listener


def connect(address: bytes) -> Link:
    """OSError while nobody listens, or too many others wait to be heard."""
    with no_fork:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.setblocking(False)  # otherwise it would wait for room among those, and without end
            connected.connect(address)
            connected.setblocking(True)
        except OSError:
            connected.close()
            raise
        return Link(connected)


class Layout:
    """Where in a region each of some tensors lies."""

    def __init__(self, tensors: Sequence[Memory]) -> None:
        self.tensors = list(tensors)
        self.offsets: list[int] = []
        self.sizes: list[int] = []
        at = _HEADER_BYTES
        for tensor in tensors:
            width = _TYPES[tensor.dtype][1]
            size = width
            for length in tensor.shape:
                size *= length
            self.offsets.append(at)
            self.sizes.append(size)
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        self.size = max(at, mmap.PAGESIZE)


def array_of(memory: Memory) -> Layout:
    """Of one float32 array of the same shape."""
    return Layout([memory._replace(dtype=FLOAT32)])


class Region:
    """Memory that processes share. It has no name, and is gone with the last of them."""

    def __init__(self, layout: Layout, descriptor: Optional[int] = None) -> None:
        """Takes the descriptor that another process sent, in any case; without one the memory is new, and zero."""
        self._layout = layout
        self.descriptor = os.memfd_create("syncline-host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if descriptor is None else descriptor
        weakref.finalize(self, _close, self.descriptor).atexit = False  # others may ask for it until the leader has left
        if descriptor is None:
            os.ftruncate(self.descriptor, layout.size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEALS)  # who reads memory that is cut off meanwhile is killed
        else:
            self._check(descriptor)
        self._map = mmap.mmap(self.descriptor, layout.size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _check(self, descriptor: int) -> None:
        try:
            is_sealed = fcntl.fcntl(descriptor, _GET_SEALS) & _SEALS == _SEALS
        except OSError:  # no memory at all
            is_sealed = False
        if not is_sealed or os.fstat(descriptor).st_size < self._layout.size:
            raise DataLoss("another rank of this host shares less memory than its tensors take, or such that it could take away")

    @property
    def was_dropped(self) -> bool:
        """Whether the leader goes on without the member whose memory it is."""
        return bool(self._map[0])

    def drop(self) -> None:
        """Of the leader."""
        self._map[0] = 1

    def write(self, tensor: int, address: int) -> None:
        """From memory that is laid out as the tensor is. Other threads go on meanwhile."""
        ctypes.memmove(self._address + self._layout.offsets[tensor], address, self._layout.sizes[tensor])

    def read(self, tensor: int, address: int) -> None:
        """Into such memory."""
        ctypes.memmove(address, self._address + self._layout.offsets[tensor], self._layout.sizes[tensor])

    def tensor(self, number: int) -> torch.Tensor:
        """As torch sees it."""
        memory = self._layout.tensors[number]
        dtype, width = _TYPES[memory.dtype]
        count = self._layout.sizes[number] // width
        if not count:
            return torch.empty(memory.shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._layout.offsets[number]).view(memory.shape)


def close_all(descriptors: list[int]) -> None:
    """Those of a message that nobody has taken."""
    while descriptors:
        _close(descriptors.pop())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
