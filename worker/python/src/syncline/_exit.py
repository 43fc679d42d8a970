"""Ends programs that do not catch an error of Syncline with a short traceback and the error's exit code.

Launchers and job controllers use exit codes: they restart after 138, and not after 2 and 7 (docs/errors.md). Launchers also show why
a worker failed, from the file that TORCHELASTIC_ERROR_FILE names. It is written here for any exception, unless torch's `record` has
written it already.
"""
from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
import traceback
import types
from pathlib import Path
from typing import Any, Optional

from syncline.errors import DeviceFailed, behind

_PACKAGE = str(Path(__file__).parent)


def set_up() -> None:
    """Sets sys.excepthook, when a session or an optimizer is made and not on import. The hook that was set before is still called.

    SYNCLINE_EXCEPTHOOK=0 leaves sys.excepthook alone.
    """
    before = sys.excepthook
    if os.environ.get("SYNCLINE_EXCEPTHOOK") == "0" or getattr(before, "is_synclines", False):
        return

    def hook(kind: type[BaseException], error: BaseException, frames: Optional[types.TracebackType]) -> Any:
        ours = behind(error)
        shown = frames if ours is None else _without_ours(frames) or frames
        with contextlib.suppress(OSError):  # the program is about to end anyway
            _write_error_file(error.with_traceback(shown))
        before(kind, error, shown)
        code = _code_of_gpu(error) if ours is None else ours.exit_code
        if code is None:
            return
        if not hasattr(sys, "ps1") and not sys.flags.inspect:  # an interactive Python goes on
            # The hook of torch.distributed, which called this one, prints what it has collected only if this one returns.
            if isinstance(sys.stderr, io.StringIO) and sys.__stderr__ is not None:
                sys.__stderr__.write(sys.stderr.getvalue())
                sys.__stderr__.flush()
            sys.exit(code)

    hook.is_synclines = True  # type: ignore[attr-defined]
    sys.excepthook = hook


def _code_of_gpu(error: BaseException) -> Optional[int]:
    """Returns the exit code for a GPU's failure that torch met before the session did; None for other errors.

    A lack of memory or a wrong setting is no failure of the GPU.
    """
    said = str(error).partition("\n")[0]
    is_of_gpu = isinstance(error, RuntimeError) and said.startswith(("CUDA error: ", "HIP error: "))
    is_sound = any(words in said for words in ("out of memory", "invalid device ordinal", "no kernel image"))
    return DeviceFailed.exit_code if is_of_gpu and not is_sound else None


def _write_error_file(error: BaseException) -> None:
    """Writes the launcher's error file as torch's `record` does: for exceptions only, not for Ctrl-C."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or not isinstance(error, Exception) or (os.path.exists(path) and os.path.getsize(path)):
        return
    more = {"py_callstack": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
            "timestamp": str(int(time.time()))}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": more}}, file)


def _without_ours(frames: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """Returns the traceback without Syncline's own frames. The error's message says what was wrong with the program's call."""
    if frames is None:
        return None
    rest = _without_ours(frames.tb_next)
    if frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return rest
    return types.TracebackType(rest, frames.tb_frame, frames.tb_lasti, frames.tb_lineno)
