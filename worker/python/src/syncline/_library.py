"""Loads libsyncline.so and gives its functions (worker/c/syncline.h) their ctypes signatures.

ctypes releases the GIL during every call, so other Python threads run while one waits.
"""
from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64
from ctypes import c_void_p
from pathlib import Path
from typing import Any

from syncline.errors import error_of

ABI_VERSION = 1
FOREVER = -1
FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2

PACKAGE = Path(__file__).parent

LogFunction = ctypes.CFUNCTYPE(None, c_void_p, c_int, c_char_p)


class TensorStruct(ctypes.Structure):
    """syncline_tensor"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dimensions", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("dtype", c_int),
        ("data", c_void_p),
        ("learning_rate_scale", c_double),
        ("options", c_char_p),
        ("state", c_char_p),
        ("frozen", c_int32),
        ("device", c_uint64),
    ]


class StatsStruct(ctypes.Structure):
    """syncline_stats"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes_pushed", c_uint64),
        ("bytes_pulled", c_uint64),
        ("resent_blocks", c_uint64),
        ("epoch", c_uint64),
        ("members", c_uint32),
        ("steps", c_uint64),
        ("phase_seconds", c_double * 6),
        ("late_steps", c_uint64),
        ("slowest_rank", c_int64),
    ]


# By name: (result, arguments). Callers pass a result of type `Code` to check().
Code = c_int
_SIGNATURES = {
    "syncline_version": (c_char_p, []),
    "syncline_abi_version": (c_uint32, []),
    "syncline_last_error": (c_char_p, []),
    "syncline_last_error_exit_code": (c_int, []),
    "syncline_options_from_env": (Code, [POINTER(c_void_p)]),
    "syncline_options_free": (None, [c_void_p]),
    "syncline_options_set": (Code, [c_void_p, c_char_p, c_char_p]),
    "syncline_options_get": (c_char_p, [c_void_p, c_char_p]),
    "syncline_options_set_log": (None, [c_void_p, LogFunction, c_void_p]),
    "syncline_session_create": (Code, [c_void_p, POINTER(c_void_p)]),
    "syncline_session_free": (None, [c_void_p]),
    "syncline_declare": (Code, [c_void_p, POINTER(TensorStruct), POINTER(c_uint32)]),
    "syncline_start": (Code, [c_void_p, c_int64]),
    "syncline_device_check": (Code, [c_uint64]),
    "syncline_push_pull_from": (Code, [c_void_p, c_uint32, c_void_p, c_int, c_uint64, c_uint32]),
    "syncline_memory_new": (Code, [c_void_p, c_uint64, c_int, POINTER(c_void_p)]),
    "syncline_memory_data": (c_void_p, [c_void_p]),
    "syncline_memory_free": (None, [c_void_p]),
    "syncline_scale_learning_rate": (Code, [c_void_p, c_uint32, c_double]),
    "syncline_skip": (Code, [c_void_p, POINTER(c_uint32), c_size_t]),
    "syncline_undeclare": (Code, [c_void_p, c_uint32]),
    "syncline_wait": (Code, [c_void_p, c_uint32, c_int64]),
    "syncline_wait_all": (Code, [c_void_p, c_int64]),
    "syncline_is_ready": (c_int, [c_void_p, c_uint32]),
    "syncline_keeps_late": (c_int, [c_void_p, c_uint32]),
    "syncline_cancel": (None, [c_void_p]),
    "syncline_uncancel": (None, [c_void_p]),
    "syncline_pull_average": (Code, [c_void_p, c_uint32, c_void_p, c_int64]),
    "syncline_pull_state": (Code, [c_void_p, c_uint32, c_uint32, c_void_p, POINTER(c_uint64), c_int64]),
    "syncline_set_state": (Code, [c_void_p, c_uint32, c_uint64, POINTER(c_void_p), c_size_t]),
    "syncline_step": (c_uint64, [c_void_p]),
    "syncline_loss_scale": (c_float, [c_void_p]),
    "syncline_rank": (c_uint32, [c_void_p]),
    "syncline_world_size": (c_uint32, [c_void_p]),
    "syncline_begin_pass": (c_int, [c_void_p, c_int]),
    "syncline_end_pass": (None, [c_void_p]),
    "syncline_report_loss": (None, [c_void_p, c_uint64, c_double, c_uint32]),
    "syncline_get_stats": (Code, [c_void_p, POINTER(StatsStruct)]),
    "syncline_device_codecs": (c_char_p, [c_void_p]),
    "syncline_save_residuals": (Code, [c_void_p, c_char_p]),
    "syncline_restore_residuals": (Code, [c_void_p, c_char_p]),
    "syncline_barrier": (Code, [c_void_p, c_int64]),
    "syncline_leave": (Code, [c_void_p]),
    "syncline_rounds_new": (Code, [c_char_p, POINTER(c_void_p)]),
    "syncline_rounds_free": (None, [c_void_p]),
    "syncline_rounds_steps": (c_uint64, [c_void_p]),
    "syncline_rounds_most": (c_uint64, [c_void_p]),
    "syncline_rounds_least": (c_uint64, [c_void_p]),
    "syncline_rounds_note": (Code, [c_void_p, c_uint64, c_double]),
    "syncline_rounds_write": (Code, [c_void_p, c_uint32, c_void_p, c_size_t]),
    "syncline_rounds_read": (Code, [c_void_p, c_uint32, c_void_p, c_size_t]),
}


