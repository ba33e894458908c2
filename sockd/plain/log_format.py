"""How the daemon and its processes log: to stderr, records that no quoted text can forge or a terminal obey. Owns nothing."""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from io import TextIOWrapper
from pathlib import Path

from sockd.plain.printable import printable

LOG_BYTES = 8 << 20
"""Most of a worker's log file, of which two are kept."""


class PrintableFormatter(logging.Formatter):
    """Control characters are escaped. Lines after a record's first are indented: no text makes a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Have this process's loggers write to a file of a bounded size and the one before it, readable by its owner alone."""
    _log_by(_PrivateFile(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"), level)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have this process's loggers write to stderr in this format."""
    _log_by(logging.StreamHandler(sys.stderr), level)


def _log_by(handler: logging.Handler, level: int) -> None:
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
