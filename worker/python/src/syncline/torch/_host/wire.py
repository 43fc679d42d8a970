"""The messages that the ranks of a host exchange, and the memory that they share.

A Unix socket in the abstract namespace carries short messages; it has no file and vanishes with its process. Gradients and weights lie
in memory without a name, whose descriptors go through the socket. Only processes of the same user are accepted.
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
_LONGEST = 1 << 16  # bytes of a message
_LONGEST_MESSAGE = 8000  # characters of an error's text
LARGEST_FACTOR = 1e6  # of scale_learning_rate(), as for all sessions
_ALIGNMENT = 64
_SEALS = 2 | 4  # fcntl's F_SEAL_SHRINK and F_SEAL_GROW; not every Python was built with headers that have them
_ADD_SEALS, _GET_SEALS = 1033, 1034
_HEADER_BYTES = 4096  # before the tensors of a region; the first byte says whether the member was dropped
_TYPES = {FLOAT32: (torch.float32, 4), BFLOAT16: (torch.bfloat16, 2), FLOAT16: (torch.float16, 2)}


class GiveMessage(NamedTuple):
    """Says that a member's gradient of a step is in its memory. `samples` 0: it has no gradient in this step."""

    tensor: int
    step: int
    samples: int
    rate_factor: float


def give(tensor: int, step: int, samples: int, rate_factor: float) -> bytes:
    """Returns a GIVE: see GiveMessage."""
    return _GIVE.pack(GIVE, tensor, step, samples, rate_factor)


def view(tensor: int, step: int) -> bytes:
    """Returns a VIEW: the weights of a tensor after `step` are in the shared memory."""
    return _VIEW.pack(VIEW, tensor, step)


def end(step: int, loss_scale: float) -> bytes:
    """Returns an END: all weights after `step` are there, and the loss of the next step is multiplied by `loss_scale`."""
    return _END.pack(END, step, loss_scale)


def record(kind: int, /, **fields: Any) -> bytes:
    """Returns a message of any other kind, with its fields as JSON."""
    return bytes([kind]) + json.dumps(fields).encode()


def parse(message: bytes) -> tuple[int, Any]:
    """Returns the kind and the fields of a message. Raises DataLoss if it is malformed."""
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
        raise DataLoss(f"another rank of this host sent an invalid message: {error}") from error


def failure(error: BaseException) -> bytes:
    """Returns a FAILED, which carries an error to another process."""
    known = error if isinstance(error, Error) else errors.Internal(f"{type(error).__name__}: {error}")
    return record(FAILED, kind=type(known).__name__, message=str(known)[:_LONGEST_MESSAGE], exit_code=known.exit_code)


def error_in(fields: Any) -> Error:
    """Returns the error that the fields of a FAILED describe."""
    kind = getattr(errors, str(fields["kind"]), Error)
    error: Error = (kind if isinstance(kind, type) and issubclass(kind, Error) else Error)(str(fields["message"]))
    error.exit_code = int(fields["exit_code"])
    return error


