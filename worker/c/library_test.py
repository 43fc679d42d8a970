#!/usr/bin/env python3
"""Tests the symbols of libsyncline.so, its headers, and that it can be loaded beside torch.

    worker/c/library_test.py LIBRARY HEADER [TestClass.test_name]
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

LIBRARY, HEADER = "", ""

BESIDE_TORCH = """
import ctypes, sys
import torch
library = ctypes.CDLL(sys.argv[1])
options, session = ctypes.c_void_p(), ctypes.c_void_p()
assert library.syncline_options_new(ctypes.byref(options)) == 0
assert library.syncline_session_create(options, ctypes.byref(session)) == 0
# Both work on: torch through autograd, the session up to its control link.
x = torch.ones(8, requires_grad=True)
(x * x).sum().backward()
assert x.grad.tolist() == [2.0] * 8
assert library.syncline_start(session, ctypes.c_int64(0)) == 9, "no tensor is declared"
library.syncline_session_free(session)
library.syncline_options_free(options)
"""

CHECK_DEVICE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.syncline_last_error.restype = ctypes.c_char_p
print(library.syncline_device_check(ctypes.c_uint64(1)), library.syncline_last_error().decode())
"""


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


class Library(unittest.TestCase):
    def test_exports_what_the_header_declares_and_nothing_else(self):
        listed = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True)
        exported = {line.split()[-1] for line in listed.stdout.splitlines()}
        declared = set()
        for header in (HEADER, HEADER.replace("syncline.h", "syncline_collective.h")):
            with open(header) as file:
                declared |= set(re.findall(r"SYNCLINE_API [^;(]*?(syncline_\w+)\(", file.read()))
        self.assertGreater(len(declared), 25)
        self.assertEqual(exported, declared)

    def test_header_is_c11_and_cpp(self):
        for language in (["cc", "-x", "c", "-std=c11"], ["c++", "-x", "c++", "-std=c++17"]):
            checked = subprocess.run([*language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-"],
                                     input=f'#include "{HEADER}"', capture_output=True, text=True)  # fmt: skip
            self.assertEqual(checked.returncode, 0, checked.stderr)
            collective = HEADER.replace("syncline.h", "syncline_collective.h")
            checked = subprocess.run([*language, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-"],
                                     input=f'#include "{collective}"', capture_output=True, text=True)  # fmt: skip
            self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_refuses_to_be_its_own_cuda_module(self):
        """Opened again under another name it would declare protobuf's messages twice, which ends the process."""
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, "copy.so")
            shutil.copy(LIBRARY, copy)
            ran = subprocess.run([sys.executable, "-c", CHECK_DEVICE, LIBRARY], capture_output=True, text=True, timeout=120,
                                 env={**os.environ, "SYNCLINE_CUDA_MODULE": copy})  # fmt: skip
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"^14 .*copy.so is not a Syncline CUDA module: .* SYNCLINE_CUDA_MODULE says so: .* unset it")

    def test_loads_into_a_process_with_torch(self):
        python = next((python for python in (sys.executable, "/usr/bin/python3") if has_torch(python)), None)
        if python is None:
            self.skipTest("torch is missing (apt-get install python3-torch)")
        for order in ("torch first", "syncline first"):
            program = BESIDE_TORCH
            if order == "syncline first":
                program = program.replace("import torch\n", "", 1).replace("# Both", "import torch\n# Both")
            ran = subprocess.run([python, "-c", program, LIBRARY], capture_output=True, text=True, timeout=120)
            self.assertEqual(ran.returncode, 0, f"{order}: {ran.stderr}")


if __name__ == "__main__":
    LIBRARY, HEADER = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
