#!/usr/bin/env python3
"""Installs the build, moves the installed files, and builds programs against them like a user.

    python3 tests/install/install_test.py --build build/release [Install.test_name ...]
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
BUILD = SOURCE / "build/release"
PATIENCE = 180  # seconds; deadline of everything

PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(trainer LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
find_package(Syncline 0.1 REQUIRED)
add_executable(trainer trainer.cc)
target_compile_options(trainer PRIVATE -Wall -Wextra -Werror)
target_link_libraries(trainer PRIVATE syncline::client)
"""


def run(*command, **options):
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE, **options)
    if ran.returncode != 0:
        raise AssertionError(f"{command} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")
    return ran.stdout


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.scratch = tempfile.TemporaryDirectory(prefix="syncline-install-")
        folder = Path(cls.scratch.name)
        run("cmake", "--install", BUILD, "--prefix", folder / "first")
        cls.prefix = folder / "moved"
        shutil.move(folder / "first", cls.prefix)
        cls.work = folder / "work"
        cls.work.mkdir()

    @classmethod
    def tearDownClass(cls):
        cls.scratch.cleanup()

    def train(self, program, workers=2):
        """Runs a program with `syncline run`. Returns the output of its first worker."""
        launcher = self.prefix / "bin/syncline"
        return run(launcher, "run", "--standalone", "--servers", "2", "--nproc-per-node", workers, "--", program,
                   cwd=self.work)  # fmt: skip

    def test_only_what_users_need_is_installed(self):
        files = {str(path.relative_to(self.prefix)) for path in self.prefix.rglob("*") if not path.is_dir()}
        expected = {"bin/syncline", "include/syncline.h", "include/syncline.hpp", "include/syncline_collective.h", "lib/libsyncline.so",
                    "lib/libsyncline.so.1", "lib/pkgconfig/syncline.pc"}  # fmt: skip
        if (Path(BUILD) / "libsyncline_cuda.so").exists():  # CMake found nvcc
            expected.add("lib/libsyncline_cuda.so")
        self.assertEqual({name for name in files if not name.startswith("lib/cmake/Syncline/")}, expected)
        for name in files:
            if name.endswith((".pc", ".cmake")):
                self.assertNotIn(str(self.prefix.parent / "first"), (self.prefix / name).read_text(), name)
        self.assertIn("syncline", run(self.prefix / "bin/syncline", "version"))

    def test_the_program_of_the_readme_builds_with_find_package_and_trains(self):
        sample = re.search(r"```cpp\n(.*?)```", (SOURCE / "README.md").read_text(), re.S)
        self.assertIn("syncline.hpp", sample.group(1))
        folder = self.work / "cpp"
        folder.mkdir()
        (folder / "trainer.cc").write_text(sample.group(1))
        (folder / "CMakeLists.txt").write_text(PROJECT)
        run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", folder / "build")
        weight = re.search(r"w = (\S+)", self.train(folder / "build/trainer"))
        self.assertAlmostEqual(float(weight.group(1)), 3.0, delta=0.1)

    def test_the_program_in_c_builds_with_pkg_config_and_trains(self):
        packages = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "syncline", env=packages).split()
        program = self.work / "linear_regression"
        run("cc", "-std=c11", "-Wall", "-Wextra", "-Werror", SOURCE / "worker/examples/c/linear_regression.c", *flags,
            f"-Wl,-rpath,{self.prefix}/lib", "-lm", "-o", program)  # fmt: skip
        output = self.train(program)
        self.assertIn("rank 0 of 2: y = 2.000 a + -3.000 b + 1.000 after 200 steps", output)

    def test_rounds_of_local_sgd_in_cpp_are_of_the_length_that_the_speed_allows(self):
        packages = {**os.environ, "PKG_CONFIG_PATH": str(self.prefix / "lib/pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "syncline", env=packages).split()
        program = self.work / "rounds"
        run("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", SOURCE / "tests/install/rounds.cc", *flags, f"-Wl,-rpath,{self.prefix}/lib",
            "-o", program)  # fmt: skip
        self.assertRegex(self.train(program, workers=1), "next 40 steps, w = 1.000")  # the fastest of one
        self.assertRegex(self.train(program), r"next ([1-9]|[1-3]\d|40) steps, w = (0\.9|1\.0)")

    def test_any_language_calls_the_library_in_a_job(self):
        worker = Path(__file__).parent / "ctypes_worker.py"
        output = run(self.prefix / "bin/syncline", "run", "--standalone", "--servers", "1", "--nproc-per-node", "2", "--",
                     sys.executable, worker, self.prefix / "lib/libsyncline.so", cwd=self.work)  # fmt: skip
        self.assertIn("rank 0: done", output)

    def test_an_error_ends_the_program_in_c_with_its_exit_code(self):
        program = BUILD / "linear_regression"
        if not program.exists():
            self.skipTest("the target linear_regression was not built")
        ran = subprocess.run([program], capture_output=True, text=True, timeout=PATIENCE,
                             env={**os.environ, "RANK": "first"})  # fmt: skip
        self.assertEqual(ran.returncode, 2)
        self.assertIn("RANK=first", ran.stderr)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=Path, default=SOURCE)
    parser.add_argument("--build", type=Path, default=BUILD)
    arguments, rest = parser.parse_known_args()
    SOURCE, BUILD = arguments.source.resolve(), arguments.build.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
