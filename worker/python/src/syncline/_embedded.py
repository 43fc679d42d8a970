"""Starts servers for a program that was given no coordinator: `syncline serve --role all` as a child process.

The child ends with this process, however that ends: a shell between the two waits for the end of its standard input, which only this
process holds open. Only the servers have the standard output open, so its end means that they have ended.
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

from syncline._library import LogFunction, Options, binary_path, check, library
from syncline.errors import Error, InvalidArgument, Unavailable

# The shell signals its process group, which holds only itself and the servers, and survives the signal. It does not use the servers'
# process id: they may have died long ago, and another process may have the id by now.
_GUARD = """folder=$1; shift
"$@" </dev/null & child=$!
exec >/dev/null
trap '' TERM
cat  # until the training process is gone
kill -TERM 0
wait $child; status=$?
rm -rf "$folder"
exit $status
"""
# Settings of the environment that the servers also get. All others concern other servers or the session.
_SETTINGS = ("SYNCLINE_CHECKPOINT_DIR", "SYNCLINE_ENGINE_THREADS", "SYNCLINE_ISA", "SYNCLINE_JOURNAL_DIR", "SYNCLINE_LOG_LEVEL",
             "SYNCLINE_MEMORY")
_READY = re.compile(r"syncline: ready control=(\S+) admin=(\S+)")
START_SECONDS = 30.0
STOP_SECONDS = 10.0


def check_options(settings: Options) -> None:
    """Checks a session's options before servers are started for it. Drops log lines: the session will log them later."""
    silent, handle = LogFunction(lambda *_: None), ctypes.c_void_p()
    library().syncline_options_set_log(settings.handle, silent, None)
    check(library().syncline_session_create(settings.handle, ctypes.byref(handle)))
    library().syncline_session_free(handle)


class EmbeddedServers:
    """A coordinator and a server in one child process, on free ports of loopback.

    `address` is that of the coordinator, `admin` that of its admin port.
    """

    def __init__(self, failure_timeout: str) -> None:
        self._folder = folder = tempfile.mkdtemp(prefix="syncline-")
        self._log = open(os.path.join(folder, "log"), "w+b")
        command = [str(binary_path()), "serve", "--role", "all", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
                   "--state-dir", folder, "--failure-timeout", failure_timeout]
        # It gets a session of its own, so that Ctrl-C reaches only the training program, which first leaves the job.
        self._process = subprocess.Popen(["/bin/sh", "-c", _GUARD, "syncline-servers", folder, *command], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._log, env=_environment(),
                                         start_new_session=True)
        try:
            self.address, self.admin = self._await_ready()
        except BaseException:
            self.stop()
            raise

    def _await_ready(self) -> tuple[str, str]:
        assert self._process.stdout is not None
        stream, seen = self._process.stdout.fileno(), b""
        deadline = time.monotonic() + START_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([stream], [], [], left)[0]:
                break
            piece = os.read(stream, 4096)
            if not piece:
                raise self._ended()
            seen += piece
            if match := _READY.search(seen.decode(errors="replace")):
                return match.group(1), match.group(2)
        raise Unavailable(f"the embedded servers did not start within {START_SECONDS:.0f} s; they said: {self._said()}")

    def _ended(self) -> Error:
        said = self._said()
        self.stop()
        kind = InvalidArgument if self._process.returncode == InvalidArgument.exit_code else Unavailable
        given = [f"{name}={os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
        settings = f" (with {', '.join(given)})" if given else ""
        return kind(f"the embedded servers ended as they started{settings}, exit code {self._process.returncode}; they said: {said}")

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace").strip()[-1000:] or "nothing"

    def forget(self) -> None:
        """Closes a forked child's copy of the pipe. The servers belong to the parent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Stops the servers and waits for their end. May be called again."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)  # the shell, and the servers that would outlive it
            self._process.wait()
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process.stdout.close()
        self._log.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SYNCLINE_") or name in _SETTINGS}
