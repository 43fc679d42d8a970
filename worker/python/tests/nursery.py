"""Starts the programs of tests by forking one that has imported torch already.

Importing torch takes longer than most of these programs run for. A nursery is a process that imports it once, without starting a
thread, and forks for each program; the fork then runs the program as `python -c SOURCE` would. What the C library, OpenMP or the
interpreter reads from the environment at their start cannot be set that way: `can_start` says no, and the program gets an
interpreter of its own.

    program = Nursery.of_this_process().start(source, env)     # like subprocess.Popen: pid, stdout, stderr, poll, wait

The requests of the test process come on a Unix socket: environment and source as JSON after their length, with three descriptors,
one for each output stream and one that takes the status of the program once it has ended.
"""
import io
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import types

LENGTH = struct.Struct("!I")
AT_START = ("LD_", "OMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "PYTHON", "KMP_")
MAY_CHANGE = ("PYTHONPATH", "PYTHONUNBUFFERED")
ENVIRONMENT = dict(os.environ)  # of a nursery


def can_start(source, env):
    """Returns whether a fork can run this program: it must need torch, and no settings that are read before torch is imported."""
    same = all(value == ENVIRONMENT.get(name) for name, value in env.items() if name.startswith(AT_START) and name not in MAY_CHANGE)
    return "torch" in sys.modules and "torch" in source and same


def import_torch():
    """Imports torch, and what torch 2 imports when a program first uses an optimizer or DDP: 900 modules, 1.5 s of a core.

    Programs that are forked afterwards have both.
    """
    import torch

    try:
        import torch._dynamo
    except ImportError:  # torch 1 has none
        pass
    return torch


class Program:
    """A program of the nursery, with the interface of subprocess.Popen."""

    def __init__(self, pid, output, errors, status):
        self.pid = pid
        self.stdout, self.stderr = output, errors
        self.returncode = None
        self._status = status

    def poll(self):
        return self._await(0)

    def wait(self, timeout=None):
        if self._await(timeout) is None:
            raise subprocess.TimeoutExpired("a program", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def _await(self, timeout):
        if self.returncode is None and select.select([self._status], [], [], timeout)[0]:
            said = self._status.read()     # nothing, if the nursery itself was killed
            self.returncode = os.waitstatus_to_exitcode(int(said)) if said else -signal.SIGKILL
            self._status.close()
        return self.returncode


class Nursery:
    _started = None

    @classmethod
    def of_this_process(cls):
        if cls._started is None:
            cls._started = cls()
        return cls._started

    def __init__(self):
        self._socket, theirs = socket.socketpair()
        self._lock = threading.Lock()
        with theirs:
            self._process = subprocess.Popen([sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()],
                                             stdin=subprocess.DEVNULL, env=ENVIRONMENT, start_new_session=True)

    def start(self, source, env):
        request = json.dumps({"source": source, "env": env}).encode()
        ours, theirs = zip(*(os.pipe() for _ in range(3)))
        with self._lock:
            socket.send_fds(self._socket, [LENGTH.pack(len(request))], theirs)
            self._socket.sendall(request)
            for descriptor in theirs:
                os.close(descriptor)
            pid, = LENGTH.unpack(self._socket.recv(LENGTH.size, socket.MSG_WAITALL))
        output, errors, status = ours
        return Program(pid, open(output, "rb"), open(errors, "rb"), open(status, encoding="ascii"))


def serve(requests):
    """Forks for each request. Returns in each fork, with its source; ends with the process that asks."""
    statuses = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
        while statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            with open(statuses.pop(pid), "w", encoding="ascii") as report:
                report.write(str(status))
        if requests not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(requests, LENGTH.size, 3)
        if not head:
            os._exit(0)
        body = json.loads(requests.recv(LENGTH.unpack(head)[0], socket.MSG_WAITALL))
        *streams, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (woken, wake, status, *statuses.values()):
                os.close(descriptor)
            requests.close()
            become(body["env"], streams)
            return body["source"]
        for stream in streams:
            os.close(stream)
        statuses[pid] = status
        requests.sendall(LENGTH.pack(pid))


def become(env, streams):
    """Gives a fork what a new interpreter would have: its own session, streams, environment and path."""
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout = io.TextIOWrapper(open(1, "wb", buffering=0, closefd=False), encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(open(2, "wb", buffering=0, closefd=False), encoding="utf-8", errors="backslashreplace", write_through=True)
    old = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(env)
    new = env.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, new), *(entry for entry in sys.path[1:] if entry not in old)]
    sys.argv[:] = ["-c"]


if __name__ == "__main__":
    import_torch()
    program = serve(socket.socket(fileno=int(sys.argv[1])))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), main.__dict__)
