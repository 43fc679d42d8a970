"""Passes the library's log lines to Python's logging, under the name "syncline".

If the program has not set up logging, lines from level INFO on go to standard error, or from the level in SYNCLINE_LOG (debug, info,
warning, error). Otherwise the program's own handlers and levels decide.
"""
from __future__ import annotations

import logging
import os

from syncline.errors import InvalidArgument

logger = logging.getLogger("syncline")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_OF_LIBRARY = tuple(_LEVELS.values())  # by syncline_log_level


def set_up() -> None:
    """Sets up the logger. Called when a session is made, or a group that measures, not on import."""
    given = os.environ.get("SYNCLINE_LOG", "")
    if given and given.lower() not in _LEVELS:
        raise InvalidArgument(f"SYNCLINE_LOG={given}: there are {', '.join(_LEVELS)}")
    if given:
        logger.setLevel(_LEVELS[given.lower()])
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("syncline: %(message)s"))
        logger.addHandler(handler)
        if not given:
            logger.setLevel(logging.INFO)


def log(_context: object, level: int, message: bytes) -> None:
    """Logs a line of the library. It is a syncline_log_function, which the library's own threads call."""
    logger.log(_OF_LIBRARY[min(level, len(_OF_LIBRARY) - 1)], "%s", message.decode(errors="replace"))
