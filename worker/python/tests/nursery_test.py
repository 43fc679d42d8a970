"""Tests that a program that the nursery forks behaves like one with an interpreter of its own."""
import os
import signal
import subprocess
import sys
import unittest

import nursery
import support
from torch_support import torch  # noqa: F401

IMPORTED = "import os, sys, torch\n"


class Forked(unittest.TestCase):
    def start(self, source, env=None):
        return support.start_program(self, IMPORTED + source, env)

    def both(self, source, env=None):
        """Runs a program in a fork and in an interpreter of its own. Returns the output and the exit code of each."""
        forked = self.start(source, env)
        self.assertIsInstance(forked.process, nursery.Program)
        code = forked.wait()
        own = subprocess.run([sys.executable, "-c", IMPORTED + source], env=forked.environment, text=True, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        return (code, forked.text()), (own.returncode, own.stdout.rstrip("\n"))

    def test_has_the_same_streams_environment_path_and_end(self):
        for source in ("print(sys.argv, sys.path, __name__, sys.stdin.read())\n"
                       "print(sorted(os.environ.items()), os.getsid(0) == os.getpid(), len(os.listdir('/proc/self/fd')))\n"
                       "class Mine: pass\nimport pickle; print(pickle.loads(pickle.dumps(Mine)) is Mine)\n"
                       "import atexit; atexit.register(print, 'the end')\n"
                       "import threading; threading.Thread(target=print, args=['thread']).start()\n"
                       "sys.exit(7)",
                       "print('half a line', end=''); os._exit(3)",
                       "sys.exit('a word')"):
            with self.subTest(source):
                forked, own = self.both(source, {"MINE": "x"})
                self.assertEqual(forked, own)

    def test_a_line_of_the_log_does_not_tear_a_line_of_the_output(self):
        source = "for stream, text in ((1, 'half '), (2, 'log\\n'), (1, 'and half\\r\\nlast')): os.write(stream, text.encode())"
        for env in ({}, {"OMP_NUM_THREADS": "1"}):  # in a fork, and in an interpreter of its own
            program = self.start(source, env)
            self.assertEqual(program.wait(), 0, program.text())
            self.assertEqual(sorted(program.lines), ["half and half", "last", "log"])

    def test_an_error_ends_it_with_a_traceback(self):
        forked = self.start("raise ValueError('wrong')")
        self.assertEqual(forked.wait(), 1)
        self.assertTrue(forked.text().endswith("ValueError: wrong"), forked.text())

    def test_a_signal_ends_it(self):
        for number, code in ((signal.SIGKILL, -9), (signal.SIGTERM, -15)):
            forked = self.start("import time; print('sleeps'); time.sleep(600)")
            forked.await_line("sleeps")
            self.assertIsNone(forked.process.poll())
            forked.process.send_signal(number)
            self.assertEqual(forked.wait(), code)
        with self.assertRaises(subprocess.TimeoutExpired):
            self.start("import time; time.sleep(600)").process.wait(0.1)

    def test_what_is_read_at_the_start_of_an_interpreter_gets_one(self):
        for name in ("LD_PRELOAD", "OMP_NUM_THREADS", "PYTHONHASHSEED"):
            forked = self.start(f"print(os.environ['{name}'])", {name: "3" if name != "LD_PRELOAD" else ""})
            self.assertIsInstance(forked.process, subprocess.Popen)
            self.assertEqual(forked.wait(), 0)
        self.assertIsInstance(support.start_program(self, "import os").process, subprocess.Popen)


if __name__ == "__main__":
    unittest.main()