def library_path() -> Path:
    """Returns the library's path: $SYNCLINE_LIBRARY or, if that is not set, the one in the wheel."""
    given = os.environ.get("SYNCLINE_LIBRARY")
    return Path(given) if given else PACKAGE / "lib" / "libsyncline.so"


def binary_path() -> Path:
    """Returns the path of the program `syncline`: $SYNCLINE_BINARY or, if that is not set, the one in the wheel."""
    given = os.environ.get("SYNCLINE_BINARY")
    path = Path(given) if given else PACKAGE / "bin" / "syncline"
    if not path.is_file():
        raise FileNotFoundError(f"no program at {path}; install the wheel (make wheel), or say where it is in SYNCLINE_BINARY")
    return path


@functools.lru_cache(maxsize=None)
def library() -> ctypes.CDLL:
    """Loads the library, once, and returns it with typed functions."""
    path = library_path()
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"cannot load {path}: {error}; install the wheel (make wheel), or say where it is in SYNCLINE_LIBRARY") from None
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    found = loaded.syncline_abi_version()
    if found != ABI_VERSION:
        raise ImportError(f"{path} has ABI version {found}, this package needs {ABI_VERSION}; install both from one wheel")
    return loaded


def recorded(name: str, codes: list[int]) -> Any:
    """The function of that name, which appends its result to `codes` in place of returning it.

    ctypes does so before Python runs any other line, and so before it handles a signal: whatever Ctrl-C interrupts behind the call, `codes` says
    whether there was one, and what came of it.
    """
    function = library()[name]  # an object of its own, as what it does with results is the object's
    function.restype, function.argtypes = codes.append, getattr(library(), name).argtypes
    return function


def version() -> str:
    """Returns the version of the loaded library."""
    return str(library().syncline_version().decode())


def check(code: int) -> None:
    """Raises the error of the calling thread's last failed call, unless `code` is OK."""
    if code:
        loaded = library()
        message = loaded.syncline_last_error().decode(errors="replace")
        raise error_of(code, message, loaded.syncline_last_error_exit_code())


class Options:
    """Owns a syncline_options, which starts with the settings of the environment."""

    def __init__(self) -> None:
        self.handle = c_void_p()
        check(library().syncline_options_from_env(byref(self.handle)))

    def __setitem__(self, key: str, value: object) -> None:
        check(library().syncline_options_set(self.handle, key.encode(), str(value).encode()))

    def __getitem__(self, key: str) -> str:
        value = library().syncline_options_get(self.handle, key.encode())
        if value is None:
            raise KeyError(key)
        return str(value.decode())

    def free(self) -> None:
        """Frees the options. May be called again."""
        if self.handle:
            library().syncline_options_free(self.handle)
            self.handle = c_void_p()

    def __del__(self) -> None:
        if getattr(self, "handle", None):
            self.free()
