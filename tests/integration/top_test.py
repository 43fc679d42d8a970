#!/usr/bin/env python3
"""`syncline top` in a terminal of its own, beside a running job.

    python3 tests/integration/top_test.py --build build/release [-v] [TestClass.test_name ...]
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest

import cluster


class Top(cluster.ClusterTest):
    servers = 1

    def setUp(self):
        super().setUp()
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execv(f"{cluster.BUILD}/syncline",
                     ["syncline", "top", "--coordinator", self.address, "--interval", "200ms"])  # fmt: skip
        self.addCleanup(os.close, self.terminal)
        self.addCleanup(self.kill_child)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.screen = ""

    def kill_child(self):
        if self.child:
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)

    def await_screen(self, pattern):
        deadline = time.monotonic() + cluster.PATIENCE
        while not re.search(pattern, self.screen):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.terminal], [], [], left)[0]:
                self.fail(f"never showed /{pattern}/, but:\n{self.screen}")
            try:
                self.screen += os.read(self.terminal, 65536).decode()
            except OSError:  # the child has ended
                self.fail(f"ended without /{pattern}/:\n{self.screen}")

    def await_exit(self):
        _, status = os.waitpid(self.child, 0)
        self.child = 0
        return os.waitstatus_to_exitcode(status)

    def test_it_shows_who_works_and_leaves_the_terminal_as_it_was(self):
        self.worker(0, 1, "--steps", "100000", "--step-ms", "50", job="bert")
        self.await_screen(r"> bert +running +1 of 1 +[1-9]")
        os.write(self.terminal, b"e")
        self.await_screen(r"epoch +epoch 1 with 1 member: the job begins")
        self.coordinator.kill()
        self.await_screen(r"no answer for \d+ s: ")
        os.write(self.terminal, b"q")
        self.await_screen(r"\x1b\[\?25h\x1b\[\?1049l$")
        self.assertEqual(self.await_exit(), 0)

    def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(self):
        self.await_screen(r"no jobs yet")
        os.kill(self.child, signal.SIGTERM)
        self.await_screen(r"\x1b\[\?25h\x1b\[\?1049l$")
        self.assertEqual(self.await_exit(), 128 + signal.SIGTERM)

    def test_without_a_terminal_it_names_the_command_for_scripts(self):
        refused = subprocess.run(
            [f"{cluster.BUILD}/syncline", "top", "--coordinator", self.address],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=cluster.PATIENCE,
        )  # fmt: skip
        self.assertEqual(refused.returncode, 2)
        self.assertIn("syncline status", refused.stderr)


if __name__ == "__main__":
    sys.exit(cluster.main())
