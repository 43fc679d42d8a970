"""Runs named checks, prints one line for each, and counts them.

A check is a function without arguments. It passes if it returns. If it raises Skip, its tool is missing. Any other
exception means that it failed. Checks raise AssertionError themselves, so its text is the whole message.

    report = Report(only=[])
    report.check("promtool check config", lambda: run("promtool", "check", "config", path))
    sys.exit(report.close())
"""

import importlib
import shutil
import subprocess
import traceback
from pathlib import Path
from types import ModuleType
from typing import Callable

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "syncline"
VALUES_FILES = sorted((CHART / "ci").glob("*-values.yaml"))


class Skip(Exception):
    """The tool for a check is missing. The text says which one."""


class Report:
    def __init__(self, only: list[str]) -> None:
        self._only = only
        self._passed = self._failed = self._skipped = 0

    def check(self, name: str, function: Callable[[], object]) -> None:
        if self._only and not any(word in name for word in self._only):
            return
        try:
            function()
        except Skip as reason:
            self._skipped += 1
            print(f"SKIP {name}: {reason}", flush=True)
        except AssertionError as error:
            self._fail(name, str(error))
        except Exception:
            self._fail(name, traceback.format_exc())
        else:
            self._passed += 1
            print(f"ok   {name}", flush=True)

    def _fail(self, name: str, text: str) -> None:
        self._failed += 1
        print(f"FAIL {name}\n     " + text.strip().replace("\n", "\n     "), flush=True)

    def close(self) -> int:
        """Prints the counts, and returns the exit code: 77 if nothing could be checked."""
        print(
            f"deploy: {self._passed} passed, {self._failed} failed, {self._skipped} skipped"
        )
        if not self._failed and not self._passed:
            return 77
        return 1 if self._failed else 0


def need_module(name: str) -> ModuleType:
    """Imports a Python package, or skips the check without it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"Python package {name} cannot be had here") from error


def run(program: str, *args: object, stdin: str | None = None, cwd: Path = ROOT) -> str:
    """Runs a program and returns its standard output. Skips the check if the program is missing."""
    path = shutil.which(program)
    if path is None:
        raise Skip(f"{program} is not installed")
    done = subprocess.run(
        [path, *map(str, args)],
        input=stdin,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    command = " ".join([program, *map(str, args)])
    assert done.returncode == 0, (
        f"`{command}` exited with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout
