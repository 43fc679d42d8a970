"""Tests that mypy finds no error in the package."""
import shutil
import subprocess
import unittest

import support

if shutil.which("mypy") is None:
    raise unittest.SkipTest("no mypy; install it")


class Types(unittest.TestCase):
    def test_are_right(self):
        ended = subprocess.run(["mypy", "--cache-dir=/dev/null"], cwd=support.HERE.parent, text=True, capture_output=True)
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)


if __name__ == "__main__":
    unittest.main()
