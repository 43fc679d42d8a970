"""How a program ends that does not catch an error of Syncline's: with a short traceback, and the error's exit code.

Launchers and job controllers go by exit codes: 138 start again, 2 and 7 do not (docs/errors.md).
"""
from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any, Optional

from syncline.errors import behind

_PACKAGE = str(Path(__file__).parent)


def set_up() -> None:
    """Once a session is made, not on import. What others have set as sys.excepthook still sees every exception.

    SYNCLINE_EXCEPTHOOK=0 leaves sys.excepthook alone.
    """
    before = sys.excepthook
    if os.environ.get("SYNCLINE_EXCEPTHOOK") == "0" or getattr(before, "is_synclines", False):
        return

    def hook(kind: type[BaseException], error: BaseException, traceback: Optional[types.TracebackType]) -> Any:
        ours = behind(error)
        if ours is None:
            return before(kind, error, traceback)
        short = _without_ours(traceback) or traceback
        before(kind, error.with_traceback(short), short)
        if not hasattr(sys, "ps1") and not sys.flags.inspect:  # Python stays, waiting for its user
            sys.exit(ours.exit_code)

    hook.is_synclines = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _without_ours(traceback: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """The frames of the program; the last line of the error says what was wrong with its call."""
    if traceback is None:
        return None
    rest = _without_ours(traceback.tb_next)
    if traceback.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return rest
    return types.TracebackType(rest, traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno)
