"""Servers for a program that was told of none: `syncline serve --role all` as a child process.

The child ends with this process, however that ends: a shell between the two waits for the end of its standard input,
which only this process holds open.
"""
from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time

from syncline._library import binary_path
from syncline.errors import Unavailable

_GUARD = """folder=$1; shift
"$@" </dev/null & child=$!
cat >/dev/null  # until the training process is gone
kill $child 2>/dev/null; wait $child
rm -rf "$folder"
"""
_READY = re.compile(r"syncline: ready control=(\S+) admin=(\S+)")
START_SECONDS = 30.0
STOP_SECONDS = 10.0


class EmbeddedServers:
    """A coordinator and a server on free ports of loopback; `address` is the coordinator's."""

    def __init__(self, failure_timeout: str) -> None:
        self._folder = folder = tempfile.mkdtemp(prefix="syncline-")
        self._log = open(os.path.join(folder, "log"), "w+b")
        command = [str(binary_path()), "serve", "--role", "all", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0",
                   "--state-dir", folder, "--failure-timeout", failure_timeout]
        # A session of its own: Ctrl-C is for the training program, which says goodbye to these servers first.
        self._process = subprocess.Popen(["/bin/sh", "-c", _GUARD, "syncline-servers", folder, *command], stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE, stderr=self._log, start_new_session=True)
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
                break
            seen += piece
            if match := _READY.search(seen.decode(errors="replace")):
                return match.group(1), match.group(2)
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip() or "nothing"
        raise Unavailable(f"the embedded servers did not start within {START_SECONDS:.0f} s; they said: {said[-1000:]}")

    def forget(self) -> None:
        """In a forked child: the servers are the parent's."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def stop(self) -> None:
        """Safe to call again."""
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
