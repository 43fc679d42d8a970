#!/usr/bin/env python3
"""Removes one security check at a time, in a copy of this tree, and tests whether the tests fail.

    tests/mutants/mutants.py [--only WORD] [--build build/mutants] [--jobs 2] [--list]

The copy and its build stay in --build, so that a second run builds little. The exit code is 1 if all tests pass without
some check.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import time

from checks import CHECKS

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEST_SECONDS = 300
BUILD_SECONDS = 3600


def source_files():
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            check=True, capture_output=True, text=True).stdout  # fmt: skip
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def copy_tree(copy):
    """Copies the tree. Unchanged files keep their time, so that they are not built again."""
    names = source_files()
    for name in names:
        target = copy / name
        contents = (ROOT / name).read_bytes()
        if target.is_file() and target.read_bytes() == contents:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents)
        target.chmod((ROOT / name).stat().st_mode)
    known = set(names)
    for folder, folders, files in os.walk(copy):
        if pathlib.Path(folder) == copy and "build" in folders:
            folders.remove("build")
        for path in (pathlib.Path(folder) / name for name in files):
            if str(path.relative_to(copy)) not in known:
                path.unlink()


class Bench:
    """A copy of the tree, and a build of it."""

    def __init__(self, folder, jobs):
        self.copy = folder / "source"
        # The path is as deep as those of the presets, so that ccache can reuse their results.
        self.build = self.copy / "build/mutants"
        self.log = folder / "log.txt"
        self.jobs = jobs
        self.copy.mkdir(parents=True, exist_ok=True)
        self.log.write_text("")
        copy_tree(self.copy)
        configured = self.run(["cmake", "-S", self.copy, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                               "-DSYNCLINE_CUDA=OFF", "--log-level=NOTICE"], BUILD_SECONDS)  # fmt: skip
        if not configured:
            sys.exit(f"cmake failed; see {self.log}")

    def run(self, command, seconds):
        with self.log.open("a") as log:
            log.write(f"\n$ {' '.join(map(str, command))}\n")
            log.flush()
            try:
                return subprocess.run(command, stdout=log, stderr=log, timeout=seconds, check=False).returncode == 0
            except subprocess.TimeoutExpired:
                log.write("it does not end\n")
                return False

    def make(self, target):
        return self.run(["ninja", "-C", self.build, f"-j{self.jobs}", target], BUILD_SECONDS)

    def passes(self, target, tests):
        (binary,) = [path for path in self.build.rglob(target) if path.is_file() and os.access(path, os.X_OK)]
        return self.run([binary, f"--gtest_filter={tests}", "--gtest_fail_fast", "--gtest_brief=1"], TEST_SECONDS)

    def try_without(self, check):
        """Returns 'noticed', 'MISSED', or 'DOES NOT BUILD'."""
        path = self.copy / check.file
        whole = path.read_text()
        path.write_text(whole.replace(check.find, check.replace))
        try:
            if not self.make(check.target):
                return "DOES NOT BUILD"
            return "MISSED" if self.passes(check.target, check.tests) else "noticed"
        finally:
            path.write_text(whole)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="checks whose name, file or target has this word")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/mutants")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true", help="say what there is, and do nothing")
    flags = parser.parse_args()
    checks = [check for check in CHECKS if flags.only in f"{check.name} {check.file} {check.target}"]
    if flags.list or not checks:
        for check in checks:
            print(f"{check.target:26} {check.file:40} {check.name}")
        return 0 if checks else f"no check has '{flags.only}'"
    bench = Bench(flags.build.resolve(), flags.jobs)
    # A test that fails anyway would seem to notice everything.
    for target, tests in dict.fromkeys((check.target, check.tests) for check in checks):
        if not bench.make(target):
            return f"{target} does not build; see {bench.log}"
        if not bench.passes(target, tests):
            return f"{target} {tests} fails with all checks in place; see {bench.log}"
    bad = 0
    for check in checks:
        began = time.monotonic()
        outcome = bench.try_without(check)
        bad += outcome != "noticed"
        print(f"{outcome:15} {time.monotonic() - began:5.0f} s  {check.name} ({check.file})", flush=True)
    print(f"{len(checks) - bad} of {len(checks)} checks are noticed when they are missing")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
