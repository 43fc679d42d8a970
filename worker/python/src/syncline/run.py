"""The launcher: `python -m syncline.run …` runs `syncline run …`, and the wheel's command `syncline` runs the program itself."""
from __future__ import annotations

import os
import sys

from syncline._library import binary_path


def execute(arguments: list[str]) -> None:
    """Replaces this process by the bundled program, which starts scripts with this interpreter. Never returns."""
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        binary = str(binary_path())
    except FileNotFoundError as error:
        sys.exit(f"syncline: error: {error}")
    os.execv(binary, ["syncline", *arguments])


def syncline() -> None:
    """Runs the wheel's command `syncline`."""
    execute(sys.argv[1:])


if __name__ == "__main__":
    execute(["run", *sys.argv[1:]])
