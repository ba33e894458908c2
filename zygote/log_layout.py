"""AWS's layout for what a function logs: [LEVEL], time, request id and message, with tabs between them.

Imported only where the function, or a package of it, has imported `logging`. A root logger that has a handler of the function's
own keeps it; one that has none, or only what `basicConfig` makes without a format, gets AWS's layout.
"""

from __future__ import annotations

import logging
import sys
import time

LAYOUT = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"


class Formatter(logging.Formatter):
    """As awslambdaric's."""

    converter = time.gmtime  # type: ignore[assignment]  # typeshed knows localtime's signature alone

    def __init__(self) -> None:
        super().__init__(LAYOUT, "%Y-%m-%dT%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        from zygote import handler_server

        digits = handler_server.current_request.hex()
        record.aws_request_id = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        return super().format(record)


HANDLER = logging.StreamHandler()
"""Made where this module is imported: in a Zygote whose packages have imported `logging`."""
HANDLER.setFormatter(Formatter())


def apply() -> None:
    """Give the root logger AWS's layout, unless the function has chosen another."""
    root = logging.getLogger()
    if not root.handlers:
        HANDLER.stream = sys.stderr
        root.addHandler(HANDLER)
        return
    if len(root.handlers) > 1 or not is_default(root.handlers[0]):
        return
    root.handlers[0].setFormatter(HANDLER.formatter)


def is_default(handler: logging.Handler) -> bool:
    """Whether `basicConfig` has made it, and nobody said how its lines are to look."""
    layout = getattr(handler.formatter, "_fmt", None)
    return type(handler) is logging.StreamHandler and layout == logging.BASIC_FORMAT