class Link:
    """One end of a connection. A forked child closes its copy, so that the other side notices when this process ends."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        peer = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
        self.process, user = peer[0], peer[1]
        if user != os.getuid():
            connected.close()
            raise PermissionDenied(f"process {self.process} of user {user} has taken the place of a rank of this "
                                   f"host; this is user {os.getuid()}")
        _sockets.add(connected)

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Sends a message. Raises OSError if the other side is gone, BlockingIOError if a non-blocking socket is full."""
        socket.send_fds(self.socket, [message], list(descriptors))

    def receive(self) -> tuple[bytes, list[int]]:
        """Receives a message and its descriptors, which the caller must close. An empty message: the other side is gone.

        Raises DataLoss if the message is too long.
        """
        try:
            message, descriptors, flags, _ = socket.recv_fds(self.socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:  # it ended with unread messages; what it had sent comes after this error
            message, descriptors, flags, _ = socket.recv_fds(self.socket, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            close_all(descriptors)
            raise DataLoss("another rank of this host sent a message that is too long, or with more descriptors "
                           "than may be open here")
        return message, list(descriptors)

    def has_news(self, timeout_s: float) -> bool:
        """Waits up to `timeout_s` until there is a message or the other side is gone; returns whether so.

        It uses poll, because select refuses descriptors from 1024 on.
        """
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    @property
    def is_gone(self) -> bool:
        """Whether the other side has closed, even if there are messages from it that were not read yet."""
        poll = select.poll()
        poll.register(self.socket, 0)
        return bool(poll.poll(0))

    def close(self) -> None:
        """Closes the connection. May be called again."""
        _sockets.discard(self.socket)
        self.socket.close()


_sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()


no_fork = threading.RLock()  # held while a socket exists that is not in _sockets yet


def _close_all_in_child() -> None:
    no_fork.release()
    for one in list(_sockets):
        one.close()


os.register_at_fork(before=no_fork.acquire, after_in_parent=no_fork.release, after_in_child=_close_all_in_child)


class Process:
    """Tells whether another process of this host has ended. It says no if the kernel cannot tell."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._descriptor = -1
        with contextlib.suppress(OSError, ValueError, AttributeError):  # in another namespace, ended, or no such call in this Python
            self._descriptor = os.pidfd_open(number)
            weakref.finalize(self, _close, self._descriptor).atexit = False

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended, even if its parent has not collected the exit code yet."""
        if self._descriptor < 0:
            return not os.path.exists(f"/proc/{self.number}") if self.number > 0 else False
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        return bool(poll.poll(0))


def address_of(*names: object) -> bytes:
    """Returns the address at which the leader of a host listens; all ranks derive it from the job's `names`.

    It starts with a zero byte: an abstract address, without a file.
    """
    digest = hashlib.blake2b(repr((os.getuid(), *names)).encode(), digest_size=16).hexdigest()
    return f"\0syncline-host-{digest}".encode()


def listen(address: bytes) -> socket.socket:
    """Returns a non-blocking socket that listens at `address`. Raises OSError if another one listens there."""
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
    """Connects to `address`. Raises OSError if nothing listens there or too many other connections wait to be accepted."""
    with no_fork:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connected.setblocking(False)  # a blocking connect would wait without limit for room in the queue
            connected.connect(address)
            connected.setblocking(True)
        except OSError:
            connected.close()
            raise
        return Link(connected)


class Layout:
    """The offset and size, in bytes, of each tensor within a Region."""

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
    """Returns the layout of one float32 array with the shape of `memory`."""
    return Layout([memory._replace(dtype=FLOAT32)])


class Region:
    """Memory that processes share. It has no name and is freed with the last process that maps it."""

    def __init__(self, layout: Layout, descriptor: Optional[int] = None) -> None:
        """Maps the memory of a descriptor that another process sent; None: creates new memory, filled with zeros.

        Owns the descriptor from now on, even if it raises.
        """
        self._layout = layout
        self.descriptor = os.memfd_create("syncline-host", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) if descriptor is None else descriptor
        weakref.finalize(self, _close, self.descriptor).atexit = False  # not at exit: ranks may ask for it until the leader has left
        if descriptor is None:
            os.ftruncate(self.descriptor, layout.size)
            fcntl.fcntl(self.descriptor, _ADD_SEALS, _SEALS)  # a process that reads truncated memory is killed
        else:
            self._check(descriptor)
        self._map = mmap.mmap(self.descriptor, layout.size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def _check(self, descriptor: int) -> None:
        try:
            is_sealed = fcntl.fcntl(descriptor, _GET_SEALS) & _SEALS == _SEALS
        except OSError:  # the descriptor is of something else
            is_sealed = False
        if not is_sealed or os.fstat(descriptor).st_size < self._layout.size:
            raise DataLoss("another rank of this host shares less memory than its tensors need, or memory that "
                           "it could shrink")

    @property
    def was_dropped(self) -> bool:
        """Whether the leader has gone on without the member that owns this memory."""
        return bool(self._map[0])

    def drop(self) -> None:
        """Marks the memory's owner as dropped. Only the leader calls it."""
        self._map[0] = 1

    def write(self, tensor: int, address: int) -> None:
        """Copies a tensor from `address` to the region. Other threads run meanwhile (ctypes releases the lock of the interpreter)."""
        ctypes.memmove(self._address + self._layout.offsets[tensor], address, self._layout.sizes[tensor])

    def read(self, tensor: int, address: int) -> None:
        """Copies a tensor from the region to `address`."""
        ctypes.memmove(address, self._address + self._layout.offsets[tensor], self._layout.sizes[tensor])

    def tensor(self, number: int) -> torch.Tensor:
        """Returns a tensor of torch that shares the region's memory."""
        memory = self._layout.tensors[number]
        dtype, width = _TYPES[memory.dtype]
        count = self._layout.sizes[number] // width
        if not count:
            return torch.empty(memory.shape, dtype=dtype)
        return torch.frombuffer(self._map, dtype=dtype, count=count, offset=self._layout.offsets[number]).view(memory.shape)


def close_all(descriptors: list[int]) -> None:
    """Closes the descriptors of a message that were not taken over, and empties the list."""
    while descriptors:
        _close(descriptors.pop())


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)
