"""How the daemon and its processes log: to stderr, records that no quoted text can forge or a terminal obey. Owns nothing."""

from __future__ import annotations

import logging
import sys

from sockd.printable import printable


class PrintableFormatter(logging.Formatter):
    """Control characters are escaped. Lines after a record's first are indented: no text makes a record of its own."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record)).replace("\n", "\n  ")


def log_to_stderr(level: int = logging.INFO) -> None:
    """Have this process's loggers write to stderr in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PrintableFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level, handlers=[handler])
