"""The launcher: `python -m syncline.run …` is `syncline run …`, and the command `syncline` is the program itself."""
from __future__ import annotations

import os
import sys

from syncline._library import binary_path


def execute(arguments: list[str]) -> None:
    """Becomes the bundled program, which starts scripts with this interpreter; returns never."""
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        binary = str(binary_path())
    except FileNotFoundError as error:
        sys.exit(f"syncline: error: {error}")
    os.execv(binary, ["syncline", *arguments])


def syncline() -> None:
    """The command `syncline` of the wheel."""
    execute(sys.argv[1:])


if __name__ == "__main__":
    execute(["run", *sys.argv[1:]])
