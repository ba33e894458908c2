"""How the daemon and its processes log: to stderr, records that no quoted text can forge or a terminal obey. Owns nothing.

Records in a file or on a terminal have their time. Pipes and sockets are read by programs that note times themselves, such as
systemd's journal or a container's runtime.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import stat
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from sockd.base.printable import printable

LOG_BYTES = 8 << 20
"""Most of a worker's log file, of which two are kept."""


LAYOUT = "%(levelname)s %(name)s: %(message)s"
TIMED_LAYOUT = f"%(asctime)s.%(msecs)03dZ {LAYOUT}"
"""ISO 8601, in UTC."""


class PrintableFormatter(logging.Formatter):
    """Control characters are escaped. Lines after a record's first are indented: no text makes a record of its own."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record in whole seconds: the layout adds the rest."""
        return time.strftime(datefmt or self.default_time_format, self.converter(record.created))

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


class _PrivateFile(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=lambda path, flags: os.open(path, flags, 0o600))


def log_to_file(path: Path, level: int = logging.INFO) -> None:
    """Have this process's loggers write to a file of a bounded size and the one before it, readable by its owner alone."""
    _log_by(_PrivateFile(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8"), TIMED_LAYOUT, level)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have this process's loggers write to stderr in this format."""
    _log_by(logging.StreamHandler(sys.stderr), TIMED_LAYOUT if wants_times(sys.stderr.fileno()) else LAYOUT, level)


def wants_times(fd: int) -> bool:
    """Return whether a descriptor is a regular file or a terminal."""
    return stat.S_ISREG(os.fstat(fd).st_mode) or os.isatty(fd)


def _log_by(handler: logging.Handler, layout: str, level: int) -> None:
    handler.setFormatter(PrintableFormatter(layout))
    logging.basicConfig(level=level, handlers=[handler])
